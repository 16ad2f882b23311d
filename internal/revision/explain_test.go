package revision_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"

	"kusionstack.io/kuperator/internal/revision"
)

// everything is what the newest server can do.
var everything = revision.Capabilities{Resize: true, ResizeInit: true, ResizePod: true,
	Restart: revision.DefaultRestartAnnotations}

// full is a template with something of everything that the table names, in YAML with places to change.
const full = `
template:
  metadata: {labels: {app: web}, annotations: {note: a}}
  spec:
    activeDeadlineSeconds: 600
    tolerations: [{key: gpu, operator: Exists, effect: NoExecute, tolerationSeconds: 60}]
    initContainers:
    - {name: setup, image: "setup:1", resources: {requests: {cpu: 50m, memory: 32Mi}}}
    - {name: mesh, image: "mesh:1", restartPolicy: Always, resources: {requests: {cpu: 10m, memory: 16Mi}, limits: {memory: 64Mi}}}
    containers:
    - {name: app, image: "nginx:1", env: [{name: A, value: a}], resources: {requests: {cpu: 100m, memory: 64Mi}, limits: {cpu: "1", memory: 128Mi}}}
    - {name: side, image: "envoy:1"}
volumeClaimTemplates:
- {metadata: {name: data}, spec: {accessModes: [ReadWriteOnce], storageClassName: fast, resources: {requests: {storage: 10Gi}}}}
- {metadata: {name: logs}, spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}}
`

// changed is full with replacements, given in pairs.
func changed(t *testing.T, pairs ...string) string {
	t.Helper()
	out := full
	for i := 0; i < len(pairs); i += 2 {
		require.Contains(t, out, pairs[i])
		out = strings.Replace(out, pairs[i], pairs[i+1], 1)
	}
	return out
}

func quantities(cpu, memory string) corev1.ResourceList {
	out := corev1.ResourceList{}
	if cpu != "" {
		out[corev1.ResourceCPU] = resource.MustParse(cpu)
	}
	if memory != "" {
		out[corev1.ResourceMemory] = resource.MustParse(memory)
	}
	return out
}

func requests(cpu, memory string) corev1.ResourceRequirements {
	return corev1.ResourceRequirements{Requests: quantities(cpu, memory)}
}

// same compares changes by what they say.
func same(want, got revision.Change) string {
	// In words, so that what is not exported does not matter.
	say := func(c revision.Change) string {
		deadline := "none"
		if c.ActiveDeadlineSeconds != nil {
			deadline = fmt.Sprint(*c.ActiveDeadlineSeconds)
		}
		resize := map[string]string{}
		for name, r := range c.Resize {
			resize[name] = spell(r)
		}
		if c.PodResize != nil {
			resize["(the Pod)"] = spell(*c.PodResize)
		}
		var tolerations []string
		for _, t := range c.Tolerations {
			tolerations = append(tolerations, fmt.Sprint(t.Key, ptr.Deref(t.TolerationSeconds, -1)))
		}
		return fmt.Sprintln(strings.Join(c.Forcing, ", "), "\nclaims", c.Expand, "\nimages", c.Images,
			"\ntolerations", tolerations,
			"\ndeadline", deadline, "\nresize", resize)
	}
	return cmp.Diff(say(want), say(got))
}

func spell(r corev1.ResourceRequirements) string {
	list := func(l corev1.ResourceList) (out []string) {
		for name, q := range l {
			out = append(out, fmt.Sprint(name, "=", q.String()))
		}
		slices.Sort(out)
		return out
	}
	return fmt.Sprint("requests", list(r.Requests), "limits", list(r.Limits))
}

