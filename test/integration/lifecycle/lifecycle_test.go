// Package lifecycle_test runs lifecycle-controller on a real control plane with
// simulated nodes, with the test as operator, cooperator and rule engine.
package lifecycle_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
	"kusionstack.io/kuperator/internal/testkit/child"
	"kusionstack.io/kuperator/internal/testkit/localkube"
	"kusionstack.io/kuperator/internal/testkit/testcluster"
)

const system = "kuperator-system"

const finalizer = "prot.podopslifecycle.kusionstack.io/e54505f60aa10ceb"

// patience is for what takes milliseconds, on a busy machine.
const (
	patience = 3 * time.Minute
	interval = 20 * time.Millisecond
)

type env struct {
	*testing.T
	client.WithWatch
	cluster   *localkube.Cluster
	namespace string
}

func TestLifecycle(t *testing.T) {
	cluster := testcluster.Start(t, localkube.Config{Name: "lifecycle", WithControllerManager: true, WithScheduler: true,
		WithNodes: true})
	require.NoError(t, appsv1alpha1.AddToScheme(clientgoscheme.Scheme))
	c, err := client.NewWithWatch(cluster.RESTConfig(), client.Options{Scheme: clientgoscheme.Scheme})
	require.NoError(t, err)

	deployRoles(t, cluster)
	stop := startController(t, cluster)
	defer stop()

	// The controller starts without the CRD and takes notice when it appears.
	t.Run("operations pass while the CRD of rules is not installed", func(t *testing.T) {
		e := env{t, c, cluster, testcluster.Namespace(t, cluster, nil)}
		pod := e.servingPod("p", nil)
		e.begin(pod, "job", "restart")
		e.eventually(pod, "allowed", func(v podops.View) bool { return podops.Allowed(v, "job", "restart") })
	})
	crds, err := filepath.Abs("../../../deploy/crd")
	require.NoError(t, err)
	out, err := cluster.Kubectl(t.Context(), "apply", "--server-side", "-k", crds)
	require.NoError(t, err, out)
	require.NoError(t, localkube.WaitForCRDs(t.Context(), cluster.RESTConfig()))

	for name, test := range map[string]func(env){
		"an operator that writes only two labels":               rawOperator,
		"a cooperator that knows only the finalizer prefix":     rawCooperator,
		"a marked Pod is deleted, an unmarked one comes back":   gracefulDeletion,
		"a rule is in force from its creation until it is gone": ruleInForce,
		"a Pod without the readiness gate":                      noGate,
		"stay-offline":                                          stayOffline,
		"unmanaged Pods are left alone":                         unmanaged,
		"a deadline that only reports":                          deadlineReports,
		"deadlines with a policy":                               deadlinePolicies,
		"employers that are gone, changed or not readable":      employersGone,
		"a frozen namespace":                                    frozenNamespace,
		"a frozen cluster":                                      frozenCluster,
		"Pods of every kind of workload":                        workloads,
	} {
		t.Run(name, func(t *testing.T) {
			test(env{t, c, cluster, testcluster.Namespace(t, cluster, nil)})
		})
	}
}

// deployRoles gives lifecycle-controller its own account and roles.
func deployRoles(t *testing.T, cluster *localkube.Cluster) {
	t.Helper()
	args := []string{"apply", "--server-side"}
	for _, file := range []string{"service-account", "role", "role-binding", "employers-role"} {
		path, err := filepath.Abs(filepath.Join("../../../deploy/lifecycle-controller", file+".yaml"))
		require.NoError(t, err)
		args = append(args, "-f", path)
	}
	out, err := cluster.Kubectl(t.Context(), "create", "namespace", system)
	require.NoError(t, err, out)
	for range 2 { // an upgrade is another apply
		out, err = cluster.Kubectl(t.Context(), args...)
		require.NoError(t, err, out)
	}
}

