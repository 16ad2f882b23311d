package bootstrap

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"runtime/debug"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
)

var update = flag.Bool("update", false, "write the golden files anew")

// example is a component with its own flag.
func example(leaderElected bool) Component {
	return Component{
		Name:          "example-controller",
		Short:         "Keeps examples in order.",
		LeaderElected: leaderElected,
		Concurrency:   4,
		AddFlags:      func(fs *pflag.FlagSet) { fs.Bool("shiny", false, "Polish what was put in order.") },
		Setup:         func(context.Context, ctrl.Manager, Options) error { return nil },
	}
}

func execute(t *testing.T, c *cobra.Command, args ...string) (string, error) {
	t.Helper()
	var out bytes.Buffer
	c.SetArgs(args)
	c.SetOut(&out)
	c.SetErr(&out)
	err := c.ExecuteContext(t.Context())
	return out.String(), err
}

func TestHelpShowsTheFlagsInGroups(t *testing.T) {
	tests := map[string]struct {
		leaderElected bool
		golden        string
	}{
		"of a component that elects a leader": {leaderElected: true, golden: "help-elected.txt"},
		"of a component that does not":        {leaderElected: false, golden: "help-not-elected.txt"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Setenv("POD_NAMESPACE", "")
			got, err := execute(t, Command(example(tc.leaderElected)), "--help")
			require.NoError(t, err)

			path := filepath.Join("testdata", tc.golden)
			if *update {
				require.NoError(t, os.WriteFile(path, []byte(got), 0o644))
			}
			want, err := os.ReadFile(path)
			require.NoError(t, err)
			require.Empty(t, cmp.Diff(string(want), got), "run go test ./internal/bootstrap -update if this is meant")
		})
	}
}

func TestVersionFlagPrintsNameAndVersionAndStartsNothing(t *testing.T) {
	c := example(true)
	c.Setup = func(context.Context, ctrl.Manager, Options) error { panic("started") }
	got, err := execute(t, Command(c), "--version", "--kube-api-qps=0")
	require.NoError(t, err)
	require.Equal(t, "example-controller "+Version()+"\n", got)
}

func TestVersionComesFromTheBuild(t *testing.T) {
	revision := []debug.BuildSetting{{Key: "vcs.revision", Value: "0123abc"}}
	tests := map[string]struct {
		linked string
		info   *debug.BuildInfo
		want   string
	}{
		"the linker's word goes first": {linked: "v1.2.3", info: &debug.BuildInfo{Main: debug.Module{Version: "v9"}},
			want: "v1.2.3"},
		"then the module's version": {info: &debug.BuildInfo{Main: debug.Module{Version: "v0.4.0"},
			Settings: revision}, want: "v0.4.0"},
		"then the commit": {info: &debug.BuildInfo{Main: debug.Module{Version: "(devel)"},
			Settings: revision}, want: "0123abc"},
		"a build that knows nothing says so": {info: &debug.BuildInfo{}, want: "unknown"},
		"a binary without a record says so":  {want: "unknown"},
		"an empty commit is as good as none.": {info: &debug.BuildInfo{Settings: []debug.BuildSetting{{Key: "vcs.revision"}}},
			want: "unknown"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) { require.Equal(t, tc.want, versionOf(tc.linked, tc.info)) })
	}
}

