// Command podtransitionrule-controller evaluates PodTransitionRules and writes the ledger of grants to their status.
// Run it with --help for its flags.
package main

import (
	"kusionstack.io/kuperator/internal/bootstrap"
	"kusionstack.io/kuperator/internal/podtransitionrule"
)

func main() {
	bootstrap.Main(podtransitionrule.Component())
}
