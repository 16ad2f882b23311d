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

All workloads with Pods under the lifecycle (label kusionstack.io/control=true) are shown, CollaSets and others. Below
each are its Pods that are not in service or have an operation, with the operation, its phase, its start, and what it
waits for. OperationJobs are shown that run or have ended within ten minutes, and PodDecorations that wait for
something.

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
		Args: cobra.MaximumNArgs(2),
		ValidArgsFunction: p.completeNames(appsv1alpha1.CollaSetKind, appsv1alpha1.OperationJobKind,
			appsv1alpha1.PodDecorationKind),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := o.read(args); err != nil {
				return err
			}
			if !o.wait {
				return p.status(cmd.Context(), o)
			}
			if err := p.checkOutput(); err != nil {
				return err
			}
			s, err := p.connect()
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
	cmd.Flags().StringVar(&o.pods, "pods", podsMoving,
		"Pods to show: moving (not in service, or with an operation), all, or none.")
	cmd.Flags().IntVar(&o.limit, "limit", 20, "Maximum number of Pods per workload in text output. 0: all.")
	completed(cmd.RegisterFlagCompletionFunc("pods",
		cobra.FixedCompletions([]string{podsMoving, podsAll, podsNone}, cobra.ShellCompDirectiveNoFileComp)))
	return cmd
}

func (o *statusOptions) read(args []string) error {
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
	if err := p.checkOutput(); err != nil {
		return err
	}
	s, err := p.connect()
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
		fleet.Decorations = slices.DeleteFunc(decorations, func(d insight.Decoration) bool { return d.Name != o.only.Name })
		fleet.Workloads = []insight.Workload{}
		if len(fleet.Decorations) == 0 {
			return fleet, missing(fleet.Gaps, *o.only, decorationsResource, "")
		}
		return fleet, nil
	case appsv1alpha1.OperationJobKind:
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
	if len(fleet.Workloads) == 0 {
		return fleet, fmt.Errorf(
			"%s has no Pods under the lifecycle (label %s) in this namespace; kubectl kuperator status lists what has, -n chooses another namespace",
			shown(*o.only), managedPods)
	}
	fleet.Counts = fleet.Workloads[0].Counts
	return fleet, nil
}

