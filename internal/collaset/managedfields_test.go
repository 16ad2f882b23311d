package collaset

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestHasApplied(t *testing.T) {
	byCollaSet := metav1.ManagedFieldsEntry{Manager: Name, Operation: metav1.ManagedFieldsOperationUpdate,
		APIVersion: "v1", FieldsV1: metav1.NewFieldsV1(`{"f:spec":{}}`)}
	byKubectl := metav1.ManagedFieldsEntry{Manager: "kubectl-label", Operation: metav1.ManagedFieldsOperationUpdate}
	byKubelet := metav1.ManagedFieldsEntry{Manager: "kubelet", Operation: metav1.ManagedFieldsOperationUpdate,
		Subresource: "status"}
	applied := metav1.ManagedFieldsEntry{Manager: "helm", Operation: metav1.ManagedFieldsOperationApply}
	inStatus := metav1.ManagedFieldsEntry{Manager: "kube-controller-manager",
		Operation: metav1.ManagedFieldsOperationApply, Subresource: "status"}
	for name, tc := range map[string]struct {
		entries []metav1.ManagedFieldsEntry
		want    bool
	}{
		"nothing":                     {nil, false},
		"updates only":                {[]metav1.ManagedFieldsEntry{byCollaSet, byKubectl, byKubelet}, false},
		"a client applied":            {[]metav1.ManagedFieldsEntry{byCollaSet, applied, byKubectl}, true},
		"a condition that is applied": {[]metav1.ManagedFieldsEntry{byCollaSet, inStatus}, true},
	} {
		t.Run(name, func(t *testing.T) {
			require.Equal(t, tc.want, hasApplied(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{ManagedFields: tc.entries}}))
		})
	}
}

func TestAPatchThatClearsManagedFields(t *testing.T) {
	for given, want := range map[string]string{
		`{"metadata":{"labels":{"a":null},"uid":"u"},"spec":{"n":1.50}}`: `{"metadata":{"labels":{"a":null},"managedFields":[{}],"uid":"u"},"spec":{"n":1.50}}`,
		`{"spec":{}}`: `{"metadata":{"managedFields":[{}]},"spec":{}}`,
	} {
		out, err := clearFields([]byte(given))
		require.NoError(t, err)
		require.Equal(t, want, string(out))
	}
	for _, broken := range []string{`[]`, `{"metadata":[]}`} {
		_, err := clearFields([]byte(broken))
		require.Error(t, err)
	}
}
