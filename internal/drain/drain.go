// Package drain decides how a Pod leaves that is evicted, or whose node is about to be drained: it is deleted
// gracefully, or another Pod takes its place first. It is pure. See docs/design/0042-drains.md.
package drain

import (
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
)

// Policy is what a workload has an eviction do to its Pods. The zero Policy deletes them gracefully.
type Policy struct {
	// OnEviction is "" for Delete.
	OnEviction appsv1alpha1.EvictionPolicy
	// Obstacle is why no Pod can be replaced although OnEviction wants it, for people; "" if nothing is in the way.
	Obstacle string
	// Early reports whether Pods are replaced when their node is about to be drained, before anything evicts them.
	Early bool
}

// PolicyOf reads the policy of a CollaSet. Nil, for a Pod of no CollaSet, gives the zero Policy.
func PolicyOf(set *appsv1alpha1.CollaSet) Policy {
	if set == nil || set.Spec.Disruption == nil || set.Spec.Disruption.OnEviction == appsv1alpha1.EvictionDelete {
		return Policy{}
	}
	p := Policy{OnEviction: set.Spec.Disruption.OnEviction, Early: set.Spec.Disruption.BeforeEviction}
	naming := set.Spec.NamingStrategy
	switch {
	case p.OnEviction == "":
	case set.DeletionTimestamp != nil:
		p.Obstacle = "CollaSet " + set.Name + " is being deleted"
	case len(set.Spec.VolumeClaimTemplates) > 0:
		p.Obstacle = "Pods of CollaSet " + set.Name + " have volumes of their own (volumeClaimTemplates)"
	case naming != nil && naming.PodNamingSuffixPolicy == appsv1alpha1.PodNamingSuffixPersistentSequence:
		p.Obstacle = "Pods of CollaSet " + set.Name + " have names in persistent sequence"
	}
	return p
}

// Surges reports whether Pods of the workload can be replaced by others first.
func (p Policy) Surges() bool {
	return p.Obstacle == "" &&
		(p.OnEviction == appsv1alpha1.EvictionReplace || p.OnEviction == appsv1alpha1.EvictionReplaceWhenBlocked)
}

// Values of podops.GracefulDeletionLabel.
const (
	GracefulEnabled  = "enabled"
	GracefulDisabled = "disabled"
)

// IsDisabled reports whether the graceful deletion of a Pod is disabled by its own label, or else by that of its
// namespace: what evicts it takes it away at once. Any other value than enabled and disabled counts as absent.
func IsDisabled(own, namespace string) bool {
	return own == GracefulDisabled || own != GracefulEnabled && namespace == GracefulDisabled
}

// Exhausted names a PodDisruptionBudget that selects a Pod with these labels and allows no disruption now, "" if there
// is none. One that mirrors a PodTransitionRule does not count: the rule itself decides when the Pod goes. A selector
// that cannot be read selects nothing, as in the API server.
func Exhausted(budgets []policyv1.PodDisruptionBudget, podLabels map[string]string) string {
	for i := range budgets {
		budget := &budgets[i]
		if budget.Status.DisruptionsAllowed > 0 {
			continue
		}
		selector, err := metav1.LabelSelectorAsSelector(budget.Spec.Selector)
		owner := metav1.GetControllerOf(budget)
		isMirror := owner != nil && owner.Kind == appsv1alpha1.PodTransitionRuleKind &&
			schema.FromAPIVersionAndKind(owner.APIVersion, owner.Kind).Group == appsv1alpha1.GroupName
		if !isMirror && err == nil && selector.Matches(labels.Set(podLabels)) {
			return budget.Name
		}
	}
	return ""
}

// Replaces reports whether another Pod takes the place of an evicted one first. isRefused reports whether a
// PodDisruptionBudget of a user allows no disruption of the Pod now.
func (p Policy) Replaces(v podops.View, isRefused bool) bool {
	_, isReplaced := v.Labels[appsv1alpha1.ToReplaceLabel]
	_, isDeleted := v.Labels[appsv1alpha1.ToDeleteLabel]
	switch {
	case !p.Surges():
		return false
	case IsEvicted(v, appsv1alpha1.ToReplaceLabel): // whatever its readiness is now
		return true
	case isDeleted: // until rules hold it, and only if no one else wants it deleted
		others := slices.ContainsFunc(podops.Askers(v, appsv1alpha1.ToDeleteLabel),
			func(asker string) bool { return !slices.Contains(evictions, asker) })
		return !others && IsHeld(v)
	case !serves(v):
		return false
	case isReplaced:
		return true
	default:
		return isRefused || p.OnEviction == appsv1alpha1.EvictionReplace
	}
}

// serves reports whether the Pod serves, or would if no operation had it out of service. Another Pod in the place of
// one that does not may never serve either.
func serves(v podops.View) bool { return v.Ready || v.ContainersReady && len(podops.Operations(v)) > 0 }

