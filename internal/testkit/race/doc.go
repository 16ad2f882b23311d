// Package race says whether a program was built with the race detector, which tests want to know of themselves: components that they
// start are built alike, and what the detector makes too slow is left out.
package race
