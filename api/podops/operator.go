package podops

import (
	"errors"
	"fmt"
	"strconv"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"
)

// Request is an operation on a Pod that an operator requests.
type Request struct {
	// ID is the operator's slot, a label name of at most 63 characters. One operator uses one ID for all its
	// operations, so that they run one after the other and not side by side.
	ID string
	// Type is the type of the operation, such as TypeUpdate.
	Type string
	// Deletes is whether the operation ends with the deletion of the Pod. Users' rules may check it
	// (PreparingToDeleteLabel).
	Deletes bool
}

// Validate returns an error if the request's ID or type is not valid.
func (r Request) Validate() error {
	var errs []error
	for what, value := range map[string]string{"ID": r.ID, "type": r.Type} {
		if value == "" {
			errs = append(errs, fmt.Errorf("operation %s is empty: give it a name", what))
			continue
		}
		for _, problem := range validation.IsDNS1123Label(value) {
			if len(validation.IsQualifiedName(value)) == 0 && len(validation.IsValidLabelValue(value)) == 0 {
				break // mixed case, dots and underscores are legal in both places
			}
			errs = append(errs, fmt.Errorf("operation %s %q cannot be part of a label: %s", what, value, problem))
		}
	}
	return errors.Join(errs...)
}

// Begin requests the operation. Requesting an operation that is already under way changes nothing. Requesting another
// type under the same ID, or the same type after it has finished, is a new request that needs its own permission. A Pod
// that is being deleted accepts no requests: the Change is zero.
func Begin(v View, r Request, now time.Time) (Change, error) {
	if err := r.Validate(); err != nil {
		return Change{}, err
	}
	o := OperationOf(v, r.ID)
	if v.Terminating || IsDuring(v, r.ID, r.Type) {
		return Change{}, nil
	}
	a := newAdvancer(v, now)
	if o.Phase == PhaseUndone || o.Phase == PhaseAbandoned {
		a.clearKeys(r.ID)
	}
	if o.Phase == PhaseOperate {
		// Another type: what was done under the old permission is not
		// post-checked, so the Pod stays offline; the permission itself is gone.
		a.setIfAbsent(OperatedPrefix + "/" + r.ID)
		a.labels[DoneOperationTypePrefix+"/"+r.ID] = o.Type
	}
	a.unset(r.ID, PreCheckedPrefix, PreparingPrefix)
	if o.Phase != PhaseFinished {
		a.unset(r.ID, OperatePrefix)
	}
	a.labels[OperatingPrefix+"/"+r.ID] = newRequest(o.Request, now)
	a.labels[OperationTypePrefix+"/"+r.ID] = r.Type
	if r.Deletes {
		a.setIfAbsent(PreparingToDeleteLabel)
	}
	begin := diffLabels(v.Labels, a.labels)
	return begin.Then(v, Structural(begin.Apply(v), now)), nil
}

// newRequest is a request value that differs from the one before, even if the clock does not advance.
func newRequest(old string, now time.Time) string {
	next := now.UnixNano()
	if last, err := strconv.ParseInt(old, 10, 64); err == nil && last >= next {
		next = last + 1
	}
	return strconv.FormatInt(next, 10)
}

// IsDuring reports whether the operation has begun and is neither finished nor cancelled.
func IsDuring(v View, id, opType string) bool {
	o := OperationOf(v, id)
	return o.UnderWay() && o.Type == opType
}

// Allowed reports whether the operator may act on the Pod now: the operation is in phase Operate, no cooperator holds
// the Pod (or a deadline waived that for this request), and the Pod is observed to be out of service. A Pod without the
// readiness gate cannot be taken out of service by a condition; its operation is allowed as soon as no cooperator holds
// it, as in upstream v0.7.
//
// The caller must write with the resourceVersion of v as a precondition, so that the answer is still valid at the
// write.
func Allowed(v View, id, opType string) bool {
	o := OperationOf(v, id)
	if v.Terminating || o.Phase != PhaseOperate || o.Type != opType {
		return false
	}
	if v.Protected() {
		if waived, ok := v.Labels[WaivedPrefix+"/"+id]; !ok || waived != o.Request {
			return false
		}
	}
	return !v.Gate || v.Terminal || !v.Ready
}

// OperateTime is when the permission to act was given, by its writer's clock; false without a permission. Delays are
// best measured from the caller's own observation.
func OperateTime(v View, id string) (time.Time, bool) {
	return TimeOf(v.Labels[OperatePrefix+"/"+id])
}

// Finish marks the operation as finished; the Pod may return to service once rules agree. Before phase Operate nothing
// can have been done, and Finish cancels. It changes nothing unless an operation of this type is under way.
func Finish(v View, id, opType string, now time.Time) Change {
	if v.Terminating || !IsDuring(v, id, opType) {
		return Change{}
	}
	finish := Change{Labels: map[string]*string{OperatingPrefix + "/" + id: nil}}
	return finish.Then(v, Structural(finish.Apply(v), now))
}

// Cancel removes the request, in any phase, with all its keys. Changes already made to the Pod remain, without a
// PostCheck.
func Cancel(v View, id string, now time.Time) Change {
	if v.Terminating || PhaseOf(v, id) == PhaseNone {
		return Change{}
	}
	stamp := Stamp(now)
	undo := Change{Labels: map[string]*string{UndoOperationTypePrefix + "/" + id: &stamp}}
	return undo.Then(v, Structural(undo.Apply(v), now))
}
