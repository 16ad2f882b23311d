package collaset

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"kusionstack.io/kuperator/internal/collaset/setplan"
	"kusionstack.io/kuperator/internal/decoration"
	"kusionstack.io/kuperator/internal/revision"
)

// errNoForm is that no Pod can be made of a form: one of its revisions does not exist, or cannot be read.
var errNoForm = errors.New("the Pod cannot be made")

// knownForms is what is kept of Pods with decorations. The zero knownForms is empty.
type knownForms struct {
	// decorations are revisions of PodDecorations: the API server does not let their contents change.
	decorations kept[decoration.Mark, decoration.Decoration]
	// changes are worked out for changesFor, which only decisions about the set read and write.
	changes    kept[setplan.FormChange, revision.Change]
	changesFor revision.Capabilities
}

// kept are values by key. The zero kept is empty. It is safe for concurrent use.
type kept[K comparable, V any] struct {
	mu  sync.Mutex
	all map[K]V
}

func (k *kept[K, V]) get(key K) (value V, known bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	value, known = k.all[key]
	return value, known
}

func (k *kept[K, V]) put(key K, value V) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.all == nil {
		k.all = map[K]V{}
	}
	k.all[key] = value
}

// only forgets all others.
func (k *kept[K, V]) only(needed map[K]bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	maps.DeleteFunc(k.all, func(key K, _ V) bool { return !needed[key] })
}

// observeDecorations fills in what the snapshot has of decorations: what lies between what a Pod is made of, and what
// it may become.
func (r *reconciler) observeDecorations(ctx context.Context, o *observation) error {
	s := &o.snapshot
	needed := map[setplan.FormChange]bool{}
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
	}
	o.memory.forms.forgetOthers(needed, o.memory.revisions.changesFor)
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
func (f *knownForms) forgetOthers(needed map[setplan.FormChange]bool, can revision.Capabilities) {
	named := map[decoration.Mark]bool{}
	for c := range needed {
		for _, m := range slices.Concat(decoration.MarksIn(c.From.Decorations), decoration.MarksIn(c.To.Decorations)) {
			named[m] = true
		}
	}
	f.decorations.only(named)
	if f.changesFor != can {
		f.changesFor = can
		f.changes.only(nil)
	}
	f.changes.only(needed)
}

// changeOf is what lies between two forms. A form that is not known any more differs in all. errNoForm means that no
// Pod can be made of the second.
func (s *server) changeOf(ctx context.Context, o *observation, c setplan.FormChange) (revision.Change, error) {
	if c.From.Decorations == "" && c.To.Decorations == "" && c.To.Revision == o.history.updated {
		return o.history.changes[c.From.Revision], nil
	}
	changes := &o.memory.forms.changes
	if change, known := changes.get(c); known {
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
	change := revision.Explain(from, to, o.memory.revisions.changesFor)
	changes.put(c, change)
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
	known := &o.memory.forms.decorations
	d, is := known.get(m)
	if is {
		return d, nil
	}
	cr := &appsv1.ControllerRevision{}
	switch err := s.live.Get(ctx, types.NamespacedName{Namespace: o.set.Namespace, Name: m.Revision}, cr); {
	case apierrors.IsNotFound(err):
		return d, fmt.Errorf("%w: revision %s of PodDecoration %s does not exist", errNoForm, m.Revision, m.Name)
	case err != nil:
		return d, fmt.Errorf("reading revision %s of PodDecoration %s: %w", m.Revision, m.Name, err)
	}
	d, isIts, err := decoration.Of(cr, m)
	switch {
	case !isIts:
		return d, fmt.Errorf("%w: revision %s is not of PodDecoration %s", errNoForm, m.Revision, m.Name)
	case err != nil:
		return d, fmt.Errorf("%w: revision %s of PodDecoration %s: %w", errNoForm, m.Revision, m.Name, err)
	}
	known.put(m, d)
	return d, nil
}
