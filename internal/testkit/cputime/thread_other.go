//go:build !linux

package cputime

import (
	"errors"
	"time"
)

// Thread is the CPU time that this thread has used. It is an error where the system does not tell.
func Thread() (time.Duration, error) { return 0, errors.ErrUnsupported }
