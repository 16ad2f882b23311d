package plugin

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/internal/insight"
)

// onSet makes a command that changes one CollaSet.
func (p *plugin) onSet(
	use, short, long string, act func(*session, context.Context, *appsv1alpha1.CollaSet, dryRun) (change, error),
) *cobra.Command {
	var dry dryRun
	cmd := &cobra.Command{
		Use: use + " collaset/NAME", GroupID: groupChange, Short: short, Long: long,
		Args: between(1, 2), ValidArgsFunction: p.completeNames(appsv1alpha1.CollaSetKind),
		Example: "  kubectl kuperator " + use + " collaset/web\n  kubectl kuperator " + use +
			" collaset/web --dry-run=server",
		RunE: func(cmd *cobra.Command, args []string) error {
			s, set, err := p.setFor(cmd.Context(), args, dry)
			if err != nil {
				return err
			}
			done, err := act(s, cmd.Context(), set, dry)
			if err != nil {
				return err
			}
			done.Object = refOfSet(set)
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
	s, err := p.sessionFor(dry)
	if err != nil {
		return nil, nil, err
	}
	set, err := s.suite.AppsV1alpha1().CollaSets(s.namespace).Get(ctx, ref.Name, metav1.GetOptions{})
	if err != nil {
		return nil, nil, fmt.Errorf("reading collaset/%s in namespace %s: %w", ref.Name, s.namespace, err)
	}
	return s, set, nil
}

func refOfSet(set *appsv1alpha1.CollaSet) insight.Ref {
	return insight.Ref{Kind: appsv1alpha1.CollaSetKind, Namespace: set.Namespace, Name: set.Name}
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
		(*session).pause)
}

func (s *session) pause(ctx context.Context, set *appsv1alpha1.CollaSet, dry dryRun) (change, error) {
	c := change{Object: refOfSet(set), Action: "paused", Changed: !set.Spec.Paused}
	if !c.Changed {
		return c, nil
	}
	return c, s.patchSet(ctx, set, map[string]any{"paused": true}, dry)
}

func (p *plugin) resumeCommand() *cobra.Command {
	return p.onSet("resume", "Resume a paused CollaSet", "Resume a paused CollaSet.", (*session).resume)
}

func (s *session) resume(ctx context.Context, set *appsv1alpha1.CollaSet, dry dryRun) (change, error) {
	c := change{Object: refOfSet(set), Action: "resumed", Changed: set.Spec.Paused}
	if !c.Changed {
		return c, nil
	}
	return c, s.patchSet(ctx, set, map[string]any{"paused": nil}, dry)
}
