// Package await is how tests wait: they look again and again until a deadline that no healthy run comes near.
package await

import (
	"context"
	"fmt"
	"testing"
	"time"
)

const (
	// Patience bounds a wait for something that takes seconds, on a busy machine.
	Patience = 4 * time.Minute

	pace = 50 * time.Millisecond
)

// Nil waits until check returns nil, and fails the test if it does not within Patience or before the test's context
// ends.
func Nil(t testing.TB, what string, check func() error) {
	t.Helper()
	if err := Until(t.Context(), check); err != nil {
		t.Fatalf("waiting for %s: %v", what, err)
	}
}

// Until waits until check returns nil. The error says for how long it waited and what check said last.
func Until(ctx context.Context, check func() error) error {
	begin := time.Now()
	for {
		err := check()
		switch {
		case err == nil:
			return nil
		case time.Since(begin) > Patience:
			return fmt.Errorf("in vain for %s: %w", Patience, err)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w; last: %w", ctx.Err(), err)
		case <-time.After(pace):
		}
	}
}

// Always checks again and again for a while, and fails the test at the first error.
func Always(t testing.TB, d time.Duration, what string, check func() error) {
	t.Helper()
	for deadline := time.Now().Add(d); time.Now().Before(deadline); {
		if err := check(); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		select {
		case <-t.Context().Done():
			t.Fatal(t.Context().Err())
		case <-time.After(pace):
		}
	}
}
