// Package controlplane takes away, slows down and turns back what the suite stands on: the API server, etcd, the
// webhooks, the controllers of Kubernetes, the CPU, and the namespace that the suite works in. FAULTS=all runs every
// plan.
//
// Tenants' webhooks that refuse, hang, drip, answer without end or redirect are in internal/podtransitionrule/asking
// (TestServersThatMisbehave), internal/callout and test/integration/rules (TestF15); renewed and expired certificates
// in test/integration/webhook; components that are down one by one in test/e2e (TestDegradation, TestKillAnyProcess).
package controlplane