func TestTheTableOfWhatARunningPodTakesOver(t *testing.T) {
	for name, tc := range map[string]struct {
		to   []string
		can  revision.Capabilities
		want revision.Change
		// onlyClaims is true if nothing but claims forces the Pod to be re-created.
		onlyClaims bool
	}{
		"an init container's image": {to: []string{"setup:1", "setup:2"},
			want: revision.Change{Images: map[string]string{"setup": "setup:2"}}},
		"a sidecar's image": {to: []string{"mesh:1", "mesh:2"},
			want: revision.Change{Images: map[string]string{"mesh": "mesh:2"}}},
		"an added toleration": {
			to:   []string{"tolerations: [", "tolerations: [{key: spot, operator: Exists}, "},
			want: revision.Change{Tolerations: []corev1.Toleration{{Key: "spot"}}},
		},
		"other seconds of a toleration": {
			to:   []string{"tolerationSeconds: 60", "tolerationSeconds: 90"},
			want: revision.Change{Tolerations: []corev1.Toleration{{Key: "gpu", TolerationSeconds: ptr.To[int64](90)}}},
		},
		"a removed toleration": {to: []string{"    tolerations: [{key: gpu, operator: Exists, effect: NoExecute, tolerationSeconds: 60}]\n", ""}, want: revision.Change{Forcing: []string{"template.spec.tolerations"}}},
		"a toleration of another kind": {to: []string{"effect: NoExecute, tolerationSeconds: 60", "effect: NoSchedule"},
			want: revision.Change{Forcing: []string{"template.spec.tolerations"}}},
		"an earlier deadline": {to: []string{"activeDeadlineSeconds: 600", "activeDeadlineSeconds: 300"},
			want: revision.Change{ActiveDeadlineSeconds: ptr.To[int64](300)}},
		"a later deadline": {to: []string{"activeDeadlineSeconds: 600", "activeDeadlineSeconds: 900"},
			want: revision.Change{Forcing: []string{"template.spec.activeDeadlineSeconds"}}},
		"no deadline any more": {to: []string{"    activeDeadlineSeconds: 600\n", ""},
			want: revision.Change{Forcing: []string{"template.spec.activeDeadlineSeconds"}}},
		"cpu, where nothing can be resized": {
			to:   []string{"requests: {cpu: 100m", "requests: {cpu: 200m"},
			want: revision.Change{Forcing: []string{"template.spec.containers[app].resources"}},
		},
		"cpu": {
			to: []string{"requests: {cpu: 100m", "requests: {cpu: 200m"}, can: revision.Capabilities{Resize: true},
			want: revision.Change{Resize: map[string]corev1.ResourceRequirements{"app": requests("200m", "")}},
		},
		"a memory limit": {
			to: []string{"memory: 128Mi", "memory: 256Mi"}, can: everything,
			want: revision.Change{Resize: map[string]corev1.ResourceRequirements{"app": {Limits: quantities("", "256Mi")}}},
		},
		"resources that were not there, which leave the class as it is": {
			to: []string{`image: "envoy:1"`, `image: "envoy:1", resources: {requests: {cpu: 10m}}`}, can: everything,
			want: revision.Change{Resize: map[string]corev1.ResourceRequirements{"side": requests("10m", "")}},
		},
		"a limit that is not there sets the request as well": {
			to: []string{`image: "envoy:1"`, `image: "envoy:1", resources: {limits: {cpu: 10m}}`}, can: everything,
			want: revision.Change{Resize: map[string]corev1.ResourceRequirements{"side": {Requests: quantities("10m", ""),
				Limits: quantities("10m", "")}}},
		},
		"a removed limit": {
			to: []string{`limits: {cpu: "1", memory: 128Mi}`, `limits: {memory: 128Mi}`}, can: everything,
			want: revision.Change{Forcing: []string{"template.spec.containers[app].resources.limits.cpu"}},
		},
		"removed resources": {
			to: []string{", resources: {requests: {cpu: 10m, memory: 16Mi}, limits: {memory: 64Mi}}", ""}, can: everything,
			want: revision.Change{Forcing: []string{
				"template.spec.initContainers[mesh].resources.limits.memory",
				"template.spec.initContainers[mesh].resources.requests.cpu",
				"template.spec.initContainers[mesh].resources.requests.memory",
			}},
		},
		"a resource that cannot be resized": {
			to: []string{"requests: {cpu: 100m", "requests: {ephemeral-storage: 1Gi, cpu: 100m"}, can: everything,
			want: revision.Change{Forcing: []string{"template.spec.containers[app].resources.requests.ephemeral-storage"}},
		},
		"a sidecar's resources": {
			to: []string{"cpu: 10m", "cpu: 20m"}, can: revision.Capabilities{Resize: true},
			want: revision.Change{Resize: map[string]corev1.ResourceRequirements{"mesh": requests("20m", "")}},
		},
		"an init container's resources, where only others can be resized": {
			to: []string{"cpu: 50m", "cpu: 60m"}, can: revision.Capabilities{Resize: true},
			want: revision.Change{Forcing: []string{"template.spec.initContainers[setup].resources"}},
		},
		"an init container's resources": {
			to: []string{"cpu: 50m", "cpu: 60m"}, can: everything,
			want: revision.Change{Resize: map[string]corev1.ResourceRequirements{"setup": requests("60m", "")}},
		},
		"a resize policy": {
			to: []string{`image: "envoy:1"`,
				`image: "envoy:1", resizePolicy: [{resourceName: cpu, restartPolicy: RestartContainer}]`}, can: everything,
			want: revision.Change{Forcing: []string{"template.spec.containers[side].resizePolicy"}},
		},
		"an environment variable of a container": {to: []string{"value: a", "value: b"},
			want: revision.Change{Forcing: []string{"template.spec.containers[app].env"}}},
		"a field of an unknown kind is named by its container": {
			to:   []string{`image: "envoy:1"`, `image: "envoy:1", ofTheFuture: 1`},
			want: revision.Change{Forcing: []string{"template.spec.containers[side].ofTheFuture"}},
		},
		"another order of containers": {
			to:   []string{`name: side, image: "envoy:1"`, `name: app2, image: "envoy:1"`},
			want: revision.Change{Forcing: []string{"template.spec.containers"}},
		},
		"an init container becomes a sidecar": {
			to:   []string{`image: "setup:1",`, `image: "setup:1", restartPolicy: Always,`},
			want: revision.Change{Forcing: []string{"template.spec.initContainers[setup].restartPolicy"}},
		},
		"a restart request": {
			to:   []string{"annotations: {note: a}", `annotations: {note: a, kubectl.kubernetes.io/restartedAt: "2026-01-01"}`},
			want: revision.Change{Forcing: []string{"template.metadata.annotations[kubectl.kubernetes.io/restartedAt]"}},
		},
		"a larger claim": {to: []string{"10Gi", "20Gi"}, want: revision.Change{Expand: []string{"data"}}},
		"two larger claims in another order": {
			to: []string{
				"- {metadata: {name: data}, spec: {accessModes: [ReadWriteOnce], storageClassName: fast, resources: {requests: {storage: 10Gi}}}}\n", "",
				"storage: 1Gi}}}}\n",
				"storage: 2Gi}}}}\n- {metadata: {name: data}, spec: {accessModes: [ReadWriteOnce], storageClassName: fast, resources: {requests: {storage: 20Gi}}}}\n",
			},
			want: revision.Change{Expand: []string{"data", "logs"}},
		},
		"a smaller claim":      {to: []string{"10Gi", "5Gi"}},
		"a claim with a label": {to: []string{"{metadata: {name: data}", "{metadata: {name: data, labels: {a: b}}"}},
		"a claim of another kind": {to: []string{"fast", "slow"},
			want: revision.Change{Forcing: []string{"volumeClaimTemplates[data]"}}, onlyClaims: true},
		"a larger claim of another kind": {
			to: []string{"fast", "slow", "10Gi", "20Gi"}, want: revision.Change{Forcing: []string{"volumeClaimTemplates[data]"}},
			onlyClaims: true,
		},
		"a claim under another name": {to: []string{"name: logs", "name: traces"},
			want: revision.Change{Forcing: []string{"volumeClaimTemplates"}}},
		"everything at once": {
			to: []string{
				"setup:1", "setup:2", "mesh:1", "mesh:2", "nginx:1", "nginx:2", "tolerations: [",
				"tolerations: [{key: spot, operator: Exists}, ",
				"activeDeadlineSeconds: 600", "activeDeadlineSeconds: 300", "cpu: 100m", "cpu: 200m", "cpu: 10m", "cpu: 20m",
				"cpu: 50m", "cpu: 60m", "10Gi", "20Gi",
			},
			can: everything,
			want: revision.Change{
				Images:                map[string]string{"app": "nginx:2", "mesh": "mesh:2", "setup": "setup:2"},
				Tolerations:           []corev1.Toleration{{Key: "spot"}},
				ActiveDeadlineSeconds: ptr.To[int64](300), Expand: []string{"data"},
				Resize: map[string]corev1.ResourceRequirements{"app": requests("200m", ""), "mesh": requests("20m", ""),
					"setup": requests("60m", "")},
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			got := revision.Explain(parsed(t, full), parsed(t, changed(t, tc.to...)), tc.can)
			assert.Empty(t, same(tc.want, got))
			assert.Equal(t, len(tc.want.Forcing) == 0, got.InPlace())
			assert.Equal(t, tc.onlyClaims, got.OnlyClaimsForce())
		})
	}
}

