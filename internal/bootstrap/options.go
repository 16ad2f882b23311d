package bootstrap

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	cliflag "k8s.io/component-base/cli/flag"
)

// defaultNamespace is the namespace of the Lease if the downward API does not provide that of the Pod.
const defaultNamespace = "kuperator-system"

// Options are the values of the flags that all components share. Setup receives them validated.
type Options struct {
	// Name is the component's name.
	Name string
	// Version is what Version returns.
	Version string

	// Kubeconfig is the path to a kubeconfig file. Empty means the Pod's ServiceAccount, or else KUBECONFIG and
	// ~/.kube/config.
	Kubeconfig string
	// Context is the context of that file. Empty means its current context.
	Context string
	// KubeAPIQPS is the maximum number of requests per second to the API server. -1 means no client-side limit, so that
	// API Priority and Fairness of the API server applies.
	KubeAPIQPS float32
	// KubeAPIBurst is the burst of requests above KubeAPIQPS. It has no meaning if that is -1.
	KubeAPIBurst int

	// LeaderElect is whether to reconcile only while holding the Lease. Always false for a component without leader
	// election.
	LeaderElect bool
	// LeaderElectNamespace is the namespace of the Lease; its name is Name.
	LeaderElectNamespace string
	// LeaseDuration is how long other replicas wait after the last observed renewal before they take the Lease.
	LeaseDuration time.Duration
	// RenewDeadline is how long the leader retries to renew the Lease before it exits.
	RenewDeadline time.Duration
	// RetryPeriod is the interval between attempts to acquire or renew the Lease.
	RetryPeriod time.Duration

	// Shards is the number of shards that namespaces are divided into, each with its own leader. 1 means one leader for
	// all namespaces.
	Shards int

	// LogFormat is "json" or "console".
	LogFormat string
	// LogLevel is "error", "info", "debug", or a number, where 0 is info and higher numbers are more verbose.
	LogLevel string

	// MetricsBindAddress is host:port of /metrics; "0" disables it.
	MetricsBindAddress string
	// MetricsSecure is whether to serve /metrics over HTTPS, and only to clients that the API server authorizes to
	// `get` the path /metrics (RBAC nonResourceURLs). Otherwise it is plain HTTP without authentication.
	MetricsSecure bool
	// MetricsCertDir is a directory with tls.crt and tls.key for /metrics, reloaded when they change. Empty means a
	// self-signed certificate that is created at start.
	MetricsCertDir string
	// Profiling is whether to serve the profiles of net/http/pprof at /debug/pprof/, on the address of /metrics and
	// with the same authorization (RBAC nonResourceURLs /debug/pprof/*). Without MetricsSecure the address must be a
	// loopback address.
	Profiling bool
	// HealthProbeBindAddress is host:port of /healthz and /readyz; "0" disables them.
	HealthProbeBindAddress string

	// Concurrency is the maximum number of objects of one kind that are reconciled at the same time.
	Concurrency int
	// Namespaces are the only namespaces to watch. Empty means all.
	Namespaces []string
	// ShutdownTimeout is how long running reconciles and requests may take to finish after SIGTERM.
	ShutdownTimeout time.Duration
}

// Sees reports whether objects of a namespace are watched. Objects of other namespaces must be neither read nor
// written, although all Namespaces themselves are watched.
func (o *Options) Sees(namespace string) bool {
	return len(o.Namespaces) == 0 || slices.Contains(o.Namespaces, namespace)
}

func defaultOptions(c *Component) *Options {
	namespace := os.Getenv("POD_NAMESPACE")
	if namespace == "" {
		namespace = defaultNamespace
	}
	return &Options{
		Name:                   c.Name,
		Version:                Version(),
		KubeAPIQPS:             -1,
		KubeAPIBurst:           100,
		LeaderElect:            c.LeaderElected,
		LeaderElectNamespace:   namespace,
		LeaseDuration:          30 * time.Second,
		RenewDeadline:          15 * time.Second,
		RetryPeriod:            10 * time.Second, // 6 requests a minute while nothing happens
		Shards:                 1,
		LogFormat:              "json",
		LogLevel:               "info",
		MetricsBindAddress:     ":8443",
		MetricsSecure:          true,
		HealthProbeBindAddress: ":8081",
		Concurrency:            max(c.Concurrency, 1),
		ShutdownTimeout:        20 * time.Second,
	}
}

