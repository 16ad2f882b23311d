package plugin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/internal/insight"
)

// statusOptions are the flags of status.
type statusOptions struct {
	allNamespaces, watch, wait bool
	timeout                    time.Duration
	pods                       string
	limit                      int
	only                       *insight.Ref
	// wide adds columns, and colour colours the states of Pods.
	wide, colour bool
}

const (
	podsMoving = "moving"
	podsAll    = "all"
	podsNone   = "none"
)

func (p *plugin) statusCommand() *cobra.Command {
	o := statusOptions{}
	cmd := &cobra.Command{
		Use:     "status [KIND/NAME]",
		GroupID: groupLook,
		Short:   "Show workloads, their Pods and operations, and what those wait for",
		Long: `Show workloads, their Pods and operations, and what those wait for.

Rules are shown with their budgets and the Pods that hold them, and all workloads with Pods under the lifecycle (label
kusionstack.io/control=true), CollaSets and others. Below each workload is a line for each Pod that is not in service,
has an operation or waits, and for each Pod of a workload that is named; then what they wait for, once for all Pods that
wait for the same. -o wide adds the node, and the phase and ID of the operation. OperationJobs are shown that run or have
ended within ten minutes, and PodDecorations that wait for something.

With --wait the command ends when the rollout of a CollaSet is done. The exit code is 0 if it is, 1 if the rollout has
failed, the CollaSet is paused or the timeout is over, and 130 if the command is stopped before.`,
		Example: `  # What is under way in this namespace
  kubectl kuperator status
  # One workload, live
  kubectl kuperator status collaset/web --watch
  # Wait until a rollout is done
  kubectl kuperator status collaset/web --wait --timeout=5m
  # A job, live
  kubectl kuperator status operationjob/restart-web-x7k2p --watch
  # A PodDecoration
  kubectl kuperator status poddecoration/proxy
  # All namespaces, for a program
  kubectl kuperator status -A -o json`,
		Args: between(0, 2),
		ValidArgsFunction: p.completeNames(appsv1alpha1.CollaSetKind, appsv1alpha1.OperationJobKind,
			appsv1alpha1.PodDecorationKind),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := o.read(args); err != nil {
				return err
			}
			o.wide, o.colour = p.output == outputWide, p.coloured()
			if !o.wait {
				return p.status(cmd.Context(), o)
			}
			s, err := p.sessionFor(dryRunNone)
			if err != nil {
				return err
			}
			return p.waitForRollout(cmd.Context(), s, o.only.Name, o.timeout)
		},
	}
	cmd.Flags().BoolVarP(&o.allNamespaces, "all-namespaces", "A", false, "Show all namespaces.")
	cmd.Flags().BoolVarP(&o.watch, "watch", "w", false,
		"Print the output again on each change. With -o json each output is one document.")
	cmd.Flags().BoolVar(&o.wait, "wait", false, "Wait until the rollout of a CollaSet is done or has failed.")
	cmd.Flags().DurationVar(&o.timeout, "timeout", 0, "Maximum time to wait with --wait, such as 5m. 0: no limit.")
	cmd.Flags().StringVar(&o.pods, "pods", "",
		"Pods to show: moving (not in service, with an operation, or waiting), all, or none. "+
			"Empty: all of a workload that is named, otherwise moving.")
	cmd.Flags().IntVar(&o.limit, "limit", 20, "Maximum number of Pods per workload in text output. 0: all.")
	completed(cmd.RegisterFlagCompletionFunc("pods",
		cobra.FixedCompletions([]string{podsMoving, podsAll, podsNone}, cobra.ShellCompDirectiveNoFileComp)))
	return cmd
}

