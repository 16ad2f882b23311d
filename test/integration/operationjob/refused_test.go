package operationjob_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
)

// TestImagesThatARuleOfTheClusterRefuses has an admission policy refuse images by digest: no Pod leaves service for a
// restart that cannot be.
func TestImagesThatARuleOfTheClusterRefuses(t *testing.T) {
	s := begin(t, 2, "1")
	s.refuseDigests()
	before := s.pods()
	status := s.ends(s.job(appsv1alpha1.OpsActionRestart, before, nil), appsv1alpha1.OperationProgressFailed)
	for i, d := range status.TargetDetails {
		require.Equal(t, appsv1alpha1.ReasonUpdateObjectFailed, d.Error.Reason)
		require.Contains(t, d.Error.Message, "only tags here")
		require.Equal(t, before[i].ResourceVersion, s.pods()[i].ResourceVersion, "nothing was written to the Pod")
	}
}

// refuseDigests installs a policy that refuses Pods of the story's namespace with images by digest, and waits until it
// is in force.
func (s *story) refuseDigests() {
	s.Helper()
	name := metav1.ObjectMeta{Name: "tags-" + s.namespace}
	policy := &admissionv1.ValidatingAdmissionPolicy{ObjectMeta: name}
	policy.Spec.MatchConstraints = &admissionv1.MatchResources{
		NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"kubernetes.io/metadata.name": s.namespace}},
		ResourceRules: []admissionv1.NamedRuleWithOperations{{RuleWithOperations: admissionv1.RuleWithOperations{
			Operations: []admissionv1.OperationType{admissionv1.Create, admissionv1.Update},
			Rule:       admissionv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"pods"}},
		}}},
	}
	policy.Spec.Validations = []admissionv1.Validation{{Message: "only tags here",
		Expression: "object.spec.containers.all(c, !c.image.contains('@'))"}}
	binding := &admissionv1.ValidatingAdmissionPolicyBinding{ObjectMeta: name}
	binding.Spec = admissionv1.ValidatingAdmissionPolicyBindingSpec{PolicyName: name.Name,
		ValidationActions: []admissionv1.ValidationAction{admissionv1.Deny}}
	for _, o := range []client.Object{policy, binding} {
		require.NoError(s, s.Create(s.Context(), o))
		s.Cleanup(func() { _ = s.Delete(context.WithoutCancel(s.Context()), o) })
	}
	patch := client.RawPatch(types.StrategicMergePatchType,
		[]byte(`{"spec":{"containers":[{"name":"main","image":"app@sha256:1"}]}}`))
	s.await("the policy to be in force", func() error {
		pod := s.pods()[0]
		if err := s.Patch(s.Context(), &pod, patch, client.DryRunAll); !apierrors.IsInvalid(err) {
			return fmt.Errorf("the API server answers: %w", err)
		}
		return nil
	})
}
