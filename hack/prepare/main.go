// Command prepare compiles what make demo and make cluster-up run, and tells how far it is: of a machine that never did
// it, that takes minutes. It prints the folder of the control plane's programs. It imports little, so that it is itself
// compiled at once. Its arguments name the programs of this project, as for go build.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"kusionstack.io/kuperator/internal/testkit/localkube/binaries"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	dir, err := binaries.Prepare(ctx, os.Stderr, os.Args[1:]...)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println(dir)
}
