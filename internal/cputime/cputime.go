// Package cputime measures what work takes of a core, however long it waits for one.
package cputime

import (
	"runtime"
	"time"

	"k8s.io/utils/clock"
)

// Stopwatch is running since Start, on the goroutine that started it.
type Stopwatch struct {
	cpu  time.Duration
	told bool
	wall time.Time
}

// Start begins, and keeps the goroutine on its thread until Stop, which the same goroutine has to call.
func Start() Stopwatch {
	runtime.LockOSThread()
	cpu, err := Thread()
	return Stopwatch{cpu: cpu, told: err == nil, wall: clock.RealClock{}.Now()}
}

// Stop returns the CPU time since Start, and the time that passed where the system does not tell (other than Linux).
func (s Stopwatch) Stop() time.Duration {
	defer runtime.UnlockOSThread()
	if cpu, err := Thread(); err == nil && s.told {
		return cpu - s.cpu
	}
	return clock.RealClock{}.Since(s.wall)
}
