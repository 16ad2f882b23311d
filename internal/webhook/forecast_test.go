package webhook

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"kusionstack.io/kuperator/internal/bootstrap"
	"kusionstack.io/kuperator/internal/revision"
)

func newest(context.Context) (revision.Capabilities, error) {
	return revision.Capabilities{Resize: true, ResizeInit: true, ResizePod: true,
		Restart: revision.DefaultRestartAnnotations}, nil
}

const running = `[{op: add, path: /status, value: {replicas: 3}}, {op: add, path: /spec/replicas, value: 3},
	{op: add, path: /spec/volumeClaimTemplates, value: [{metadata: {name: data}, spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}}]},
	{op: add, path: /spec/template/spec/containers/0/env, value: [{name: A, value: a}]},
	{op: add, path: /spec/template/spec/containers/0/image, value: "nginx:1"}`

func TestWhatComesIsAnnounced(t *testing.T) {
	const image = `{op: add, path: /spec/template/spec/containers/0/image, value: "nginx:2"}`
	const env = `{op: add, path: /spec/template/spec/containers/0/env, value: [{name: A, value: b}]}`
	policy := func(name string) string {
		return `{op: add, path: /spec/updateStrategy, value: {podUpgradePolicy: ` + name + `}}, `
	}
	old := func(t *testing.T) string {
		t.Helper()
		return with(t, soundSet, running+`]`)
	}
	for title, tc := range map[string]struct{ patch, want string }{
		"an image":                  {image, ""},
		"an image with InPlaceOnly": {policy("InPlaceOnly") + image, ""},
		"a partition holds some back": {
			`{op: add, path: /spec/updateStrategy, value: {rollingUpdate: {byPartition: {partition: 50%}}}}, ` + env,
			"1 Pod will be re-created because of template.spec.containers[main].env",
		},
		"a partition holds all back": {`{op: add, path: /spec/updateStrategy, value: {rollingUpdate: {byPartition: {partition: 3}}}}, ` + env, ""},
		"by label": {
			`{op: add, path: /spec/updateStrategy, value: {rollingUpdate: {byLabel: {}}}}, ` + env,
			"Pods with the label collaset.kusionstack.io/update-included will be re-created because of " +
				"template.spec.containers[main].env",
		},
		"an environment variable": {env, "3 Pods will be re-created because of template.spec.containers[main].env"},
		"an environment variable with InPlaceOnly": {
			policy("InPlaceOnly") + env,
			"3 Pods will not be updated (InPlaceOnly) because of template.spec.containers[main].env",
		},
		"a policy that says it itself": {policy("Recreate") + env, ""},
		"more than a warning holds": {
			env +
				`, {op: add, path: /spec/template/spec/containers/0/args, value: [a]}, {op: add, path: /spec/template/spec/containers/0/command, value: [a]},
			{op: add, path: /spec/template/spec/containers/0/workingDir, value: /a}`,
			"3 Pods will be re-created because of template.spec.containers[main].args, template.spec.containers[main].command, " +
				"template.spec.containers[main].env and 1 more",
		},
		"nothing of the template": {`{op: add, path: /spec/replicas, value: 2}`, ""},
		"an annotation":           {`{op: add, path: /spec/template/metadata/annotations, value: {note: b}}`, ""},
		"an annotation that restarts": {
			`{op: add, path: /spec/template/metadata/annotations, value: {checksum/config: bbbb}}`,
			"3 Pods will be re-created because of template.metadata.annotations[checksum/config]",
		},
		"a restart that a user asks for": {
			`{op: add, path: /spec/template/metadata/annotations, value: {kubectl.kubernetes.io/restartedAt: now}}`, "",
		},
		"a restart that InPlaceOnly forbids": {policy("InPlaceOnly") +
			`{op: add, path: /spec/template/metadata/annotations, value: {kubectl.kubernetes.io/restartedAt: now}}`,
			"3 Pods will not be updated (InPlaceOnly) because of " +
				"template.metadata.annotations[kubectl.kubernetes.io/restartedAt]",
		},
		"a restart with another change": {
			env + `, {op: add, path: /spec/template/metadata/annotations, value: {kubectl.kubernetes.io/restartedAt: now}}`,
			"3 Pods will be re-created because of template.metadata.annotations[kubectl.kubernetes.io/restartedAt], " +
				"template.spec.containers[main].env",
		},
		"a variable of Reloader": {
			`{op: add, path: /spec/template/spec/containers/0/env/-, value: {name: STAKATER_APP_CONFIGMAP, value: bbbb}}`,
			"3 Pods will be re-created because of template.spec.containers[main].env",
		},
		"defaults spelled out": {
			`{op: add, path: /spec/template/spec/securityContext, value: {}}, {op: add, path: /spec/template/spec/restartPolicy, value: Always},
			{op: add, path: /spec/template/spec/containers/0/imagePullPolicy, value: IfNotPresent}`, "",
		},
		"nothing that means a thing": {`{op: add, path: /spec/template/metadata/creationTimestamp, value: null}`, ""},
		"no Pods":                    {`{op: add, path: /status/replicas, value: 0}, ` + env, ""},
		"a larger claim":             {`{op: replace, path: /spec/volumeClaimTemplates/0/spec/resources/requests/storage, value: 2Gi}`, ""},
		"another claim, which is kept": {
			`{op: add, path: /spec/volumeClaimTemplates/0/spec/storageClassName, value: fast}`, "",
		},
		"another claim, which is not kept": {
			`{op: add, path: /spec/volumeClaimTemplates/0/spec/storageClassName, value: fast},
			{op: add, path: /spec/scaleStrategy, value: {persistentVolumeClaimRetentionPolicy: {whenTemplateChanged: Delete}}}`,
			"3 Pods will be re-created because of volumeClaimTemplates[data]",
		},
	} {
		t.Run(title, func(t *testing.T) {
			was := old(t)
			f := &forecaster{serverCan: newest}
			response := f.validateAndForecast(t.Context(), ask(t, "collasets", with(t, was, "["+tc.patch+"]"), was))
			require.True(t, response.Allowed, response.Result)
			var announced []string
			for _, w := range response.Warnings {
				if len(w) > 0 && w[0] != 's' { // "spec…" are those of validateCollaSet
					announced = append(announced, w)
				}
				assert.LessOrEqual(t, len(w), maxWarning)
			}
			if tc.want == "" {
				assert.Empty(t, announced)
			} else {
				assert.Equal(t, []string{tc.want}, announced)
			}
		})
	}
	for title, tc := range map[string]struct{ patch, want string }{
		"an image of a sidecar, as Kuperator v0.7 has it": {
			`{op: add, path: /spec/template/spec/initContainers, value: [{name: setup, image: "setup:1"}]}`,
			"3 Pods will be re-created because of template.spec.initContainers",
		},
		"a variable with InPlaceOnly": {policy("InPlaceOnly") + env,
			"3 Pods will be re-created because of template.spec.containers[main].env"},
		"a larger claim": {`{op: replace, path: /spec/volumeClaimTemplates/0/spec/resources/requests/storage, value: 2Gi}`,
			"3 Pods will be re-created because of volumeClaimTemplates[data]"},
		"a larger claim that is kept": {
			`{op: replace, path: /spec/volumeClaimTemplates/0/spec/resources/requests/storage, value: 2Gi},
			{op: add, path: /spec/scaleStrategy, value: {persistentVolumeClaimRetentionPolicy: {whenTemplateChanged: Retain}}}`, "",
		},
		"another claim": {`{op: add, path: /spec/volumeClaimTemplates/0/spec/storageClassName, value: fast}`,
			"3 Pods will be re-created because of volumeClaimTemplates[data]"},
	} {
		t.Run("with --compatibility, "+title, func(t *testing.T) {
			was := old(t)
			imagesOnly := func(ctx context.Context) (revision.Capabilities, error) {
				can, err := newest(ctx)
				can.ImagesOnly = true
				return can, err
			}
			response := (&flags{compatibility: bootstrap.KuperatorV07}).forecaster(imagesOnly).validateAndForecast(t.Context(),
				ask(t, "collasets", with(t, was, "["+tc.patch+"]"), was))
			require.True(t, response.Allowed, response.Result)
			if tc.want == "" {
				assert.NotContains(t, strings.Join(response.Warnings, "\n"), "3 Pods")
			} else {
				assert.Contains(t, response.Warnings, tc.want)
			}
		})
	}
	t.Run("a template that no Pod has tells nothing about them", func(t *testing.T) {
		for updated, want := range map[string]int{"0": 0, "1": 1} {
			was := with(t, soundSet, running+`, {op: add, path: /status/updatedRevision, value: web-2},
				{op: add, path: /status/updatedReplicas, value: `+updated+`}]`)
			f := &forecaster{serverCan: newest}
			response := f.validateAndForecast(t.Context(), ask(t, "collasets", with(t, was, "["+env+"]"), was))
			assert.Equal(t, want, strings.Count(strings.Join(response.Warnings, "\n"), "3 Pods will be re-created"))
		}
	})
	t.Run("nothing is said while the server does not say what it can", func(t *testing.T) {
		f := &forecaster{serverCan: func(context.Context) (revision.Capabilities, error) {
			return revision.Capabilities{}, errors.New("away")
		}}
		was := old(t)
		response := f.validateAndForecast(t.Context(), ask(t, "collasets", with(t, was, "["+env+"]"), was))
		assert.True(t, response.Allowed)
		assert.NotContains(t, strings.Join(response.Warnings, "\n"), "3 Pods")
	})
}
