package plugin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/internal/insight"
	"kusionstack.io/kuperator/internal/revision"
)

const (
	// lookEvery is the interval at which a CollaSet is read whose rollout is waited for.
	lookEvery = time.Second
	// lookFor is how many times in a row it may be impossible to read it.
	lookFor = 30
)

// waitForRollout prints how far the rollout of a CollaSet is, a line for each change, until it is done. It is an error
// if the rollout fails or is paused, or is not done within the timeout; 0 means none.
func (p *plugin) waitForRollout(ctx context.Context, s *session, name string, timeout time.Duration) error {
	waiting, stop := ctx, context.CancelFunc(func() {})
	if timeout > 0 {
		waiting, stop = context.WithTimeout(ctx, timeout)
	}
	defer stop()
	out := p.Out
	if !p.isText() { // which is how it ends
		out = io.Discard
	}
	ref := insight.Ref{Kind: appsv1alpha1.CollaSetKind, Namespace: s.namespace, Name: name}
	rollout, printed := insight.Rollout{CollaSet: ref, State: insight.RolloutWaits, Message: "it has not been read"}, ""
	failures := 0
	for {
		set, err := s.suite.AppsV1alpha1().CollaSets(s.namespace).Get(waiting, name, metav1.GetOptions{})
		switch {
		case err == nil:
			failures, rollout = 0, insight.RolloutOf(set)
		case waiting.Err() == nil:
			if failures++; failures > lookFor || printed == "" || isFinal(err) {
				return fmt.Errorf("reading collaset/%s in namespace %s: %w", name, s.namespace, err)
			}
		}
		if rollout.State != insight.RolloutWaits {
			return p.reportRollout(rollout)
		}
		if err == nil && rollout.Message != printed {
			printed = rollout.Message
			fmt.Fprintf(out, "Waiting for rollout to finish: %s...\n", printed)
		}
		select {
		case <-waiting.Done():
			return p.rolloutNotDone(ctx, rollout, timeout)
		case <-s.clock.After(lookEvery):
		}
	}
}

// isFinal reports whether an error of reading stays as it is however often it is tried.
func isFinal(err error) bool {
	return apierrors.IsNotFound(err) || apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err)
}

// reportRollout prints how a rollout has ended. It is an error unless it is done.
func (p *plugin) reportRollout(r insight.Rollout) error {
	err := p.print(r, func(w io.Writer) {
		if r.State == insight.RolloutDone {
			text := fmt.Sprintf("collaset %q successfully rolled out", r.CollaSet.Name)
			if r.Message != "" {
				text += ": " + r.Message
			}
			fmt.Fprintln(w, text)
		}
	})
	switch {
	case err != nil || r.State == insight.RolloutDone:
		return err
	case r.State == insight.RolloutPaused:
		return fmt.Errorf("%s is paused: %s", shown(r.CollaSet), r.Message)
	}
	return fmt.Errorf("the rollout of %s has failed: %s", shown(r.CollaSet), r.Message)
}

// rolloutNotDone is the error that a rollout is not waited for any longer.
func (p *plugin) rolloutNotDone(ctx context.Context, r insight.Rollout, timeout time.Duration) error {
	if ctx.Err() != nil {
		fmt.Fprintf(p.ErrOut, "the rollout of %s goes on\n", shown(r.CollaSet))
		return errInterrupted
	}
	if err := p.print(r, func(io.Writer) {}); err != nil {
		return err
	}
	text := fmt.Sprintf("the rollout of %s is not done after %s: %s", shown(r.CollaSet), timeout, r.Message)
	if r.Blocker != "" {
		text += fmt.Sprintf("; %s\nto see what to do: kubectl kuperator -n %s why %s", r.Blocker, r.CollaSet.Namespace,
			shown(r.CollaSet))
	}
	return errors.New(text)
}

func (p *plugin) promoteCommand() *cobra.Command {
	var partition string
	cmd := p.onSet("promote", "Update more Pods of a CollaSet, by a lower partition",
		`Update more Pods of a CollaSet, by a lower partition: all of them, or all but as many as --partition says.

Rules, maxUnavailable and a pause apply as before. To hold back more Pods, change the partition in the manifest. The
roles edit and kuperator-operate may promote.`,
		func(s *session, ctx context.Context, set *appsv1alpha1.CollaSet, dry dryRun) (change, error) {
			to, err := parsePartition(partition)
			if err != nil {
				return change{}, err
			}
			return s.promote(ctx, set, to, dry)
		})
	cmd.Example = `  # Update all Pods
  kubectl kuperator promote collaset/web
  # Update all but three, or all but a third
  kubectl kuperator promote collaset/web --partition=3
  kubectl kuperator promote collaset/web --partition=33% --dry-run=server`
	cmd.Flags().StringVar(&partition, "partition", "all",
		"How many Pods stay as they are: a number, or a percentage of the replicas, rounded up. all, as 0: all are updated.")
	return cmd
}

// promote lowers the partition to that value; nil removes it.
func (s *session) promote(
	ctx context.Context, set *appsv1alpha1.CollaSet, to *intstr.IntOrString, dry dryRun,
) (change, error) {
	promotion, err := insight.Promote(set, to)
	if err != nil {
		return change{}, err
	}
	c := change{Object: refOfSet(set), Action: "promoted", Changed: promotion.Changed, Details: promotion.Details}
	if !c.Changed {
		c.idle = "has that partition already"
		if insight.Partition(set) == nil {
			c.idle = "has no partition that holds Pods back"
		}
		return c, nil
	}
	c.tell(s.forced(ctx, set))
	c.tell(insight.WhilePaused(set))
	var value any // nothing removes the field
	if to != nil {
		value = to
	}
	return c, s.patchSet(ctx, set, map[string]any{"updateStrategy": map[string]any{"rollingUpdate": map[string]any{
		"byPartition": map[string]any{"partition": value}}}}, dry)
}

// forced is why a rollout under way does not update Pods in place; "" if it does, or if that cannot be told.
func (s *session) forced(ctx context.Context, set *appsv1alpha1.CollaSet) string {
	policy := set.Spec.UpdateStrategy.PodUpdatePolicy
	if policy == appsv1alpha1.PodUpdateRecreate || policy == appsv1alpha1.PodUpdateReplace {
		return "" // the policy has it
	}
	_, contents, err := s.revisions(ctx, set)
	from, to := contents[set.Status.CurrentRevision], contents[set.Status.UpdatedRevision]
	if err != nil || from == nil || to == nil {
		return ""
	}
	can, err := s.capabilities(ctx)
	if err != nil {
		return ""
	}
	return forcedText(policy, revision.Explain(from, to, can))
}

func forcedText(policy appsv1alpha1.PodUpdatePolicy, change revision.Change) string {
	because := " because of " + strings.Join(change.Forcing, ", ")
	switch {
	case change.InPlace() || change.OnlyClaimsForce():
		return ""
	case policy == appsv1alpha1.PodUpdateInPlaceOnly:
		return "they are not updated (InPlaceOnly)" + because
	}
	return "they are re-created" + because
}

// parsePartition reads --partition; nil for no Pod.
func parsePartition(text string) (*intstr.IntOrString, error) {
	digits, isPercentage := strings.CutSuffix(text, "%")
	n, err := strconv.ParseUint(digits, 10, 31)
	switch {
	case text == "all", err == nil && n == 0:
		return nil, nil //nolint:nilnil // no partition
	case err != nil || isPercentage && n > 100:
		return nil, fmt.Errorf("--partition is %q: use a number of Pods, a percentage up to 100%%, or all", text)
	}
	value := intstr.Parse(text)
	return &value, nil
}