func TestARestartRequestThatIsTakenBackForcesNothing(t *testing.T) {
	asked := changed(t, "annotations: {note: a}",
		`annotations: {note: a, kubectl.kubernetes.io/restartedAt: "2026-01-01"}`)
	got := revision.Explain(parsed(t, asked), parsed(t, full), everything)
	assert.True(t, got.InPlace(), got.Forcing)
	assert.Equal(t, map[string]*string{revision.RestartedAtAnnotation: nil}, got.Annotations)
}

func TestAnnotationsThatAskForARestart(t *testing.T) {
	for _, tc := range []struct {
		chosen, key string
		restarts    bool
	}{
		{"", "kubectl.kubernetes.io/restartedAt", true},
		{"", "checksum/config", false},
		{string(revision.DefaultRestartAnnotations), "checksum/config", true},
		{string(revision.DefaultRestartAnnotations), "reloader.stakater.com/last-reloaded-from", true},
		{string(revision.DefaultRestartAnnotations), "reloader.stakater.com/auto", false},
		{string(revision.DefaultRestartAnnotations), "checksum", false},
		{" a , example.com/* ,", "a", true},
		{"a,example.com/*", "example.com/x", true},
		{"a,example.com/*", "example.com.org/x", false},
		{"a,example.com/*", "ab", false},
	} {
		can := everything
		require.NoError(t, can.Restart.Set(tc.chosen))
		got := revision.Explain(parsed(t, full),
			parsed(t, changed(t, "annotations: {note: a}", "annotations: {note: a, "+tc.key+": x}")), can)
		want := []string{"template.metadata.annotations[" + tc.key + "]"}
		if !tc.restarts {
			want = nil
		}
		assert.Equal(t, want, got.Forcing, "%+v", tc)
	}
	keys := revision.DefaultRestartAnnotations
	require.NoError(t, keys.Set(keys.String()))
	assert.Equal(t, revision.DefaultRestartAnnotations, keys, "the default is written as it is read")
	for _, wrong := range []string{"*", "a*", "a b", "a/b/c", "/x"} {
		require.ErrorContains(t, keys.Set("x,"+wrong), wrong)
	}
}

