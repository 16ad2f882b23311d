// Command podtransitionrule-controller decides which Pods may be operated now and keeps the ledger of grants in
// PodTransitionRule status. Run it with --help for its flags.
package main

import (
	"kusionstack.io/kuperator/internal/bootstrap"
	"kusionstack.io/kuperator/internal/podtransitionrule"
)

func main() {
	bootstrap.Main(podtransitionrule.Component())
}
