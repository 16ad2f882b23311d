package plugin

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/internal/insight"
	"kusionstack.io/kuperator/internal/revision"
)

// restartFlags are those of restart.
type restartFlags struct {
	jobFlags
	inPlace    bool
	containers []string
	fallback   string
}

func (p *plugin) restartCommand() *cobra.Command {
	var dry dryRun
	f := restartFlags{}
	cmd := &cobra.Command{
		Use: "restart collaset/NAME | pod/NAME...", GroupID: groupChange,
		Short: "Re-create the Pods of a CollaSet, or restart containers in place",
		Long: `Re-create the Pods of a CollaSet, or restart containers in place.

Without --in-place the Pods of the CollaSet are re-created as an update: rules, partition and labels apply. The
annotation ` + revision.RestartedAtAnnotation + ` is set in the template, as kubectl rollout restart does.

With --in-place, and for Pods that are named, an OperationJob restarts containers while each Pod keeps its name, UID and
IP. Rules apply. The command follows the job to its end; Ctrl-C stops the command, and not the job.

The exit code is 0 if the job succeeds, 1 if it fails, and 130 if the command ends before the job.`,
		Example: `  # Re-create all Pods, as an update
  kubectl kuperator restart collaset/web
  # Restart all containers in place
  kubectl kuperator restart collaset/web --in-place
  # Restart one container of two Pods, and re-create none
  kubectl kuperator restart pod/web-7k2xd pod/web-m4q8z --container main --fallback Fail`,
		Args:              between(1, unlimited),
		ValidArgsFunction: p.completeSeveral(appsv1alpha1.CollaSetKind, "Pod"),
		RunE: func(cmd *cobra.Command, args []string) error {
			refs, err := targets(args, appsv1alpha1.CollaSetKind, appsv1alpha1.CollaSetKind, "Pod")
			if err != nil {
				return err
			}
			if refs[0].Kind == "Pod" || f.inPlace {
				return p.restartInPlace(cmd.Context(), refs, f, dry)
			}
			for _, flag := range []string{"container", "fallback", "parallelism", "max-failed", "detach"} {
				if cmd.Flags().Changed(flag) {
					return fmt.Errorf("--%s is for a restart in place: add --in-place", flag)
				}
			}
			s, set, err := p.setFor(cmd.Context(), args, dry)
			if err != nil {
				return err
			}
			c, err := s.restart(cmd.Context(), set, dry)
			if err != nil {
				return err
			}
			return p.report(c, dry)
		},
	}
	dry.flag(cmd)
	f.add(cmd)
	cmd.Flags().BoolVar(&f.inPlace, "in-place", false,
		"Restart containers and keep the Pods. Pods that are named are always restarted in place.")
	cmd.Flags().StringArrayVarP(&f.containers, "container", "c", nil,
		"Container to restart, a native sidecar too; may be repeated. Empty: all regular containers.")
	cmd.Flags().StringVar(&f.fallback, "fallback", "",
		"What happens to a Pod that cannot be restarted in place: Recreate or Fail. Empty: Recreate.")
	completed(cmd.RegisterFlagCompletionFunc("fallback", cobra.FixedCompletions([]string{
		string(appsv1alpha1.RestartFallbackRecreate), string(appsv1alpha1.RestartFallbackFail)},
		cobra.ShellCompDirectiveNoFileComp)))
	return cmd
}

// restart has the Pods of a CollaSet re-created by an annotation in the template.
func (s *session) restart(ctx context.Context, set *appsv1alpha1.CollaSet, dry dryRun) (change, error) {
	c := change{Object: refOfSet(set), Action: "restarts", Changed: true}
	if set.Spec.Paused {
		return c, fmt.Errorf(
			"collaset/%s is paused and would not restart: kubectl kuperator -n %s resume collaset/%s, and then restart",
			set.Name, set.Namespace, set.Name)
	}
	inPlace := "kubectl kuperator -n " + set.Namespace + " restart collaset/" + set.Name + " --in-place"
	become := "re-created"
	switch set.Spec.UpdateStrategy.PodUpdatePolicy {
	case appsv1alpha1.PodUpdateInPlaceOnly:
		return c, fmt.Errorf("collaset/%s has podUpgradePolicy InPlaceOnly, and its Pods are not re-created: to restart "+
			"containers in place, %s", set.Name, inPlace)
	case appsv1alpha1.PodUpdateReplace:
		become = "replaced"
	case appsv1alpha1.PodUpdateRecreate, appsv1alpha1.PodUpdateInPlaceIfPossible:
	}
	c.Details = append(chosen(set), "its Pods are "+become+", as an update; to restart containers in place: "+inPlace)
	annotations := map[string]any{revision.RestartedAtAnnotation: s.now().UTC().Format(time.RFC3339)}
	annotation := map[string]any{"template": map[string]any{"metadata": map[string]any{"annotations": annotations}}}
	return c, s.patchSet(ctx, set, annotation, dry)
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
		return []string{"the partition keeps back " + insight.PartitionPods(rolling.ByPartition.Partition)}
	}
	return nil
}

// restartInPlace has a job restart containers of Pods, or of all Pods of a CollaSet.
func (p *plugin) restartInPlace(ctx context.Context, refs []insight.Ref, f restartFlags, dry dryRun) error {
	s, err := p.sessionFor(dry)
	if err != nil {
		return err
	}
	if err := s.exist(ctx, refs); err != nil {
		return err
	}
	job, err := newJob(appsv1alpha1.OpsActionRestart, s.namespace, refs, f.containers, f.jobFlags)
	if err != nil {
		return err
	}
	if f.fallback != "" {
		job.Spec.Restart = &appsv1alpha1.RestartAction{Fallback: appsv1alpha1.RestartFallback(f.fallback)}
	}
	err = p.runJob(ctx, s, job, f.detach, dry)
	if errors.Is(err, errNoJobs) {
		return fmt.Errorf("%w: a restart in place needs it: kubectl apply --server-side -k deploy/crd, and then "+
			"-k deploy/overlays/operationjob-only", err)
	}
	return err
}
