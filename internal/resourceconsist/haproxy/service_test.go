package haproxy

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"pgregory.net/rapid"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
)

// serviceFor is a Service of namespace shop that names a backend and has one port.
func serviceFor(name, backend string, targetPort intstr.IntOrString) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "shop", Name: name,
			Labels:      map[string]string{appsv1alpha1.ControlLabel: appsv1alpha1.ControlValue},
			Annotations: map[string]string{BackendAnnotation: backend},
		},
		Spec: corev1.ServiceSpec{
			Selector: map[string]string{"app": name},
			Ports:    []corev1.ServicePort{{Name: "http", Port: 80, TargetPort: targetPort}},
		},
	}
}

// podAt is a Pod with these addresses.
func podAt(name string, ips ...string) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, UID: types.UID("uid-of-" + name)}}
	for _, ip := range ips {
		pod.Status.PodIPs = append(pod.Status.PodIPs, corev1.PodIP{IP: ip})
	}
	if len(ips) > 0 {
		pod.Status.PodIP = ips[0]
	}
	return pod
}

func newAdapter(t *testing.T, change func(*Options)) *Adapter {
	t.Helper()
	o := DefaultOptions()
	o.Runtimes = []string{"unix:/run/haproxy/admin.sock"}
	if change != nil {
		change(&o)
	}
	a, err := New(o, nil)
	require.NoError(t, err)
	return a
}

