// Package realnode runs real Kubernetes nodes on this machine for tests: the stock
// kubelet, containerd and runc, with Pods that have addresses of their own on a
// bridge. It needs root on Linux and Debian's packages containerd, runc,
// containernetworking-plugins, iproute2 and util-linux; [Missing] says what a
// machine lacks.
//
// A test binary calls [Main] from its TestMain. Main runs the binary once more
// inside namespaces of its own (network, mounts, processes), where everything
// else happens: the control plane, the nodes, the Pods, what the test starts. A
// node is a further set of mounts and processes inside them. So whatever a run
// makes, mounts, bridges, network namespaces, files below /run, containers, goes
// when its first process goes, however that ends. Only cgroups and the folder
// with data are left to remove, by Main at the end, or by the Main of a later run
// after one that was killed.
package realnode
