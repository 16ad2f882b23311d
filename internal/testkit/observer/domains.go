package observer

import (
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
)

// node is what is known of a node.
type node struct {
	labels map[string]string
	// changed is when its labels last did; zero if they never have.
	changed time.Time
}

// applyNode keeps a node as it is now, or no more.
func (c *Checker) applyNode(obj *corev1.Node, e Event) {
	before := c.nodes[obj.Name]
	switch {
	case e.Deleted:
		delete(c.nodes, obj.Name)
	case before == nil:
		c.nodes[obj.Name] = &node{labels: obj.Labels}
	case !maps.Equal(before.labels, obj.Labels):
		c.nodes[obj.Name] = &node{labels: obj.Labels, changed: e.Time}
	}
}

// checkDomains judges a Pod that goes out of service by the topology budgets of the rules that select it, and by their
// budgets of groups: it may not open a further domain while operations have Pods of as many others out as a budget
// allows. Within a domain that is open, only numbers bound it.
//
// A Pod that was down already is not judged: its domain is disrupted anyway, and Pods that were out when the rule
// came do not keep it from being operated on. Nor is one whose node is not known, or got other labels a moment ago.
func (s *space) checkDomains(before, now *pod, e Event) {
	if !isReady(before.obj) {
		return
	}
	for _, name := range sortedKeys(s.rules) {
		r := s.rules[name]
		if !r.selects(now.obj) || excused(now.obj, r.obj) || s.settling(r.changed, now, e.Time) {
			continue
		}
		for i := range r.obj.Spec.Rules {
			t := &r.obj.Spec.Rules[i]
			if !bears(t) {
				continue
			}
			if budget := t.AvailablePolicy.Topology; budget != nil {
				s.checkDomain(now, r, e, domainBudget{
					limit: int(ptr.Deref(budget.MaxDisruptedDomains, 1)), kind: "domain", key: budget.TopologyKey,
					of: func(p *pod) (string, bool) { return s.domain(p, budget.TopologyKey, e) },
				})
			}
			if budget := t.AvailablePolicy.Groups; budget != nil {
				s.checkDomain(now, r, e, domainBudget{
					limit: int(ptr.Deref(budget.MaxDisruptedGroups, 1)), kind: "group", key: budget.GroupKey,
					of: func(p *pod) (string, bool) { return groupOf(p.obj, budget), true },
				})
			}
		}
	}
}

// domainBudget is how many domains of a kind may be open at a time. of is a Pod's, false if it has none or is not
// judged.
type domainBudget struct {
	limit     int
	kind, key string
	of        func(*pod) (string, bool)
}

func (s *space) checkDomain(p *pod, r *rule, e Event, budget domainBudget) {
	domain, known := budget.of(p)
	if !known {
		return
	}
	open := map[string]bool{}
	for _, other := range s.waiting {
		if other.obj.UID == p.obj.UID || !other.out || other.surplus || !r.selects(other.obj) || excused(other.obj, r.obj) ||
			lost(other.obj) ||
			s.settling(r.changed, other, other.outSince) {
			continue
		}
		if of, known := budget.of(other); known {
			open[of] = true
		}
	}
	within := budget.limit > 0 && (open[domain] || len(open) < budget.limit)
	s.check(Budget, e, within, "went out of service in %s %q of %s, of which rule %s allows %d at a time; open: %s",
		budget.kind, domain, budget.key, r.obj.Name, budget.limit, strings.Join(slices.Sorted(maps.Keys(open)), ", "))
}

// domain is the value of a label on the Pod's node, nothing included; false if it is not known for certain, or there
// is no node.
func (s *space) domain(p *pod, key string, e Event) (string, bool) {
	n := s.nodes[p.obj.Spec.NodeName]
	if n == nil || e.Time.Sub(n.changed) < s.options.Settle {
		return "", false
	}
	return n.labels[key], true
}

// groupOf is the group that a Pod is of, by its labels; a Pod without the label is one by itself.
func groupOf(obj *corev1.Pod, budget *appsv1alpha1.GroupBudget) string {
	if value, has := obj.Labels[budget.GroupKey]; has {
		return obj.Labels[budget.SetKey] + "/" + value
	}
	return "Pod " + obj.Name
}

// lost reports whether a Pod is being deleted without an operation.
func lost(obj *corev1.Pod) bool { return obj.DeletionTimestamp != nil && !hasKey(obj, operatePrefix) }

// bears reports whether a check bounds all Pods that its rule selects. Filtered checks and those with conditions
// bound only a part of them.
func bears(t *appsv1alpha1.TransitionRule) bool {
	return !t.Disabled && t.Filter == nil && len(t.Conditions) == 0 && t.AvailablePolicy != nil &&
		(t.Stage == nil || *t.Stage != appsv1alpha1.StagePostCheck)
}