// startController builds the binary and runs it under the account that it is deployed with.
func startController(t *testing.T, cluster *localkube.Cluster) (stop func()) {
	t.Helper()
	dir := t.TempDir()
	binary := filepath.Join(dir, "lifecycle-controller")
	out, err := exec.CommandContext(t.Context(), "go", "build", "-o", binary,
		"../../../cmd/lifecycle-controller").CombinedOutput()
	require.NoError(t, err, string(out))
	process := child.Process{Name: "lifecycle-controller", Log: filepath.Join(dir, "log")}
	kubeconfig, err := cluster.ServiceAccountKubeconfig(t.Context(), system, "lifecycle-controller")
	require.NoError(t, err)
	require.NoError(t, process.Start(binary, []string{
		"--kubeconfig", kubeconfig, "--leader-elect=false", "--leader-elect-namespace", system,
		"--deadline=Operate/slow=500ms,Proceed", "--log-format=console",
		"--metrics-bind-address=0", "--health-probe-bind-address=0",
	}, os.Environ(), false))
	return func() {
		assert.True(t, process.Running(), "lifecycle-controller ended by itself")
		assert.NoError(t, process.End(syscall.SIGTERM, patience))
		if t.Failed() {
			if text, err := os.ReadFile(process.Log); err == nil {
				t.Logf("lifecycle-controller said:\n%s", text)
			}
		}
	}
}

func rawOperator(e env) {
	pod := e.servingPod("p", nil)
	e.begin(pod, "job", "restart")
	e.eventually(pod, "allowed", func(v podops.View) bool { return podops.Allowed(v, "job", "restart") })
	require.NoError(e, e.Get(e.Context(), client.ObjectKeyFromObject(pod), pod))
	v := podops.Read(pod)
	assert.Equal(e, corev1.ConditionFalse, v.ServiceReady)
	assert.False(e, v.Ready)
	assert.False(e, v.ServiceAvailable())
	e.label(pod, podops.OperatingPrefix+"/job", nil)
	e.serves(pod)
	require.NoError(e, e.Get(e.Context(), client.ObjectKeyFromObject(pod), pod))
	for k := range pod.Labels {
		assert.False(e, strings.Contains(k, ".podopslifecycle."), "%s is left behind", k)
	}
}

func rawCooperator(e env) {
	pod := e.servingPod("p", func(p *corev1.Pod) {
		p.Finalizers = []string{finalizer}
		p.Annotations = map[string]string{podops.AvailableConditionsAnnotation: `{"expectedFinalizers":{"Service/x/server":"` + finalizer + `"}}`}
	})
	e.begin(pod, "job", "restart")
	e.eventually(pod, "preparing and offline", func(v podops.View) bool {
		return podops.PhaseOf(v, "job") == podops.PhasePreparing && v.ServiceReady == corev1.ConditionFalse
	})
	e.finalizers(pod, `[]`)
	e.eventually(pod, "allowed", func(v podops.View) bool { return podops.Allowed(v, "job", "restart") })
	e.label(pod, podops.OperatingPrefix+"/job", nil)
	e.eventually(pod, "completing", func(v podops.View) bool {
		return podops.PhaseOf(v, "job") == podops.PhaseCompleting && v.Ready
	})
	e.finalizers(pod, `["`+finalizer+`"]`)
	e.serves(pod)
	e.finalizers(pod, `[]`)
}

func gracefulDeletion(e env) {
	stays := e.servingPod("stays", func(p *corev1.Pod) { p.Finalizers = []string{finalizer} })
	e.label(stays, appsv1alpha1.ToDeleteLabel, new("1"))
	e.eventually(stays, "preparing to be deleted", func(v podops.View) bool {
		return podops.PhaseOf(v, "pod-delete") == podops.PhasePreparing
	})
	e.label(stays, appsv1alpha1.ToDeleteLabel, nil)
	e.serves(stays)
	e.finalizers(stays, `[]`)

	goes := e.servingPod("goes", nil)
	e.label(goes, appsv1alpha1.ToDeleteLabel, new("1"))
	require.EventuallyWithT(e, func(c *assert.CollectT) {
		assert.True(c, apierrors.IsNotFound(e.Get(e.Context(), client.ObjectKeyFromObject(goes), &corev1.Pod{})))
	}, patience, interval)
}

