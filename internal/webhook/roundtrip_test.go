package webhook

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"
)

// ofV07 are the fields of spec in Kuperator v0.7, but those of the template, the claim templates and the selector.
var ofV07 = []string{
	"historyLimit", "namingStrategy", "namingStrategy.podNamingSuffixPolicy", "paused", "replicas", "scaleStrategy",
	"scaleStrategy.context",
	"scaleStrategy.operationDelaySeconds", "scaleStrategy.persistentVolumeClaimRetentionPolicy",
	"scaleStrategy.persistentVolumeClaimRetentionPolicy.whenDeleted",
	"scaleStrategy.persistentVolumeClaimRetentionPolicy.whenScaled",
	"scaleStrategy.podToDelete", "scaleStrategy.podToExclude", "scaleStrategy.podToInclude", "selector", "template",
	"updateStrategy",
	"updateStrategy.operationDelaySeconds", "updateStrategy.podUpgradePolicy", "updateStrategy.rollingUpdate",
	"updateStrategy.rollingUpdate.byLabel",
	"updateStrategy.rollingUpdate.byPartition", "updateStrategy.rollingUpdate.byPartition.partition",
	"volumeClaimTemplates",
}

func TestOwnFieldsAreAllThatV07DoesNotHave(t *testing.T) {
	content, err := os.ReadFile(filepath.Join("..", "..", "deploy", "crd", "apps.kusionstack.io_collasets.yaml"))
	require.NoError(t, err)
	crd := apiextensionsv1.CustomResourceDefinition{}
	require.NoError(t, yaml.Unmarshal(content, &crd))
	var own []string
	var walk func(schema apiextensionsv1.JSONSchemaProps, path string)
	walk = func(schema apiextensionsv1.JSONSchemaProps, path string) {
		for name, property := range schema.Properties {
			at := strings.TrimPrefix(path+"."+name, ".")
			if !slices.Contains(ofV07, at) {
				own = append(own, at) // what is in it goes with it
			} else if !slices.Contains([]string{"selector", "template", "volumeClaimTemplates"}, at) {
				walk(property, at)
			}
		}
	}
	walk(crd.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["spec"], "")
	slices.Sort(own)
	var listed []string
	for _, path := range ownFields {
		listed = append(listed, strings.Join(path, "."))
	}
	require.Equal(t, own, listed)
}

func TestRoundTrips(t *testing.T) {
	const (
		rich = `minReadySeconds: 5, progressDeadlineSeconds: 60, updateStrategy: {maxSurge: 1, failurePolicy: Pause},
			scaleStrategy: {persistentVolumeClaimRetentionPolicy: {whenDeleted: Delete, whenTemplateChanged: Delete}},
			template: {spec: {initContainers: [{name: side, restartPolicy: Always}, {name: init}]}}`
		poor = `updateStrategy: {}, scaleStrategy: {persistentVolumeClaimRetentionPolicy: {whenDeleted: Delete}},
			template: {spec: {initContainers: [{name: side}, {name: init}]}}`
		held = `labels: {rollout.kusionstack.io/workload: web}`
	)
	object := func(metadata, spec string) string { return `{metadata: {` + metadata + `}, spec: {` + spec + `}}` }
	all := []string{
		"spec.minReadySeconds", "spec.progressDeadlineSeconds",
		"spec.scaleStrategy.persistentVolumeClaimRetentionPolicy.whenTemplateChanged",
		"spec.template.spec.initContainers[side].restartPolicy", "spec.updateStrategy.failurePolicy",
		"spec.updateStrategy.maxSurge",
	}
	for name, tc := range map[string]struct {
		before, after string
		refused       []string
		warned        []string
	}{
		"a program that marks the set and strips it is refused": {before: object("", rich), after: object(held, poor),
			refused: all},
		"so is one that writes it later": {before: object(held, rich), after: object(held, poor),
			refused: all},
		"an annotation is as good as a label": {before: object("", "minReadySeconds: 5"),
			after: object("annotations: {rollout.kusionstack.io/name: a}", ""), refused: all[:1]},
		"without the mark anything goes": {before: object(held, rich), after: object("", poor)},
		"a new value is no loss": {before: object(held, "minReadySeconds: 5"),
			after: object(held, "minReadySeconds: 0")},
		"nor is one that said nothing": {before: object(held,
			"minReadySeconds: 0, updateStrategy: {failurePolicy: ''}"), after: object(held, "")},
		"a container that is gone took its policy along": {before: object(held,
			`template: {spec: {initContainers: [{name: side, restartPolicy: Always}]}}`), after: object(held, "")},
		"what is there is warned of": {after: object(held,
			"minReadySeconds: 5, updateStrategy: {maxSurge: 1}"), warned: []string{"minReadySeconds, updateStrategy.maxSurge"}},
		"a percentage cannot be read": {
			after:  object(held, "updateStrategy: {rollingUpdate: {byPartition: {partition: '50%'}}}"),
			warned: []string{`byPartition.partition is "50%"`},
		},
		"a number can": {after: object(held,
			"updateStrategy: {rollingUpdate: {byPartition: {partition: 5}}}")},
		"an unmarked set may have everything": {after: object("", rich+", paused: true")},
	} {
		t.Run(name, func(t *testing.T) {
			errs, warnings := checkRoundTrip(ask(t, "collasets", tc.after, tc.before))
			var refused []string
			for _, err := range errs {
				refused = append(refused, err.Field)
			}
			require.Equal(t, tc.refused, refused)
			require.Len(t, warnings, len(tc.warned))
			for i, part := range tc.warned {
				require.Contains(t, warnings[i], part)
				require.LessOrEqual(t, len(warnings[i]), maxWarning)
			}
		})
	}
	t.Run("the answer to a request has both", func(t *testing.T) {
		marked := strings.Replace(soundSet, "metadata: {", "metadata: {"+held+", ", 1)
		request := ask(t, "collasets", marked, strings.Replace(marked, "spec:", "spec:\n  minReadySeconds: 5", 1))
		response := validateCollaSet(t.Context(), request)
		require.False(t, response.Allowed)
		require.Contains(t, response.Result.Message, "spec.minReadySeconds: Forbidden")
	})
}
