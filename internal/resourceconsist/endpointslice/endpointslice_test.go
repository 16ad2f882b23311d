package endpointslice

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	testclock "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"

	api "kusionstack.io/kuperator/api/resourceconsist"
	"kusionstack.io/kuperator/internal/resourceconsist/backend"
)

func TestListed(t *testing.T) {
	yes, no := ptr.To(true), ptr.To(false)
	for name, tc := range map[string]struct {
		conditions discoveryv1.EndpointConditions
		want       bool
	}{
		"nothing known counts as listed": {discoveryv1.EndpointConditions{}, true},
		"ready":                          {discoveryv1.EndpointConditions{Ready: yes, Serving: yes, Terminating: no}, true},
		"not ready":                      {discoveryv1.EndpointConditions{Ready: no, Serving: no}, false},
		"terminating and still serving":  {discoveryv1.EndpointConditions{Ready: no, Serving: yes, Terminating: yes}, false},
		"published although not ready, and not serving": {discoveryv1.EndpointConditions{Ready: yes,
			Serving: no}, false},
		"published although not ready, serving, terminating": {discoveryv1.EndpointConditions{Ready: yes, Serving: yes,
			Terminating: yes}, false},
	} {
		t.Run(name, func(t *testing.T) { require.Equal(t, tc.want, Listed(tc.conditions)) })
	}
}

type said struct {
	pod, uid string
	ready    bool
}

// slice is one of IPv6 if its name ends in v6, and of IPv4 otherwise.
func slice(name, service string, endpoints ...said) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name},
		AddressType: discoveryv1.AddressTypeIPv4}
	if strings.HasSuffix(name, "v6") {
		s.AddressType = discoveryv1.AddressTypeIPv6
	}
	if service != "" {
		s.Labels = map[string]string{discoveryv1.LabelServiceName: service}
	}
	for _, e := range endpoints {
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{
			TargetRef:  &corev1.ObjectReference{Kind: "Pod", Name: e.pod, UID: types.UID(e.uid)},
			Conditions: discoveryv1.EndpointConditions{Ready: ptr.To(e.ready)},
		})
	}
	return s
}

func TestObserve(t *testing.T) {
	clk := testclock.NewFakePassiveClock(time.Date(2026, 5, 4, 3, 2, 1, 0, time.UTC))
	a := New(clk)
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web"}}
	put := func(s *discoveryv1.EndpointSlice) map[string]bool {
		clk.SetTime(clk.Now().Add(time.Second))
		changed := map[string]bool{}
		for pod, dropped := range a.update(types.NamespacedName{Namespace: s.Namespace, Name: s.Name}, read(s)) {
			changed[pod.Name] = dropped
		}
		return changed
	}
	observe := func(pod, uid string) backend.Observation {
		return a.Observe(service, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: pod,
			UID: types.UID(uid)}})
	}

	require.Equal(t, backend.Observation{}, observe("a", "1"), "a Pod that no slice names")
	require.Empty(t, cmp.Diff(map[string]bool{"a": false},
		put(slice("v4", "web", said{"a", "1", true}, said{"b", "2", false}))))
	listedAt := clk.Now()
	require.Equal(t, backend.Observation{Serving: true}, observe("a", "1"))
	require.False(t, observe("b", "2").Serving)
	require.Equal(t, listedAt, observe("b", "2").Since)
	require.False(t, observe("a", "other").Serving, "an earlier Pod of the same name")

	require.Empty(t, put(slice("v4", "web", said{"a", "1", true}, said{"b", "2", false})), "nothing new enqueues no Pod")
	require.Empty(t, put(slice("more", "web", said{"a", "1", true})), "a second slice of the family changes nothing")
	require.Empty(t, put(slice("more", "web")))
	require.Empty(t, cmp.Diff(map[string]bool{"a": false}, put(slice("v6", "web", said{"a", "1", true}))))
	require.Equal(t, backend.Observation{Serving: true}, observe("a", "1"))
	require.Empty(t, cmp.Diff(map[string]bool{"a": true},
		put(slice("v4", "web", said{"a", "1", false}, said{"b", "2", false}))))
	require.True(t, observe("a", "1").Serving, "the other family still lists it")
	require.Empty(t, cmp.Diff(map[string]bool{"a": true}, put(slice("v6", "web", said{"a", "1", false}))))
	require.Equal(t, backend.Observation{Since: clk.Now()}, observe("a", "1"))

	require.Empty(t, cmp.Diff(map[string]bool{"b": false},
		put(slice("v4", "web", said{"a", "1", false}, said{"b", "2", true}))))
	require.Empty(t, cmp.Diff(map[string]bool{"b": true}, put(slice("v4", "web"))),
		"a slice that is emptied drops its Pods")
	put(slice("v6", "web"))
	require.Empty(t, a.listings, "nothing is kept of Pods that no slice names")
	require.Empty(t, a.slices)

	require.Empty(t, put(slice("x", "", said{"a", "1", true})), "a slice of no Service")
	put(slice("own", "web", said{"a", "", true}))
	require.True(t, observe("a", "1").Serving, "a slice that names no UID means any")
}

