package podphase

import (
	"time"

	"kusionstack.io/kuperator/api/podops"
)

// verdictLasts is for how long a deletion may begin, and leave PreCheck, after the API server has agreed to it.
const verdictLasts = time.Minute

// Verdict is what the API server said of the Pod's deletion, in a dry run or in earnest. The zero Verdict is none.
type Verdict struct {
	// At is when it said so.
	At time.Time
	// Refused is why it refuses, for people; "" if it does not.
	Refused string
	// Retry is when it is asked again after it has refused.
	Retry time.Time
}

// accepted reports whether the API server has agreed, and may be taken at its word still.
func (v Verdict) accepted(now time.Time) bool {
	return v.Refused == "" && !v.At.IsZero() && now.Sub(v.At) < verdictLasts
}

// isDeleting reports whether the graceful deletion of the Pod has begun.
func isDeleting(v podops.View) bool { return podops.IsDuring(v, podops.DeletionID, podops.TypeDelete) }

// deletion asks for the deletion of a marked Pod once the API server agrees, and takes the request back when the mark
// is gone or the API server refuses: the Pod comes back into service. The mark stays, so that it begins again. Why it
// is refused stays on the Pod meanwhile.
func deletion(s Snapshot, marked bool) podops.Change {
	refused, change := s.Deletion.Refused != "", podops.Change{}
	switch {
	case isDeleting(s.Pod):
		if !marked || refused {
			change = podops.Cancel(s.Pod, podops.DeletionID, s.Now)
		}
	case marked && s.Deletion.accepted(s.Now):
		// The request is a constant that Validate accepts, so Begin cannot fail.
		change, _ = podops.Begin(s.Pod, podops.Request{ID: podops.DeletionID, Type: podops.TypeDelete, Deletes: true}, s.Now)
	}
	why, noted := s.Pod.Annotations[podops.DeletionRefusedAnnotation]
	note := func(value *string) podops.Change {
		return podops.Change{Annotations: map[string]*string{podops.DeletionRefusedAnnotation: value}}
	}
	switch {
	case marked && refused && why != s.Deletion.Refused:
		return change.Then(s.Pod, note(&s.Deletion.Refused))
	case noted && (!marked || !refused && isDeleting(change.Apply(s.Pod))): // after a restart it is known no better
		return change.Then(s.Pod, note(nil))
	}
	return change
}

// tryFirst reports whether the API server is to be asked before the deletion of a marked Pod begins.
func tryFirst(s Snapshot, marked bool) bool {
	if !marked || isDeleting(s.Pod) || s.Deletion.accepted(s.Now) {
		return false
	}
	return s.Deletion.Refused == "" || !s.Now.Before(s.Deletion.Retry)
}

// retryIn is when the API server is asked again that has refused to delete a marked Pod; 0 if it has not, or if it is
// time.
func retryIn(s Snapshot, marked bool) time.Duration {
	if !marked || s.Deletion.Refused == "" {
		return 0
	}
	return max(0, s.Deletion.Retry.Sub(s.Now))
}
