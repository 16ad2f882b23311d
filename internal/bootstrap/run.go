package bootstrap

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
)

// cachesCheck is the name of the readiness check that every component has.
const cachesCheck = "caches"

// run starts the component and blocks until ctx ends or the manager fails.
func run(ctx context.Context, c Component, o *Options, logTo io.Writer) error {
	logger, err := o.logger(logTo)
	if err != nil {
		return err
	}
	useLogger(logger)
	ctx = ctrl.LoggerInto(ctx, logger)

	cfg, err := o.restConfig()
	if err != nil {
		return err
	}
	managerOptions, err := c.managerOptions(o)
	if err != nil {
		return err
	}
	mgr, err := c.newManager(ctx, o, cfg, managerOptions, logger)
	if err != nil {
		return err
	}
	if err := registerMetrics(metrics.Registry, o.Name, o.Version); err != nil {
		return err
	}
	if err := addChecks(mgr, c.ReadyChecks); err != nil {
		return err
	}
	logger.Info("starting", "version", o.Version, "leaderElection", o.LeaderElect, "shards", o.Shards,
		"namespaces", o.Namespaces, "concurrency", o.Concurrency)
	if err := mgr.Start(ctx); err != nil {
		return err // "leader election lost" among them
	}
	logger.Info("stopped")
	return nil
}

// newManager is the manager of the process, with the component set up.
func (c *Component) newManager(
	ctx context.Context, o *Options, cfg *rest.Config, options ctrl.Options, logger logr.Logger,
) (ctrl.Manager, error) {
	switch {
	case c.LeaderElected && o.Shards > 1:
		return newSharded(ctx, *c, o, cfg, options, logger)
	case options.LeaderElection:
		return newLed(ctx, c, o, cfg, options)
	}
	mgr, err := ctrl.NewManager(cfg, options)
	if err != nil {
		return nil, fmt.Errorf("preparing the manager: %w", err)
	}
	if err := c.Setup(ctx, mgr, *o); err != nil {
		return nil, fmt.Errorf("setting up %s: %w", c.Name, err)
	}
	return mgr, nil
}

// managerOptions puts the flags and what the component says about itself together.
func (c *Component) managerOptions(o *Options) (ctrl.Options, error) {
	scheme := runtime.NewScheme()
	if err := clientgoscheme.AddToScheme(scheme); err != nil {
		return ctrl.Options{}, fmt.Errorf("adding the kinds of Kubernetes: %w", err)
	}
	if err := appsv1alpha1.AddToScheme(scheme); err != nil {
		return ctrl.Options{}, fmt.Errorf("adding the kinds of the suite: %w", err)
	}
	m := ctrl.Options{
		Scheme:                        scheme,
		Cache:                         c.cacheOptions(o),
		NewClient:                     newClientFor(o.Name),
		LeaderElection:                c.LeaderElected && o.LeaderElect,
		LeaderElectionID:              o.Name, // in metrics
		LeaderElectionReleaseOnCancel: true,   // safe: the process ends when the manager does
		LeaseDuration:                 ptr.To(o.LeaseDuration),
		RenewDeadline:                 ptr.To(o.RenewDeadline),
		RetryPeriod:                   ptr.To(o.RetryPeriod),
		Metrics:                       o.metricsServer(),
		HealthProbeBindAddress:        o.HealthProbeBindAddress,
		GracefulShutdownTimeout:       ptr.To(o.ShutdownTimeout),
		Controller: config.Controller{
			MaxConcurrentReconciles: o.Concurrency,
			// Standbys fill their caches before they are elected, so that a hand-over costs a Lease and not a list of all Pods.
			// A controller that decides on a budget reads once afresh after it was elected.
			EnableWarmup: ptr.To(true),
		},
	}
	if c.Manager != nil {
		if err := c.Manager(o, &m); err != nil {
			return ctrl.Options{}, fmt.Errorf("configuring the manager of %s: %w", c.Name, err)
		}
	}
	return m, nil
}

// metricsServer says how /metrics is served. The API server authenticates and authorises who asks (TokenReview and
// SubjectAccessReview); what it answers is remembered for a minute and five.
func (o *Options) metricsServer() metricsserver.Options {
	server := metricsserver.Options{BindAddress: o.MetricsBindAddress, SecureServing: o.MetricsSecure,
		CertDir: o.MetricsCertDir}
	if o.Profiling {
		server.ExtraHandlers = profilingHandlers()
	}
	if o.MetricsSecure {
		server.FilterProvider = delegated
		// One scraper asks twice a minute: HTTP/2, and the ways to exhaust a server by it, have nothing to give here.
		server.TLSOpts = []func(*tls.Config){func(c *tls.Config) { c.NextProtos = []string{"http/1.1"} }}
	}
	return server
}

func (c *Component) cacheOptions(o *Options) cache.Options {
	var options cache.Options
	if c.Cache != nil {
		options = c.Cache(o)
	}
	if options.DefaultTransform == nil {
		options.DefaultTransform = StripManagedFields
	}
	if options.DefaultNamespaces == nil && len(o.Namespaces) > 0 {
		options.DefaultNamespaces = make(map[string]cache.Config, len(o.Namespaces))
		for _, namespace := range o.Namespaces {
			options.DefaultNamespaces[namespace] = cache.Config{}
		}
	}
	return options
}

// newClientFor makes the manager's client name the component as field manager in every write.
func newClientFor(name string) client.NewClientFunc {
	return func(cfg *rest.Config, options client.Options) (client.Client, error) {
		c, err := client.New(cfg, options)
		if err != nil {
			return nil, err
		}
		return client.WithFieldOwner(c, name), nil
	}
}

func addChecks(mgr ctrl.Manager, ready map[string]healthz.Checker) error {
	errs := []error{
		mgr.AddHealthzCheck("ping", healthz.Ping),
		mgr.AddReadyzCheck(cachesCheck, cachesFilled(mgr.GetCache())),
	}
	for name, check := range ready {
		if name == cachesCheck {
			errs = append(errs, fmt.Errorf("the readiness check %q is bootstrap's own", name))
			continue
		}
		errs = append(errs, mgr.AddReadyzCheck(name, check))
	}
	return errors.Join(errs...)
}

// cachesFilled is ready once every informer that was started has listed its objects. It holds on a standby as well.
func cachesFilled(informers cache.Informers) healthz.Checker {
	return func(req *http.Request) error {
		ctx, cancel := context.WithTimeout(req.Context(), time.Second)
		defer cancel()
		if !informers.WaitForCacheSync(ctx) {
			return errors.New("the caches are still being filled")
		}
		return nil
	}
}
