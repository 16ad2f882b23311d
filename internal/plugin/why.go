package plugin

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/internal/insight"
)

const (
	// maxHolders is how many holders of a budget the text names.
	maxHolders = 8
	// maxTargets is how many targets of a job the text names.
	maxTargets = 20
)

func (p *plugin) whyCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "why [KIND/NAME]",
		GroupID: groupLook,
		Short:   "Show what a Pod, a workload or a job waits for, since when, and what to do",
		Long: `Show what a Pod, a workload, an OperationJob or a PodDecoration waits for, since when, and what to do.

The first reason is the blocker: what has to change first. A budget that is exhausted is shown with the Pods that use it
and what those wait for themselves. Without a kind, NAME is a Pod. Without a name, what waits in the namespace is listed.`,
		Example: `  # What waits in this namespace
  kubectl kuperator why
  kubectl kuperator why pod/web-7k2xd
  kubectl kuperator why collaset/web
  kubectl kuperator why operationjob/restart-web-x7k2p
  kubectl kuperator why poddecoration/proxy
  kubectl kuperator why deployment/guest -o json`,
		Args: between(0, 2),
		ValidArgsFunction: p.completeNames("Pod", appsv1alpha1.CollaSetKind, appsv1alpha1.OperationJobKind,
			appsv1alpha1.PodDecorationKind),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return p.whatWaits(cmd.Context())
			}
			return p.why(cmd.Context(), args)
		},
	}
}

func (p *plugin) why(ctx context.Context, args []string) error {
	ref, err := target(args, "Pod", "Pod", appsv1alpha1.CollaSetKind, appsv1alpha1.OperationJobKind,
		appsv1alpha1.PodDecorationKind, "Deployment", "StatefulSet", "ReplicaSet", "DaemonSet", "Job")
	if err != nil {
		return err
	}
	s, err := p.sessionFor(dryRunNone)
	if err != nil {
		return err
	}
	ref.Namespace = s.namespace
	answer, err := s.answer(ctx, ref)
	if err != nil {
		return err
	}
	return p.print(answer, func(w io.Writer) { writeAnswer(w, answer) })
}

// waitList is what why prints without a name.
type waitList struct {
	ObservedAt time.Time     `json:"observedAt"`
	Waits      []waiting     `json:"waits"`
	Gaps       []insight.Gap `json:"gaps,omitempty"`
}

// waiting is an object and what it waits for first.
type waiting struct {
	Object  insight.Ref    `json:"object"`
	Blocker insight.Reason `json:"blocker"`
}

// whatWaits lists what one may ask why about.
func (p *plugin) whatWaits(ctx context.Context) error {
	s, err := p.sessionFor(dryRunNone)
	if err != nil {
		return err
	}
	facts, err := s.facts(ctx, s.namespace)
	if err != nil {
		return err
	}
	fleet := insight.Describe(facts)
	found := waitsIn(fleet)
	return p.print(found, func(w io.Writer) {
		if len(found.Waits) == 0 {
			fmt.Fprintf(w, "Nothing waits in namespace %s. why KIND/NAME is about one object, and -n chooses another namespace.\n",
				s.namespace)
		} else {
			writeWaiting(w, found, fleet)
		}
		writeGaps(w, found.Gaps)
	})
}

// waitsIn are the jobs, PodDecorations, workloads and Pods of a fleet that wait, in this order.
func waitsIn(f insight.Fleet) waitList {
	found := waitList{ObservedAt: f.ObservedAt, Waits: []waiting{}, Gaps: f.Gaps}
	add := func(kind, namespace, name string, r *insight.Reason) {
		found.Waits = append(found.Waits, waiting{insight.Ref{Kind: kind, Namespace: namespace, Name: name}, *r})
	}
	for i := range f.Jobs {
		if j := &f.Jobs[i]; j.Ended == nil && len(j.Reasons) > 0 {
			add(appsv1alpha1.OperationJobKind, j.Namespace, j.Name, &j.Reasons[0])
		}
	}
	for i := range f.Decorations {
		if d := &f.Decorations[i]; len(d.Reasons) > 0 {
			add(appsv1alpha1.PodDecorationKind, d.Namespace, d.Name, &d.Reasons[0])
		}
	}
	for i := range f.Workloads {
		if w := &f.Workloads[i]; len(w.Reasons) > 0 {
			add(w.Kind, w.Namespace, w.Name, &w.Reasons[0])
		}
	}
	for i := range f.Workloads {
		for j := range f.Workloads[i].Pods {
			if p := &f.Workloads[i].Pods[j]; p.Blocker() != nil {
				add("Pod", p.Namespace, p.Name, p.Blocker())
			}
		}
	}
	return found
}

