//go:build !linux

package yardstick

import (
	"errors"
	"time"
)

func threadTime() (time.Duration, error) { return 0, errors.ErrUnsupported }
