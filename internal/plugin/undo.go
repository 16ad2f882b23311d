package plugin

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/internal/insight"
	"kusionstack.io/kuperator/internal/revision"
)

func (p *plugin) undoCommand() *cobra.Command {
	var to int64
	cmd := p.onSet("undo", "Roll a CollaSet back to an earlier revision",
		`Restore the template and the volume claim templates of an earlier revision: the one before the current one,
or --to-revision.

Pods with an operation under way return to that revision within the operation. Change your manifests as well.`,
		func(s *session, ctx context.Context, set *appsv1alpha1.CollaSet, dry dryRun) (change, error) {
			return s.undo(ctx, set, to, dry)
		})
	cmd.Example = "  kubectl kuperator undo collaset/web\n" +
		"  kubectl kuperator undo collaset/web --to-revision=3 --dry-run=server"
	cmd.Flags().Int64Var(&to, "to-revision", 0,
		"Number of the revision, as shown by history. 0: the one before the current revision.")
	return cmd
}

func (s *session) undo(ctx context.Context, set *appsv1alpha1.CollaSet, to int64, dry dryRun) (change, error) {
	c := change{Object: refOfSet(set)}
	if to == 0 {
		var err error
		if set, err = s.whenSeen(ctx, set); err != nil {
			return c, err
		}
	}
	list, contents, err := s.revisions(ctx, set)
	if err != nil {
		return c, err
	}
	wanted, err := undoTarget(set, list, contents, to)
	if err != nil {
		return c, err
	}
	return s.goBack(ctx, set, wanted, contents, dry)
}

// goBack puts the templates of a revision back.
func (s *session) goBack(
	ctx context.Context, set *appsv1alpha1.CollaSet, wanted *appsv1.ControllerRevision,
	contents map[string]*revision.Data, dry dryRun,
) (change, error) {
	c := change{Object: refOfSet(set), Action: fmt.Sprintf("at revision %d (%s)", wanted.Revision, wanted.Name)}
	observed := set.Status.ObservedGeneration == set.Generation
	if wanted.Name == set.Status.UpdatedRevision && observed {
		return c, nil
	}
	data := contents[wanted.Name]
	if data == nil {
		return c, fmt.Errorf("revision %s cannot be read: choose another with --to-revision", wanted.Name)
	}
	if now := contents[set.Status.UpdatedRevision]; now != nil && now.SameTemplate(data) && observed {
		return c, fmt.Errorf(
			"revision %s has the present template, and was made for other content of ConfigMaps or Secrets (%s): put that back instead",
			wanted.Name, appsv1alpha1.ConfigurationAnnotation)
	}
	c.Changed, c.Action = true, "goes back to "+strings.TrimPrefix(c.Action, "at ")
	c.Details = []string{strings.Join(imagesOf(data), ", ")}
	if wanted.Name != set.Status.CurrentRevision || insight.Partition(set) == nil {
		c.Details = append(c.Details, chosen(set)...) // a partition does not hold Pods back from the current revision
	}
	c.tell(insight.UndoWhilePaused(set))
	return c, s.patchAsRead(ctx, set, undoPatch(set, data), dry)
}

// patchAsRead writes a JSON patch that tests for the spec that was read.
func (s *session) patchAsRead(
	ctx context.Context, set *appsv1alpha1.CollaSet, patch []patchOperation, dry dryRun,
) error {
	if dry == dryRunClient {
		return nil
	}
	body, err := json.Marshal(patch)
	if err != nil {
		return err
	}
	sets := s.suite.AppsV1alpha1().CollaSets(set.Namespace)
	_, err = sets.Patch(ctx, set.Name, types.JSONPatchType, body, dry.options())
	if apierrors.IsInvalid(err) { // what a patch whose tests fail is called, with no word about which
		if now, readErr := sets.Get(ctx, set.Name, metav1.GetOptions{}); readErr == nil &&
			(now.UID != set.UID || now.Generation != set.Generation) {
			err = fmt.Errorf(
				"another client has changed collaset/%s meanwhile, and nothing was written: see what is there now (kubectl kuperator history collaset/%s) and try again",
				set.Name, set.Name)
		}
	}
	return err
}

func (p *plugin) abortCommand() *cobra.Command {
	return p.onSet("abort", "Stop a rollout, and go back to the revision before",
		`Stop the rollout of a CollaSet that is under way: its Pods go back to the revision that they came from.

The templates of that revision are restored, as undo does it. Pods with an operation under way return to it within the
operation. Change your manifests as well.

It takes the role edit. With kuperator-operate, pause stops the rollout where it is.`,
		(*session).abort)
}

