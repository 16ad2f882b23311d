package haproxy

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// FuzzAnnotations: whatever a tenant writes into its Service's annotations, what is accepted is one word of HAProxy's
// command language, and the backend is one of its own namespace.
func FuzzAnnotations(f *testing.F) {
	for _, seed := range [][3]string{
		{"shop_web", "5", "IPv4,IPv6"}, {"shop_web; disable frontend entrance", "1", ""},
		{"shop_web\nset server other_db/a state maint", "1", ""},
		{"shop_web/..", "1;quit", "IPv4;"}, {"other_web", "256", "IPv6"}, {"shop_", "+7", "IPv4, IPv6"},
		{"shop_\x00", "0x10", "IPv4\n"}, {"shopweb", "", ","},
	} {
		f.Add(seed[0], seed[1], seed[2])
	}
	f.Fuzz(func(t *testing.T, backend, weight, families string) {
		service := serviceFor("web", backend, intstr.FromInt32(8080))
		service.Annotations[WeightAnnotation], service.Annotations[IPFamiliesAnnotation] = weight, families
		s, err := newAdapter(t, nil).settingsOf(service)
		if err != nil {
			return
		}
		require.True(t, strings.HasPrefix(s.backend, "shop_"), "%q is of another namespace", s.backend)
		require.False(t, strings.ContainsFunc(s.backend,
			func(r rune) bool {
				return r <= ' ' || r > '~' || strings.ContainsRune(
					`;/\"'#<`, r,
				)
			}), "%q is more than a word", s.backend)
		require.True(t, s.weight >= 1 && s.weight <= 256)
		for _, family := range s.families {
			require.Contains(t, []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol}, family)
		}
	})
}
