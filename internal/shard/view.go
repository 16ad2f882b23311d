package shard

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
)

// Cache is a process's one cache, of which every shard has a view. Make one with NewCache.
type Cache struct {
	cached cache.Cache
	scheme *runtime.Scheme

	mu      sync.Mutex
	indexed map[string]bool
}

// NewCache makes views of a cache possible. The caller starts it.
func NewCache(cached cache.Cache, scheme *runtime.Scheme) *Cache {
	return &Cache{cached: cached, scheme: scheme, indexed: map[string]bool{}}
}

// indexOnce adds an index unless a view did so before: all views of a component index alike.
func (c *Cache) indexOnce(ctx context.Context, object client.Object, field string, values client.IndexerFunc) error {
	gvk, err := apiutil.GVKForObject(object, c.scheme)
	if err != nil {
		return err
	}
	key := fmt.Sprintf("%s %T %s", gvk, object, field)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.indexed[key] {
		return nil
	}
	if err := c.cached.IndexField(ctx, object, field, values); err != nil {
		return err
	}
	c.indexed[key] = true
	return nil
}

// View is a cache that shows the objects of some namespaces, and of Namespaces those themselves and always. Other
// objects without a namespace it shows all. It is filled by the Cache behind it and ends with the context of Start:
// handlers get no event after that.
type View struct {
	scope
	behind *Cache

	mu       sync.Mutex
	handlers []func() // each takes a handler off
	ended    bool
}

var _ cache.Cache = &View{}

// View makes a view. shows is called often and from many goroutines; always is a Namespace that is shown whether or
// not its objects are.
func (c *Cache) View(shows func(namespace string) bool, always string) *View {
	return &View{
		scope:  scope{reader: c.cached, scheme: c.scheme, shows: shows, always: always},
		behind: c,
	}
}

// Reader limits a reader of the API server as the view is.
func (v *View) Reader(direct client.Reader) client.Reader {
	limited := v.scope
	limited.reader = direct
	return &limited
}

// Start is part of cache.Cache: the cache behind it is started by the caller of NewCache.
func (v *View) Start(ctx context.Context) error {
	<-ctx.Done()
	v.mu.Lock()
	defer v.mu.Unlock()
	v.ended = true
	for _, remove := range v.handlers {
		remove()
	}
	v.handlers = nil
	return nil
}

// WaitForCacheSync is part of cache.Cache.
func (v *View) WaitForCacheSync(ctx context.Context) bool {
	return v.behind.cached.WaitForCacheSync(ctx)
}

// IndexField is part of cache.Cache.
func (v *View) IndexField(ctx context.Context, object client.Object, field string, values client.IndexerFunc) error {
	return v.behind.indexOnce(ctx, object, field, values)
}

// RemoveInformer is part of cache.Cache: other views go on using the informer.
func (v *View) RemoveInformer(context.Context, client.Object) error { return nil }

// GetInformer is part of cache.Cache.
func (v *View) GetInformer(
	ctx context.Context, object client.Object, options ...cache.InformerGetOption,
) (cache.Informer, error) {
	gvk, err := apiutil.GVKForObject(object, v.scheme)
	if err != nil {
		return nil, err
	}
	found, err := v.behind.cached.GetInformer(ctx, object, options...)
	if err != nil {
		return nil, err
	}
	return v.informer(gvk, found), nil
}

// GetInformerForKind is part of cache.Cache.
func (v *View) GetInformerForKind(
	ctx context.Context, gvk schema.GroupVersionKind, options ...cache.InformerGetOption,
) (cache.Informer, error) {
	found, err := v.behind.cached.GetInformerForKind(ctx, gvk, options...)
	if err != nil {
		return nil, err
	}
	return v.informer(gvk, found), nil
}

func (v *View) informer(gvk schema.GroupVersionKind, behind cache.Informer) cache.Informer {
	limited := informer{Informer: behind, view: v, gvk: gvk}
	whole, ok := behind.(interface{ GetIndexer() toolscache.Indexer })
	if !ok { // one that consists of several has no store
		return limited
	}
	return stored{informer: limited, store: whole.GetIndexer()}
}

// informer hands on events of what the view shows.
type informer struct {
	cache.Informer
	view *View
	gvk  schema.GroupVersionKind
}

// stored is an informer that can say how far it has got: by the store of all objects.
type stored struct {
	informer
	store toolscache.Store
}

// GetStore is what client-go's informers have. It holds what the view does not show, too.
func (s stored) GetStore() toolscache.Store { return s.store }

