package alibabacloudslb

import (
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	api "kusionstack.io/kuperator/api/resourceconsist"
	"kusionstack.io/kuperator/api/resourceconsist/conformance"
	"kusionstack.io/kuperator/internal/testkit/alibabacloud"
)

// conformanceGroups has a server group for each Service that the conformance kit makes.
const conformanceGroups = `
vpcID: vpc-test
serverGroups:
- {name: shop-web, id: rsp-shop-web, namespaces: [shop]}
- {name: shop-admin, id: rsp-shop-admin, namespaces: [shop]}
- {name: elsewhere-web, id: rsp-elsewhere-web, namespaces: [elsewhere]}
`

// account is a cloud as the conformance kit sees it.
type account struct {
	t     testing.TB
	cloud *alibabacloud.Cloud

	mu sync.Mutex
	// resume ends the calls that are held back; nil if none is.
	resume chan struct{}
	// listed are the Pods' addresses that the cloud controller manager has put into each load balancer.
	listed map[string][]string
}

func newAccount(t testing.TB) *account {
	a := &account{t: t, cloud: alibabacloud.New("test-id", "test-secret", nil), listed: map[string][]string{}}
	t.Cleanup(a.cloud.Close)
	for _, service := range []*corev1.Service{conformance.Service("shop", "web"), conformance.Service("shop", "admin"),
		conformance.Service("elsewhere", "web")} {
		a.cloud.AddGroup(groupIDOf(service))
		a.cloud.SetBalancer(balancerOf(service))
	}
	return a
}

func groupIDOf(service *corev1.Service) string {
	return "rsp-" + service.Namespace + "-" + service.Name
}

func balancerOf(service *corev1.Service) string {
	return "lb-" + service.Namespace + "-" + service.Name
}

func (a *account) halves() (*Observing, *Owning) {
	file := filepath.Join(a.t.TempDir(), "groups.yaml")
	require.NoError(a.t, os.WriteFile(file, []byte(conformanceGroups), 0o600))
	observing, owning, err := New(Config{
		Region: "cn-test", ServerGroupsFile: file, QPS: 100_000, Burst: 100_000,
		ECSEndpoint: a.cloud.Host(), STSEndpoint: a.cloud.Host(), HTTP: a.cloud.Client(),
		Getenv: env(map[string]string{EnvKeyID: "test-id", EnvKeySecret: "test-secret", EnvEndpoint: a.cloud.Host()}),
	})
	require.NoError(a.t, err)
	return observing, owning
}

// provider is what is true of both halves' provider.
func (a *account) provider() conformance.Provider[*corev1.Service] {
	fault := func(f alibabacloud.Fault) func(bool) {
		return func(on bool) {
			a.cloud.Mend()
			if on {
				a.cloud.Fail("*", f)
			}
		}
	}
	return conformance.Provider[*corev1.Service]{
		Employer: func(namespace, name string) *corev1.Service {
			s := conformance.Service(namespace, name)
			s.Spec.Type = corev1.ServiceTypeLoadBalancer
			s.Labels[LoadBalancerIDLabel] = balancerOf(s)
			s.Annotations = map[string]string{ServerGroupsAnnotation: namespace + "-" + name + ":8080"}
			return s
		},
		Pod: func(pod *corev1.Pod) {
			for _, ip := range pod.Status.PodIPs {
				a.cloud.AddInterface("eni-"+ip.IP, ip.IP)
			}
		},
		Fail: fault(alibabacloud.Fault{Times: -1, Status: 503, Code: "ServiceUnavailable",
			Message: "The service is unavailable."}),
		Throttle: fault(alibabacloud.Throttled(7)),
		Hold:     a.cloud.HoldChanges,
		Delay:    a.delay,
		Calls:    func() int { return a.cloud.Calls("") },
		// Each call is signed and goes over TLS, so a few do.
		Sizes: []int{10, 60},
		Seeds: []uint64{1},
	}
}

