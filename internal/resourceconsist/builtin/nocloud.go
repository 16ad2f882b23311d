//go:build nocloud

package builtin

// ofClouds are none in a binary that is built with the tag nocloud.
func ofClouds() []builtIn { return nil }
