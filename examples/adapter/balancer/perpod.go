package balancer

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"kusionstack.io/kuperator/api/resourceconsist"
)

// Mover is the per-Pod form of the adapter, for a load balancer that answers at once and as often as one likes.
type Mover struct{ Client *Client }

var _ resourceconsist.Mover[*corev1.Service] = &Mover{}

// Name is part of resourceconsist.Adapter.
func (m *Mover) Name() string { return "example-local-balancer" }

// Selector is part of resourceconsist.Adapter.
func (m *Mover) Selector(service *corev1.Service) labels.Selector {
	return resourceconsist.ServiceSelector(service)
}

// Observe is part of resourceconsist.Adapter. A Pod is served as long as one of its addresses is.
func (m *Mover) Observe(ctx context.Context, service *corev1.Service, pod *corev1.Pod) (resourceconsist.Observation, error) {
	observation := resourceconsist.Observation{LookAgain: 500 * time.Millisecond}
	ids := addresses(pod)
	if len(ids) == 0 {
		return observation, nil // to ask without IDs would be to ask about all
	}
	members, err := m.Client.Members(ctx, group(service), ids...)
	for _, member := range members {
		observation.Serving = observation.Serving || member.Owner == owner && member.Weight > 0
	}
	return observation, err
}

// Register is part of resourceconsist.Mover.
func (m *Mover) Register(ctx context.Context, service *corev1.Service, pod *corev1.Pod) error {
	port, err := portOf(service)
	if err != nil {
		return err
	}
	var changes Changes
	for _, address := range addresses(pod) {
		changes.Put = append(changes.Put, Member{ID: address, Address: address, Port: port, Weight: 100, Owner: owner})
	}
	return m.change(ctx, service, changes)
}

// Deregister is part of resourceconsist.Mover.
func (m *Mover) Deregister(ctx context.Context, service *corev1.Service, pod *corev1.Pod) error {
	return m.change(ctx, service, Changes{Remove: addresses(pod)})
}

func (m *Mover) change(ctx context.Context, service *corev1.Service, changes Changes) error {
	failed, err := m.Client.Change(ctx, group(service), changes)
	if err != nil || len(failed) == 0 {
		return err
	}
	return &RefusedError{Members: failed}
}

func addresses(pod *corev1.Pod) []string {
	var all []string
	for _, ip := range pod.Status.PodIPs {
		all = append(all, ip.IP)
	}
	return all
}

// RefusedError says which members the load balancer refused to change, and why.
type RefusedError struct{ Members map[string]string }

func (e *RefusedError) Error() string {
	return fmt.Sprintf("the load balancer refused %v", e.Members)
}