// writeFleet is the tree.
func writeFleet(w io.Writer, f insight.Fleet, o statusOptions) {
	for _, freeze := range f.Freezes {
		what := "namespace " + freeze.Namespace
		if freeze.Cluster {
			what = "the cluster"
		}
		fmt.Fprintf(w, "FROZEN: %s: %s\n", what, freeze.Value())
	}
	for _, c := range f.Components {
		if c.State != insight.ComponentRunning {
			fmt.Fprintf(w, "NOT RUNNING: %s %s\n", c.Name, since(c.Renewed, f.ObservedAt))
		}
	}
	for _, b := range f.Budgets {
		if o.only == nil {
			writeBudget(w, b, f)
		}
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

// writeBudget is one line about a rule that has something to say.
func writeBudget(w io.Writer, b insight.Budget, f insight.Fleet) {
	if b.Granted == 0 && b.Blocked == 0 && len(b.Reasons) == 0 {
		return
	}
	fmt.Fprintf(w, "rule %s/%s  %s\n", b.Namespace, b.Name, strings.Join(b.Bounds, "; "))
	fmt.Fprintf(w, "   %d desired, %d available, %d granted, %d blocked\n", b.Desired, b.Available, b.Granted, b.Blocked)
	for _, r := range b.Reasons {
		fmt.Fprintf(w, "   %s\n", line(r, f))
	}
}

// writeJob is a job and the first thing that it waits for.
func writeJob(w io.Writer, j *insight.Job, f insight.Fleet) {
	underWay, at := "", since(j.Created, f.ObservedAt)
	if j.UnderWay > 0 {
		underWay = fmt.Sprintf(", %d under way", j.UnderWay)
	}
	if j.Ended != nil {
		at = "ended " + ago(j.Ended, f.ObservedAt)
	}
	fmt.Fprintf(w, "OperationJob %s\n",
		joined(j.Namespace+"/"+j.Name, j.Action, j.Progress, bar(j)+" "+j.Done()+underWay, at))
	for _, r := range j.Reasons[:min(len(j.Reasons), 1)] {
		fmt.Fprintf(w, "   %s\n", line(r, f))
	}
}

// writeDecoration is a PodDecoration and the first thing that it waits for.
func writeDecoration(w io.Writer, d *insight.Decoration, f insight.Fleet) {
	fmt.Fprintf(w, "PodDecoration %s\n", joined(d.Namespace+"/"+d.Name, d.Progress()))
	for _, r := range d.Reasons[:min(len(d.Reasons), 1)] {
		if r.Message != d.Progress() {
			fmt.Fprintf(w, "   %s\n", line(r, f))
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
		head += "  " + plural(total, "Pod")
	}
	if len(counts) > 0 {
		head += ": " + strings.Join(counts, ", ")
	}
	if workload.UpdatedRevision != "" && workload.CurrentRevision != workload.UpdatedRevision {
		head += fmt.Sprintf("  %s -> %s (%d updated)", workload.CurrentRevision, workload.UpdatedRevision, workload.Updated)
	}
	fmt.Fprintln(w, head)
	for _, r := range workload.Reasons {
		fmt.Fprintf(w, "│  %s\n", line(r, f))
	}
	pods := podsToShow(workload.Pods, o.pods)
	serving, rest := len(workload.Pods)-len(pods), 0
	if o.limit > 0 && len(pods) > o.limit {
		rest = len(pods) - o.limit
		pods = pods[:o.limit]
	}
	for i := range pods {
		branch := "├─"
		if i == len(pods)-1 && rest+serving == 0 {
			branch = "└─"
		}
		writePod(w, branch, &pods[i], f)
	}
	switch {
	case o.pods == podsNone:
	case rest > 0:
		fmt.Fprintf(w, "└─ and %s that wait or move (--limit=0 shows them)\n", plural(rest, "Pod"))
	case serving > 0:
		fmt.Fprintf(w, "└─ %s in service (--pods=all shows them)\n", plural(serving, "Pod"))
	}
}

// podsToShow are those that are wanted, the ones that are out of service first.
func podsToShow(pods []insight.Pod, which string) []insight.Pod {
	var kept []insight.Pod
	for i := range pods {
		if which == podsAll || which == podsMoving && (pods[i].State != insight.StateServing || len(pods[i].Reasons) > 0) {
			kept = append(kept, pods[i])
		}
	}
	in := func(p insight.Pod) int {
		if p.State == insight.StateServing || p.State == insight.StateWaiting {
			return 1
		}
		return 0
	}
	slices.SortStableFunc(kept, func(a, b insight.Pod) int { return in(a) - in(b) })
	return kept
}

func writePod(w io.Writer, branch string, p *insight.Pod, f insight.Fleet) {
	stem := "│  "
	if branch == "└─" {
		stem = "   "
	}
	fmt.Fprintf(w, "%s %s\n", branch, joined(p.Name, string(p.State), onNode(p.Node), outSince(p, f.ObservedAt)))
	for i := range p.Operations {
		o := &p.Operations[i]
		what := o.Type + " (" + o.ID + ")"
		fmt.Fprintf(w, "%s   %s\n", stem, joined(what, o.Phase, since(o.Since, f.ObservedAt)))
		if len(o.Reasons) > 0 {
			fmt.Fprintf(w, "%s      %s\n", stem, line(o.Reasons[0], f))
		}
		if o.Overdue != "" {
			fmt.Fprintf(w, "%s      overdue: %s\n", stem, o.Overdue)
		}
	}
	for _, r := range p.Reasons[:min(len(p.Reasons), 1)] {
		fmt.Fprintf(w, "%s   %s\n", stem, line(r, f))
	}
}

// outSince is since when a Pod is out of service.
func outSince(p *insight.Pod, now time.Time) string {
	if p.State == insight.StateServing || p.State == insight.StateWaiting {
		return ""
	}
	return since(p.Since, now)
}

func onNode(node string) string {
	if node == "" {
		return ""
	}
	return "on " + node
}

// line is a reason in one line.
func line(r insight.Reason, f insight.Fleet) string {
	return joined(string(r.Code)+": "+r.Message, since(r.Since, f.ObservedAt))
}
