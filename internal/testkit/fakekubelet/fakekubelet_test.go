package fakekubelet

import (
	"encoding/json"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
)

const gate = "example.com/gate"

func web(with ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", UID: "1", Generation: 1},
		Spec: corev1.PodSpec{
			NodeName: "node-0", Containers: []corev1.Container{{Name: "main", Image: "web:1"}},
			ReadinessGates: []corev1.PodReadinessGate{{ConditionType: gate}},
		},
	}
	for _, w := range with {
		w(p)
	}
	return p
}

func set(t corev1.PodConditionType, s corev1.ConditionStatus) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		for i := range p.Status.Conditions {
			if p.Status.Conditions[i].Type == t {
				p.Status.Conditions[i].Status = s
				return
			}
		}
		p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: t, Status: s})
	}
}

// node is a fake API server with kubelets, in virtual time.
type node struct {
	*testing.T
	client *fake.Clientset
}

func on(t *testing.T, o Options, objects ...runtime.Object) *node {
	t.Helper()
	n := &node{t, fake.NewClientset(objects...)}
	k, err := start(t.Context(), n.client, o)
	require.NoError(t, err)
	t.Cleanup(k.Stop)
	synctest.Wait()
	return n
}

// after lets time pass and returns the Pod.
func (n *node) after(d time.Duration) *corev1.Pod {
	n.Helper()
	time.Sleep(d) // virtual
	synctest.Wait()
	pod, err := n.client.CoreV1().Pods("default").Get(n.Context(), "web", metav1.GetOptions{})
	require.NoError(n, err)
	return pod
}

func (n *node) update(pod *corev1.Pod, with ...func(*corev1.Pod)) {
	n.Helper()
	pod = pod.DeepCopy()
	for _, w := range with {
		w(pod)
	}
	_, err := n.client.CoreV1().Pods("default").Update(n.Context(), pod, metav1.UpdateOptions{})
	require.NoError(n, err)
	synctest.Wait()
}

// writes is the number of status writes so far.
func (n *node) writes() int { return n.requests("patch", "status") }

func (n *node) requests(verb, subresource string) int {
	count := 0
	for _, a := range n.client.Actions() {
		if a.GetVerb() == verb && a.GetSubresource() == subresource {
			count++
		}
	}
	return count
}

func ready(p *corev1.Pod) corev1.ConditionStatus {
	return statusOf(p.Status.Conditions, corev1.PodReady)
}

func TestPodRunsAndFollowsItsGates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := on(t, Options{}, web())
		require.Empty(t, n.after(defaultRestartTime-time.Millisecond).Status.Phase, "containers take time to start")
		p := n.after(2 * time.Millisecond)
		require.Equal(t, corev1.PodRunning, p.Status.Phase)
		require.Equal(t, int64(1), p.Status.ObservedGeneration)
		require.NotEmpty(t, p.Status.ContainerStatuses[0].ContainerID)
		require.NotEmpty(t, p.Status.PodIP)
		require.Equal(t, corev1.ConditionFalse, ready(p), "its gate is not True")
		n.update(p, set(gate, corev1.ConditionTrue))
		p = n.after(0)
		require.Equal(t, corev1.ConditionTrue, ready(p))
		require.Equal(t, corev1.ConditionTrue, statusOf(p.Status.Conditions, gate), "the gate is not the kubelet's to write")
		n.update(p, set(gate, corev1.ConditionFalse), set(corev1.PodReady, corev1.ConditionFalse))
		n.after(time.Minute)
		require.Equal(t, 2, n.writes(), "one write per change, none where somebody else has written what follows")
	})
}

func TestNewImageRestartsTheContainer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := on(t, Options{RestartTime: time.Second}, web())
		before := n.after(time.Second).Status.ContainerStatuses[0]
		n.update(n.after(0), func(p *corev1.Pod) { p.Spec.Containers[0].Image, p.Generation = "web:2", 2 })
		p := n.after(999 * time.Millisecond)
		require.Equal(t, before, p.Status.ContainerStatuses[0], "it takes time")
		p = n.after(time.Millisecond)
		now := p.Status.ContainerStatuses[0]
		require.Equal(t, "web:2", now.Image)
		require.Equal(t, before.RestartCount+1, now.RestartCount)
		require.NotEqual(t, before.ContainerID, now.ContainerID)
		require.NotEqual(t, before.ImageID, now.ImageID)
		require.Equal(t, int64(2), p.Status.ObservedGeneration)
		require.Equal(t, 2, n.writes())
	})
}

