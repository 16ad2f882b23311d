package podcache

import (
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
	fakesource "k8s.io/client-go/tools/cache/testing"

	"kusionstack.io/kuperator/internal/bootstrap"
)

const patience = 2 * time.Minute

// seen are the events that a handler was told of, in order.
type seen struct {
	mu     sync.Mutex
	events []string
	strays []any
}

func (s *seen) saw(event string, objects ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, o := range objects {
		pod, ok := o.(*corev1.Pod)
		if !ok {
			s.strays = append(s.strays, o)
			return
		}
		event += " " + pod.Name + " " + string(pod.Status.Phase)
	}
	s.events = append(s.events, event)
}

func (s *seen) handler() cache.ResourceEventHandler {
	return cache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { s.saw("add", o) },
		UpdateFunc: func(before, after any) { s.saw("update", before, after) },
		DeleteFunc: func(o any) { s.saw("delete", o) },
	}
}

func (s *seen) until(t *testing.T, event string) {
	t.Helper()
	require.Eventually(t, func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return slices.Contains(s.events, event)
	}, patience, time.Millisecond, event)
}

func TestWhoeverReadsGetsWholePods(t *testing.T) {
	source := fakesource.NewFakeControllerSource()
	pod := func(name string, phase corev1.PodPhase) *corev1.Pod {
		return &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, Labels: map[string]string{"app": name},
				ManagedFields: []metav1.ManagedFieldsEntry{{}}},
			Spec: corev1.PodSpec{NodeName: "n"},
			Status: corev1.PodStatus{Phase: phase, PodIP: "10.0.0.1",
				Message: "long enough for this status to be its own, as with addresses and times"},
		}
	}
	source.Add(pod("a", corev1.PodPending))
	i := NewInformer(source, &corev1.Pod{}, 0, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
	require.NoError(t, i.SetTransform(bootstrap.StripManagedFields))
	require.NoError(t, i.AddIndexers(cache.Indexers{"phase": func(o any) ([]string, error) {
		return []string{string(o.(*corev1.Pod).Status.Phase)}, nil //nolint:forcetypeassert // that is what is tested
	}}))
	s := &seen{}
	_, err := i.AddEventHandler(s.handler())
	require.NoError(t, err)
	go i.RunWithContext(t.Context())
	s.until(t, "add a Pending")
	source.Add(pod("b", corev1.PodPending))
	source.Modify(pod("b", corev1.PodRunning))
	s.until(t, "update b Pending b Running")

	want := pod("b", corev1.PodRunning)
	want.ManagedFields = nil
	same := func(found any) {
		t.Helper()
		got, ok := found.(*corev1.Pod)
		require.True(t, ok, "%T", found)
		want.ResourceVersion = got.ResourceVersion
		require.Equal(t, want, got)
	}
	found, exists, err := i.GetStore().GetByKey("ns/b")
	require.NoError(t, err)
	require.True(t, exists)
	same(found)
	found, exists, err = i.GetIndexer().Get(want)
	require.NoError(t, err)
	require.True(t, exists)
	same(found)
	_, exists, err = i.GetIndexer().GetByKey("ns/none")
	require.NoError(t, err)
	require.False(t, exists)
	running, err := i.GetIndexer().ByIndex("phase", string(corev1.PodRunning))
	require.NoError(t, err)
	require.Len(t, running, 1)
	same(running[0])
	like, err := i.GetIndexer().Index("phase", want)
	require.NoError(t, err)
	require.Len(t, like, 1)
	same(like[0])
	require.Len(t, i.GetIndexer().List(), 2)
	inNamespace, err := i.GetIndexer().ByIndex(cache.NamespaceIndex, "ns")
	require.NoError(t, err)
	require.Len(t, inNamespace, 2)
	for _, o := range inNamespace {
		require.IsType(t, &corev1.Pod{}, o)
	}

	source.Delete(pod("b", corev1.PodRunning))
	s.until(t, "delete b Running")
	require.Empty(t, s.strays)
}

func TestAHandlerGetsTheLastStateOfAPodWhoseDeletionNobodySaw(t *testing.T) {
	got := &toldOf{}
	kept := shrink(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p"}})
	handler{got}.OnDelete(cache.DeletedFinalStateUnknown{Key: "ns/p", Obj: kept})
	require.Equal(t, cache.DeletedFinalStateUnknown{Key: "ns/p",
		Obj: &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p"}}}, got.deleted)
}

type toldOf struct {
	cache.ResourceEventHandler
	deleted any
}

func (t *toldOf) OnDelete(o any) { t.deleted = o }

func TestOtherKindsAreKeptAsTheyAre(t *testing.T) {
	i := NewInformer(fakesource.NewFakeControllerSource(), &corev1.Node{}, 0, cache.Indexers{})
	_, small := i.(*informer)
	require.False(t, small)
}
