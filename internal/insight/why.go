package insight

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
)

// maxNamed bounds the Pods that a Stuck names.
const maxNamed = 10

// Why says what an object waits for, or why it is not where it should be: a Pod, an OperationJob, a PodDecoration, a
// CollaSet, or a workload of another kind that has Pods under the lifecycle. Of a job that has ended it says why it
// failed. events are about the object. False: the facts have no such object.
func Why(f Facts, ref Ref, events []corev1.Event) (Answer, bool) {
	x := newIndex(&f)
	switch ref.Kind {
	case "Pod":
		return x.whyPod(ref, events)
	case appsv1alpha1.OperationJobKind:
		return x.whyJob(ref, events)
	case appsv1alpha1.PodDecorationKind:
		return x.whyDecoration(ref, events)
	}
	return x.whyWorkload(ref, events)
}

func (x *index) whyPod(ref Ref, events []corev1.Event) (Answer, bool) {
	pod := x.pods[types.NamespacedName{Namespace: ref.Namespace, Name: ref.Name}]
	if pod == nil {
		return Answer{}, false
	}
	p := x.pod(pod)
	a := Answer{ObservedAt: x.Now.UTC(), Subject: ref, Pod: &p, Reasons: p.all(), Events: warnings(events), Gaps: x.Gaps}
	// A workload that is not at its spec may explain a Pod that is.
	if set := x.setOf(pod); set != nil && len(a.Reasons) == 0 && set.Spec.Paused {
		a.Reasons = append(a.Reasons, paused(set))
	}
	x.nameHolders(a.Reasons, ref.Name)
	a.conclude(podSummary(p))
	return a, true
}

func (x *index) whyWorkload(ref Ref, events []corev1.Event) (Answer, bool) {
	all := x.workloads()
	at := slices.IndexFunc(all, func(w Workload) bool { return w.Ref == ref })
	if at < 0 {
		return Answer{}, false
	}
	w := all[at]
	a := Answer{ObservedAt: x.Now.UTC(), Subject: ref, Events: warnings(events), Gaps: x.Gaps}
	a.Stuck = stuck(w.Pods)
	pods := w.Pods
	w.Pods = []Pod{}
	a.Workload = &w
	a.Reasons = append(a.Reasons, w.Reasons...)
	for _, s := range a.Stuck {
		a.Reasons = append(a.Reasons, s.Example)
	}
	a.Reasons = byDepth(once(a.Reasons))
	x.nameHolders(a.Reasons, "")
	a.conclude(workloadSummary(w, len(pods)))
	return a, true
}

// symptoms are reasons that say no more than that something else is not done.
var symptoms = []Code{
	"Waiting", "WaitingForPermission", "WaitingForContainers", "ContainersFail", "WaitingForDeletion",
	"WaitingForReplacement", "InFlightLimit", "MaxUnavailable", CodeQueued, CodeHeldByPartition,
	Code(appsv1alpha1.ReasonUpdating), Code(appsv1alpha1.ReasonScaling), Code(appsv1alpha1.ReasonTerminating),
	Code(appsv1alpha1.ReasonUnavailable), Code(appsv1alpha1.ReasonBlocked),
	codeOperatorAtWork, codeLifecycle, codeBlockedByRule, codeWaitingForReady, codeOtherOperation, CodeTargetUnderWay,
}

// byDepth puts symptoms behind causes: a CollaSet that waits for permission or for availability does so because of its
// Pods, and a budget is spent because of Pods that do not come back.
func byDepth(reasons []Reason) []Reason {
	rank := func(r Reason) int {
		switch {
		case slices.Contains(symptoms, r.Code):
			return 2
		case r.Code.IsBudget():
			return 1
		}
		return 0
	}
	slices.SortStableFunc(reasons, func(a, b Reason) int { return cmp.Compare(rank(a), rank(b)) })
	return reasons
}

// stuck sums up what Pods wait for, by the code of their blockers.
func stuck(pods []Pod) []Stuck {
	return group(len(pods), func(i int) (string, *Reason) { return pods[i].Name, pods[i].Blocker() })
}

