// Package podtransitionrule_test runs podtransitionrule-controller, as the program that users run, on a real API
// server. The test plays the operator, lifecycle-controller and the kubelet.
package podtransitionrule_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/clientcmd"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
	"kusionstack.io/kuperator/internal/testkit/localkube"
	"kusionstack.io/kuperator/internal/testkit/testcluster"
)

const (
	component       = "podtransitionrule-controller"
	systemNamespace = "kuperator-system"
	patience        = 3 * time.Minute // for what takes milliseconds, on a busy machine
	poll            = 20 * time.Millisecond
)

func TestMain(m *testing.M) {
	ctrl.SetLogger(logr.Discard())
	os.Exit(m.Run())
}

// world is a cluster with the controller's own rights prepared.
type world struct {
	client.Client
	cluster    *localkube.Cluster
	binary     string
	kubeconfig string // the controller's
}

func start(t *testing.T) *world {
	t.Helper()
	scheme := runtime.NewScheme()
	require.NoError(t, clientgoscheme.AddToScheme(scheme))
	require.NoError(t, appsv1alpha1.AddToScheme(scheme))
	w := &world{cluster: testcluster.Start(t, localkube.Config{Name: "podtransitionrule"})}
	w.binary = filepath.Join(t.TempDir(), component)
	build := exec.CommandContext(t.Context(), "go", "build", "-o", w.binary, "../../../cmd/"+component)
	out, err := build.CombinedOutput()
	require.NoError(t, err, string(out))
	cfg := w.cluster.RESTConfig()
	cfg.QPS = -1
	w.Client, err = client.New(cfg, client.Options{Scheme: scheme})
	require.NoError(t, err)
	w.restrict(t)
	return w
}

// restrict gives the controller the rights that it is deployed with and no more.
func (w *world) restrict(t *testing.T) {
	t.Helper()
	for _, args := range [][]string{
		{"create", "namespace", systemNamespace},
		{"apply", "-f", "../../../deploy/" + component + "/role.yaml"},
		{"create", "clusterrolebinding", component, "--clusterrole=" + component, "--user=" + component},
		{"create", "role", component, "--namespace=" + systemNamespace, "--verb=get,create,update,patch",
			"--resource=leases.coordination.k8s.io"},
		{"create", "rolebinding", component, "--namespace=" + systemNamespace, "--role=" + component, "--user=" + component},
	} {
		w.kubectl(t, args...)
	}
	config, err := clientcmd.LoadFromFile(w.cluster.AdminKubeconfig)
	require.NoError(t, err)
	for _, user := range config.AuthInfos {
		user.Impersonate = component
	}
	w.kubeconfig = filepath.Join(t.TempDir(), "kubeconfig")
	require.NoError(t, clientcmd.WriteToFile(*config, w.kubeconfig))
}

func (w *world) kubectl(t *testing.T, args ...string) {
	t.Helper()
	out, err := w.cluster.Kubectl(t.Context(), args...)
	require.NoError(t, err, out)
}

func (w *world) install(t *testing.T, crds ...string) {
	t.Helper()
	for _, crd := range crds {
		w.kubectl(t, "apply", "--server-side", "-f", "../../../deploy/crd/apps.kusionstack.io_"+crd+".yaml")
	}
	require.NoError(t, localkube.WaitForCRDs(t.Context(), w.cluster.RESTConfig()))
}

// run starts one replica with flags of its own; kill ends it without a chance to clean up.
func (w *world) run(t *testing.T, name string, flags ...string) (kill func()) {
	t.Helper()
	path := filepath.Join(t.TempDir(), name+".log")
	log, err := os.Create(path)
	require.NoError(t, err)
	cmd := exec.Command(w.binary, "--kubeconfig", w.kubeconfig, "--log-format=console", "--log-level=1",
		"--metrics-bind-address=0", "--annotate-blocked-after=1s", "--health-probe-bind-address=0",
		"--leader-elect-lease-duration=10s", "--leader-elect-renew-deadline=8s", "--leader-elect-retry-period=200ms")
	cmd.Args = append(cmd.Args, flags...)
	cmd.Stdout, cmd.Stderr = log, log
	require.NoError(t, cmd.Start())
	kill = sync.OnceFunc(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // "signal: killed"
		_ = log.Close()
	})
	t.Cleanup(func() {
		kill()
		if text, err := os.ReadFile(path); err == nil && t.Failed() {
			t.Logf("%s said:\n%s", name, text[max(0, len(text)-4000):])
		}
	})
	return kill
}

func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !holds(); time.Sleep(poll) {
		if time.Now().After(deadline) {
			t.Fatalf("not within %s: %s", patience, what)
		}
	}
}

// workload is a namespace with serving Pods, without an owner.
type workload struct {
	*world
	namespace string
}

func (w *world) workload(t *testing.T, pods int) workload {
	t.Helper()
	l := workload{w, testcluster.Namespace(t, w.cluster, nil)}
	for i := range pods {
		pod := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: l.namespace, Name: fmt.Sprintf("web-%02d", i), Labels: map[string]string{
				"app": "web", appsv1alpha1.ControlLabel: appsv1alpha1.ControlValue, podops.ServiceAvailableLabel: "1",
			}},
			Spec: corev1.PodSpec{
				ReadinessGates: []corev1.PodReadinessGate{{ConditionType: podops.ServiceReadyCondition}},
				Containers:     []corev1.Container{{Name: "web", Image: "web:1"}},
			},
		}
		require.NoError(t, l.Create(t.Context(), pod))
		l.ready(t.Context(), pod, corev1.ConditionTrue)
	}
	return l
}

