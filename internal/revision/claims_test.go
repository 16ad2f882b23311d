package revision_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/resource"

	"kusionstack.io/kuperator/internal/revision"
)

const oneContainer = "template: {metadata: {labels: {app: web}}, spec: {containers: [{name: app, image: i}]}}\nvolumeClaimTemplates:\n"

func claimsOf(t *testing.T, templates string) []revision.ClaimTemplate {
	t.Helper()
	return parsed(t, oneContainer+templates).ClaimTemplates()
}

func TestClaimTemplateHashIsKuperators(t *testing.T) {
	for want, template := range map[string]string{
		// As claims carry it that Kuperator v0.7.4 made, and as its manual prints it for a claim of 1Gi that becomes 2Gi.
		"d589b969f":  "- {metadata: {name: data}, spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 100Mi}}}}",
		"594d8857f9": "- {metadata: {name: www}, spec: {storageClassName: standard, volumeMode: Filesystem, accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}}",
		"d78c5ff6b":  "- {metadata: {name: www}, spec: {storageClassName: standard, volumeMode: Filesystem, accessModes: [ReadWriteOnce], resources: {requests: {storage: 2Gi}}}}",
	} {
		claims := claimsOf(t, template)
		require.Len(t, claims, 1)
		assert.Equal(t, want, claims[0].Hash, template)
	}
}

func TestClaimTemplates(t *testing.T) {
	claims := claimsOf(t, `
- {metadata: {name: a, labels: {team: one}}, spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}, fieldOfTheFuture: 1}}
- {metadata: {name: b}, spec: {accessModes: [ReadWriteOnce], storageClassName: fast, resources: {requests: {storage: 1Gi}}}}
- {metadata: {name: c}, spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 2048Mi}}}}
`)
	require.Len(t, claims, 3)
	a, b, c := claims[0], claims[1], claims[2]
	assert.Equal(t, []string{"a", "b", "c"}, []string{a.Name, b.Name, c.Name})
	assert.NotEqual(t, a.Shape, c.Shape, "what this version does not know means something")
	again := claimsOf(t,
		"- {metadata: {name: c, annotations: {a: b}}, spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}}")
	assert.Equal(t, again[0].Shape, c.Shape, "the size and the metadata are no part of the shape")
	assert.NotEqual(t, a.Shape, b.Shape)
	assert.NotEqual(t, a.Meta, c.Meta)
	assert.Equal(t, b.Meta, c.Meta)
	assert.True(t, c.Spec.Resources.Requests.Storage().Equal(resource.MustParse("2Gi")))
	object := a.Object()
	assert.Equal(t, int64(1), object["spec"].(map[string]any)["fieldOfTheFuture"], "what is created has every field")
	assert.NotContains(t, object, "status")
	delete(object, "spec")
	assert.Contains(t, a.Object(), "spec", "it is a copy")
	assert.Nil(t, parsed(t, plain).ClaimTemplates())
}