func (o *Options) addFlags(groups *cliflag.NamedFlagSets, leaderElected bool) {
	fs := groups.FlagSet("cluster")
	fs.StringVar(&o.Kubeconfig, "kubeconfig", o.Kubeconfig,
		"Path to a kubeconfig file. Empty: the Pod's ServiceAccount, or else KUBECONFIG and ~/.kube/config.")
	fs.StringVar(&o.Context, "context", o.Context, "Context of the kubeconfig file. Empty: its current context.")
	fs.Float32Var(&o.KubeAPIQPS, "kube-api-qps", o.KubeAPIQPS,
		"Maximum requests per second to the API server. -1: no client-side limit; "+
			"API Priority and Fairness of the API server applies.")
	fs.IntVar(&o.KubeAPIBurst, "kube-api-burst", o.KubeAPIBurst, "Burst of requests above --kube-api-qps.")
	fs.StringSliceVar(&o.Namespaces, "namespaces", o.Namespaces, "Comma-separated namespaces to watch. Empty: all.")
	fs.IntVar(&o.Concurrency, "concurrency", o.Concurrency,
		"Maximum number of objects of one kind that are reconciled at the same time.")

	if leaderElected {
		fs = groups.FlagSet("leader election")
		fs.BoolVar(&o.LeaderElect, "leader-elect", o.LeaderElect,
			"Reconcile only while holding the Lease "+o.Name+". Disable it only if there can never be more than one replica.")
		fs.StringVar(&o.LeaderElectNamespace, "leader-elect-namespace", o.LeaderElectNamespace,
			"Namespace of the Lease. Default: POD_NAMESPACE, or "+defaultNamespace+".")
		fs.DurationVar(&o.LeaseDuration, "leader-elect-lease-duration", o.LeaseDuration,
			"How long other replicas wait after the last observed renewal before they take the Lease.")
		fs.DurationVar(&o.RenewDeadline, "leader-elect-renew-deadline", o.RenewDeadline,
			"How long the leader retries to renew the Lease before it exits.")
		fs.DurationVar(&o.RetryPeriod, "leader-elect-retry-period", o.RetryPeriod,
			"Interval between attempts to acquire or renew the Lease.")
		fs.IntVar(&o.Shards, "shards", o.Shards,
			"Number of shards that namespaces are divided into. "+
				"Each shard has its own Lease, so that all replicas are active, each in its own namespaces. "+
				"1: one leader for all namespaces. Must be the same on all replicas.")
	}

	fs = groups.FlagSet("observability")
	fs.StringVar(&o.LogFormat, "log-format", o.LogFormat, "Log format: json or console.")
	fs.StringVar(&o.LogLevel, "log-level", o.LogLevel,
		"Log verbosity: error, info, debug, or a number, where 0 is info and higher numbers are more verbose.")
	fs.StringVar(&o.MetricsBindAddress, "metrics-bind-address", o.MetricsBindAddress,
		"Address of /metrics, host:port. 0: disabled.")
	fs.BoolVar(&o.MetricsSecure, "metrics-secure", o.MetricsSecure,
		"Serve /metrics over HTTPS, to clients that are authenticated and authorized by the API server for that path "+
			"(ClusterRole kuperator-metrics-reader). false: plain HTTP without authentication.")
	fs.StringVar(&o.MetricsCertDir, "metrics-cert-dir", o.MetricsCertDir,
		"Directory with tls.crt and tls.key for /metrics, reloaded when they change. Empty: a self-signed certificate.")
	fs.BoolVar(&o.Profiling, "profiling", o.Profiling,
		"Serve profiles at /debug/pprof/ on the address of /metrics, to clients that are authorized by the API server for "+
			"these paths.")
	fs.StringVar(&o.HealthProbeBindAddress, "health-probe-bind-address", o.HealthProbeBindAddress,
		"Address of /healthz and /readyz, host:port. 0: disabled.")
	fs.DurationVar(&o.ShutdownTimeout, "shutdown-timeout", o.ShutdownTimeout,
		"How long running reconciles and requests may take to finish after SIGTERM. "+
			"Must be shorter than the Pod's terminationGracePeriodSeconds.")
}

