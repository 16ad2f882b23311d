package podops

import (
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
)

// Ask identifies a verdict: whether the operation may leave this stage.
type Ask struct {
	ID    string
	Stage appsv1alpha1.TransitionRuleStage
}

// Verdicts are the stages that every applicable rule permits to leave. A missing entry means no permission.
type Verdicts map[Ask]bool

// Step is the next state of a Pod: what is due according to Advance. The zero Step means that nothing is due.
type Step struct {
	Change
	// ServiceReady is the status to give the service-ready condition; "" leaves it as it is. A writer of False writes
	// Ready=False with it, if the Pod has the gate.
	ServiceReady corev1.ConditionStatus
}

// IsZero reports whether there is nothing to write.
func (s Step) IsZero() bool {
	return s.ServiceReady == "" && s.Change.IsZero()
}

// Advance returns everything that is due on the Pod, in one step: the structural steps of every ID, the steps that the
// verdicts permit, and the readiness and availability that follow. It is for the one program that may write the Pod's
// status, lifecycle-controller. All others use Structural, through the SDK.
//
// It is total (defined for every label set) and does nothing to a Pod that is being deleted. It is idempotent: applied
// to its own result it returns the zero Step, unless the readiness that the step wrote makes another step due, in which
// case it may follow once. now is only used for informational timestamps.
func Advance(v View, verdicts Verdicts, now time.Time) Step {
	return AdvanceWaiving(v, verdicts, nil, now)
}

// Waived are operations, by ID, that need not wait any longer for what this phase of them waits for. Other phases of
// the same ID are not waived.
type Waived map[string]Phase

// AdvanceWaiving is Advance for a Pod on which deadlines with policy Proceed have expired:
//
//   - Preparing continues with cooperators' finalizers still on the Pod, but not before service-ready is False and the
//     Pod is observed not to be Ready;
//   - Operate continues as if the operator had finished;
//   - PostCheck continues without its rules;
//   - Completing continues without the missing expected finalizers, but not before the Pod is Ready, and the Pod counts
//     as serving.
//
// In PreCheck only cooperators that are missing on a Ready Pod are waived, and the Pod gets UnheldLabel for them. Rules
// of PreCheck cannot be waived: SkipRulesAnnotation is for that. Everything else that Advance guarantees holds here
// too.
func AdvanceWaiving(v View, verdicts Verdicts, waived Waived, now time.Time) Step {
	return advance(v, verdicts, waived, now, true)
}

// Structural returns the steps that follow from the Pod's metadata and observed readiness alone. Any participant may
// write them with its own change.
func Structural(v View, now time.Time) Change {
	return advance(v, nil, nil, now, false).Change
}

func advance(v View, verdicts Verdicts, waived Waived, now time.Time, writesStatus bool) Step {
	if v.Terminating {
		return Step{}
	}
	a := newAdvancer(v, now)
	a.verdicts, a.waived, a.writesStatus = verdicts, waived, writesStatus
	// Each round moves an ID at most one phase. No ID moves more than once
	// around its machine, so this ends; the bound only guards against a defect.
	for range 16 {
		moved := false
		for _, o := range operations(a.labels) {
			moved = a.move(o) || moved
		}
		if !moved {
			break
		}
	}
	a.dropOrphanPermissions()
	step := Step{ServiceReady: a.serviceReady()}
	a.available()
	step.Change = diffLabels(v.Labels, a.labels)
	step.Annotations = a.staleDetails()
	return step
}

// staleDetails removes the annotations of rules from a Pod that leaves the last of its stages with this step. On a Pod
// that is in no stage anyway, podtransitionrule-controller removes them: they are no reason for a write.
func (a *advancer) staleDetails() map[string]*string {
	var removed map[string]*string
	for key := range a.Annotations {
		if strings.HasPrefix(key, RuleDetailPrefix+"/") {
			if removed == nil {
				removed = map[string]*string{}
			}
			removed[key] = nil
		}
	}
	inStage := func(o Operation) bool { _, waits := StageOfPhase(o.Phase); return waits }
	leaves := func(o Operation) bool { return inStage(o) || o.Phase == PhaseUndone || o.Phase == PhaseAbandoned }
	if removed == nil || !slices.ContainsFunc(operations(a.Labels), leaves) ||
		slices.ContainsFunc(operations(a.labels), inStage) {
		return nil
	}
	return removed
}

// advancer is one run of Advance: labels is the state so far.
type advancer struct {
	View
	labels       map[string]string
	verdicts     Verdicts
	waived       Waived
	stamp        string
	writesStatus bool
	// servesWithout is true if missing cooperators were waived.
	servesWithout bool
}

// newAdvancer starts from the view's labels, in their own copy.
func newAdvancer(v View, now time.Time) *advancer {
	a := &advancer{View: v, labels: make(map[string]string, len(v.Labels)), stamp: Stamp(now)}
	maps.Copy(a.labels, v.Labels)
	return a
}

