package freshness_test

import (
	"context"
	"errors"
	"runtime"
	"strconv"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"
	"pgregory.net/rapid"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"kusionstack.io/kuperator/internal/freshness"
)

var (
	web   = types.NamespacedName{Namespace: "default", Name: "web"}
	other = types.NamespacedName{Namespace: "default", Name: "other"}
	start = time.Unix(1_000_000, 0)
)

func pod(name string, uid types.UID, rv int) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: uid,
		ResourceVersion: strconv.Itoa(rv)}}
}

func terminating(p *corev1.Pod) *corev1.Pod {
	p.DeletionTimestamp = &metav1.Time{Time: start}
	p.Finalizers = []string{"example.io/keep"} // the fake client refuses a terminating object without one
	return p
}

// ended is the answer to a write that takes the last finalizer of a Pod on its way out.
func ended(p *corev1.Pod) *corev1.Pod {
	p = terminating(p.DeepCopy())
	p.Finalizers, p.DeletionGracePeriodSeconds = nil, new(int64)
	return p
}

// informers is a manager's cache of Pods that shows what its store was told: the store knows how far it has got.
type informers struct {
	cache.Informers
	client.Reader
	store toolscache.Store
	err   error
}

type informer struct {
	cache.Informer
	store toolscache.Store
}

func (i informer) GetStore() toolscache.Store { return i.store }

func (i informers) GetInformer(context.Context, client.Object, ...cache.InformerGetOption) (cache.Informer, error) {
	return informer{store: i.store}, i.err
}

func newStore() toolscache.Store {
	store := toolscache.NewStore(toolscache.MetaNamespaceKeyFunc)
	store.Bookmark("1") // as after the first list
	return store
}

