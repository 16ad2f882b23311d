package podcache

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"testing"
	"time"
	"unsafe"

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
		kept := shrink(pod)
		for range 2 {
			s, ok := kept.(*small)
			require.True(t, ok)
			shown := s.whole()
			require.True(t, equality.Semantic.DeepEqual(before, shown), "seed %d", seed)
			named := before.ObjectMeta
			named.Labels = nil
			require.True(t, equality.Semantic.DeepEqual(&named, s.GetObjectMeta()), "seed %d", seed)
			kept = s.DeepCopyObject()
		}
	}
}

func TestPodsShareWhatIsEqual(t *testing.T) {
	pod := func(phase corev1.PodPhase, node, owner, ip string) *small {
		kept, ok := shrink(&corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{OwnerReferences: []metav1.OwnerReference{{UID: types.UID(owner),
				Controller: ptr.To(true)}}},
			Spec:   corev1.PodSpec{NodeName: node},
			Status: corev1.PodStatus{Phase: phase, PodIP: ip},
		}).(*small)
		require.True(t, ok)
		return kept
	}
	a, b := pod(corev1.PodRunning, "n", "o", ""), pod(corev1.PodRunning, "n", "o", "")
	require.Same(t, a.spec, b.spec)
	require.Same(t, a.status, b.status)
	require.Same(t, a.rest, b.rest)
	other := pod(corev1.PodFailed, "m", "p", "")
	require.NotSame(t, a.spec, other.spec)
	require.NotSame(t, a.status, other.status)
	require.Equal(t, types.UID("p"), other.rest.OwnerReferences[0].UID)
	require.Nil(t, pod(corev1.PodRunning, "n", "o", "10.0.0.1").status, "no other Pod has this address")
}

func TestPodsDoNotShareWhatIsTheirOwn(t *testing.T) {
	now := metav1.Now()
	for _, m := range []metav1.ObjectMeta{{Annotations: map[string]string{"a": "b"}}, {DeletionTimestamp: &now}} {
		m.OwnerReferences = []metav1.OwnerReference{{UID: "o"}}
		a, b := rest(m), rest(*m.DeepCopy())
		require.NotSame(t, a, b)
		require.Same(t, &a.OwnerReferences[0], &b.OwnerReferences[0], "but the owners")
	}
}

func TestPodsShareTheTextsOfTheirAnnotations(t *testing.T) {
	long := strings.Repeat("long", longestText)
	decoded := func() metav1.ObjectMeta { // with texts of its own, as from the API server
		own := strings.Clone
		return metav1.ObjectMeta{GenerateName: own("web-"),
			Annotations: map[string]string{own("key"): own("value"), own("long"): own(long)}}
	}
	a, b := rest(decoded()), rest(decoded())
	require.Equal(t, decoded(), *a)
	require.Equal(t, decoded(), *b)
	require.Same(t, unsafe.StringData(a.GenerateName), unsafe.StringData(b.GenerateName))
	require.Same(t, unsafe.StringData(a.Annotations["key"]), unsafe.StringData(b.Annotations["key"]))
	require.NotSame(t, unsafe.StringData(a.Annotations["long"]), unsafe.StringData(b.Annotations["long"]),
		"long texts are rarely the same")
	require.Nil(t, rest(metav1.ObjectMeta{DeletionTimestamp: ptr.To(metav1.Now())}).Annotations)
}

func TestPodsShareTheNameOfTheirNamespace(t *testing.T) {
	in := func(namespace string) *small {
		s, ok := shrink(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: strings.Clone(namespace), Name: "web"}}).(*small)
		require.True(t, ok)
		return s
	}
	require.Same(t, in("shop").namespace, in("shop").namespace)
	require.Equal(t, "other", in("other").whole().Namespace)
}

func TestAppendingToOnePodChangesNoOther(t *testing.T) {
	finalizers := append(make([]string, 0, 4), "a")
	one, other := rest(metav1.ObjectMeta{Finalizers: finalizers}), rest(metav1.ObjectMeta{Finalizers: []string{"a"}})
	require.Same(t, one, other)
	first, second := append(one.Finalizers, "b"), append(other.Finalizers, "c")
	require.Equal(t, [][]string{{"a", "b"}, {"a", "c"}}, [][]string{first, second})
}

