package plugin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/aymanbagabas/go-udiff"
	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/internal/insight"
	"kusionstack.io/kuperator/internal/revision"
)

// outlook is what becomes of Pods: a *forecast or a *decorationForecast.
type outlook interface {
	subject() insight.Ref
	write(w io.Writer)
}

// outlooks is what plan prints.
type outlooks struct {
	Plans []outlook `json:"plans"`
}

// differences is what diff prints.
type differences struct {
	Diffs []difference `json:"diffs"`
}

// difference is one of those that diff prints.
type difference struct {
	// CollaSet or PodDecoration is what changes.
	CollaSet      *insight.Ref `json:"collaSet,omitempty"`
	PodDecoration *insight.Ref `json:"podDecoration,omitempty"`
	// Diff is a unified diff of the manifests, empty if nothing changes.
	Diff string  `json:"diff"`
	Plan outlook `json:"plan"`
}

func (p *plugin) planCommand() *cobra.Command {
	file := ""
	cmd := &cobra.Command{
		Use: "plan (-f FILE | collaset/NAME | poddecoration/NAME)", GroupID: groupLook,
		Short: "Show what a changed manifest does to the Pods: in place or re-created, in which order",
		Long: `Show what a changed manifest does to the Pods of its CollaSets and PodDecorations: which are updated in place
and which are re-created, which fields require that, which Pods the partition or label selects, in which order their
updates begin, and which rules limit how many at a time.

Nothing is changed: the manifest is sent to the API server as a dry run. With the name of an object, the plan is that of
the current rollout. The order is computed by the code of the controllers from the current Pods.`,
		Example:           "  kubectl kuperator plan -f web.yaml\n  kubectl kuperator plan collaset/web",
		Args:              between(0, 2),
		ValidArgsFunction: p.completeNames(appsv1alpha1.CollaSetKind, appsv1alpha1.PodDecorationKind),
		RunE: func(cmd *cobra.Command, args []string) error {
			found, _, err := p.planned(cmd.Context(), file, args)
			if err != nil {
				return err
			}
			return p.print(outlooks{found}, func(w io.Writer) {
				for _, f := range found {
					f.write(w)
				}
			})
		},
	}
	cmd.Flags().StringVarP(&file, "filename", "f", "", "File or folder with manifests, or - for standard input.")
	return cmd
}

// diffName is the name of the command that has exit codes of its own.
const diffName = "diff"

func (p *plugin) diffCommand() *cobra.Command {
	file := ""
	cmd := &cobra.Command{
		Use: diffName + " -f FILE", GroupID: groupLook, Short: "Show what a manifest changes, and what that does to the Pods",
		Long: `Show what kubectl apply of a manifest would change in its CollaSets and PodDecorations, as a unified diff, and
the plan for the Pods.

The exit code is that of kubectl diff: 0 if nothing changes, 1 if something does, and 2 if the command fails.`,
		Example: "  kubectl kuperator diff -f web.yaml",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if file == "" {
				return errors.New("-f is missing: name the file with the manifest")
			}
			found, changes, err := p.planned(cmd.Context(), file, nil)
			if err != nil {
				return err
			}
			all := differences{make([]difference, len(found))}
			differs := false
			for i := range found {
				text, err := unified(changes[i].live, changes[i].next)
				if err != nil {
					return err
				}
				d := &all.Diffs[i]
				d.Diff, d.Plan = text, found[i]
				ref := found[i].subject()
				if d.CollaSet = &ref; ref.Kind == appsv1alpha1.PodDecorationKind {
					d.CollaSet, d.PodDecoration = nil, &ref
				}
				differs = differs || text != ""
			}
			err = p.print(all, func(w io.Writer) {
				for _, d := range all.Diffs {
					fmt.Fprint(w, d.Diff)
					d.Plan.write(w)
				}
			})
			if err == nil && differs {
				return errDiffers
			}
			return err
		},
	}
	cmd.Flags().StringVarP(&file, "filename", "f", "", "File or folder with manifests, or - for standard input.")
	return cmd
}

