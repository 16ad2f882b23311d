// Command resourceconsist-controller keeps traffic and other resources of Pods consistent with operations on the Pods.
// Run it with --help for its flags.
package main

import (
	"kusionstack.io/kuperator/internal/bootstrap"
	"kusionstack.io/kuperator/internal/resourceconsist/builtin"
)

func main() {
	bootstrap.Main(builtin.Component())
}
