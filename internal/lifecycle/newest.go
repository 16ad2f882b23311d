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

// ruleFreshness asks the API server, past the cache, which rules a namespace has. The caches of Pods and of rules
// advance each at its own pace: a request that was made after a rule was created may be seen before the rule is. So no
// Pod is taken out of service before the cache has been compared with a list that was begun after the request was seen.
//
// A namespace has one list at a time: all that ask while it is under way share the next one. Only metadata is read.
type ruleFreshness struct {
	direct client.Reader

	mu    sync.Mutex
	lists map[string]*lists // by namespace, of those that have one
}

// lists are those of one namespace.
type lists struct {
	underWay chan struct{} // holds a value while a list is
	next     *reading      // the one that has not begun, nil for none
}

// reading is one list, for all that wait for it.
type reading struct {
	done        chan struct{}
	generations map[types.UID]int64
	err         error
}

func newNewest(direct client.Reader) *ruleFreshness {
	return &ruleFreshness{direct: direct, lists: map[string]*lists{}}
}

// generations returns the generation of each rule of the namespace at some moment after the call.
func (n *ruleFreshness) generations(ctx context.Context, namespace string) (map[types.UID]int64, error) {
	n.mu.Lock()
	l := n.lists[namespace]
	if l == nil {
		l = &lists{underWay: make(chan struct{}, 1)}
		n.lists[namespace] = l
	}
	r, join := l.next, l.next != nil
	if !join {
		r = &reading{done: make(chan struct{})}
		l.next = r
	}
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
	select {
	case l.underWay <- struct{}{}:
		n.mu.Lock()
		l.next = nil // a call from here on needs a later list
		n.mu.Unlock()
		r.generations, r.err = n.read(ctx, namespace)
		n.mu.Lock()
		<-l.underWay
	case <-ctx.Done():
		r.err = ctx.Err()
		n.mu.Lock()
		l.next = nil
	}
	defer n.mu.Unlock()
	if l.next == nil && len(l.underWay) == 0 {
		delete(n.lists, namespace)
	}
	return r.generations, r.err
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
