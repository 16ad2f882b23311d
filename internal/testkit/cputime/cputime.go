// Package cputime measures what work takes of a core, however long it waits for one.
package cputime

import (
	"runtime"
	"time"

	"k8s.io/utils/clock"
)

// Start begins, and keeps the goroutine on its thread until it calls stop. That returns the CPU time since Start, and
// the time that passed where the system does not tell (other than Linux).
func Start() (stop func() time.Duration) {
	runtime.LockOSThread()
	before, err := Thread()
	wall := clock.RealClock{}.Now()
	return func() time.Duration {
		defer runtime.UnlockOSThread()
		if after, failed := Thread(); failed == nil && err == nil {
			return after - before
		}
		return clock.RealClock{}.Since(wall)
	}
}