// planned makes the plans of a file, or of one object as it is.
func (p *plugin) planned(ctx context.Context, file string, args []string) ([]outlook, []applied, error) {
	if (file == "") == (len(args) == 0) {
		return nil, nil, errors.New(
			"say what: -f FILE with a changed manifest, or the name of a CollaSet or PodDecoration for the rollout that is " +
				"under way")
	}
	s, err := p.sessionFor(dryRunNone)
	if err != nil {
		return nil, nil, err
	}
	var changes []applied
	if file == "" {
		ref, err := target(args, appsv1alpha1.CollaSetKind, appsv1alpha1.CollaSetKind, appsv1alpha1.PodDecorationKind)
		if err != nil {
			return nil, nil, err
		}
		change, err := s.asItIs(ctx, ref)
		if err != nil {
			return nil, nil, err
		}
		changes = append(changes, change)
	} else {
		manifests, err := p.manifests(file, s.namespace)
		if err != nil {
			return nil, nil, err
		}
		for _, m := range manifests {
			change, err := s.apply(ctx, m)
			if err != nil {
				return nil, nil, err
			}
			changes = append(changes, change)
		}
	}
	var found []outlook
	for _, change := range changes {
		var o outlook
		if change.next.GetKind() == appsv1alpha1.PodDecorationKind {
			o, err = s.forecastDecoration(ctx, change)
		} else {
			o, err = s.forecast(ctx, change)
		}
		if err != nil {
			return nil, nil, err
		}
		found = append(found, o)
	}
	return found, changes, nil
}

// asItIs is a change that changes nothing.
func (s *session) asItIs(ctx context.Context, ref insight.Ref) (applied, error) {
	live, err := s.dynamic.Resource(plannable[ref.Kind]).Namespace(s.namespace).Get(ctx, ref.Name, metav1.GetOptions{})
	if err != nil {
		return applied{}, fmt.Errorf("reading %s in namespace %s: %w", shown(ref), s.namespace, err)
	}
	return applied{live: live, next: live}, nil
}

