package alibabacloudslb

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	api "kusionstack.io/kuperator/api/resourceconsist"
	"kusionstack.io/kuperator/internal/testkit/alibabacloud"
)

const groupsFile = `
vpcID: vpc-test
serverGroups:
- name: shop-http
  id: rsp-http
  namespaces: [shop]
- name: shop-v6
  id: rsp-v6
  namespaces: [shop]
  addressFamily: IPv6
- name: everyone
  id: rsp-all
  namespaces: ["*"]
- name: bank
  id: rsp-bank
  namespaces: [bank]
`

// TestMain makes the process trust the stand-in, for the one client whose trust cannot be set: the SDK's for STS. It
// works because no test verifies a certificate by the system's authorities before.
func TestMain(m *testing.M) {
	os.Exit(func() int {
		cloud := alibabacloud.New("id", "secret", nil)
		defer cloud.Close()
		dir, err := os.MkdirTemp("", "slb")
		if err != nil {
			panic(err)
		}
		defer os.RemoveAll(dir)
		file := filepath.Join(dir, "ca.pem")
		if err := os.WriteFile(file, cloud.CertificatePEM(), 0o600); err != nil {
			panic(err)
		}
		if err := os.Setenv("SSL_CERT_FILE", file); err != nil {
			panic(err)
		}
		return m.Run()
	}())
}

func newCloudStandIn(t *testing.T) *alibabacloud.Cloud {
	t.Helper()
	cloud := alibabacloud.New("test-id", "test-secret", nil)
	t.Cleanup(cloud.Close)
	for _, id := range []string{"rsp-http", "rsp-v6", "rsp-all", "rsp-bank"} {
		cloud.AddGroup(id)
	}
	return cloud
}

func env(values map[string]string) func(string) string {
	return func(name string) string { return values[name] }
}

func configFor(t *testing.T, cloud *alibabacloud.Cloud) Config {
	t.Helper()
	file := filepath.Join(t.TempDir(), "groups.yaml")
	require.NoError(t, os.WriteFile(file, []byte(groupsFile), 0o600))
	return Config{
		Region: "cn-test", ServerGroupsFile: file, QPS: 1000, Burst: 1000, ECSEndpoint: cloud.Host(),
		STSEndpoint: cloud.Host(), HTTP: cloud.Client(),
		Getenv: env(map[string]string{EnvKeyID: "test-id", EnvKeySecret: "test-secret", EnvEndpoint: cloud.Host()}),
	}
}

func newHalves(t *testing.T, cloud *alibabacloud.Cloud) (*Observing, *Owning) {
	t.Helper()
	observing, owning, err := New(configFor(t, cloud))
	require.NoError(t, err)
	return observing, owning
}

func service() *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web",
			Labels:      map[string]string{appsv1alpha1.ControlLabel: "true", LoadBalancerIDLabel: "lb-1"},
			Annotations: map[string]string{ServerGroupsAnnotation: "shop-http:8080"}},
		Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer, Selector: map[string]string{"app": "web"},
			Ports: []corev1.ServicePort{{Port: 80, TargetPort: intstr.FromInt32(8080)}}},
	}
}

func pod(addresses ...string) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web-0"}}
	for _, a := range addresses {
		p.Status.PodIPs = append(p.Status.PodIPs, corev1.PodIP{IP: a})
	}
	if len(addresses) > 0 {
		p.Status.PodIP = addresses[0]
	}
	return p
}

