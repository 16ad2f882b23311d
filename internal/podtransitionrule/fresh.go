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
	"kusionstack.io/kuperator/internal/livelist"
	"kusionstack.io/kuperator/internal/podtransitionrule/grants"
)

// Waits for a cache that is behind, and the age at which what it is compared with is read again: an object that was
// deleted since would never come.
const (
	lookAgain = 25 * time.Millisecond
	readAgain = time.Second
	// pageSize is how many objects are asked for at a time: few enough for memory, enough for a new leader not to wait
	// for requests.
	pageSize = 2000
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
		{Version: "v1", Kind: "Pod"}: &b.pods,
		appsv1alpha1.SchemeGroupVersion.WithKind(appsv1alpha1.PodTransitionRuleKind): &b.rules,
	} {
		if err := into.read(ctx, direct, kind, namespace); err != nil {
			return nil, fmt.Errorf("reading the %sList afresh: %w", kind.Kind, err)
		}
	}
	return b, nil
}

// read lists in pages, which are of one moment: the whole of a large namespace would be many times what is kept of it.
func (v *versions) read(
	ctx context.Context, direct client.Reader, kind schema.GroupVersionKind, namespace string,
) (err error) {
	v.of = map[types.UID]string{}
	v.list, err = livelist.Each(ctx, direct, kind, pageSize, func(o *metav1.PartialObjectMetadata) (more bool) {
		v.of[o.UID] = o.ResourceVersion
		return true
	}, client.InNamespace(namespace))
	return err
}

// shownBy reports whether the cache has come at least as far.
func (b *baseline) shownBy(o observed) bool {
	return shown(b.pods, o.pods, podVersion) && shown(b.rules, o.rules, ruleVersion)
}

func podVersion(p grants.Pod) (types.UID, string) { return p.UID, p.ResourceVersion }

func ruleVersion(rule *appsv1alpha1.PodTransitionRule) (types.UID, string) {
	return rule.UID, rule.ResourceVersion
}

func shown[T any](fresh versions, cached []T, version func(T) (types.UID, string)) bool {
	found := 0
	for _, o := range cached {
		uid, has := version(o)
		wanted, listed := fresh.of[uid]
		if !listed {
			wanted = fresh.list // only an object that was created since is not in the list
		} else {
			found++
		}
		order, err := resourceversion.CompareResourceVersion(has, wanted)
		if err != nil || order < 0 {
			return false
		}
	}
	return found == len(fresh.of)
}
