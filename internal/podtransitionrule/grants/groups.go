package grants

import (
	"errors"

	"k8s.io/utils/ptr"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
)

// groups is the kind of domains that are values of a label of the Pods themselves, or of two.
type groups struct {
	key    string
	setKey string // "" for none
}

// newGroups prepares a budget of groups, nil for none. The error says what to correct.
func newGroups(spec *appsv1alpha1.GroupBudget) (*domains, error) {
	if spec == nil {
		return nil, nil
	}
	most := int(ptr.Deref(spec.MaxDisruptedGroups, 1))
	if spec.GroupKey == "" || most < 1 {
		return nil, errors.New("groups needs a groupKey, a label of Pods, and maxDisruptedGroups from 1")
	}
	return &domains{domainKind: groups{key: spec.GroupKey, setKey: spec.SetKey}, max: most}, nil
}

// domainOf is the Pod's group. A Pod without the label is a group by itself.
func (g groups) domainOf(_ *decision, pod *pod) (domain, bool) {
	value, has := pod.labels[g.key]
	if !has {
		return domain{single: string(pod.UID)}, true
	}
	return domain{set: g.set(pod), value: value}, true
}

func (g groups) refusal(pod *pod) string {
	waits := "blocked by group policy: "
	switch value, has := pod.labels[g.key]; {
	case !has:
		waits += "the Pod is a group of its own"
	case g.setKey != "":
		waits += "group " + g.set(pod) + "/" + value + " waits"
	default:
		waits += "group " + value + " waits"
	}
	return waits + ", no further group of " + g.key + " may be disrupted now"
}

// set is the value of the second label, "" for none.
func (g groups) set(pod *pod) string {
	if g.setKey == "" {
		return ""
	}
	return pod.labels[g.setKey]
}