func (s *session) abort(ctx context.Context, set *appsv1alpha1.CollaSet, dry dryRun) (change, error) {
	set, err := s.whenSeen(ctx, set)
	if err != nil {
		return change{}, err
	}
	from, back := set.Status.UpdatedRevision, set.Status.CurrentRevision
	switch {
	case set.Status.ObservedGeneration != set.Generation:
		return change{}, fmt.Errorf(
			"collaset-controller has not seen the last change of collaset/%s, so it is not known what is under way: try again in a moment, or choose a revision with undo --to-revision",
			set.Name)
	case back == "" || back == from:
		return change{Action: "aborted", idle: "has no rollout under way"}, nil
	}
	list, contents, err := s.revisions(ctx, set)
	if err != nil {
		return change{}, err
	}
	at := slices.IndexFunc(list, func(r appsv1.ControllerRevision) bool { return r.Name == back })
	if at < 0 {
		return change{}, fmt.Errorf(
			"revision %s, which the Pods of collaset/%s came from, does not exist any more: choose another with undo --to-revision",
			back, set.Name)
	}
	c, err := s.goBack(ctx, set, &list[at], contents, dry)
	c.Action = "stops its rollout to " + from + ", and " + c.Action
	return c, err
}

// How long collaset-controller may take to see the last change of a CollaSet that is to be undone, and how often is
// looked.
const (
	seenWithin = 10 * time.Second
	seenPace   = 200 * time.Millisecond
)

// whenSeen is the CollaSet once its status is about the generation that was read: a user who undoes what they have just
// applied is quicker than the controller. It is returned as it was read if that does not come in time, or if it is
// changed meanwhile.
func (s *session) whenSeen(ctx context.Context, set *appsv1alpha1.CollaSet) (*appsv1alpha1.CollaSet, error) {
	now := set
	for begin := s.clock.Now(); now.Status.ObservedGeneration != now.Generation && s.clock.Since(begin) < seenWithin; {
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-s.clock.After(seenPace):
		}
		var err error
		if now, err = s.suite.AppsV1alpha1().CollaSets(set.Namespace).Get(ctx, set.Name, metav1.GetOptions{}); err != nil {
			return nil, err
		}
		if now.UID != set.UID || now.Generation != set.Generation {
			return set, nil
		}
	}
	return now, nil
}

// undoTarget is the revision to go back to: by its number, or the last one with another template.
func undoTarget(
	set *appsv1alpha1.CollaSet, list []appsv1.ControllerRevision, contents map[string]*revision.Data, to int64,
) (*appsv1.ControllerRevision, error) {
	if to == 0 && set.Status.ObservedGeneration != set.Generation {
		return nil, fmt.Errorf(
			"collaset-controller has not seen the last change of collaset/%s, so the revision before it is not known: try again in a moment, or choose one with --to-revision",
			set.Name)
	}
	now := contents[set.Status.UpdatedRevision]
	for i := len(list) - 1; i >= 0; i-- {
		data := contents[list[i].Name]
		isPresent := list[i].Name == set.Status.UpdatedRevision || data != nil && now != nil && data.SameTemplate(now)
		if to == list[i].Revision && to != 0 || to == 0 && !isPresent {
			return &list[i], nil
		}
	}
	if to == 0 {
		return nil, fmt.Errorf("collaset/%s has no earlier revision", set.Name)
	}
	return nil, fmt.Errorf("collaset/%s has no revision %d: kubectl kuperator history collaset/%s lists them",
		set.Name, to, set.Name)
}

// patchOperation is one of a JSON patch (RFC 6902).
type patchOperation struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value,omitempty"`
}

// asRead are the tests of a patch that depends on the very spec that was read: on its generation, because the status of
// a CollaSet that is being rolled out changes all the time.
func asRead(set *appsv1alpha1.CollaSet) []patchOperation {
	return []patchOperation{
		{"test", "/metadata/uid", set.UID},
		{"test", "/metadata/generation", set.Generation},
	}
}

// undoPatch replaces the templates as a whole, so it depends on the spec that was read.
func undoPatch(set *appsv1alpha1.CollaSet, data *revision.Data) []patchOperation {
	template := data.Template()
	revision.Unrender(template)
	unstructured.RemoveNestedField(template, "metadata", "annotations", appsv1alpha1.ConfigurationAnnotation)
	patch := append(asRead(set), patchOperation{"replace", "/spec/template", template})
	claims := claimsOf(data)
	switch {
	case len(claims) > 0:
		patch = append(patch, patchOperation{"add", "/spec/volumeClaimTemplates", claims})
	case len(set.Spec.VolumeClaimTemplates) > 0:
		patch = append(patch, patchOperation{"remove", "/spec/volumeClaimTemplates", nil})
	}
	return patch
}