func (o *statusOptions) read(args []string) error {
	switch {
	case o.pods == "" && len(args) > 0:
		o.pods = podsAll
	case o.pods == "":
		o.pods = podsMoving
	}
	if !slices.Contains([]string{podsMoving, podsAll, podsNone}, o.pods) {
		return fmt.Errorf("--pods is %q: use %s, %s or %s", o.pods, podsMoving, podsAll, podsNone)
	}
	switch {
	case o.timeout != 0 && !o.wait:
		return errors.New("--timeout is for --wait: add that")
	case o.timeout < 0:
		return fmt.Errorf("--timeout is %s: use a time such as 5m, or 0 for no limit", o.timeout)
	case o.wait && o.watch:
		return errors.New("--wait and --watch are two commands: leave one out")
	case o.wait && len(args) == 0:
		return errors.New("--wait is for one CollaSet: give it as collaset/NAME")
	case len(args) == 0:
		return nil
	}
	if o.allNamespaces {
		return fmt.Errorf("%s is in one namespace: give that with -n instead of -A", strings.Join(args, "/"))
	}
	ref, err := target(args, appsv1alpha1.CollaSetKind, appsv1alpha1.CollaSetKind, appsv1alpha1.OperationJobKind,
		appsv1alpha1.PodDecorationKind, "Deployment", "StatefulSet", "ReplicaSet", "DaemonSet", "Job", "Pod")
	o.only = &ref
	if err == nil && o.wait && ref.Kind != appsv1alpha1.CollaSetKind {
		return fmt.Errorf("--wait is for a CollaSet, and %s is none: use --watch", shown(ref))
	}
	return err
}

func (p *plugin) status(ctx context.Context, o statusOptions) error {
	s, err := p.sessionFor(dryRunNone)
	if err != nil {
		return err
	}
	namespace := s.namespace
	if o.allNamespaces {
		namespace = ""
	}
	if o.watch {
		return p.watch(ctx, s, namespace, o)
	}
	facts, err := s.facts(ctx, namespace)
	if err != nil {
		return err
	}
	fleet, err := o.pick(insight.Describe(facts))
	if err != nil {
		return err
	}
	return p.print(fleet, func(w io.Writer) { writeFleet(w, fleet, o) })
}

// pick keeps the object that was asked for.
func (o *statusOptions) pick(fleet insight.Fleet) (insight.Fleet, error) {
	if o.only == nil {
		return fleet, nil
	}
	jobs, decorations := fleet.Jobs, fleet.Decorations
	fleet.Jobs, fleet.Decorations = nil, nil
	switch o.only.Kind {
	case appsv1alpha1.PodDecorationKind:
		fleet.Budgets = nil
		fleet.Decorations = slices.DeleteFunc(decorations, func(d insight.Decoration) bool { return d.Name != o.only.Name })
		fleet.Workloads = []insight.Workload{}
		if len(fleet.Decorations) == 0 {
			return fleet, missing(fleet.Gaps, *o.only, decorationsResource, "")
		}
		return fleet, nil
	case appsv1alpha1.OperationJobKind:
		fleet.Budgets = nil
		fleet.Jobs = slices.DeleteFunc(jobs, func(j insight.Job) bool { return j.Name != o.only.Name })
		fleet.Workloads = []insight.Workload{}
		if len(fleet.Jobs) == 0 {
			return fleet, fmt.Errorf("no OperationJob %s runs in this namespace or has ended just now; "+
				"kubectl kuperator status lists those that do, -n chooses another namespace", o.only.Name)
		}
		return fleet, nil
	}
	fleet.Workloads = slices.DeleteFunc(fleet.Workloads,
		func(w insight.Workload) bool { return w.Kind != o.only.Kind || w.Name != o.only.Name })
	if len(fleet.Workloads) == 0 && o.only.Kind == appsv1alpha1.CollaSetKind {
		return fleet, missing(fleet.Gaps, *o.only, setsResource, "")
	}
	if len(fleet.Workloads) == 0 {
		return fleet, fmt.Errorf(
			"%s has no Pods under the lifecycle (label %s) in this namespace; kubectl kuperator status lists what has, -n chooses another namespace",
			shown(*o.only), managedPods)
	}
	fleet.Counts = fleet.Workloads[0].Counts
	fleet.Budgets = slices.DeleteFunc(fleet.Budgets, func(b insight.Budget) bool {
		return !slices.Contains(fleet.Workloads[0].Rules, b.Name)
	})
	return fleet, nil
}

