package conformance

import (
	"context"
	"errors"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"

	api "kusionstack.io/kuperator/api/resourceconsist"
)

// driver is an adapter of either form, driven as the framework does.
type driver[E client.Object] interface {
	name() string
	Selector(employer E) labels.Selector
	// adapter is the adapter itself, for its optional parts.
	adapter() any
	// moves says whether the adapter moves traffic itself.
	moves() bool
	// asks is the name of the method that observe calls, for messages; puts and drops those of register and deregister.
	asks() string
	puts() string
	drops() string
	// observe says what the adapter knows of a Pod.
	observe(ctx context.Context, employer E, pod *corev1.Pod) (answer, error)
	// register asks for the Pods to be served, deregister for them not to be; without waiting for it. An adapter that
	// moves nothing has it done by the Provider.
	register(ctx context.Context, employer E, pods ...*corev1.Pod) error
	deregister(ctx context.Context, employer E, pods ...*corev1.Pod) error
	// sweep removes members of the backend that are none of these Pods', as the framework does for Pods that are gone.
	// It is false if the adapter's form has no way to.
	sweep(ctx context.Context, employer E, living []*corev1.Pod) (bool, error)
}

// answer is what an adapter knows of a Pod.
type answer struct {
	// serving says that the Pod is sent traffic, or might be.
	serving bool
	// complete says that it is sent all the traffic that it is to have.
	complete bool
	// lacks says what is missing, if not complete.
	lacks string
}

// inspect compares an argument of a call before and after it, if the world asks for that.
func inspect[E client.Object](w *world[E], method string, arguments ...any) (compare func()) {
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
				w.once("%s changes what it is given (%T). Objects come from a cache that others read: copy what you change, with DeepCopy or slices.Clone", method, a)
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

// perPod drives an adapter of the per-Pod form.
type perPod[E client.Object] struct {
	api.Adapter[E]
	mover api.Mover[E] // nil for one that only observes
	world *world[E]
}

func newPerPod[E client.Object](w *world[E], a api.Adapter[E]) driver[E] {
	d := &perPod[E]{Adapter: a, world: w}
	d.mover, _ = a.(api.Mover[E])
	return d
}

func (d *perPod[E]) name() string  { return d.Name() }
func (d *perPod[E]) adapter() any  { return d.Adapter }
func (d *perPod[E]) moves() bool   { return d.mover != nil }
func (d *perPod[E]) asks() string  { return "Observe" }
func (d *perPod[E]) puts() string  { return "Register" }
func (d *perPod[E]) drops() string { return "Deregister" }

func (d *perPod[E]) observe(ctx context.Context, employer E, pod *corev1.Pod) (answer, error) {
	defer inspect(d.world, "Observe", employer, pod)()
	o, err := d.Observe(ctx, employer, pod)
	return answer{serving: o.Serving, complete: o.Serving}, err
}

func (d *perPod[E]) register(ctx context.Context, employer E, pods ...*corev1.Pod) error {
	return d.each(pods, func(pod *corev1.Pod) error {
		if d.mover == nil {
			return d.world.move(employer, pod, true)
		}
		defer inspect(d.world, "Register", employer, pod)()
		return d.mover.Register(ctx, employer, pod)
	})
}

func (d *perPod[E]) deregister(ctx context.Context, employer E, pods ...*corev1.Pod) error {
	return d.each(pods, func(pod *corev1.Pod) error {
		if d.mover == nil {
			return d.world.move(employer, pod, false)
		}
		defer inspect(d.world, "Deregister", employer, pod)()
		return d.mover.Deregister(ctx, employer, pod)
	})
}

func (d *perPod[E]) each(pods []*corev1.Pod, do func(*corev1.Pod) error) error {
	var errs []error
	for _, pod := range pods {
		errs = append(errs, do(pod))
	}
	return errors.Join(errs...)
}

func (d *perPod[E]) sweep(context.Context, E, []*corev1.Pod) (bool, error) { return false, nil }

// batch is the most changes in one Apply: the framework's default.
const batch = 100

// bulk drives an adapter of the bulk form.
type bulk[E, P client.Object, S comparable] struct {
	api.Reader[E, P, S]
	backend  api.Backend[E, P, S] // nil for one that only observes
	employee func(*corev1.Pod) P
	world    *world[E]
}

func newBulk[E, P client.Object, S comparable](w *world[E], r api.Reader[E, P, S], employee func(*corev1.Pod) P) driver[E] {
	d := &bulk[E, P, S]{Reader: r, world: w, employee: employee}
	d.backend, _ = r.(api.Backend[E, P, S])
	return d
}

func (d *bulk[E, P, S]) name() string  { return d.Name() }
func (d *bulk[E, P, S]) adapter() any  { return d.Reader }
func (d *bulk[E, P, S]) moves() bool   { return d.backend != nil }
func (d *bulk[E, P, S]) asks() string  { return "Read" }
func (d *bulk[E, P, S]) puts() string  { return "Apply" }
func (d *bulk[E, P, S]) drops() string { return "Apply" }

// members are those of a Pod with and without traffic.
func (d *bulk[E, P, S]) members(employer E, pod *corev1.Pod) (on, off map[string]S, err error) {
	employee := d.employee(pod)
	defer inspect(d.world, "Members", employer, employee)()
	on, err = d.Members(employer, employee, true)
	if err != nil {
		return nil, nil, err
	}
	off, err = d.Members(employer, employee, false)
	return on, off, err
}

// ids are the member IDs of a Pod, in order.
func (d *bulk[E, P, S]) ids(employer E, pod *corev1.Pod) ([]string, error) {
	on, off, err := d.members(employer, pod)
	all := slices.AppendSeq(slices.Collect(maps.Keys(on)), maps.Keys(off))
	slices.Sort(all)
	return slices.Compact(all), err
}

func (d *bulk[E, P, S]) observe(ctx context.Context, employer E, pod *corev1.Pod) (answer, error) {
	on, _, err := d.members(employer, pod)
	if err != nil {
		return answer{}, err
	}
	ids, err := d.ids(employer, pod)
	if err != nil {
		return answer{}, err
	}
	if len(ids) == 0 {
		return answer{lacks: "Members names no member of it"}, nil
	}
	held, err := d.read(ctx, employer, ids)
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
		case d.backend != nil && h.State != want:
			a.complete = false
			a.lacks = "Read returns member " + id + " with another State than Members wants, so it would be applied for ever: make State what the provider gives back unchanged"
		}
	}
	return a, nil
}

