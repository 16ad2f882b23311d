package resourceconsist_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"kusionstack.io/kuperator/api/podops"
	api "kusionstack.io/kuperator/api/resourceconsist"
	"kusionstack.io/kuperator/internal/testkit/localkube"
)

// TestDualStack is about Services and Pods with addresses of both families, whose slices Kubernetes' own controller
// makes.
func TestDualStack(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a control plane")
	}
	w := start(t, func(c *localkube.Config) { c.DualStack = true })
	startManager(t, w.config)
	for name, story := range map[string]func(*testing.T, shop){
		"a Service of both families":                     bothFamilies,
		"a headless Service of both families":            bothFamiliesHeadless,
		"a Pod is not operated before the late family":   lateOnTheWayOut,
		"a Pod does not serve before the late family":    lateOnTheWayIn,
		"a Service gets a family and loses it":           familyComesAndGoes,
		"Services of one family, the other and both":     severalFamilies,
		"a Pod that has no address of the second family": onlyTheFirst,
	} {
		t.Run(name, func(t *testing.T) { story(t, w.shop(t)) })
	}
}

// families asks for these address families, with the policy that a user gives for them.
func families(policy corev1.IPFamilyPolicy, families ...corev1.IPFamily) func(*corev1.Service) {
	return func(service *corev1.Service) {
		service.Spec.IPFamilyPolicy, service.Spec.IPFamilies = &policy, families
	}
}

// listedIn are the address families whose slices list the Pod for the Service.
func (s shop) listedIn(t *testing.T, pod, service string) []discoveryv1.AddressType {
	t.Helper()
	var all discoveryv1.EndpointSliceList
	require.NoError(t, s.client.List(t.Context(), &all, client.InNamespace(s.namespace),
		client.MatchingLabels{discoveryv1.LabelServiceName: service}))
	var found []discoveryv1.AddressType
	for i := range all.Items {
		if lists(&all.Items[i], pod, "") {
			found = append(found, all.Items[i].AddressType)
		}
	}
	slices.Sort(found)
	return found
}

var everyFamily = []discoveryv1.AddressType{discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6}

// stuck has the API server refuse every change of the namespace's slices of one family, so that Kubernetes' controller,
// which tries again, is late with it, until the test lets it go on.
func (s shop) stuck(t *testing.T, family discoveryv1.AddressType) (release func()) {
	t.Helper()
	name := s.namespace + "-" + strings.ToLower(string(family))
	fail := admissionregistrationv1.Fail
	policy := &admissionregistrationv1.ValidatingAdmissionPolicy{ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: admissionregistrationv1.ValidatingAdmissionPolicySpec{
			FailurePolicy: &fail,
			MatchConstraints: &admissionregistrationv1.MatchResources{ResourceRules: []admissionregistrationv1.NamedRuleWithOperations{{
				RuleWithOperations: admissionregistrationv1.RuleWithOperations{
					Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Update},
					Rule: admissionregistrationv1.Rule{APIGroups: []string{"discovery.k8s.io"}, APIVersions: []string{"v1"},
						Resources: []string{"endpointslices"}},
				},
			}}},
			Validations: []admissionregistrationv1.Validation{{Expression: "object.addressType != '" + string(family) + "'",
				Message: "the test holds it back"}},
		}}
	require.NoError(t, s.client.Create(t.Context(), policy))
	binding := &admissionregistrationv1.ValidatingAdmissionPolicyBinding{ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: admissionregistrationv1.ValidatingAdmissionPolicyBindingSpec{
			PolicyName: name, ValidationActions: []admissionregistrationv1.ValidationAction{admissionregistrationv1.Deny},
			MatchResources: &admissionregistrationv1.MatchResources{NamespaceSelector: &metav1.LabelSelector{
				MatchLabels: map[string]string{corev1.LabelMetadataName: s.namespace},
			}},
		}}
	require.NoError(t, s.client.Create(t.Context(), binding))
	held := discoveryv1.EndpointSlice{}
	s.eventually(t, "there is a slice of the family", func() bool {
		var all discoveryv1.EndpointSliceList
		require.NoError(t, s.client.List(t.Context(), &all, client.InNamespace(s.namespace)))
		at := slices.IndexFunc(all.Items, func(e discoveryv1.EndpointSlice) bool { return e.AddressType == family })
		if at >= 0 {
			held = all.Items[at]
		}
		return at >= 0
	})
	s.eventually(t, "the API server enforces it", func() bool {
		touched := held.DeepCopy()
		touched.ResourceVersion = ""
		touched.Annotations = map[string]string{"test.example.com/touched": "true"}
		return s.client.Update(t.Context(), touched, client.DryRunAll) != nil
	})
	return func() { require.NoError(t, s.client.Delete(t.Context(), binding)) }
}