func TestMembers(t *testing.T) {
	named := podAt("web-1", "10.0.0.1", "fd00::1")
	named.Spec.Containers = []corev1.Container{{Ports: []corev1.ContainerPort{{Name: "dns", ContainerPort: 53,
		Protocol: corev1.ProtocolUDP}, {Name: "web", ContainerPort: 8080}}}}
	sidecar := podAt("web-1", "10.0.0.1")
	sidecar.Spec.InitContainers = []corev1.Container{{Ports: []corev1.ContainerPort{{Name: "web", ContainerPort: 8443}}}}
	annotated := func(annotations map[string]string) *corev1.Service {
		s := serviceFor("web", "shop_web", intstr.FromString("web"))
		for k, v := range annotations {
			s.Annotations[k] = v
		}
		return s
	}
	two := func() *corev1.Service {
		s := annotated(nil)
		s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{Name: "admin", Port: 9000, TargetPort: intstr.FromInt32(9001)},
			corev1.ServicePort{Name: "dns", Port: 53, Protocol: corev1.ProtocolUDP})
		return s
	}
	for name, tc := range map[string]struct {
		service *corev1.Service
		pod     *corev1.Pod
		drains  bool
		want    map[string]Server // by backend and address
		wantErr string
	}{
		"a named port of a container": {service: annotated(nil), pod: named,
			want: map[string]Server{"shop_web 10.0.0.1:8080": {Weight: 1}}},
		"a named port of a sidecar": {service: annotated(nil), pod: sidecar,
			want: map[string]Server{"shop_web 10.0.0.1:8443": {Weight: 1}}},
		"a Pod on its way out": {service: annotated(nil), pod: named, drains: true,
			want: map[string]Server{"shop_web 10.0.0.1:8080": {Weight: 1, Out: true}}},
		"a number": {service: serviceFor("web", "shop_web", intstr.FromInt32(81)), pod: podAt("web-1", "10.0.0.1"),
			want: map[string]Server{"shop_web 10.0.0.1:81": {Weight: 1}}},
		"no targetPort is the port itself": {service: serviceFor("web", "shop_web", intstr.IntOrString{}),
			pod:  podAt("web-1", "10.0.0.1"),
			want: map[string]Server{"shop_web 10.0.0.1:80": {Weight: 1}}},
		"weight": {service: annotated(map[string]string{WeightAnnotation: "256"}), pod: named,
			want: map[string]Server{"shop_web 10.0.0.1:8080": {Weight: 256}}},
		"both families": {service: annotated(map[string]string{IPFamiliesAnnotation: "IPv6, IPv4"}), pod: named,
			want: map[string]Server{"shop_web 10.0.0.1:8080": {Weight: 1}, "shop_web [fd00::1]:8080": {Weight: 1}}},
		"the other family": {service: annotated(map[string]string{IPFamiliesAnnotation: "IPv6"}), pod: named,
			want: map[string]Server{"shop_web [fd00::1]:8080": {Weight: 1}}},
		"a family that the Pod lacks": {service: annotated(map[string]string{IPFamiliesAnnotation: "IPv6"}),
			pod: podAt("web-1", "10.0.0.1"), want: map[string]Server{}},
		"no address yet": {service: annotated(nil), pod: podAt("web-1"), want: map[string]Server{}},
		"one of two ports by name": {service: func() *corev1.Service { s := two(); s.Annotations[PortAnnotation] = "admin"; return s }(), pod: named,
			want: map[string]Server{"shop_web 10.0.0.1:9001": {Weight: 1}}},
		"one of two ports by number": {service: func() *corev1.Service { s := two(); s.Annotations[PortAnnotation] = "9000"; return s }(), pod: named,
			want: map[string]Server{"shop_web 10.0.0.1:9001": {Weight: 1}}},
		"two ports and no choice": {service: two(), pod: named, wantErr: "has 2 TCP ports"},
		"a port that is not there": {service: annotated(map[string]string{PortAnnotation: "nope"}), pod: named,
			wantErr: `is "nope"`},
		"a UDP port": {service: func() *corev1.Service { s := two(); s.Annotations[PortAnnotation] = "dns"; return s }(),
			pod: named, wantErr: `is "dns"`},
		"an empty choice": {service: annotated(map[string]string{PortAnnotation: ""}), pod: named,
			wantErr: `is ""`},
		"a named port that no container has": {service: annotated(nil), pod: podAt("web-1", "10.0.0.1"),
			wantErr: `no container with a TCP port named "web"`},
		"weight 0": {service: annotated(map[string]string{WeightAnnotation: "0"}), pod: named,
			wantErr: "from 1 to 256"},
		"a weight that is a command": {service: annotated(
			map[string]string{WeightAnnotation: "1;disable server x/y"}), pod: named, wantErr: "from 1 to 256"},
		"a limit that is no number": {service: annotated(map[string]string{MaxDrainSecondsAnnotation: "-1"}),
			pod: named, wantErr: "whole seconds"},
		"an unknown family": {service: annotated(map[string]string{IPFamiliesAnnotation: "IPv5"}),
			pod: named, wantErr: "give IPv4, IPv6"},
		"one family twice": {service: annotated(map[string]string{IPFamiliesAnnotation: "IPv4,IPv4"}),
			pod: named, wantErr: "give IPv4, IPv6"},
		"a backend of another namespace": {service: annotated(map[string]string{BackendAnnotation: "bank_web"}),
			pod: named, wantErr: "which namespace shop may not use"},
		"an empty backend": {service: annotated(map[string]string{BackendAnnotation: ""}), pod: named,
			wantErr: `is ""`},
		"a backend with a second command": {service: annotated(
			map[string]string{BackendAnnotation: "shop_web;shutdown sessions server bank_web/a"}), pod: named,
			wantErr: "of letters, digits and _.:-"},
		"a backend with a second line": {service: annotated(
			map[string]string{BackendAnnotation: "shop_web\ndisable frontend entrance"}), pod: named,
			wantErr: "of letters, digits and _.:-"},
		"a backend with a second word": {service: annotated(map[string]string{BackendAnnotation: "shop_web shop_b"}),
			pod: named, wantErr: "of letters, digits and _.:-"},
		"a backend with a server": {service: annotated(map[string]string{BackendAnnotation: "shop_web/a"}),
			pod: named, wantErr: "of letters, digits and _.:-"},
		"a backend by number": {service: annotated(map[string]string{BackendAnnotation: "shop_#3"}),
			pod: named, wantErr: "of letters, digits and _.:-"},
	} {
		t.Run(name, func(t *testing.T) {
			service, pod := tc.service.DeepCopy(), tc.pod.DeepCopy()
			members, err := newAdapter(t, nil).Members(service, pod, !tc.drains)
			require.Empty(t, cmp.Diff(tc.service, service), "the Service was changed")
			require.Empty(t, cmp.Diff(tc.pod, pod), "the Pod was changed")
			if tc.wantErr != "" {
				require.ErrorContains(t, err, tc.wantErr)
				require.Empty(t, members)
				return
			}
			require.NoError(t, err)
			got := map[string]Server{}
			for id, server := range members {
				backend, _, _ := strings.Cut(id, "/")
				key := backend + " " + server.Endpoint.String()
				server.Endpoint = netip.AddrPort{}
				got[key] = server
			}
			require.Empty(t, cmp.Diff(tc.want, got, cmpopts.EquateComparable(netip.AddrPort{})))
		})
	}
}

