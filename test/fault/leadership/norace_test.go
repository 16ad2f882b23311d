//go:build !race

package leadership

const raceDetector = false