func TestTheClassOfAPodStays(t *testing.T) {
	pod := func(resources string) string {
		return `{template: {metadata: {labels: {a: b}}, spec: {containers: [{name: app, image: i, resources: ` +
			resources + `}]}}}`
	}
	guaranteed := "{limits: {cpu: 1, memory: 1Gi}}"
	for name, tc := range map[string]struct {
		from, to string
		forcing  []string
	}{
		"a guaranteed Pod whose limits alone are given stays guaranteed": {guaranteed,
			"{limits: {cpu: 2, memory: 1Gi}}", nil},
		"a request that equals the limit changes nothing": {guaranteed,
			"{requests: {cpu: 1000m}, limits: {cpu: 1, memory: 1Gi}}", nil},
		"a guaranteed Pod cannot become burstable": {
			guaranteed, "{requests: {cpu: 500m}, limits: {cpu: 1, memory: 1Gi}}",
			[]string{"template.spec.containers[app].resources (QoS class Guaranteed would become Burstable)"},
		},
		"a Pod without resources cannot get any": {
			"{}", "{requests: {cpu: 1}}",
			[]string{"template.spec.containers[app].resources (QoS class BestEffort would become Burstable)"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			assert.Empty(t, cmp.Diff(tc.forcing, revision.Explain(parsed(t, pod(tc.from)), parsed(t, pod(tc.to)),
				everything).Forcing))
		})
	}
}

