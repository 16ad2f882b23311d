// Package setup adds resourceconsist adapters to a controller-runtime manager. It is apart from the interfaces so that
// an adapter does not depend on the controller that runs it.
package setup

import (
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	api "kusionstack.io/kuperator/api/resourceconsist"
	"kusionstack.io/kuperator/internal/resourceconsist"
	"kusionstack.io/kuperator/internal/resourceconsist/backend"
	"kusionstack.io/kuperator/internal/resourceconsist/bulk"
	"kusionstack.io/kuperator/internal/resourceconsist/endpointslice"
)

// Backend is an adapter for employers of kind E, ready for one call of AddToManager. Make one with BackendOf.
type Backend[E client.Object] struct{ of backend.Backend }

// BackendOf makes the framework use an adapter: changes for Pods are sent in batches, and the state of the backend is
// read for all waiting Pods together. An api.Mover moves traffic. api.Provisioner and api.Placer are used if the
// adapter implements them. Errors in the options are returned by AddToManager.
func BackendOf[E client.Object, S comparable](adapter api.Adapter[E, S], options api.CallOptions) Backend[E] {
	return Backend[E]{bulk.New(adapter, options, nil)}
}

// EndpointSlices is the adapter built into resourceconsist-controller, for traffic that follows Kubernetes' own
// endpoints. A program that reconciles Services in place of that controller adds it together with its own adapters, in
// the same call of AddToManager. Its manager's user must also be allowed to get, list and watch EndpointSlices.
func EndpointSlices() Backend[*corev1.Service] {
	return Backend[*corev1.Service]{endpointslice.New(nil)}
}

// AddToManager makes mgr reconcile the Pods of all employers of kind E. All adapters for one kind belong in one call,
// because they share the employer's finalizer: a Pod leaves when the last backend has removed it, and joins when every
// backend has it. It returns an error for a second call for the same kind, no adapter, two adapters of one name, or a
// kind that the manager's scheme does not have.
//
// The manager's user must be allowed to get, list, watch and patch Pods, to get, list, watch and patch employers, to
// patch their status if that has conditions, and to create and patch events (events.k8s.io). Its cache may be limited
// to Pods and employers with the label kusionstack.io/control=true.
func AddToManager[E client.Object](mgr manager.Manager, options api.Options, adapters ...Backend[E]) error {
	return resourceconsist.AddToManager(mgr, backend.New(*new(E)), options, backends(adapters)...)
}

// AddAdmissionToManager serves, on the manager's webhook server, an admission webhook for new Pods. It announces on a
// Pod the employers of kind E that select it through one of the adapters, so that the Pod never counts as serving
// before they have it, however late AddToManager's controllers observe it. Pods without kusionstack.io/control=true are
// not changed. Other announcements are kept. A Pod whose annotation is not valid is refused, with the remedy. A dry run
// is answered like any other request, because the webhook has no side effects.
//
// The path is "/mutate-pods-<kind>" in lower case, for example /mutate-pods-service, and also "/<adapter name>", where
// upstream v0.0.7 served an adapter's webhook; each path announces for all adapters. Employers are read from the
// manager's cache, so its user must be allowed to list and watch them. Every replica serves, leader or not. The errors
// are those of AddToManager.
//
// If AddToManager runs nowhere, Pods with announcements never count as serving. webhook-server does the same for
// Services (--announce-services). The API server is configured with
//
//	apiVersion: admissionregistration.k8s.io/v1
//	kind: MutatingWebhookConfiguration
//	metadata:
//	  name: example-balancers
//	webhooks:
//	- name: pods.balancers.example.org
//	  admissionReviewVersions: [v1]
//	  sideEffects: None
//	  failurePolicy: Ignore # without it the controllers announce a little later; Fail makes Pods wait for this webhook
//	  reinvocationPolicy: IfNeeded # the readiness gate may come from a webhook that is called later
//	  timeoutSeconds: 5
//	  clientConfig:
//	    service: {namespace: example, name: balancers, path: /mutate-pods-service}
//	    caBundle: "" # of the webhook server's certificate
//	  objectSelector:
//	    matchLabels: {kusionstack.io/control: "true"}
//	  rules:
//	  - apiGroups: [""]
//	    apiVersions: [v1]
//	    resources: [pods]
//	    operations: [CREATE]
//	    scope: Namespaced
func AddAdmissionToManager[E client.Object](mgr manager.Manager, adapters ...Backend[E]) error {
	return resourceconsist.AddAdmissionToManager(mgr, backend.New(*new(E)), backends(adapters)...)
}

func backends[E client.Object](adapters []Backend[E]) []backend.Backend {
	all := make([]backend.Backend, 0, len(adapters))
	for _, a := range adapters {
		all = append(all, a.of)
	}
	return all
}