func ruleInForce(e env) {
	rule := &appsv1alpha1.PodTransitionRule{ObjectMeta: metav1.ObjectMeta{Namespace: e.namespace, Name: "hold"}}
	rule.Spec.Selector = &metav1.LabelSelector{}
	rule.Spec.Rules = []appsv1alpha1.TransitionRule{{Name: "labels",
		TransitionRuleDefinition: appsv1alpha1.TransitionRuleDefinition{
			LabelCheck: &appsv1alpha1.LabelCheckRule{Requires: &metav1.LabelSelector{MatchLabels: map[string]string{"never": "there"}}},
		}}}
	pod := e.servingPod("p", nil)
	require.NoError(e, e.Create(e.Context(), rule))
	// lifecycle-controller has a cache of rules; what it must not do is act on a
	// rule's absence from status. Give the watch a moment it can be seen by.
	other := e.servingPod("probe", nil)
	require.EventuallyWithT(e, func(c *assert.CollectT) {
		e.begin(other, "probe", "restart")
		assert.Equal(c, podops.PhasePreCheck, podops.PhaseOf(e.view(other), "probe"))
	}, patience, interval)

	e.begin(pod, "job", "restart")
	e.eventually(pod, "in PreCheck", func(v podops.View) bool { return podops.PhaseOf(v, "job") == podops.PhasePreCheck })

	// A grant for another request is none.
	status := func(request string) {
		require.NoError(e, e.Get(e.Context(), client.ObjectKeyFromObject(rule), rule))
		rule.Status.ObservedGeneration = rule.Generation
		rule.Status.Grants = []appsv1alpha1.PodGrant{{
			PodName: pod.Name, PodUID: pod.UID, Stage: appsv1alpha1.StagePreCheck,
			Operations: []appsv1alpha1.GrantedOperation{{ID: "job", Type: "restart", Request: request}},
			Rules:      []appsv1alpha1.RuleReference{{Name: rule.Name, UID: rule.UID}},
			GrantTime:  metav1.Now(),
		}}
		require.NoError(e, e.Status().Update(e.Context(), rule))
	}
	status("1")
	e.begin(other, "nudge", "restart")
	e.eventually(other, "looked at after the grant",
		func(v podops.View) bool { return podops.PhaseOf(v, "nudge") == podops.PhasePreCheck })
	assert.Equal(e, podops.PhasePreCheck, podops.PhaseOf(e.view(pod), "job"))
	e.annotate(pod, podops.RuleDetailPrefix+"/hold", `{"stage":"PreCheck","passed":false}`)
	status(e.view(pod).Labels[podops.OperatingPrefix+"/job"])
	e.eventually(pod, "allowed by the grant", func(v podops.View) bool { return podops.Allowed(v, "job", "restart") })
	assert.NotContains(e, pod.Annotations, podops.RuleDetailPrefix+"/hold",
		"what the rule had against it goes with the same write")
	assert.NotEqual(e, podops.PhaseOperate, podops.PhaseOf(e.view(other), "nudge"), "the grant is for one Pod")

	require.NoError(e, e.Delete(e.Context(), rule))
	e.eventually(other, "set free by the rule's deletion",
		func(v podops.View) bool { return podops.Allowed(v, "nudge", "restart") })
}

func noGate(e env) {
	pod := e.servingPod("p", func(p *corev1.Pod) { p.Spec.ReadinessGates = nil })
	e.begin(pod, "job", "restart")
	e.eventually(pod, "allowed", func(v podops.View) bool { return podops.Allowed(v, "job", "restart") && v.Ready })
	e.label(pod, podops.OperatingPrefix+"/job", nil)
	e.serves(pod)
}

