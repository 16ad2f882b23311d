// Command lifecycle-controller advances Pods through the phases of operations, out of service and back into it.
// Run it with --help for its flags.
package main

import (
	"kusionstack.io/kuperator/internal/bootstrap"
	"kusionstack.io/kuperator/internal/lifecycle"
)

func main() {
	bootstrap.Main(lifecycle.Component())
}