// writeWaiting is the list: a line for each job, PodDecoration and workload, and one for the Pods of a workload that
// wait for the same.
func writeWaiting(w io.Writer, found waitList, f insight.Fleet) {
	fmt.Fprintln(w, "These wait. why KIND/NAME tells of one of them what holds it up, and what to do:")
	var lines []string
	for _, one := range found.Waits {
		if one.Object.Kind != "Pod" {
			lines = append(lines, joined(shown(one.Object), string(one.Blocker.Code)+": "+one.Blocker.Message))
		}
	}
	for i := range f.Workloads {
		for _, group := range waitsOf(&f.Workloads[i], f) {
			who := "pod/" + group.pods[0]
			if others := len(group.pods) - 1; others > 0 {
				who += fmt.Sprintf(" and %d more", others)
			}
			lines = append(lines, joined(who, group.what(f)))
		}
	}
	for i, line := range lines {
		if i == maxTargets {
			fmt.Fprintf(w, "  and %s (-o json has them)\n", insight.Plural(len(lines)-maxTargets, "more reason"))
			return
		}
		fmt.Fprintf(w, "  %s\n", line)
	}
}

// answer reads the namespace and asks why.
func (s *session) answer(ctx context.Context, ref insight.Ref) (insight.Answer, error) {
	facts, err := s.facts(ctx, ref.Namespace)
	if err != nil {
		return insight.Answer{}, err
	}
	return s.answerFrom(ctx, facts, ref)
}

// answerFrom asks why of facts that were read before. Events are read.
func (s *session) answerFrom(ctx context.Context, facts insight.Facts, ref insight.Ref) (insight.Answer, error) {
	events, err := s.events(ctx, ref, &facts)
	if err != nil {
		return insight.Answer{}, err
	}
	answer, found := insight.Why(facts, ref, events)
	if !found {
		return answer, notThere(&facts, ref)
	}
	return answer, nil
}

// notThere is the error about an object that is not among the facts.
func notThere(facts *insight.Facts, ref insight.Ref) error {
	switch ref.Kind {
	case appsv1alpha1.OperationJobKind:
		return missing(facts.Gaps, ref, jobsResource,
			": it may have ended and be deleted already (spec.TTLSecondsAfterFinished)")
	case appsv1alpha1.PodDecorationKind:
		return missing(facts.Gaps, ref, decorationsResource, "")
	case "Pod":
		return fmt.Errorf("there is no Pod %s under the lifecycle (label %s) in namespace %s%s", ref.Name,
			managedPods, ref.Namespace, hint(facts, ref.Name))
	case appsv1alpha1.CollaSetKind:
		if !slices.ContainsFunc(facts.CollaSets, func(c appsv1alpha1.CollaSet) bool { return c.Name == ref.Name }) {
			return missing(facts.Gaps, ref, setsResource, "")
		}
	}
	return fmt.Errorf(
		"%s has no Pods under the lifecycle (label %s) in namespace %s; -n chooses another, and kubectl kuperator status "+
			"lists what has",
		shown(ref), managedPods, ref.Namespace)
}

// missing is the error about an object of a resource of which there are gaps, if it could not be read.
func missing(gaps []insight.Gap, ref insight.Ref, resource, why string) error {
	for _, g := range gaps {
		if strings.HasPrefix(g.What, resource) {
			return fmt.Errorf("reading %s: %s", shown(ref), g.Why)
		}
	}
	return fmt.Errorf("there is no %s %s in this namespace%s; -n chooses another namespace", ref.Kind, ref.Name, why)
}

// hint names the CollaSet that a Pod of that name would belong to: the Pod may not exist because it cannot be created.
func hint(facts *insight.Facts, pod string) string {
	for i := range facts.CollaSets {
		if set := facts.CollaSets[i].Name; strings.HasPrefix(pod, set+"-") {
			return "; if it should be there, ask why its workload lacks it: kubectl kuperator why collaset/" + set
		}
	}
	return "; -n chooses another namespace, and kubectl kuperator status --pods=all lists the Pods of this one"
}

