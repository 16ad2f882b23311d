package plugin

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/duration"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/internal/insight"
	"kusionstack.io/kuperator/internal/revision"
	"kusionstack.io/kuperator/internal/revision/detect"
)

// historyEntry is one revision of a CollaSet.
type historyEntry = insight.Revision

// history is a CollaSet's revisions, oldest first.
type history struct {
	CollaSet  insight.Ref    `json:"collaSet"`
	Revisions []historyEntry `json:"revisions"`
	Gaps      []insight.Gap  `json:"gaps,omitempty"`
}

// revisions are the CollaSet's, oldest first, and their contents as far as they can be read.
func (s *session) revisions(
	ctx context.Context, set *appsv1alpha1.CollaSet,
) ([]appsv1.ControllerRevision, map[string]*revision.Data, error) {
	var found []appsv1.ControllerRevision
	contents := map[string]*revision.Data{}
	options := metav1.ListOptions{}
	if set.Spec.Selector != nil {
		options.LabelSelector = labels.SelectorFromSet(set.Spec.Selector.MatchLabels).String()
	}
	err := each(ctx, options, s.kube.AppsV1().ControllerRevisions(set.Namespace).List,
		func(r *appsv1.ControllerRevision) {
			if !metav1.IsControlledBy(r, set) {
				return
			}
			found = append(found, *r)
			if data, err := revision.Parse(r.Data.Raw); err == nil {
				contents[r.Name] = data
			}
		})
	if err != nil {
		return nil, nil, fmt.Errorf("listing the revisions of collaset/%s: %w", set.Name, err)
	}
	slices.SortFunc(found, func(a, b appsv1.ControllerRevision) int {
		return cmp.Or(cmp.Compare(a.Revision, b.Revision), strings.Compare(a.Name, b.Name))
	})
	return found, contents, nil
}

// podsOf are the CollaSet's Pods.
func (s *session) podsOf(ctx context.Context, set *appsv1alpha1.CollaSet) ([]corev1.Pod, error) {
	var pods []corev1.Pod
	selector, err := metav1.LabelSelectorAsSelector(set.Spec.Selector)
	if err != nil {
		return nil, fmt.Errorf("spec.selector of collaset/%s: %w", set.Name, err)
	}
	err = each(ctx, metav1.ListOptions{LabelSelector: selector.String()}, s.kube.CoreV1().Pods(set.Namespace).List,
		func(pod *corev1.Pod) {
			if metav1.IsControlledBy(pod, set) {
				pods = append(pods, *pod)
			}
		})
	if err != nil {
		return nil, fmt.Errorf("listing the Pods of collaset/%s: %w", set.Name, err)
	}
	return pods, nil
}

// capabilities are what the API server lets change on running Pods. Flags of the components are not known here.
func (s *session) capabilities(ctx context.Context) (revision.Capabilities, error) {
	detector, err := detect.New(s.config, s.clock)
	if err != nil {
		return revision.Capabilities{}, err
	}
	return revision.DefaultRestartAnnotations.With(detector.Capabilities)(ctx)
}

func (p *plugin) historyCommand() *cobra.Command {
	var number int64
	cmd := &cobra.Command{
		Use: "history collaset/NAME", GroupID: groupLook, Short: "Show a CollaSet's revisions, and the Pods at each",
		Long: "Show a CollaSet's revisions, the oldest first, the Pods at each, " +
			"and whether a Pod is updated in place from one to the next. With --revision, show the template of one of them.",
		Example: `  kubectl kuperator history collaset/web
  # The whole template of one revision
  kubectl kuperator history collaset/web --revision=2 -o yaml`,
		Args: between(1, 2), ValidArgsFunction: p.completeNames(appsv1alpha1.CollaSetKind),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx := cmd.Context()
			s, set, err := p.setFor(ctx, args, dryRunNone)
			if err != nil {
				return err
			}
			if number != 0 {
				one, err := s.revision(ctx, set, number)
				if err != nil {
					return err
				}
				return p.print(one, func(w io.Writer) { writeRevision(w, one) })
			}
			h, err := s.history(ctx, set)
			if err != nil {
				return err
			}
			now := s.now()
			return p.print(h, func(w io.Writer) { writeHistory(w, h, now) })
		},
	}
	cmd.Flags().Int64Var(&number, "revision", 0, "Number of a revision, to show its template. 0: all revisions.")
	return cmd
}

// oneRevision is a revision with its templates.
type oneRevision struct {
	CollaSet insight.Ref `json:"collaSet"`
	Revision int64       `json:"revision"`
	Name     string      `json:"name"`
	Created  time.Time   `json:"created"`
	// Images are those of its containers, as <container>=<image>.
	Images               []string         `json:"images"`
	Template             map[string]any   `json:"template"`
	VolumeClaimTemplates []map[string]any `json:"volumeClaimTemplates,omitempty"`
}

// revision is the one of that number.
func (s *session) revision(ctx context.Context, set *appsv1alpha1.CollaSet, number int64) (oneRevision, error) {
	one := oneRevision{CollaSet: refOfSet(set)}
	list, contents, err := s.revisions(ctx, set)
	if err != nil {
		return one, err
	}
	found, err := undoTarget(set, list, contents, number)
	if err != nil {
		return one, err
	}
	data := contents[found.Name]
	if data == nil {
		return one, fmt.Errorf("revision %d (%s) cannot be read: see kubectl -n %s get controllerrevision %s -o yaml",
			number, found.Name, set.Namespace, found.Name)
	}
	one.Revision, one.Name, one.Created = found.Revision, found.Name, found.CreationTimestamp.UTC()
	one.Images, one.Template, one.VolumeClaimTemplates = imagesOf(data), data.Template(), claimsOf(data)
	revision.Unrender(one.Template)
	return one, nil
}

