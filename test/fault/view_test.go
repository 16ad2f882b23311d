package fault

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
)

// view is what there is, by plan, from watches of its own.
type view struct {
	cancel context.CancelFunc
	// onObject is called with each state of each object of a plan, and with the last one when it is gone.
	onObject func(o client.Object, gone bool)

	mu     sync.Mutex
	groups map[string]*group
}

// group is the objects of one plan: those whose names begin with its prefix.
type group struct {
	objects map[string]client.Object // by kind and name
	// created and deleted count objects by kind.
	created, deleted map[string]int
	uids             map[types.UID]bool
	// unmarked are the names of Pods that were taken away without the label to-delete.
	unmarked map[string]bool
	changed  chan struct{} // closed by the next change
}

// ofPlan are the names of objects of a plan.
var ofPlan = regexp.MustCompile(`^(p[0-9]+)-`)

// prefixOf is the plan that an object of this name belongs to, "" for none.
func prefixOf(name string) string {
	if found := ofPlan.FindStringSubmatch(name); found != nil {
		return found[1]
	}
	return ""
}

func watchAll(
	ctx context.Context, config *rest.Config, scheme *runtime.Scheme, onObject func(o client.Object, gone bool),
) (*view, error) {
	ctx, cancel := context.WithCancel(ctx)
	v := &view{cancel: cancel, onObject: onObject, groups: map[string]*group{}}
	informers, err := cache.New(config, cache.Options{Scheme: scheme})
	if err != nil {
		cancel()
		return nil, err
	}
	kinds := map[string]client.Object{
		"Pod": &corev1.Pod{}, "PersistentVolumeClaim": &corev1.PersistentVolumeClaim{}, "Service": &corev1.Service{},
		"EndpointSlice": &discoveryv1.EndpointSlice{}, "ControllerRevision": &appsv1.ControllerRevision{},
		"CollaSet": &appsv1alpha1.CollaSet{}, "PodTransitionRule": &appsv1alpha1.PodTransitionRule{},
		"ResourceContext": &appsv1alpha1.ResourceContext{}, "OperationJob": &appsv1alpha1.OperationJob{},
		"PodDecoration": &appsv1alpha1.PodDecoration{},
	}
	go func() { _ = informers.Start(ctx) }()
	for kind, object := range kinds {
		informer, err := informers.GetInformer(ctx, object)
		if err == nil {
			_, err = informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
				AddFunc:    func(obj any) { v.see(kind, obj, false) },
				UpdateFunc: func(_, obj any) { v.see(kind, obj, false) },
				DeleteFunc: func(obj any) { v.see(kind, obj, true) },
			})
		}
		if err != nil {
			cancel()
			return nil, fmt.Errorf("watching %s: %w", kind, err)
		}
	}
	return v, nil
}

func (v *view) stop() { v.cancel() }

func (v *view) see(kind string, obj any, gone bool) {
	if last, ok := obj.(toolscache.DeletedFinalStateUnknown); ok {
		obj = last.Obj
	}
	object, ok := obj.(client.Object)
	if !ok || prefixOf(object.GetName()) == "" {
		return
	}
	v.onObject(object, gone)
	v.mu.Lock()
	defer v.mu.Unlock()
	g := v.group(prefixOf(object.GetName()))
	at := kind + " " + object.GetName()
	switch {
	case gone:
		g.deleted[kind]++
		delete(g.objects, at)
	default:
		g.objects[at] = object
		if _, marked := object.GetLabels()[appsv1alpha1.ToDeleteLabel]; kind == "Pod" &&
			object.GetDeletionTimestamp() != nil && !marked {
			g.unmarked[object.GetName()] = true
		}
		if !g.uids[object.GetUID()] {
			g.uids[object.GetUID()] = true
			g.created[kind]++
		}
	}
	close(g.changed)
	g.changed = make(chan struct{})
}

// group needs v.mu.
func (v *view) group(prefix string) *group {
	if v.groups[prefix] == nil {
		v.groups[prefix] = &group{
			objects: map[string]client.Object{}, created: map[string]int{}, deleted: map[string]int{},
			uids:     map[types.UID]bool{},
			unmarked: map[string]bool{}, changed: make(chan struct{}),
		}
	}
	return v.groups[prefix]
}

// state is what there is of a plan at one moment.
type state struct {
	prefix           string
	objects          []client.Object // sorted by kind and name
	created, deleted map[string]int
	unmarked         []string
}

func (v *view) state(prefix string) (*state, <-chan struct{}) {
	v.mu.Lock()
	defer v.mu.Unlock()
	g := v.group(prefix)
	s := &state{prefix: prefix, created: map[string]int{}, deleted: map[string]int{}}
	var names []string
	for at := range g.objects {
		names = append(names, at)
	}
	slices.Sort(names)
	for _, at := range names {
		s.objects = append(s.objects, g.objects[at])
	}
	s.unmarked = sortedKeys(g.unmarked)
	for kind, n := range g.created {
		s.created[kind] = n
	}
	for kind, n := range g.deleted {
		s.deleted[kind] = n
	}
	return s, g.changed
}

// forget drops what is known of a plan that has nothing left.
func (v *view) forget(prefix string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	delete(v.groups, prefix)
}

// await waits until check is content with the state of a plan.
func (v *view) await(ctx context.Context, prefix, what string, check func(*state) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, errors.New("after "+patience.String()))
	defer cancel()
	for {
		now, changed := v.state(prefix)
		err := check(now)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waiting for %s, %w: %w", what, context.Cause(ctx), err)
		case <-changed:
		case <-time.After(time.Second): // some checks look at more than objects
		}
	}
}

// these are the objects of a kind in a state.
func these[T client.Object](s *state) []T {
	var found []T
	for _, object := range s.objects {
		if o, ok := object.(T); ok {
			found = append(found, o)
		}
	}
	return found
}

// get is the object of a kind with a name, without the plan's prefix; nil if it is not there.
func get[T client.Object](s *state, name string) (T, bool) {
	for _, o := range these[T](s) {
		if o.GetName() == s.prefix+"-"+name {
			return o, true
		}
	}
	var none T
	return none, false
}

// podsOf are the Pods of the workload with a name, without the plan's prefix.
func podsOf(s *state, workload string) []*corev1.Pod {
	return slices.DeleteFunc(these[*corev1.Pod](s),
		func(p *corev1.Pod) bool { return p.Labels["app"] != s.prefix+"-"+workload })
}

// plain is text without the plan's prefix.
func (s *state) plain(text string) string { return strings.ReplaceAll(text, s.prefix+"-", "") }
