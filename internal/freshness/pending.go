package freshness

import (
	"fmt"
	"reflect"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// pending are the writes of one owner that the cache may not show yet. Thousands of owners have one each while a
// controller is behind, and a map of one takes ten times the memory of what is in it: so the first is kept beside the
// map. The nil pending are none.
type pending struct {
	first  recorded // of no kind if there is none
	others map[target]write
}

// recorded is a write of an object.
type recorded struct {
	which target
	last  write
}

func (p *pending) get(which target) (last write, known bool) {
	switch {
	case p == nil:
		return write{}, false
	case p.first.which == which:
		return p.first.last, true
	}
	last, known = p.others[which]
	return last, known
}

// set is not for the nil pending.
func (p *pending) set(which target, last write) {
	_, other := p.others[which]
	switch {
	case p.first.which == which, p.first.which.kind == nil && !other:
		p.first = recorded{which, last}
	case p.others == nil:
		p.others = map[target]write{which: last}
	default:
		p.others[which] = last
	}
}

// remove is not for the nil pending.
func (p *pending) remove(which target) {
	if p.first.which == which {
		p.first = recorded{}
		return
	}
	delete(p.others, which)
}

func (p *pending) empty() bool {
	return p == nil || p.first.which.kind == nil && len(p.others) == 0
}

// all are copies, in no order.
func (p *pending) all() []recorded {
	if p.empty() {
		return nil
	}
	all := make([]recorded, 0, 1+len(p.others))
	if p.first.which.kind != nil {
		all = append(all, p.first)
	}
	for which, last := range p.others {
		all = append(all, recorded{which, last})
	}
	return all
}

// kind is what all writes of a kind have in common. A Tracker has one of each.
type kind struct {
	name    string
	example client.Object // never filled in
}

// kindKey tells kinds apart: by Go type and, where that does not say it, by group and kind.
type kindKey struct {
	goType    reflect.Type
	groupKind schema.GroupKind
}

// kind is the kind of an object. Pods are looked for as such, whatever Go type an answer has: a cache of another type
// would be a second one. The caller holds the lock.
func (t *Tracker) kind(obj client.Object) *kind {
	if obj.GetObjectKind().GroupVersionKind() == corev1.SchemeGroupVersion.WithKind("Pod") {
		obj = &corev1.Pod{}
	}
	key := kindKey{goType: reflect.TypeOf(obj)}
	if saysItsKind(obj) {
		key.groupKind = obj.GetObjectKind().GroupVersionKind().GroupKind()
	}
	known := t.kinds[key]
	if known == nil {
		known = &kind{name: fmt.Sprintf("%T", obj), example: emptyLike(obj)}
		if key.groupKind.Kind != "" {
			known.name += " " + key.groupKind.String()
		}
		t.kinds[key] = known
	}
	return known
}

// saysItsKind holds for Go types that are used for many kinds.
func saysItsKind(obj client.Object) bool {
	switch obj.(type) {
	case runtime.Unstructured, *metav1.PartialObjectMetadata:
		return true
	}
	return false
}

// emptyLike is an empty object of obj's kind, with its group, version and kind where the Go type does not tell them.
func emptyLike(obj client.Object) client.Object {
	empty, ok := reflect.New(reflect.TypeOf(obj).Elem()).Interface().(client.Object)
	if !ok {
		return obj // cannot be: a pointer to the same type has the same methods
	}
	if saysItsKind(obj) {
		empty.GetObjectKind().SetGroupVersionKind(obj.GetObjectKind().GroupVersionKind())
	}
	return empty
}
