// Package fakekubelet plays the kubelets of simulated nodes, in the test's own process, for tests and benchmarks that
// need what the stages of package localkube cannot give: kubelets that see changes late, and thousands of Pods at the
// pace of the API server. Stop kwok first (localkube.Cluster.StopComponent): nothing else may play the same nodes.
//
// A Pod that is bound to a node runs after RestartTime. A container whose image changes restarts in the same time,
// with a new container ID, a new image ID and restartCount + 1. Ready follows the containers and every readiness
// gate, in both directions. A terminating Pod without finalizers is deleted; one with finalizers ends and stays. Each
// of these is one write, and nothing is written when nothing changed.
//
// With a Lag every change of a Pod, except what the kubelet does itself, is seen only so much later. Like a real
// kubelet it writes what follows from what it has seen, with no precondition but the UID: a late kubelet writes
// Ready=True on a Pod whose gate has been closed meanwhile, and takes it back when it sees that. It never writes
// conditions that are not its own.
//
// Init containers, probes, resizing, failing images and node heartbeats are not played.
package fakekubelet