// within is a context for calls that should end by themselves.
func within(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func TestWhichServicesTakePart(t *testing.T) {
	for name, tc := range map[string]struct {
		change                    func(*corev1.Service)
		wantObserving, wantOwning bool
	}{
		"a load balancer and server groups: both": {func(*corev1.Service) {}, true, true},
		"a load balancer that has no ID yet is waited for": {func(s *corev1.Service) {
			delete(s.Labels,
				LoadBalancerIDLabel)
		}, true, true},
		"without annotation nothing is owned": {func(s *corev1.Service) { s.Annotations = nil }, true, false},
		"another kind of load balancer is not ours": {func(
			s *corev1.Service) {
			s.Spec.LoadBalancerClass = ptr.To("alibabacloud.com/nlb")
		}, false, true},
		"the class of this kind is ours": {func(
			s *corev1.Service) {
			s.Spec.LoadBalancerClass = ptr.To("alibabacloud.com/clb")
		}, true, true},
		"a Service inside the cluster with server groups": {func(s *corev1.Service) {
			s.Spec.Type = corev1.ServiceTypeClusterIP
			delete(s.Labels, LoadBalancerIDLabel)
		}, false, true},
		"an ID is enough, whatever the type": {func(
			s *corev1.Service) {
			s.Spec.Type = corev1.ServiceTypeClusterIP
		}, true, true},
		"without the label of the suite a Service takes no part": {func(s *corev1.Service) {
			delete(s.Labels,
				appsv1alpha1.ControlLabel)
		}, false, false},
		"without a selector a Service employs no Pod, instead of all": {func(s *corev1.Service) { s.Spec.Selector = nil },
			false, false},
	} {
		t.Run(name, func(t *testing.T) {
			s := service()
			tc.change(s)
			require.Equal(t, tc.wantObserving, (&Observing{}).Selector(s) != nil)
			require.Equal(t, tc.wantOwning, (&Owning{}).Selector(s) != nil)
		})
	}
}

func TestMembersOfAnObservedService(t *testing.T) {
	for name, tc := range map[string]struct {
		annotations map[string]string
		pod         *corev1.Pod
		want        map[string]Listed
		wantErr     string
	}{
		"the Pod's address":     {nil, pod("10.0.0.1", "fd00::1"), map[string]Listed{"10.0.0.1": {}}, ""},
		"no address, no member": {nil, pod(), nil, ""},
		"the address of the family asked": {map[string]string{backendIPVersionAnnotation: "ipv6"}, pod("10.0.0.1", "fd00::1"),
			map[string]Listed{"fd00::1": {}}, ""},
		"eni is what is needed": {map[string]string{backendTypeAnnotation: "eni"}, pod("10.0.0.1"),
			map[string]Listed{"10.0.0.1": {}}, ""},
		"nodes as backends are an error": {map[string]string{backendTypeAnnotation: "ecs"}, pod("10.0.0.1"), nil,
			"set it to eni"},
	} {
		t.Run(name, func(t *testing.T) {
			s := service()
			s.Annotations = tc.annotations
			got, err := (&Observing{}).Members(s, tc.pod, true)
			if tc.wantErr != "" {
				require.ErrorContains(t, err, tc.wantErr)
				return
			}
			require.NoError(t, err)
			require.Equal(t, tc.want, got)
			got, err = (&Observing{}).Members(s, tc.pod, false)
			require.NoError(t, err)
			require.Empty(t, got, "a Pod that does not serve has to go")
		})
	}
}

func TestMembersOfAnOwnedService(t *testing.T) {
	_, owning := newHalves(t, newCloudStandIn(t))
	for name, tc := range map[string]struct {
		annotations map[string]string
		change      func(*corev1.Service)
		pod         *corev1.Pod
		want, out   map[string]Weight
		wantErr     string
	}{
		"weight 100, and 0 out of service": {
			map[string]string{ServerGroupsAnnotation: "shop-http:8080"}, nil, pod("10.0.0.1"),
			map[string]Weight{"rsp-http/10.0.0.1:8080": 100}, map[string]Weight{"rsp-http/10.0.0.1:8080": 0}, "",
		},
		"removed out of service": {
			map[string]string{ServerGroupsAnnotation: "shop-http:8080", OutOfServiceAnnotation: Remove, WeightAnnotation: "7"},
			nil, pod("10.0.0.1"),
			map[string]Weight{"rsp-http/10.0.0.1:8080": 7}, map[string]Weight{}, "",
		},
		"several groups and families": {
			map[string]string{ServerGroupsAnnotation: "shop-http, shop-v6:8443,everyone:9"}, nil, pod("10.0.0.1", "fd00::1"),
			map[string]Weight{"rsp-http/10.0.0.1:8080": 100, "rsp-v6/[fd00::1]:8443": 100, "rsp-all/10.0.0.1:9": 100},
			map[string]Weight{"rsp-http/10.0.0.1:8080": 0, "rsp-v6/[fd00::1]:8443": 0, "rsp-all/10.0.0.1:9": 0}, "",
		},
		"no address, no member": {map[string]string{ServerGroupsAnnotation: "shop-http"}, nil, pod(),
			map[string]Weight{}, map[string]Weight{}, ""},
		"a group of another namespace": {map[string]string{ServerGroupsAnnotation: "bank"}, nil, pod("10.0.0.1"), nil,
			nil, "namespace shop may not use: give one of shop-http, shop-v6, everyone"},
		"an unknown group": {map[string]string{ServerGroupsAnnotation: "x"}, nil, pod("10.0.0.1"), nil, nil,
			"give one of"},
		"an empty list": {map[string]string{ServerGroupsAnnotation: ""}, nil, pod("10.0.0.1"), nil, nil,
			"give one of"},
		"a group twice": {map[string]string{ServerGroupsAnnotation: "shop-http,shop-http:8080"}, nil,
			pod("10.0.0.1"), nil, nil, "twice"},
		"a port that is none": {map[string]string{ServerGroupsAnnotation: "shop-http:http"}, nil,
			pod("10.0.0.1"), nil, nil, "from 1 to 65535"},
		"a port that is too large": {map[string]string{ServerGroupsAnnotation: "shop-http:65536"}, nil,
			pod("10.0.0.1"), nil, nil, "from 1 to 65535"},
		"weight 0 would never serve": {map[string]string{ServerGroupsAnnotation: "shop-http", WeightAnnotation: "0"},
			nil, pod("10.0.0.1"), nil, nil, "from 1 to 100"},
		"a weight that is too large": {map[string]string{ServerGroupsAnnotation: "shop-http",
			WeightAnnotation: "101"}, nil, pod("10.0.0.1"), nil, nil, "from 1 to 100"},
		"an unknown way out": {map[string]string{ServerGroupsAnnotation: "shop-http",
			OutOfServiceAnnotation: "gone"}, nil, pod("10.0.0.1"), nil, nil, "give weight-zero or remove"},
		"a named target port needs a number": {map[string]string{ServerGroupsAnnotation: "shop-http"},
			func(s *corev1.Service) {
				s.Spec.Ports[0].TargetPort = intstr.FromString(
					"http",
				)
			}, pod("10.0.0.1"), nil, nil, `target port "http" is a name`},
		"two ports need a number": {map[string]string{ServerGroupsAnnotation: "shop-http"},
			func(s *corev1.Service) {
				s.Spec.Ports = append(
					s.Spec.Ports, s.Spec.Ports[0],
				)
			}, pod("10.0.0.1"), nil, nil, "the Service has 2"},
		"a port without target is the same": {map[string]string{ServerGroupsAnnotation: "shop-http"},
			func(s *corev1.Service) { s.Spec.Ports[0].TargetPort = intstr.IntOrString{} }, pod(
				"10.0.0.1",
			), map[string]Weight{"rsp-http/10.0.0.1:80": 100}, map[string]Weight{"rsp-http/10.0.0.1:80": 0}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			s := service()
			s.Annotations = tc.annotations
			if tc.change != nil {
				tc.change(s)
			}
			got, err := owning.Members(s, tc.pod, true)
			if tc.wantErr != "" {
				require.ErrorContains(t, err, tc.wantErr)
				return
			}
			require.NoError(t, err)
			require.Equal(t, tc.want, got)
			out, err := owning.Members(s, tc.pod, false)
			require.NoError(t, err)
			require.Equal(t, tc.out, out)
			for id := range got {
				p, err := parsePlace(id)
				require.NoError(t, err)
				require.Equal(t, id, p.id(), "an ID says where the server is")
			}
		})
	}
}

