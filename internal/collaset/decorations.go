package collaset

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/internal/collaset/setplan"
	"kusionstack.io/kuperator/internal/decoration"
	"kusionstack.io/kuperator/internal/revision"
)

// errNoForm is that no Pod can be made of a form: one of its revisions does not exist, or cannot be read.
var errNoForm = errors.New("the Pod cannot be made")

// knownForms is what is kept of Pods with decorations. The zero knownForms is empty. It is safe for concurrent use.
type knownForms struct {
	mu sync.Mutex
	// decorations are revisions of PodDecorations: the API server does not let their contents change.
	decorations map[decoration.Mark]decoration.Decoration
	// changes are worked out for changesFor.
	changes    map[setplan.FormChange]revision.Change
	changesFor revision.Capabilities
}

// observeDecorations fills in what the snapshot has of decorations: what lies between what a Pod is made of, and what
// it may become.
func (r *reconciler) observeDecorations(ctx context.Context, o *observation) error {
	s := &o.snapshot
	needed := map[setplan.FormChange]bool{}
	named := map[decoration.Mark]bool{}
	for i := range s.Pods {
		p := &s.Pods[i]
		if p.Decorations == "" && p.Desired == "" {
			continue
		}
		for _, revision := range []string{p.Revision, s.UpdatedRevision} {
			for _, decorations := range []string{p.Desired, p.Decorations} {
				to := setplan.Form{Revision: revision, Decorations: decorations}
				needed[setplan.FormChange{From: p.Form(), To: to}] = true
			}
		}
		for _, m := range slices.Concat(decoration.MarksIn(p.Decorations), decoration.MarksIn(p.Desired)) {
			named[m] = true
		}
	}
	o.memory.forms.forgetOthers(needed, named, o.memory.revisions.changesFor)
	s.Decorated = make(map[setplan.FormChange]setplan.Difference, len(needed))
	for between := range needed {
		change, err := r.changeOf(ctx, o, between)
		switch {
		case errors.Is(err, errNoForm):
			s.Decorated[between] = setplan.Difference{Missing: err.Error()}
			continue
		case err != nil:
			return err
		}
		difference := differenceOf(&change, between.From == between.To)
		difference.Forcing = slices.Concat(difference.Forcing, setplan.ClaimForcing(s.Templates[between.From.Revision],
			s.Templates[between.To.Revision], s.Retention))
		s.Decorated[between] = difference
	}
	return nil
}

// forgetOthers forgets what is not needed any more.
func (f *knownForms) forgetOthers(
	changes map[setplan.FormChange]bool, decorations map[decoration.Mark]bool, can revision.Capabilities,
) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.changesFor != can {
		f.changes, f.changesFor = nil, can
	}
	maps.DeleteFunc(f.changes, func(c setplan.FormChange, _ revision.Change) bool { return !changes[c] })
	maps.DeleteFunc(f.decorations, func(m decoration.Mark, _ decoration.Decoration) bool { return !decorations[m] })
}

// changeOf is what lies between two forms. A form that is not known any more differs in all. errNoForm means that no
// Pod can be made of the second.
func (s *server) changeOf(ctx context.Context, o *observation, c setplan.FormChange) (revision.Change, error) {
	if c.From.Decorations == "" && c.To.Decorations == "" && c.To.Revision == o.history.updated {
		return o.history.changes[c.From.Revision], nil
	}
	forms := &o.memory.forms
	forms.mu.Lock()
	change, known := forms.changes[c]
	forms.mu.Unlock()
	if known {
		return change, nil
	}
	to, err := s.made(ctx, o, c.To)
	if err != nil {
		return revision.Change{}, err
	}
	from, err := s.made(ctx, o, c.From)
	if err != nil && !errors.Is(err, errNoForm) {
		return revision.Change{}, err
	}
	change = revision.Explain(from, to, o.memory.revisions.changesFor)
	forms.mu.Lock()
	defer forms.mu.Unlock()
	if forms.changes == nil {
		forms.changes = map[setplan.FormChange]revision.Change{}
	}
	forms.changes[c] = change
	return change, nil
}

// made is the content of a revision with decorations: what Pods of the form are made from.
func (s *server) made(ctx context.Context, o *observation, f setplan.Form) (*revision.Data, error) {
	data := o.history.data[f.Revision]
	if data == nil {
		return nil, fmt.Errorf("%w: revision %q does not exist", errNoForm, f.Revision)
	}
	marks := decoration.MarksIn(f.Decorations)
	if len(marks) == 0 {
		return data, nil
	}
	decorations := make([]decoration.Decoration, 0, len(marks))
	for _, m := range marks {
		d, err := s.decoration(ctx, o, m)
		if err != nil {
			return nil, err
		}
		decorations = append(decorations, d)
	}
	decorated, _, err := data.Decorated(decorations)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errNoForm, err)
	}
	return decorated, nil
}

// decoration reads a revision of a PodDecoration, past the cache, once.
func (s *server) decoration(ctx context.Context, o *observation, m decoration.Mark) (decoration.Decoration, error) {
	forms := &o.memory.forms
	forms.mu.Lock()
	d, known := forms.decorations[m]
	forms.mu.Unlock()
	if known {
		return d, nil
	}
	cr := &appsv1.ControllerRevision{}
	switch err := s.live.Get(ctx, types.NamespacedName{Namespace: o.set.Namespace, Name: m.Revision}, cr); {
	case apierrors.IsNotFound(err):
		return d, fmt.Errorf("%w: revision %s of PodDecoration %s does not exist", errNoForm, m.Revision, m.Name)
	case err != nil:
		return d, fmt.Errorf("reading revision %s of PodDecoration %s: %w", m.Revision, m.Name, err)
	}
	// Others may write revisions as well: of a workload, or to have a Pod made that they may not make.
	if owner := metav1.GetControllerOfNoCopy(cr); owner == nil ||
		owner.Kind != appsv1alpha1.PodDecorationKind || owner.Name != m.Name ||
		!strings.HasPrefix(owner.APIVersion, appsv1alpha1.SchemeGroupVersion.Group+"/") {
		return d, fmt.Errorf("%w: revision %s is not of PodDecoration %s", errNoForm, m.Revision, m.Name)
	}
	template, weight, err := decoration.Parse(cr.Data.Raw)
	if err != nil {
		return d, fmt.Errorf("%w: revision %s of PodDecoration %s: %w", errNoForm, m.Revision, m.Name, err)
	}
	d = decoration.Decoration{Name: m.Name, Revision: m.Revision, Weight: weight, Template: template}
	forms.mu.Lock()
	defer forms.mu.Unlock()
	if forms.decorations == nil {
		forms.decorations = map[decoration.Mark]decoration.Decoration{}
	}
	forms.decorations[m] = d
	return d, nil
}
