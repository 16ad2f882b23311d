package plugin

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	kubefake "k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	clocktesting "k8s.io/utils/clock/testing"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/client/clientset/versioned/fake"
	"kusionstack.io/kuperator/internal/insight"
)

// TestWatchesShowWhatOneReadingShows: with every kind, and with what may not be read.
func TestWatchesShowWhatOneReadingShows(t *testing.T) {
	for name, forbidden := range map[string]string{"all may be read": "", "no CollaSets": "collasets",
		"no rules": "podtransitionrules", "no Leases": "leases"} {
		t.Run(name, func(t *testing.T) {
			named := func(namespace string) metav1.ObjectMeta {
				return metav1.ObjectMeta{Namespace: namespace, Name: "web",
					Labels: map[string]string{appsv1alpha1.ControlLabel: appsv1alpha1.ControlValue}}
			}
			kube := kubefake.NewClientset(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}},
				&corev1.Pod{ObjectMeta: named("shop")}, &coordinationv1.Lease{ObjectMeta: named(insight.SystemNamespace)})
			suite := fake.NewClientset(&appsv1alpha1.CollaSet{ObjectMeta: named("shop")},
				&appsv1alpha1.PodTransitionRule{ObjectMeta: named("shop")},
				&appsv1alpha1.OperationJob{ObjectMeta: named("shop")}, &appsv1alpha1.PodDecoration{ObjectMeta: named("shop")})
			refuse := func(action clienttesting.Action) (bool, runtime.Object, error) {
				at := action.GetResource()
				return at.Resource == forbidden, nil, apierrors.NewForbidden(
					schema.GroupResource{Group: at.Group, Resource: at.Resource}, "", errors.New("not today"))
			}
			kube.PrependReactor("list", "*", refuse)
			suite.PrependReactor("list", "*", refuse)
			clock := clocktesting.NewFakeClock(metav1.Now().Time)
			s := &session{namespace: "shop", system: insight.SystemNamespace, kube: kube, suite: suite, clock: clock,
				server: &serverTime{clock: clock}}
			want, err := s.facts(t.Context(), "shop")
			require.NoError(t, err)
			enough := errors.New("enough")
			err = s.followFacts(t.Context(), "shop", func(got insight.Facts) error {
				require.ElementsMatch(t, want.Gaps, got.Gaps)
				want.Gaps, got.Gaps = nil, nil
				require.Equal(t, want, got)
				return enough
			})
			require.ErrorIs(t, err, enough)
		})
	}
}