// TestFamilies: a Pod has left when no family lists it, and has joined when each does in which it can be listed.
func TestFamilies(t *testing.T) {
	both := []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol}
	v4, v6 := []string{"10.0.0.1"}, []string{"fd00::1"}
	for name, tc := range map[string]struct {
		service []corev1.IPFamily
		pod     []string
		listed  []string // the slices that list the Pod
		joined  bool     // that the Pod has the finalizer
		leaving bool
		want    bool
	}{
		"no slice lists it": {service: both, pod: append(v4, v6...), want: false},
		"one family is late": {service: both, pod: append(v4, v6...), listed: []string{"v4"},
			want: false},
		"the first family is late": {service: both, pod: append(v4, v6...), listed: []string{"v6"},
			want: false},
		"both list it": {service: both, pod: append(v4, v6...), listed: []string{"v4", "v6"},
			want: true},
		"it has joined, whatever one family says": {service: both, pod: append(v4, v6...), listed: []string{"v4"},
			joined: true, want: true},
		"it leaves and one family is late": {service: both, pod: append(v4, v6...), listed: []string{"v6"},
			joined: true, leaving: true, want: true},
		"it leaves before it has joined": {service: both, pod: append(v4, v6...), listed: []string{"v6"},
			leaving: true, want: true},
		"the Pod has one address":             {service: both, pod: v4, listed: []string{"v4"}, want: true},
		"a slice of a family that it has not": {service: both, pod: v6, listed: []string{"v4"}, want: false},
		"the Service has one family": {service: both[1:], pod: append(v4, v6...), listed: []string{"v6"},
			want: true},
		"the Service does not say": {pod: append(v4, v6...), listed: []string{"v6"}, want: true},
	} {
		t.Run(name, func(t *testing.T) {
			a := New(nil)
			for _, s := range tc.listed {
				a.update(types.NamespacedName{Name: s}, read(slice(s, "web", said{"a", "1", true})))
			}
			service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web"},
				Spec: corev1.ServiceSpec{IPFamilies: tc.service}}
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "a", UID: "1"}}
			pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
			for _, ip := range tc.pod {
				pod.Status.PodIPs = append(pod.Status.PodIPs, corev1.PodIP{IP: ip})
			}
			if tc.joined {
				pod.Finalizers = []string{api.Finalizer("web")}
			}
			if tc.leaving {
				pod.DeletionTimestamp = ptr.To(metav1.Now())
			}
			o := a.Observe(service, pod)
			require.Equal(t, tc.want, o.Serving)
			if !tc.want && len(tc.listed) > 0 {
				require.Positive(t, o.LookAgain, "the Service may lose the family, of which no slice tells")
			}
		})
	}
}

