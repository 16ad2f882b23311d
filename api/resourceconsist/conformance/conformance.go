// Package conformance tests adapters for resourceconsist. An adapter's author gives it an adapter and the provider
// behind it, simulated or real:
//
//	func TestConformance(t *testing.T) {
//		conformance.Run(t, func(t testing.TB) conformance.Fixture[*corev1.Service, State] {
//			provider := startProvider(t)
//			return conformance.Fixture[*corev1.Service, State]{
//				Connect:  func() api.Adapter[*corev1.Service, State] { return New(provider.URL) },
//				Provider: conformance.Provider[*corev1.Service]{Serves: provider.Serves, Fail: provider.Fail},
//			}
//		})
//	}
//
// Each check is a subtest that begins with a fresh provider. The one that matters most is made all the time: an adapter
// never reports a Pod as not served while the provider sends it traffic, because the framework lets the Pod be operated
// then.
//
// Run the tests with -race: some checks are there to give the race detector something to see.
package conformance

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	api "kusionstack.io/kuperator/api/resourceconsist"
)

// Label and LabelValue are on all Pods that the checks make; employers have to select them.
const (
	Label      = "app"
	LabelValue = "conformance"
)

// Provider is the system behind an adapter, as the checks have to know it and may disturb it. Serves is needed always,
// Move for an adapter that only observes; a check that needs something else that is nil is skipped and says so. The
// functions are called from many goroutines and are no calls of the provider, so Calls does not count them.
type Provider[E client.Object] struct {
	// Employer makes an employer that takes part and selects the Pods with Label; the checks use several namespaces and
	// names. Nil means Service, for adapters whose employers are Services. The adapter's Provision is called with it,
	// if there is one.
	Employer func(namespace, name string) E
	// Pod changes a Pod that the checks have made, before they use it, for what the adapter needs of one, for example
	// an annotation; nil means nothing. The Pod has what the framework's cache keeps: metadata, node name, readiness
	// gates, phase, conditions and addresses.
	Pod func(pod *corev1.Pod)

	// Serves reports whether a request to the employer can reach the Pod now, under any address in its status. It is
	// the truth, taken from the provider and not from the adapter: it must not fail, and must not go through what Fail,
	// Delay and the like disturb.
	Serves func(employer E, pod *corev1.Pod) bool
	// Move makes the provider send traffic to the Pod, or none, as the system does that the adapter observes. It
	// returns when this is so.
	Move func(employer E, pod *corev1.Pod, on bool)

	// Fail makes every call to the provider fail without effect, until it is called with false.
	Fail func(failing bool)
	// FailFor makes changes of these Pods fail and those of others succeed, in the same call too, until it is called
	// again. Without arguments all succeed. Leave it nil if a call can only succeed or fail as a whole.
	FailFor func(pods ...*corev1.Pod)
	// Throttle makes the provider refuse some calls as too many and answer others, until it is called with false.
	Throttle func(throttling bool)
	// Delay makes every call take so long, or until the caller gives up. A shorter delay also ends the calls that wait
	// for a longer one.
	Delay func(delay time.Duration)
	// Hold makes the provider accept changes without carrying them out, until it is called with false, which carries
	// them out before it returns. Serves and what the provider answers say what is in effect.
	Hold func(holding bool)
	// Foreign puts members into the employer's backend that are not the adapter's, and returns whether they are still
	// there as they were put.
	Foreign func(employer E) (untouched func() bool)
	// Calls is how many calls the provider has been sent so far.
	Calls func() int

	// Patience is how long the provider may take to do anything. Zero means 30 s. A check that fails may wait for it.
	Patience time.Duration
	// Sizes are the numbers of Pods to count calls with, in rising order. Nil means 10, 100 and 1000.
	Sizes []int
	// Seeds are those of the random lives of Pods. Nil means 1 to 5. A failure names its seed.
	Seeds []uint64
}

// Fixture is a fresh provider and the adapter for it.
type Fixture[E client.Object, S comparable] struct {
	// Connect makes an adapter for the provider, as a process that has just started does. It is called again for what
	// happens after a restart; the adapters made earlier are not used any more then. An adapter that is an api.Mover as
	// well is tested as one.
	Connect func() api.Adapter[E, S]
	// Provider is the provider.
	Provider Provider[E]
}

// Run tests an adapter.
func Run[E client.Object, S comparable](t *testing.T, fresh func(t testing.TB) Fixture[E, S]) {
	t.Helper()
	for _, c := range checksOf(fresh) {
		t.Run(c.name, func(t *testing.T) { c.run(t) })
	}
}

// Service is a Service that takes part and selects the Pods with Label.
func Service(namespace, name string) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: name,
			Labels: map[string]string{appsv1alpha1.ControlLabel: appsv1alpha1.ControlValue},
		},
		Spec: corev1.ServiceSpec{
			Selector: map[string]string{Label: LabelValue},
			Ports:    []corev1.ServicePort{{Name: "http", Protocol: corev1.ProtocolTCP, Port: 80}},
		},
	}
}
