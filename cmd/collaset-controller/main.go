// Command collaset-controller reconciles CollaSets: it scales, updates and replaces their Pods under the Pod protocol.
// Run it with --help for its flags.
package main

import (
	"kusionstack.io/kuperator/internal/bootstrap"
	"kusionstack.io/kuperator/internal/collaset"
)

func main() {
	bootstrap.Main(collaset.Component())
}