func TestMembersAreToldApart(t *testing.T) {
	a := newAdapter(t, func(o *Options) { o.Runtimes = []string{"unix:/a", "tcp:127.0.0.1:9999"} })
	members := func(service *corev1.Service, pod *corev1.Pod) []string {
		m, err := a.Members(service, pod, true)
		require.NoError(t, err)
		ids := []string{}
		for id := range m {
			ids = append(ids, id)
		}
		return ids
	}
	web, api := serviceFor("web", "shop_web", intstr.FromInt32(80)), serviceFor("api", "shop_web", intstr.FromInt32(80))
	pod, next := podAt("web-1", "10.0.0.1"), podAt("web-1", "10.0.0.1")
	next.UID = "another"
	long, longer := podAt(strings.Repeat("a", 200), "10.0.0.1"), podAt(strings.Repeat("a", 201), "10.0.0.1")
	seen := map[string]bool{}
	for _, ids := range [][]string{members(web, pod), members(api, pod), members(web, next), members(web, long),
		members(web, longer)} {
		require.Len(t, ids, 2, "one for each instance")
		for _, id := range ids {
			require.False(t, seen[id], "%s twice", id)
			seen[id] = true
			require.Less(t, len(id), 320)
		}
	}
	require.ElementsMatch(t, members(web, pod), members(web, podAt("web-1", "10.0.0.9")),
		"a new address is the same server")
}

func TestSelector(t *testing.T) {
	a := newAdapter(t, nil)
	s := serviceFor("web", "shop_web", intstr.FromInt32(80))
	require.Equal(t, "app=web", a.Selector(s).String())
	delete(s.Annotations, BackendAnnotation)
	require.Nil(t, a.Selector(s), "a Service that names no backend")
	s = serviceFor("web", "shop_web", intstr.FromInt32(80))
	s.Labels = nil
	require.Nil(t, a.Selector(s), "a Service that is not labelled")
}

func TestMaxDrain(t *testing.T) {
	s := serviceFor("web", "shop_web", intstr.FromInt32(80))
	for raw, want := range map[string]time.Duration{"": time.Hour, "0": 0, "30": 30 * time.Second, "soon": time.Hour} {
		if raw != "" {
			s.Annotations[MaxDrainSecondsAnnotation] = raw
		}
		got, _ := maxDrain(s, time.Hour)
		require.Equal(t, want, got, raw)
		delete(s.Annotations, MaxDrainSecondsAnnotation)
	}
}

