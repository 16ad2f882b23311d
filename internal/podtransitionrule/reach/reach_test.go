package reach

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	toolscache "k8s.io/client-go/tools/cache"
	fakesource "k8s.io/client-go/tools/cache/testing"
	"k8s.io/utils/ptr"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
)

const patience = 2 * time.Minute

// newReach reads a server, in small pages.
func newReach(s *server) *Reach {
	r := New(func(pod metav1.Object) bool { return pod.GetAnnotations()["note"] != "" }, func(pod *corev1.Pod) *corev1.Pod { return pod })
	r.pageSize = 3
	r.ReadFrom(reader{server: s})
	return r
}

// cluster is a server with rules, and informers on both.
type cluster struct {
	*testing.T
	*server
	rules *fakesource.FakeControllerSource
	reach *Reach
	pods  toolscache.SharedIndexInformer
	mu    sync.Mutex
	// last are the resourceVersions that handlers were told of; backwards what went back.
	last      map[string]string
	backwards []string
}

func newCluster(t *testing.T) *cluster {
	t.Helper()
	s := newServer()
	return &cluster{T: t, server: s, rules: fakesource.NewFakeControllerSource(), reach: newReach(s), last: map[string]string{}}
}

func (c *cluster) start() {
	byNamespace := toolscache.Indexers{toolscache.NamespaceIndex: toolscache.MetaNamespaceIndexFunc}
	c.pods = c.reach.NewInformer(c.server, &corev1.Pod{}, 0, byNamespace)
	saw := func(o any) {
		pod, ok := o.(*corev1.Pod)
		if !ok {
			return
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		key := pod.Namespace + "/" + pod.Name
		if was := c.last[key]; was != "" && later(was, pod.ResourceVersion) != pod.ResourceVersion && was != pod.ResourceVersion {
			c.backwards = append(c.backwards, fmt.Sprintf("%s from %s to %s", key, was, pod.ResourceVersion))
		}
		c.last[key] = pod.ResourceVersion
	}
	_, err := c.pods.AddEventHandler(toolscache.ResourceEventHandlerFuncs{AddFunc: saw, UpdateFunc: func(_, after any) { saw(after) }, DeleteFunc: saw})
	require.NoError(c, err)
	go c.pods.RunWithContext(c.Context())
	go c.reach.NewInformer(c.rules, &appsv1alpha1.PodTransitionRule{}, 0, byNamespace).RunWithContext(c.Context())
}

func (c *cluster) rule(namespace string) {
	c.rules.Add(&appsv1alpha1.PodTransitionRule{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "r"}})
}

// shown are the resourceVersions of the Pods that the cache shows.
func (c *cluster) shown(namespace string) map[string]string {
	found, err := c.pods.GetIndexer().ByIndex(toolscache.NamespaceIndex, namespace)
	require.NoError(c, err)
	all := map[string]string{}
	for _, o := range found {
		pod, ok := o.(*corev1.Pod)
		require.True(c, ok)
		all[pod.Name] = pod.ResourceVersion
	}
	return all
}

func (c *cluster) until(what string, is func() bool) {
	c.Helper()
	require.Eventually(c, is, patience, time.Millisecond, what)
}

func (c *cluster) showsAll(namespace string) {
	c.Helper()
	c.until("all of namespace "+namespace, func() bool { return maps.Equal(c.shown(namespace), c.versions(namespace)) })
}

