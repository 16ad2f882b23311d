package collaset

import (
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/utils/ptr"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/internal/revision"
)

// A rollout of new content alone is paused where one of a new template goes back.
func TestNoRollbackOfContent(t *testing.T) {
	parse := func(image, configuration string) *revision.Data {
		data, err := revision.Parse([]byte(`{"spec":{"template":{"metadata":{"annotations":{"` +
			appsv1alpha1.ConfigurationAnnotation + `":"` + configuration + `"}},"spec":{"containers":[{"name":"app","image":"` +
			image + `"}]}}}}`))
		require.NoError(t, err)
		return data
	}
	for before, want := range map[*revision.Data]string{
		parse("app:v1", "ConfigMap/a=1"): "",
		parse("app:v0", "ConfigMap/a=2"): "before",
	} {
		set := &appsv1alpha1.CollaSet{}
		set.Spec.ProgressDeadlineSeconds = ptr.To[int32](60)
		set.Spec.UpdateStrategy.FailurePolicy = appsv1alpha1.RolloutFailureRollback
		set.Status.CurrentRevision = "before"
		set.Status.Halted = &appsv1alpha1.HaltedRollout{Revision: "now", RollbackTo: "before"}
		h := &history{updated: "now", failure: failureHandling(set),
			data: map[string]*revision.Data{"before": before, "now": parse("app:v1", "ConfigMap/a=2")}}
		h.aim(set)
		require.NotNil(t, h.halted)
		require.Equal(t, want, h.halted.RollbackTo)
	}
}
