package bench

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/internal/testkit/benchresult"
	"kusionstack.io/kuperator/internal/testkit/fakekubelet"
	"kusionstack.io/kuperator/internal/testkit/observer"
	"kusionstack.io/kuperator/internal/testkit/suite"
	"kusionstack.io/kuperator/internal/testkit/yardstick"
)

const (
	node      = "node-0" // all Pods are there: the scheduler is not measured
	userAgent = "kuperator-bench"
	oldImage  = "app:v1"
	newImage  = "app:v2"
)

// root of the project.
var root = filepath.Join("..", "..")

const (
	patience = 20 * time.Minute
	pulse    = 20 * time.Millisecond
	inFlight = 64 // more than the suite has: the loop is not slower for want of work
)

// arena is a suite whose kubelets are played at the pace of the API server.
type arena struct {
	*testing.B
	client.Client
	suite   *suite.Suite
	pods    kubernetes.Interface // protobuf, no limit
	audit   *suite.AuditReader
	results *benchresult.Recorder
	yard    *yardstick.Yardstick
	began   time.Time
}

// newArena starts it; args are further flags by component.
func newArena(b *testing.B, args map[string][]string) arena {
	b.Helper()
	return newArenaOf(b, suite.Config{Args: args}, fakekubelet.Options{})
}

func newArenaOf(b *testing.B, what suite.Config, kubelets fakekubelet.Options) arena {
	b.Helper()
	a := startArena(b, what)
	require.NoError(b, a.suite.Cluster.StopComponent("kwok"))
	kubelet, err := fakekubelet.Start(context.WithoutCancel(b.Context()), a.suite.RESTConfig(), kubelets)
	require.NoError(b, err)
	b.Cleanup(kubelet.Stop)
	return a
}

// startArena starts it with kwok for a kubelet.
func startArena(b *testing.B, what suite.Config) arena {
	b.Helper()
	results := benchresult.ForTest(b, root)
	what.Name, what.Nodes, what.Progress = "bench", max(what.Nodes, 1), b.Output()
	what.Args = patient(what.Args)
	s, err := suite.Start(b.Context(), what)
	require.NoError(b, err)
	b.Cleanup(func() { require.NoError(b, s.Stop()) })
	require.NoError(b, s.WaitLeading(b.Context(), s.Running()...))

	scheme := runtime.NewScheme()
	require.NoError(b, clientgoscheme.AddToScheme(scheme))
	require.NoError(b, appsv1alpha1.AddToScheme(scheme))
	config, err := asServiceAccount(b.Context(), s)
	require.NoError(b, err)
	config.UserAgent, config.WarningHandler = userAgent, rest.NoWarnings{} // a new template is answered with one
	c, err := client.New(config, client.Options{Scheme: scheme})
	require.NoError(b, err)
	config.ContentType, config.AcceptContentTypes = runtime.ContentTypeProtobuf,
		runtime.ContentTypeProtobuf+","+runtime.ContentTypeJSON
	pods, err := kubernetes.NewForConfig(config)
	require.NoError(b, err)
	audit, err := s.AuditReader()
	require.NoError(b, err)
	yard := yardstick.Start()
	b.Cleanup(yard.Stop)
	return arena{B: b, Client: c, suite: s, pods: pods, audit: audit, results: results, yard: yard, began: time.Now()}
}

// asServiceAccount may do everything, with a token of a ServiceAccount as the programs have it: an administrator's
// certificate, which the API server checks with each request, is dearer than a token by a hundredth of what it does
// for a Pod that is updated.
func asServiceAccount(ctx context.Context, s *suite.Suite) (*rest.Config, error) {
	clients, err := s.Clients()
	if err != nil {
		return nil, err
	}
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: suite.Namespace, Name: userAgent}}
	if _, err := clients.CoreV1().ServiceAccounts(account.Namespace).Create(ctx, account,
		metav1.CreateOptions{}); err != nil {
		return nil, err
	}
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: userAgent},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: account.Namespace, Name: account.Name}},
	}
	if _, err := clients.RbacV1().ClusterRoleBindings().Create(ctx, binding, metav1.CreateOptions{}); err != nil {
		return nil, err
	}
	return s.Cluster.ServiceAccountConfig(ctx, account.Namespace, account.Name)
}