func (a *account) delay(d time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.cloud.Mend()
	if a.resume != nil {
		close(a.resume)
		a.resume = nil
	}
	if d > 0 {
		a.resume = make(chan struct{})
		a.cloud.Fail("*", alibabacloud.Fault{Times: -1, Hold: a.resume})
	}
}

func hasAddress(pod *corev1.Pod, address string) bool {
	return slices.Contains(pod.Status.PodIPs, corev1.PodIP{IP: address})
}

func TestOwningConforms(t *testing.T) {
	for _, out := range []string{WeightZero, Remove} {
		t.Run(out, func(t *testing.T) { owningConforms(t, out) })
	}
}

// owningConforms tests the owning half with Services that say what becomes of a Pod out of service.
func owningConforms(t *testing.T, out string) {
	conformance.Run(t, func(t testing.TB) conformance.Fixture[*corev1.Service, Weight] {
		a := newAccount(t)
		p := a.provider()
		employer := p.Employer
		p.Employer = func(namespace, name string) *corev1.Service {
			service := employer(namespace, name)
			service.Annotations[OutOfServiceAnnotation] = out
			return service
		}
		p.Serves = func(service *corev1.Service, pod *corev1.Pod) bool {
			return slices.ContainsFunc(a.cloud.Servers(groupIDOf(service)),
				func(s alibabacloud.Server) bool { return s.Weight > 0 && hasAddress(pod, s.ServerIP) })
		}
		p.FailFor = func(pods ...*corev1.Pod) {
			a.cloud.Mend()
			for _, pod := range pods {
				for _, ip := range pod.Status.PodIPs {
					a.cloud.Fail("*", alibabacloud.Fault{Times: -1, Status: 400, Code: "ObjectNotFound",
						Message: "The backend server does not exist.", ServerIP: ip.IP})
				}
			}
		}
		p.Foreign = func(service *corev1.Service) func() bool {
			other := alibabacloud.Server{ServerID: "eni-other", ServerIP: "192.0.2.1", Port: 8080, Weight: 7, Type: "eni",
				Description: "another owner"}
			a.cloud.ChangeServers(groupIDOf(service),
				func(all []alibabacloud.Server) []alibabacloud.Server { return append(all, other) })
			return func() bool { return slices.Contains(a.cloud.Servers(groupIDOf(service)), other) }
		}
		return conformance.Fixture[*corev1.Service, Weight]{
			Connect: func() api.Adapter[*corev1.Service, Weight] {
				_, owning := a.halves()
				return owning
			},
			Provider: p,
		}
	})
}

func TestObservingConforms(t *testing.T) {
	conformance.Run(t, func(t testing.TB) conformance.Fixture[*corev1.Service, Listed] {
		a := newAccount(t)
		p := a.provider()
		p.Serves = func(service *corev1.Service, pod *corev1.Pod) bool {
			a.mu.Lock()
			defer a.mu.Unlock()
			return slices.ContainsFunc(a.listed[balancerOf(service)],
				func(address string) bool { return hasAddress(pod, address) })
		}
		p.Move = a.move
		return conformance.Fixture[*corev1.Service, Listed]{
			Connect: func() api.Adapter[*corev1.Service, Listed] {
				observing, _ := a.halves()
				return observing
			},
			Provider: p,
		}
	})
}

// move is the cloud controller manager: it has IPv4 addresses in its load balancers.
func (a *account) move(service *corev1.Service, pod *corev1.Pod, on bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	id, address := balancerOf(service), addressOf(pod, false)
	listed := slices.DeleteFunc(slices.Clone(a.listed[id]), func(other string) bool { return other == address })
	if on && address != "" {
		listed = append(listed, address)
	}
	a.listed[id] = listed
	var lines []alibabacloud.Health
	for _, address := range listed {
		lines = append(lines, alibabacloud.Health{ListenerPort: 80, ServerIP: address, Status: "normal"})
	}
	a.cloud.SetBalancer(id, lines...)
}
