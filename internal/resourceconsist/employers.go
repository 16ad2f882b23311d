package resourceconsist

import (
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	api "kusionstack.io/kuperator/api/resourceconsist"
	"kusionstack.io/kuperator/internal/resourceconsist/backend"
)

// employer is what the controller keeps of one employer. It never changes once it is in the index.
type employer struct {
	object client.Object
	// selectors holds what each adapter selects, by the adapter's position; nil selects nothing.
	selectors []labels.Selector
	// holders says which adapters may hold something for it, by position.
	holders []bool
	drain   time.Duration
	// uncached is true if the employer is not in the cache: object is what was last seen of it.
	uncached bool
}

// takesPart reports whether the employer employs Pods at all.
func (e *employer) takesPart() bool {
	return slices.ContainsFunc(e.selectors, func(s labels.Selector) bool { return s != nil })
}

// employs reports whether the adapter at this position employs Pods with these labels.
func (e *employer) employs(adapter int, podLabels labels.Labels) bool {
	return e.selectors[adapter] != nil && e.selectors[adapter].Matches(podLabels)
}

// same reports whether nothing that an adapter may read of the employer, or that the controller keeps of it, differs
// between the two.
func (e *employer) same(o *employer) bool {
	text := func(s labels.Selector) string {
		if s == nil {
			return "-"
		}
		return s.String()
	}
	return e.drain == o.drain && slices.Equal(e.holders, o.holders) &&
		slices.EqualFunc(e.selectors, o.selectors, func(a, b labels.Selector) bool { return text(a) == text(b) }) &&
		!backend.Differ(e.object, o.object)
}

// employers answers which employers select a Pod without looking at all of them: each selector stands under one of the
// labels that it requires. It is filled by the employers' events and safe for concurrent use.
type employers struct {
	mu    sync.RWMutex
	byKey map[client.ObjectKey]*employer
	// anchored holds the employers of a namespace under "<label>=<value>", or "" if no selector names one.
	anchored map[string]map[string]map[client.ObjectKey]struct{}
}

func newEmployers() *employers {
	return &employers{byKey: map[client.ObjectKey]*employer{},
		anchored: map[string]map[string]map[client.ObjectKey]struct{}{}}
}

// put takes in the newest state of an employer and returns the one before, nil if there was none.
func (x *employers) put(e *employer) *employer {
	x.mu.Lock()
	defer x.mu.Unlock()
	key := client.ObjectKeyFromObject(e.object)
	old := x.drop(key)
	x.add(key, e)
	return old
}

func (x *employers) add(key client.ObjectKey, e *employer) {
	x.byKey[key] = e
	for _, s := range e.selectors {
		if s == nil {
			continue
		}
		anchor := anchorOf(s)
		if x.anchored[key.Namespace] == nil {
			x.anchored[key.Namespace] = map[string]map[client.ObjectKey]struct{}{}
		}
		if x.anchored[key.Namespace][anchor] == nil {
			x.anchored[key.Namespace][anchor] = map[client.ObjectKey]struct{}{}
		}
		x.anchored[key.Namespace][anchor][key] = struct{}{}
	}
}

// replace puts next in the place of old, which may be nil, unless another writer was quicker; a nil next forgets the
// employer.
func (x *employers) replace(key client.ObjectKey, old, next *employer) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.byKey[key] != old {
		return false
	}
	x.drop(key)
	if next != nil {
		x.add(key, next)
	}
	return true
}

// remove forgets an employer and returns what it was, nil if it was not known.
func (x *employers) remove(key client.ObjectKey) *employer {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.drop(key)
}

func (x *employers) drop(key client.ObjectKey) *employer {
	old, ok := x.byKey[key]
	if !ok {
		return nil
	}
	delete(x.byKey, key)
	for _, s := range old.selectors {
		if s == nil {
			continue
		}
		anchor := anchorOf(s)
		if delete(x.anchored[key.Namespace][anchor], key); len(x.anchored[key.Namespace][anchor]) == 0 {
			delete(x.anchored[key.Namespace], anchor)
		}
	}
	if len(x.anchored[key.Namespace]) == 0 {
		delete(x.anchored, key.Namespace)
	}
	return old
}

// get returns one employer, nil if it is not known.
func (x *employers) get(key client.ObjectKey) *employer {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return x.byKey[key]
}

