package lifecycle

import (
	"context"
	"fmt"

	"golang.org/x/sync/singleflight"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/keymutex"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
)

// ruleFreshness asks the API server, past the cache, which rules a namespace has. The caches of Pods and of rules
// advance each at its own pace: a request that was made after a rule was created may be seen before the rule is. So no
// Pod is taken out of service before the cache has been compared with a list that was begun after the request was seen.
//
// A namespace has one list at a time: all that ask while it is under way share the next one. Only metadata is read.
type ruleFreshness struct {
	direct client.Reader
	next   singleflight.Group // by namespace, the list that has not begun
	turns  keymutex.KeyMutex  // of lists, by namespace; some namespaces share one
}

func newRuleFreshness(direct client.Reader) *ruleFreshness {
	return &ruleFreshness{direct: direct, turns: keymutex.NewHashed(64)}
}

// generations returns the generation of each rule of the namespace at some moment after the call.
func (n *ruleFreshness) generations(ctx context.Context, namespace string) (map[types.UID]int64, error) {
	done := n.next.DoChan(namespace, func() (any, error) {
		n.turns.LockKey(namespace)
		defer func() { _ = n.turns.UnlockKey(namespace) }()
		n.next.Forget(namespace)                             // a call from here on needs a later list
		return n.read(context.WithoutCancel(ctx), namespace) // others wait for it, too
	})
	select {
	case r := <-done:
		generations, _ := r.Val.(map[types.UID]int64)
		return generations, r.Err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (n *ruleFreshness) read(ctx context.Context, namespace string) (map[types.UID]int64, error) {
	list := &metav1.PartialObjectMetadataList{}
	list.SetGroupVersionKind(appsv1alpha1.SchemeGroupVersion.WithKind(appsv1alpha1.PodTransitionRuleKind + "List"))
	if err := n.direct.List(ctx, list, client.InNamespace(namespace)); err != nil {
		return nil, fmt.Errorf("asking for the newest PodTransitionRules of namespace %s: %w", namespace, err)
	}
	generations := make(map[types.UID]int64, len(list.Items))
	for i := range list.Items {
		generations[list.Items[i].UID] = list.Items[i].Generation
	}
	return generations, nil
}

// upToDate reports whether the cache shows every rule of the namespace as the API server has it, or later.
func (r *rules) upToDate(ctx context.Context, namespace string) (bool, error) {
	served, _, err := r.kind.Served()
	if err != nil || !served {
		return err == nil, err
	}
	generations, err := r.newest.generations(ctx, namespace)
	if err != nil {
		return false, err
	}
	var cached appsv1alpha1.PodTransitionRuleList
	if err := r.client.List(ctx, &cached, client.InNamespace(namespace), client.UnsafeDisableDeepCopy); err != nil {
		return false, fmt.Errorf("listing the PodTransitionRules of namespace %s: %w", namespace, err)
	}
	shown := 0
	for i := range cached.Items {
		if generation, has := generations[cached.Items[i].UID]; has && cached.Items[i].Generation >= generation {
			shown++
		}
	}
	return shown == len(generations), nil
}

// permits reports whether the step lets some operation out of PreCheck.
func permits(before podops.View, step podops.Step) bool {
	for _, o := range podops.Operations(step.Apply(before)) {
		if o.Phase != podops.PhasePreChecked && o.Phase != podops.PhasePreparing && o.Phase != podops.PhaseOperate {
			continue
		}
		switch was := podops.OperationOf(before, o.ID); was.Phase {
		case podops.PhasePreChecked, podops.PhasePreparing, podops.PhaseOperate:
			if was.Request != o.Request || was.Type != o.Type {
				return true
			}
		default:
			return true
		}
	}
	return false
}
