package podops

import (
	"fmt"
	"slices"
	"strings"
	"time"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
)

// WaitReason is what an operation waits for, in a machine-readable form.
type WaitReason string

const (
	// WaitOperationType: the operator has not written the type of the operation.
	WaitOperationType WaitReason = "OperationTypeMissing"
	// WaitRule: a PodTransitionRule has not granted it.
	WaitRule WaitReason = "BlockedByRule"
	// WaitLifecycle: the next step is lifecycle-controller's.
	WaitLifecycle WaitReason = "WaitingForLifecycleController"
	// WaitFinalizer: a cooperator still holds the Pod.
	WaitFinalizer WaitReason = "WaitingForCooperatorToLeave"
	// WaitNotReady: the Pod is still observed to be Ready.
	WaitNotReady WaitReason = "WaitingForReadyFalse"
	// WaitOperator: the operator has permission and has not finished.
	WaitOperator WaitReason = "OperatorAtWork"
	// WaitReady: the Pod has not become Ready.
	WaitReady WaitReason = "WaitingForReady"
	// WaitExpected: an expected cooperator does not hold the Pod yet.
	WaitExpected WaitReason = "WaitingForCooperatorToJoin"
	// WaitStayOffline: a user keeps the Pod offline.
	WaitStayOffline WaitReason = "StayOffline"
	// WaitFrozen: the namespace or the cluster is frozen.
	WaitFrozen WaitReason = "Frozen"
	// WaitOther: another operation keeps the Pod offline.
	WaitOther WaitReason = "OtherOperation"
	// WaitRefused: the API server refuses the graceful deletion of the Pod, which has not begun.
	WaitRefused WaitReason = "DeletionRefused"
)

// WaitReasons are all reasons.
func WaitReasons() []WaitReason {
	return []WaitReason{
		WaitOperationType, WaitRule, WaitLifecycle, WaitFinalizer, WaitNotReady, WaitOperator,
		WaitReady, WaitExpected, WaitStayOffline, WaitFrozen, WaitOther, WaitRefused,
	}
}

// Wait is one thing that one operation waits for.
type Wait struct {
	// ID and Type name the operation; both are "" for a Pod that is merely not
	// in service.
	ID, Type string
	// Phase is PhaseNone for an operation that has not begun.
	Phase  Phase
	Reason WaitReason
	// Message is for people: what exactly, and whose it is.
	Message string
	// Since is when the phase began, by its writer's clock; zero if unknown.
	Since time.Time
}

// Explain returns what each operation on the Pod waits for. Without operations it returns why the Pod does not count as
// serving. The last entry is why its graceful deletion has not begun, if the API server refuses it. For a Pod that
// serves there are no other entries. rules are all rules of the Pod's namespace, and may be nil.
func Explain(v View, rules []Rule) []Wait {
	return ExplainWith(v, Surroundings{Rules: rules})
}

// Surroundings are what an operation may wait for outside the Pod itself.
type Surroundings struct {
	// Rules are all rules of the Pod's namespace; nil if there are none.
	Rules []Rule
	// Frozen is why no Pod may be taken out of service; "" if Pods may be.
	Frozen string
	// Employers has details about employers that have not brought the Pod back, by key "<Kind>/<namespace>/<name>". May
	// be nil.
	Employers map[string]string
	// Brief is whether to name blocking rules without their reasons: the text stays the same while the operation waits
	// for the same.
	Brief bool
}

// ExplainWith is Explain for a caller that knows more than the rules.
func ExplainWith(v View, s Surroundings) []Wait {
	var waits []Wait
	ops := Operations(v)
	for _, o := range ops {
		reason, message := explainOperation(v, o, s)
		waits = append(waits, Wait{ID: o.ID, Type: o.Type, Phase: o.Phase, Reason: reason, Message: message,
			Since: PhaseTime(v, o)})
	}
	if len(ops) == 0 && !v.ServiceAvailable() && !v.Terminating && !v.Terminal {
		reason, message := explainReturn(v, s)
		waits = append(waits, Wait{Reason: reason, Message: message})
	}
	if why, refused := DeletionRefused(v); refused {
		waits = append(waits, Wait{ID: DeletionID, Type: TypeDelete, Reason: WaitRefused, Message: ExplainRefusal(why)})
	}
	return waits
}

// DeletionRefused reports whether the API server refuses the graceful deletion of the Pod, which stays in service, and
// why.
func DeletionRefused(v View) (why string, refused bool) {
	if _, marked := v.Labels[appsv1alpha1.ToDeleteLabel]; !marked || v.Terminating || IsDuring(v, DeletionID, TypeDelete) {
		return "", false
	}
	why, refused = v.Annotations[DeletionRefusedAnnotation]
	return why, refused
}

// ExplainRefusal is the message for users when the API server refuses the graceful deletion of a Pod.
func ExplainRefusal(why string) string {
	return "the API server refuses to delete the Pod: " + why +
		"; nothing is done to it until it agrees, and it is asked again by itself"
}

