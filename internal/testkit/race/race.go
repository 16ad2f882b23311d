//go:build race

package race

// Enabled means that this program was built with the race detector.
const Enabled = true
