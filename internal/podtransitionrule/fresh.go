package podtransitionrule

import (
	"context"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
)

// Waits for a cache that is behind, and the age at which what it is compared with is read again: an object that was
// deleted since would never come.
const (
	lookAgain = 25 * time.Millisecond
	readAgain = time.Second
)

// baseline is a namespace as the API server had it after this process won its Lease: the resourceVersion of every Pod
// and rule. Caches were started before and may lag behind what the leader before us has done; they may be decided on
// when they show all of it.
type baseline struct {
	at    time.Time
	pods  versions
	rules versions
}

type versions struct {
	list string // of the list itself
	of   map[types.UID]string
}

// readBaseline reads past the cache.
func readBaseline(ctx context.Context, direct client.Reader, namespace string, now time.Time) (*baseline, error) {
	b := &baseline{at: now}
	for kind, into := range map[schema.GroupVersionKind]*versions{
		{Version: "v1", Kind: "PodList"}:                                  &b.pods,
		appsv1alpha1.SchemeGroupVersion.WithKind("PodTransitionRuleList"): &b.rules,
	} {
		var list metav1.PartialObjectMetadataList
		list.SetGroupVersionKind(kind)
		if err := direct.List(ctx, &list, client.InNamespace(namespace)); err != nil {
			return nil, fmt.Errorf("reading the %s afresh: %w", kind.Kind, err)
		}
		into.list, into.of = list.ResourceVersion, make(map[types.UID]string, len(list.Items))
		for i := range list.Items {
			into.of[list.Items[i].UID] = list.Items[i].ResourceVersion
		}
	}
	return b, nil
}

// shownBy says whether the cache has come at least as far.
func (b *baseline) shownBy(o observed) bool {
	return shown(b.pods, o.pods) && shown(b.rules, o.rules)
}

func shown[T client.Object](fresh versions, cached []T) bool {
	found := 0
	for _, o := range cached {
		version, listed := fresh.of[o.GetUID()]
		if !listed {
			version = fresh.list // only an object that was created since is not in the list
		} else {
			found++
		}
		order, err := resourceversion.CompareResourceVersion(o.GetResourceVersion(), version)
		if err != nil || order < 0 {
			return false
		}
	}
	return found == len(fresh.of)
}
