package revision_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"

	"kusionstack.io/kuperator/internal/revision"
)

// The tests called TestFailureNN, here and elsewhere, are named after the fifteen ways in which CollaSets of
// Kuperator are known to have failed. docs/contributing/known-failures.md lists them.

// Kuperator compared the image IDs of containers that did not change, took a record that was missing for one that was
// fulfilled, and waited for ever for a tag with an equal digest or for a change of labels alone.
func TestFailure09InPlaceCompletion(t *testing.T) {
	before := pod("nginx:1", "c0")
	change := image("nginx:2")
	changed := patched(t, before, change.Patch(before, "r2", nil))

	t.Run("a sidecar that did not change is not waited for", func(t *testing.T) {
		done := restarted(changed, "c1", "sha:nginx:2")
		assert.Equal(t, before.Status.ContainerStatuses[1].ContainerID, done.Status.ContainerStatuses[1].ContainerID)
		assert.True(t, revision.Carried(done).Done)
	})
	t.Run("a sidecar that restarts meanwhile does not stand in for the container", func(t *testing.T) {
		other := restarted(changed, "c0", "sha:nginx:1")
		other.Status.ContainerStatuses[1].ContainerID = "m1"
		assert.False(t, revision.Carried(other).Done)
	})
	t.Run("a change that was not made is not done: the record comes with it, in one write", func(t *testing.T) {
		assert.False(t, revision.Recorded(before))
		assert.True(t, revision.Recorded(changed))
		assert.False(t, revision.Carried(changed).Done)
	})
	t.Run("a tag with an equal digest ends", func(t *testing.T) {
		assert.True(t, revision.Carried(restarted(changed, "c1", "sha:nginx:1")).Done)
	})
	t.Run("a change of labels alone ends without a restart", func(t *testing.T) {
		value := "x"
		labelled := patched(t, before, revision.Change{Labels: map[string]*string{"tier": &value}}.Patch(before, "r2", nil))
		assert.True(t, revision.Carried(restarted(labelled, "c0", "sha:nginx:1")).Done)
	})
	t.Run("a container that was restarted and does not come up is not done", func(t *testing.T) {
		broken := restarted(changed, "c1", "sha:nginx:2")
		broken.Status.ContainerStatuses[0].State = corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}}
		got := revision.Carried(broken)
		assert.False(t, got.Done)
		assert.Contains(t, got.Missing, "CrashLoopBackOff")
	})
}

// Kuperator's admission filled in defaults; whatever serialises a template in another way then was a rollout.
func TestFailure15MutatingDefaultsChangeTheRevision(t *testing.T) {
	const stored = `template: {metadata: {labels: {app: web}}, spec: {containers: [{name: app, image: "nginx:1", ports: [{containerPort: 80}]}]}}`
	const claims = ", volumeClaimTemplates: [{metadata: {name: data}, spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}}]}"
	for name, again := range map[string]string{
		"timestamps that are null": `{template: {metadata: {creationTimestamp: null, labels: {app: web}}, spec: {containers: [{name: app, image: "nginx:1", ports: [{containerPort: 80}]}]}}` + claims,
		"the default protocol":     `{template: {metadata: {labels: {app: web}}, spec: {containers: [{name: app, image: "nginx:1", ports: [{containerPort: 80, protocol: TCP}]}]}}` + claims,
		"empty resources":          `{template: {metadata: {labels: {app: web}}, spec: {containers: [{name: app, image: "nginx:1", resources: {}, ports: [{containerPort: 80}]}]}}` + claims,
		"a claim with empty status": `{` + stored +
			`, volumeClaimTemplates: [{metadata: {name: data, creationTimestamp: null}, spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1024Mi}}}, status: {}}]}`,
	} {
		t.Run(name+" mean the same", func(t *testing.T) {
			one, other := parsed(t, "{"+stored+claims), parsed(t, again)
			assert.True(t, one.Same(other))
			assert.True(t, revision.Explain(one, other, revision.Capabilities{}).InPlace())
		})
	}
}
