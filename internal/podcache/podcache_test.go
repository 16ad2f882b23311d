package podcache

import (
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
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
	i := new(Store).NewInformer(source, &corev1.Pod{}, 0,
		cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
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
	kept := Pack(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p"}})
	handler{got}.OnDelete(cache.DeletedFinalStateUnknown{Key: "ns/p", Obj: kept})
	require.Equal(t, cache.DeletedFinalStateUnknown{Key: "ns/p",
		Obj: &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p"}}}, got.deleted)
}

type toldOf struct {
	cache.ResourceEventHandler
	deleted any
}

func (t *toldOf) OnDelete(o any) { t.deleted = o }

var byNode = cache.Indexers{"node": func(o any) ([]string, error) {
	return []string{o.(*corev1.Pod).Spec.NodeName}, nil //nolint:forcetypeassert // an index function sees whole Pods
}}

func TestAStoreReadsWhatItsInformersKeep(t *testing.T) {
	for _, namespaces := range []int{1, 2} { // a cache that is limited to some has an informer for each
		t.Run(fmt.Sprintf("%d informers", namespaces), func(t *testing.T) {
			store, want := &Store{Indexers: byNode}, map[string]*corev1.Pod{}
			for n := range namespaces {
				source := fakesource.NewFakeControllerSource()
				for i := range 4 {
					pod := &corev1.Pod{
						ObjectMeta: metav1.ObjectMeta{Namespace: fmt.Sprintf("ns-%d", n), Name: fmt.Sprintf("p-%d-%d", n, i),
							Labels: map[string]string{"n": fmt.Sprint(i)}},
						Spec: corev1.PodSpec{NodeName: fmt.Sprintf("node-%d", i%2)},
						Status: corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: corev1.PodReady,
							Status: corev1.ConditionTrue}}},
					}
					if i > 1 { // its own status
						pod.Status.PodIP = fmt.Sprintf("10.0.%d.%d", n, i)
					}
					want[pod.Name] = pod.DeepCopy()
					source.Add(pod)
				}
				informer := store.NewInformer(source, &corev1.Pod{}, 0,
					cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
				go informer.RunWithContext(t.Context())
				require.True(t, cache.WaitForCacheSync(t.Context().Done(), informer.HasSynced))
			}
			maps.DeleteFunc(want, func(_ string, p *corev1.Pod) bool { return p.Spec.NodeName != "node-1" })
			pods, err := store.ByIndex("node", "node-1")
			require.NoError(t, err)
			require.Len(t, pods, 2*namespaces)

			seen := map[string]*corev1.Pod{}
			for _, kept := range pods {
				pod := kept.Whole()
				seen[pod.Name] = pod
			}
			same(t, want, seen)

			inNamespace, err := store.ByIndex(cache.NamespaceIndex, "ns-0")
			require.NoError(t, err)
			require.Len(t, inNamespace, 4)
			none, err := store.ByIndex("node", "none")
			require.NoError(t, err)
			require.Empty(t, none)
			_, err = store.ByIndex("color", "red")
			require.ErrorContains(t, err, "color")
		})
	}
}

func same(t *testing.T, want, got map[string]*corev1.Pod) {
	t.Helper()
	require.ElementsMatch(t, slices.Collect(maps.Keys(want)), slices.Collect(maps.Keys(got)))
	for name, pod := range got {
		pod = pod.DeepCopy()
		pod.ResourceVersion = ""
		require.Equal(t, want[name], pod)
	}
}

func TestOtherKindsAreKeptAsTheyAre(t *testing.T) {
	store := &Store{Indexers: byNode}
	nodes := store.NewInformer(fakesource.NewFakeControllerSource(), &corev1.Node{}, 0, cache.Indexers{})
	_, packed := nodes.(*informer)
	require.False(t, packed)
	require.Empty(t, nodes.GetIndexer().GetIndexers())
	_, err := store.ByIndex("node", "a")
	require.ErrorContains(t, err, "not watched")
}

func TestAStoreThatIsFillingShowsNothing(t *testing.T) {
	store, source := &Store{Indexers: byNode}, fakesource.NewFakeControllerSource()
	first := store.NewInformer(source, &corev1.Pod{}, 0, cache.Indexers{})
	second := store.NewInformer(source, &corev1.Pod{}, 0, cache.Indexers{})
	for _, informer := range []cache.SharedIndexInformer{first, second} {
		_, err := store.ByIndex("node", "a")
		require.ErrorContains(t, err, "still being listed", "a decision on the Pods of one namespace would miss the others'")
		go informer.RunWithContext(t.Context())
		require.True(t, cache.WaitForCacheSync(t.Context().Done(), informer.HasSynced))
	}
	_, err := store.ByIndex("node", "a")
	require.NoError(t, err)
}

// running are Pods with their own status, which is kept encoded.
func running(names ...string) []*Pod {
	var pods []*Pod
	for _, name := range names {
		pods = append(pods, Pack(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name},
			Status: corev1.PodStatus{PodIP: name}}))
	}
	return pods
}

func TestAMemoReadsWhatChanged(t *testing.T) {
	var m Memo[string]
	var asked []string
	read := func(pods []*Pod) []string {
		asked = nil
		all, _, _ := m.Read(pods, func(pod *corev1.Pod) string {
			asked = append(asked, pod.Name)
			return pod.Status.PodIP
		})
		return all
	}
	pods := running("a", "b", "c")
	require.Equal(t, []string{"a", "b", "c"}, read(pods))
	require.Equal(t, []string{"a", "b", "c"}, asked)

	slices.Reverse(pods)
	require.Equal(t, []string{"c", "b", "a"}, read(pods), "in the order of the Pods")
	require.Empty(t, asked)

	pods[0] = Pack(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "c"}, Status: corev1.PodStatus{PodIP: "changed"}})
	require.Equal(t, []string{"changed", "b", "a"}, read(pods))
	require.Equal(t, []string{"c"}, asked)

	pods = append(pods[1:], running("d")...)
	require.Equal(t, []string{"b", "a", "d"}, read(pods))
	require.Equal(t, []string{"d"}, asked)

	m.Forget()
	require.Equal(t, []string{"b", "a", "d"}, read(pods))
	require.Len(t, asked, 3)
	require.Empty(t, read(nil))
}

func TestAMemoTellsOfThePast(t *testing.T) {
	var m Memo[string]
	read := func(pods []*Pod) (past []string, remembered bool) {
		_, past, remembered = m.Read(pods, func(pod *corev1.Pod) string { return pod.Status.PodIP })
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

	pods[0] = Pack(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "a"}, Status: corev1.PodStatus{PodIP: "changed"}})
	past, _ = read(append(slices.Clone(pods[:2]), running("e")...))
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
		m.Read(running(names...), func(*corev1.Pod) int { return 0 })
		require.Len(t, m.known, 40)
	}
	m.Read(nil, func(*corev1.Pod) int { return 0 })
	require.Empty(t, m.known)
}
