package grants

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
	"kusionstack.io/kuperator/internal/soonest"
)

const (
	// maxBlockedDetails bounds the blocked Pods that status lists, maxGrantedDetails the verdicts on granted ones; it
	// counts them all, and has every grant.
	maxBlockedDetails = 64
	maxGrantedDetails = 64
	// maxTargets bounds the Pods that status names because the rule selects them, and maxTargetBytes their names
	// together: they are written with every change of a grant.
	maxTargets     = 5000
	maxTargetBytes = 128 << 10
	// countersEvery is the least time between two writes of a status in which only the counters or the targets changed.
	// updateTime has seconds, so this is one to two seconds.
	countersEvery = 2 * time.Second
)

// plan compares the outcome with the status that each rule has.
func (d *decision) plan() Plan {
	plan := Plan{Questions: d.questions, Budgets: d.mirrors()}
	for i, r := range d.rules {
		old := &r.Status
		status := *old // its lists are replaced, never changed
		status.Conditions = slices.Clone(old.Conditions)
		status.ObservedGeneration = r.Generation
		status.Grants = sortedGrants(d.grants[i])
		status.Details, status.Blocked = details(d.verdicts[i])
		status.Granted = granted(status.Grants) - int32(d.former[i])
		status.RuleStates = d.Tasks[r.UID]
		worth := r.conditions(&status.Conditions, d.Snapshot)

		counted := status
		counted.Desired, counted.Available = d.counters(i)
		counted.Targets = d.targets(i)
		now := metav1.NewTime(d.Now.Truncate(time.Second))
		if sameStatus(r.told(), status) {
			if old.Desired == counted.Desired && old.Available == counted.Available &&
				slices.Equal(old.Targets, counted.Targets) {
				continue
			}
			if old.UpdateTime != nil {
				if wait := countersEvery - d.Now.Sub(old.UpdateTime.Time); wait > 0 && wait <= countersEvery {
					plan.NextLook = soonest.Of(plan.NextLook, wait)
					continue
				}
			}
		}
		counted.UpdateTime = &now
		plan.Statuses = append(plan.Statuses, RuleStatus{
			Name: r.Name, UID: r.UID, Status: counted,
			NewlyStalled: worth.stalled, NewlyForeignBudget: worth.foreignBudget,
		})
	}
	plan.Notes = d.notes()
	plan.Figures = d.figures()
	return plan
}

// told is the rule's status with the generation of every grant.
func (r *rule) told() appsv1alpha1.PodTransitionRuleStatus {
	told := r.Status
	if slices.ContainsFunc(told.Grants, func(g appsv1alpha1.PodGrant) bool { return g.Generation == 0 }) {
		told.Grants = slices.Clone(told.Grants)
		for n := range told.Grants {
			told.Grants[n].Generation = podops.GrantedUnder(r.PodTransitionRule, told.Grants[n])
		}
	}
	return told
}

// sameStatus compares by value. What grows with the Pods is compared without reflection, which would be the larger
// part of a decision.
func sameStatus(a, b appsv1alpha1.PodTransitionRuleStatus) bool {
	if !slices.EqualFunc(a.Grants, b.Grants, sameGrant) || !slices.EqualFunc(a.Details, b.Details, sameDetail) ||
		!slices.Equal(a.Targets, b.Targets) {
		return false
	}
	a.Grants, a.Details, a.Targets, b.Grants, b.Details, b.Targets = nil, nil, nil, nil, nil, nil
	return equality.Semantic.DeepEqual(a, b)
}

func sameGrant(a, b appsv1alpha1.PodGrant) bool {
	return a.PodUID == b.PodUID && a.Stage == b.Stage && a.Generation == b.Generation && a.PodName == b.PodName &&
		a.GrantTime.Equal(&b.GrantTime) &&
		slices.Equal(a.Operations, b.Operations) && slices.Equal(a.Rules, b.Rules)
}

func sameDetail(a, b appsv1alpha1.TransitionDetail) bool {
	return a.Name == b.Name && a.Stage == b.Stage && a.Passed == b.Passed &&
		slices.Equal(a.PassedRules, b.PassedRules) && slices.Equal(a.RejectInfo, b.RejectInfo)
}

func sortedGrants(grants []appsv1alpha1.PodGrant) []appsv1alpha1.PodGrant {
	slices.SortFunc(grants, func(a, b appsv1alpha1.PodGrant) int {
		return cmp.Or(strings.Compare(a.PodName, b.PodName), strings.Compare(string(a.PodUID), string(b.PodUID)),
			cmp.Compare(b.Stage, a.Stage))
	})
	return grants
}

// granted is the number of Pods that have a grant, at any stage. grants are sorted by Pod.
func granted(grants []appsv1alpha1.PodGrant) int32 {
	var n int32
	for i := range grants {
		if i == 0 || grants[i].PodUID != grants[i-1].PodUID {
			n++
		}
	}
	return n
}

// details are the verdicts that fit, sorted by name, and the number of Pods that are blocked.
func details(verdicts []verdict) (listed []appsv1alpha1.TransitionDetail, blocked int32) {
	slices.SortFunc(verdicts, func(a, b verdict) int { return cmp.Compare(a.order, b.order) })
	pods := map[*pod]bool{}
	passed := 0
	for i := range verdicts {
		v := &verdicts[i]
		if v.granted {
			passed++
		} else {
			pods[v.pod] = true
		}
		if v.granted && passed > maxGrantedDetails || !v.granted && len(pods) > maxBlockedDetails {
			continue
		}
		v.listed = true
		listed = append(listed, appsv1alpha1.TransitionDetail{
			Name: v.Name, Stage: v.stage, Passed: v.granted, PassedRules: v.passed, RejectInfo: v.rejects,
		})
	}
	slices.SortStableFunc(listed, func(a, b appsv1alpha1.TransitionDetail) int {
		return cmp.Or(strings.Compare(a.Name, b.Name), cmp.Compare(b.Stage, a.Stage))
	})
	return listed, int32(len(pods))
}