// offline reports whether any operation, as it stands so far, needs the Pod out of service.
func (a *advancer) offline() bool {
	return slices.ContainsFunc(operations(a.labels), Operation.Offline)
}

// move takes the one step that is due for an operation and reports whether there was one.
func (a *advancer) move(o Operation) bool {
	switch o.Phase {
	case PhaseUndone, PhaseAbandoned:
		a.clearKeys(o.ID)
	case PhaseRequested:
		a.ask(o)
	case PhasePreCheck:
		if o.Type == "" || !a.verdicts[Ask{o.ID, appsv1alpha1.StagePreCheck}] || a.returning() && !a.waives(o) {
			return false
		}
		if a.returning() {
			a.labels[UnheldLabel] = a.stamp
		}
		a.permit(o)
	case PhasePreChecked:
		a.set(PreparingPrefix, o.ID)
		a.unset(o.ID, PreCheckPrefix)
	case PhasePreparing:
		return a.open(o)
	case PhaseFinished:
		a.finish(o)
	case PhasePostCheck:
		if !a.verdicts[Ask{o.ID, appsv1alpha1.StagePostCheck}] && !a.waives(o) {
			return false
		}
		a.set(PostCheckedPrefix, o.ID)
		a.unset(o.ID, PostCheckPrefix)
		a.set(CompletingPrefix, o.ID)
	case PhasePostChecked:
		a.set(CompletingPrefix, o.ID)
		a.unset(o.ID, PostCheckPrefix)
	case PhaseCompleting:
		return a.complete(o)
	case PhaseOperate:
		if !a.waives(o) {
			return false
		}
		delete(a.labels, OperatingPrefix+"/"+o.ID)
	case PhaseNone:
		return false
	}
	return true
}

// waives reports whether the operation need not wait for what its phase waits for.
func (a *advancer) waives(o Operation) bool { return a.waived[o.ID] == o.Phase }

// open lets the operator act if the Pod is out of service, or if that is waived. It waits for the removal of
// UnheldLabel.
func (a *advancer) open(o Operation) bool {
	if _, unheld := a.labels[UnheldLabel]; unheld {
		return false
	}
	waived := a.waives(o) && a.Protected() && a.observedOffline()
	if !waived && !a.mayOperate() {
		return false
	}
	a.unset(o.ID, PreparingPrefix, PreCheckPrefix)
	a.set(OperatePrefix, o.ID)
	if waived {
		a.labels[WaivedPrefix+"/"+o.ID] = o.Request
	}
	return true
}

// observedOffline reports whether the Pod was out of service before this step.
func (a *advancer) observedOffline() bool {
	return !a.Gate || a.Terminal || (a.ServiceReady == corev1.ConditionFalse && !a.Ready)
}

// complete ends an operation on a Pod that is back in service.
func (a *advancer) complete(o Operation) bool {
	waived := a.waives(o) && a.online()
	if !waived && !a.Terminal && !a.serving() {
		return false
	}
	a.clearKeys(o.ID)
	a.servesWithout = a.servesWithout || waived
	return true
}

// ask submits a request to the rules, without a permission of an earlier request.
func (a *advancer) ask(o Operation) {
	if o.Held {
		if _, marked := a.labels[OperatedPrefix+"/"+o.ID]; !marked {
			a.set(OperatedPrefix, o.ID)
			a.labels[DoneOperationTypePrefix+"/"+o.ID] = a.permittedType()
		}
		a.unset(o.ID, PostCheckPrefix)
	} else {
		a.unset(o.ID, OperatedPrefix, DoneOperationTypePrefix, PostCheckPrefix)
	}
	a.unset(o.ID, PreCheckedPrefix, PreparingPrefix, OperatePrefix, PostCheckedPrefix, CompletingPrefix, WaivedPrefix)
	a.set(PreCheckPrefix, o.ID)
}

func (a *advancer) permit(o Operation) {
	a.unset(o.ID, PreCheckPrefix, OperatedPrefix, DoneOperationTypePrefix)
	a.labels[PreCheckedPrefix+"/"+o.ID] = a.stamp
	if _, ok := TimeOf(o.Request); ok {
		a.labels[PreCheckedPrefix+"/"+o.ID] = o.Request
	}
	a.setIfAbsent(PermissionPrefix + "/" + o.Type)
	a.set(PreparingPrefix, o.ID)
}

func (a *advancer) finish(o Operation) {
	if _, done := a.labels[DoneOperationTypePrefix+"/"+o.ID]; !done {
		doneType := a.labels[OperationTypePrefix+"/"+o.ID]
		if doneType == "" {
			doneType = a.permittedType()
		}
		a.labels[DoneOperationTypePrefix+"/"+o.ID] = doneType
	}
	a.setIfAbsent(OperatedPrefix + "/" + o.ID)
	a.unset(o.ID, PreCheckPrefix, PreCheckedPrefix, PreparingPrefix, OperatePrefix, OperationTypePrefix, PostCheckedPrefix,
		CompletingPrefix, WaivedPrefix)
	a.set(PostCheckPrefix, o.ID)
}