func (i informer) limited(handler toolscache.ResourceEventHandler) toolscache.ResourceEventHandler {
	return toolscache.FilteringResourceEventHandler{FilterFunc: i.shown, Handler: handler}
}

// shown reports whether the view shows an object that came with an event.
func (i informer) shown(object any) bool {
	if gone, ok := object.(toolscache.DeletedFinalStateUnknown); ok {
		object = gone.Obj
	}
	accessor, err := meta.Accessor(object)
	return err == nil && i.view.shown(i.gvk, accessor.GetNamespace(), accessor.GetName())
}

// added remembers a handler, to take it off when the view ends.
func (i informer) added(
	registration toolscache.ResourceEventHandlerRegistration, err error,
) (toolscache.ResourceEventHandlerRegistration, error) {
	if err != nil {
		return nil, err
	}
	remove := func() { _ = i.RemoveEventHandler(registration) }
	i.view.mu.Lock()
	defer i.view.mu.Unlock()
	if i.view.ended {
		remove()
		return nil, errors.New("the shard has been given up")
	}
	i.view.handlers = append(i.view.handlers, remove)
	return registration, nil
}

// AddEventHandler is part of cache.Informer.
func (i informer) AddEventHandler(
	handler toolscache.ResourceEventHandler,
) (toolscache.ResourceEventHandlerRegistration, error) {
	return i.added(i.Informer.AddEventHandler(i.limited(handler)))
}

// AddEventHandlerWithResyncPeriod is part of cache.Informer.
func (i informer) AddEventHandlerWithResyncPeriod(
	handler toolscache.ResourceEventHandler, resync time.Duration,
) (toolscache.ResourceEventHandlerRegistration, error) {
	return i.added(i.Informer.AddEventHandlerWithResyncPeriod(i.limited(handler), resync))
}

// AddEventHandlerWithOptions is part of cache.Informer.
func (i informer) AddEventHandlerWithOptions(
	handler toolscache.ResourceEventHandler, options toolscache.HandlerOptions,
) (toolscache.ResourceEventHandlerRegistration, error) {
	return i.added(i.Informer.AddEventHandlerWithOptions(i.limited(handler), options))
}

// scope limits a reader to some namespaces.
type scope struct {
	reader client.Reader
	scheme *runtime.Scheme
	shows  func(namespace string) bool
	always string
}

var namespaceKind = corev1.SchemeGroupVersion.WithKind("Namespace").GroupKind()

// shown reports whether an object is one of those that are shown.
func (s *scope) shown(gvk schema.GroupVersionKind, namespace, name string) bool {
	switch {
	case gvk.GroupKind() == namespaceKind:
		return name == s.always || s.shows(name)
	case namespace == "":
		return true
	}
	return s.shows(namespace)
}

// Get is part of client.Reader. What is not shown is not found.
func (s *scope) Get(ctx context.Context, key client.ObjectKey, into client.Object, options ...client.GetOption) error {
	gvk, err := apiutil.GVKForObject(into, s.scheme)
	if err != nil {
		return err
	}
	if !s.shown(gvk, key.Namespace, key.Name) {
		return apierrors.NewNotFound(schema.GroupResource{Group: gvk.Group, Resource: gvk.Kind}, key.Name)
	}
	return s.reader.Get(ctx, key, into, options...)
}

// List is part of client.Reader. It leaves out what is not shown.
func (s *scope) List(ctx context.Context, into client.ObjectList, options ...client.ListOption) error {
	gvk, err := apiutil.GVKForObject(into, s.scheme)
	if err != nil {
		return err
	}
	gvk.Kind = gvk.Kind[:max(0, len(gvk.Kind)-len("List"))]
	var asked client.ListOptions
	asked.ApplyOptions(options)
	if asked.Namespace != "" && !s.shows(asked.Namespace) {
		into.SetContinue("")
		return meta.SetList(into, nil)
	}
	if err := s.reader.List(ctx, into, options...); err != nil || asked.Namespace != "" {
		return err
	}
	all, err := meta.ExtractList(into)
	if err != nil {
		return err
	}
	shown := slices.DeleteFunc(all, func(o runtime.Object) bool {
		accessor, err := meta.Accessor(o)
		return err != nil || !s.shown(gvk, accessor.GetNamespace(), accessor.GetName())
	})
	if len(shown) == len(all) {
		return nil
	}
	return meta.SetList(into, shown)
}