func TestFlagsThatMakeNoSenseSayWhatToChange(t *testing.T) {
	tests := map[string]struct {
		args []string
		want string
	}{
		"a rate of zero": {args: []string{"--kube-api-qps=0"},
			want: "--kube-api-qps is 0: give a number above 0, or -1 for no limit"},
		"a negative rate": {args: []string{"--kube-api-qps=-5"}, want: "--kube-api-qps is -5: give"},
		"a rate without a burst": {args: []string{"--kube-api-qps=5", "--kube-api-burst=0"},
			want: "--kube-api-burst is 0: give at least 1"},
		"no worker":                  {args: []string{"--concurrency=0"}, want: "--concurrency is 0: give at least 1"},
		"a namespace that cannot be": {args: []string{"--namespaces=web,Not_One"}, want: `--namespaces has "Not_One"`},
		"no namespace for the Lease": {args: []string{"--leader-elect-namespace="},
			want: `--leader-elect-namespace is "", which is no name`},
		"a Lease shorter than a renewal": {args: []string{"--leader-elect-lease-duration=10s"},
			want: "--leader-elect-lease-duration is 10s: give at least --leader-elect-renew-deadline and --leader-elect-retry-period together (25s)"},
		"a renewal without a second try": {args: []string{"--leader-elect-retry-period=13s"},
			want: "--leader-elect-renew-deadline is 15s: give more than 1.2 times --leader-elect-retry-period (13s)"},
		"no shards": {args: []string{"--shards=0"}, want: "--shards is 0: give 1 to 64"},
		"shards without Leases": {args: []string{"--shards=2", "--leader-elect=false"},
			want: "--shards is 2 with --leader-elect=false: leave one of them out"},
		"no time between two tries": {args: []string{"--leader-elect-retry-period=0s"},
			want: "--leader-elect-retry-period is 0s: give more than 0s"},
		"an unknown log format": {args: []string{"--log-format=xml"},
			want: `--log-format is "xml": give json or console`},
		"an unknown log level": {args: []string{"--log-level=loud"},
			want: `--log-level is "loud": give error, info, debug or a number from 0 to 10`},
		"a log level that is too high": {args: []string{"--log-level=11"}, want: `--log-level is "11"`},
		"an address without a port": {args: []string{"--metrics-bind-address=localhost"},
			want: `--metrics-bind-address is "localhost": give host:port`},
		"a port that is no number": {args: []string{"--health-probe-bind-address=:eighty-eighty"},
			want: `--health-probe-bind-address is ":eighty-eighty": give host:port`},
		"a certificate that is not there": {args: []string{"--metrics-cert-dir=/nowhere"},
			want: `--metrics-cert-dir is "/nowhere": give a folder with tls.crt and tls.key`},
		"profiles for everybody": {args: []string{"--profiling", "--metrics-secure=false"},
			want: "every client could take profiles"},
		"profiles without an address": {args: []string{"--profiling", "--metrics-bind-address=0"},
			want: "give that an address"},
		"a certificate for plain HTTP": {args: []string{"--metrics-cert-dir=/nowhere", "--metrics-secure=false"},
			want: "leave one of them out"},
		"no time to stop": {args: []string{"--shutdown-timeout=0s"},
			want: "--shutdown-timeout is 0s: give more than 0s"},
		"two mistakes are told at once": {args: []string{"--concurrency=0", "--log-format=xml"},
			want: "--concurrency is 0: give at least 1\n--log-format is"},
		"an argument that is no flag": {args: []string{"now"}, want: `unknown command "now"`},
		"a kubeconfig that is not there": {args: []string{"--kubeconfig=/nowhere/config"},
			want: "no way to a cluster: run in a Pod with a service account, or give --kubeconfig"},
		"a flag of the component's own":   {args: []string{"--shiny"}, want: "examples do not shine"},
		"a flag that nobody has declared": {args: []string{"--matte"}, want: "unknown flag: --matte"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			c := example(true)
			var shiny bool
			c.AddFlags = func(fs *pflag.FlagSet) { fs.BoolVar(&shiny, "shiny", false, "") }
			c.Validate = func(*Options) error {
				if shiny {
					return errors.New("examples do not shine: leave out --shiny")
				}
				return nil
			}
			_, err := execute(t, Command(c), tc.args...)
			require.ErrorContains(t, err, tc.want)
		})
	}
}

func TestDefaultsPassValidation(t *testing.T) {
	for _, leaderElected := range []bool{true, false} {
		c := example(leaderElected)
		require.NoError(t, defaultOptions(&c).validate(leaderElected))
	}
}

func TestTheLeaseLivesWhereThePodRuns(t *testing.T) {
	c := example(true)
	t.Setenv("POD_NAMESPACE", "")
	require.Equal(t, "kuperator-system", defaultOptions(&c).LeaderElectNamespace)
	t.Setenv("POD_NAMESPACE", "elsewhere")
	require.Equal(t, "elsewhere", defaultOptions(&c).LeaderElectNamespace)
}

func TestTheAPIServerSeesNameVersionAndTheRateThatWasAskedFor(t *testing.T) {
	kubeconfig := filepath.Join(t.TempDir(), "config")
	require.NoError(t, os.WriteFile(kubeconfig, []byte(`
apiVersion: v1
kind: Config
current-context: one
clusters:
- {name: c1, cluster: {server: "https://127.0.0.1:1"}}
- {name: c2, cluster: {server: "https://127.0.0.1:2"}}
contexts:
- {name: one, context: {cluster: c1}}
- {name: two, context: {cluster: c2}}
`), 0o600))
	c := example(true)

	o := defaultOptions(&c)
	o.Kubeconfig, o.Version = kubeconfig, "v1.2.3"
	cfg, err := o.restConfig()
	require.NoError(t, err)
	require.Equal(t, "example-controller/v1.2.3", cfg.UserAgent)
	require.InDelta(t, -1, cfg.QPS, 0, "no limit on this side unless asked for")
	require.Equal(t, "https://127.0.0.1:1", cfg.Host)
	require.Empty(t, cfg.ContentType, "left to controller-runtime, which speaks protobuf for built-in kinds")

	o.KubeAPIQPS, o.KubeAPIBurst, o.Context = 50, 70, "two"
	cfg, err = o.restConfig()
	require.NoError(t, err)
	require.InDelta(t, 50, cfg.QPS, 0)
	require.Equal(t, 70, cfg.Burst)
	require.Equal(t, "https://127.0.0.1:2", cfg.Host)

	t.Setenv("KUBECONFIG", kubeconfig)
	o.Kubeconfig, o.Context = "", ""
	cfg, err = o.restConfig()
	require.NoError(t, err)
	require.Equal(t, "https://127.0.0.1:1", cfg.Host)
}

