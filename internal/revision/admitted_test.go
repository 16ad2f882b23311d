package revision_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"kusionstack.io/kuperator/internal/revision"
)

// TestWhatWasAdmittedIsWaitedFor has admission pin tags to digests, so that what is sent is not what comes into the
// Pod.
func TestWhatWasAdmittedIsWaitedFor(t *testing.T) {
	const pinned, other = "app@sha256:1", "app@sha256:2"
	t.Run("another tag of the same content restarts nothing", func(t *testing.T) {
		p := patched(t, pod(pinned, "c0"), image("app:1.0.1").Patch(pod(pinned, "c0"), "r2", nil))
		p.Spec.Containers[0].Image = pinned
		p.Status.ObservedGeneration = p.Generation
		assert.True(t, revision.Carried(p).Done)
	})
	t.Run("other content does", func(t *testing.T) {
		p := patched(t, pod(pinned, "c0"), image("app:2").Patch(pod(pinned, "c0"), "r2", nil))
		p.Spec.Containers[0].Image = other
		p.Status.ObservedGeneration = p.Generation
		assert.False(t, revision.Carried(p).Done)
		assert.True(t, revision.Carried(p).Restarting)
		assert.True(t, revision.Carried(restarted(p, "c1", "sha:2")).Done)
	})
	t.Run("and back before it has restarted", func(t *testing.T) {
		p := patched(t, pod(pinned, "c0"), image("app:2").Patch(pod(pinned, "c0"), "r2", nil))
		p.Spec.Containers[0].Image = other
		p = patched(t, p, image("app:1").Patch(p, "r3", nil))
		p.Spec.Containers[0].Image = pinned
		assert.False(t, revision.Carried(p).Done, "the kubelet has not seen it")
		p.Status.ObservedGeneration = p.Generation
		assert.True(t, revision.Carried(p).Done)
	})
	t.Run("a container that is down is waited for", func(t *testing.T) {
		p := patched(t, pod(pinned, "c0"), image("app:1.0.1").Patch(pod(pinned, "c0"), "r2", nil))
		p.Spec.Containers[0].Image = pinned
		p.Status.ObservedGeneration = p.Generation
		p.Status.ContainerStatuses[0].State.Running = nil
		assert.False(t, revision.Carried(p).Done)
	})
	t.Run("resources", func(t *testing.T) {
		p := pod("nginx:1", "c0")
		p.Spec.Containers[0].Resources = requests("1", "64Mi")
		p = patched(t, p, more("2").Patch(p, "r2", nil))
		p = patched(t, p, revision.ResizePatch(p))
		assert.Nil(t, revision.AdmittedPatch(p), "they are as asked for")
		p.Spec.Containers[0].Resources = requests("1500m", "64Mi")
		require.True(t, revision.Carried(p).ResizeDue, "and would be asked for again and again")
		p = patched(t, p, revision.AdmittedPatch(p))
		assert.False(t, revision.Carried(p).ResizeDue)
		p.Status.ObservedGeneration = p.Generation
		given := requests("1500m", "64Mi")
		p.Status.ContainerStatuses[0].Resources = &given
		assert.True(t, revision.Carried(p).Done)
	})
}

func TestRestarts(t *testing.T) {
	const base = `{"template":{"metadata":{"labels":{"app":"web"}},"spec":{
		"initContainers":[{"name":"init","image":"init:1"},{"name":"mesh","image":"mesh:1","restartPolicy":"Always"}],
		"containers":[{"name":"app","image":"app:1","resources":{"requests":{"cpu":"1","memory":"1Gi"}},
			"resizePolicy":[{"resourceName":"memory","restartPolicy":"RestartContainer"}]}]}}}`
	for name, tc := range map[string]struct {
		old, new string
		restarts bool
	}{
		"a label":                        {`"app":"web"`, `"app":"web","tier":"front"`, false},
		"an image":                       {`app:1`, `app:2`, true},
		"the image of a sidecar":         {`mesh:1`, `mesh:2`, true},
		"the image of an init container": {`init:1`, `init:2`, false},
		"cpu":                            {`"cpu":"1"`, `"cpu":"2"`, false},
		"memory, by its policy":          {`"memory":"1Gi"`, `"memory":"2Gi"`, true},
	} {
		t.Run(name, func(t *testing.T) {
			change := revision.Explain(parsed(t, base), parsed(t, strings.Replace(base, tc.old, tc.new, 1)), everything)
			require.True(t, change.InPlace(), change.Forcing)
			assert.Equal(t, tc.restarts, change.Restarts)
		})
	}
}
