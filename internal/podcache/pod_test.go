package podcache

import (
	"fmt"
	"math/rand/v2"
	goruntime "runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/randfill"
)

// anyPod has any value in any of its fields, as the API server could send it: times have no fractions of seconds.
func anyPod(seed int64) *corev1.Pod {
	pod := &corev1.Pod{}
	randfill.NewWithSeed(seed).NilChance(0.5).NumElements(0, 2).MaxDepth(8).Funcs(
		func(at *metav1.Time, c randfill.Continue) { *at = metav1.Unix(c.Int63n(1<<32), 0) },
		func(at *metav1.MicroTime, c randfill.Continue) {
			*at = metav1.NewMicroTime(time.Unix(c.Int63n(1<<32), 0))
		},
		func(fields *metav1.FieldsV1, _ randfill.Continue) { *fields = metav1.FieldsV1{} },
	).Fill(pod)
	pod.TypeMeta = metav1.TypeMeta{} // as it is in a cache
	return pod
}

func TestAPodIsShownAsItWas(t *testing.T) {
	for range 40 {
		seed := rand.Int64() //nolint:gosec // no secret
		pod := anyPod(seed)
		before := pod.DeepCopy()
		kept := Pack(pod)
		require.True(t, equality.Semantic.DeepEqual(before, kept.Whole()), "seed %d", seed)
		require.True(t, equality.Semantic.DeepEqual(&before.ObjectMeta, kept.GetObjectMeta()), "seed %d", seed)
		kept.mustBeUnchanged(kept.Whole())
	}
}

func TestAllGetTheSamePodAsLongAsAnyoneHasIt(t *testing.T) {
	w := newWorkloads()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "web-1", Labels: map[string]string{"app": "web"}},
		Status:     corev1.PodStatus{PodIP: "10.0.0.1", Conditions: []corev1.PodCondition{{Type: corev1.PodReady}}},
	}
	kept := w.pack(pod)
	first := kept.Whole()
	goruntime.GC()
	require.Same(t, first, kept.Whole())
	goruntime.KeepAlive(first)
	collectUntil(t, func() bool { return kept.made.Value() == nil })
	require.Equal(t, pod, kept.Whole())
}

// collectUntil collects garbage until this holds.
func collectUntil(t *testing.T, holds func() bool) {
	t.Helper()
	require.Eventually(t, func() bool { goruntime.GC(); return holds() }, patience, time.Millisecond)
}

func TestWhatAReaderChangedIsFound(t *testing.T) {
	for what, change := range map[string]func(*corev1.Pod){
		"metadata of its own":     func(p *corev1.Pod) { p.Annotations["note"] = "changed" },
		"metadata that is shared": func(p *corev1.Pod) { p.OwnerReferences[0].Name = "changed" },
		"labels":                  func(p *corev1.Pod) { p.Labels["app"] = "changed" },
		"spec":                    func(p *corev1.Pod) { p.Spec.Containers[0].Image = "changed" },
		"status":                  func(p *corev1.Pod) { p.Status.Conditions[0].Status = corev1.ConditionFalse },
	} {
		kept := Pack(&corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{
				Name: "web-1", Labels: map[string]string{"app": "web"}, Annotations: map[string]string{"note": "as it was"},
				OwnerReferences: []metav1.OwnerReference{{Name: "web"}},
			},
			Spec:   corev1.PodSpec{NodeName: "n", Containers: []corev1.Container{{Image: "nginx:1"}}},
			Status: corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}},
		})
		whole := kept.unpack()
		kept.mustBeUnchanged(whole)
		change(whole)
		require.Panics(t, func() { kept.mustBeUnchanged(whole) }, what)
	}
}