func TestUnobserved(t *testing.T) {
	created := func(p *corev1.Pod) func(*freshness.Tracker) { return func(t *freshness.Tracker) { t.Created(web, p) } }
	wrote := func(p *corev1.Pod) func(*freshness.Tracker) { return func(t *freshness.Tracker) { t.Wrote(web, p) } }
	deleted := func(p *corev1.Pod) func(*freshness.Tracker) { return func(t *freshness.Tracker) { t.Deleted(web, p) } }
	tests := map[string]struct {
		record []func(*freshness.Tracker)
		cached []*corev1.Pod
		// pending is what both kinds of reader answer, unless one of the next two says otherwise.
		pending, pendingWithoutStore bool
		reached                      string // a bookmark of the store
	}{
		"an owner without writes has nothing to wait for": {},
		"a creation that the cache lacks": {record: []func(*freshness.Tracker){created(pod("a", "1", 10))},
			pending: true, pendingWithoutStore: true},
		"a creation that the cache shows": {record: []func(*freshness.Tracker){created(pod("a", "1", 10))},
			cached: []*corev1.Pod{pod("a", "1", 10)}},
		"a creation that others changed since": {record: []func(*freshness.Tracker){created(pod("a", "1", 10))},
			cached: []*corev1.Pod{pod("a", "1", 11)}},
		"a creation hidden by an older object of the name": {
			record: []func(*freshness.Tracker){created(pod("a", "2", 10))}, cached: []*corev1.Pod{pod("a", "1", 9)},
			pending: true, pendingWithoutStore: true,
		},
		"a creation that is gone again from a cache that has come further": {
			record: []func(*freshness.Tracker){created(pod("a", "1", 10))}, reached: "12", pendingWithoutStore: true,
		},
		"an update that the cache lacks": {record: []func(*freshness.Tracker){wrote(pod("a", "1", 10))},
			cached: []*corev1.Pod{pod("a", "1", 9)}, pending: true, pendingWithoutStore: true},
		"an update that the cache shows": {record: []func(*freshness.Tracker){wrote(pod("a", "1", 10))},
			cached: []*corev1.Pod{pod("a", "1", 10)}},
		"resourceVersions are numbers and no text": {
			record: []func(*freshness.Tracker){wrote(pod("a", "1", 100))}, cached: []*corev1.Pod{pod("a", "1", 99)},
			pending: true, pendingWithoutStore: true,
		},
		"an update of what has left the cache": {record: []func(*freshness.Tracker){wrote(pod("a", "1", 10))}, reached: "12"},
		"two updates of which the cache shows the first": {
			record: []func(*freshness.Tracker){wrote(pod("a", "1", 10)), wrote(pod("a", "1", 11))},
			cached: []*corev1.Pod{pod("a", "1", 10)}, pending: true, pendingWithoutStore: true,
		},
		"two updates recorded in the wrong order": {
			record: []func(*freshness.Tracker){wrote(pod("a", "1", 11)), wrote(pod("a", "1", 10))},
			cached: []*corev1.Pod{pod("a", "1", 10)}, pending: true, pendingWithoutStore: true,
		},
		"a creation and its update while the cache has neither": {
			record: []func(*freshness.Tracker){created(pod("a", "1", 10)), wrote(pod("a", "1", 11))}, pending: true,
			pendingWithoutStore: true,
		},
		"two objects of which the cache shows one": {
			record: []func(*freshness.Tracker){created(pod("a", "1", 10)), created(pod("b", "2", 11))},
			cached: []*corev1.Pod{pod("a", "1", 10)}, pending: true, pendingWithoutStore: true,
		},
		"a deletion that the cache lacks": {record: []func(*freshness.Tracker){deleted(pod("a", "1", 9))},
			cached: []*corev1.Pod{pod("a", "1", 9)}, pending: true, pendingWithoutStore: true},
		"a deletion that others wrote before": {record: []func(*freshness.Tracker){deleted(pod("a", "1", 9))},
			cached: []*corev1.Pod{pod("a", "1", 50)}, pending: true, pendingWithoutStore: true},
		"a deletion that the cache shows as mark": {record: []func(*freshness.Tracker){deleted(pod("a", "1", 9))},
			cached: []*corev1.Pod{terminating(pod("a", "1", 10))}},
		"a deletion that the cache shows as gap": {record: []func(*freshness.Tracker){deleted(pod("a", "1", 9))},
			reached: "10"},
		"a deletion of what the cache has not come to yet": {
			record: []func(*freshness.Tracker){deleted(pod("a", "1", 9))}, pending: true, // a cache without a store cannot tell
		},
		"a deletion followed by a new object": {record: []func(*freshness.Tracker){deleted(pod("a", "1", 9))},
			cached: []*corev1.Pod{pod("a", "2", 12)}},
		"a creation and its deletion while the cache has neither": {
			record: []func(*freshness.Tracker){created(pod("a", "1", 10)), deleted(pod("a", "1", 10))}, pending: true,
			pendingWithoutStore: true,
		},
		"an update and a deletion of which the cache shows the update": {
			record: []func(*freshness.Tracker){wrote(pod("a", "1", 10)), deleted(pod("a", "1", 10))},
			cached: []*corev1.Pod{pod("a", "1", 10)}, pending: true, pendingWithoutStore: true,
		},
		"the last finalizer of what the cache still shows": {
			record: []func(*freshness.Tracker){wrote(ended(pod("a", "1", 9)))},
			cached: []*corev1.Pod{terminating(pod("a", "1", 9))}, pending: true, pendingWithoutStore: true,
		},
		"the last finalizer of what the cache shows to be gone": {record: []func(
			*freshness.Tracker){wrote(ended(pod("a", "1", 9)))}, reached: "10"},
		"the last finalizer of what the cache has not come to yet": {
			// a cache without a store cannot tell
			record: []func(*freshness.Tracker){wrote(ended(pod("a", "1", 9)))}, pending: true,
		},
		"the last finalizer of what was followed by a new object": {record: []func(
			*freshness.Tracker){wrote(ended(pod("a", "1", 9)))}, cached: []*corev1.Pod{pod("a", "2", 12)}},
		"the last finalizer but for the grace period": {
			record: []func(*freshness.Tracker){func(t *freshness.Tracker) {
				p := ended(pod("a", "1", 10))
				*p.DeletionGracePeriodSeconds = 30
				t.Wrote(web, p)
			}}, cached: []*corev1.Pod{terminating(pod("a", "1", 10))},
		},
		"an object created anew under the name of a deleted one": {
			record: []func(*freshness.Tracker){deleted(pod("a", "1", 9)), created(pod("a", "2", 11))},
			cached: []*corev1.Pod{pod("a", "1", 9)}, pending: true, pendingWithoutStore: true,
		},
	}
	for name, tc := range tests {
		t.Run(name+"/with a store", func(t *testing.T) {
			store := newStore()
			for _, p := range tc.cached {
				require.NoError(t, store.Add(p))
			}
			if tc.reached != "" {
				store.Bookmark(tc.reached)
			}
			requirePending(t, informers{store: store}, tc.record, tc.pending)
		})
		t.Run(name+"/without a store", func(t *testing.T) {
			reader := fake.NewClientBuilder()
			for _, p := range tc.cached {
				reader = reader.WithObjects(p)
			}
			requirePending(t, reader.Build(), tc.record, tc.pendingWithoutStore)
		})
	}
}

func requirePending(t *testing.T, reader client.Reader, record []func(*freshness.Tracker), want bool) {
	t.Helper()
	clk := clocktesting.NewFakePassiveClock(start)
	tracker := freshness.New(reader, clk)
	for _, r := range record {
		r(tracker)
	}
	wait, err := tracker.Unobserved(t.Context(), web)
	require.NoError(t, err)
	require.Equal(t, want, wait > 0, "wait is %s", wait)

	wait, err = tracker.Unobserved(t.Context(), other)
	require.NoError(t, err)
	require.Zero(t, wait, "another owner does not wait")

	clk.SetTime(start.Add(freshness.GiveUpAfter))
	wait, err = tracker.Unobserved(t.Context(), web)
	require.NoError(t, err)
	require.Zero(t, wait, "no owner waits for ever")
}