// read reads some members or, with no ids, all.
func (d *bulk[E, P, S]) read(ctx context.Context, employer E, ids []string) (map[string]api.Held[S], error) {
	defer inspect(d.world, "Read", employer, ids)()
	all, err := d.Read(ctx, employer, ids)
	if err != nil {
		return nil, err
	}
	held := make(map[string]api.Held[S], len(all))
	for _, h := range all {
		if _, twice := held[h.ID]; twice {
			d.world.once("Read returns member %q twice: a member ID must be unique in the backend of one employer", h.ID)
		}
		held[h.ID] = h
	}
	return held, nil
}

func (d *bulk[E, P, S]) register(ctx context.Context, employer E, pods ...*corev1.Pod) error {
	return d.change(ctx, employer, pods, true)
}

func (d *bulk[E, P, S]) deregister(ctx context.Context, employer E, pods ...*corev1.Pod) error {
	return d.change(ctx, employer, pods, false)
}

func (d *bulk[E, P, S]) change(ctx context.Context, employer E, pods []*corev1.Pod, serve bool) error {
	var changes []api.Change[S]
	var errs []error
	for _, pod := range pods {
		if d.backend == nil {
			errs = append(errs, d.world.move(employer, pod, serve))
			continue
		}
		on, off, err := d.members(employer, pod)
		errs = append(errs, err)
		wanted := on
		if !serve {
			wanted = off
		}
		for _, id := range slices.Sorted(maps.Keys(wanted)) {
			changes = append(changes, api.Change[S]{ID: id, State: wanted[id]})
		}
		for _, id := range slices.Sorted(maps.Keys(on)) {
			if _, stays := off[id]; !serve && !stays {
				changes = append(changes, api.Change[S]{ID: id, Remove: true})
			}
		}
	}
	return errors.Join(append(errs, d.apply(ctx, employer, changes))...)
}

// apply makes changes in batches.
func (d *bulk[E, P, S]) apply(ctx context.Context, employer E, changes []api.Change[S]) error {
	var errs []error
	for some := range slices.Chunk(changes, batch) {
		before, compare := slices.Clone(some), inspect(d.world, "Apply", employer)
		errs = append(errs, d.backend.Apply(ctx, employer, some))
		compare()
		if d.world.inspecting && !slices.Equal(before, some) {
			d.world.once("Apply changes the slice of changes that it is given: copy it with slices.Clone")
		}
	}
	return errors.Join(errs...)
}

func (d *bulk[E, P, S]) sweep(ctx context.Context, employer E, living []*corev1.Pod) (bool, error) {
	if d.backend == nil {
		return false, nil
	}
	claimed := map[string]bool{}
	for _, pod := range living {
		ids, err := d.ids(employer, pod)
		if err != nil {
			return true, err
		}
		for _, id := range ids {
			claimed[id] = true
		}
	}
	held, err := d.read(ctx, employer, nil)
	if err != nil {
		return true, err
	}
	var changes []api.Change[S]
	for _, id := range slices.Sorted(maps.Keys(held)) {
		if !claimed[id] {
			changes = append(changes, api.Change[S]{ID: id, Remove: true})
		}
	}
	return true, d.apply(ctx, employer, changes)
}
