package podcache

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	fakesource "k8s.io/client-go/tools/cache/testing"
)

var byNode = cache.Indexers{"node": func(o any) ([]string, error) {
	return []string{o.(*corev1.Pod).Spec.NodeName}, nil //nolint:forcetypeassert // an index function sees whole Pods
}}

func TestAStoreReadsWhatItsInformersKeep(t *testing.T) {
	for name, of := range map[string]newInformer{"small": NewInformer, "whole": cache.NewSharedIndexInformer} {
		for _, namespaces := range []int{1, 2} { // a cache that is limited to some has an informer for each
			t.Run(fmt.Sprintf("%s, %d informers", name, namespaces), func(t *testing.T) {
				store, want := NewStore(byNode), map[string]*corev1.Pod{}
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
					informer := store.NewInformer(of)(source, &corev1.Pod{}, 0,
						cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
					go informer.RunWithContext(t.Context())
					require.True(t, cache.WaitForCacheSync(t.Context().Done(), informer.HasSynced))
				}
				maps.DeleteFunc(want, func(_ string, p *corev1.Pod) bool { return p.Spec.NodeName != "node-1" })
				pods, err := store.ByIndex("node", "node-1")
				require.NoError(t, err)
				require.Equal(t, 2*namespaces, pods.Len())

				seen := map[string]*corev1.Pod{}
				for pod := range pods.All() {
					seen[pod.Name] = pod.DeepCopy()
				}
				same(t, want, seen)
				clear(seen)
				for i := range pods.Len() {
					pod := pods.At(i)
					seen[pod.Name] = pod
				}
				same(t, want, seen)
				for range pods.All() {
					break // who has seen enough may go
				}

				inNamespace, err := store.ByIndex(cache.NamespaceIndex, "ns-0")
				require.NoError(t, err)
				require.Equal(t, 4, inNamespace.Len())
				none, err := store.ByIndex("node", "none")
				require.NoError(t, err)
				require.Empty(t, slices.Collect(none.All()))
				_, err = store.ByIndex("color", "red")
				require.ErrorContains(t, err, "color")

				one, err := store.Get(types.NamespacedName{Namespace: "ns-0", Name: "p-0-3"})
				require.NoError(t, err)
				require.Equal(t, 1, one.Len())
				same(t, map[string]*corev1.Pod{"p-0-3": want["p-0-3"]}, map[string]*corev1.Pod{"p-0-3": one.At(0)})
				none, err = store.Get(types.NamespacedName{Namespace: "ns-9", Name: "p-0-3"})
				require.NoError(t, err)
				require.Zero(t, none.Len())
			})
		}
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

func TestAStoreRemembersInformersOfPodsOnly(t *testing.T) {
	store := NewStore(byNode)
	nodes := store.NewInformer(cache.NewSharedIndexInformer)(fakesource.NewFakeControllerSource(), &corev1.Node{}, 0,
		cache.Indexers{})
	require.Empty(t, nodes.GetIndexer().GetIndexers())
	_, err := store.ByIndex("node", "a")
	require.ErrorContains(t, err, "not watched")
}

func TestAStoreThatIsFillingShowsNothing(t *testing.T) {
	store, source := NewStore(byNode), fakesource.NewFakeControllerSource()
	first := store.NewInformer(NewInformer)(source, &corev1.Pod{}, 0, cache.Indexers{})
	second := store.NewInformer(NewInformer)(source, &corev1.Pod{}, 0, cache.Indexers{})
	for _, informer := range []cache.SharedIndexInformer{first, second} {
		_, err := store.ByIndex("node", "a")
		require.ErrorContains(t, err, "still being listed", "a decision on the Pods of one namespace would miss the others'")
		go informer.RunWithContext(t.Context())
		require.True(t, cache.WaitForCacheSync(t.Context().Done(), informer.HasSynced))
	}
	_, err := store.ByIndex("node", "a")
	require.NoError(t, err)
}

func TestPodsOfAList(t *testing.T) {
	list := []corev1.Pod{{ObjectMeta: metav1.ObjectMeta{Name: "a"}}, {ObjectMeta: metav1.ObjectMeta{Name: "b"}}}
	pods := Of(list)
	require.Equal(t, 2, pods.Len())
	require.Equal(t, []*corev1.Pod{&list[0], &list[1]}, []*corev1.Pod{pods.At(0), pods.At(1)})
	require.Len(t, slices.Collect(pods.All()), 2)
	require.Zero(t, Of(nil).Len())
}
