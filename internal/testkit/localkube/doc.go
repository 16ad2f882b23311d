// Package localkube runs a real Kubernetes control plane on this machine for
// tests, benchmarks and trying things out: etcd, kube-apiserver and, as wanted,
// kube-controller-manager, kube-scheduler and simulated nodes. It needs no
// container runtime, no root and nothing but the Go toolchain.
//
// What is real: the API server with its admission, RBAC, Pod Security and audit,
// etcd, the controllers, the scheduler. What is simulated: nodes and the
// kubelet's part in the life of a Pod, played by kwok along the stages in
// stages.yaml.
//
// [Assets] builds the binaries once and keeps them in a cache. [Start] runs a
// cluster that ends with [Cluster.Stop] and, on Linux, at the latest with the
// calling process. A detached cluster outlives its starter and is found again by
// [Attach]. Clusters share nothing but the binaries, so any number of them can
// run side by side. Every listener is on 127.0.0.1.
//
// The invariants: a folder of binaries is complete or absent; Stop signals only
// the very processes that Start started; nothing of a stopped cluster stays.
package localkube
