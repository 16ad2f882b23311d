package bootstrap

import (
	"context"
	"fmt"
	"math"
	"net/http"
	"strconv"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"kusionstack.io/kuperator/internal/shard"
	"kusionstack.io/kuperator/internal/shard/placement"
)

// sharded makes of a manager, which keeps the process's cache, its probes and its metrics, one that runs a manager
// for each shard that this replica holds. None of them is told of shards: each sees the namespaces of one
// (docs/design/0012-shards.md).
type sharded struct {
	component Component
	options   *Options
	cfg       *rest.Config
	// manager are the options of the manager of the process.
	manager ctrl.Options
	process ctrl.Manager
	cache   *shard.Cache
	logger  logr.Logger
}

// newSharded prepares the manager that runs shards. It starts when the process's manager does.
func newSharded(
	ctx context.Context, c Component, o *Options, cfg *rest.Config, options ctrl.Options, logger logr.Logger,
) (ctrl.Manager, error) {
	options.LeaderElection = false
	own := options
	own.GracefulShutdownTimeout = ptr.To(o.ShutdownTimeout + shutdownMargin)
	process, err := ctrl.NewManager(cfg, own)
	if err != nil {
		return nil, fmt.Errorf("preparing the manager: %w", err)
	}
	s := &sharded{
		component: c, options: o, cfg: cfg, manager: options, process: process, logger: logger,
		cache: shard.NewCache(process.GetCache(), process.GetScheme()),
	}
	if err := s.addStandby(ctx); err != nil {
		return nil, err
	}
	return process, s.addCoordinator()
}

// shutdownMargin is how much longer the process waits than its shards do, to give their Leases back.
const shutdownMargin = 3 * time.Second

// addStandby adds a set-up that is never elected and sees no object: it fills the caches before the first shard
// comes, and what is wrong with the set-up ends the process at its start.
func (s *sharded) addStandby(ctx context.Context) error {
	standby, err := s.newManager(ctx, s.logger.WithName("standby"), &shard.LeaseFence{},
		s.cache.View(func(string) bool { return false }, ""),
		prometheus.NewRegistry(), func(o *ctrl.Options) {
			o.LeaderElection, o.LeaderElectionResourceLockInterface = true, heldByShards{}
			o.LeaseDuration, o.RenewDeadline, o.RetryPeriod = ptr.To(never), ptr.To(never/2), ptr.To(never/4)
		})
	if err != nil {
		return err
	}
	return s.process.Add(unelected(standby.Start))
}

func (s *sharded) addCoordinator() error {
	identity, err := newIdentity()
	if err != nil {
		return err
	}
	leases, watcher, err := leaseClients(s.cfg, s.options)
	if err != nil {
		return err
	}
	ready := make(chan struct{})
	coordinator := shard.New(shard.Options{
		Component: s.options.Name, Shards: s.options.Shards, Namespace: s.options.LeaderElectNamespace,
		Identity: identity, Client: leases, Watcher: watcher,
		LeaseDuration: s.options.LeaseDuration, RenewDeadline: s.options.RenewDeadline, RetryPeriod: s.options.RetryPeriod,
		Ready: ready, Run: s.run, Logger: s.logger.WithName("shards"), Clock: clock.RealClock{},
	})
	if err := coordinator.Register(metrics.Registry); err != nil {
		return err
	}
	waiting := unelected(func(ctx context.Context) error {
		if s.process.GetCache().WaitForCacheSync(ctx) {
			close(ready)
		}
		<-ctx.Done()
		return nil
	})
	if err := s.process.Add(waiting); err != nil {
		return err
	}
	return s.process.Add(coordinator)
}

