// Command kubectl-kuperator is the kubectl plugin of the suite: what the fleet waits for, and what may be done about
// it. Run it as kubectl kuperator --help.
package main

import (
	"os"

	"k8s.io/cli-runtime/pkg/genericiooptions"

	"kusionstack.io/kuperator/internal/plugin"
)

func main() {
	os.Exit(plugin.Main(os.Args[1:], genericiooptions.IOStreams{In: os.Stdin, Out: os.Stdout, ErrOut: os.Stderr}))
}