// IsHeld reports whether rules have held the Pod's graceful deletion for a while, as the Pod itself tells
// (podtransitionrule-controller's --annotate-blocked-after).
func IsHeld(v podops.View) bool {
	stage, waits := podops.StageOfPhase(podops.OperationOf(v, podops.DeletionID).Phase)
	if !waits || stage != appsv1alpha1.StagePreCheck {
		return false
	}
	for key, text := range v.Annotations {
		if strings.HasPrefix(key, podops.RuleDetailPrefix+"/") && !strings.Contains(text, `"passed":true`) {
			return true
		}
	}
	return false
}

// evictions are the askers that evict.
var evictions = []string{podops.AskerEviction, podops.AskerEvictionRequest}

// IsEvicted reports whether an eviction asks for the mark, by a call or by an EvictionRequest.
func IsEvicted(v podops.View, mark string) bool {
	return slices.ContainsFunc(evictions, func(asker string) bool { return podops.MarkedBy(v, mark, asker) })
}

// Ask is the change by which an eviction asks for the Pod to leave, in one way or the other. It is zero if the Pod is
// asked already. Where the Pod is replaced, evictions that asked for its deletion before ask for that instead. It
// returns an error if the asker's name is none.
func Ask(v podops.View, replaces bool, at time.Time, asker string) (podops.Change, error) {
	if !replaces {
		return podops.Mark(v, appsv1alpha1.ToDeleteLabel, podops.Stamp(at), asker)
	}
	c, err := podops.Mark(v, appsv1alpha1.ToReplaceLabel, "true", asker)
	if err != nil {
		return podops.Change{}, err
	}
	for _, evicts := range evictions {
		if !podops.MarkedBy(v, appsv1alpha1.ToDeleteLabel, evicts) {
			continue
		}
		replaces, err := podops.Mark(c.Apply(v), appsv1alpha1.ToReplaceLabel, "true", evicts)
		if err != nil {
			return podops.Change{}, err
		}
		c = c.Then(v, replaces)
		c = c.Then(v, podops.Withdraw(c.Apply(v), appsv1alpha1.ToDeleteLabel, evicts))
	}
	return c, nil
}

// What announces that a node is about to be drained.
var (
	// taints are those of Karpenter and cluster-autoscaler. Each keeps new Pods away.
	taints = []string{"karpenter.sh/disrupted", "ToBeDeletedByClusterAutoscaler"}
	// conditions are those of Kubernetes 1.37 (KEP-5683). None of them keeps new Pods away.
	conditions = []corev1.NodeConditionType{corev1.NodeDrainInProgress, corev1.NodeMaintenancePlanned,
		corev1.NodeMaintenanceInProgress, corev1.NodeGracefulNodeShutdownInProgress}
)

// NodeOf reads how a node stands. A condition counts once the node is cordoned: another Pod might be placed there again
// before.
func NodeOf(node *corev1.Node) Node {
	n := Node{Closed: node.Spec.Unschedulable}
	for _, t := range node.Spec.Taints {
		if slices.Contains(taints, t.Key) && t.Effect != corev1.TaintEffectPreferNoSchedule {
			n = Node{Closed: true, Leaving: true}
		}
	}
	for _, c := range node.Status.Conditions {
		if n.Closed && c.Status == corev1.ConditionTrue && slices.Contains(conditions, c.Type) {
			n.Leaving = true
		}
	}
	return n
}

// Node is how the node of a Pod stands.
type Node struct {
	// Closed reports whether no new Pod is placed there: it is cordoned, or has a taint that says so.
	Closed bool
	// Leaving reports whether it is about to be drained.
	Leaving bool
}

// Follow is the change by which a Pod of a workload with this policy follows its node: it is asked to be replaced while
// the node is about to be drained, and no longer when the node takes Pods again. A Pod that is evicted from a closed
// node is asked for the drain too, so that the eviction ends with the drain. A user who has taken the mark away is not
// asked again for as long as the node is closed.
func (p Policy) Follow(v podops.View, n Node) (podops.Change, error) {
	const mark = appsv1alpha1.ToReplaceLabel
	asked := podops.MarkedBy(v, mark, podops.AskerDrain)
	cancelled := !asked && podops.Recorded(v, mark, podops.AskerDrain)
	evicted := podops.MarkedBy(v, mark, podops.AskerEviction)
	_, isDeleted := v.Labels[appsv1alpha1.ToDeleteLabel]
	switch {
	case v.Terminating, v.Terminal:
		return podops.Change{}, nil
	case asked && !n.Closed:
		c := podops.Withdraw(v, mark, podops.AskerDrain)
		return c.Then(v, podops.Withdraw(c.Apply(v), mark, podops.AskerEviction)), nil
	case cancelled && !n.Closed:
		return podops.Unmark(v, mark), nil
	case asked, cancelled, !n.Closed, !p.Surges():
		return podops.Change{}, nil
	case evicted, n.Leaving && p.Early && !isDeleted && serves(v):
		return podops.Mark(v, mark, "true", podops.AskerDrain)
	default:
		return podops.Change{}, nil
	}
}