// writeFleet is the whole as text.
func writeFleet(w io.Writer, f insight.Fleet, o statusOptions) {
	for _, freeze := range f.Freezes {
		what := "namespace " + freeze.Namespace
		if freeze.Cluster {
			what = "the cluster"
		}
		fmt.Fprintf(w, "FROZEN: %s: %s\n", what, freeze.Value())
	}
	for _, c := range f.Components {
		if c.State == insight.ComponentRunning {
			continue
		}
		last := ""
		if c.Renewed != nil {
			last = "last seen " + ago(c.Renewed, f.ObservedAt)
		}
		fmt.Fprintf(w, "NOT RUNNING: %s\n", joined(c.Name, last))
	}
	for _, b := range f.Budgets {
		writeBudget(w, b, f)
	}
	for i := range f.Jobs {
		writeJob(w, &f.Jobs[i], f)
	}
	for i := range f.Decorations {
		if d := &f.Decorations[i]; o.only != nil || len(d.Reasons) > 0 {
			writeDecoration(w, d, f)
		}
	}
	if len(f.Workloads) == 0 && o.only == nil {
		fmt.Fprintln(w, "no workload has Pods under the lifecycle (label "+managedPods+")")
	}
	for i := range f.Workloads {
		writeWorkload(w, &f.Workloads[i], f, o)
	}
	writeGaps(w, f.Gaps)
}

// writeBudget is one line about a rule, and one for each thing that is wrong with it.
func writeBudget(w io.Writer, b insight.Budget, f insight.Fleet) {
	counts := fmt.Sprintf("%d desired, %d available", b.Desired, b.Available)
	if b.Granted > 0 {
		counts += fmt.Sprintf(", %d granted", b.Granted)
	}
	if b.Blocked > 0 {
		counts += fmt.Sprintf(", %d blocked", b.Blocked)
	}
	fmt.Fprintf(w, "rule %s\n", joined(b.Namespace+"/"+b.Name, strings.Join(b.Bounds, "; "), counts, heldBy(b)))
	for _, r := range b.Reasons {
		fmt.Fprintf(w, "  %s\n", line(r, f))
	}
}

// heldBy names the holders of a budget; "" if there are none.
func heldBy(b insight.Budget) string {
	if len(b.Holders) == 0 {
		return ""
	}
	var names []string
	for i := range b.Holders {
		if i == maxNamed && len(b.Holders) > maxNamed+1 {
			return fmt.Sprintf("held by %s and %d more", strings.Join(names, ", "), len(b.Holders)-maxNamed)
		}
		names = append(names, b.Holders[i].Pod)
	}
	return "held by " + strings.Join(names, ", ")
}

// writeJob is a job and the first thing that it waits for.
func writeJob(w io.Writer, j *insight.Job, f insight.Fleet) {
	underWay, at := "", "created "+ago(j.Created, f.ObservedAt)
	if j.Created == nil {
		at = ""
	}
	if j.UnderWay > 0 {
		underWay = fmt.Sprintf(", %d under way", j.UnderWay)
	}
	if j.Ended != nil {
		at = "ended " + ago(j.Ended, f.ObservedAt)
	}
	fmt.Fprintf(w, "OperationJob %s\n",
		joined(j.Namespace+"/"+j.Name, j.Action, j.Progress, bar(j)+" "+j.Done()+underWay, at))
	for _, r := range j.Reasons[:min(len(j.Reasons), 1)] {
		fmt.Fprintf(w, "  %s\n", line(r, f))
	}
}

// writeDecoration is a PodDecoration and the first thing that it waits for.
func writeDecoration(w io.Writer, d *insight.Decoration, f insight.Fleet) {
	fmt.Fprintf(w, "PodDecoration %s\n", joined(d.Namespace+"/"+d.Name, d.Progress()))
	for _, r := range d.Reasons[:min(len(d.Reasons), 1)] {
		if r.Message != d.Progress() {
			fmt.Fprintf(w, "  %s\n", line(r, f))
		}
	}
}

// barWidth is the number of characters of a progress bar.
const barWidth = 20

// bar shows how many targets of a job have ended.
func bar(j *insight.Job) string {
	filled := 0
	if j.Total > 0 {
		filled = barWidth * (j.Succeeded + j.Failed) / j.Total
	}
	return strings.Repeat("█", filled) + strings.Repeat("░", barWidth-filled)
}