func TestAStatusIsCommon(t *testing.T) {
	now := metav1.Now()
	ready := corev1.PodCondition{Type: corev1.PodReady, Status: corev1.ConditionTrue, Reason: "Fine",
		Message: "as it should be"}
	require.True(t, common(&corev1.PodStatus{}))
	require.True(t, common(&corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{ready}}))
	for what, s := range map[string]corev1.PodStatus{
		"address":   {PodIP: "10.0.0.1"},
		"addresses": {PodIPs: []corev1.PodIP{{IP: "10.0.0.1"}}},
		"start":     {StartTime: &now},
		"container": {ContainerStatuses: []corev1.ContainerStatus{{}}},
		"init":      {InitContainerStatuses: []corev1.ContainerStatus{{}}},
		"change":    {Conditions: []corev1.PodCondition{ready, {LastTransitionTime: now}}},
		"probe":     {Conditions: []corev1.PodCondition{{LastProbeTime: now}}},
	} {
		require.False(t, common(&s), what)
	}
}

func TestWhatIsSharedIsBounded(t *testing.T) {
	var p parts[string]
	for i := range 3 * mostShared {
		text := fmt.Sprint(i)
		require.Equal(t, text, *p.one([]byte(text), &text))
		require.LessOrEqual(t, len(p.known), mostShared)
	}
}

func TestLabelsArePacked(t *testing.T) {
	for what, of := range map[string]map[string]string{
		"none":         nil,
		"one":          {"app": "web"},
		"empty values": {"a": "", "b": "", "c": "x"},
		"many":         {"z": "1", "a": "2", "m": "3", "b": "4", "y": "5", "c": "6", "x": "7", "d": "8", "w": "9", "e": "10"},
	} {
		s, ok := shrink(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "u", ResourceVersion: "7", Labels: of}}).(*small)
		require.True(t, ok, what)
		shown := s.whole()
		require.Equal(t, of, shown.Labels, what)
		require.Equal(t, metav1.ObjectMeta{UID: "u", ResourceVersion: "7", Labels: of}, shown.ObjectMeta, what)
		if len(of) > 0 {
			shown.Labels["app"] = "changed"
			require.Equal(t, of, s.whole().Labels, "%s: each reader has its own", what)
		}
	}
	odd := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "a" + separator + "b"}}}
	require.Same(t, odd, shrink(odd), "kept as it is")
}

func TestPodsShareTheKeysOfTheirLabels(t *testing.T) {
	keys := func(of map[string]string) *[]string {
		s, ok := shrink(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Labels: of}}).(*small)
		require.True(t, ok)
		return s.keys
	}
	require.Same(t, keys(map[string]string{"b": "1", "a": "2"}), keys(map[string]string{"a": "3", "b": "4"}))
	require.NotSame(t, keys(map[string]string{"a": "1"}), keys(map[string]string{"b": "1"}))
}

// BenchmarkKept tells what a Pod takes, as components strip them: labels, a gate, and four conditions with times.
func BenchmarkKept(b *testing.B) {
	pod := func(i int) *corev1.Pod {
		p := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: fmt.Sprint("pod-", i), UID: types.UID(fmt.Sprintf("%036d", i)),
				Labels: map[string]string{"app": "web", "number": fmt.Sprint(i)}},
			Spec: corev1.PodSpec{ReadinessGates: []corev1.PodReadinessGate{{ConditionType: "gate"}}},
		}
		for _, kind := range []corev1.PodConditionType{corev1.PodReady, corev1.ContainersReady, corev1.PodScheduled, "gate"} {
			p.Status.Conditions = append(p.Status.Conditions,
				corev1.PodCondition{Type: kind, Status: corev1.ConditionTrue, LastTransitionTime: metav1.Unix(int64(i), 0)})
		}
		return p
	}
	for name, keep := range map[string]func(*corev1.Pod) any{
		"whole": func(p *corev1.Pod) any { return p },
		"small": func(p *corev1.Pod) any { return shrink(p) },
	} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				const many = 10_000
				kept := make([]any, many)
				before := heap()
				for i := range kept {
					kept[i] = keep(pod(i))
				}
				b.ReportMetric(float64(heap()-before)/many, "bytes/Pod")
				runtime.KeepAlive(kept)
			}
		})
	}
}

func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