// forecast says what becomes of the Pods.
func (s *session) forecast(ctx context.Context, a applied) (*forecast, error) {
	set, before := &appsv1alpha1.CollaSet{}, &appsv1alpha1.CollaSet{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(a.next.Object, set); err != nil {
		return nil, fmt.Errorf("reading the manifest of collaset/%s: %w", a.next.GetName(), err)
	}
	f := &forecast{
		CollaSet:   insight.Ref{Kind: appsv1alpha1.CollaSetKind, Namespace: set.Namespace, Name: set.Name},
		ReplicasTo: ptr.Deref(set.Spec.Replicas, 0),
		outline: outline{New: a.live == nil, Paused: set.Spec.Paused,
			Policy: policyText(set.Spec.UpdateStrategy.PodUpdatePolicy), Strategy: strategyText(set),
			Ways: map[way]int{}, Pods: []forecastPod{}, Warnings: a.warnings, Gaps: a.gaps},
	}
	if a.live != nil {
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(a.live.Object, before); err != nil {
			return f, err
		}
	}
	wanted, err := dataOf(a.next, before.Status.Configuration)
	if err != nil {
		return f, err
	}
	if a.live == nil {
		f.ObservedAt = s.now()
		return f, nil
	}
	f.ReplicasFrom = ptr.Deref(before.Spec.Replicas, 0)
	present, err := dataOf(a.live, before.Status.Configuration)
	if err != nil {
		return f, err
	}
	f.TemplateChanges = !present.Same(wanted)
	m := material{set: set, wanted: wanted}
	if _, m.contents, err = s.revisions(ctx, before); err != nil {
		return f, err
	}
	if m.pods, err = s.podsOf(ctx, before); err != nil {
		return f, err
	}
	if m.can, err = s.capabilities(ctx); err != nil {
		return f, err
	}
	facts := insight.Facts{Pods: m.pods}
	if err := s.read(rulesResource)(ctx, set.Namespace, &facts); err != nil {
		return f, err
	}
	f.Gaps = append(f.Gaps, facts.Gaps...)
	m.now, facts.Now = s.now(), s.now()
	f.ObservedAt, m.wantedIs = m.now.UTC(), sameRevision(wanted, m.contents)
	f.Budgets = insight.BudgetsOf(facts)
	f.Ways, f.Fields, f.Pods = foretell(m)
	return f, nil
}

// policyText is a policy, or the one by default.
func policyText(policy appsv1alpha1.PodUpdatePolicy) string {
	return string(cmp.Or(policy, appsv1alpha1.PodUpdateInPlaceIfPossible))
}

// dataOf is the content of the revision that a CollaSet's spec makes with this status.configuration.
func dataOf(
	set *unstructured.Unstructured, configuration []appsv1alpha1.ConfigurationStatus,
) (*revision.Data, error) {
	spec, _ := set.Object["spec"].(map[string]any)
	rendered, err := revision.RenderWith(spec, configuration)
	if err != nil {
		return nil, fmt.Errorf("the template of collaset/%s: %w", set.GetName(), err)
	}
	return revision.Parse(rendered)
}

func (f *forecast) subject() insight.Ref { return f.CollaSet }

func (f *forecast) write(w io.Writer) {
	fmt.Fprintf(w, "CollaSet %s/%s\n", f.CollaSet.Namespace, f.CollaSet.Name)
	if f.New {
		fmt.Fprintf(w, "  is new: %s\n", insight.Plural(int(f.ReplicasTo), "Pod"))
		f.writeNotes(w, heldByPause)
		return
	}
	if f.ReplicasFrom != f.ReplicasTo {
		fmt.Fprintf(w, "  replicas %d -> %d\n", f.ReplicasFrom, f.ReplicasTo)
	}
	if !f.TemplateChanges {
		fmt.Fprintln(w, "  the template stays as it is")
	}
	if texts := waysText(f.Ways); texts != "" {
		fmt.Fprintf(w, "  Pods: %s\n", texts)
	}
	f.writeCourse(w)
	f.writeNotes(w, heldByPause)
}

// heldByPause is what a pause does to the forecast of a CollaSet.
const heldByPause = "nothing of this begins before it is resumed"

// writeCourse is how the Pods get there, and in which order.
func (f *outline) writeCourse(w io.Writer) {
	for _, field := range f.Fields {
		fmt.Fprintf(w, "  because of %s\n", field)
	}
	fmt.Fprintf(w, "  %s; chosen: %s\n", f.Policy, f.Strategy)
	writeOrder(w, f.Pods)
	for _, b := range f.Budgets {
		fmt.Fprintf(w, "  rule %s: %s (%d desired, %d available, %d granted)\n", b.Name, strings.Join(b.Bounds, "; "),
			b.Desired, b.Available, b.Granted)
	}
}

// maxOrdered is how many Pods the text names.
const maxOrdered = 20

func writeOrder(w io.Writer, pods []forecastPod) {
	begun := slices.DeleteFunc(slices.Clone(pods), func(p forecastPod) bool { return p.Order == 0 })
	for i, p := range begun {
		if i == maxOrdered {
			fmt.Fprintf(w, "      and %d more (-o json lists all)\n", len(begun)-maxOrdered)
			return
		}
		fmt.Fprintf(w, "  %3d. %s\n", p.Order, joined(p.Name, string(p.Way), p.Revision))
	}
}

// writeNotes is what to know besides. paused is what a pause does.
func (f *outline) writeNotes(w io.Writer, paused string) {
	if f.Paused {
		fmt.Fprintf(w, "  it is paused: %s\n", paused)
	}
	for _, warning := range f.Warnings {
		fmt.Fprintf(w, "  warning: %s\n", warning)
	}
	writeGaps(w, f.Gaps)
}

// unified is a diff of what people write of the two objects.
func unified(live, next *unstructured.Unstructured) (string, error) {
	before, err := written(live)
	if err != nil {
		return "", err
	}
	after, err := written(next)
	if err != nil {
		return "", err
	}
	return udiff.Unified("live/"+next.GetName(), "manifest/"+next.GetName(), before, after), nil
}

// written is the object without what the API server and controllers write.
func written(object *unstructured.Unstructured) (string, error) {
	if object == nil {
		return "", nil
	}
	object = object.DeepCopy()
	for _, field := range []string{"managedFields", "resourceVersion", "uid", "generation",
		"creationTimestamp", "selfLink"} {
		unstructured.RemoveNestedField(object.Object, "metadata", field)
	}
	unstructured.RemoveNestedField(object.Object, "metadata", "annotations",
		"kubectl.kubernetes.io/last-applied-configuration")
	if len(object.GetAnnotations()) == 0 {
		unstructured.RemoveNestedField(object.Object, "metadata", "annotations")
	}
	unstructured.RemoveNestedField(object.Object, "status")
	out, err := yaml.Marshal(object.Object)
	return string(out), err
}