func TestResourcesOfWholePodsAndOfWindows(t *testing.T) {
	pod := func(spec, cpu string) string {
		return `{template: {metadata: {labels: {a: b}}, spec: {` + spec +
			`containers: [{name: app, image: i, resources: {requests: {cpu: ` + cpu + `}}}]}}}`
	}
	whole := func(cpu string) string {
		return `resources: {requests: {cpu: ` + cpu + `, memory: 1Gi}, limits: {memory: 2Gi}}, `
	}
	container := []string{"template.spec.containers[app].resources"}
	for name, tc := range map[string]struct {
		from, to string
		can      revision.Capabilities
		forcing  []string
		pod      *corev1.ResourceRequirements
	}{
		"Windows": {pod("os: {name: windows}, ", "1"),
			pod("os: {name: windows}, ", "2"), everything, container, nil},
		"the whole Pod": {pod(whole("2"), "1"), pod(whole("3"), "1"), everything, nil,
			ptr.To(requests("3", ""))},
		"the whole Pod on older servers": {pod(whole("2"), "1"), pod(whole("3"), "1"),
			revision.Capabilities{Resize: true, ResizeInit: true}, []string{"template.spec.resources"}, nil},
		"a container in such a Pod": {pod(whole("2"), "1"), pod(whole("2"), "500m"),
			everything, nil, nil},
		"a container in such a Pod on older servers": {pod(whole("2"), "1"), pod(whole("2"), "500m"),
			revision.Capabilities{Resize: true, ResizeInit: true}, container, nil},
		"a Pod that gets resources as a whole": {pod("", "1"), pod(whole("2"), "1"), everything,
			[]string{"template.spec.resources"}, nil},
		"a whole Pod whose requests follow from its containers": {pod("resources: {limits: {cpu: 2}}, ", "1"),
			pod("resources: {limits: {cpu: 3}}, ", "1"), everything, []string{"template.spec.resources"}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			got := revision.Explain(parsed(t, tc.from), parsed(t, tc.to), tc.can)
			assert.Empty(t, cmp.Diff(tc.forcing, got.Forcing))
			assert.Empty(t, cmp.Diff(tc.pod, got.PodResize))
		})
	}
}

func TestForcingIsBounded(t *testing.T) {
	spec := "{template: {metadata: {labels: {a: b}}, spec: {containers: [{name: c, image: i"
	to := spec
	for i := range 20 {
		to += fmt.Sprintf(", %s%02d: 1", strings.Repeat("x", 300), i)
	}
	got := revision.Explain(parsed(t, spec+"}]}}}"), parsed(t, to+"}]}}}"), everything)
	assert.LessOrEqual(t, len(got.Forcing), 9)
	for _, field := range got.Forcing {
		assert.LessOrEqual(t, len(field), 256)
	}
}

// TestOnlyImages: as in Kuperator v0.7, whatever the server can.
func TestOnlyImages(t *testing.T) {
	can := everything
	can.ImagesOnly = true
	for name, tc := range map[string]struct {
		pairs []string
		want  []string
	}{
		"an image of a container":       {pairs: []string{"nginx:1", "nginx:2"}},
		"an annotation":                 {pairs: []string{"note: a", "note: b"}},
		"an image of a sidecar":         {[]string{"mesh:1", "mesh:2"}, []string{"template.spec.initContainers"}},
		"an image of an init container": {[]string{"setup:1", "setup:2"}, []string{"template.spec.initContainers"}},
		"resources": {[]string{"cpu: 100m", "cpu: 200m"},
			[]string{"template.spec.containers[app].resources"}},
		"tolerations": {[]string{"tolerationSeconds: 60", "tolerationSeconds: 61"},
			[]string{"template.spec.tolerations"}},
		"a deadline": {[]string{"activeDeadlineSeconds: 600", "activeDeadlineSeconds: 6"},
			[]string{"template.spec.activeDeadlineSeconds"}},
		"a variable": {[]string{"value: a", "value: b"}, []string{"template.spec.containers[app].env"}},
		"a request to restart": {[]string{"note: a", "checksum/config: a"},
			[]string{"template.metadata.annotations[checksum/config]"}},
	} {
		t.Run(name, func(t *testing.T) {
			before, after := parsed(t, full), parsed(t, changed(t, tc.pairs...))
			assert.Equal(t, tc.want, revision.Explain(before, after, can).Forcing)
		})
	}
}