func TestObservingCountsBackendsOfAnyHealth(t *testing.T) {
	cloud := newCloudStandIn(t)
	observing, _ := newHalves(t, cloud)
	cloud.SetBalancer("lb-1",
		alibabacloud.Health{ListenerPort: 80, ServerIP: "10.0.0.1", Status: "normal"},
		alibabacloud.Health{ListenerPort: 443, ServerIP: "10.0.0.1", Status: "abnormal"},
		alibabacloud.Health{ListenerPort: 80, ServerIP: "10.0.0.2", Status: "abnormal"},
		alibabacloud.Health{ListenerPort: 80, ServerIP: "10.0.0.3", Status: "unavailable"})
	held, err := observing.Read(within(t), service(), []string{"10.0.0.1", "10.0.0.9"})
	require.NoError(t, err)
	require.ElementsMatch(t, []api.Held[Listed]{{ID: "10.0.0.1", Serving: true}, {ID: "10.0.0.2", Serving: true},
		{ID: "10.0.0.3", Serving: true}}, held)
	require.Equal(t, 1, cloud.Calls(""), "one call, whatever the number of Pods and listeners")

	cloud.SetBalancer("lb-1")
	held, err = observing.Read(within(t), service(), nil)
	require.NoError(t, err, "a load balancer may be empty")
	require.Empty(t, held)
}