func TestOptions(t *testing.T) {
	for name, tc := range map[string]struct {
		change  func(*Options)
		wantErr string
	}{
		"defaults with an instance": {func(*Options) {}, ""},
		"two instances":             {func(o *Options) { o.Runtimes = append(o.Runtimes, "tcp:[::1]:9999") }, ""},
		"health checks":             {func(o *Options) { o.ServerOptions = "check inter 2s" }, ""},
		"no instance":               {func(o *Options) { o.Runtimes = nil }, "--haproxy-runtime is missing"},
		"an instance twice":         {func(o *Options) { o.Runtimes = append(o.Runtimes, o.Runtimes[0]) }, "twice"},
		"a relative path": {func(o *Options) { o.Runtimes = []string{"unix:haproxy.sock"} },
			"--haproxy-runtime has"},
		"no port":                   {func(o *Options) { o.Runtimes = []string{"tcp:127.0.0.1"} }, "--haproxy-runtime has"},
		"no host":                   {func(o *Options) { o.Runtimes = []string{"tcp::9999"} }, "--haproxy-runtime has"},
		"an unknown network":        {func(o *Options) { o.Runtimes = []string{"http://x:80"} }, "--haproxy-runtime has"},
		"no backends":               {func(o *Options) { o.Backends = nil }, "--haproxy-backends is empty"},
		"backends of no namespace":  {func(o *Options) { o.Backends = []string{"web"} }, "--haproxy-backends has"},
		"an unknown placeholder":    {func(o *Options) { o.Backends = []string{"*/{service}"} }, "--haproxy-backends has"},
		"an owner with a colon":     {func(o *Options) { o.Owner = "a:b" }, "--haproxy-owner"},
		"no owner":                  {func(o *Options) { o.Owner = "" }, "--haproxy-owner"},
		"a negative limit":          {func(o *Options) { o.MaxDrain = -1 }, "--haproxy-max-drain"},
		"parameters with a command": {func(o *Options) { o.ServerOptions = "check; show info" }, "--haproxy-server-options"},
		"a negative interval":       {func(o *Options) { o.ProbeInterval = -1 }, "--haproxy-probe-interval"},
	} {
		t.Run(name, func(t *testing.T) {
			o := DefaultOptions()
			o.Runtimes = []string{"unix:/run/haproxy/admin.sock"}
			tc.change(&o)
			_, err := New(o, nil)
			if tc.wantErr == "" {
				require.NoError(t, err)
			} else {
				require.ErrorContains(t, err, tc.wantErr)
			}
		})
	}
}

func TestAllows(t *testing.T) {
	for name, tc := range map[string]struct {
		rules              []string
		namespace, backend string
		want               bool
	}{
		"its own":                              {nil, "shop", "shop_web", true},
		"a namespace that begins with another": {nil, "shop", "shop-b_web", false},
		"without the underscore":               {nil, "shop", "shop", false},
		"another's":                            {nil, "shop", "bank_web", false},
		"another's, that ends with its own":    {nil, "shop", "bank_shop_web", false},
		"a shared backend":                     {[]string{"shop/edge", "*/{namespace}_*"}, "shop", "edge", true},
		"a shared backend, another tenant":     {[]string{"shop/edge", "*/{namespace}_*"}, "bank", "edge", false},
		"everything":                           {[]string{"*/*"}, "bank", "edge", true},
		"stars inside":                         {[]string{"team-*/web-*-v*"}, "team-a", "web-x-v2", true},
		"stars inside, no match":               {[]string{"team-*/web-*-v*"}, "team-a", "web-v2", false},
	} {
		t.Run(name, func(t *testing.T) {
			o := DefaultOptions()
			if tc.rules != nil {
				o.Backends = tc.rules
			}
			require.Equal(t, tc.want, o.allows(tc.namespace, tc.backend))
		})
	}
}

// Whatever two namespaces are called, the default rule gives no backend to both.
func TestNoBackendBelongsToTwoNamespaces(t *testing.T) {
	o := DefaultOptions()
	label := rapid.StringMatching(`[a-z0-9]([a-z0-9-]{0,8}[a-z0-9])?`)
	rapid.Check(t, func(t *rapid.T) {
		a, b := label.Draw(t, "a"), label.Draw(t, "b")
		backend := a + "_" + rapid.StringMatching(`[A-Za-z0-9_.:-]{0,10}`).Draw(t, "rest")
		if !o.allows(a, backend) || a != b && o.allows(b, backend) {
			t.Fatalf("backend %q: %s %v, %s %v", backend, a, o.allows(a, backend), b, o.allows(b, backend))
		}
	})
}
