package resourceconsist_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"kusionstack.io/kuperator/api/resourceconsist"
)

func TestKeysAreThoseOfUpstream(t *testing.T) {
	require.Equal(t, "prot.podopslifecycle.kusionstack.io/e54505f60aa10ceb", resourceconsist.Finalizer("server"))
	require.Equal(t, "prot.podopslifecycle.kusionstack.io/abb2deba1db11299",
		resourceconsist.Finalizer("resource-consist-ut-svc"))
	require.Equal(t, "Service/shop/web", resourceconsist.EmployerKey("Service",
		client.ObjectKey{Namespace: "shop", Name: "web"}))
	require.Equal(t, "resource-consist.kusionstack.io/clean-finalizer", resourceconsist.CleanFinalizer)
	require.Equal(t, "resource-consist.kusionstack.io/clean-web", resourceconsist.LegacyCleanFinalizer("web"))
}

func TestServiceSelector(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*corev1.Service)
		want   bool
	}{
		"a labelled Service with a selector takes part": {func(*corev1.Service) {}, true},
		"a Service without the label does not": {func(s *corev1.Service) { s.Labels = nil },
			false},
		"a label of another value counts as absent": {func(
			s *corev1.Service) {
			s.Labels["kusionstack.io/control"] = "yes"
		}, false},
		"a Service without a selector does not, instead of taking every Pod": {func(
			s *corev1.Service) {
			s.Spec.Selector = nil
		}, false},
		"a Service that is only a name does not": {func(
			s *corev1.Service) {
			s.Spec.Type = corev1.ServiceTypeExternalName
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			service := &corev1.Service{}
			service.Labels = map[string]string{"kusionstack.io/control": "true"}
			service.Spec.Selector = map[string]string{"app": "web"}
			tc.change(service)
			selector := resourceconsist.ServiceSelector(service)
			require.Equal(t, tc.want, selector != nil)
			if tc.want {
				require.True(t, selector.Matches(labels.Set{"app": "web", "x": "y"}))
				require.False(t, selector.Matches(labels.Set{"app": "db"}))
			}
		})
	}
}

func TestDrainTime(t *testing.T) {
	for name, tc := range map[string]struct {
		annotations map[string]string
		want        time.Duration
		wantErr     bool
	}{
		"the default without the annotation": {nil, time.Minute, false},
		"seconds": {map[string]string{resourceconsist.DrainSecondsAnnotation: "7"},
			7 * time.Second, false},
		"none at all": {map[string]string{resourceconsist.DrainSecondsAnnotation: "0"}, 0, false},
		"a negative number is an error": {map[string]string{resourceconsist.DrainSecondsAnnotation: "-1"},
			time.Minute, true},
		"a unit is an error": {map[string]string{resourceconsist.DrainSecondsAnnotation: "5s"},
			time.Minute, true},
	} {
		t.Run(name, func(t *testing.T) {
			service := &corev1.Service{}
			service.Annotations = tc.annotations
			got, err := resourceconsist.DrainTime(service, time.Minute)
			require.Equal(t, tc.want, got)
			require.Equal(t, tc.wantErr, err != nil)
		})
	}
}

// TestHeldBy: what either of the two records names is held.
func TestHeldBy(t *testing.T) {
	service := &corev1.Service{}
	if resourceconsist.HeldBy(service) != nil || resourceconsist.MayHold(service, "webhook") {
		t.Fatal("no adapter holds anything")
	}
	service.Annotations = map[string]string{resourceconsist.AdaptersAnnotation: "haproxy,webhook.pools"}
	service.Status.Conditions = []metav1.Condition{
		{Type: resourceconsist.HeldConditionPrefix + "webhook.other", Status: metav1.ConditionTrue},
		{Type: resourceconsist.HeldConditionPrefix + "gone", Status: metav1.ConditionFalse},
		{Type: resourceconsist.HeldConditionPrefix + "haproxy", Status: metav1.ConditionTrue},
		{Type: resourceconsist.ConditionInSync, Status: metav1.ConditionTrue},
	}
	if got, want := strings.Join(resourceconsist.HeldBy(service), " "),
		"haproxy webhook.other webhook.pools"; got != want {
		t.Errorf("held by %q, want %q", got, want)
	}
	if !resourceconsist.MayHold(service, "webhook") || !resourceconsist.MayHold(service, "haproxy") ||
		resourceconsist.MayHold(service, "web") || resourceconsist.MayHold(service, "gone") {
		t.Error("an adapter is named by its whole name")
	}
	if got, want := strings.Join(resourceconsist.PlacesOf(service, "webhook", "new"), " "),
		"new other pools"; got != want {
		t.Errorf("places %q, want %q", got, want)
	}
	if got := resourceconsist.PlacesOf(service, "haproxy", ""); len(got) > 0 {
		t.Errorf("places %q of an adapter that has none", got)
	}
	if got := resourceconsist.HolderName("webhook", "pools"); got != "webhook.pools" ||
		resourceconsist.HolderOf(got) != "webhook" || resourceconsist.HolderName("haproxy", "") != "haproxy" {
		t.Errorf("name %q", got)
	}
	if _, has := resourceconsist.ConditionsOf(&corev1.ConfigMap{}); has {
		t.Error("a ConfigMap has no conditions")
	}
}
