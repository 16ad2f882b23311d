package balancer

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"kusionstack.io/kuperator/api/resourceconsist"
)

// owner marks the members that are ours.
const owner = "kuperator"

// State is what is set of one member.
type State struct {
	Port   int32
	Weight int32
}

// Backend is the adapter.
type Backend struct{ Client *Client }

var (
	_ resourceconsist.Mover[*corev1.Service, State] = &Backend{}
	_ resourceconsist.Provisioner[*corev1.Service]  = &Backend{}
)

// Name is part of resourceconsist.Adapter.
func (b *Backend) Name() string { return "example-balancer" }

// Selector is part of resourceconsist.Adapter.
func (b *Backend) Selector(service *corev1.Service) labels.Selector {
	return resourceconsist.ServiceSelector(service)
}

// Members is part of resourceconsist.Adapter: one member for each address of the Pod, which is also its ID. Without
// traffic there is none.
func (b *Backend) Members(service *corev1.Service, pod *corev1.Pod, serve bool) (map[string]State, error) {
	if !serve {
		return nil, nil
	}
	port, err := portOf(service)
	if err != nil {
		return nil, err
	}
	members := map[string]State{}
	for _, ip := range pod.Status.PodIPs {
		members[ip.IP] = State{Port: port, Weight: 100}
	}
	return members, nil
}

func portOf(service *corev1.Service) (int32, error) {
	if len(service.Spec.Ports) == 0 || service.Spec.Ports[0].TargetPort.StrVal != "" {
		return 0, errors.New("the Service's first port needs a number as its targetPort")
	}
	if target := service.Spec.Ports[0].TargetPort.IntVal; target != 0 {
		return target, nil
	}
	return service.Spec.Ports[0].Port, nil
}

// Read is part of resourceconsist.Adapter. It leaves out members of others, and never makes an answer of an error.
func (b *Backend) Read(
	ctx context.Context, service *corev1.Service, ids []string,
) ([]resourceconsist.Held[State], error) {
	members, err := b.Client.Members(ctx, group(service), ids...)
	if err != nil {
		return nil, err
	}
	var held []resourceconsist.Held[State]
	for _, m := range members {
		if m.Owner == owner {
			held = append(held, resourceconsist.Held[State]{ID: m.ID, State: State{Port: m.Port, Weight: m.Weight},
				Serving: m.Weight > 0})
		}
	}
	return held, nil
}

// Apply is part of resourceconsist.Mover.
func (b *Backend) Apply(ctx context.Context, service *corev1.Service, changes []resourceconsist.Change[State]) error {
	var call Changes
	for _, c := range changes {
		if c.Remove {
			call.Remove = append(call.Remove, c.ID)
			continue
		}
		call.Put = append(call.Put, Member{ID: c.ID, Address: c.ID, Port: c.State.Port, Weight: c.State.Weight, Owner: owner})
	}
	failed, err := b.Client.Change(ctx, group(service), call)
	if err != nil {
		return err
	}
	errs := resourceconsist.MemberErrors{}
	for id, why := range failed {
		errs[id] = errors.New(why)
	}
	if len(errs) > 0 {
		return errs
	}
	return nil
}

// Provision is part of resourceconsist.Provisioner: the Service's group has to be there before it has members.
func (b *Backend) Provision(ctx context.Context, service *corev1.Service) error {
	return b.Client.Create(ctx, group(service))
}

// Deprovision is part of resourceconsist.Provisioner.
func (b *Backend) Deprovision(ctx context.Context, service *corev1.Service) error {
	return b.Client.Delete(ctx, group(service))
}

// group is the Service's name in the load balancer: a namespace has no dot, so no two Services share one.
func group(service *corev1.Service) string {
	return fmt.Sprintf("%s.%s", service.Namespace, service.Name)
}