func bothFamilies(t *testing.T, s shop) {
	s.createService(t, "web", families(corev1.IPFamilyPolicyRequireDualStack))
	s.createPod(t, "web-0")
	s.serving(t, "web-0", "web")
	require.Len(t, s.pod(t, "web-0").Status.PodIPs, 2)
	require.Equal(t, everyFamily, s.listedIn(t, "web-0", "web"), "it serves when both list it")
	seen := s.record(t, "web-0", "web")
	s.begin(t, "web-0")
	s.outAndIn(t, seen)
	require.Equal(t, everyFamily, s.listedIn(t, "web-0", "web"))
}

func bothFamiliesHeadless(t *testing.T, s shop) {
	s.createService(t, "web", families(corev1.IPFamilyPolicyPreferDualStack),
		func(service *corev1.Service) { service.Spec.ClusterIP = corev1.ClusterIPNone })
	s.createPod(t, "web-0")
	s.serving(t, "web-0", "web")
	require.Equal(t, everyFamily, s.listedIn(t, "web-0", "web"))
	seen := s.record(t, "web-0", "web")
	s.begin(t, "web-0")
	s.outAndIn(t, seen)
}

func lateOnTheWayOut(t *testing.T, s shop) {
	s.createService(t, "web", families(corev1.IPFamilyPolicyPreferDualStack))
	s.createPod(t, "web-0")
	s.serving(t, "web-0", "web")
	release := s.stuck(t, discoveryv1.AddressTypeIPv6)
	seen := s.record(t, "web-0", "web")
	s.begin(t, "web-0")
	s.eventually(t, "the first family has dropped it and the Service is waited for", func() bool {
		waits := podops.Explain(podops.Read(s.pod(t, "web-0")), nil)
		return slices.Equal(s.listedIn(t, "web-0", "web"), everyFamily[1:]) && len(waits) == 1 &&
			waits[0].Reason == podops.WaitFinalizer
	})
	released := s.now(t)
	release()
	s.allowed(t, "web-0")
	require.Equal(t, []bool{false}, s.removals(t, seen))
	require.Greater(t, seen.removedAt(), released, "the finalizer went before the second family had dropped the Pod")
	s.finish(t, "web-0")
	s.serving(t, "web-0", "web")
}

func lateOnTheWayIn(t *testing.T, s shop) {
	s.createService(t, "web", families(corev1.IPFamilyPolicyPreferDualStack))
	s.createPod(t, "web-0")
	s.serving(t, "web-0", "web")
	s.begin(t, "web-0")
	s.allowed(t, "web-0")
	s.eventually(t, "no family lists it", func() bool { return len(s.listedIn(t, "web-0", "web")) == 0 })
	release := s.stuck(t, discoveryv1.AddressTypeIPv4)
	s.finish(t, "web-0")
	s.eventually(t, "the second family lists it",
		func() bool { return slices.Equal(s.listedIn(t, "web-0", "web"), everyFamily[1:]) })
	s.createPod(t, "other", func(pod *corev1.Pod) { pod.Labels["app"] = "other" })
	s.createService(t, "other", func(service *corev1.Service) {
		service.Spec.Selector = map[string]string{"app": "other"}
		families(corev1.IPFamilyPolicySingleStack, corev1.IPv6Protocol)(service)
	})
	s.serving(t, "other", "other") // by now the first Pod has been looked at, too
	require.False(t, podops.Read(s.pod(t, "web-0")).ServiceAvailable(), "it has not joined in the first family")
	require.Empty(t, podops.ProtectionFinalizers(s.pod(t, "web-0").Finalizers))
	release()
	s.serving(t, "web-0", "web")
	require.Equal(t, everyFamily, s.listedIn(t, "web-0", "web"))
}

