package bulk

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	api "kusionstack.io/kuperator/api/resourceconsist"
	"kusionstack.io/kuperator/internal/resourceconsist/backend"
)

// New makes a backend of an adapter, and a backend.Mover if it is an api.Mover. Sources returns what is wrong with the
// options. A nil clock means the real one.
func New[E client.Object, S comparable](
	a api.Adapter[E, S], options api.CallOptions, clk clock.WithTicker,
) backend.Backend {
	e := newEngine(erase(a), options, clk)
	if e.adapter.moves {
		return mover{e}
	}
	return e
}

// adapter is an api.Adapter for employers of any kind and states of any type, which are nothing to the engine.
type adapter struct {
	anyMover
	// moves is false if Apply is not to be called.
	moves bool
	// example is an empty employer.
	example client.Object
	// provisioner is nil if the adapter is none.
	provisioner backend.Provisioner
}

type anyMover interface {
	api.Mover[client.Object, any]
	api.Placer[client.Object]
}

func erase[E client.Object, S comparable](typed api.Adapter[E, S]) adapter {
	moving, moves := typed.(api.Mover[E, S])
	placing, _ := typed.(api.Placer[E])
	a := adapter{
		anyMover: erased[E, S]{typed, moving, placing}, moves: moves,
		example: backend.New(*new(E)),
	}
	if p, ok := typed.(api.Provisioner[E]); ok {
		a.provisioner = erasedProvisioner[E]{p}
	}
	return a
}

// erased passes calls on. Employers come from watches and caches of E alone.
type erased[E client.Object, S comparable] struct {
	adapter api.Adapter[E, S]
	mover   api.Mover[E, S] // nil if the adapter is none
	placer  api.Placer[E]   // nil if the adapter is none
}

func (a erased[E, S]) Name() string { return a.adapter.Name() }

func (a erased[E, S]) Selector(employer client.Object) labels.Selector {
	return a.adapter.Selector(employer.(E)) //nolint:forcetypeassert // see erased
}

func (a erased[E, S]) Members(employer client.Object, pod *corev1.Pod, serve bool) (map[string]any, error) {
	typed, err := a.adapter.Members(employer.(E), pod, serve) //nolint:forcetypeassert // see erased
	members := make(map[string]any, len(typed))
	for id, state := range typed {
		members[id] = state
	}
	return members, err
}

func (a erased[E, S]) Read(ctx context.Context, employer client.Object, ids []string) ([]api.Held[any], error) {
	typed, err := a.adapter.Read(ctx, employer.(E), ids) //nolint:forcetypeassert // see erased
	held := make([]api.Held[any], 0, len(typed))
	for _, h := range typed {
		held = append(held, api.Held[any]{ID: h.ID, State: h.State, Serving: h.Serving})
	}
	return held, err
}

func (a erased[E, S]) Apply(ctx context.Context, employer client.Object, changes []api.Change[any]) error {
	typed := make([]api.Change[S], 0, len(changes))
	for _, c := range changes {
		state, _ := c.State.(S) // there is none with Remove
		typed = append(typed, api.Change[S]{ID: c.ID, State: state, Remove: c.Remove})
	}
	return a.mover.Apply(ctx, employer.(E), typed) //nolint:forcetypeassert // see erased
}

// Place is "" if there is but one place.
func (a erased[E, S]) Place(employer client.Object) string {
	if a.placer == nil {
		return ""
	}
	return a.placer.Place(employer.(E)) //nolint:forcetypeassert // see erased
}

// PlaceOf is "" if there is but one place.
func (a erased[E, S]) PlaceOf(id string) string {
	if a.placer == nil {
		return ""
	}
	return a.placer.PlaceOf(id)
}

type erasedProvisioner[E client.Object] struct{ api.Provisioner[E] }

func (p erasedProvisioner[E]) Provision(ctx context.Context, employer client.Object) error {
	return p.Provisioner.Provision(ctx, employer.(E)) //nolint:forcetypeassert // see erased
}

func (p erasedProvisioner[E]) Deprovision(ctx context.Context, employer client.Object) error {
	return p.Provisioner.Deprovision(ctx, employer.(E)) //nolint:forcetypeassert // see erased
}
