package bootstrap

import (
	"context"
	"fmt"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/manager"
)

// Waits between two looks at the API server's discovery while a kind is not served.
const (
	firstLook = 5 * time.Second
	lastLook  = 10 * time.Second
)

// WhenServed runs setup once the API server serves gvk: at start if it does so already, else as soon as the kind
// appears (it looks after 5 s, then ever less often, every 10 s in the end). Until then the component runs, is ready,
// and has said once in its log what it waits for. Setup runs on its own goroutine after the manager started, on
// standbys too, and at most once; it adds the controllers and watches that need the kind. An error of setup ends the
// manager, because nothing else would ever run it again.
//
// Use it for every kind that comes from a CRD. Call it in Component.Setup; the error it returns comes from adding a
// runnable to a manager that is stopping.
func WhenServed(mgr ctrl.Manager, gvk schema.GroupVersionKind, setup func() error) error {
	return mgr.Add(&served{
		kind:   gvk,
		mapper: mgr.GetRESTMapper(),
		setup:  setup,
		older: func(ctx context.Context) ([]string, error) {
			return fieldsNotServed(ctx, mgr.GetConfig(), mgr.GetScheme(), gvk)
		},
		clock:  clock.RealClock{},
		logger: mgr.GetLogger().WithName("discovery"),
	})
}

// served is a runnable that waits for one kind. It needs no Lease: standbys fill their caches too.
type served struct {
	kind   schema.GroupVersionKind
	mapper meta.RESTMapper
	setup  func() error
	// older returns the fields that the program knows and the CRD does not.
	older  func(context.Context) ([]string, error)
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
		if !waiting {
			waiting = true
			s.logger.Info(fmt.Sprintf("waiting for %s: the API server does not serve it; install its CRD, or leave it out if you do not use it", s.kind.Kind),
				"group", s.kind.Group, "version", s.kind.Version, "kind", s.kind.Kind, "answer", err.Error())
		}
		timer := s.clock.NewTimer(wait)
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
		s.logger.Info("the CRD is older than this program: the API server drops the fields that it lacks; apply the CRDs of this version",
			"kind", s.kind.Kind, "fields", fields)
	}
}

// look asks discovery: the manager's mapper reads it again whenever it does not know a kind. An answer that is an
// error of another sort (the API server is away) counts as "not yet" as well.
func (s *served) look() error {
	_, err := s.mapper.RESTMapping(s.kind.GroupKind(), s.kind.Version)
	return err
}
