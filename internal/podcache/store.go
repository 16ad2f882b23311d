package podcache

import (
	"errors"
	"fmt"
	"iter"
	"maps"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
)

// newInformer is what cache.Options call NewInformer.
type newInformer = func(toolscache.ListerWatcher, runtime.Object, time.Duration,
	toolscache.Indexers) toolscache.SharedIndexInformer

// Store reads Pods where the informers of a cache keep them. A list from the cache of controller-runtime copies each
// Pod into its items, which is most of what it costs to look at thousands of them. The zero Store has no informers;
// make one with NewStore.
type Store struct {
	indexers toolscache.Indexers

	mu        sync.RWMutex
	informers []toolscache.SharedIndexInformer // one, or one for each namespace that the cache is limited to
}

// NewStore makes a Store whose informers have these indexes beside the cache's own; nil for none.
func NewStore(indexers toolscache.Indexers) *Store {
	return &Store{indexers: indexers}
}

// NewInformer is for cache.Options: informers are made by of, and the Store remembers those of Pods.
func (s *Store) NewInformer(of newInformer) newInformer {
	return func(lw toolscache.ListerWatcher, example runtime.Object, resync time.Duration,
		indexers toolscache.Indexers) toolscache.SharedIndexInformer {
		if _, ok := example.(*corev1.Pod); !ok {
			return of(lw, example, resync, indexers)
		}
		all := maps.Clone(s.indexers)
		if all == nil {
			all = toolscache.Indexers{}
		}
		maps.Copy(all, indexers)
		made := of(lw, example, resync, all)
		s.mu.Lock()
		defer s.mu.Unlock()
		s.informers = append(s.informers, made)
		return made
	}
}

// ByIndex returns the Pods with this value in this index. It is an error if there is no such index, and while the
// informers are missing or filling: some Pods are not all.
func (s *Store) ByIndex(index, value string) (Pods, error) {
	var all Pods
	err := s.each(func(pods toolscache.Indexer) error {
		found, err := pods.ByIndex(index, value)
		if all.kept == nil {
			all.kept = found // made for this call
		} else {
			all.kept = append(all.kept, found...)
		}
		return err
	})
	if err != nil {
		return Pods{}, fmt.Errorf("reading Pods by %s: %w", index, err)
	}
	return all, nil
}

// Get returns the Pod of a name, or no Pods if there is none. It is an error while the informers are missing or
// filling.
func (s *Store) Get(name types.NamespacedName) (Pods, error) {
	var one Pods
	err := s.each(func(pods toolscache.Indexer) error {
		found, exists, err := pods.GetByKey(name.String())
		if exists {
			one.kept = []any{found}
		}
		return err
	})
	if err != nil {
		return Pods{}, fmt.Errorf("reading Pod %s: %w", name, err)
	}
	return one, nil
}

// each reads from all informers, Pods as they are kept.
func (s *Store) each(read func(toolscache.Indexer) error) error {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if len(s.informers) == 0 {
		return errors.New("they are not watched yet")
	}
	for _, i := range s.informers {
		if !i.HasSynced() {
			return errors.New("they are still being listed")
		}
		if ours, ok := i.(*informer); ok {
			i = ours.SharedIndexInformer
		}
		if err := read(i.GetIndexer()); err != nil {
			return err
		}
	}
	return nil
}

// Pods are Pods of a cache, in no order. What they are and point to is the cache's own and must not be changed. The
// zero Pods are none.
type Pods struct {
	kept []any // each a *small or a *corev1.Pod, which is another one when the Pod has changed
}

// Of are these Pods as a cache keeps them.
func Of(pods []corev1.Pod) Pods {
	kept := make([]any, len(pods))
	for i := range pods {
		kept[i] = shrink(&pods[i])
	}
	return Pods{kept: kept}
}

// Len is how many there are.
func (p Pods) Len() int { return len(p.kept) }

// At returns one of the Pods, counted from 0. It takes the memory of one that is kept small; another is the cache's.
func (p Pods) At(i int) *corev1.Pod { return p.look(i, &corev1.Pod{}) }

// All are the Pods, one after the other: each is good until the next one, only what it points to may be kept. Those
// that are kept small take no memory for being looked at.
func (p Pods) All() iter.Seq[*corev1.Pod] {
	return func(yield func(*corev1.Pod) bool) {
		var whole corev1.Pod
		for i := range p.kept {
			if !yield(p.look(i, &whole)) {
				return
			}
		}
	}
}

// look returns a Pod, one that is kept small at this place.
func (p Pods) look(i int, whole *corev1.Pod) *corev1.Pod {
	if s, kept := p.kept[i].(*small); kept {
		s.into(whole)
		return whole
	}
	pod, _ := p.kept[i].(*corev1.Pod)
	return pod
}
