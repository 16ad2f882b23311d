// Package install tests what deploy installs: the Helm chart says the same as the overlays, and each of them, on a
// real control plane, installs, becomes ready, does its job with the rights that it ships, can be upgraded and is
// uninstalled without a write to any Pod.
//
// The Pods of the Deployments run on simulated nodes; the programs run as processes, with the arguments and the
// environment that the installed Deployments have and the tokens of their ServiceAccounts.
//
// Without INSTALL=all one overlay and one variant of the chart are installed; make test-install does all.
package install
