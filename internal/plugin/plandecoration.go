package plugin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/internal/decoration"
	"kusionstack.io/kuperator/internal/insight"
	"kusionstack.io/kuperator/internal/poddecoration/decoplan"
	"kusionstack.io/kuperator/internal/revision"
)

const (
	// wayStays: it would have to be re-created, and no controller does that.
	wayStays way = "stays"
	// wayKeptBack: it would have to be re-created, and a new Pod gets the revision before.
	wayKeptBack way = "keptBack"
	// wayUnmanaged: the Pod takes no part in the lifecycle.
	wayUnmanaged way = "unmanaged"
)

// decorationForecast is what becomes of the Pods of a PodDecoration. It is one of the JSON forms of plan. The order of
// its Pods is not that of CollaSets, which have their own.
type decorationForecast struct {
	outline
	PodDecoration insight.Ref `json:"podDecoration"`
}

func (f *decorationForecast) subject() insight.Ref { return f.PodDecoration }

// decorating is what such a forecast is made of.
type decorating struct {
	name     string
	policy   appsv1alpha1.PodUpdatePolicy
	pods     []corev1.Pod
	sets     map[string]appsv1alpha1.PodUpdatePolicy // of CollaSets, by name
	contents map[decoration.Mark]decoration.Decoration
	stored   map[decoration.Mark][]byte // the data of their revisions
	ofSets   map[string]*revision.Data  // revisions of CollaSets, by name
	known    map[string][]string        // what forcing has worked out
	snapshot decoplan.Snapshot
	can      revision.Capabilities
}