// writeAnswer is the answer on one screen.
func writeAnswer(w io.Writer, a insight.Answer) {
	fmt.Fprintf(w, "%s\n", summary(a))
	isOver := a.Job != nil && a.Job.Ended != nil
	switch {
	case a.Blocker == nil && isOver:
	case a.Blocker == nil:
		fmt.Fprintln(w, "\nNothing holds it back.")
	case isOver:
		fmt.Fprintln(w, "\nFailed because of")
		writeReason(w, *a.Blocker, a.ObservedAt)
	default:
		fmt.Fprintln(w, "\nBlocked by")
		writeReason(w, *a.Blocker, a.ObservedAt)
	}
	if len(a.Reasons) > 1 {
		fmt.Fprintln(w, "\nAlso")
		for _, r := range a.Reasons[1:] {
			writeReason(w, r, a.ObservedAt)
		}
	}
	if len(a.Stuck) > 0 {
		fmt.Fprintln(w, "\nPods that wait")
		for _, s := range a.Stuck {
			more := ""
			if s.Count > len(s.Pods) {
				more = fmt.Sprintf(" and %d more", s.Count-len(s.Pods))
			}
			fmt.Fprintf(w, "  %d for %s: %s%s\n", s.Count, s.Code, strings.Join(s.Pods, ", "), more)
		}
	}
	if a.Job != nil {
		writeTargets(w, a.Job.Targets, a.ObservedAt)
	}
	if len(a.Events) > 0 {
		fmt.Fprintln(w, "\nWarnings")
		for _, e := range folded(a.Events) {
			times := ""
			if e.Count > 1 {
				times = fmt.Sprintf(" (%d times)", e.Count)
			}
			fmt.Fprintf(w, "  %s\n", joined(e.Reason+times+": "+e.Message, since(e.Last, a.ObservedAt)))
		}
	}
	if len(a.Gaps) > 0 {
		fmt.Fprintln(w)
		writeGaps(w, a.Gaps)
	}
}

// folded has events that say the same once. The newest come first.
func folded(events []insight.Event) []insight.Event {
	var all []insight.Event
	for _, e := range events {
		i := slices.IndexFunc(all, func(f insight.Event) bool { return f.Reason == e.Reason && f.Message == e.Message })
		if i < 0 {
			all = append(all, e)
		} else {
			all[i].Count += e.Count
		}
	}
	return all
}

// summary is the first lines: the subject, its operations, without the blocker, which follows.
func summary(a insight.Answer) string {
	if a.Job != nil {
		return a.Summary + "\n  created " + ago(a.Job.Created, a.ObservedAt)
	}
	if a.Pod == nil {
		return a.Summary
	}
	p := a.Pod
	text := joined(fmt.Sprintf("Pod %s/%s", p.Namespace, p.Name), string(p.State), onNode(p.Node),
		since(outSince(p), a.ObservedAt))
	if p.Revision != "" {
		text += "\n  revision " + p.Revision
	}
	for _, o := range p.Operations {
		kind, by := cmp.Or(o.Type, "operation without a type"), o.ID
		if o.Job != "" {
			by = "operationjob/" + o.Job
		}
		text += "\n  " + joined(fmt.Sprintf("%s by %s", kind, by), "phase "+o.Phase, since(o.Since, a.ObservedAt))
		if o.Overdue != "" {
			text += "\n     overdue: " + o.Overdue
		}
	}
	for _, m := range p.Marks {
		text += "\n  " + m.Label + " asked for by " + strings.Join(m.Askers, ", ")
	}
	return text
}

// writeTargets has a line for each target that waits, has failed, or was re-created.
func writeTargets(w io.Writer, targets []insight.Target, now time.Time) {
	if len(targets) > 0 {
		fmt.Fprintln(w, "\nTargets")
	}
	for i := range targets {
		if i == maxTargets {
			fmt.Fprintf(w, "  and %d more (-o json has them)\n", len(targets)-maxTargets)
			return
		}
		fmt.Fprintf(w, "  %s\n", targetText(&targets[i], now))
	}
}

// targetText is a target in one line.
func targetText(t *insight.Target, now time.Time) string {
	var what string
	switch {
	case t.Error != nil:
		what = fmt.Sprintf("%s: %s", t.Error.Code, t.Error.Message)
	case len(t.Reasons) > 0:
		what = fmt.Sprintf("waits for %s: %s", t.Reasons[0].Code, t.Reasons[0].Message)
	}
	started := ""
	if t.Error == nil && len(t.Reasons) > 0 {
		started = since(t.Started, now)
	}
	recreated, newPod := "", ""
	if t.Recreated != "" {
		recreated = "re-created, not restarted in place: " + t.Recreated
	}
	if t.NewPod != "" {
		newPod = "new Pod " + t.NewPod
	}
	return joined(t.Pod, t.Progress, started, newPod, recreated, what)
}

func writeReason(w io.Writer, r insight.Reason, now time.Time) {
	fmt.Fprintf(w, "  %s: %s\n", r.Code, r.Message)
	if r.Since != nil {
		fmt.Fprintf(w, "     %s\n", since(r.Since, now))
	}
	for i, h := range r.Holders {
		if i == maxHolders {
			fmt.Fprintf(w, "     and %d more\n", len(r.Holders)-maxHolders)
			break
		}
		what := "down"
		if h.Granted {
			what = "granted " + h.Operation
		}
		fmt.Fprintf(w, "     held by %s\n", joined("pod/"+h.Pod, what, string(h.State), since(h.Since, now)))
		if h.WaitsFor != nil {
			fmt.Fprintf(w, "        which waits for %s: %s\n", h.WaitsFor.Code, h.WaitsFor.Message)
		}
	}
	if r.Next != "" {
		fmt.Fprintf(w, "     next: %s\n", r.Next)
	}
}
