// Package podcache keeps Pods packed in the cache of a controller: a Pod of Kubernetes' own Go type takes 1.3 KB,
// whatever it holds. The informer's transform packs each Pod once, into what it has in common with others and what it
// alone has. Readers of the cache, index functions and event handlers get Pods of the usual type: one is made when it
// is first asked for, and all get the same one until it is garbage. A Store reads packed Pods, for decisions about
// thousands of them, and a Memo reads each only once for the record that is decided on.
package podcache

import (
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"
)

// Store is the Pods of a cache, whose informers it makes.
type Store struct {
	Indexers cache.Indexers // beside the cache's own

	mu        sync.Mutex
	informers []*informer // one, or one for each namespace that the cache is limited to
}

// NewInformer is for cache.Options: informers of Pods keep them packed, others are client-go's own.
func (s *Store) NewInformer(
	lw cache.ListerWatcher, example runtime.Object, resync time.Duration, indexers cache.Indexers,
) cache.SharedIndexInformer {
	if _, ok := example.(*corev1.Pod); !ok {
		return cache.NewSharedIndexInformer(lw, example, resync, indexers)
	}
	all := ofWhole(s.Indexers)
	maps.Copy(all, ofWhole(indexers))
	made := &informer{cache.NewSharedIndexInformer(lw, example, resync, all), newWorkloads()}
	utilruntime.Must(made.SetTransform(nil)) // an error only once it was started
	s.mu.Lock()
	defer s.mu.Unlock()
	s.informers = append(s.informers, made)
	return made
}

// ByIndex returns the Pods with this value in this index, in no order. It is an error if there is no such index, and
// while the informers are missing or filling: some Pods are not all.
func (s *Store) ByIndex(index, value string) ([]*Pod, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.informers) == 0 {
		return nil, errors.New("reading Pods: they are not watched yet")
	}
	var pods []*Pod
	for _, i := range s.informers {
		if !i.HasSynced() {
			return nil, errors.New("reading Pods: they are still being listed")
		}
		found, err := i.SharedIndexInformer.GetIndexer().ByIndex(index, value)
		if err != nil {
			return nil, fmt.Errorf("reading Pods by %s: %w", index, err)
		}
		for _, o := range found {
			pods = append(pods, o.(*Pod)) //nolint:forcetypeassert // the transform makes nothing else
		}
	}
	return pods, nil
}

// informer keeps packed Pods, and shows whole ones.
type informer struct {
	cache.SharedIndexInformer
	workloads *workloads
}

func (i *informer) SetTransform(transform cache.TransformFunc) error {
	return i.SharedIndexInformer.SetTransform(func(o any) (any, error) {
		var err error
		if _, packed := o.(*Pod); !packed && transform != nil { // client-go may transform an object twice
			o, err = transform(o)
		}
		if pod, ok := o.(*corev1.Pod); ok && err == nil {
			return i.workloads.pack(pod), nil
		}
		return o, err
	})
}

func (i *informer) GetStore() cache.Store     { return i.GetIndexer() }
func (i *informer) GetIndexer() cache.Indexer { return indexer{i.SharedIndexInformer.GetIndexer()} }

func (i *informer) AddIndexers(indexers cache.Indexers) error {
	return i.SharedIndexInformer.AddIndexers(ofWhole(indexers))
}

type (
	eventHandler = cache.ResourceEventHandler
	registration = cache.ResourceEventHandlerRegistration
)

func (i *informer) AddEventHandler(h eventHandler) (registration, error) {
	return i.SharedIndexInformer.AddEventHandler(handler{h})
}

func (i *informer) AddEventHandlerWithResyncPeriod(h eventHandler, d time.Duration) (registration, error) {
	return i.SharedIndexInformer.AddEventHandlerWithResyncPeriod(handler{h}, d)
}

func (i *informer) AddEventHandlerWithOptions(h eventHandler, o cache.HandlerOptions) (registration, error) {
	return i.SharedIndexInformer.AddEventHandlerWithOptions(handler{h}, o)
}

// ofWhole lets index functions see whole Pods.
func ofWhole(indexers cache.Indexers) cache.Indexers {
	wrapped := make(cache.Indexers, len(indexers))
	for name, values := range indexers {
		wrapped[name] = func(o any) ([]string, error) { return values(whole(o)) }
	}
	return wrapped
}

// handler hands on whole Pods.
type handler struct{ to eventHandler }

func (h handler) OnAdd(o any, initial bool)  { h.to.OnAdd(whole(o), initial) }
func (h handler) OnUpdate(before, after any) { h.to.OnUpdate(whole(before), whole(after)) }
func (h handler) OnDelete(o any)             { h.to.OnDelete(whole(o)) }

// indexer reads whole Pods from one of packed ones.
type indexer struct{ cache.Indexer }

func (i indexer) List() []any                             { return many(i.Indexer.List()) }
func (i indexer) Get(o any) (any, bool, error)            { return one(i.Indexer.Get(o)) }
func (i indexer) GetByKey(key string) (any, bool, error)  { return one(i.Indexer.GetByKey(key)) }
func (i indexer) Index(name string, o any) ([]any, error) { return found(i.Indexer.Index(name, o)) }
func (i indexer) ByIndex(name, v string) ([]any, error)   { return found(i.Indexer.ByIndex(name, v)) }

func one(o any, exists bool, err error) (any, bool, error) { return whole(o), exists, err }
func found(kept []any, err error) ([]any, error)           { return many(kept), err }
func many(kept []any) []any {
	for i, o := range kept {
		kept[i] = whole(o)
	}
	return kept
}

// whole returns what readers and handlers get for what is kept.
func whole(o any) any {
	switch o := o.(type) {
	case *Pod:
		return o.Whole()
	case cache.DeletedFinalStateUnknown:
		return cache.DeletedFinalStateUnknown{Key: o.Key, Obj: whole(o.Obj)}
	}
	return o
}

// memoTime is how long a Memo remembers after it was last asked: through all of an operation on Pods, and not much
// longer, because records take more memory than packed Pods.
const memoTime = 10 * time.Second

// Memo remembers what was read of Pods for the last decision, so that for the next one only those are read that have
// changed: to unpack all takes several times what a decision takes. The zero Memo remembers nothing. It must not be
// copied.
type Memo[T any] struct {
	mu     sync.Mutex
	known  map[*Pod]*T
	expiry clock.Timer
}

// Read returns the records of the Pods, in their order. read is called for those that were not among the last Read's,
// or have changed since. gone are the last Read's records of Pods that have changed since or are not among these any
// more; it is not complete if that Read is not remembered.
func (m *Memo[T]) Read(pods []*Pod, read func(*corev1.Pod) T) (all, gone []T, remembered bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.expiry == nil {
		m.expiry = clock.RealClock{}.AfterFunc(memoTime, m.Forget)
	}
	m.expiry.Reset(memoTime)
	known := make(map[*Pod]*T, len(pods))
	all = make([]T, len(pods))
	for i, pod := range pods {
		record := m.known[pod]
		if record == nil {
			made := read(pod.Whole())
			record = &made
		}
		all[i], known[pod] = *record, record
	}
	for pod, record := range m.known {
		if known[pod] == nil {
			gone = append(gone, *record)
		}
	}
	remembered, m.known = m.known != nil, known
	return all, gone, remembered
}

// Forget gives the memory back.
func (m *Memo[T]) Forget() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.known = nil
}
