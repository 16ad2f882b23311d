package lifecycle

import (
	"context"
	"fmt"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
)

// newest asks the API server, past the cache, which rules a namespace has. The caches of Pods and of rules advance each at
// its own pace: a request that was made after a rule was created may be seen before the rule is. So nobody is taken out of
// service before the cache has been compared with a list that was begun after the request was seen.
//
// An API server that answers such a list from its watch cache (KEP-2340) first waits until that is as new as etcd, which where rules do
// not change it learns ten times a second. So lists overlap: one that is begun in between has its answer at the same moment as
// those before it. Everybody who asks before the next one is begun shares it: however many Pods wait, a namespace costs at most so many
// lists at a time, so far apart. Only metadata is read.
type newest struct {
	direct client.Reader
	clock  clock.Clock

	mu    sync.Mutex
	lists map[string]*lists // by namespace, of those that have one
}

const (
	listsAtATime = 3
	listsApart   = 30 * time.Millisecond
)

// lists are those of one namespace.
type lists struct {
	// next is the one that has not begun.
	next     *reading
	underWay int
	begun    time.Time     // the last one
	ended    chan struct{} // closed when one has ended
}

// reading is one list, for all who wait for it.
type reading struct {
	done        chan struct{}
	generations map[types.UID]int64
	err         error
}

func newNewest(direct client.Reader, c clock.Clock) *newest {
	return &newest{direct: direct, clock: c, lists: map[string]*lists{}}
}

// generations returns the generation of each rule of the namespace at some moment after the call.
func (n *newest) generations(ctx context.Context, namespace string) (map[types.UID]int64, error) {
	n.mu.Lock()
	l := n.lists[namespace]
	if l == nil {
		l = &lists{ended: make(chan struct{})}
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
	if r.err = n.begin(ctx, namespace, l); r.err != nil {
		return nil, r.err
	}
	defer n.end(namespace, l)
	r.generations, r.err = n.read(ctx, namespace)
	return r.generations, r.err
}

// begin waits until the next list may begin; whoever asks from there on needs a later one.
func (n *newest) begin(ctx context.Context, namespace string, l *lists) error {
	for {
		n.mu.Lock()
		wait := listsApart - n.clock.Since(l.begun)
		if l.underWay == 0 || l.underWay < listsAtATime && wait <= 0 {
			l.next = nil
			l.underWay++
			l.begun = n.clock.Now()
			n.mu.Unlock()
			return nil
		}
		ended := l.ended
		var passed <-chan time.Time
		if l.underWay < listsAtATime {
			passed = n.clock.After(wait)
		}
		n.mu.Unlock()
		select {
		case <-ended:
		case <-passed:
		case <-ctx.Done():
			n.mu.Lock()
			defer n.mu.Unlock()
			l.next = nil
			n.drop(namespace, l)
			return ctx.Err()
		}
	}
}

func (n *newest) end(namespace string, l *lists) {
	n.mu.Lock()
	defer n.mu.Unlock()
	l.underWay--
	close(l.ended)
	l.ended = make(chan struct{})
	n.drop(namespace, l)
}

// drop forgets a namespace of which nobody asks.
func (n *newest) drop(namespace string, l *lists) {
	if l.next == nil && l.underWay == 0 {
		delete(n.lists, namespace)
	}
}

func (n *newest) read(ctx context.Context, namespace string) (map[types.UID]int64, error) {
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
