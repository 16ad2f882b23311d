// Package suite runs the whole suite the way a cluster does, on one machine: an API server with simulated nodes, the
// manifests of deploy/ applied to it, and each component as its own process that knows nothing but a kubeconfig with
// the token of its own ServiceAccount.
//
// It counts what the components do as the API server saw it (Requests), and it
// can kill, restart and reconfigure each of them. The demo and the end-to-end
// tests are built on it; nothing that ships is.
package suite
