package podphase

import (
	"time"

	"kusionstack.io/kuperator/api/podops"
)

// minHold is the least time between a Pod's way out without a cooperator and the operation on it.
const minHold = 2 * time.Second

// hold is how long a Pod that went out of service without a cooperator waits for one that was just bringing it back. A
// third of the patience that was shown before has proven enough for cooperators.
func hold(s Snapshot) time.Duration {
	if s.NotAwaited {
		return 0
	}
	return max(minHold, s.Patience/3)
}

// release takes podops.UnheldLabel off a Pod that has waited, and says how long it still waits; zero if it does not.
// A label that is no time, or one from a clock that is far ahead, is taken off at once.
func release(s Snapshot) (podops.Change, time.Duration) {
	label, unheld := s.Pod.Labels[podops.UnheldLabel]
	if !unheld {
		return podops.Change{}, 0
	}
	since, known := podops.TimeOf(label)
	most := hold(s)
	if left := most - s.Now.Sub(since); known && left > 0 && left <= 2*most {
		return podops.Change{}, left
	}
	return podops.Change{Labels: map[string]*string{podops.UnheldLabel: nil}}, 0
}

// unheld are the operations that take the Pod out of service although a cooperator that it expects does not hold it:
// the cooperator has had the time to, so it is away, and the Pod counts as out of service anyway. It returns how long
// until there are some; zero if there are or none will be.
func unheld(v podops.View, s Snapshot) (ids podops.Waived, left time.Duration) {
	if !s.NotAwaited && (s.Patience == 0 || s.MissingSince.IsZero()) {
		return nil, 0
	}
	for _, o := range podops.Operations(v) {
		if podops.DeadlinePhase(o.Phase) != podops.PhasePreCheck {
			continue
		}
		if left := s.Patience - s.Now.Sub(s.MissingSince); left > 0 && !s.NotAwaited {
			return nil, left
		}
		if ids == nil {
			ids = podops.Waived{}
		}
		ids[o.ID] = podops.PhasePreCheck
	}
	return ids, 0
}
