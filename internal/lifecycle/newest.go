package lifecycle

import (
	"context"
	"fmt"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
)

// newest asks the API server, past the cache, which rules a namespace has. The caches of Pods and of rules advance each at
// its own pace: a request that was made after a rule was created may be seen before the rule is. So nobody is taken out of
// service before the cache has been compared with a list that was begun after the request was seen.
//
// One list of a namespace is under way at a time, and everybody who asks meanwhile shares the next one: however many Pods
// wait, it costs what one list after another costs. Only metadata is read.
type newest struct {
	direct client.Reader

	mu sync.Mutex
	// next is the reading of each namespace that has not begun, under way the end of the one that has.
	next     map[string]*reading
	underWay map[string]chan struct{}
}

// reading is one list, for all who wait for it.
type reading struct {
	done        chan struct{}
	generations map[types.UID]int64
	err         error
}

func newNewest(direct client.Reader) *newest {
	return &newest{direct: direct, next: map[string]*reading{}, underWay: map[string]chan struct{}{}}
}

// generations returns the generation of each rule of the namespace at some moment after the call.
func (n *newest) generations(ctx context.Context, namespace string) (map[types.UID]int64, error) {
	n.mu.Lock()
	r, join := n.next[namespace]
	if !join {
		r = &reading{done: make(chan struct{})}
		n.next[namespace] = r
	}
	before := n.underWay[namespace]
	n.mu.Unlock()
	if join {
		select {
		case <-r.done:
			return r.generations, r.err
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	defer close(r.done)
	r.err = n.read(ctx, namespace, before, r)
	return r.generations, r.err
}

// read waits for the reading under way, then lists.
func (n *newest) read(ctx context.Context, namespace string, before <-chan struct{}, r *reading) error {
	var waited error
	if before != nil {
		select {
		case <-before:
		case <-ctx.Done():
			waited = ctx.Err()
		}
	}
	n.mu.Lock()
	delete(n.next, namespace) // whoever asks from here on needs a later list
	n.underWay[namespace] = r.done
	n.mu.Unlock()
	defer func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		if n.underWay[namespace] == r.done {
			delete(n.underWay, namespace)
		}
	}()
	if waited != nil {
		return waited
	}
	list := &metav1.PartialObjectMetadataList{}
	list.SetGroupVersionKind(appsv1alpha1.SchemeGroupVersion.WithKind(appsv1alpha1.PodTransitionRuleKind + "List"))
	if err := n.direct.List(ctx, list, client.InNamespace(namespace)); err != nil {
		return fmt.Errorf("asking for the newest PodTransitionRules of namespace %s: %w", namespace, err)
	}
	r.generations = make(map[types.UID]int64, len(list.Items))
	for i := range list.Items {
		r.generations[list.Items[i].UID] = list.Items[i].Generation
	}
	return nil
}

// upToDate says whether the cache shows every rule of the namespace as the API server has it, or later.
func (r *rules) upToDate(ctx context.Context, namespace string) (bool, error) {
	served, err := r.isServed()
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
	shown := make(map[types.UID]int64, len(cached.Items))
	for i := range cached.Items {
		shown[cached.Items[i].UID] = cached.Items[i].Generation
	}
	for uid, generation := range generations {
		if have, ok := shown[uid]; !ok || have < generation {
			return false, nil
		}
	}
	return true, nil
}

// permits says whether the step lets some operation out of PreCheck.
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
