// Command resourceconsist-controller keeps traffic and other resources around Pods consistent with the Pods' phases.
// Run it with --help for its flags.
package main

import (
	"kusionstack.io/kuperator/internal/bootstrap"
	"kusionstack.io/kuperator/internal/resourceconsist/builtin"
)

func main() {
	bootstrap.Main(builtin.Component())
}