func TestOnlyPodsThatARuleCanSelectAreKept(t *testing.T) {
	c := newCluster(t)
	for _, namespace := range []string{"first", "later", "noted", "none"} {
		for i := range 3 {
			c.put(namespace, fmt.Sprint("p", i), nil, false)
		}
	}
	c.put("noted", "p1", map[string]string{"note": "of a rule that is gone"}, false)
	c.rule("first")
	c.start()
	c.until("the first list", func() bool { return c.pods.HasSynced() })
	require.Len(t, c.shown("first"), 3, "they came with the first list")
	require.True(t, c.reach.Ready("first", true))
	c.showsAll("noted")

	require.False(t, c.reach.Ready("later", true))
	require.True(t, c.reach.Ready("later", false))
	c.rule("later")
	c.until("its Pods", func() bool { return c.reach.Ready("later", true) })
	c.showsAll("later")
	c.put("later", "p0", nil, true)
	c.put("later", "new", nil, false)
	c.put("none", "new", nil, false)
	c.put("first", "p1", nil, false)
	c.showsAll("later")
	c.showsAll("first")
	require.Empty(t, c.shown("none"))
	require.Len(t, c.pods.GetIndexer().List(), 9)
	c.server.mu.Lock()
	defer c.server.mu.Unlock()
	require.Equal(t, map[string]bool{"noted": true, "later": true}, c.listed)
}

func TestANamespaceIsListedAgainAfterAnError(t *testing.T) {
	for name, others := range map[string][]string{"while others are watched": {"other"}, "while nothing is watched": nil} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t)
			c.put("web", "p", nil, false)
			for _, namespace := range others {
				c.rule(namespace)
			}
			c.start()
			c.until("the first list", func() bool { return c.pods.HasSynced() })
			c.server.mu.Lock()
			c.failing = 1
			c.server.mu.Unlock()
			c.rule("web")
			c.until("an attempt", func() bool { c.server.mu.Lock(); defer c.server.mu.Unlock(); return c.failing == 0 })
			c.put("elsewhere", "p", nil, false)
			c.put("web", "q", nil, false)
			c.showsAll("web")
		})
	}
}

// counted are the server's lists of all, looks at the metadata of all, and watches.
func (c *cluster) counted() [3]int {
	c.server.mu.Lock()
	defer c.server.mu.Unlock()
	return [3]int{c.lists, c.looks, c.watched}
}

func TestWhileNothingIsInReachNothingIsWatched(t *testing.T) {
	for _, onlyLists := range []bool{false, true} {
		t.Run(fmt.Sprintf("only lists %v", onlyLists), func(t *testing.T) {
			c := newCluster(t)
			c.onlyLists = onlyLists
			for i := range 5 {
				c.put("web", fmt.Sprint("p", i), nil, false)
			}
			c.start()
			c.until("the first list", func() bool { return c.pods.HasSynced() })
			require.Equal(t, [3]int{0, 1, 0}, c.counted())
			require.Empty(t, c.pods.GetIndexer().List())
			c.put("web", "p1", nil, true)
			c.put("web", "p2", nil, false)

			c.rule("web")
			c.until("its Pods", func() bool { return c.reach.Ready("web", true) })
			c.showsAll("web")
			c.put("web", "p3", nil, true)
			c.put("web", "p4", nil, false)
			c.put("none", "p", nil, false)
			c.showsAll("web")
			require.Empty(t, c.shown("none"))
			c.breakOff()
			c.put("web", "p5", nil, false)
			c.showsAll("web")
			counted := c.counted()
			require.Equal(t, [2]int{0, 1}, [2]int{counted[0], counted[1]}, "neither lists of all nor looks")
		})
	}
}

func TestALookThatFailsIsMadeAgain(t *testing.T) {
	c := newCluster(t)
	c.failing = 1
	c.put("web", "p", map[string]string{"note": "of a rule that is gone"}, false)
	c.start()
	c.showsAll("web")
}