// writeWorkload is a workload with the Pods that are to be shown.
func writeWorkload(w io.Writer, workload *insight.Workload, f insight.Fleet, o statusOptions) {
	total := 0
	var counts []string
	for _, s := range insight.States() {
		if n := workload.Counts[s]; n > 0 {
			total += n
			counts = append(counts, fmt.Sprintf("%d %s", n, strings.ToLower(string(s))))
		}
	}
	head := fmt.Sprintf("%s %s/%s", workload.Kind, workload.Namespace, workload.Name)
	if workload.Desired != nil {
		head += fmt.Sprintf("  %d of %d Pods", total, *workload.Desired)
	} else {
		head += "  " + insight.Plural(total, "Pod")
	}
	if len(counts) > 0 {
		head += ": " + strings.Join(counts, ", ")
	}
	if workload.UpdatedRevision != "" && workload.CurrentRevision != workload.UpdatedRevision {
		head += fmt.Sprintf("  %s -> %s (%d updated)", workload.CurrentRevision, workload.UpdatedRevision, workload.Updated)
	}
	fmt.Fprintln(w, head)
	waits := waitsOf(workload, f)
	for _, r := range workload.Reasons {
		if !saidByPods(r, waits) {
			fmt.Fprintf(w, "  %s\n", line(r, f))
		}
	}
	pods := podsToShow(workload.Pods, o.pods)
	serving, rest := len(workload.Pods)-len(pods), 0
	if o.limit > 0 && len(pods) > o.limit {
		rest = len(pods) - o.limit
		pods = pods[:o.limit]
	}
	writeTable(w, "  ", podColumns(pods, f, o))
	switch {
	case o.pods == podsNone:
	case rest > 0:
		fmt.Fprintf(w, "  and %s (--limit=0 shows them)\n", insight.Plural(rest, "more Pod"))
	case serving > 0:
		fmt.Fprintf(w, "  %s in service (--pods=all shows them)\n", insight.Plural(serving, "Pod"))
	}
	writeWaits(w, slices.DeleteFunc(waits, func(one wait) bool {
		return slices.ContainsFunc(workload.Reasons, func(r insight.Reason) bool {
			return r.Code == one.reason.Code && r.Message == one.reason.Message
		})
	}), f, o.limit)
	for i := range workload.Pods {
		for _, o := range workload.Pods[i].Operations {
			if o.Overdue != "" {
				fmt.Fprintf(w, "  %s overdue: %s\n", workload.Pods[i].Name, o.Overdue)
			}
		}
	}
}

// writeWaits has a line for each wait.
func writeWaits(w io.Writer, waits []wait, f insight.Fleet, limit int) {
	for i, one := range waits {
		if limit > 0 && i == limit {
			fmt.Fprintf(w, "  and %s (--limit=0 shows them)\n", insight.Plural(len(waits)-limit, "more reason"))
			return
		}
		fmt.Fprintf(w, "  %s\n", one.text(f))
	}
}

// wait is what some Pods of a workload wait for alike.
type wait struct {
	reason insight.Reason
	pods   []string
}

// waitsOf is what the Pods of a workload wait for, what most wait for first.
func waitsOf(workload *insight.Workload, f insight.Fleet) []wait {
	var all []wait
	for _, p := range podsToShow(workload.Pods, podsMoving) {
		r := p.Blocker()
		if r == nil {
			continue
		}
		// The message of a budget has details of the Pod, and its holders are the same for all.
		budget := budgetOf(*r, f)
		at := slices.IndexFunc(all, func(w wait) bool {
			return w.reason.Code == r.Code && (w.reason.Message == r.Message || budget != nil && budgetOf(w.reason, f) == budget)
		})
		if at < 0 {
			all, at = append(all, wait{reason: *r}), len(all)
		}
		all[at].pods = append(all[at].pods, p.Name)
	}
	slices.SortStableFunc(all, func(a, b wait) int { return len(b.pods) - len(a.pods) })
	return all
}

// budgetOf is the budget that a reason is about: nil if it is about none, or it is not known.
func budgetOf(r insight.Reason, f insight.Fleet) *insight.Budget {
	if !r.Code.IsBudget() || r.On == nil {
		return nil
	}
	for i := range f.Budgets {
		if b := &f.Budgets[i]; b.Namespace == r.On.Namespace && b.Name == r.On.Name {
			return b
		}
	}
	return nil
}

// text is a wait in one line.
func (w wait) text(f insight.Fleet) string {
	who := fmt.Sprintf("%d Pods wait", len(w.pods))
	if len(w.pods) == 1 {
		who = w.pods[0] + " waits"
	}
	return who + ": " + w.what(f)
}

// what is the reason in one line, the same for all of the Pods.
func (w wait) what(f insight.Fleet) string {
	text := w.reason.Message
	if b := budgetOf(w.reason, f); b != nil && len(b.Holders) > 0 {
		text = "rule " + b.Name + ", " + heldBy(*b)
	}
	return string(w.reason.Code) + ": " + text
}