func explainOperation(v View, o Operation, s Surroundings) (WaitReason, string) {
	switch o.Phase {
	case PhaseRequested, PhasePreCheck:
		if o.Type == "" {
			return WaitOperationType, fmt.Sprintf("label %s/%s is missing: the operator has not said what it wants to do",
				OperationTypePrefix, o.ID)
		}
		return explainRules(v, o, s)
	case PhasePostCheck, PhaseFinished:
		return explainRules(v, o, s)
	case PhasePreChecked, PhasePreparing:
		if held := ProtectionFinalizers(v.Finalizers); len(held) > 0 {
			return WaitFinalizer, "waiting for cooperators to leave: " + strings.Join(owners(v, held), ", ")
		}
		if v.Gate && v.Ready {
			return WaitNotReady, "the Pod is still Ready; waiting for its readiness to follow the gate " + ServiceReadyCondition
		}
		if _, unheld := v.Labels[UnheldLabel]; unheld {
			return WaitLifecycle, "out of service without " + annotated(v, s.Employers) +
				"; a cooperator that was about to put it on has a moment to undo that"
		}
		return WaitLifecycle, "out of service; the permission to operate is next"
	case PhaseOperate:
		return WaitOperator, fmt.Sprintf("operator %q may act and has not finished", o.ID)
	case PhasePostChecked, PhaseCompleting:
		if Offline(v) {
			return WaitOther, "finished; another operation keeps the Pod out of service"
		}
		return explainReturn(v, s)
	case PhaseUndone, PhaseAbandoned, PhaseNone:
		return WaitLifecycle, "cancelled; its labels are about to be removed"
	}
	return WaitLifecycle, "the next step is lifecycle-controller's"
}

func explainRules(v View, o Operation, s Surroundings) (WaitReason, string) {
	stage, _ := StageOfPhase(o.Phase)
	if s.Frozen != "" && stage == appsv1alpha1.StagePreCheck {
		return WaitFrozen, s.Frozen
	}
	var blocking []string
	for _, r := range s.Rules {
		if !r.BearsOn(v, stage) {
			continue
		}
		if r.lets(v, o, stage) {
			continue
		}
		if s.Brief {
			blocking = append(blocking, "rule "+r.Name+" has not let it pass")
			continue
		}
		blocking = append(blocking, r.explain(v))
	}
	if len(blocking) == 0 && stage == appsv1alpha1.StagePreCheck && v.returning() {
		return WaitExpected, "the Pod is Ready, but " + annotated(v, s.Employers) +
			" has not been put on, by which it is held until traffic is gone; it goes out of service after that, or if the finalizer does not come"
	}
	if len(blocking) == 0 {
		return WaitLifecycle, "no rule objects; the next step is lifecycle-controller's"
	}
	return WaitRule, strings.Join(blocking, "; ")
}

// explain says why the rule has not let the Pod pass, and who holds its budget.
func (r Rule) explain(v View) string {
	var reasons []string
	if d, ok := r.details[v.Name]; ok {
		for _, reject := range d.RejectInfo {
			reasons = append(reasons, reject.Reason)
		}
	}
	if len(reasons) == 0 {
		reasons = append(reasons, "not granted yet")
	}
	text := fmt.Sprintf("rule %s: %s", r.Name, strings.Join(reasons, ", "))
	var holders []string
	for _, g := range r.grants {
		if g.PodUID != v.UID {
			holders = append(holders, g.PodName)
		}
	}
	if len(holders) == 0 {
		return text
	}
	slices.Sort(holders)
	more := ""
	if len(holders) > 5 {
		more = fmt.Sprintf(" and %d more", len(holders)-5)
		holders = holders[:5]
	}
	return text + " (granted: " + strings.Join(holders, ", ") + more + ")"
}

func explainReturn(v View, s Surroundings) (WaitReason, string) {
	if _, stay := v.Labels[StayOfflineLabel]; stay {
		return WaitStayOffline, "label " + StayOfflineLabel + " keeps the Pod offline; remove it to let it serve"
	}
	if !v.Ready {
		return WaitReady, "the Pod is not Ready"
	}
	if missing := v.missingFinalizers(); len(missing) > 0 {
		return WaitExpected, "waiting for cooperators to join: " + annotated(v, s.Employers)
	}
	return WaitLifecycle, "in service; the label that says so is next"
}

// annotated lists employers that do not hold the Pod, with the finalizers that are missing, and what is known about
// them.
func annotated(v View, notes map[string]string) string {
	employers := v.missingFinalizers()
	expected, _ := ExpectedFinalizers(v.Annotations)
	listed := make([]string, len(employers))
	for i, employer := range employers {
		if listed[i] = employer; expected[employer] != "" {
			listed[i] = "finalizer " + expected[employer] + " of " + employer
		}
		if note := notes[employer]; note != "" {
			listed[i] += " (" + note + ")"
		}
	}
	return strings.Join(listed, ", ")
}

// owners names whose finalizers these are, where the Pod's annotation tells.
func owners(v View, finalizers []string) []string {
	expected, err := ExpectedFinalizers(v.Annotations)
	names := make([]string, 0, len(finalizers))
	for _, f := range finalizers {
		name := f
		if err == nil {
			for employer, ef := range expected {
				if ef == f {
					name = employer + " (" + f + ")"
				}
			}
		}
		names = append(names, name)
	}
	return names
}

// PhaseTime is when the operation's phase began, by its writer's clock; zero if unknown.
func PhaseTime(v View, o Operation) time.Time {
	prefix := OperatingPrefix
	switch o.Phase {
	case PhasePreCheck:
		prefix = PreCheckPrefix
	case PhasePreChecked, PhasePreparing:
		prefix = PreparingPrefix
	case PhaseOperate, PhaseFinished:
		prefix = OperatePrefix
	case PhasePostCheck:
		prefix = PostCheckPrefix
	case PhasePostChecked, PhaseCompleting:
		prefix = CompletingPrefix
	case PhaseNone, PhaseRequested, PhaseUndone, PhaseAbandoned:
	}
	t, _ := TimeOf(v.Labels[prefix+"/"+o.ID])
	return t
}
