//go:build race

package controlplane

// raceDetector says whether the tests, and then the components too, run with the race detector.
const raceDetector = true
