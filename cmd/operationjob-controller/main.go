// Command operationjob-controller carries out OperationJobs: it replaces, restarts, re-creates or evicts lists of Pods.
// Run it with --help for its flags.
package main

import (
	"kusionstack.io/kuperator/internal/bootstrap"
	"kusionstack.io/kuperator/internal/operationjob"
)

func main() {
	bootstrap.Main(operationjob.Component())
}