func TestTheWaitGrowsWithTheAgeOfTheWriteWithinBounds(t *testing.T) {
	clk := clocktesting.NewFakePassiveClock(start)
	tracker := freshness.New(informers{store: newStore()}, clk)
	tracker.Created(web, pod("a", "1", 10))
	for age, want := range map[time.Duration]time.Duration{
		0:                      20 * time.Millisecond,
		300 * time.Millisecond: 300 * time.Millisecond,
		time.Minute:            time.Second,
	} {
		clk.SetTime(start.Add(age))
		wait, err := tracker.Unobserved(t.Context(), web)
		require.NoError(t, err)
		require.Equal(t, want, wait)
	}
}

func TestForgetEndsTheWait(t *testing.T) {
	tracker := freshness.New(informers{store: newStore()}, clock.RealClock{})
	tracker.Created(web, pod("a", "1", 10))
	for range 10 {
		tracker.Conflicts.Met(web)
	}
	tracker.Forget(web)
	wait, err := tracker.Unobserved(t.Context(), web)
	require.NoError(t, err)
	require.Zero(t, wait)
	require.LessOrEqual(t, tracker.Conflicts.Met(web), 50*time.Millisecond, "conflicts are forgotten, too")
}

func TestWhatTheCacheCannotAnswerIsAnError(t *testing.T) {
	broken := errors.New("the cache is not started")
	readers := map[string]client.Reader{
		"no informer": informers{err: broken},
		"no object": fake.NewClientBuilder().WithInterceptorFuncs(interceptor.Funcs{
			Get: func(context.Context, client.WithWatch, client.ObjectKey, client.Object, ...client.GetOption) error {
				return broken
			},
		}).Build(),
	}
	for name, reader := range readers {
		t.Run(name, func(t *testing.T) {
			tracker := freshness.New(reader, clock.RealClock{})
			tracker.Created(web, pod("a", "1", 10))
			_, err := tracker.Unobserved(t.Context(), web)
			require.ErrorIs(t, err, broken)
		})
	}
}

func TestKindsAreToldApart(t *testing.T) {
	tracker := freshness.New(fake.NewClientBuilder().WithObjects(pod("a", "1", 10)).Build(), clock.RealClock{})
	tracker.Created(web, &corev1.Service{ObjectMeta: pod("a", "1", 9).ObjectMeta})
	tracker.Created(web, pod("a", "1", 10))
	wait, err := tracker.Unobserved(t.Context(), web)
	require.NoError(t, err)
	require.Positive(t, wait, "the Service was not seen")
}

// Answers about Pods come as metadata or unstructured; the cache has Pods.
func TestAnAnswerOfAnyTypeIsForThePodInTheCache(t *testing.T) {
	metadata, whole := &metav1.PartialObjectMetadata{}, &unstructured.Unstructured{}
	for name, answer := range map[string]client.Object{"metadata": metadata, "unstructured": whole} {
		t.Run(name, func(t *testing.T) {
			answer.GetObjectKind().SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Pod"))
			answer.SetNamespace("default")
			answer.SetName("a")
			answer.SetUID("1")
			answer.SetResourceVersion("10")
			typed := fake.NewClientBuilder().WithObjects(pod("a", "1", 9)).WithInterceptorFuncs(interceptor.Funcs{
				Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, into client.Object,
					options ...client.GetOption) error {
					require.IsType(t, &corev1.Pod{}, into, "another type would start another cache")
					return c.Get(ctx, key, into, options...)
				},
			}).Build()
			tracker := freshness.New(typed, clock.RealClock{})
			tracker.Wrote(web, answer)
			wait, err := tracker.Unobserved(t.Context(), web)
			require.NoError(t, err)
			require.Positive(t, wait)
			tracker.Wrote(web, pod("a", "1", 9)) // of the same kind, and an earlier one
			wait, err = tracker.Unobserved(t.Context(), web)
			require.NoError(t, err)
			require.Positive(t, wait)
		})
	}
}

func TestAResourceVersionThatCannotBeComparedStopsNobody(t *testing.T) {
	store := newStore()
	p := pod("a", "1", 9)
	require.NoError(t, store.Add(p))
	tracker := freshness.New(informers{store: store}, clock.RealClock{})
	strange := p.DeepCopy()
	strange.ResourceVersion = "opaque"
	tracker.Wrote(web, strange)
	wait, err := tracker.Unobserved(t.Context(), web)
	require.NoError(t, err)
	require.Zero(t, wait)
}

