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
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/duration"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/internal/insight"
	"kusionstack.io/kuperator/internal/revision"
	"kusionstack.io/kuperator/internal/revision/detect"
)

// history is a CollaSet's revisions, oldest first.
type history struct {
	CollaSet  insight.Ref        `json:"collaSet"`
	Revisions []insight.Revision `json:"revisions"`
	Gaps      []insight.Gap      `json:"gaps,omitempty"`
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
	detector, err := detect.New(s.config, s.clock, revision.Capabilities{Restart: revision.DefaultRestartAnnotations})
	if err != nil {
		return revision.Capabilities{}, err
	}
	return detector.Capabilities(ctx)
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
	h := history{CollaSet: refOfSet(set), Revisions: []insight.Revision{}}
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
) []insight.Revision {
	entries, at := []insight.Revision{}, map[string]int{}
	for i := range pods {
		if metav1.IsControlledBy(&pods[i], set) {
			at[pods[i].Labels[appsv1.ControllerRevisionHashLabelKey]]++
		}
	}
	for i := range list {
		r := &list[i]
		e := insight.Revision{
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

func claimsOf(data *revision.Data) []map[string]any {
	var claims []map[string]any
	for _, t := range data.ClaimTemplates() {
		claim := t.Object()
		revision.UnrenderClaim(claim)
		claims = append(claims, claim)
	}
	return claims
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
