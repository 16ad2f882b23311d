package webhook

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/runtime"
)

// What it sees of real requests is in test/integration/webhook.
func TestReplicasThatAreLeftOut(t *testing.T) {
	object := func(replicas int, metadata string) string {
		return fmt.Sprintf(`{metadata: {%s}, spec: {replicas: %d}}`, metadata, replicas)
	}
	const (
		owner   = `{manager: kubectl, operation: Apply, fieldsType: FieldsV1, fieldsV1: {"f:spec": {"f:replicas": {}, "f:template": {}}}}`
		others  = `{manager: kubectl, operation: Apply, fieldsType: FieldsV1, fieldsV1: {"f:spec": {"f:template": {}}}}`
		scaler  = `{manager: hpa, operation: Update, subresource: scale, fieldsType: FieldsV1, fieldsV1: {"f:spec": {"f:replicas": {}}}}`
		had     = `annotations: {kubectl.kubernetes.io/last-applied-configuration: '{"spec":{"replicas":6}}'}`
		hasNone = `annotations: {kubectl.kubernetes.io/last-applied-configuration: '{"spec":{"paused":true}}'}`
		hasZero = `annotations: {kubectl.kubernetes.io/last-applied-configuration: '{"spec":{"replicas":0}}'}`
		broken  = `annotations: {kubectl.kubernetes.io/last-applied-configuration: '{'}`
	)
	managed := func(entries string) string { return "managedFields: [" + entries + "]" }
	for name, tc := range map[string]struct {
		before, after string
		options       string
		kept          bool
	}{
		"applied without, and owned by none": {object(6, managed(owner)), object(0, managed(others)),
			`{fieldManager: kubectl}`, true},
		"applied as 0": {object(6, managed(owner)), object(0, managed(owner)),
			`{fieldManager: kubectl}`, false},
		"applied without, while another set it to 0": {object(6, managed(owner)), object(0, managed(others+","+scaler)),
			`{fieldManager: kubectl}`, false},
		"a patch of one that does not apply": {object(6, managed(others)), object(0, managed(others)),
			`{fieldManager: other}`, false},
		"what has no managed fields": {object(6, ""), object(0, ""), `{fieldManager: kubectl}`, false},
		"the manifest has it no more": {object(6, had), object(0, hasNone),
			`{fieldManager: kubectl-client-side-apply}`, true},
		"the manifest says 0":                 {object(6, had), object(0, hasZero), "", false},
		"the manifest did not have it before": {object(6, hasNone), object(0, hasNone), "", false},
		"the manifest is gone":                {object(6, had), object(0, ""), "", false},
		"the manifest cannot be read":         {object(6, had), object(0, broken), "", false},
		"another number":                      {object(6, had), object(3, hasNone), "", false},
		"it was 0":                            {object(0, had), object(0, hasNone), "", false},
		"an object without replicas":          {`{spec: {}}`, `{spec: {}}`, "", false},
	} {
		t.Run(name, func(t *testing.T) {
			request := ask(t, "collasets", tc.after, tc.before)
			if tc.options != "" {
				request.Options = runtime.RawExtension{Raw: toJSON(t, tc.options)}
			}
			response := defaultCollaSet(t.Context(), request)
			require.True(t, response.Allowed)
			if !tc.kept {
				require.Empty(t, response.Patches)
				require.Empty(t, response.Warnings)
				return
			}
			require.Len(t, response.Patches, 1)
			require.Equal(t, "/spec/replicas", response.Patches[0].Path)
			require.Equal(t, int32(6), response.Patches[0].Value)
			require.Equal(t, []string{keptReplicas(6)}, response.Warnings)
			require.LessOrEqual(t, len(keptReplicas(1_000_000)), maxWarning)
			require.LessOrEqual(t, len(goneReplicas(1_000_000)), maxWarning)
		})
	}
	t.Run("a 0 that may be the default is warned of", func(t *testing.T) {
		request := ask(t, "collasets", strings.Replace(soundSet, "replicas: 3", "replicas: 0", 1), soundSet)
		request.OldObject.Raw = []byte(`{"spec":{"replicas":4}}`)
		require.Contains(t, validateCollaSet(t.Context(), request).Warnings, goneReplicas(4))
	})
}
