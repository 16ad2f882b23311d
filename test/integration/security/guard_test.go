package security

import (
	"context"
	"fmt"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
	"kusionstack.io/kuperator/api/resourceconsist"
)

// TestProtocolGuard puts deploy/components/protocol-guard in force: a tenant cannot take its own Pods past a rule, and the suite
// works as before.
func TestProtocolGuard(t *testing.T) {
	w := everything(t)
	policy := filepath.Join("..", "..", "..", "deploy", "components", "protocol-guard", "protocol-policy.yaml")
	_, err := w.Kubectl(t.Context(), "apply", "--server-side", "-f", policy)
	require.NoError(t, err)
	t.Cleanup(func() {
		_, err := w.Kubectl(context.WithoutCancel(t.Context()), "delete", "-f", policy)
		require.NoError(t, err)
	})
	namespace := w.victim(t)
	mallory, participant := w.tenant(t, namespace, "edit"), w.tenant(t, namespace, "edit", "kuperator-participant")
	target := &w.pods(t, t, namespace, "web")[0]
	try := func(who client.Client, body string) error {
		return who.Patch(t.Context(), target.DeepCopy(), client.RawPatch(types.MergePatchType, []byte(body)), client.DryRunAll)
	}
	label := func(key string) string { return fmt.Sprintf(`{"metadata":{"labels":{%q:"1"}}}`, key) }
	note := func(key, value string) string { return fmt.Sprintf(`{"metadata":{"annotations":{%q:%q}}}`, key, value) }
	const refused = "ValidatingAdmissionPolicy 'kuperator-protocol'"
	eventually(t, func(c *assert.CollectT) {
		require.ErrorContains(c, try(mallory, label(podops.OperatePrefix+"/collaset")), refused)
	}, "the policy is in force")

	require.Contains(t, target.Finalizers, resourceconsist.Finalizer("web"), "it is in traffic")
	forged := map[string]string{
		"take its finalizers":        `{"metadata":{"finalizers":[]}}`,
		"take it out of the suite":   fmt.Sprintf(`{"metadata":{"labels":{%q:null}}}`, appsv1alpha1.ControlLabel),
		"no longer say it serves":    fmt.Sprintf(`{"metadata":{"labels":{%q:null}}}`, podops.ServiceAvailableLabel),
		"delete it ungracefully":     fmt.Sprintf(`{"metadata":{"labels":{%q:"disabled"}}}`, podops.GracefulDeletionLabel),
		"excuse it from rules":       note(podops.SkipRulesAnnotation, `{"skipRules":["available"]}`),
		"let operations proceed":     note(podops.DeadlinesAnnotation, `{"Preparing":{"after":"1s","policy":"Proceed"}}`),
		"expect no cooperator":       note(podops.AvailableConditionsAnnotation, `{}`),
		"say that rules have agreed": label(podops.PreCheckedPrefix + "/collaset"),
		"permit an operation":        label(podops.PermissionPrefix + "/update"),
		"say that cooperators left":  label(podops.PreparingPrefix + "/collaset"),
		"bring it back early":        label(podops.CompletingPrefix + "/collaset"),
		"waive what it waits for":    label(podops.WaivedPrefix + "/collaset"),
	}
	for what, body := range forged {
		assert.ErrorContains(t, try(mallory, body), refused, what)
		assert.NoError(t, try(participant, body), what)
		assert.NoError(t, try(w.admin, body), "an administrator may: %s", what)
	}
	born := pod(namespace, "born-permitted")
	born.Labels[podops.OperatePrefix+"/collaset"] = "1"
	require.ErrorContains(t, mallory.Create(t.Context(), born, client.DryRunAll), refused)

	t.Log("what users are for")
	for _, body := range []string{label("team"), label(appsv1alpha1.ToDeleteLabel), label(appsv1alpha1.ToReplaceLabel), label(podops.StayOfflineLabel), label(podops.OperatingPrefix + "/job")} {
		require.NoError(t, try(mallory, body))
	}
	foreign := pod(namespace, "foreign")
	foreign.Labels = map[string]string{podops.OperatePrefix + "/collaset": "1"}
	require.NoError(t, mallory.Create(t.Context(), foreign, client.DryRunAll), "Pods of others are none of the policy's business")
	w.rollOut(t, namespace)
}
