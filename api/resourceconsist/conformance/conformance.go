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
// Each check is a subtest with a fresh provider. The most important check runs all the time: an adapter must never
// report a Pod as not served while the provider sends it traffic, because the framework would permit operations on the
// Pod then.
//
// Run the tests with -race: some checks exist only for the race detector.
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

// Label and LabelValue are on all Pods of the checks; employers must select them.
const (
	Label      = "app"
	LabelValue = "conformance"
)

// Provider is the system behind an adapter, as far as the checks must know and disturb it. Serves is always required,
// and Move for an adapter that only observes. A check that needs another function that is nil is skipped, with a
// message. The functions are called concurrently. They are not calls to the provider, so Calls does not count them.
type Provider[E client.Object] struct {
	// Employer creates an employer that takes part and selects the Pods with Label; the checks use several namespaces
	// and names. Nil means Service, for adapters whose employers are Services. The adapter's Provision, if any, is
	// called with it.
	Employer func(namespace, name string) E
	// Pod changes a Pod of the checks before its use, for what the adapter requires of a Pod, for example an
	// annotation. Nil means no change. The Pod has what the framework's cache keeps: metadata, node name, readiness
	// gates, phase, conditions and addresses.
	Pod func(pod *corev1.Pod)

	// Serves reports whether a request to the employer can reach the Pod now, under any address in its status. It must
	// reflect the provider itself and not the adapter: it must not fail, and must not be affected by Fail, Delay and
	// the like.
	Serves func(employer E, pod *corev1.Pod) bool
	// Move makes the provider send traffic to the Pod, or none, in place of the system that the adapter observes. It
	// returns when the traffic has changed.
	Move func(employer E, pod *corev1.Pod, on bool)

	// Fail makes every call to the provider fail without effect, until it is called with false.
	Fail func(failing bool)
	// FailFor makes changes of these Pods fail and those of others succeed, in the same call too, until it is called
	// again. Without arguments all succeed. Nil means that a call can only succeed or fail as a whole.
	FailFor func(pods ...*corev1.Pod)
	// Throttle makes the provider refuse some calls as too many and answer others, until it is called with false.
	Throttle func(throttling bool)
	// Delay makes every call take this long, or until the caller gives up. A shorter delay also ends the calls that
	// wait for a longer one.
	Delay func(delay time.Duration)
	// Hold makes the provider accept changes without performing them, until it is called with false, which performs
	// them before it returns. Serves and the provider's answers reflect what is in effect.
	Hold func(holding bool)
	// Foreign adds members to the employer's backend that are not the adapter's, and returns a function that reports
	// whether they are unchanged.
	Foreign func(employer E) (untouched func() bool)
	// Calls is the number of calls to the provider so far.
	Calls func() int

	// Patience is the maximum time that the provider takes for anything. Zero means 30 s. A check that fails may wait
	// this long.
	Patience time.Duration
	// Sizes are the numbers of Pods for which calls are counted, in ascending order. Nil means 10, 100 and 1000.
	Sizes []int
	// Seeds are the seeds of the random Pod lives. Nil means 1 to 5. A failure names its seed.
	Seeds []uint64
}

// Fixture is a fresh provider and the adapter for it.
type Fixture[E client.Object, S comparable] struct {
	// Connect creates an adapter for the provider, like a process that has just started. It is called again to simulate
	// a restart; earlier adapters are not used after that. An adapter that is also an api.Mover is tested as one.
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