// forecastDecoration says what becomes of the Pods.
func (s *session) forecastDecoration(ctx context.Context, a applied) (*decorationForecast, error) {
	d, before := &appsv1alpha1.PodDecoration{}, &appsv1alpha1.PodDecoration{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(a.next.Object, d); err != nil {
		return nil, fmt.Errorf("reading the manifest of poddecoration/%s: %w", a.next.GetName(), err)
	}
	f := &decorationForecast{
		PodDecoration: insight.Ref{Kind: appsv1alpha1.PodDecorationKind, Namespace: d.Namespace, Name: d.Name},
		outline: outline{New: a.live == nil, Paused: d.Spec.UpdateStrategy.Paused,
			Policy: policyText(d.Spec.UpdateStrategy.PodUpdatePolicy), Strategy: decorationStrategy(&d.Spec),
			Warnings: a.warnings, Gaps: a.gaps},
	}
	if a.live != nil {
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(a.live.Object, before); err != nil {
			return nil, err
		}
	}
	facts := insight.Facts{}
	read := s.read(setsResource, rulesResource, decorationsResource)
	if err := read(ctx, d.Namespace, &facts); err != nil {
		return nil, err
	}
	m := decorating{name: d.Name, policy: d.Spec.UpdateStrategy.PodUpdatePolicy,
		sets:     map[string]appsv1alpha1.PodUpdatePolicy{},
		contents: map[decoration.Mark]decoration.Decoration{}, stored: map[decoration.Mark][]byte{},
		ofSets: map[string]*revision.Data{}}
	for i := range facts.CollaSets {
		m.sets[facts.CollaSets[i].Name] = facts.CollaSets[i].Spec.UpdateStrategy.PodUpdatePolicy
	}
	var err error
	if m.can, err = s.capabilities(ctx); err != nil {
		return nil, err
	}
	if m.pods, err = s.allPods(ctx, d.Namespace); err != nil {
		return nil, err
	}
	if err = s.readContents(ctx, d.Namespace, &m); err != nil {
		return nil, err
	}
	updated, err := m.take(a, d)
	if err != nil {
		return nil, err
	}
	f.TemplateChanges = a.live != nil && updated != before.Status.UpdatedRevision
	m.snapshot.Now = s.now()
	for i := range facts.Decorations {
		if other := &facts.Decorations[i]; other.Name != d.Name {
			m.add(other, other.Status.UpdatedRevision)
		}
	}
	m.add(d, updated)
	f.ObservedAt = m.snapshot.Now.UTC()
	f.Ways, f.Fields, f.Pods = m.foretell(updated)
	facts.Now = m.snapshot.Now
	names := map[string]bool{}
	for i := range f.Pods {
		names[f.Pods[i].Name] = true
	}
	for i := range m.pods {
		if names[m.pods[i].Name] {
			facts.Pods = append(facts.Pods, m.pods[i])
		}
	}
	f.Budgets, f.Gaps = insight.BudgetsOf(facts), append(f.Gaps, facts.Gaps...)
	return f, nil
}

// allPods lists the Pods of a namespace, those outside the lifecycle among them.
func (s *session) allPods(ctx context.Context, namespace string) (pods []corev1.Pod, err error) {
	err = each(ctx, metav1.ListOptions{}, s.kube.CoreV1().Pods(namespace).List,
		func(pod *corev1.Pod) { pods = append(pods, *pod) })
	if err != nil {
		return nil, fmt.Errorf("listing Pods%s: %w", in(namespace), err)
	}
	return pods, nil
}

// readContents reads the revisions of all PodDecorations and CollaSets of a namespace.
func (s *session) readContents(ctx context.Context, namespace string, m *decorating) error {
	err := each(ctx, metav1.ListOptions{}, s.kube.AppsV1().ControllerRevisions(namespace).List,
		func(cr *appsv1.ControllerRevision) {
			owner := metav1.GetControllerOfNoCopy(cr)
			if owner == nil {
				return
			}
			if owner.Kind == appsv1alpha1.CollaSetKind {
				if data, err := revision.Parse(cr.Data.Raw); err == nil {
					m.ofSets[cr.Name] = data
				}
				return
			}
			mark := decoration.Mark{Name: owner.Name, Revision: cr.Name}
			if d, isIts, err := decoration.Of(cr, mark); isIts && err == nil {
				m.contents[mark], m.stored[mark] = d, cr.Data.Raw
			}
		})
	if err != nil {
		return fmt.Errorf("listing revisions%s: %w", in(namespace), err)
	}
	return nil
}

// take reads the template that the PodDecoration will have, and returns the name of its revision: that of one that
// means the same, newRevision if there is none.
func (m *decorating) take(a applied, d *appsv1alpha1.PodDecoration) (string, error) {
	spec, _ := a.next.Object["spec"].(map[string]any)
	data, err := decoration.Data(spec)
	if err != nil {
		return "", fmt.Errorf("spec.template of poddecoration/%s: %w", d.Name, err)
	}
	template, weight, err := decoration.Parse(data)
	if err != nil {
		return "", fmt.Errorf("spec.template of poddecoration/%s: %w", d.Name, err)
	}
	wanted := decoration.Decoration{Name: d.Name, Revision: newRevision, Weight: weight, Template: template}
	for mark, stored := range m.stored {
		isSame, err := decoration.Same(stored, data)
		isFirst := wanted.Revision == newRevision || mark.Revision < wanted.Revision
		if err == nil && isSame && isFirst && mark.Name == d.Name {
			wanted.Revision = mark.Revision
		}
	}
	m.contents[decoration.Mark{Name: d.Name, Revision: wanted.Revision}] = wanted
	return wanted.Revision, nil
}

// add puts a PodDecoration among those that are decided on.
func (m *decorating) add(d *appsv1alpha1.PodDecoration, updated string) {
	m.snapshot.Decorations = append(m.snapshot.Decorations, decoplan.Decoration{Name: d.Name, Generation: d.Generation,
		Deleting: d.DeletionTimestamp != nil, Spec: d.Spec, Status: d.Status, Updated: updated})
}

// foretell has poddecoration-controller's own decisions choose the Pods.
func (m *decorating) foretell(updated string) (ways map[way]int, fields []string, pods []forecastPod) {
	ways, pods = map[way]int{}, []forecastPod{}
	own := m.snapshot.Decorations[len(m.snapshot.Decorations)-1].Spec.Selector
	selector, err := metav1.LabelSelectorAsSelector(own)
	if err != nil {
		selector = labels.Nothing() // the API server, or status, says so
	}
	whole := map[string]*corev1.Pod{}
	for i := range m.pods {
		whole[m.pods[i].Name] = &m.pods[i]
		m.snapshot.Pods = append(m.snapshot.Pods, decoplan.PodOf(&m.pods[i]))
	}
	var rest []forecastPod
	for _, expected := range decoplan.Expected(&m.snapshot) {
		has := decoration.RevisionIn(decoration.Made(expected.Pod.Has, expected.Pod.Refused), m.name)
		gets := decoration.RevisionIn(expected.Marks, m.name)
		if has == "" && gets == "" && !selector.Matches(labels.Set(expected.Pod.Labels)) {
			continue
		}
		p := forecastPod{Way: wayHeld}
		switch {
		case has != gets:
			p = m.way(whole[expected.Pod.View.Name], expected)
		case has == updated:
			p.Way = wayThere
		}
		p.Name, p.Revision = expected.Pod.View.Name, has
		ways[p.Way]++
		fields = append(fields, p.Fields...)
		switch p.Way {
		case wayInPlace, wayRecreate, wayReplace:
			p.Order = len(pods) + 1
			pods = append(pods, p)
		default:
			rest = append(rest, p)
		}
	}
	slices.Sort(fields)
	return ways, slices.Compact(fields), append(pods, rest...)
}

// way is how one Pod gets what it is to have.
func (m *decorating) way(pod *corev1.Pod, expected decoplan.Tell) forecastPod {
	p := expected.Pod
	policy, isOfSet := m.policy, p.Owner.Kind == appsv1alpha1.CollaSetKind
	if isOfSet {
		policy = m.sets[p.Owner.Name]
	}
	if !p.Managed && !isOfSet {
		return forecastPod{Way: wayUnmanaged}
	}
	f := wayBy(policy, m.forcing(pod, p.Has, expected.Marks, isOfSet))
	if f.Way != wayRecreate || isOfSet {
		return f
	}
	next, _ := decoplan.New(m.snapshot.Decorations, p.Labels)
	switch {
	case !p.Owner.Recreates:
		f.Way = wayStays
	case decoration.RevisionIn(next, m.name) != decoration.RevisionIn(expected.Marks, m.name):
		f.Way = wayKeptBack
	}
	return f
}

// forcing are the fields that keep a Pod from being changed in place. Pods of one template are alike.
func (m *decorating) forcing(pod *corev1.Pod, has, gets []decoration.Mark, isOfSet bool) []string {
	key := decoplan.TemplateOf(pod) + " " + decoration.Key(has) + " " + decoration.Key(gets)
	if known, is := m.known[key]; is {
		return known
	}
	fields, err := m.workOut(pod, has, gets, isOfSet)
	if err != nil {
		fields = []string{err.Error()}
	}
	if m.known == nil {
		m.known = map[string][]string{}
	}
	m.known[key] = fields
	return fields
}

// workOut compares as the controller does that updates the Pod. An error is why another Pod is needed.
func (m *decorating) workOut(pod *corev1.Pod, has, gets []decoration.Mark, isOfSet bool) ([]string, error) {
	if !isOfSet { // what is gone and stays is left as it is
		isGone := func(mark decoration.Mark) bool {
			_, is := m.contents[mark]
			return !is && slices.Contains(has, mark) && slices.Contains(gets, mark)
		}
		has, gets = slices.DeleteFunc(slices.Clone(has), isGone), slices.DeleteFunc(slices.Clone(gets), isGone)
	}
	from, err := m.contentsOf(has)
	if err != nil {
		return nil, err
	}
	to, err := m.contentsOf(gets)
	if err != nil {
		return nil, err
	}
	if !isOfSet {
		object, err := runtime.DefaultUnstructuredConverter.ToUnstructured(pod)
		if err != nil {
			return nil, err
		}
		change, _, err := revision.Redecorate(object, from, to, m.can)
		return change.Forcing, err
	}
	data := m.ofSets[pod.Labels[appsv1.ControllerRevisionHashLabelKey]]
	if data == nil {
		return nil, errors.New("its revision, which does not exist any more")
	}
	before, _, err := data.Decorated(from)
	if err != nil {
		return nil, err
	}
	after, _, err := data.Decorated(to)
	if err != nil {
		return nil, err
	}
	fields := revision.Explain(before, after, m.can).Forcing
	for i := range fields {
		fields[i] = strings.TrimPrefix(fields[i], "template.") // as those of Pods of others are named
	}
	return fields, nil
}

// contentsOf are decorations by their marks. One that is not there is an error.
func (m *decorating) contentsOf(marks []decoration.Mark) (all []decoration.Decoration, err error) {
	for _, mark := range marks {
		d, is := m.contents[mark]
		if !is {
			return nil, fmt.Errorf("revision %s of PodDecoration %s, which does not exist any more", mark.Revision, mark.Name)
		}
		all = append(all, d)
	}
	return all, nil
}

// decorationStrategy says in words which Pods get the template.
func decorationStrategy(spec *appsv1alpha1.PodDecorationSpec) string {
	rolling := spec.UpdateStrategy.RollingUpdate
	switch {
	case rolling != nil && rolling.Selector != nil:
		return "Pods that rollingUpdate.selector matches"
	case rolling != nil && ptr.Deref(rolling.Partition, 0) > 0:
		return fmt.Sprintf("the partition keeps back %s", insight.Plural(int(*rolling.Partition), "Pod"))
	}
	return "all Pods that it selects"
}

func (f *decorationForecast) write(w io.Writer) {
	fmt.Fprintf(w, "PodDecoration %s/%s\n", f.PodDecoration.Namespace, f.PodDecoration.Name)
	if !f.New && !f.TemplateChanges {
		fmt.Fprintln(w, "  the template stays as it is")
	}
	if texts := waysText(f.Ways); texts != "" {
		fmt.Fprintf(w, "  Pods: %s\n", texts)
	} else {
		fmt.Fprintln(w, "  it selects no Pod")
	}
	f.writeCourse(w)
	f.writeNotes(w, "no more Pods get its template until it is resumed")
}

// waysText are the numbers of Pods by how they get there.
func waysText(ways map[way]int) string {
	var counts []string
	for _, c := range []struct {
		way  way
		text string
	}{
		{wayInPlace, "changed in place"}, {wayRecreate, "re-created"}, {wayReplace, "replaced by new ones"},
		{wayRefused, "not updated (InPlaceOnly)"}, {wayStays, "not updated (no controller re-creates them)"},
		{wayKeptBack, "not updated (a new Pod would get the older revision)"},
		{wayUnmanaged, "not updated (outside the lifecycle)"},
		{wayHeld, "kept as they are"}, {wayThere, "there already"}, {wayScaledIn, "removed"},
	} {
		if n := ways[c.way]; n > 0 {
			counts = append(counts, fmt.Sprintf("%d %s", n, c.text))
		}
	}
	return strings.Join(counts, ", ")
}