// of returns the employers that select the Pod.
func (x *employers) of(pod *corev1.Pod) []*employer {
	x.mu.RLock()
	defer x.mu.RUnlock()
	anchored := x.anchored[pod.Namespace]
	if len(anchored) == 0 {
		return nil
	}
	var found []*employer
	selects := func(s labels.Selector) bool { return s != nil && s.Matches(labels.Set(pod.Labels)) }
	look := func(anchor string) {
		for key := range anchored[anchor] {
			if e := x.byKey[key]; !slices.Contains(found, e) && slices.ContainsFunc(e.selectors, selects) {
				found = append(found, e)
			}
		}
	}
	look("")
	for k, v := range pod.Labels {
		look(k + "=" + v)
	}
	return found
}

// selected reports whether some employer selects the Pod.
func (x *employers) selected(pod *corev1.Pod) bool { return len(x.of(pod)) > 0 }

// anchorOf is a label that every Pod of the selector carries, "" if the selector names none.
func anchorOf(s labels.Selector) string {
	requirements, _ := s.Requirements()
	for _, r := range requirements {
		if value, exact := s.RequiresExactMatch(r.Key()); exact {
			return r.Key() + "=" + value
		}
	}
	return ""
}

// employer reads an employer as the adapters see it.
func (c *podController) employer(object client.Object) *employer {
	e := &employer{object: object, selectors: make([]labels.Selector, len(c.adapters)),
		holders: make([]bool, len(c.adapters))}
	e.drain, _ = api.DrainTime(object, c.options.DrainTime) // employerController reports the error
	if object.GetDeletionTimestamp() == nil {
		for i, a := range c.adapters {
			e.selectors[i] = selectorOf(a, object)
		}
	}
	for i, a := range c.adapters {
		e.holders[i] = holds(a) && api.MayHold(object, a.Name())
	}
	return e
}

// prepared reports whether the employer stays until its Pods are deregistered, and its own resource is there. That may
// change with what is known besides its object; the code that changes that wakes its Pods.
func (c *podController) prepared(e *employer) bool {
	return controllerutil.ContainsFinalizer(e.object, api.CleanFinalizer) && c.recorded(e) &&
		c.made(e.object, e.selectors)
}

// same reports whether no decision about a Pod can differ between two states of an employer.
func (c *podController) same(a, b *employer) bool { return a.same(b) && c.prepared(a) == c.prepared(b) }

// recorded reports whether the employer names all that may hold something for it, wherever it can.
func (c *podController) recorded(e *employer) bool {
	names := c.holderNames(e)
	_, has := api.ConditionsOf(e.object)
	annotated := api.AnnotatedHolders(e.object)
	slices.Sort(annotated)
	return slices.Equal(names, annotated) &&
		(!has || c.statusless.Load() || slices.Equal(names, api.ConditionedHolders(e.object)))
}

// holderNames are the names of all that may hold something for the employer, sorted: those that it names, and those
// that are about to. Adapters that this process does not know are kept.
func (c *podController) holderNames(e *employer) []string {
	names := api.HeldBy(e.object)
	for i, a := range c.adapters {
		if e.selectors[i] != nil && holds(a) {
			names = append(names, api.HolderName(a.Name(), placeOf(a, e.object)))
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// placeOf is where an adapter has the employer's members, "" if it has but one place.
func placeOf(a backend.Backend, employer client.Object) string {
	if mover, moves := a.(backend.Mover); moves {
		return mover.Place(employer)
	}
	return ""
}

// selectorOf is what the employer selects through the adapter; nil if nothing. A selector without requirements selects
// nothing: a Service that has none would otherwise employ its whole namespace.
func selectorOf(a backend.Backend, object client.Object) labels.Selector {
	s := a.Selector(object)
	if s == nil || s.Empty() {
		return nil
	}
	return s
}

// keyOf takes an annotation's employer key apart; false if it is not of this kind.
func keyOf(kind, key string) (client.ObjectKey, bool) {
	parts := strings.Split(key, "/")
	if len(parts) != 3 || parts[0] != kind {
		return client.ObjectKey{}, false
	}
	return client.ObjectKey{Namespace: parts[1], Name: parts[2]}, true
}