// familyComesAndGoes changes a Service while its Pod serves, and takes a family away while the Pod waits for it.
func familyComesAndGoes(t *testing.T, s shop) {
	s.createService(t, "web")
	s.createPod(t, "web-0")
	s.serving(t, "web-0", "web")
	require.Equal(t, everyFamily[:1], s.listedIn(t, "web-0", "web"))
	s.patchService(t, "web", `{"spec":{"ipFamilyPolicy":"PreferDualStack"}}`)
	s.eventually(t, "both families list it",
		func() bool { return slices.Equal(s.listedIn(t, "web-0", "web"), everyFamily) })
	s.serving(t, "web-0", "web")
	seen := s.record(t, "web-0", "web")
	s.begin(t, "web-0")
	s.outAndIn(t, seen)

	s.begin(t, "web-0")
	s.allowed(t, "web-0")
	s.eventually(t, "no family lists it", func() bool { return len(s.listedIn(t, "web-0", "web")) == 0 })
	s.stuck(t, discoveryv1.AddressTypeIPv6)
	s.finish(t, "web-0")
	s.eventually(t, "the first family lists it",
		func() bool { return slices.Equal(s.listedIn(t, "web-0", "web"), everyFamily[:1]) })
	s.patchService(t, "web", `{"spec":{"ipFamilyPolicy":"SingleStack"}}`)
	s.serving(t, "web-0", "web")
}

func severalFamilies(t *testing.T, s shop) {
	s.createService(t, "four", families(corev1.IPFamilyPolicySingleStack, corev1.IPv4Protocol))
	s.createService(t, "six", families(corev1.IPFamilyPolicySingleStack, corev1.IPv6Protocol),
		func(service *corev1.Service) {
			service.Annotations = map[string]string{api.DrainSecondsAnnotation: "1"}
		})
	s.createService(t, "both", families(corev1.IPFamilyPolicyRequireDualStack, corev1.IPv6Protocol, corev1.IPv4Protocol))
	s.createPod(t, "web-0")
	s.serving(t, "web-0", "both", "four", "six")
	seen := map[string]*history{"four": s.record(t, "web-0", "four"), "six": s.record(t, "web-0", "six"),
		"both": s.record(t, "web-0", "both")}
	s.begin(t, "web-0")
	s.allowed(t, "web-0")
	for service, of := range seen {
		require.Equal(t, []bool{false}, s.removals(t, of), service)
	}
	s.finish(t, "web-0")
	s.serving(t, "web-0", "both", "four", "six")
}

// onlyTheFirst has a Pod of the node's network, which has one address, in a Service of both families.
func onlyTheFirst(t *testing.T, s shop) {
	s.createService(t, "web", families(corev1.IPFamilyPolicyPreferDualStack))
	s.createPod(t, "web-0", func(pod *corev1.Pod) { pod.Spec.HostNetwork = true })
	s.serving(t, "web-0", "web")
	require.Len(t, s.pod(t, "web-0").Status.PodIPs, 1)
	require.Equal(t, everyFamily[:1], s.listedIn(t, "web-0", "web"))
	seen := s.record(t, "web-0", "web")
	s.begin(t, "web-0")
	s.outAndIn(t, seen)
}
