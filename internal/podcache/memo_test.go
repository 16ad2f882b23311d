package podcache

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// running are Pods with their own status, which is kept encoded.
func running(names ...string) Pods {
	var pods []corev1.Pod
	for _, name := range names {
		pods = append(pods, corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: corev1.PodStatus{PodIP: name}})
	}
	return Of(pods)
}

func TestAMemoReadsWhatChanged(t *testing.T) {
	var m Memo[string]
	var asked []string
	read := func(pods Pods) []string {
		asked = nil
		return m.Read(pods, func(pod *corev1.Pod) string {
			asked = append(asked, pod.Name)
			return pod.Status.PodIP
		})
	}
	pods := running("a", "b", "c")
	require.Equal(t, []string{"a", "b", "c"}, read(pods))
	require.Equal(t, []string{"a", "b", "c"}, asked)

	slices.Reverse(pods.kept)
	require.Equal(t, []string{"c", "b", "a"}, read(pods), "in the order of the Pods")
	require.Empty(t, asked)

	pods.kept[0] = shrink(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "c"},
		Status: corev1.PodStatus{PodIP: "changed"}})
	require.Equal(t, []string{"changed", "b", "a"}, read(pods))
	require.Equal(t, []string{"c"}, asked)

	pods.kept = append(pods.kept[1:], running("d").kept...)
	require.Equal(t, []string{"b", "a", "d"}, read(pods))
	require.Equal(t, []string{"d"}, asked)

	m.Forget()
	require.Equal(t, []string{"b", "a", "d"}, read(pods))
	require.Len(t, asked, 3)
	require.Empty(t, read(Pods{}))
}

func TestAMemoTellsOfThePast(t *testing.T) {
	var m Memo[string]
	read := func(pods Pods) (past []string, remembered bool) {
		_, remembered = m.ReadChanges(pods, func(pod *corev1.Pod) string { return pod.Status.PodIP },
			func(of string) { past = append(past, of) })
		slices.Sort(past)
		return past, remembered
	}
	pods := running("a", "b", "c", "d")
	past, remembered := read(pods)
	require.Empty(t, past)
	require.False(t, remembered, "there was no Read before")
	past, remembered = read(pods)
	require.Empty(t, past)
	require.True(t, remembered)

	pods.kept[0] = shrink(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "a"},
		Status: corev1.PodStatus{PodIP: "changed"}})
	past, _ = read(Pods{kept: append(slices.Clone(pods.kept[:2]), running("e").kept...)})
	require.Equal(t, []string{"a", "c", "d"}, past, "one has changed, two are gone")
	past, _ = read(pods)
	require.Equal(t, []string{"e"}, past, "nothing is told twice")

	m.Forget()
	past, remembered = read(running("f"))
	require.Empty(t, past)
	require.False(t, remembered)
}

func TestAMemoThatNobodyAsksForgets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var m Memo[int]
		pods, asked := running("a"), 0
		read := func() { m.Read(pods, func(*corev1.Pod) int { asked++; return 0 }) }
		for range 3 {
			read()
			time.Sleep(memoTime - time.Second)
		}
		require.Equal(t, 1, asked)
		time.Sleep(2 * time.Second)
		synctest.Wait()
		require.Empty(t, m.known)
		read()
		time.Sleep(memoTime - time.Second)
		read()
		require.Equal(t, 2, asked, "and remembers anew")
		m.expiry.Stop()
	})
}

func TestAMemoForgetsPodsOfThePast(t *testing.T) {
	var m Memo[int]
	for round := range 100 {
		var names []string
		for i := range 40 {
			names = append(names, fmt.Sprintf("%d-%d", round, i))
		}
		require.Len(t, m.Read(running(names...), func(*corev1.Pod) int { return 0 }), 40)
		require.LessOrEqual(t, len(m.known), 45)
	}
	m.Read(Pods{}, func(*corev1.Pod) int { return 0 })
	require.Empty(t, m.known)
}