// Whatever happens in whatever order, the cache comes to show exactly what is in reach, and no Pod ever goes back to
// an earlier state.
func TestTheCacheComesToShowWhatIsInReach(t *testing.T) {
	seed := rand.Uint64() //nolint:gosec // no secret
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0)) //nolint:gosec // no secret
	for round := range 8 {
		c := newCluster(t)
		c.onlyLists = round%2 == 0
		namespaces := []string{"a", "b", "c", "d"}
		ruled := map[string]bool{}
		act := func() {
			namespace := namespaces[random.IntN(len(namespaces))]
			switch n := random.IntN(100); {
			case n < 3 && namespace != "d" && !ruled[namespace]:
				ruled[namespace] = true
				c.rule(namespace)
			case n < 5:
				c.breakOff()
			case n < 7:
				c.server.mu.Lock()
				c.failing = 1
				c.server.mu.Unlock()
			case n < 25:
				c.put(namespace, fmt.Sprint("p", random.IntN(12)), nil, true)
			default:
				c.put(namespace, fmt.Sprint("p", random.IntN(12)), nil, false)
			}
		}
		for range random.IntN(100) {
			act()
		}
		c.start()
		for range 400 {
			act()
			if random.IntN(40) == 0 { // let others catch up, more or less
				c.until("the watch has come somewhere", func() bool { return c.pods.HasSynced() })
			}
		}
		for _, namespace := range namespaces {
			if ruled[namespace] {
				c.showsAll(namespace)
			}
		}
		c.until("the first list", func() bool { return c.pods.HasSynced() })
		for _, namespace := range namespaces {
			require.Equal(t, ruled[namespace], len(c.shown(namespace)) > 0 || ruled[namespace] && len(c.versions(namespace)) == 0)
		}
		c.mu.Lock()
		require.Empty(t, c.backwards)
		c.mu.Unlock()
	}
}

// watchFrom lists all Pods while no namespace is in reach, and watches them from a resourceVersion on.
func watchFrom(t *testing.T, s *server, resourceVersion string) (*Reach, *listerWatcher, watch.Interface) {
	t.Helper()
	r := newReach(s)
	r.readRules(func() bool { return true })
	lw := &listerWatcher{reach: r, all: s}
	_, err := lw.ListWithContext(t.Context(), metav1.ListOptions{ResourceVersion: "0"})
	require.NoError(t, err)
	w, err := lw.WatchWithContext(t.Context(), metav1.ListOptions{ResourceVersion: resourceVersion})
	require.NoError(t, err)
	return r, lw, w
}

func TestPodsThatNobodyReadToTheEndAreListedAnew(t *testing.T) {
	s := newServer()
	s.put("web", "p", nil, false)
	s.put("web", "q", nil, false)
	r, lw, w := watchFrom(t, s, "102")
	r.want("web")
	require.Equal(t, watch.Added, (<-w.ResultChan()).Type)
	w.Stop()
	_, err := lw.WatchWithContext(t.Context(), metav1.ListOptions{ResourceVersion: "102"})
	require.True(t, apierrors.IsResourceExpired(err), "%v", err)
	w, err = lw.WatchWithContext(t.Context(), metav1.ListOptions{ResourceVersion: "", SendInitialEvents: ptr.To(true)})
	require.NoError(t, err)
	defer w.Stop()
	for _, want := range []watch.EventType{watch.Added, watch.Added, watch.Bookmark} {
		require.Equal(t, want, (<-w.ResultChan()).Type)
	}
	require.True(t, r.Ready("web", true))
}

func TestAWatchGoesOnWhereItEndedWhateverWasPutIn(t *testing.T) {
	s := newServer()
	s.put("web", "old", nil, false) // 101
	s.put("elsewhere", "p", nil, false)
	r, lw, w := watchFrom(t, s, "102")
	r.want("web")
	added := <-w.ResultChan()
	require.Equal(t, "101", added.Object.(*corev1.Pod).ResourceVersion) //nolint:forcetypeassert // a test
	at := <-w.ResultChan()
	require.Equal(t, watch.Bookmark, at.Type)
	require.Equal(t, "102", at.Object.(*corev1.Pod).ResourceVersion) //nolint:forcetypeassert // a test
	w.Stop()
	s.put("web", "new", nil, false)
	w, err := lw.WatchWithContext(t.Context(), metav1.ListOptions{ResourceVersion: "101"})
	require.NoError(t, err)
	defer w.Stop()
	next := <-w.ResultChan()
	require.Equal(t, "new", next.Object.(*corev1.Pod).Name) //nolint:forcetypeassert // a test
	require.Equal(t, "103", r.at())
}

func TestANilReachReachesEverything(t *testing.T) {
	require.True(t, (*Reach)(nil).Ready("any", true))
}