func TestWhatIsNotKnownIsAnError(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*corev1.Service)
		fault  alibabacloud.Fault
		want   string
	}{
		"no load balancer yet": {func(s *corev1.Service) { delete(s.Labels, LoadBalancerIDLabel) },
			alibabacloud.Fault{}, "is not set yet"},
		"a load balancer that is unknown": {func(s *corev1.Service) { s.Labels[LoadBalancerIDLabel] = "lb-2" },
			alibabacloud.Fault{}, "InvalidLoadBalancerId.NotFound"},
		"throttling": {nil, alibabacloud.Throttled(-1), "tried again with growing delays"},
		"an error of the provider": {nil, alibabacloud.Fault{Times: -1, Status: 500, Code: "InternalError", Message: "x"},
			"InternalError"},
		"a gateway that says HTML": {nil, alibabacloud.Fault{Times: -1, Status: 502, Body: "<html>"},
			"DescribeHealthStatus"},
		"an answer without a body": {nil, alibabacloud.Fault{Times: -1, Body: "{}"}, "has no BackendServers"},
		"an answer that is cut off": {nil, alibabacloud.Fault{Times: -1, Body: `{"RequestId":"x","BackendServers":{"Backen`},
			"DescribeHealthStatus"},
		"an answer without the list": {nil, alibabacloud.Fault{Times: -1, Body: `{"RequestId":"x"}`},
			"has no BackendServers"},
	} {
		t.Run(name, func(t *testing.T) {
			cloud := newCloudStandIn(t)
			observing, owning := newHalves(t, cloud)
			cloud.SetBalancer("lb-1", alibabacloud.Health{ListenerPort: 80, ServerIP: "10.0.0.1", Status: "normal"})
			s := service()
			if tc.change != nil {
				tc.change(s)
			}
			if tc.fault.Times != 0 {
				cloud.Fail("*", tc.fault)
			}
			held, err := observing.Read(within(t), s, nil)
			require.ErrorContains(t, err, tc.want)
			require.Empty(t, held)
			require.LessOrEqual(t, cloud.Calls(""), 1, "a failed call is not repeated here")
			if tc.fault.Times != 0 {
				_, err = owning.Read(within(t), s, []string{"rsp-http/10.0.0.1:8080"})
				require.Error(t, err)
				require.Equal(t, 1, cloud.Calls("DescribeVServerGroupAttribute"))
			}
		})
	}
}

func TestACallEndsWithItsContext(t *testing.T) {
	cloud := newCloudStandIn(t)
	observing, _ := newHalves(t, cloud)
	cloud.SetBalancer("lb-1")
	never := make(chan struct{})
	cloud.Fail("DescribeHealthStatus", alibabacloud.Fault{Times: 1, Hold: never})
	ctx, cancel := context.WithCancel(within(t))
	ended := make(chan error, 1)
	go func() {
		_, err := observing.Read(ctx, service(), nil)
		ended <- err
	}()
	require.Eventually(t, func() bool { return cloud.Calls("DescribeHealthStatus") == 1 }, time.Minute, 5*time.Millisecond)
	cancel()
	require.ErrorIs(t, <-ended, context.Canceled)
	_, err := observing.Read(within(t), service(), nil)
	require.NoError(t, err)
}

// removed is a wish for changes that is no weight.
const removed = -1

// changes are what makes members have these weights.
func changes(desiredStates map[string]int) []api.Change[Weight] {
	var all []api.Change[Weight]
	for id, weight := range desiredStates {
		c := api.Change[Weight]{ID: id, State: Weight(weight)}
		if weight == removed {
			c = api.Change[Weight]{ID: id, Remove: true}
		}
		all = append(all, c)
	}
	return all
}

