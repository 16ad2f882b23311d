package plugin

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/internal/insight"
	"kusionstack.io/kuperator/internal/revision"
)

// onSet makes a command that changes one CollaSet.
func (p *plugin) onSet(
	use, short, long string, act func(context.Context, *session, *appsv1alpha1.CollaSet, dryRun) (change, error),
) *cobra.Command {
	var dry dryRun
	cmd := &cobra.Command{
		Use: use + " collaset/NAME", GroupID: groupChange, Short: short, Long: long,
		Args: cobra.RangeArgs(1, 2), ValidArgsFunction: p.completeNames(appsv1alpha1.CollaSetKind),
		Example: "  kubectl kuperator " + use + " collaset/web\n  kubectl kuperator " + use +
			" collaset/web --dry-run=server",
		RunE: func(cmd *cobra.Command, args []string) error {
			s, set, err := p.setFor(cmd.Context(), args, dry)
			if err != nil {
				return err
			}
			done, err := act(cmd.Context(), s, set, dry)
			if err != nil {
				return err
			}
			done.Object = insight.Ref{Kind: appsv1alpha1.CollaSetKind, Namespace: set.Namespace, Name: set.Name}
			return p.report(done, dry)
		},
	}
	dry.flag(cmd)
	return cmd
}

// setFor reads the CollaSet that the arguments name.
func (p *plugin) setFor(ctx context.Context, args []string, dry dryRun) (*session, *appsv1alpha1.CollaSet, error) {
	ref, err := target(args, appsv1alpha1.CollaSetKind, appsv1alpha1.CollaSetKind)
	if err != nil {
		return nil, nil, err
	}
	if err := p.checkOutput(); err != nil {
		return nil, nil, err
	}
	if err := dry.check(); err != nil {
		return nil, nil, err
	}
	s, err := p.connect()
	if err != nil {
		return nil, nil, err
	}
	set, err := s.suite.AppsV1alpha1().CollaSets(s.namespace).Get(ctx, ref.Name, metav1.GetOptions{})
	if err != nil {
		return nil, nil, fmt.Errorf("reading collaset/%s in namespace %s: %w", ref.Name, s.namespace, err)
	}
	return s, set, nil
}

// patchSet writes a merge patch, with the UID as a precondition.
func (s *session) patchSet(ctx context.Context, set *appsv1alpha1.CollaSet, spec map[string]any, dry dryRun) error {
	if dry == dryRunClient {
		return nil
	}
	body, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": set.UID}, "spec": spec})
	if err != nil {
		return err
	}
	_, err = s.suite.AppsV1alpha1().CollaSets(set.Namespace).Patch(ctx, set.Name, types.MergePatchType,
		body, dry.options())
	return err
}

func (p *plugin) pauseCommand() *cobra.Command {
	return p.onSet("pause", "Pause a CollaSet",
		"Pause a CollaSet: it adds, removes and updates no Pods. Operations that have begun on a Pod are finished.",
		func(ctx context.Context, s *session, set *appsv1alpha1.CollaSet, dry dryRun) (change, error) {
			c := change{Action: "paused", Changed: !set.Spec.Paused}
			if !c.Changed {
				return c, nil
			}
			return c, s.patchSet(ctx, set, map[string]any{"paused": true}, dry)
		})
}

func (p *plugin) resumeCommand() *cobra.Command {
	return p.onSet("resume", "Resume a paused CollaSet", "Resume a paused CollaSet.",
		func(ctx context.Context, s *session, set *appsv1alpha1.CollaSet, dry dryRun) (change, error) {
			c := change{Action: "resumed", Changed: set.Spec.Paused}
			if !c.Changed {
				return c, nil
			}
			return c, s.patchSet(ctx, set, map[string]any{"paused": nil}, dry)
		})
}

