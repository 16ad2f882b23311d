// Package soonest picks the first of several times to look again.
package soonest

import "time"

// Of returns the smallest of waits. Those of zero or less are none; it returns zero if there is no other.
func Of(waits ...time.Duration) time.Duration {
	var first time.Duration
	for _, w := range waits {
		if w > 0 && (first == 0 || w < first) {
			first = w
		}
	}
	return first
}
