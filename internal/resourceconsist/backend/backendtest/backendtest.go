// Package backendtest has the conformance kit of adapters test a backend.Backend: it drives one as an adapter whose
// members are Pods.
package backendtest

import (
	"context"
	"errors"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	api "kusionstack.io/kuperator/api/resourceconsist"
	"kusionstack.io/kuperator/internal/resourceconsist/backend"
)

// Pods remembers the Pods that an adapter was asked about, by member ID, through restarts of the adapter.
type Pods struct {
	mu   sync.Mutex
	byID map[string]*corev1.Pod
}

func (p *Pods) add(pod *corev1.Pod) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.byID == nil {
		p.byID = map[string]*corev1.Pod{}
	}
	p.byID[string(pod.UID)] = pod
	return string(pod.UID)
}

func (p *Pods) get(id string) *corev1.Pod {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.byID[id]
}

func (p *Pods) ids() (all []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for id := range p.byID {
		all = append(all, id)
	}
	return all
}

// Serving is the state of each member.
type Serving struct{}

// Adapter is the backend as an adapter, an api.Mover if it is a backend.Mover.
func Adapter(b backend.Backend, pods *Pods) api.Adapter[*corev1.Service, Serving] {
	a := adapter{Backend: b, pods: pods}
	if m, moves := b.(backend.Mover); moves {
		return mover{a, m}
	}
	return a
}

type adapter struct {
	backend.Backend
	pods *Pods
}

func (a adapter) Selector(service *corev1.Service) labels.Selector {
	return a.Backend.Selector(service)
}

func (a adapter) Members(_ *corev1.Service, pod *corev1.Pod, serve bool) (map[string]Serving, error) {
	if id := a.pods.add(pod); serve {
		return map[string]Serving{id: {}}, nil
	}
	return nil, nil
}

var errUnknown = errors.New("it is not known what the backend does with the Pod")

func (a adapter) Read(_ context.Context, service *corev1.Service, ids []string) ([]api.Held[Serving], error) {
	if len(ids) == 0 {
		ids = a.pods.ids()
	}
	var held []api.Held[Serving]
	for _, id := range ids {
		pod := a.pods.get(id)
		if pod == nil || pod.Namespace != service.Namespace {
			continue
		}
		seen := a.Observe(service, pod)
		if seen.Unknown {
			return nil, errUnknown
		}
		if seen.Serving {
			held = append(held, api.Held[Serving]{ID: id, Serving: true})
		}
	}
	return held, nil
}

type mover struct {
	adapter
	mover backend.Mover
}

func (m mover) Apply(_ context.Context, service *corev1.Service, changes []api.Change[Serving]) error {
	for _, c := range changes {
		if c.Remove {
			m.mover.Deregister(service, m.pods.get(c.ID))
		} else {
			m.mover.Register(service, m.pods.get(c.ID))
		}
	}
	return nil
}
