// Command kubectl-kuperator is the kubectl plugin of the suite. It shows what Pods wait for, and changes workloads.
// Run it as kubectl kuperator --help.
package main

import (
	"os"

	"k8s.io/cli-runtime/pkg/genericiooptions"

	"kusionstack.io/kuperator/internal/plugin"
)

func main() {
	os.Exit(plugin.Main(os.Args[1:], genericiooptions.IOStreams{In: os.Stdin, Out: os.Stdout, ErrOut: os.Stderr}))
}
