// Package resourceconsist is the interface that a platform developer implements to keep something outside a Pod
// consistent with operations on the Pod: a load balancer's backends, a service registry, a proxy's configuration.
//
// An employer is the object that selects Pods and owns the outside resource, a Service by default. Its Pods are its
// employees. Every employer kind has one or more Adapters. Each defines which Pods an employer employs, and reports
// whether the backend sends traffic to a Pod. An adapter that is also a Mover changes the backend; any other adapter
// observes a backend that another system changes.
//
// The framework does the rest, for each Pod separately:
//
//   - A Pod that is employed is announced in its annotation pod.kusionstack.io/available-conditions, so that it does
//     not count as serving before every backend has it.
//   - Once every backend sends traffic to it, it gets the employer's finalizer (Finalizer), which from then on blocks
//     operations and deletion.
//   - When it goes out of service, it is removed from the backends. When no backend has sent it traffic for the drain
//     time, the finalizer is removed.
//   - Both are removed from a Pod that is no longer employed, or whose employer is gone.
//
// An operation costs two writes of the Pod, one when it leaves and one when it is back. Several employers of one kind
// share these writes. Package setup adds adapters to a manager, package conformance tests them.
//
// The keys are those of Kuperator v0.7 and resourceconsist v0.0.7. A finalizer is derived from the employer's name
// alone, so two employers of different kinds with one name share it. While the Pod's annotation names, with the same
// finalizer, an employer of a kind that this process does not reconcile, the finalizer of a living Pod is not removed,
// because this process cannot find out whether that employer still sends traffic. Give such employers different names.
package resourceconsist
