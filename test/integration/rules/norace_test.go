//go:build !race

package rules_test

// raceDetector builds the components with the race detector.
const raceDetector = false
