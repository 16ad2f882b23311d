// Package node runs the suite on real nodes: kubelets, containerd, containers
// with an HTTP server, and load on it all the while. Run it with `make test-node`,
// as root on Linux; elsewhere, and in `make test`, it skips.
package node