// A history of one Pod set at the API server, of which the cache has seen a prefix: the tracker waits exactly while an
// own write lies beyond it.
func TestUnobservedHoldsExactlyWhileOwnWritesLieBeyondTheCache(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		type event struct {
			object *corev1.Pod
			gone   bool
			own    bool
		}
		store := newStore()
		tracker := freshness.New(informers{store: store}, clocktesting.NewFakePassiveClock(start))
		server := map[string]*corev1.Pod{}
		var history []event
		seen, rv := 0, 1
		before := map[int]*corev1.Pod{} // own deletions: index in history -> the object that was deleted

		t.Repeat(map[string]func(*rapid.T){
			"write": func(t *rapid.T) {
				name := rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "name")
				own := rapid.Bool().Draw(t, "own")
				rv += rapid.IntRange(1, 20).Draw(t, "gap")
				current := server[name]
				switch {
				case current == nil:
					p := pod(name, types.UID(strconv.Itoa(rv)), rv)
					server[name] = p
					history = append(history, event{object: p, own: own})
					if own {
						tracker.Created(web, p)
					}
				case rapid.Bool().Draw(t, "delete"):
					p := current.DeepCopy()
					p.ResourceVersion = strconv.Itoa(rv)
					delete(server, name)
					history = append(history, event{object: p, gone: true, own: own})
					if own {
						before[len(history)-1] = current
						if rapid.Bool().Draw(t, "by its last finalizer") {
							tracker.Wrote(web, ended(current))
						} else {
							tracker.Deleted(web, current)
						}
					}
				default:
					p := current.DeepCopy()
					p.ResourceVersion = strconv.Itoa(rv)
					server[name] = p
					history = append(history, event{object: p, own: own})
					if own {
						tracker.Wrote(web, p)
					}
				}
			},
			"watch": func(t *rapid.T) {
				if seen == len(history) {
					t.Skip("the cache is up to date")
				}
				e := history[seen]
				seen++
				if e.gone {
					require.NoError(t, store.Delete(e.object))
				} else {
					require.NoError(t, store.Update(e.object))
				}
			},
			"": func(t *rapid.T) {
				want := false
				for i, e := range history[seen:] {
					if !e.own {
						continue
					}
					if e.gone {
						deleted := before[seen+i]
						behind, err := resourceversion.CompareResourceVersion(store.LastStoreSyncResourceVersion(),
							deleted.ResourceVersion)
						require.NoError(t, err)
						cached, exists, err := store.Get(e.object)
						require.NoError(t, err)
						want = want || behind < 0 || (exists && cached.(*corev1.Pod).UID == deleted.UID)
						continue
					}
					want = true
				}
				wait, err := tracker.Unobserved(context.Background(), web)
				require.NoError(t, err)
				require.Equal(t, want, wait > 0, "seen %d of %d", seen, len(history))
			},
		})
	})
}

func TestWaitsAreMeasured(t *testing.T) {
	freshness.ForgetTrackers()
	clk, store := clocktesting.NewFakePassiveClock(time.Unix(1_700_000_000, 0)), newStore()
	tracker := freshness.New(informers{store: store}, clk)
	value := func(name string) float64 {
		registry := prometheus.NewRegistry()
		registry.MustRegister(freshness.Collectors()...)
		families, err := registry.Gather()
		require.NoError(t, err)
		for _, f := range families {
			if f.GetName() == name {
				return f.GetMetric()[0].GetCounter().GetValue() + f.GetMetric()[0].GetGauge().GetValue()
			}
		}
		return -1
	}
	const waits, oldest = "kuperator_stale_cache_waits_total", "kuperator_stale_cache_oldest_wait_seconds"
	unobserved := func() time.Duration {
		wait, err := tracker.Unobserved(t.Context(), web)
		require.NoError(t, err)
		return wait
	}
	before := value(waits)
	tracker.Wrote(web, pod("a", "1", 10))
	require.Zero(t, value(oldest), "nobody was put off yet")
	require.Positive(t, unobserved())
	clk.SetTime(clk.Now().Add(3 * time.Second))
	require.Positive(t, unobserved())
	require.InDelta(t, 3, value(oldest), 0)
	require.InDelta(t, 2, value(waits)-before, 0)
	store.Bookmark("10")
	require.Zero(t, unobserved())
	require.Zero(t, value(oldest))
	tracker.Wrote(web, pod("a", "1", 11))
	require.Positive(t, unobserved())
	clk.SetTime(clk.Now().Add(time.Second))
	tracker.Forget(web)
	require.Zero(t, value(oldest))
	for _, m := range freshness.Metrics() {
		require.NoError(t, m.Check())
	}
	runtime.KeepAlive(tracker)
}