// targets are the names of the Pods that the rule selects, the first of them if there are too many.
func (d *decision) targets(at int) []string {
	var names []string
	size := 0
	for j, p := range d.pods {
		if !d.selects[at][j] {
			continue
		}
		if size += len(p.Name); len(names) == maxTargets || size > maxTargetBytes {
			break
		}
		names = append(names, p.Name)
	}
	return names
}

// counters are the desired Pods of all that the rule selects, and how many of them are in service and not granted.
func (d *decision) counters(at int) (desired, available int32) {
	in := slices.Clone(d.selects[at])
	for j, p := range d.pods {
		in[j] = in[j] && !p.Terminal
		if in[j] && p.inService {
			available++
		}
	}
	for _, g := range d.grants[at] {
		if g.Stage != appsv1alpha1.StagePreCheck {
			continue
		}
		if j, found := slices.BinarySearchFunc(d.pods, g, byPod); found && in[j] && d.pods[j].inService {
			available--
		}
	}
	n, _ := population(d, in, nil, func(l labels.Labels) bool { return d.rules[at].selector.Matches(l) })
	return int32(n), available
}

func byPod(p *pod, g appsv1alpha1.PodGrant) int {
	return cmp.Or(strings.Compare(p.Name, g.PodName), strings.Compare(string(p.UID), string(g.PodUID)))
}

// news is what of the conditions is worth an event; "" for nothing.
type news struct{ stalled, foreignBudget string }

// conditions reports whether the rule can be evaluated, and whether its verdicts will change by themselves. Messages
// have no counters: a condition is not written for them.
func (r *rule) conditions(conditions *[]metav1.Condition, s Snapshot) news {
	var worth news
	ready := condition(appsv1alpha1.RuleReady, metav1.ConditionTrue, appsv1alpha1.ReasonInForce, "The rule is in force.")
	stalled := condition(appsv1alpha1.RuleStalled, metav1.ConditionFalse, appsv1alpha1.ReasonInForce,
		"The rule is in force.")
	switch {
	case r.shares != "":
		ready.Message = "The rule is in force, without a PodDisruptionBudget of its own: " +
			"Kubernetes evicts no Pod that two select, and " + r.shares + " selects its Pods and demands at least as much."
	case r.foreignBudget:
		ready.Message = "The rule is in force, without its PodDisruptionBudget: another object has the name " + r.Name +
			"; rename or delete that, or set spec.mirrorPodDisruptionBudget to false."
		if old := meta.FindStatusCondition(*conditions, appsv1alpha1.RuleReady); old == nil || old.Message != ready.Message {
			worth.foreignBudget = ready.Message
		}
	case r.rival != "":
		ready.Message = "The rule is in force. But Kubernetes evicts no Pod that two PodDisruptionBudgets select, and " +
			r.rival + " selects some of the same: " +
			"let one selector include the other and the wider demand enough, or set spec.mirrorPodDisruptionBudget to false."
	}
	if unreachable := s.Unreachable[r.UID]; unreachable != "" {
		ready = condition(appsv1alpha1.RuleReady, metav1.ConditionFalse, appsv1alpha1.ReasonWebhookUnreachable, unreachable)
	}
	if r.stalled != "" {
		ready = condition(appsv1alpha1.RuleReady, metav1.ConditionFalse, appsv1alpha1.ReasonInvalidRule, r.stalled)
		stalled = condition(appsv1alpha1.RuleStalled, metav1.ConditionTrue, appsv1alpha1.ReasonInvalidRule, r.stalled)
		if old := meta.FindStatusCondition(*conditions, appsv1alpha1.RuleStalled); old == nil ||
			old.Status != metav1.ConditionTrue || old.Message != r.stalled {
			worth.stalled = r.stalled
		}
	}
	for _, c := range []metav1.Condition{ready, r.reconciling(s.Frozen), stalled} {
		c.ObservedGeneration = r.Generation
		c.LastTransitionTime = metav1.NewTime(s.Now.Truncate(time.Second))
		meta.SetStatusCondition(conditions, c)
	}
	return worth
}

// reconciling says what is under way that will change the rule's verdicts by itself.
func (r *rule) reconciling(frozen string) metav1.Condition {
	switch {
	case r.asking:
		return condition(appsv1alpha1.RuleReconciling, metav1.ConditionTrue, appsv1alpha1.ReasonAskingWebhook,
			"A webhook has been asked and has not answered finally.")
	case r.extending:
		return condition(appsv1alpha1.RuleReconciling, metav1.ConditionTrue, appsv1alpha1.ReasonExtendingGrants,
			"Grants are being extended to all rules of their Pods.")
	case frozen != "":
		return condition(appsv1alpha1.RuleReconciling, metav1.ConditionFalse, appsv1alpha1.ReasonFrozen,
			"Nothing new is granted at PreCheck: "+frozen)
	}
	return condition(appsv1alpha1.RuleReconciling, metav1.ConditionFalse, appsv1alpha1.ReasonInForce,
		"Nothing is under way.")
}

func condition(
	kind string, status metav1.ConditionStatus, reason appsv1alpha1.ConditionReason, message string,
) metav1.Condition {
	return metav1.Condition{Type: kind, Status: status, Reason: string(reason), Message: message}
}