func TestOwningThroughTheLifeOfAPod(t *testing.T) {
	cloud := newCloudStandIn(t)
	_, owning := newHalves(t, cloud)
	others := alibabacloud.Server{ServerID: "i-1", ServerIP: "10.9.9.9", Port: 80, Weight: 50, Type: "ecs",
		Description: "by hand"}
	cloud.AddGroup("rsp-http", others)
	cloud.AddInterface("eni-1", "10.0.0.1")
	const id = "rsp-http/10.0.0.1:8080"
	s := service()

	for range 2 { // the second time changes nothing
		require.NoError(t, owning.Apply(within(t), s, changes(map[string]int{id: 100})))
		held, err := owning.Read(within(t), s, []string{id})
		require.NoError(t, err)
		require.Equal(t, []api.Held[Weight]{{ID: id, State: 100, Serving: true}}, held, "others are not shown")
	}
	require.Equal(t, 1, cloud.Calls("AddVServerGroupBackendServers"))
	require.Equal(t, alibabacloud.Server{ServerID: "eni-1", ServerIP: "10.0.0.1", Port: 8080, Weight: 100, Type: "eni",
		Description: "kuperator/shop/web"}, cloud.Servers("rsp-http")[1])

	for range 2 {
		require.NoError(t, owning.Apply(within(t), s, changes(map[string]int{id: 0})))
		held, err := owning.Read(within(t), s, nil)
		require.NoError(t, err)
		require.Equal(t, []api.Held[Weight]{{ID: id, State: 0, Serving: false}}, held)
	}
	require.Equal(t, 1, cloud.Calls("SetVServerGroupAttribute"))

	for range 2 {
		require.NoError(t, owning.Apply(within(t), s, changes(map[string]int{id: removed})))
	}
	require.Equal(t, 1, cloud.Calls("RemoveVServerGroupBackendServers"))
	require.Equal(t, []alibabacloud.Server{others}, cloud.Servers("rsp-http"))
}

func TestWhatOthersPutThereIsLeftAlone(t *testing.T) {
	cloud := newCloudStandIn(t)
	_, owning := newHalves(t, cloud)
	others := []alibabacloud.Server{
		{ServerID: "eni-1", ServerIP: "10.0.0.1", Port: 8080, Weight: 50, Type: "eni", Description: "kuperator/shop/api"},
		{ServerID: "eni-2", ServerIP: "10.0.0.2", Port: 8080, Weight: 50, Type: "eni"},
	}
	cloud.AddGroup("rsp-http", others...)
	err := owning.Apply(within(t), service(),
		changes(map[string]int{"rsp-http/10.0.0.1:8080": 0, "rsp-http/10.0.0.2:8080": removed}))
	var failed api.MemberErrors
	require.ErrorAs(t, err, &failed)
	require.Len(t, failed, 1, "what is not ours is gone as far as we are concerned")
	require.ErrorContains(t, failed["rsp-http/10.0.0.1:8080"], `description "kuperator/shop/api", which is not ours`)
	require.Equal(t, others, cloud.Servers("rsp-http"))
	held, err := owning.Read(within(t), service(), nil)
	require.NoError(t, err)
	require.Empty(t, held)
}

func TestFullReadFindsWhatAnEarlierAnnotationLeft(t *testing.T) {
	cloud := newCloudStandIn(t)
	_, owning := newHalves(t, cloud)
	left := alibabacloud.Server{ServerID: "eni-1", ServerIP: "fd00::1", Port: 8080, Weight: 50, Type: "eni",
		Description: "kuperator/shop/web"}
	cloud.AddGroup("rsp-v6", left)
	held, err := owning.Read(within(t), service(), nil)
	require.NoError(t, err)
	require.Equal(t, []api.Held[Weight]{{ID: "rsp-v6/[fd00::1]:8080", State: 50, Serving: true}}, held)
	require.Zero(t, cloud.Calls("")-cloud.Calls("DescribeVServerGroupAttribute"))
	require.Equal(t, 2, cloud.Calls(""), "groups for all namespaces and those of others cost nothing")
}

