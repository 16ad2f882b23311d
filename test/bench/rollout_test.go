package bench

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
	"kusionstack.io/kuperator/internal/observer"
	"kusionstack.io/kuperator/internal/suite"
)

const (
	patience = 10 * time.Minute
	pulse    = 20 * time.Millisecond
	inFlight = 64 // of the yardstick; the suite bounds itself likewise
)

type bench struct {
	*testing.B
	client.Client
	suite *suite.Suite
}

// BenchmarkInPlaceUpdate rolls a CollaSet to a new image in place. Its yardstick
// is a bare loop that makes the same six writes to each of as many Pods, 64 at a
// time, and waits for the kubelet where the protocol has to.
func BenchmarkInPlaceUpdate(b *testing.B) {
	pods := 50
	if n, err := strconv.Atoi(os.Getenv("BENCH_PODS")); err == nil && n > 0 {
		pods = n
	}
	s, err := suite.Start(b.Context(), suite.Config{Name: "bench", Nodes: 5, Progress: b.Output()})
	require.NoError(b, err)
	b.Cleanup(func() { require.NoError(b, s.Stop()) })
	scheme := runtime.NewScheme()
	require.NoError(b, clientgoscheme.AddToScheme(scheme))
	require.NoError(b, appsv1alpha1.AddToScheme(scheme))
	c, err := client.New(s.RESTConfig(), client.Options{Scheme: scheme})
	require.NoError(b, err)

	for name, budget := range map[string]string{"no-rule": "", "max-unavailable-20%": "20%"} {
		b.Run(fmt.Sprintf("%s/pods=%d", name, pods), func(b *testing.B) {
			for i := range b.N {
				run := bench{b, c, s}
				namespace := fmt.Sprintf("bench-%d-%d", len(name), i)
				require.NoError(b, c.Create(b.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}))
				bare := run.bareLoop(namespace, pods)
				run.rollout(namespace, budget, pods, bare)
			}
		})
	}
}

// rollout measures the suite and reports it beside the yardstick's time.
func (b bench) rollout(namespace, budget string, pods int, bare time.Duration) {
	watcher, err := observer.Start(b.Context(), b.suite.RESTConfig(), observer.Options{})
	require.NoError(b, err)
	if budget != "" {
		rule := &appsv1alpha1.PodTransitionRule{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "web"}}
		rule.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}
		rule.Spec.Rules = []appsv1alpha1.TransitionRule{{Name: "budget", TransitionRuleDefinition: appsv1alpha1.TransitionRuleDefinition{
			AvailablePolicy: &appsv1alpha1.AvailableRule{MaxUnavailableValue: ptr.To(intstr.FromString(budget))},
		}}}
		require.NoError(b, b.Create(b.Context(), rule))
	}
	set := &appsv1alpha1.CollaSet{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "web"}}
	set.Spec.Replicas = ptr.To(int32(pods))
	set.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}
	set.Spec.Template = corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "web"}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "app", Image: "app:v1"}}},
	}
	require.NoError(b, b.Create(b.Context(), set))
	serving := func(image string) func() bool {
		return func() bool {
			var list corev1.PodList
			if b.List(b.Context(), &list, client.InNamespace(namespace), client.MatchingLabels{"app": "web"}) != nil || len(list.Items) != pods {
				return false
			}
			for i := range list.Items {
				v := podops.Read(&list.Items[i])
				if list.Items[i].Spec.Containers[0].Image != image || !v.ServiceAvailable() || len(podops.Operations(v)) > 0 {
					return false
				}
			}
			return true
		}
	}
	b.until("the CollaSet serves", serving("app:v1"))

	start := time.Now()
	b.ResetTimer()
	require.NoError(b, b.Patch(b.Context(), set, client.RawPatch(types.MergePatchType,
		[]byte(`{"spec":{"template":{"spec":{"containers":[{"name":"app","image":"app:v2"}]}}}}`))))
	b.until("the CollaSet serves the new image", serving("app:v2"))
	took := time.Since(start)
	b.StopTimer()

	report := watcher.Settled(b.Context())
	_, err = watcher.Stop()
	require.NoError(b, err)
	require.NoError(b, report.Err(), "a rollout that breaks a promise is not worth timing")
	requests, err := b.suite.Requests(start)
	require.NoError(b, err)
	writes := suite.Sum(suite.PodWrites(requests))
	var out time.Duration
	for _, d := range report.OutOfService {
		out += d
	}
	b.ReportMetric(took.Seconds()/bare.Seconds(), "x-bare-loop")
	b.ReportMetric(float64(writes.Writes)/float64(pods), "writes/pod")
	b.ReportMetric(float64(writes.Conflicts)/float64(pods), "conflicts/pod")
	b.ReportMetric(float64(writes.NoOps), "no-ops")
	b.ReportMetric(out.Seconds()/float64(pods), "s-out-of-service/pod")
	b.ReportMetric(float64(pods)/took.Seconds(), "pods/s")
}

