package collaset

import (
	"context"
	"errors"
	"fmt"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/internal/freshness"
)

// pools keep CollaSets that share a ResourceContext from writing it at once, or on the base of an older one than this
// process wrote last for another of them: each waits only for the cache to show what it wrote itself, and would be
// refused.
//
// The zero value is ready for use.
type pools struct {
	mu  sync.Mutex
	all map[types.NamespacedName]*pool
}

type pool struct {
	mu      sync.Mutex
	version string // that was written last, "" for none
}

func (p *pools) of(key types.NamespacedName) *pool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.all == nil {
		p.all = map[types.NamespacedName]*pool{}
	}
	if p.all[key] == nil {
		p.all[key] = &pool{}
	}
	return p.all[key]
}

func (p *pools) forget(key types.NamespacedName) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.all, key)
}

// write calls do, which writes what was read as base and returns what the API server answered, nil for a deletion. base
// is nil for what does not exist. A base older than what was written last is a conflict, unless newest reports that it
// is what the API server has: then that write was undone, as by a restored etcd.
func (p *pool) write(
	base *appsv1alpha1.ResourceContext, newest func() (version string, err error),
	do func() (*appsv1alpha1.ResourceContext, error),
) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if base != nil && freshness.Newer(p.version, base.ResourceVersion) {
		version, err := newest()
		if err != nil {
			return err
		}
		if version != base.ResourceVersion {
			return apierrors.NewConflict(schema.GroupResource{Group: appsv1alpha1.SchemeGroupVersion.Group,
				Resource: "resourcecontexts"}, base.Name,
				errors.New("another CollaSet has just written it"))
		}
	}
	written, err := do()
	if err == nil && written != nil {
		p.version = written.ResourceVersion
	}
	return err
}

// newestEntries is the resourceVersion of a ResourceContext at the API server, "" if there is none.
func (s *server) newestEntries(ctx context.Context, key types.NamespacedName) (version string, err error) {
	entries := &metav1.PartialObjectMetadata{}
	entries.SetGroupVersionKind(appsv1alpha1.SchemeGroupVersion.WithKind(appsv1alpha1.ResourceContextKind))
	if err := client.IgnoreNotFound(s.live.Get(ctx, key, entries)); err != nil {
		return "", fmt.Errorf("reading the ResourceContext afresh: %w", err)
	}
	return entries.ResourceVersion, nil
}

// poolIndex is the cache index of CollaSets by the name of their ResourceContext.
const poolIndex = "collaset.pool"

func poolOf(object client.Object) []string {
	if set, ok := object.(*appsv1alpha1.CollaSet); ok {
		return []string{contextName(set)}
	}
	return nil
}

// usersOf are the CollaSets that take their instance IDs from a ResourceContext.
func (l listener) usersOf(ctx context.Context, object client.Object) []reconcile.Request {
	if _, ok := object.(*appsv1alpha1.ResourceContext); !ok {
		return nil
	}
	return l.setsBy(ctx, object.GetNamespace(), poolIndex, object.GetName())
}

// observeOwners finds out which other owners of entries do not exist or use another ResourceContext, so that their
// entries are free. What the cache says is confirmed at the API server: an entry may be newer than the cache of
// CollaSets.
func observeOwners(ctx context.Context, cached, live client.Reader, o *observation) error {
	if o.snapshot.Deleting {
		return nil
	}
	known := map[string]bool{o.set.Name: true, "": true}
	for _, e := range o.snapshot.Entries {
		owner := e.Data[appsv1alpha1.ContextOwner]
		if known[owner] {
			continue
		}
		known[owner] = true
		stale := true
		for _, reader := range []client.Reader{cached, live} {
			if !stale {
				break
			}
			set := &appsv1alpha1.CollaSet{}
			err := reader.Get(ctx, types.NamespacedName{Namespace: o.set.Namespace, Name: owner}, set)
			if client.IgnoreNotFound(err) != nil {
				return fmt.Errorf("looking for CollaSet %s, which has entries in the ResourceContext: %w", owner, err)
			}
			stale = apierrors.IsNotFound(err) || contextName(set) != contextName(o.set)
		}
		if stale {
			if o.snapshot.StaleOwners == nil {
				o.snapshot.StaleOwners = map[string]bool{}
			}
			o.snapshot.StaleOwners[owner] = true
		}
	}
	return nil
}
