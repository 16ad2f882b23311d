// Command webhook-server serves admission: defaults, validation, the readiness gate, graceful deletion and eviction.
// Run it with --help for its flags.
package main

import (
	"kusionstack.io/kuperator/internal/bootstrap"
	"kusionstack.io/kuperator/internal/webhook"
)

func main() {
	bootstrap.Main(webhook.Component())
}