// bareLoop is the yardstick: the writes of the protocol with nobody deciding.
func (b bench) bareLoop(namespace string, pods int) time.Duration {
	names := make([]string, pods)
	for i := range names {
		names[i] = fmt.Sprintf("bare-%d", i)
		require.NoError(b, b.Create(b.Context(), &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: names[i]},
			Spec: corev1.PodSpec{
				Containers:     []corev1.Container{{Name: "app", Image: "app:v1"}},
				ReadinessGates: []corev1.PodReadinessGate{{ConditionType: podops.ServiceReadyCondition}},
			},
		}))
		b.status(names[i], namespace, gate("True"))
	}
	ready := func(name, image string, restarts int32) func() bool {
		return func() bool {
			var pod corev1.Pod
			if b.Get(b.Context(), types.NamespacedName{Namespace: namespace, Name: name}, &pod) != nil || len(pod.Status.ContainerStatuses) == 0 {
				return false
			}
			s := pod.Status.ContainerStatuses[0]
			return podops.Read(&pod).Ready && s.Image == image && s.RestartCount == restarts
		}
	}
	for _, name := range names {
		b.until(name+" is ready", ready(name, "app:v1", 0))
	}
	start := time.Now()
	var wg sync.WaitGroup
	slots := make(chan struct{}, inFlight)
	for _, name := range names {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			label := func(value string) string { return fmt.Sprintf(`{"metadata":{"labels":{"step":%q}}}`, value) }
			b.patch(name, namespace, label("begin"))
			b.status(name, namespace, gate("False"))
			b.patch(name, namespace, `{"spec":{"containers":[{"name":"app","image":"app:v2"}]}}`)
			b.until(name+" restarted", func() bool {
				var pod corev1.Pod
				return b.Get(b.Context(), types.NamespacedName{Namespace: namespace, Name: name}, &pod) == nil &&
					pod.Status.ContainerStatuses[0].RestartCount == 1
			})
			b.patch(name, namespace, label("finish"))
			b.status(name, namespace, gate("True"))
			b.until(name+" is ready again", ready(name, "app:v2", 1))
			b.patch(name, namespace, label("available"))
		})
	}
	wg.Wait()
	took := time.Since(start)
	require.NoError(b, b.DeleteAllOf(b.Context(), &corev1.Pod{}, client.InNamespace(namespace), client.GracePeriodSeconds(0)))
	return took
}

func gate(status string) string {
	ready := ""
	if status == "False" {
		ready = `,{"type":"Ready","status":"False"}`
	}
	return fmt.Sprintf(`{"status":{"conditions":[{"type":%q,"status":%q}%s]}}`, podops.ServiceReadyCondition, status, ready)
}

func (b bench) patch(name, namespace, body string) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	if err := b.Patch(b.Context(), pod, client.RawPatch(types.StrategicMergePatchType, []byte(body))); err != nil {
		b.Error(err)
	}
}

func (b bench) status(name, namespace, body string) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	if err := b.Status().Patch(b.Context(), pod, client.RawPatch(types.StrategicMergePatchType, []byte(body))); err != nil {
		b.Error(err)
	}
}

// until polls, with a deadline.
func (b bench) until(what string, done func() bool) {
	b.Helper()
	ctx, cancel := context.WithTimeout(b.Context(), patience)
	defer cancel()
	tick := time.NewTicker(pulse)
	defer tick.Stop()
	for !done() {
		select {
		case <-ctx.Done():
			b.Errorf("gave up waiting until %s", what)
			return
		case <-tick.C:
		}
	}
}