func TestPodsShareWhatIsEqual(t *testing.T) {
	w := newWorkloads()
	pod := func(name, owner, node string, status corev1.PodStatus) *Pod {
		return w.pack(&corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: "shop", Name: name, UID: types.UID(name), ResourceVersion: name, CreationTimestamp: metav1.Now(),
				Labels: map[string]string{"app": owner, "id": name}, Annotations: map[string]string{"note": name},
				OwnerReferences: []metav1.OwnerReference{{UID: types.UID(owner), Controller: ptr.To(true)}},
			},
			Spec: corev1.PodSpec{NodeName: node}, Status: status,
		})
	}
	serving := corev1.PodStatus{Phase: corev1.PodRunning}
	a, b := pod("a", "web", "n", serving), pod("b", "web", "m", serving)
	require.Same(t, a.common, b.common)
	require.Empty(t, a.status)
	require.Equal(t, serving, b.Whole().Status)
	require.NotSame(t, a.common, pod("c", "db", "n", serving).common)
	require.NotSame(t, a.common, pod("d", "web", "n", corev1.PodStatus{Phase: corev1.PodFailed}).common)
	require.NotEmpty(t, pod("e", "web", "n", corev1.PodStatus{PodIP: "10.0.0.1"}).status, "no other Pod has this address")
	for name, kept := range map[string]*Pod{"a": a, "b": b} {
		whole := kept.unpack()
		require.Equal(t, map[string]string{"app": "web", "id": name}, whole.Labels)
		require.Equal(t, map[string]string{"note": name}, whole.Annotations)
		require.Equal(t, types.UID("web"), whole.OwnerReferences[0].UID)
	}
}

func TestWhatNoPodHasAnyMoreIsForgotten(t *testing.T) {
	w := newWorkloads()
	for i := range 100 {
		w.pack(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: fmt.Sprint(i)}})
	}
	kept := w.pack(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop"}})
	collectUntil(t, func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		return len(w.known) == 1
	})
	require.Same(t, kept.common, w.pack(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop"}}).common)
}

func TestAppendingToOnePodChangesNoOther(t *testing.T) {
	w := newWorkloads()
	finalizers := append(make([]string, 0, 4), "a")
	one := w.pack(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Finalizers: finalizers}})
	other := w.pack(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Finalizers: []string{"a"}}})
	require.Same(t, one.common, other.common)
	first, second := append(one.unpack().Finalizers, "b"), append(other.unpack().Finalizers, "c")
	require.Equal(t, [][]string{{"a", "b"}, {"a", "c"}}, [][]string{first, second})
}

func TestAStatusIsCommon(t *testing.T) {
	now := metav1.Now()
	ready := corev1.PodCondition{Type: corev1.PodReady, Status: corev1.ConditionTrue, Reason: "Fine",
		Message: "as it should be"}
	require.True(t, isCommon(&corev1.PodStatus{}))
	require.True(t, isCommon(&corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{ready}}))
	for what, s := range map[string]corev1.PodStatus{
		"address":   {PodIP: "10.0.0.1"},
		"addresses": {PodIPs: []corev1.PodIP{{IP: "10.0.0.1"}}},
		"start":     {StartTime: &now},
		"container": {ContainerStatuses: []corev1.ContainerStatus{{}}},
		"init":      {InitContainerStatuses: []corev1.ContainerStatus{{}}},
		"change":    {Conditions: []corev1.PodCondition{ready, {LastTransitionTime: now}}},
		"probe":     {Conditions: []corev1.PodCondition{{LastProbeTime: now}}},
	} {
		require.False(t, isCommon(&s), what)
	}
}

func TestLabelsArePacked(t *testing.T) {
	for what, of := range map[string]map[string]string{
		"none":         nil,
		"one":          {"app": "web"},
		"odd ones":     {"app": "a\x00b"},
		"empty values": {"a": "", "b": "", "c": "x"},
		"many":         {"z": "1", "a": "2", "m": "3", "b": "4", "y": "5", "c": "6", "x": "7", "d": "8", "w": "9", "e": "10"},
	} {
		kept := Pack(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "u", ResourceVersion: "7", Labels: of}})
		shown := kept.unpack()
		require.Equal(t, of, shown.Labels, what)
		require.Equal(t, metav1.ObjectMeta{UID: "u", ResourceVersion: "7", Labels: of}, shown.ObjectMeta, what)
	}
}
