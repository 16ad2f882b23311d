// Command poddecoration-controller rolls PodDecorations out: sidecars and shared settings for Pods of any workload.
// Run it with --help for its flags.
package main

import (
	"kusionstack.io/kuperator/internal/bootstrap"
	"kusionstack.io/kuperator/internal/poddecoration"
)

func main() {
	bootstrap.Main(poddecoration.Component())
}