// run acts for one shard until ctx ends. It returns nil when all that it began has ended.
func (s *sharded) run(ctx context.Context, which int, fence *shard.LeaseFence) error {
	logger := s.logger.WithValues("shard", which)
	view := s.cache.View(func(namespace string) bool { return placement.Of(namespace, s.options.Shards) == which },
		s.options.LeaderElectNamespace)
	registry := &leaving{Registerer: prometheus.WrapRegistererWith(prometheus.Labels{"shard": strconv.Itoa(which)},
		metrics.Registry)}
	defer registry.leave()
	mgr, err := s.newManager(ctx, logger, fence, view, registry, func(*ctrl.Options) {})
	if err != nil {
		return err
	}
	return mgr.Start(ctrl.LoggerInto(ctx, logger))
}

// newManager is a manager over a view of the process's cache, with the component set up in it.
func (s *sharded) newManager(
	ctx context.Context, logger logr.Logger, fence *shard.LeaseFence, view *shard.View, registry prometheus.Registerer,
	change func(*ctrl.Options),
) (ctrl.Manager, error) {
	options := s.manager
	options.Logger = logger
	options.Cache = cache.Options{}
	options.NewCache = func(*rest.Config, cache.Options) (cache.Cache, error) { return view, nil }
	options.MapperProvider = func(*rest.Config, *http.Client) (meta.RESTMapper, error) {
		return s.process.GetRESTMapper(), nil
	}
	options.Metrics.BindAddress, options.HealthProbeBindAddress, options.PprofBindAddress = "0", "0", "0"
	options.Controller.SkipNameValidation = ptr.To(true)
	change(&options)
	cfg := rest.CopyConfig(s.cfg)
	cfg.Wrap(fence.Wrap)
	mgr, err := ctrl.NewManager(cfg, options)
	if err != nil {
		return nil, fmt.Errorf("preparing the manager: %w", err)
	}
	limited := shardManager{Manager: mgr, direct: view.Reader(mgr.GetAPIReader()), registry: registry}
	if err := s.component.Setup(ctx, limited, *s.options); err != nil {
		return nil, fmt.Errorf("setting up %s: %w", s.component.Name, err)
	}
	return mgr, nil
}

// shardManager is a manager that sees a part of the cluster past its cache, too.
type shardManager struct {
	ctrl.Manager
	direct   client.Reader
	registry prometheus.Registerer
}

// GetAPIReader reads past the cache.
func (m shardManager) GetAPIReader() client.Reader { return m.direct }

// Registry is where collectors go that tell of the objects of this manager; see metric.RegistryOf.
func (m shardManager) Registry() prometheus.Registerer { return m.registry }

// leaving takes off at its end what was registered through it.
type leaving struct {
	prometheus.Registerer
	collectors []prometheus.Collector
}

// Register is part of prometheus.Registerer.
func (l *leaving) Register(c prometheus.Collector) error {
	err := l.Registerer.Register(c)
	if err == nil {
		l.collectors = append(l.collectors, c)
	}
	return err
}

func (l *leaving) leave() {
	for _, c := range l.collectors {
		l.Unregister(c)
	}
}

// unelected runs on every replica.
type unelected manager.RunnableFunc

// Start is part of manager.Runnable.
func (u unelected) Start(ctx context.Context) error { return u(ctx) }

// NeedLeaderElection is part of manager.LeaderElectionRunnable.
func (unelected) NeedLeaderElection() bool { return false }

// never is how long the standby of a sharded process waits to be elected.
const never = time.Duration(math.MaxInt32) * time.Second

// heldByShards is the Lease of a standby. It is always held by another identity, so that nothing creates or updates it.
type heldByShards struct{ resourcelock.Interface }

// Get is part of resourcelock.Interface.
func (heldByShards) Get(context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	return &resourcelock.LeaderElectionRecord{HolderIdentity: "shards", LeaseDurationSeconds: math.MaxInt32,
		RenewTime: metav1.Now()}, []byte("{}"), nil
}

// RecordEvent is part of resourcelock.Interface.
func (heldByShards) RecordEvent(string) {}

// Identity is part of resourcelock.Interface.
func (heldByShards) Identity() string { return "standby" }

// Describe is part of resourcelock.Interface.
func (heldByShards) Describe() string { return "the shards' own" }
