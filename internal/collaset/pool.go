package collaset

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
)

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
