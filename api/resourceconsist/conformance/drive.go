package conformance

import (
	"context"
	"errors"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"sigs.k8s.io/controller-runtime/pkg/client"

	api "kusionstack.io/kuperator/api/resourceconsist"
)

// answer is what an adapter knows of a Pod.
type answer struct {
	// serving is true if the Pod is sent traffic, or might be.
	serving bool
	// complete is true if it is sent all the traffic that it is to have.
	complete bool
	// lacks says what is missing, if not complete.
	lacks string
}

// inspect compares an argument of a call before and after it, if the world asks for that.
func inspect[E client.Object, S comparable](w *world[E, S], method string, arguments ...any) (compare func()) {
	if !w.inspecting {
		return func() {}
	}
	before := make([]any, len(arguments))
	for i, a := range arguments {
		before[i] = copied(a)
	}
	return func() {
		for i, a := range arguments {
			if !equality.Semantic.DeepEqual(before[i], a) {
				w.once(
					"%s changes what it is given (%T). Objects come from a cache that others read: copy what you change, with DeepCopy or slices.Clone",
					method, a)
			}
		}
	}
}

func copied(a any) any {
	switch a := a.(type) {
	case client.Object:
		return a.DeepCopyObject()
	case []string:
		return slices.Clone(a)
	}
	return a
}

// batch is the most changes in one Apply: the framework's default.
const batch = 100

// asks and changes are the methods of an adapter, for messages.
const asks, changes = "Read", "Apply"

// moves reports whether the adapter moves traffic itself.
func (w *world[E, S]) moves() bool { return w.mover != nil }

// members are those of a Pod with and without traffic.
func (w *world[E, S]) members(employer E, pod *corev1.Pod) (on, off map[string]S, err error) {
	defer inspect(w, "Members", employer, pod)()
	on, err = w.adapter.Members(employer, pod, true)
	if err != nil {
		return nil, nil, err
	}
	off, err = w.adapter.Members(employer, pod, false)
	return on, off, err
}

// ids are the member IDs of a Pod, in order.
func (w *world[E, S]) ids(employer E, pod *corev1.Pod) ([]string, error) {
	on, off, err := w.members(employer, pod)
	return idsOf(on, off), err
}

func idsOf[S any](on, off map[string]S) []string {
	all := slices.AppendSeq(slices.Collect(maps.Keys(on)), maps.Keys(off))
	slices.Sort(all)
	return slices.Compact(all)
}

// observe is what the adapter knows of a Pod.
func (w *world[E, S]) observe(ctx context.Context, employer E, pod *corev1.Pod) (answer, error) {
	on, off, err := w.members(employer, pod)
	if err != nil {
		return answer{}, err
	}
	ids := idsOf(on, off)
	if len(ids) == 0 {
		return answer{lacks: "Members names no member of it"}, nil
	}
	held, err := w.read(ctx, employer, ids)
	if err != nil {
		return answer{}, err
	}
	a := answer{complete: len(on) > 0}
	for _, id := range ids {
		h, there := held[id]
		a.serving = a.serving || (there && h.Serving)
		want, wanted := on[id]
		switch {
		case !wanted || !a.complete:
		case !there:
			a.complete, a.lacks = false, "Read does not return member "+id
		case !h.Serving:
			a.complete, a.lacks = false, "Read returns member "+id+" without Serving"
		case w.mover != nil && h.State != want:
			a.complete = false
			a.lacks = "Read returns member " + id +
				" with another State than Members wants, so it would be applied for ever: make State what the provider gives back unchanged"
		}
	}
	return a, nil
}

// read reads some members or, with no ids, all.
func (w *world[E, S]) read(ctx context.Context, employer E, ids []string) (map[string]api.Held[S], error) {
	defer inspect(w, "Read", employer, ids)()
	all, err := w.adapter.Read(ctx, employer, ids)
	if err != nil {
		return nil, err
	}
	held := make(map[string]api.Held[S], len(all))
	for _, h := range all {
		if _, twice := held[h.ID]; twice {
			w.once("Read returns member %q twice: a member ID must be unique in the backend of one employer", h.ID)
		}
		held[h.ID] = h
	}
	return held, nil
}

// register asks for the Pods to be served, deregister for them not to be, without waiting for it. The Provider does it
// for an adapter that moves nothing.
func (w *world[E, S]) register(ctx context.Context, employer E, pods ...*corev1.Pod) error {
	return w.change(ctx, employer, pods, true)
}

func (w *world[E, S]) deregister(ctx context.Context, employer E, pods ...*corev1.Pod) error {
	return w.change(ctx, employer, pods, false)
}

func (w *world[E, S]) change(ctx context.Context, employer E, pods []*corev1.Pod, serve bool) error {
	var desired []api.Change[S]
	var errs []error
	for _, pod := range pods {
		if w.mover == nil {
			w.move(employer, pod, serve)
			continue
		}
		on, off, err := w.members(employer, pod)
		errs = append(errs, err)
		wanted := on
		if !serve {
			wanted = off
		}
		for _, id := range slices.Sorted(maps.Keys(wanted)) {
			desired = append(desired, api.Change[S]{ID: id, State: wanted[id]})
		}
		for _, id := range slices.Sorted(maps.Keys(on)) {
			if _, stays := off[id]; !serve && !stays {
				desired = append(desired, api.Change[S]{ID: id, Remove: true})
			}
		}
	}
	return errors.Join(append(errs, w.apply(ctx, employer, desired))...)
}

// apply makes changes in batches.
func (w *world[E, S]) apply(ctx context.Context, employer E, desired []api.Change[S]) error {
	var errs []error
	for some := range slices.Chunk(desired, batch) {
		before, compare := slices.Clone(some), inspect(w, "Apply", employer)
		errs = append(errs, w.mover.Apply(ctx, employer, some))
		compare()
		if w.inspecting && !slices.Equal(before, some) {
			w.once("Apply changes the slice of changes that it is given: copy it with slices.Clone")
		}
	}
	return errors.Join(errs...)
}

// sweep removes members of the backend that are none of these Pods', as the framework does for Pods that are gone. It
// is for an adapter that moves traffic.
func (w *world[E, S]) sweep(ctx context.Context, employer E, living []*corev1.Pod) error {
	claimed := map[string]bool{}
	for _, pod := range living {
		ids, err := w.ids(employer, pod)
		if err != nil {
			return err
		}
		for _, id := range ids {
			claimed[id] = true
		}
	}
	held, err := w.read(ctx, employer, nil)
	if err != nil {
		return err
	}
	var desired []api.Change[S]
	for _, id := range slices.Sorted(maps.Keys(held)) {
		if !claimed[id] {
			desired = append(desired, api.Change[S]{ID: id, Remove: true})
		}
	}
	return w.apply(ctx, employer, desired)
}
