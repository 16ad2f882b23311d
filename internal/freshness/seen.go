package freshness

import (
	"context"
	"fmt"
	"reflect"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// target is an object that was written. One entry per object is enough: its last write is seen after all earlier ones.
type target struct {
	goType reflect.Type // a pointer; it tells the kind
	key    types.NamespacedName
}

// targetOf finds Pods as such, whatever Go type an answer has: a cache of another type would be a second one.
func targetOf(obj client.Object) target {
	key := client.ObjectKeyFromObject(obj)
	if obj.GetObjectKind().GroupVersionKind() == corev1.SchemeGroupVersion.WithKind("Pod") {
		obj = &corev1.Pod{}
	}
	return target{goType: reflect.TypeOf(obj), key: key}
}

// empty is an object of the target's kind.
func (t target) empty() client.Object {
	return reflect.New(t.goType.Elem()).Interface().(client.Object) //nolint:forcetypeassert // it has an object's type
}

// write is what was last written to one object.
type write struct {
	uid     types.UID
	rv      string // of the last write; for a deletion, of the object that was deleted
	created bool   // the creation was recorded and not yet seen
	deleted bool
	ended   bool // the object ended with this write
	at      time.Time
}

// followedBy joins two writes of the same object that were recorded in this order. Answers may be recorded out of
// order: the later resourceVersion counts, and nothing comes after a deletion.
func (w write) followedBy(next write) write {
	if Newer(w.rv, next.rv) {
		next.rv = w.rv
	}
	next.created = next.created || w.created
	next.deleted = next.deleted || w.deleted
	next.ended = next.ended || w.ended
	return next
}

// ended reports whether the API server, as it answered obj to an update, has removed it: it does with the last
// finalizer of an object that is to be deleted without a grace period, or after it.
func ended(obj metav1.Object) bool {
	grace := obj.GetDeletionGracePeriodSeconds()
	return obj.GetDeletionTimestamp() != nil && len(obj.GetFinalizers()) == 0 && (grace == nil || *grace == 0)
}

// seen applies the rules of the package comment.
func (t *Tracker) seen(ctx context.Context, which target, w write, now time.Time) (bool, error) {
	if now.Sub(w.at) >= GiveUpAfter {
		return true, nil
	}
	store, err := t.store(ctx, which)
	if err != nil {
		return false, err
	}
	reached := ""
	if store != nil {
		reached = store.LastStoreSyncResourceVersion()
	}
	object, err := t.lookup(ctx, store, which)
	if err != nil {
		return false, err
	}
	if object != nil && object.GetUID() == w.uid && (w.ended || w.deleted && object.GetDeletionTimestamp() == nil) {
		return false, nil
	}
	switch {
	case object != nil && !Newer(w.rv, object.GetResourceVersion()):
		return true, nil
	case reached != "":
		return !Newer(w.rv, reached), nil
	default:
		return object == nil && !w.created, nil
	}
}

// store is the informer's own store of the target's kind, or nil when the reader is no cache or has one store a namespace.
func (t *Tracker) store(ctx context.Context, which target) (toolscache.Store, error) {
	informers, ok := t.cached.(cache.Informers)
	if !ok {
		return nil, nil
	}
	informer, err := informers.GetInformer(ctx, which.empty(), cache.BlockUntilSynced(false))
	if err != nil {
		return nil, err
	}
	if holder, ok := informer.(interface{ GetStore() toolscache.Store }); ok {
		return holder.GetStore(), nil
	}
	return nil, nil
}

// lookup is the object as the cache shows it, or nil. It may be the cache's own copy and must not be changed.
func (t *Tracker) lookup(ctx context.Context, store toolscache.Store, which target) (client.Object, error) {
	if store == nil {
		object := which.empty()
		if err := t.cached.Get(ctx, which.key, object); err != nil {
			return nil, client.IgnoreNotFound(err)
		}
		return object, nil
	}
	found, exists, err := store.GetByKey(toolscache.NewObjectName(which.key.Namespace, which.key.Name).String())
	if err != nil || !exists {
		return nil, err
	}
	object, ok := found.(client.Object)
	if !ok {
		return nil, fmt.Errorf("the cache holds a %T", found)
	}
	return object, nil
}

// Newer reports whether resourceVersion a is later than b. What cannot be compared is not newer.
func Newer(a, b string) bool {
	order, err := resourceversion.CompareResourceVersion(a, b)
	return err == nil && order > 0
}
