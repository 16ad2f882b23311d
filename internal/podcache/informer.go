// Package podcache keeps Pods small in the cache of a controller. A Pod of Kubernetes' own Go type takes 1.3 KB
// whatever it holds; here it takes what names it and what it alone has. Readers and event handlers get Pods of the
// usual type, made when they ask.
package podcache

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	toolscache "k8s.io/client-go/tools/cache"
)

// NewInformer is for cache.Options: informers of Pods keep them small, others are client-go's own. It pays where a
// transform has left little of a Pod's spec and status, and where few Pods are read at a time or a Memo remembers
// what was read: each read of a Pod costs an allocation and, if its status is its own, the decoding of that.
func NewInformer(
	lw toolscache.ListerWatcher, example runtime.Object, resync time.Duration, indexers toolscache.Indexers,
) toolscache.SharedIndexInformer {
	if _, ok := example.(*corev1.Pod); !ok {
		return toolscache.NewSharedIndexInformer(lw, example, resync, indexers)
	}
	i := &informer{toolscache.NewSharedIndexInformer(lw, example, resync, wholeBeforeIndexing(indexers))}
	if err := i.SetTransform(func(o any) (any, error) { return o, nil }); err != nil {
		panic(err) // cannot be: it was not started
	}
	return i
}

// informer holds small Pods, and shows whole ones.
type informer struct {
	toolscache.SharedIndexInformer
}

// SetTransform is part of SharedInformer.
func (i *informer) SetTransform(transform toolscache.TransformFunc) error {
	return i.SharedIndexInformer.SetTransform(func(o any) (any, error) {
		if _, done := o.(*small); done { // client-go may transform an object twice
			return o, nil
		}
		if transform != nil {
			var err error
			if o, err = transform(o); err != nil {
				return nil, err
			}
		}
		if pod, ok := o.(*corev1.Pod); ok {
			return shrink(pod), nil
		}
		return o, nil
	})
}

// GetStore is part of SharedInformer.
func (i *informer) GetStore() toolscache.Store { return i.GetIndexer() }

// GetIndexer is part of SharedIndexInformer.
func (i *informer) GetIndexer() toolscache.Indexer {
	return indexer{i.SharedIndexInformer.GetIndexer()}
}

// AddIndexers is part of SharedIndexInformer.
func (i *informer) AddIndexers(indexers toolscache.Indexers) error {
	return i.SharedIndexInformer.AddIndexers(wholeBeforeIndexing(indexers))
}

// AddEventHandler is part of SharedInformer.
func (i *informer) AddEventHandler(
	h toolscache.ResourceEventHandler,
) (toolscache.ResourceEventHandlerRegistration, error) {
	return i.SharedIndexInformer.AddEventHandler(handler{h})
}

// AddEventHandlerWithResyncPeriod is part of SharedInformer.
func (i *informer) AddEventHandlerWithResyncPeriod(
	h toolscache.ResourceEventHandler, resync time.Duration,
) (toolscache.ResourceEventHandlerRegistration, error) {
	return i.SharedIndexInformer.AddEventHandlerWithResyncPeriod(handler{h}, resync)
}

// AddEventHandlerWithOptions is part of SharedInformer.
func (i *informer) AddEventHandlerWithOptions(
	h toolscache.ResourceEventHandler, options toolscache.HandlerOptions,
) (toolscache.ResourceEventHandlerRegistration, error) {
	return i.SharedIndexInformer.AddEventHandlerWithOptions(handler{h}, options)
}

// wholeBeforeIndexing lets index functions see whole Pods; the one by namespace needs none.
func wholeBeforeIndexing(indexers toolscache.Indexers) toolscache.Indexers {
	wrapped := make(toolscache.Indexers, len(indexers))
	for name, values := range indexers {
		wrapped[name] = values
		if name != toolscache.NamespaceIndex {
			wrapped[name] = func(o any) ([]string, error) { return values(whole(o)) }
		}
	}
	return wrapped
}

// whole returns what readers and handlers get for what is kept.
func whole(o any) any {
	switch o := o.(type) {
	case *small:
		return o.whole()
	case toolscache.DeletedFinalStateUnknown:
		return toolscache.DeletedFinalStateUnknown{Key: o.Key, Obj: whole(o.Obj)}
	}
	return o
}

// handler hands on whole Pods.
type handler struct {
	to toolscache.ResourceEventHandler
}

// OnAdd is part of ResourceEventHandler.
func (h handler) OnAdd(o any, initial bool) { h.to.OnAdd(whole(o), initial) }

// OnUpdate is part of ResourceEventHandler.
func (h handler) OnUpdate(before, after any) { h.to.OnUpdate(whole(before), whole(after)) }

// OnDelete is part of ResourceEventHandler.
func (h handler) OnDelete(o any) { h.to.OnDelete(whole(o)) }

// indexer reads whole Pods from a store of small ones.
type indexer struct {
	toolscache.Indexer
}

// List is part of Store.
func (i indexer) List() []any { return allWhole(i.Indexer.List()) }

// Get is part of Store.
func (i indexer) Get(o any) (any, bool, error) {
	found, exists, err := i.Indexer.Get(o)
	return whole(found), exists, err
}

// GetByKey is part of Store.
func (i indexer) GetByKey(key string) (any, bool, error) {
	found, exists, err := i.Indexer.GetByKey(key)
	return whole(found), exists, err
}

// Index is part of Indexer.
func (i indexer) Index(name string, o any) ([]any, error) {
	found, err := i.Indexer.Index(name, o)
	return allWhole(found), err
}

// ByIndex is part of Indexer.
func (i indexer) ByIndex(name, value string) ([]any, error) {
	found, err := i.Indexer.ByIndex(name, value)
	return allWhole(found), err
}

// allWhole makes many Pods in one piece of memory, in the slice that it was given.
func allWhole(kept []any) []any {
	pods := make([]corev1.Pod, len(kept))
	for i, o := range kept {
		if s, ok := o.(*small); ok {
			s.into(&pods[i])
			kept[i] = &pods[i]
		}
	}
	return kept
}