func writeRevision(w io.Writer, one oneRevision) {
	fmt.Fprintf(w, "%s revision %d (%s)\n", shown(one.CollaSet), one.Revision, one.Name)
	for _, image := range one.Images {
		fmt.Fprintf(w, "  %s\n", image)
	}
	fmt.Fprintln(w, "-o yaml has the whole template")
}

func (s *session) history(ctx context.Context, set *appsv1alpha1.CollaSet) (history, error) {
	h := history{CollaSet: refOfSet(set), Revisions: []historyEntry{}}
	list, contents, err := s.revisions(ctx, set)
	if err != nil {
		return h, err
	}
	pods, err := s.podsOf(ctx, set)
	if err != nil {
		g := gap(err, "list", "pods", set.Namespace, "how many Pods are at each revision")
		if g == nil {
			return h, err
		}
		h.Gaps = append(h.Gaps, *g)
	}
	can, err := s.capabilities(ctx)
	if err != nil {
		return h, err
	}
	h.Revisions = historyOf(set, list, contents, pods, can)
	return h, nil
}

// historyOf describes a CollaSet's revisions, oldest first. Of the Pods only its own count.
func historyOf(
	set *appsv1alpha1.CollaSet, list []appsv1.ControllerRevision, contents map[string]*revision.Data, pods []corev1.Pod,
	can revision.Capabilities,
) []historyEntry {
	entries, at := []historyEntry{}, map[string]int{}
	for i := range pods {
		if metav1.IsControlledBy(&pods[i], set) {
			at[pods[i].Labels[appsv1.ControllerRevisionHashLabelKey]]++
		}
	}
	for i := range list {
		r := &list[i]
		e := historyEntry{
			Revision: r.Revision, Name: r.Name, Created: r.CreationTimestamp.UTC(), Pods: at[r.Name],
			Images:  imagesOf(contents[r.Name]),
			Current: r.Name == set.Status.CurrentRevision, Updated: r.Name == set.Status.UpdatedRevision,
		}
		if i > 0 {
			between := revision.Explain(contents[list[i-1].Name], contents[r.Name], can)
			inPlace := between.InPlace()
			e.InPlace, e.Fields = &inPlace, between.Forcing
		}
		entries = append(entries, e)
	}
	return entries
}

// imagesOf are the images of a revision's containers.
func imagesOf(data *revision.Data) []string {
	images := []string{}
	if data == nil {
		return images
	}
	var template corev1.PodTemplateSpec
	if raw, err := json.Marshal(data.Template()); err != nil || json.Unmarshal(raw, &template) != nil {
		return images
	}
	for _, c := range slices.Concat(template.Spec.InitContainers, template.Spec.Containers) {
		images = append(images, c.Name+"="+c.Image)
	}
	return images
}

func writeHistory(w io.Writer, h history, now time.Time) {
	table := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	fmt.Fprintln(table, "REVISION\tNAME\tAGE\tPODS\tIMAGES\tFROM THE ONE BEFORE\t")
	for _, e := range h.Revisions {
		how := ""
		switch {
		case e.InPlace == nil:
		case *e.InPlace:
			how = "in place"
		default:
			how = "re-created: " + strings.Join(e.Fields, ", ")
		}
		marks := ""
		if e.Current {
			marks += " (current)"
		}
		if e.Updated {
			marks += " (updated)"
		}
		fmt.Fprintf(table, "%d\t%s\t%s\t%d\t%s\t%s\t\n", e.Revision, e.Name+marks,
			duration.HumanDuration(max(now.Sub(e.Created), 0)), e.Pods, strings.Join(e.Images, ","), how)
	}
	_ = table.Flush()
	writeGaps(w, h.Gaps)
}

func (p *plugin) undoCommand() *cobra.Command {
	var to int64
	var dry dryRun
	cmd := &cobra.Command{
		Use: "undo collaset/NAME", GroupID: groupChange, Short: "Roll a CollaSet back to an earlier revision",
		Long: `Restore the template and the volume claim templates of an earlier revision: the one before the current one,
or --to-revision.

Pods with an operation under way return to that revision within the operation. Change your manifests as well.`,
		Example: "  kubectl kuperator undo collaset/web\n" +
			"  kubectl kuperator undo collaset/web --to-revision=3 --dry-run=server",
		Args: between(1, 2), ValidArgsFunction: p.completeNames(appsv1alpha1.CollaSetKind),
		RunE: func(cmd *cobra.Command, args []string) error {
			s, set, err := p.setFor(cmd.Context(), args, dry)
			if err != nil {
				return err
			}
			c, err := s.undo(cmd.Context(), set, to, dry)
			if err != nil {
				return err
			}
			return p.report(c, dry)
		},
	}
	cmd.Flags().Int64Var(&to, "to-revision", 0,
		"Number of the revision, as shown by history. 0: the one before the current revision.")
	dry.flag(cmd)
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
		func(ctx context.Context, s *session, set *appsv1alpha1.CollaSet, dry dryRun) (change, error) {
			return s.abort(ctx, set, dry)
		})
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

func claimsOf(data *revision.Data) []map[string]any {
	var claims []map[string]any
	for _, t := range data.ClaimTemplates() {
		claim := t.Object()
		revision.UnrenderClaim(claim)
		claims = append(claims, claim)
	}
	return claims
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
