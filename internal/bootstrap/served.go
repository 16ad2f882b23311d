package bootstrap

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"kusionstack.io/kuperator/internal/metric"
)

// Waits between two looks at the API server's discovery while a kind is not served.
const (
	firstLook = 5 * time.Second
	lastLook  = 10 * time.Second
	// rareLook is the one while an API of Kubernetes is not offered.
	rareLook = 5 * time.Minute
)

// WhenServed runs setup once the API server serves gvk: at start if it does so already, else as soon as the kind
// appears (it looks after 5 s, then ever less often, every 10 s in the end). Until then the component runs, is ready,
// and has said once in its log what it waits for. Setup runs on its own goroutine after the manager started, on
// standbys too, and at most once; it adds the controllers and watches that need the kind. An error of setup ends the
// manager, because nothing else would ever run it again.
//
// Setup has to add to the manager that it is given. That one runs nothing before setup has returned: a controller
// that a running manager gets begins at once, with the watches that it has by then, whose caches may wait for those
// of later ones, or are all that its workers wait for.
//
// Use it for every kind that comes from a CRD. Call it in Component.Setup; the error it returns comes from adding a
// runnable to a manager that is stopping.
func WhenServed(mgr ctrl.Manager, gvk schema.GroupVersionKind, setup func(ctrl.Manager) error) error {
	s := newServed(mgr, gvk, setup)
	s.older = func(ctx context.Context) ([]string, error) {
		return fieldsNotServed(ctx, mgr.GetConfig(), mgr.GetScheme(), gvk)
	}
	return mgr.Add(s)
}

// WhenOffered is WhenServed for a kind of Kubernetes itself, which most clusters do not serve: it looks every 5
// minutes, and says nothing while it waits.
func WhenOffered(mgr ctrl.Manager, gvk schema.GroupVersionKind, setup func(ctrl.Manager) error) error {
	s := newServed(mgr, gvk, setup)
	s.rare = true
	return mgr.Add(s)
}

func newServed(mgr ctrl.Manager, gvk schema.GroupVersionKind, setup func(ctrl.Manager) error) *served {
	return &served{
		kind:   gvk,
		mapper: mgr.GetRESTMapper(),
		setup:  func() error { return atOnce(mgr, setup) },
		older:  func(context.Context) ([]string, error) { return nil, nil },
		clock:  clock.RealClock{},
		logger: mgr.GetLogger().WithName("discovery"),
	}
}

// Offers tells whether the API server serves a kind of Kubernetes itself: false until it was found to.
func Offers(mgr ctrl.Manager, gvk schema.GroupVersionKind) (*atomic.Bool, error) {
	var offered atomic.Bool
	return &offered, WhenOffered(mgr, gvk, func(ctrl.Manager) error {
		offered.Store(true)
		return nil
	})
}

// served is a runnable that waits for one kind. It needs no Lease: standbys fill their caches too.
type served struct {
	kind   schema.GroupVersionKind
	mapper meta.RESTMapper
	setup  func() error
	// older returns the fields that the program knows and the CRD does not.
	older func(context.Context) ([]string, error)
	// rare is true for a kind that most clusters do not serve: it is looked for rarely, and without a word.
	rare   bool
	clock  clock.Clock
	logger logr.Logger
}

var _ manager.LeaderElectionRunnable = &served{}

// NeedLeaderElection is always false.
func (s *served) NeedLeaderElection() bool { return false }