func (p *plugin) restartCommand() *cobra.Command {
	return p.onSet("restart", "Re-create the Pods of a CollaSet, within its budgets",
		`Re-create the Pods of a CollaSet, as an update: rules, partition and labels apply.

The annotation `+revision.RestartedAtAnnotation+` is set in the template, as kubectl rollout restart does.`,
		func(ctx context.Context, s *session, set *appsv1alpha1.CollaSet, dry dryRun) (change, error) {
			if set.Spec.Paused {
				return change{}, fmt.Errorf(
					"collaset/%s is paused and would not restart: kubectl kuperator -n %s resume collaset/%s, and then restart",
					set.Name, set.Namespace, set.Name)
			}
			if set.Spec.UpdateStrategy.PodUpdatePolicy == appsv1alpha1.PodUpdateInPlaceOnly {
				return change{}, fmt.Errorf(
					"collaset/%s has podUpgradePolicy InPlaceOnly, and a running Pod cannot be restarted in place: set InPlaceIfPossible, or replace single Pods with kubectl kuperator replace",
					set.Name)
			}
			at := s.now().UTC().Format(time.RFC3339)
			annotations := map[string]any{revision.RestartedAtAnnotation: at}
			annotation := map[string]any{"template": map[string]any{"metadata": map[string]any{"annotations": annotations}}}
			return change{Action: "restarts", Changed: true, Details: chosen(set)}, s.patchSet(ctx, set, annotation, dry)
		})
}

// chosen says which Pods an update takes, if not all of them.
func chosen(set *appsv1alpha1.CollaSet) []string {
	rolling := set.Spec.UpdateStrategy.RollingUpdate
	switch {
	case rolling == nil:
		return nil
	case rolling.ByLabel != nil:
		return []string{"only Pods with the label " + appsv1alpha1.UpdateIncludedLabel}
	case rolling.ByPartition != nil && rolling.ByPartition.Partition != nil &&
		rolling.ByPartition.Partition.String() != "0":
		return []string{"the partition keeps " + rolling.ByPartition.Partition.String() + " Pods as they are"}
	}
	return nil
}

func (p *plugin) replaceCommand() *cobra.Command {
	var dry dryRun
	cancel := false
	cmd := &cobra.Command{
		Use: "replace pod/NAME", GroupID: groupChange, Short: "Replace a Pod of a CollaSet with another one",
		Long: `Replace a Pod of a CollaSet with another one. The new Pod is created first, with another instance ID, and the
old one is deleted when the new one is available. The new Pod has PVC claims of its own. --cancel cancels the
replacement while the old Pod is in service.`,
		Example: "  kubectl kuperator replace pod/web-7k2xd\n  kubectl kuperator replace pod/web-7k2xd --cancel",
		Args:    cobra.RangeArgs(1, 2), ValidArgsFunction: p.completeNames("Pod"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return p.replace(cmd.Context(), args, cancel, dry)
		},
	}
	dry.flag(cmd)
	cmd.Flags().BoolVar(&cancel, "cancel", false, "Cancel the request.")
	return cmd
}

func (p *plugin) replace(ctx context.Context, args []string, cancel bool, dry dryRun) error {
	ref, err := target(args, "Pod", "Pod")
	if err != nil {
		return err
	}
	if err := p.checkOutput(); err != nil {
		return err
	}
	if err := dry.check(); err != nil {
		return err
	}
	s, err := p.connect()
	if err != nil {
		return err
	}
	pod, err := s.kube.CoreV1().Pods(s.namespace).Get(ctx, ref.Name, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("reading pod/%s in namespace %s: %w", ref.Name, s.namespace, err)
	}
	owner := metav1.GetControllerOf(pod)
	switch {
	case owner == nil || owner.Kind != appsv1alpha1.CollaSetKind:
		return fmt.Errorf(
			"pod/%s belongs to no CollaSet, and no controller would replace it: delete it, and its workload makes another",
			pod.Name)
	case pod.DeletionTimestamp != nil:
		return fmt.Errorf("pod/%s is being deleted already", pod.Name)
	}
	ref.Namespace = pod.Namespace
	_, asked := pod.Labels[appsv1alpha1.ToReplaceLabel]
	c := change{Object: ref, Action: "being replaced", Changed: asked == cancel}
	var value any = strconv.FormatInt(s.now().UnixNano(), 10)
	if cancel {
		c.Action, value = "not being replaced any more", nil
	}
	if c.Changed && dry != dryRunClient {
		body, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": pod.UID,
			"labels": map[string]any{appsv1alpha1.ToReplaceLabel: value}}})
		if err != nil {
			return err
		}
		if _, err := s.kube.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.MergePatchType, body,
			dry.options()); err != nil {
			return err
		}
	}
	if c.Changed && !cancel {
		c.Details = []string{"see it: kubectl kuperator status collaset/" + owner.Name + " --watch"}
	}
	return p.report(c, dry)
}