// manyPods gives n Pods interfaces, and asks for all of them.
func manyPods(cloud *alibabacloud.Cloud, n, weight int) map[string]int {
	desiredStates := map[string]int{}
	for i := range n {
		address := fmt.Sprintf("10.0.1.%d", i+1)
		cloud.AddInterface(fmt.Sprintf("eni-%d", i), address)
		desiredStates["rsp-http/"+address+":8080"] = weight
	}
	return desiredStates
}

func TestManyPodsCostFewCalls(t *testing.T) {
	cloud := newCloudStandIn(t)
	cloud.SetPageSize(7)
	_, owning := newHalves(t, cloud)
	require.NoError(t, owning.Apply(within(t), service(), changes(manyPods(cloud, 40, 100))))
	require.Len(t, cloud.Servers("rsp-http"), 40)
	require.Equal(t, 2, cloud.Calls("AddVServerGroupBackendServers"), "20 a call, which is the most that the API takes")
	require.Equal(t, 6, cloud.Calls("DescribeNetworkInterfaces"), "pages of 7 are followed to the last one")
	before := cloud.Calls("")
	require.NoError(t, owning.Apply(within(t), service(), changes(manyPods(cloud, 40, 0))))
	require.Equal(t, 3, cloud.Calls("")-before, "one reading and two changes drain 40 Pods")
	require.Zero(t, cloud.Refusals(""))
}

func TestOneServerThatIsRejectedDoesNotHoldUpOthers(t *testing.T) {
	cloud := newCloudStandIn(t)
	_, owning := newHalves(t, cloud)
	desiredStates := manyPods(cloud, 20, 100)
	cloud.Fail("AddVServerGroupBackendServers",
		alibabacloud.Fault{Times: -1, ServerIP: "10.0.1.7", Status: 400, Code: "InvalidBackendServers",
			Message: "The interface is of another VPC."})
	err := owning.Apply(within(t), service(), changes(desiredStates))
	var failed api.MemberErrors
	require.ErrorAs(t, err, &failed)
	require.Len(t, failed, 1)
	require.ErrorContains(t, failed["rsp-http/10.0.1.7:8080"], "The interface is of another VPC.")
	require.Len(t, cloud.Servers("rsp-http"), 19)
	require.LessOrEqual(t, cloud.Calls("AddVServerGroupBackendServers"), maxCallsPerGroup)
}

func TestARejectionOfAllIsNotTriedForEver(t *testing.T) {
	cloud := newCloudStandIn(t)
	_, owning := newHalves(t, cloud)
	desiredStates := manyPods(cloud, 40, 100)
	cloud.Fail("AddVServerGroupBackendServers",
		alibabacloud.Fault{Times: -1, Status: 400, Code: "QuotaExceeded", Message: "Too many servers."})
	require.ErrorContains(t, owning.Apply(within(t), service(), changes(desiredStates)), "QuotaExceeded")
	require.LessOrEqual(t, cloud.Calls("AddVServerGroupBackendServers"), 2*maxCallsPerGroup)
}

func TestThrottlingEndsABatchAtOnce(t *testing.T) {
	cloud := newCloudStandIn(t)
	_, owning := newHalves(t, cloud)
	desiredStates := manyPods(cloud, 40, 100)
	cloud.Fail("AddVServerGroupBackendServers", alibabacloud.Throttled(1))
	err := owning.Apply(within(t), service(), changes(desiredStates))
	var call *CallError
	require.ErrorAs(t, err, &call)
	require.Equal(t, FaultThrottled, call.Fault)
	require.NotEmpty(t, call.RequestID)
	require.NotContains(t, err.Error(), call.RequestID, "a text that differs each time would be told each time")
	var failed api.MemberErrors
	require.NotErrorAs(t, err, &failed, "nothing succeeded, so the group as a whole waits")
	require.Equal(t, 1, cloud.Calls("AddVServerGroupBackendServers"))
	require.NoError(t, owning.Apply(within(t), service(), changes(desiredStates)))
	require.Len(t, cloud.Servers("rsp-http"), 40)
}

