package cputime

import (
	"time"

	"golang.org/x/sys/unix"
)

// Thread is the CPU time that this thread has used. It is an error where the system does not tell.
func Thread() (time.Duration, error) {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t); err != nil {
		return 0, err
	}
	return time.Duration(t.Nano()), nil
}
