package setup

import (
	corev1 "k8s.io/api/core/v1"

	api "kusionstack.io/kuperator/api/resourceconsist"
	"kusionstack.io/kuperator/internal/resourceconsist/endpointslice"
)

// EndpointSlices makes the adapter that resourceconsist-controller has built in, for traffic that follows Kubernetes' own
// endpoints. A program that looks after Services in place of that controller adds it beside its own adapters, in the same
// call of AddToManager. Its manager's user may also get, list and watch EndpointSlices.
func EndpointSlices() api.Adapter[*corev1.Service] { return endpointslice.New(nil) }
