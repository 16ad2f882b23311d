package collaset

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kusionstack.io/kuperator/internal/collaset/setplan"
)

// Entries of managedFields, by who wrote.
var (
	byCollaSet  = metav1.ManagedFieldsEntry{Manager: Name, Operation: metav1.ManagedFieldsOperationUpdate, APIVersion: "v1", FieldsV1: metav1.NewFieldsV1(`{"f:spec":{}}`)}
	byLifecycle = metav1.ManagedFieldsEntry{Manager: "lifecycle-controller", Operation: metav1.ManagedFieldsOperationUpdate, Subresource: "status"}
	byKubelet   = metav1.ManagedFieldsEntry{Manager: "kubelet", Operation: metav1.ManagedFieldsOperationUpdate, Subresource: "status"}
	bySomebody  = metav1.ManagedFieldsEntry{Manager: "kubectl-label", Operation: metav1.ManagedFieldsOperationUpdate}
	byDebugger  = metav1.ManagedFieldsEntry{Manager: "kubectl-debug", Operation: metav1.ManagedFieldsOperationUpdate, Subresource: "ephemeralcontainers"}
	byApplier   = metav1.ManagedFieldsEntry{Manager: "somebody", Operation: metav1.ManagedFieldsOperationApply}
	inStatus    = metav1.ManagedFieldsEntry{Manager: "kube-controller-manager", Operation: metav1.ManagedFieldsOperationApply, Subresource: "status"}
)

func TestWhatManagedFieldsTell(t *testing.T) {
	for name, c := range map[string]struct {
		entries []metav1.ManagedFieldsEntry
		want    setplan.Fields
	}{
		"nothing":                     {nil, setplan.FieldsNone},
		"the suite and the kubelet":   {[]metav1.ManagedFieldsEntry{byCollaSet, byLifecycle, byKubelet}, setplan.FieldsOwn},
		"a status of anybody":         {[]metav1.ManagedFieldsEntry{byKubelet}, setplan.FieldsOwn},
		"somebody's label":            {[]metav1.ManagedFieldsEntry{byCollaSet, bySomebody, byKubelet}, setplan.FieldsOthers},
		"a container to debug":        {[]metav1.ManagedFieldsEntry{byCollaSet, byDebugger}, setplan.FieldsOthers},
		"somebody applied":            {[]metav1.ManagedFieldsEntry{byCollaSet, byApplier, bySomebody}, setplan.FieldsApplied},
		"a condition that is applied": {[]metav1.ManagedFieldsEntry{byCollaSet, inStatus}, setplan.FieldsApplied},
	} {
		t.Run(name, func(t *testing.T) {
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{ManagedFields: c.entries}}
			require.Equal(t, c.want, fieldsOf(pod))
			pod.ManagedFields = keptFields[fieldsOf(pod)]
			require.Equal(t, c.want, fieldsOf(pod), "in the cache")
		})
	}
}

func TestManagedFieldsBeginAnew(t *testing.T) {
	const few = `"managedFields":[{"manager":"collaset-controller"`
	for name, c := range map[string]struct {
		fields setplan.Fields
		goes   bool
		want   string
	}{
		"a Pod that stays":                       {setplan.FieldsOwn, false, few},
		"a Pod that goes":                        {setplan.FieldsOwn, true, `"managedFields":[{}]`},
		"a Pod that is not tracked any more":     {setplan.FieldsNone, false, few},
		"a Pod that goes and is not tracked":     {setplan.FieldsNone, true, ""},
		"a Pod that others wrote":                {setplan.FieldsOthers, false, ""},
		"a Pod that others wrote, and that goes": {setplan.FieldsOthers, true, ""},
		"a Pod that somebody applied to":         {setplan.FieldsApplied, true, ""},
	} {
		t.Run(name, func(t *testing.T) {
			data, err := (&reconciler{trimFields: true}).anew(&setplan.Pod{Fields: c.fields}, c.goes, []byte(`{}`))
			require.NoError(t, err)
			if c.want == "" {
				require.Equal(t, `{}`, string(data))
			} else {
				require.Contains(t, string(data), c.want)
			}
			data, err = (&reconciler{}).anew(&setplan.Pod{Fields: c.fields}, c.goes, []byte(`{}`))
			require.NoError(t, err)
			require.Equal(t, `{}`, string(data), "if it is turned off")
		})
	}
}