func TestGroupsFailApart(t *testing.T) {
	cloud := newCloudStandIn(t)
	_, owning := newHalves(t, cloud)
	cloud.AddInterface("eni-1", "10.0.0.1")
	err := owning.Apply(within(t), service(),
		changes(map[string]int{"rsp-http/10.0.0.1:8080": 100, "rsp-gone/10.0.0.1:8080": 100}))
	var failed api.MemberErrors
	require.ErrorAs(t, err, &failed)
	require.Len(t, failed, 1)
	require.ErrorContains(t, failed["rsp-gone/10.0.0.1:8080"], "The specified VServerGroupId does not exist.")
	require.Len(t, cloud.Servers("rsp-http"), 1)
}

func TestAnAddressWithoutInterfaceFailsAlone(t *testing.T) {
	cloud := newCloudStandIn(t)
	_, owning := newHalves(t, cloud)
	cloud.AddInterface("eni-1", "10.0.0.1")
	cloud.AddInterface("eni-2", "fd00::1")
	err := owning.Apply(within(t), service(),
		changes(map[string]int{"rsp-http/10.0.0.1:8080": 100, "rsp-http/10.0.0.2:8080": 100, "rsp-v6/[fd00::1]:8443": 9}))
	var failed api.MemberErrors
	require.ErrorAs(t, err, &failed)
	require.Len(t, failed, 1)
	require.ErrorContains(t, failed["rsp-http/10.0.0.2:8080"], "no network interface in VPC vpc-test has address 10.0.0.2")
	require.Len(t, cloud.Servers("rsp-http"), 1)
	require.Equal(t, "eni-2", cloud.Servers("rsp-v6")[0].ServerID)
}

func TestAListOfWhichAPartWasTakenIsFinishedNextTime(t *testing.T) {
	cloud := newCloudStandIn(t)
	_, owning := newHalves(t, cloud)
	desiredStates := manyPods(cloud, 5, 100)
	cloud.TakeOnly(2)
	for range 3 {
		require.NoError(t, owning.Apply(within(t), service(), changes(desiredStates)))
	}
	require.Len(t, cloud.Servers("rsp-http"), 5)
}

func TestAReadingThatLagsIsNoHarm(t *testing.T) {
	cloud := newCloudStandIn(t)
	_, owning := newHalves(t, cloud)
	cloud.AddInterface("eni-1", "10.0.0.1")
	const id = "rsp-http/10.0.0.1:8080"
	cloud.Lag(1)
	require.NoError(t, owning.Apply(within(t), service(), changes(map[string]int{id: 100})))
	require.ErrorContains(t, owning.Apply(within(t), service(), changes(map[string]int{id: 100})), "Duplicated",
		"decided on what was before")
	require.NoError(t, owning.Apply(within(t), service(), changes(map[string]int{id: 100})))
	require.Len(t, cloud.Servers("rsp-http"), 1)
}

func TestMarks(t *testing.T) {
	s := service()
	require.Equal(t, "kuperator/shop/web", (&Owning{groups: ServerGroups{Owner: defaultOwner}}).mark(s))
	require.Equal(t, "prod-1/shop/web", (&Owning{groups: ServerGroups{Owner: "prod-1"}}).mark(s))
	s.Name = strings.Repeat("n", 63)
	s.Namespace = strings.Repeat("s", 63)
	long := (&Owning{groups: ServerGroups{Owner: strings.Repeat("o", maxOwner)}}).mark(s)
	require.LessOrEqual(t, len(long), 80)
	s.Name = strings.Repeat("m", 63)
	require.NotEqual(t, long, (&Owning{groups: ServerGroups{Owner: strings.Repeat("o", maxOwner)}}).mark(s))
}

func TestFaults(t *testing.T) {
	for code, want := range map[string]Fault{
		"Throttling.User": FaultThrottled, "Throttling": FaultThrottled, "BackendServer.configuring": FaultTransient,
		"OperationBusy":         FaultTransient,
		"SignatureDoesNotMatch": FaultDenied, "Forbidden.RAM": FaultDenied, "InvalidAccessKeyId.NotFound": FaultDenied,
		"InvalidParameter": FaultRejected,
	} {
		require.Equal(t, want, faultOf(http.StatusBadRequest, code), code)
	}
	require.Equal(t, FaultTransient, faultOf(http.StatusInternalServerError, "InternalError"))
	require.Equal(t, FaultThrottled, faultOf(http.StatusTooManyRequests, ""))
	require.Equal(t, FaultDenied, faultOf(http.StatusForbidden, ""))
}
