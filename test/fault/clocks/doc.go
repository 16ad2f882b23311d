// Package clocks runs components whose clocks differ by up to ten minutes. They are built with another time.Now, so
// that everything in them goes by the wrong time, libraries too. It runs with FAULTS=all only: it builds the standard
// library again.
package clocks
