// Command lifecycle-controller moves Pods through the phases of an operation and in and out of service.
// Run it with --help for its flags.
package main

import (
	"kusionstack.io/kuperator/internal/bootstrap"
	"kusionstack.io/kuperator/internal/lifecycle"
)

func main() {
	bootstrap.Main(lifecycle.Component())
}