// validate says everything that is wrong at once, each time with what to change.
func (o *Options) validate(leaderElected bool) error {
	var errs []error
	wrong := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }

	if o.KubeAPIQPS == 0 || (o.KubeAPIQPS < 0 && o.KubeAPIQPS != -1) {
		wrong("--kube-api-qps is %v: give a number above 0, or -1 for no limit", o.KubeAPIQPS)
	}
	if o.KubeAPIQPS > 0 && o.KubeAPIBurst < 1 {
		wrong("--kube-api-burst is %d: give at least 1 when --kube-api-qps is set", o.KubeAPIBurst)
	}
	if o.Concurrency < 1 {
		wrong("--concurrency is %d: give at least 1", o.Concurrency)
	}
	for _, namespace := range o.Namespaces {
		if problems := validation.ValidateNamespaceName(namespace, false); len(problems) > 0 {
			wrong("--namespaces has %q, which is no name of a namespace: %s", namespace, strings.Join(problems, "; "))
		}
	}
	if leaderElected && o.LeaderElect {
		if problems := validation.ValidateNamespaceName(o.LeaderElectNamespace, false); len(problems) > 0 {
			wrong("--leader-elect-namespace is %q, which is no name of a namespace: %s", o.LeaderElectNamespace,
				strings.Join(problems, "; "))
		}
		if o.RetryPeriod <= 0 {
			wrong("--leader-elect-retry-period is %s: give more than 0s", o.RetryPeriod)
		}
		// client-go jitters the retry period by up to 1.2 and refuses a deadline that leaves no room for one try.
		if o.RenewDeadline <= o.RetryPeriod*6/5 {
			wrong("--leader-elect-renew-deadline is %s: give more than 1.2 times --leader-elect-retry-period (%s)",
				o.RenewDeadline, o.RetryPeriod)
		}
		// client-go gives up that long after the last renewal, and others may lead as soon as the Lease has run out.
		if o.LeaseDuration < o.RenewDeadline+o.RetryPeriod {
			wrong(
				"--leader-elect-lease-duration is %s: give at least --leader-elect-renew-deadline and "+
					"--leader-elect-retry-period together (%s)",
				o.LeaseDuration, o.RenewDeadline+o.RetryPeriod)
		}
	}
	if leaderElected {
		errs = append(errs, o.validateShards())
	}
	if !slices.Contains([]string{"json", "console"}, o.LogFormat) {
		wrong("--log-format is %q: give json or console", o.LogFormat)
	}
	if _, err := parseLogLevel(o.LogLevel); err != nil {
		wrong("--log-level is %q: give error, info, debug or a number from 0 to 10", o.LogLevel)
	}
	if err := validateAddress(o.MetricsBindAddress); err != nil {
		wrong("--metrics-bind-address is %q: give host:port (for example :8443) or 0 to turn it off: %w",
			o.MetricsBindAddress, err)
	}
	if err := validateAddress(o.HealthProbeBindAddress); err != nil {
		wrong("--health-probe-bind-address is %q: give host:port (for example :8081) or 0 to turn it off: %w",
			o.HealthProbeBindAddress, err)
	}
	if err := o.validateMetricsCertificate(); err != nil {
		errs = append(errs, err)
	}
	if err := o.validateProfiling(); err != nil {
		errs = append(errs, err)
	}
	if o.ShutdownTimeout <= 0 {
		wrong("--shutdown-timeout is %s: give more than 0s", o.ShutdownTimeout)
	}
	return errors.Join(errs...)
}

// mostShards is the maximum of --shards: each shard costs a Lease that every replica watches, and memory for its
// controllers.
const mostShards = 64

func (o *Options) validateShards() error {
	switch {
	case o.Shards < 1 || o.Shards > mostShards:
		return fmt.Errorf("--shards is %d: give 1 to %d", o.Shards, mostShards)
	case o.Shards > 1 && !o.LeaderElect:
		return fmt.Errorf("--shards is %d with --leader-elect=false: leave one of them out", o.Shards)
	}
	return nil
}

// validateMetricsCertificate makes sure that a certificate that was asked for is there: the server would make itself
// another one in silence.
func (o *Options) validateMetricsCertificate() error {
	if o.MetricsCertDir == "" || o.MetricsBindAddress == "0" {
		return nil
	}
	if !o.MetricsSecure {
		return errors.New("--metrics-cert-dir is given with --metrics-secure=false: leave one of them out")
	}
	if _, err := tls.LoadX509KeyPair(filepath.Join(o.MetricsCertDir, corev1.TLSCertKey),
		filepath.Join(o.MetricsCertDir, corev1.TLSPrivateKeyKey)); err != nil {
		return fmt.Errorf(
			"--metrics-cert-dir is %q: give a folder with %s and %s, or leave it out for a self-signed certificate: %w",
			o.MetricsCertDir, corev1.TLSCertKey, corev1.TLSPrivateKeyKey, err)
	}
	return nil
}

func validateAddress(address string) error {
	if address == "0" {
		return nil
	}
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		return err
	}
	_, err = net.LookupPort("tcp", port)
	return err
}

// restConfig is the way to the API server: the given file and context, else the Pod's service account, else the files
// that kubectl reads.
func (o *Options) restConfig() (*rest.Config, error) {
	cfg, err := o.loadConfig()
	if err != nil {
		return nil, fmt.Errorf("no way to a cluster: run in a Pod with a service account, or give --kubeconfig: %w", err)
	}
	cfg.UserAgent = o.Name + "/" + o.Version
	cfg.QPS = o.KubeAPIQPS
	cfg.Burst = o.KubeAPIBurst
	countWrites(cfg)
	// cfg.ContentType stays empty: controller-runtime then speaks protobuf for kinds that have it and JSON for custom
	// ones.
	return cfg, nil
}

func (o *Options) loadConfig() (*rest.Config, error) {
	if o.Kubeconfig == "" && o.Context == "" && os.Getenv(clientcmd.RecommendedConfigPathEnvVar) == "" {
		cfg, err := rest.InClusterConfig()
		if err == nil || !errors.Is(err, rest.ErrNotInCluster) {
			return cfg, err
		}
	}
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = o.Kubeconfig
	overrides := &clientcmd.ConfigOverrides{CurrentContext: o.Context}
	return clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, overrides).ClientConfig()
}