// saidByPods reports whether the waits of Pods have more about a reason of their workload.
func saidByPods(r insight.Reason, waits []wait) bool {
	return r.Code == waitingForPermission && len(waits) > 0
}

// waitingForPermission is the blocker of a CollaSet whose Pods wait for rules.
const waitingForPermission = insight.Code("WaitingForPermission")

// podColumns are the columns of a table of Pods.
func podColumns(pods []insight.Pod, f insight.Fleet, o statusOptions) []column {
	columns := []column{{head: "POD"}, {head: "STATE"}, {head: "OPERATION"}, {head: "FOR"}, {head: "WAITS FOR"},
		{head: "IMAGE"}, {head: "REVISION"}, {head: "AGE"}}
	if o.wide {
		columns = append(columns, column{head: "PHASE"}, column{head: "OPERATOR"}, column{head: "NODE"})
	}
	for i := range pods {
		p := &pods[i]
		var operations, phases, operators []string
		during := age(outSince(p), f.ObservedAt)
		for j := range p.Operations {
			one := &p.Operations[j]
			what := one.Type
			if one.Job != "" {
				what += " (" + one.Job + ")"
			}
			operations, phases, operators = append(operations, what), append(phases, one.Phase), append(operators, one.ID)
			if j == 0 && one.Since != nil {
				during = age(one.Since, f.ObservedAt)
			}
		}
		state, waits := cell{text: string(p.State)}, ""
		if o.colour {
			state.colour = colourOf(p.State)
		}
		if blocker := p.Blocker(); blocker != nil {
			waits = string(blocker.Code)
		}
		cells := []cell{{text: p.Name}, state, {text: strings.Join(operations, ",")}, {text: during}, {text: waits},
			{text: imagesText(p.Images, o.wide)}, {text: p.Revision}, {text: age(p.Created, f.ObservedAt)},
			{text: strings.Join(phases, ",")}, {text: strings.Join(operators, ",")}, {text: p.Node}}
		for c := range columns {
			columns[c].cells = append(columns[c].cells, cells[c])
		}
	}
	return columns
}

const (
	// maxNamed is how many holders and images are named in a line.
	maxNamed = 3
	// digestLength is how many digits of a digest are shown.
	digestLength = 12
)

// imagesText are images without their registries and folders; with them if it is wide.
func imagesText(images []string, wide bool) string {
	if wide {
		return strings.Join(images, ",")
	}
	var texts []string
	for i, image := range images {
		if i == maxNamed && len(images) > maxNamed+1 {
			texts = append(texts, fmt.Sprintf("%d more", len(images)-maxNamed))
			break
		}
		name, digest, _ := strings.Cut(image[strings.LastIndex(image, "/")+1:], "@sha256:")
		if digest != "" {
			name += "@" + digest[:min(digestLength, len(digest))]
		}
		texts = append(texts, name)
	}
	return strings.Join(texts, ",")
}

// podsToShow are those that are wanted: first the ones that are out of service, then those with an operation.
func podsToShow(pods []insight.Pod, which string) []insight.Pod {
	var kept []insight.Pod
	for i := range pods {
		if which == podsAll || which == podsMoving && (pods[i].State != insight.StateServing || len(pods[i].Reasons) > 0) {
			kept = append(kept, pods[i])
		}
	}
	in := func(p insight.Pod) int {
		switch p.State {
		case insight.StateServing:
			return 2
		case insight.StateWaiting:
			return 1
		default:
			return 0
		}
	}
	slices.SortStableFunc(kept, func(a, b insight.Pod) int { return in(a) - in(b) })
	return kept
}

// outSince is since when a Pod is out of service; nil if it is in service.
func outSince(p *insight.Pod) *time.Time {
	if p.State == insight.StateServing || p.State == insight.StateWaiting {
		return nil
	}
	return p.Since
}

func onNode(node string) string {
	if node == "" {
		return ""
	}
	return "on " + node
}

// line is a reason in one line.
func line(r insight.Reason, f insight.Fleet) string {
	text := string(r.Code) + ": " + r.Message
	if r.Since != nil {
		text += "  for " + age(r.Since, f.ObservedAt)
	}
	return text
}