// mayOperate reports whether the Pod, as it is or as written by this step, is out of service for every observer that
// the protocol knows.
func (a *advancer) mayOperate() bool {
	if a.Protected() {
		return false
	}
	if !a.Gate || a.Terminal {
		return true
	}
	if a.ServiceReady == corev1.ConditionFalse {
		return !a.Ready
	}
	return a.writesStatus
}

// serving reports whether the Pod, as observed, is in service and every expected cooperator holds it.
func (a *advancer) serving() bool {
	return a.online() && (a.servesWithout || len(a.missingFinalizers()) == 0)
}

// online reports whether the Pod, as observed, is Ready and nothing keeps it out of service.
func (a *advancer) online() bool {
	on := a.ServiceReady == corev1.ConditionTrue || (!a.Gate && a.ServiceReady != corev1.ConditionFalse)
	return !a.offline() && on && a.Ready && !a.stayOffline()
}

func (a *advancer) stayOffline() bool {
	_, stay := a.labels[StayOfflineLabel]
	return stay
}

// serviceReady is the status to write to the condition, "" for no change.
func (a *advancer) serviceReady() corev1.ConditionStatus {
	offline := a.offline()
	switch {
	case !a.writesStatus, a.Terminal:
		return ""
	case offline && a.ServiceReady != corev1.ConditionFalse:
		return corev1.ConditionFalse
	case offline, a.stayOffline(), a.ServiceReady == corev1.ConditionTrue:
		return ""
	case !a.Gate && a.ServiceReady == "":
		return "" // such a Pod was never taken offline
	case a.ServiceReady == "" && !a.ContainersReady:
		// A new Pod: scheduler and kubelet are writing it, and nothing is won by
		// racing them. The gate opens when it is all that is missing.
		return ""
	default:
		return corev1.ConditionTrue
	}
}

// available sets and removes the label that means that the Pod serves.
func (a *advancer) available() {
	ops := operations(a.labels)
	offline := slices.ContainsFunc(ops, Operation.Offline)
	completing := slices.ContainsFunc(ops, func(o Operation) bool { return o.Phase == PhaseCompleting })
	switch {
	case offline, a.writesStatus && !a.Ready:
		delete(a.labels, ServiceAvailableLabel)
	case completing, !a.serving():
	default:
		a.setIfAbsent(ServiceAvailableLabel)
		delete(a.labels, CreatingLabel)
		delete(a.labels, RecreatedLabel)
	}
}

// clearKeys removes every key of an ID, and the mark of a deletion that was cancelled.
func (a *advancer) clearKeys(id string) {
	a.unset(id, prefixes[:]...)
	if !slices.ContainsFunc(operations(a.labels), func(o Operation) bool { return o.Type != "" }) {
		delete(a.labels, PreparingToDeleteLabel)
	}
}

// dropOrphanPermissions removes permissions of types for which no operation of the Pod has passed PreCheck.
func (a *advancer) dropOrphanPermissions() {
	for key := range a.labels {
		if t, ok := strings.CutPrefix(key, PermissionPrefix+"/"); ok && !a.permitted(t) {
			delete(a.labels, key)
		}
	}
}

// permitted reports whether some ID has passed PreCheck for an operation of this type.
func (a *advancer) permitted(opType string) bool {
	for key := range a.labels {
		if id, ok := strings.CutPrefix(key, PreCheckedPrefix+"/"); ok && a.labels[OperationTypePrefix+"/"+id] == opType {
			return true
		}
	}
	return false
}

// permittedType is the type of an operation whose type label is lost or was
// overwritten: the permission that belongs to no other ID.
func (a *advancer) permittedType() string {
	var found []string
	for key := range a.labels {
		if t, ok := strings.CutPrefix(key, PermissionPrefix+"/"); ok && !a.permitted(t) {
			found = append(found, t)
		}
	}
	if len(found) == 0 {
		return "unknown"
	}
	return slices.Min(found)
}

func (a *advancer) set(prefix, id string) { a.labels[prefix+"/"+id] = a.stamp }

func (a *advancer) setIfAbsent(key string) {
	if _, ok := a.labels[key]; !ok {
		a.labels[key] = a.stamp
	}
}

func (a *advancer) unset(id string, prefixes ...string) {
	for _, p := range prefixes {
		delete(a.labels, p+"/"+id)
	}
}

// Stamp formats a time as the protocol's label values: decimal nanoseconds since 1970.
func Stamp(t time.Time) string { return strconv.FormatInt(t.UnixNano(), 10) }

// TimeOf parses such a value; false if it is not one.
func TimeOf(value string) (time.Time, bool) {
	ns, err := strconv.ParseInt(value, 10, 64)
	if err != nil || ns <= 0 {
		return time.Time{}, false
	}
	return time.Unix(0, ns), true
}