// ready is the kubelet's part.
func (l workload) ready(ctx context.Context, pod *corev1.Pod, status corev1.ConditionStatus) {
	body := fmt.Sprintf(
		`{"status":{"phase":"Running","conditions":[{"type":"Ready","status":%q},{"type":%q,"status":"True"}]}}`, status,
		podops.ServiceReadyCondition)
	_ = l.Status().Patch(ctx, pod, client.RawPatch(types.StrategicMergePatchType, []byte(body)))
}

// rule creates a rule and waits until it has been evaluated: one that the controller has not seen yet has no say.
func (l workload) rule(t *testing.T, name string, check appsv1alpha1.TransitionRule) *appsv1alpha1.PodTransitionRule {
	t.Helper()
	check.Name = "check"
	rule := &appsv1alpha1.PodTransitionRule{
		ObjectMeta: metav1.ObjectMeta{Namespace: l.namespace, Name: name},
		Spec: appsv1alpha1.PodTransitionRuleSpec{
			Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}},
			Rules:    []appsv1alpha1.TransitionRule{check},
		},
	}
	require.NoError(t, l.Create(t.Context(), rule))
	eventually(t, "rule "+name+" is in force",
		func() bool { return l.get(t, rule).Status.ObservedGeneration == rule.Generation })
	return rule
}

func (l workload) get(t *testing.T, rule *appsv1alpha1.PodTransitionRule) *appsv1alpha1.PodTransitionRule {
	t.Helper()
	fresh := &appsv1alpha1.PodTransitionRule{}
	require.NoError(t, l.Get(t.Context(), client.ObjectKeyFromObject(rule), fresh))
	return fresh
}

func (l workload) gone(t *testing.T, rule *appsv1alpha1.PodTransitionRule) bool {
	t.Helper()
	return apierrors.IsNotFound(l.Get(t.Context(), client.ObjectKeyFromObject(rule), &appsv1alpha1.PodTransitionRule{}))
}

func (l workload) pods(t *testing.T) []corev1.Pod {
	t.Helper()
	var list corev1.PodList
	require.NoError(t, l.List(t.Context(), &list, client.InNamespace(l.namespace)))
	return list.Items
}

func (l workload) rules(t *testing.T) []podops.Rule {
	t.Helper()
	var list appsv1alpha1.PodTransitionRuleList
	require.NoError(t, l.List(t.Context(), &list, client.InNamespace(l.namespace)))
	var rules []podops.Rule
	for i := range list.Items {
		rules = append(rules, podops.CompileRule(&list.Items[i]))
	}
	return rules
}

// begin asks for an update of every Pod.
func (l workload) begin(t *testing.T) {
	t.Helper()
	l.change(t, func(view podops.View) podops.Change {
		begin, err := podops.Begin(view, podops.Request{ID: "job", Type: podops.TypeUpdate}, time.Now())
		require.NoError(t, err)
		return begin
	})
}

// change changes every Pod, a Pod that the controller was writing to at that moment once more.
func (l workload) change(t *testing.T, decide func(podops.View) podops.Change) {
	t.Helper()
	for _, pod := range l.pods(t) {
		eventually(t, pod.Name+" is changed", func() bool {
			require.NoError(t, l.Get(t.Context(), client.ObjectKeyFromObject(&pod), &pod))
			view := podops.Read(&pod)
			err := l.Patch(t.Context(), &pod, client.RawPatch(types.MergePatchType, decide(view).MergePatch(view)))
			if !apierrors.IsConflict(err) {
				require.NoError(t, err)
			}
			return err == nil
		})
	}
}

// play takes one step for each Pod as lifecycle-controller, operator and kubelet would, and says how many Pods are out
// of service and how many are done. A conflict is left for the next round.
func (l workload) play(t *testing.T) (out, done int) {
	t.Helper()
	rules, pods := l.rules(t), l.pods(t)
	for i := range pods {
		pod := &pods[i]
		view := podops.Read(pod)
		if !view.Ready || !view.ServiceAvailable() {
			out++
		} else if len(podops.Operations(view)) == 0 {
			done++
		}
		switch step := podops.Advance(view, podops.VerdictsFor(view, rules), time.Now()); {
		case !step.IsZero():
			_ = l.Status().Patch(t.Context(), pod,
				client.RawPatch(types.StrategicMergePatchType, step.StatusPatch(view, metav1.Now())))
		case podops.Allowed(view, "job", podops.TypeUpdate):
			finish := podops.Finish(view, "job", podops.TypeUpdate, time.Now())
			_ = l.Patch(t.Context(), pod, client.RawPatch(types.MergePatchType, finish.MergePatch(view)))
		case !view.Ready && view.ServiceReady == corev1.ConditionTrue:
			l.ready(t.Context(), pod, corev1.ConditionTrue)
		}
	}
	return out, done
}
