// Package resourceconsist is what a platform developer implements to keep something outside a Pod in step with the
// Pod's operations: a load balancer's backends, a service registry, a proxy's configuration.
//
// An employer is the object that selects Pods and owns the outside resource, a Service by default. Its Pods are its
// employees. For every employer kind there is one Adapter or more; each answers which Pods an employer employs and
// whether the backend sends traffic to one of them. An adapter that also is a Mover changes the backend; one that is
// not only watches another system do it.
//
// The framework does the rest, for each Pod on its own:
//
//   - a Pod that is employed is announced in its annotation pod.kusionstack.io/available-conditions, so that it does
//     not count as serving before every backend has it;
//   - once every backend sends traffic to it, it gets the employer's finalizer (Finalizer), which from then on keeps
//     operations and deletion waiting;
//   - on its way out of service it is taken out of the backend, and when no backend has sent it traffic for the drain
//     time, the finalizer goes;
//   - a Pod that is employed no more, or whose employer is gone, is released of both.
//
// An operation costs two writes of the Pod, one when it leaves and one when it is back. Several employers of one kind
// share these writes. Package setup adds adapters to a manager, package conformance tests them.
//
// The keys are those of Kuperator v0.7 and resourceconsist v0.0.7. A finalizer is made from the employer's name alone,
// so two employers of different kinds and one name share it. While the Pod's annotation names an employer of a kind
// that this process does not look after under the same finalizer, the finalizer of a living Pod is not removed:
// this process cannot tell whether that employer still sends traffic. Give such employers different names.
package resourceconsist
