package observer

import (
	"fmt"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// record is what was found, and how often each promise was judged.
type record struct {
	violations []Violation
	checks     map[Invariant]int
	without    []Invariant // are not judged
}

func newRecord(o *Options) *record { return &record{checks: map[Invariant]int{}, without: o.Without} }

// report takes down that the object of an event breaks a promise.
func (r *record) report(i Invariant, e Event, message string) {
	if slices.Contains(r.without, i) {
		return
	}
	r.violations = append(r.violations, Violation{
		Invariant: i, Time: e.Time, ResourceVersion: e.ResourceVersion,
		Object: kindOf(e.Object) + " " + e.Object.GetNamespace() + "/" + e.Object.GetName(), Message: message,
	})
}

// check counts a judgement of the object of an event, and takes down a broken promise.
func (r *record) check(i Invariant, e Event, kept bool, format string, args ...any) {
	if slices.Contains(r.without, i) {
		return
	}
	r.checks[i]++
	if !kept {
		r.report(i, e, fmt.Sprintf(format, args...))
	}
}

func (r *record) add(other *record) {
	r.violations = append(r.violations, other.violations...)
	for i, n := range other.checks {
		r.checks[i] += n
	}
}

// resting judges a namespace at rest: what it says is of no event.
type resting struct {
	*record
	now time.Time
}

func (r resting) judge(i Invariant, obj metav1.Object, kept bool, format string, args ...any) {
	r.check(i, Event{Time: r.now, Object: obj}, kept, format, args...)
}