func TestManagerOptionsFollowTheFlags(t *testing.T) {
	c := example(true)
	o := defaultOptions(&c)
	o.Namespaces = []string{"web", "db"}
	m, err := c.managerOptions(o)
	require.NoError(t, err)

	require.True(t, m.LeaderElection)
	require.True(t, m.LeaderElectionReleaseOnCancel)
	require.Equal(t, "example-controller", m.LeaderElectionID)
	require.Equal(t, []time.Duration{30 * time.Second, 15 * time.Second, 10 * time.Second},
		[]time.Duration{*m.LeaseDuration, *m.RenewDeadline, *m.RetryPeriod})
	require.Equal(t, 4, m.Controller.MaxConcurrentReconciles)
	require.Nil(t, m.Controller.UsePriorityQueue, "on by default")
	require.True(t, *m.Controller.EnableWarmup, "a standby fills its caches")
	require.Equal(t, map[string]cache.Config{"web": {}, "db": {}}, m.Cache.DefaultNamespaces)
	require.True(t, m.Scheme.Recognizes(corev1.SchemeGroupVersion.WithKind("Pod")))
	require.True(t, m.Scheme.Recognizes(appsv1alpha1.SchemeGroupVersion.WithKind(appsv1alpha1.CollaSetKind)))
	require.True(t, m.Metrics.SecureServing, "by default")
	require.NotNil(t, m.Metrics.FilterProvider, "and to nobody without a right")

	c.LeaderElected = false
	m, err = c.managerOptions(o)
	require.NoError(t, err)
	require.False(t, m.LeaderElection, "a component without a leader waits for no Lease whatever the flag's default")
}

func TestAComponentsCacheOptionsAreCompletedNotReplaced(t *testing.T) {
	mine := func(any) (any, error) { return "mine", nil }
	c := example(true)
	c.Cache = func(*Options) cache.Options {
		return cache.Options{DefaultTransform: mine,
			ByObject: map[client.Object]cache.ByObject{&corev1.Pod{}: {Transform: mine}}}
	}
	o := defaultOptions(&c)
	o.Namespaces = []string{"web"}
	got := c.cacheOptions(o)
	transformed, err := got.DefaultTransform(nil)
	require.NoError(t, err)
	require.Equal(t, "mine", transformed)
	require.Len(t, got.ByObject, 1)
	require.True(t, o.Sees("web"))
	require.False(t, o.Sees("db"))
	require.Contains(t, got.DefaultNamespaces, "web")
}

func TestBuildInfoIsAMetricAndMayBeRegisteredTwice(t *testing.T) {
	registry := prometheus.NewPedanticRegistry()
	require.NoError(t, registerBuildInfo(registry, "example-controller", "v1.2.3"))
	require.NoError(t, registerBuildInfo(registry, "example-controller", "v1.2.3"))
	families, err := registry.Gather()
	require.NoError(t, err)
	require.Equal(t, 1, testutil.CollectAndCount(registry, "kuperator_build_info"))
	labels := map[string]string{}
	for _, label := range families[0].GetMetric()[0].GetLabel() {
		labels[label.GetName()] = label.GetValue()
	}
	require.Equal(t, "example-controller", labels["component"])
	require.Equal(t, "v1.2.3", labels["version"])
	require.NotEmpty(t, labels["go_version"])
}

func TestCommandRefusesAComponentThatCannotRun(t *testing.T) {
	require.Panics(t, func() { Command(Component{Name: "nameless-setup"}) })
	require.Panics(t, func() { Command(Component{Setup: example(true).Setup}) })
}

func TestStripManagedFieldsLeavesEverythingElse(t *testing.T) {
	managed := []metav1.ManagedFieldsEntry{{Manager: "someone"}}
	pod := func() *corev1.Pod {
		return &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: "web-0", Labels: map[string]string{"a": "b"},
				Annotations: map[string]string{"c": "d"}, Finalizers: []string{"e/f"}},
			Spec: corev1.PodSpec{NodeName: "node-1",
				Containers: []corev1.Container{{Name: "app", Image: "app:1", Env: []corev1.EnvVar{{Name: "X"}}}}},
			Status: corev1.PodStatus{PodIP: "10.0.0.1"},
		}
	}
	full := pod()
	full.ManagedFields = managed
	for name, c := range map[string]struct{ object, want any }{
		"a Pod":             {object: full, want: pod()},
		"one that has none": {object: pod(), want: pod()},
		"a Service": {object: &corev1.Service{ObjectMeta: metav1.ObjectMeta{ManagedFields: managed}},
			want: &corev1.Service{}},
		"what is no API object": {object: "no object", want: "no object"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := StripManagedFields(c.object)
			require.NoError(t, err)
			require.Empty(t, cmp.Diff(c.want, got))
		})
	}
}