// patient are the flags with Leases that are kept however busy the machine is: to lose one would end a benchmark that
// has nothing to do with it. Where flags name a duration, that is what is measured.
func patient(args map[string][]string) map[string][]string {
	all := map[string][]string{}
	for _, name := range suite.Components() {
		all[name] = args[name]
		named := slices.ContainsFunc(args[name],
			func(arg string) bool { return strings.HasPrefix(arg, "--leader-elect-lease-duration=") })
		if name != suite.Webhook && !named {
			all[name] = append([]string{"--leader-elect-lease-duration=120s", "--leader-elect-renew-deadline=110s"},
				args[name]...)
		}
	}
	return all
}

// result keeps one value of a figure and prints it.
func (a arena) result(f benchresult.Figure) {
	a.Helper()
	r, err := a.results.Add(f)
	if err != nil {
		a.Errorf("keeping a result: %v", err)
		return
	}
	a.say("%s %s %s %v: %s %s", r.Goal, r.Series, r.Name, r.Params, r, r.Unit)
}

// say prints a line with the time since the cluster was there.
func (a arena) say(format string, args ...any) {
	fmt.Fprintf(os.Stdout, "  %4.0f s  %s\n", time.Since(a.began).Seconds(),
		strings.TrimSpace(fmt.Sprintf(format, args...)))
}

// until polls, with a deadline.
func (a arena) until(what string, done func() bool) {
	a.Helper()
	ctx, cancel := context.WithTimeout(a.Context(), patience)
	defer cancel()
	tick := time.NewTicker(pulse)
	defer tick.Stop()
	for !done() {
		select {
		case <-ctx.Done():
			a.Fatalf("gave up waiting until %s", what)
		case <-tick.C:
		}
	}
}

// merge changes an object by a merge patch.
func (a arena) merge(object client.Object, patch string) {
	a.Helper()
	require.NoError(a, a.Patch(a.Context(), object, client.RawPatch(types.MergePatchType, []byte(patch))))
}

func (a arena) namespace(name string) string {
	require.NoError(a, a.Create(a.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}))
	return name
}

// budget creates a rule over the Pods with these labels.
func (a arena) budget(namespace, name, maxUnavailable string, selector metav1.LabelSelector) {
	value := intstr.Parse(maxUnavailable)
	rule := &appsv1alpha1.PodTransitionRule{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	rule.Spec.Selector = &selector
	rule.Spec.Rules = []appsv1alpha1.TransitionRule{{Name: "budget",
		TransitionRuleDefinition: appsv1alpha1.TransitionRuleDefinition{
			AvailablePolicy: &appsv1alpha1.AvailableRule{MaxUnavailableValue: &value},
		}}}
	require.NoError(a, a.Create(a.Context(), rule))
}

// observed has the observer watch what is done: what breaks a promise is not worth timing.
func (a arena) observed(do func()) {
	a.observedWith(observer.Options{}, func(func()) { do() })
}

// observedBetween is observed, where what is timed is judged afterwards only, with judge: that takes a core from the
// suite, whose Pods it judges, and none from who is compared with it.
func (a arena) observedBetween(do func(judge func())) {
	a.observedWith(observer.Options{Hold: time.Hour}, do)
}

func (a arena) observedWith(options observer.Options, do func(judge func())) {
	watcher, err := observer.Start(a.Context(), a.suite.RESTConfig(), options)
	require.NoError(a, err)
	do(func() {
		report := watcher.Settled(a.Context())
		require.NoError(a, report.Err(), "a promise was broken")
	})
	watcher.Settled(a.Context())
	report, err := watcher.Stop()
	require.NoError(a, err)
	require.NoError(a, report.Err(), "a promise was broken")
}

// numbered are as many names, from number 0.
func numbered(prefix string, n int) []string {
	names := make([]string, n)
	for i := range names {
		names[i] = prefix + strconv.Itoa(i)
	}
	return names
}

// inFlight runs a task for each name, 64 at a time, and returns when all are done.
func (a arena) inFlight(names []string, task func(name string) error) {
	a.atATime(inFlight, names, task)
}

// atATime does so with so many at a time.
func (a arena) atATime(most int, names []string, task func(name string) error) {
	var wg sync.WaitGroup
	slots := make(chan struct{}, most)
	for _, name := range names {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			if err := task(name); err != nil {
				a.Errorf("Pod %s: %v", name, err)
			}
		})
	}
	wg.Wait()
}

func (a arena) write(namespace, name, body string, subresource ...string) error {
	_, err := a.pods.CoreV1().Pods(namespace).Patch(a.Context(), name, types.StrategicMergePatchType, []byte(body),
		metav1.PatchOptions{}, subresource...)
	return err
}

func labelled(labels map[string]any) string {
	body, err := json.Marshal(map[string]any{"metadata": map[string]any{"labels": labels}})
	if err != nil {
		panic(err) // strings only
	}
	return string(body)
}