// Start looks until the kind is served or ctx ends, and returns setup's error.
func (s *served) Start(ctx context.Context) error {
	wait, waiting := firstLook, false
	for {
		err := s.look()
		if err == nil {
			break
		}
		if !waiting && !s.rare {
			waiting = true
			s.logger.Info(fmt.Sprintf(
				"waiting for %s: the API server does not serve it; install its CRD, or leave it out if you do not use it",
				s.kind.Kind),
				"group", s.kind.Group, "version", s.kind.Version, "kind", s.kind.Kind, "answer", err.Error())
		}
		pause := wait
		if s.rare && meta.IsNoMatchError(err) {
			pause = rareLook
		}
		timer := s.clock.NewTimer(pause)
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-timer.C():
		}
		wait = min(wait*2, lastLook)
	}
	if waiting {
		s.logger.Info(s.kind.Kind+" is served now", "group", s.kind.Group, "version", s.kind.Version, "kind", s.kind.Kind)
	}
	if err := s.setup(); err != nil {
		return fmt.Errorf("setting up what watches %s: %w", s.kind.Kind, err)
	}
	s.compare(ctx)
	return nil
}

// compare says in the log when the CRD is older than the program. Nothing depends on it, so an error is only logged.
func (s *served) compare(ctx context.Context) {
	fields, err := s.older(ctx)
	if err != nil {
		s.logger.V(1).Info("the CRD could not be compared with this program", "kind", s.kind.Kind, "error", err.Error())
		return
	}
	if len(fields) > 0 {
		s.logger.Info(
			"the CRD is older than this program: the API server drops the fields that it lacks; apply the CRDs of this version",
			"kind", s.kind.Kind, "fields", fields)
	}
}

// look asks discovery: the manager's mapper reads it again whenever it does not know a kind. An answer that is an
// error of another sort (the API server is away) counts as "not yet" as well.
func (s *served) look() error {
	_, err := s.mapper.RESTMapping(s.kind.GroupKind(), s.kind.Version)
	return err
}

// atOnce runs setup, and then what it has added.
func atOnce(mgr ctrl.Manager, setup func(ctrl.Manager) error) error {
	g := &gathering{Manager: mgr}
	if err := setup(g); err != nil {
		return err
	}
	return g.release()
}

// gathering is a manager that keeps what is added to it until it is released, and from then on adds it as any other.
type gathering struct {
	ctrl.Manager

	mu       sync.Mutex
	held     []manager.Runnable
	released bool
}

// Add is part of manager.Manager.
func (g *gathering) Add(r manager.Runnable) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.released {
		return g.Manager.Add(r)
	}
	g.held = append(g.held, r)
	return nil
}

func (g *gathering) release() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.released = true
	for _, r := range g.held {
		if err := g.Manager.Add(r); err != nil {
			return err
		}
	}
	g.held = nil
	return nil
}

// Registry is that of the manager behind it; see metric.RegistryOf.
func (g *gathering) Registry() prometheus.Registerer { return metric.RegistryOf(g.Manager) }

// notServedFor is how long a no of discovery holds: the API server is not asked for every object of a cluster that does
// not serve the kind at all.
const notServedFor = 5 * time.Second

// Kind tells whether the API server serves a kind that comes from a CRD. It is safe for concurrent use.
type Kind struct {
	mapper meta.RESTMapper
	gvk    schema.GroupVersionKind
	clock  clock.PassiveClock

	mu      sync.Mutex
	known   bool
	askedAt time.Time // when discovery last said no
}

// NewKind makes a Kind that asks discovery.
func NewKind(mapper meta.RESTMapper, gvk schema.GroupVersionKind, clk clock.PassiveClock) *Kind {
	return &Kind{mapper: mapper, gvk: gvk, clock: clk}
}

// Known records that the kind is served, and watched, whatever discovery last returned. It holds for good.
func (k *Kind) Known() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.known = true
}

// Served reports whether the kind is served, and whether that is known for good.
func (k *Kind) Served() (served, known bool, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	now := k.clock.Now()
	if k.known || now.Sub(k.askedAt) < notServedFor {
		return k.known, k.known, nil
	}
	_, err = k.mapper.RESTMapping(k.gvk.GroupKind(), k.gvk.Version)
	switch {
	case meta.IsNoMatchError(err):
		k.askedAt = now
		return false, false, nil
	case err != nil:
		return false, false, fmt.Errorf("asking whether the API server serves %ss: %w", k.gvk.Kind, err)
	}
	return true, false, nil
}
