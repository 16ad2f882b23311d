package balancer_test

import (
	"net/http"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"example.com/kuperator-adapter/balancer"
	"kusionstack.io/kuperator/api/resourceconsist"
	"kusionstack.io/kuperator/api/resourceconsist/conformance"
)

func TestBackendConforms(t *testing.T) {
	conformance.Run(t, func(t testing.TB) conformance.Fixture[*corev1.Service, balancer.State] {
		s := startSimulated(t)
		return conformance.Fixture[*corev1.Service, balancer.State]{
			Connect: func() resourceconsist.Adapter[*corev1.Service, balancer.State] {
				return &balancer.Backend{Client: &balancer.Client{URL: s.URL, HTTP: http.DefaultClient}}
			},
			Provider: s.provider(),
		}
	})
}