func stayOffline(e env) {
	pod := e.pod("p", func(p *corev1.Pod) { p.Labels[podops.StayOfflineLabel] = "" })
	e.eventually(pod, "running", func(podops.View) bool { return pod.Status.Phase == corev1.PodRunning })
	assert.Empty(e, e.view(pod).ServiceReady)
	e.label(pod, podops.StayOfflineLabel, nil)
	e.serves(pod)
}

func unmanaged(e env) {
	pod := e.pod("p", func(p *corev1.Pod) { delete(p.Labels, appsv1alpha1.ControlLabel) })
	e.begin(pod, "job", "restart")
	managed := e.servingPod("managed", nil) // by now the unmanaged one has been passed over
	assert.Equal(e, podops.PhaseRequested, podops.PhaseOf(e.view(pod), "job"))
	assert.True(e, e.view(managed).ServiceAvailable())
}

func (e env) pod(name string, change func(*corev1.Pod)) *corev1.Pod {
	e.Helper()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: e.namespace, Name: name,
			Labels: map[string]string{appsv1alpha1.ControlLabel: "true"}},
		Spec: corev1.PodSpec{
			Containers:                    []corev1.Container{{Name: "app", Image: "app:v1"}},
			ReadinessGates:                []corev1.PodReadinessGate{{ConditionType: podops.ServiceReadyCondition}},
			TerminationGracePeriodSeconds: new(int64(0)),
		},
	}
	if change != nil {
		change(pod)
	}
	require.NoError(e, e.Create(e.Context(), pod))
	return pod
}

func (e env) servingPod(name string, change func(*corev1.Pod)) *corev1.Pod {
	e.Helper()
	pod := e.pod(name, change)
	e.serves(pod)
	return pod
}

func (e env) serves(pod *corev1.Pod) {
	e.Helper()
	e.eventually(pod, "service-available", func(v podops.View) bool {
		return v.ServiceAvailable() && v.Ready && len(podops.Operations(v)) == 0
	})
}

func (e env) view(pod *corev1.Pod) podops.View {
	e.Helper()
	require.NoError(e, e.Get(e.Context(), client.ObjectKeyFromObject(pod), pod))
	return podops.Read(pod)
}

func (e env) eventually(pod *corev1.Pod, what string, is func(podops.View) bool) {
	e.Helper()
	ok := assert.Eventually(e, func() bool {
		return e.Get(e.Context(), client.ObjectKeyFromObject(pod), pod) == nil && is(podops.Read(pod))
	}, patience, interval)
	if !ok {
		v := podops.Read(pod)
		e.Fatalf("pod %s is not %s: labels %v, service-ready %q, ready %v, waits %+v", pod.Name, what, v.Labels,
			v.ServiceReady, v.Ready, podops.Explain(v, nil))
	}
}

// begin writes what a third-party operator writes.
func (e env) begin(pod *corev1.Pod, id, opType string) {
	e.Helper()
	body := fmt.Sprintf(`{"metadata":{"labels":{%q:%q,%q:%q}}}`,
		podops.OperatingPrefix+"/"+id, strconv.FormatInt(time.Now().UnixNano(), 10),
		podops.OperationTypePrefix+"/"+id, opType)
	require.NoError(e, e.Patch(e.Context(), pod, client.RawPatch(types.MergePatchType, []byte(body))))
}

func (e env) label(pod *corev1.Pod, key string, value *string) {
	e.Helper()
	quoted := "null"
	if value != nil {
		quoted = strconv.Quote(*value)
	}
	body := fmt.Sprintf(`{"metadata":{"labels":{%q:%s}}}`, key, quoted)
	require.NoError(e, e.Patch(e.Context(), pod, client.RawPatch(types.MergePatchType, []byte(body))))
}

func (e env) finalizers(pod *corev1.Pod, list string) {
	e.Helper()
	body := fmt.Sprintf(`{"metadata":{"finalizers":%s}}`, list)
	require.NoError(e, e.Patch(e.Context(), pod, client.RawPatch(types.MergePatchType, []byte(body))))
}
