// Package nightly tells tests whether `make test-nightly` runs them. What is long and rarely finds anything runs then
// only; docs/contributing/tests.md lists it.
package nightly

import (
	"os"
	"testing"
)

// Variable is set, to anything, for a run of everything.
const Variable = "KUPERATOR_NIGHTLY"

// Run reports whether everything runs, however long it takes.
func Run() bool { return os.Getenv(Variable) != "" }

// Only skips a test that `make test` leaves to `make test-nightly`. It gives the reason, which names what runs instead.
func Only(t testing.TB, reason string) {
	t.Helper()
	if !Run() {
		t.Skipf("make test-nightly runs it, or %s=1: %s", Variable, reason)
	}
}
