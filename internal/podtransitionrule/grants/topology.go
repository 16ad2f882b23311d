package grants

import (
	"errors"

	"k8s.io/utils/ptr"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
)

// topology is the kind of domains that are values of a label of nodes.
type topology struct{ key string }

// newTopology prepares a topology budget, nil for none. The error says what to correct.
func newTopology(spec *appsv1alpha1.TopologyBudget) (*domains, error) {
	if spec == nil {
		return nil, nil
	}
	most := int(ptr.Deref(spec.MaxDisruptedDomains, 1))
	if spec.TopologyKey == "" || most < 0 {
		return nil, errors.New("topology needs a topologyKey, a label of nodes, and maxDisruptedDomains from 0")
	}
	return &domains{domainKind: topology{key: spec.TopologyKey}, max: most}, nil
}

// domainOf is the value on the Pod's node. A node that is not known is a domain by itself: whatever it turns out to be,
// it makes no more domains than were counted.
func (t topology) domainOf(d *decision, pod *pod) (domain, bool) {
	if pod.NodeName == "" {
		return domain{}, false
	}
	if labels, known := d.Nodes[pod.NodeName]; known {
		return domain{value: labels[t.key]}, true
	}
	return domain{single: pod.NodeName}, true
}

func (t topology) refusal(*pod) string {
	return "blocked by topology policy: no further domain of " + t.key + " may be disrupted now"
}