func TestLagDelaysWhatTheKubeletSees(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := on(t, Options{Lag: 2 * time.Second}, web(set(gate, corev1.ConditionTrue)))
		require.Empty(t, n.after(1900*time.Millisecond).Status.Phase, "it has not seen the Pod yet, let alone started it")
		p := n.after(time.Second)
		require.Equal(t, corev1.ConditionTrue, ready(p))
		n.after(time.Minute)
		n.update(p, set(gate, corev1.ConditionFalse))
		require.Equal(t, corev1.ConditionTrue, ready(n.after(1999*time.Millisecond)))
		require.Equal(t, corev1.ConditionFalse, ready(n.after(time.Millisecond)))

		n.update(n.after(time.Minute), set(gate, corev1.ConditionTrue))
		n.update(n.after(time.Second), set(gate, corev1.ConditionFalse))
		require.Equal(t, corev1.ConditionTrue, ready(n.after(time.Second)),
			"it does not know yet that the gate was closed again")
		require.Equal(t, corev1.ConditionFalse, ready(n.after(2*time.Second)))
	})
}

func TestTerminatingPod(t *testing.T) {
	deleted := func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: time.Now()} }
	synctest.Test(t, func(t *testing.T) {
		n := on(t, Options{}, web(set(gate, corev1.ConditionTrue)))
		n.update(n.after(time.Second), deleted, func(p *corev1.Pod) { p.Finalizers = []string{"example.com/wait"} })
		p := n.after(time.Second)
		require.Equal(t, corev1.PodSucceeded, p.Status.Phase, "its containers end, a finalizer holds it")
		require.Equal(t, corev1.ConditionFalse, ready(p))
		require.NotNil(t, p.Status.ContainerStatuses[0].State.Terminated)
		require.Equal(t, 2, n.writes())
		n.update(p, func(p *corev1.Pod) { p.Finalizers = nil })
		_, err := n.client.CoreV1().Pods("default").Get(t.Context(), "web", metav1.GetOptions{})
		require.True(t, apierrors.IsNotFound(err))
	})
}

func TestTerminatingPodIsDeletedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := on(t, Options{Lag: 2 * time.Second}, web(set(gate, corev1.ConditionTrue)))
		p := n.after(time.Minute)
		n.update(p, func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: time.Now()} })
		n.update(n.after(500*time.Millisecond), func(p *corev1.Pod) { p.Labels = map[string]string{"changed": "true"} })
		time.Sleep(time.Minute) // virtual
		synctest.Wait()
		require.Equal(t, 1, n.requests("delete", ""),
			"what it sees late of a Pod that it has deleted is no reason to delete it again")
	})
}

func TestRestartedKubeletTakesOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		first := on(t, Options{}, web(set(gate, corev1.ConditionTrue)))
		second := on(t, Options{}, first.after(time.Second))
		second.after(time.Minute)
		require.Zero(t, second.writes(), "what runs goes on and needs no word")
	})
}

func TestOtherNodesAreLeftAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := on(t, Options{Nodes: []string{"node-1"}}, web())
		n.after(time.Minute)
		require.Zero(t, n.writes())
	})
}

func TestLateViewDoesNotUndoOwnWrites(t *testing.T) {
	now := time.Now()
	seen := web(set(gate, corev1.ConditionTrue))
	seen.ResourceVersion = "10"
	m := newMachine(seen, 1)
	require.Zero(t, m.run(seen, now, 0))
	patch, err := m.report(seen, now)
	require.NoError(t, err)
	require.NotNil(t, patch)

	written := seen.DeepCopy()
	var body corev1.Pod
	require.NoError(t, json.Unmarshal(patch, &body))
	written.Status = body.Status
	set(gate, corev1.ConditionTrue)(written)
	written.ResourceVersion = "12"
	m.wrote(written)

	seen.ResourceVersion = "11" // another client's label, written before the kubelet's status
	patch, err = m.report(seen, now)
	require.NoError(t, err)
	require.Nil(t, patch, "the kubelet knows what it said")

	set(corev1.PodReady, corev1.ConditionFalse)(written)
	written.ResourceVersion = "13"
	patch, err = m.report(written, now)
	require.NoError(t, err)
	require.NotNil(t, patch, "somebody took Ready away while the gates are open")
}