// group sums up n Pods by the code of their reasons. of returns the name of each and its reason, nil if it has none.
func group(n int, of func(int) (string, *Reason)) []Stuck {
	var all []Stuck
	for i := range n {
		name, b := of(i)
		if b == nil {
			continue
		}
		at := slices.IndexFunc(all, func(s Stuck) bool { return s.Code == b.Code })
		if at < 0 {
			at, all = len(all), append(all, Stuck{Code: b.Code, Example: *b, Pods: []string{}})
		}
		all[at].Count++
		if len(all[at].Pods) < maxNamed {
			all[at].Pods = append(all[at].Pods, name)
		}
	}
	slices.SortStableFunc(all, func(a, b Stuck) int { return cmp.Compare(b.Count, a.Count) })
	return all
}

// nameHolders says who holds the budgets that reasons are about.
func (x *index) nameHolders(reasons []Reason, but string) {
	for i := range reasons {
		if !reasons[i].Code.IsBudget() {
			continue
		}
		at := x.ruleOf(reasons[i])
		if at < 0 {
			continue
		}
		namespace := reasons[i].On.Namespace
		holders := x.holders(x.sources[namespace][at], x.rules[namespace][at])
		reasons[i].Holders = slices.DeleteFunc(holders, func(h Holder) bool { return h.Pod == but })
	}
}

// conclude names the blocker.
func (a *Answer) conclude(summary string) {
	a.Summary = summary
	if len(a.Reasons) > 0 {
		a.Blocker = &a.Reasons[0]
	}
}

func podSummary(p Pod) string {
	text := map[State]string{
		StateServing: "is in service", StateWaiting: "is in service", StateLeaving: "is being taken out of service",
		StateOperating: "is out of service, and an operator may act",
		StateReturning: "returns to service", StateStarting: "is new and has not served yet", StateDown: "is not in service",
		StateTerminating: "is being deleted", StateEnded: "has run to its end",
	}[p.State]
	var during []string
	for _, o := range p.Operations {
		during = append(during, fmt.Sprintf("operation %s of %s is in phase %s", cmp.Or(o.Type, "without a type"),
			o.ID, o.Phase))
	}
	if len(during) > 0 {
		text += "; " + strings.Join(during, ", ")
	}
	for _, m := range p.Marks {
		text += "; " + m.Label + " is asked for by " + strings.Join(m.Askers, ", ")
	}
	if b := p.Blocker(); b != nil {
		return "Pod " + p.Name + " " + text + "; blocked by " + string(b.Code) + ": " + b.Message
	}
	return "Pod " + p.Name + " " + text + "; nothing is wanted of it"
}

func workloadSummary(w Workload, pods int) string {
	text := fmt.Sprintf("%s %s: %s", w.Kind, w.Name, Plural(pods, "Pod"))
	if w.Desired != nil {
		text = fmt.Sprintf("%s %s: %d of %d Pods", w.Kind, w.Name, pods, *w.Desired)
	}
	var counts []string
	for _, s := range States() {
		if w.Counts[s] > 0 {
			counts = append(counts, fmt.Sprintf("%d %s", w.Counts[s], strings.ToLower(string(s))))
		}
	}
	if len(counts) > 0 {
		text += " (" + strings.Join(counts, ", ") + ")"
	}
	if w.UpdatedRevision != "" && w.UpdatedRevision != w.CurrentRevision {
		text += fmt.Sprintf("; %d at revision %s", w.Updated, w.UpdatedRevision)
	}
	return text
}

// warnings are the newest Warning events, newest first.
func warnings(events []corev1.Event) []Event {
	return newest(events, 5, func(e *corev1.Event) bool { return e.Type == corev1.EventTypeWarning })
}

// newest are at most n of the events that are wanted, newest first.
func newest(events []corev1.Event, n int, wanted func(*corev1.Event) bool) []Event {
	var found []Event
	for i := range events {
		if e := &events[i]; wanted(e) {
			found = append(found, eventOf(e))
		}
	}
	slices.SortStableFunc(found, newerFirst)
	return found[:min(len(found), n)]
}

func eventOf(e *corev1.Event) Event {
	last := e.LastTimestamp.Time
	if last.IsZero() {
		last = e.EventTime.Time
	}
	if e.Series != nil && e.Series.LastObservedTime.After(last) {
		last = e.Series.LastObservedTime.Time
	}
	count := max(e.Count, 1)
	if e.Series != nil {
		count = e.Series.Count
	}
	return Event{Reason: e.Reason, Message: e.Message, Count: count, Last: timeOf(last),
		Normal: e.Type != corev1.EventTypeWarning, From: cmp.Or(e.ReportingController, e.Source.Component)}
}

func newerFirst(a, b Event) int {
	if a.Last == nil || b.Last == nil {
		return 0
	}
	return b.Last.Compare(*a.Last)
}
