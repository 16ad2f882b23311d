package collaset

import "time"

// Bounds of the wait between attempts to create Pods that fail. The work queue backs off as well, but an event of any
// Pod of the set would be another attempt.
const (
	firstAttemptIn = 200 * time.Millisecond
	lastAttemptIn  = 30 * time.Second
)

// createBackoff is what became of the last attempts to create Pods.
type createBackoff struct {
	// failures is the number of attempts since one succeeded, wholly or in part; generation the spec that was tried.
	failures   int
	generation int64
	next       time.Time
	err        error
}

// left is how long creations have to wait. A changed spec is tried at once.
func (c *createBackoff) left(now time.Time, generation int64) time.Duration {
	if c.generation != generation || c.failures < 2 {
		return 0
	}
	return max(c.next.Sub(now), 0)
}

// attempted notes how an attempt went. The first failure is tried again as soon as the work queue says so.
func (c *createBackoff) attempted(err error, some bool, now time.Time, generation int64) {
	if err == nil {
		*c = createBackoff{}
		return
	}
	if c.generation != generation || some {
		*c = createBackoff{}
	}
	c.failures, c.generation, c.err = c.failures+1, generation, err
	c.next = now.Add(min(firstAttemptIn<<min(max(c.failures-2, 0), 20), lastAttemptIn))
}