// TestEndpointsThatNameNoPod: traffic goes to an address, whether the slice says whose it is or not.
func TestEndpointsThatNameNoPod(t *testing.T) {
	a := New(testclock.NewFakePassiveClock(time.Date(2026, 5, 4, 3, 2, 1, 0, time.UTC)))
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web"}}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "a", UID: "1"}}
	pod.Status.PodIPs = []corev1.PodIP{{IP: "10.0.0.1"}, {IP: "fd00::1"}}
	observe := func() backend.Observation {
		return a.Observe(service, pod)
	}
	put := func(name string, ready bool, ref *corev1.ObjectReference, addresses ...string) {
		s := slice(name, "web")
		s.Endpoints = []discoveryv1.Endpoint{{Addresses: addresses, TargetRef: ref,
			Conditions: discoveryv1.EndpointConditions{Ready: ptr.To(ready)}}}
		stripped, err := Strip(s)
		require.NoError(t, err)
		require.Empty(t, a.update(types.NamespacedName{Namespace: "shop", Name: name},
			read(stripped.(*discoveryv1.EndpointSlice))), "it names no Pod to enqueue")
	}
	put("other", true, nil, "10.0.0.2")
	require.Equal(t, backend.Observation{}, observe(), "another address")
	for name, ref := range map[string]*corev1.ObjectReference{"nothing": nil, "a node": {Kind: "Node", Name: "a"},
		"a Pod without a name": {Kind: "Pod"}} {
		put("own", true, ref, "fd00:0:0::1")
		require.True(t, observe().Serving, name)
		require.Positive(t, observe().LookAgain, "its changes tell of no Pod")
		put("own", false, ref, "fd00:0:0::1")
		require.False(t, observe().Serving, name)
		require.NotZero(t, observe().Since)
		put("own", true, ref, "example.com")
		require.Equal(t, backend.Observation{}, observe(), "a name is no Pod's address")
	}
}

// TestOnePodsChangeCostsTheSameInALargeService: a slice is looked at as it changes, and no other.
func TestOnePodsChangeCostsTheSameInALargeService(t *testing.T) {
	const each = 100
	cost := func(slices int) float64 {
		a := New(nil)
		key := func(n int) types.NamespacedName {
			return types.NamespacedName{Namespace: "shop", Name: fmt.Sprintf("web-%d", n)}
		}
		saying := func(n int, firstReady bool) map[endpoint]bool {
			var all []said
			for i := range each {
				all = append(all, said{fmt.Sprintf("web-%d-%d", n, i), fmt.Sprint(n*each + i), i > 0 || firstReady})
			}
			return read(slice(key(n).Name, "web", all...))
		}
		for n := range slices {
			a.update(key(n), saying(n, true))
		}
		on, off := saying(slices/2, true), saying(slices/2, false)
		return testing.AllocsPerRun(100, func() {
			if len(a.update(key(slices/2), off)) != 1 || len(a.update(key(slices/2), on)) != 1 {
				t.Fatal("one Pod has changed")
			}
		})
	}
	small, large := cost(1), cost(50)
	t.Logf("allocations for one Pod's way out and in: %.0f in a Service of 100 Pods, %.0f in one of 5,000", small, large)
	require.InDelta(t, small, large, 2)
}

func TestStripKeepsWhatIsRead(t *testing.T) {
	s := slice("v4", "web", said{"a", "1", true})
	s.Endpoints[0].Addresses = []string{"10.0.0.1"}
	s.Endpoints[0].TargetRef.Namespace = "shop"
	s.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "x"}}
	want := read(s.DeepCopy())
	got, err := Strip(s)
	require.NoError(t, err)
	stripped, ok := got.(*discoveryv1.EndpointSlice)
	require.True(t, ok)
	require.Empty(t, cmp.Diff(want, read(stripped), cmp.AllowUnexported(endpoint{})))
	require.Empty(t, stripped.Endpoints[0].Addresses)
	require.Empty(t, stripped.ManagedFields)
	other, err := Strip("something else")
	require.NoError(t, err)
	require.Equal(t, "something else", other)
}
