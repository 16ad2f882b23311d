package revision

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"pgregory.net/rapid"
	"sigs.k8s.io/randfill"
	"sigs.k8s.io/yaml"
)

// dataOf is the revision of a CollaSet's spec.
func dataOf(t require.TestingT, spec map[string]any) *Data {
	raw, err := Render(spec)
	require.NoError(t, err)
	data, err := Parse(raw)
	require.NoError(t, err)
	return data
}

func fromYAML(t *testing.T, text string) map[string]any {
	t.Helper()
	var spec map[string]any
	require.NoError(t, yaml.Unmarshal([]byte(text), &spec))
	return spec
}

// sayNothing makes sure that two revisions are one, and that nothing is written to get from one to the other.
func sayNothing(t require.TestingT, a, b *Data) {
	require.True(t, a.Same(b) && b.Same(a), "%v\n%v", a.normal, b.normal)
	for _, change := range []Change{Explain(a, b, all), Explain(b, a, all)} {
		require.True(t, reflect.DeepEqual(change, Change{}), "%+v", change)
	}
}

var all = Capabilities{Resize: true, ResizeInit: true, ResizePod: true, Restart: DefaultRestartAnnotations}

// place-holders for the parts of a small template.
const words = `
template:
  metadata: {labels: {app: web}}
  spec:
    POD
    containers:
    - {name: app, image: IMAGE, CONTAINER}
    - {name: side, image: "envoy:1"}
volumeClaimTemplates:
- metadata: {name: data}
  spec: {accessModes: [ReadWriteOnce, ReadOnlyMany], resources: {requests: {storage: 1Gi}}, CLAIM}
`

func TestTheSameInOtherWords(t *testing.T) {
	const probe, mode = "readinessProbe: {httpGet: {port: 80}}", "volumes: [{name: v, KIND}]"
	for title, tc := range map[string]struct{ one, other [3]string }{ // of the Pod, the container, the claim
		"defaults of a Pod": {other: [3]string{"{restartPolicy: Always, dnsPolicy: ClusterFirst, schedulerName: default-scheduler, " +
			"terminationGracePeriodSeconds: 30, securityContext: {}, enableServiceLinks: true, serviceAccountName: default, serviceAccount: default, " +
			"affinity: {podAffinity: {}, nodeAffinity: {}}, nodeSelector: {}, tolerations: [], hostNetwork: false, dnsConfig: {}, volumes: null}"}},
		"the older name of the service account": {one: [3]string{"{serviceAccount: me}"},
			other: [3]string{"{serviceAccountName: me}"}},
		"defaults of a container": {other: [3]string{1: "imagePullPolicy: IfNotPresent, terminationMessagePath: /dev/termination-log, terminationMessagePolicy: File, " +
			"securityContext: {capabilities: {}}, resources: {}, args: [], stdin: false, lifecycle: {}"}},
		"a probe": {one: [3]string{1: probe},
			other: [3]string{1: "readinessProbe: {httpGet: {port: 80, path: /, scheme: HTTP}, " +
				"timeoutSeconds: 1, periodSeconds: 10, successThreshold: 1, failureThreshold: 3}"}},
		"a probe by gRPC": {one: [3]string{1: "livenessProbe: {grpc: {port: 1}}"},
			other: [3]string{1: `livenessProbe: {grpc: {port: 1, service: ""}}`}},
		"a handler": {one: [3]string{1: "lifecycle: {preStop: {httpGet: {port: 1}}}"},
			other: [3]string{1: "lifecycle: {preStop: {httpGet: {port: 1, path: /, scheme: HTTP}}}"}},
		"a field of the Pod": {one: [3]string{1: "env: [{name: A, valueFrom: {fieldRef: {fieldPath: x}}}]"},
			other: [3]string{1: "env: [{name: A, valueFrom: {fieldRef: {fieldPath: x, apiVersion: v1}}}]"}},
		"requests": {one: [3]string{1: "resources: {limits: {cpu: 1}}"},
			other: [3]string{1: "resources: {limits: {cpu: 1000m}, requests: {cpu: 1.0}}"}},
		"numbers": {one: [3]string{1: "resources: {limits: {cpu: 0.5, memory: 1.5e9}}"},
			other: [3]string{1: "resources: {limits: {cpu: 500m, memory: 1500M}}"}},
		"binary numbers": {one: [3]string{1: "resources: {limits: {memory: 1Gi}}"},
			other: [3]string{1: "resources: {limits: {memory: 1073741824}}"}},
		"ports of the host": {one: [3]string{"{hostNetwork: true}", "ports: [{containerPort: 80}]"},
			other: [3]string{"{hostNetwork: true}", "ports: [{containerPort: 80, hostPort: 80, protocol: TCP}]"}},
		"a volume of nothing": {one: [3]string{"{volumes: [{name: v}]}"},
			other: [3]string{"{volumes: [{name: v, emptyDir: {}}]}"}},
		"the size of one": {one: [3]string{"{volumes: [{name: v, emptyDir: {sizeLimit: 1Gi}}]}"},
			other: [3]string{"{volumes: [{name: v, emptyDir: {sizeLimit: 1024Mi}}]}"}},
		"a Secret": {one: [3]string{strings.Replace("{"+mode+"}", "KIND", "secret: {secretName: s}", 1)},
			other: [3]string{strings.Replace("{"+mode+"}", "KIND", "secret: {secretName: s, defaultMode: 420}", 1)}},
		"the whole Pod": {
			one: [3]string{"{resources: {limits: {cpu: 3, memory: 2Gi}}}", "resources: {requests: {cpu: 1}}"},
			other: [3]string{"{resources: {limits: {cpu: 3, memory: 2Gi}, requests: {cpu: 1, memory: 2Gi}}}",
				"resources: {requests: {cpu: 1}}"},
		},
		"a claim": {one: [3]string{2: "dataSource: {kind: A, name: a}"},
			other: [3]string{2: "dataSource: {kind: A, name: a}, dataSourceRef: {kind: A, name: a}, volumeMode: Filesystem"}},
		"a variable that another hides": {
			one:   [3]string{1: "env: [{name: A, value: a}, {name: B, value: b}, {name: A, value: c}]"},
			other: [3]string{1: "env: [{name: A, value: c}, {name: B, value: b}]"},
		},
		"a volume that a claim hides": {one: [3]string{"{volumes: [{name: data, emptyDir: {}}]}"},
			other: [3]string{"{volumes: [{name: data, fieldOfTheFuture: 1}]}"}},
		"what is not known, in another order": {
			one: [3]string{"{volumes: [{name: b, future: {x: [1]}}, {name: a, future: 2}]}",
				"env: [{name: B, future: 1}, {name: A}]"},
			other: [3]string{"{volumes: [{name: a, future: 2}, {name: b, future: {x: [1]}}]}",
				"env: [{name: A}, {name: B, future: 1}]"},
		},
		"mounts apart": {one: [3]string{1: "volumeMounts: [{name: a, mountPath: /a}, {name: a, mountPath: /ab}]"},
			other: [3]string{1: "volumeMounts: [{name: a, mountPath: /ab}, {name: a, mountPath: /a}]"}},
		"a variable that names another which is not there": {
			one:   [3]string{1: "env: [{name: A, value: $(C)}, {name: B, value: b}]"},
			other: [3]string{1: "env: [{name: B, value: b}, {name: A, value: $(C)}]"},
		},
	} {
		t.Run(title, func(t *testing.T) {
			with := func(parts [3]string) *Data {
				spec := fromYAML(t, strings.NewReplacer("    POD\n", "", "IMAGE", "nginx:1", "CONTAINER", parts[1], "CLAIM",
					parts[2]).Replace(words))
				var more map[string]any
				require.NoError(t, yaml.Unmarshal([]byte(parts[0]), &more))
				maps.Copy(object(object(spec["template"])["spec"]), more)
				return dataOf(t, spec)
			}
			sayNothing(t, with(tc.one), with(tc.other))
		})
	}
}

func TestThePullPolicyFollowsTheImage(t *testing.T) {
	with := func(image, policy string) *Data {
		return dataOf(t, fromYAML(t, strings.NewReplacer("    POD\n", "", "IMAGE", image, "CONTAINER", policy, "CLAIM",
			"").Replace(words)))
	}
	const always, ifNotPresent = "imagePullPolicy: Always", "imagePullPolicy: IfNotPresent"
	for image, policy := range map[string]string{
		`"a"`: always, `"a:latest"`: always, `"r:5000/a"`: always, `"r:5000/a:latest"`: always, `"a:latest@sha256:1"`: always,
		`"a:1"`: ifNotPresent, `"a@sha256:1"`: ifNotPresent, `"r:5000/a:1@sha256:1"`: ifNotPresent,
	} {
		other := map[string]string{always: ifNotPresent, ifNotPresent: always}[policy]
		assert.True(t, with(image, "").Same(with(image, policy)), image)
		assert.False(t, with(image, "").Same(with(image, other)), image)
	}
	const force = "template.spec.containers[app].imagePullPolicy"
	assert.Empty(t, Explain(with(`"a:1"`, ""), with(`"a"`, ""), all).Forcing,
		"an image is changed in place where nothing is said")
	assert.Equal(t, []string{force}, Explain(with(`"a:1"`, ""), with(`"a"`, always), all).Forcing)
	assert.Empty(t, Explain(with(`"a:1"`, ""), with(`"a:2"`, ifNotPresent), all).Forcing)
	assert.Equal(t, []string{force}, Explain(with(`"a:1"`, ""), with(`"a:1"`, always), all).Forcing)
}

func TestOrderCountsWhereItShows(t *testing.T) {
	for title, text := range map[string]string{
		"a variable in another":          "containers: [{name: c, image: i, env: [{name: A, value: a}, {name: B, value: $(A)}]}]",
		"a mount in another":             "containers: [{name: c, image: i, volumeMounts: [{name: v, mountPath: /a/}, {name: w, mountPath: /a/b}]}]",
		"a mount in the root":            "containers: [{name: c, image: i, volumeMounts: [{name: v, mountPath: /}, {name: w, mountPath: /a}]}]",
		"two keys of one file":           "volumes: [{name: v, configMap: {items: [{key: a, path: x}, {key: b, path: x}]}}]",
		"two tolerations of one taint":   "tolerations: [{operator: Exists, tolerationSeconds: 1}, {key: a, operator: Exists, effect: NoExecute, tolerationSeconds: 2}]",
		"tolerations with and without":   "tolerations: [{key: a, effect: NoExecute, value: x}, {key: a, operator: Exists, effect: NoExecute, tolerationSeconds: 2}]",
		"two init containers":            "initContainers: [{name: a, image: i}, {name: b, image: i}]",
		"hosts of which the first holds": "hostAliases: [{ip: 1.1.1.1, hostnames: [a]}, {ip: 1.1.1.2, hostnames: [a]}]",
		"sources of variables":           "containers: [{name: c, image: i, envFrom: [{prefix: a}, {prefix: b}]}]",
	} {
		t.Run(title, func(t *testing.T) {
			a := fromYAML(t, "template: {spec: {"+text+"}}")
			b := runtime.DeepCopyJSON(a)
			swapped := false
			lists(b, func(_ string, list []any) {
				if len(list) == 2 {
					list[0], list[1], swapped = list[1], list[0], true
				}
			})
			require.True(t, swapped)
			one, other := dataOf(t, a), dataOf(t, b)
			assert.False(t, one.Same(other))
			assert.NotEmpty(t, Explain(one, other, all).Forcing)
		})
	}
}

// lists calls act with each list in a value and the name of its field, inner ones first.
func lists(value any, act func(field string, list []any)) {
	switch v := value.(type) {
	case map[string]any:
		for _, key := range slices.Sorted(maps.Keys(v)) {
			lists(v[key], act)
			if list, ok := v[key].([]any); ok {
				act(key, list)
			}
		}
	case []any:
		for _, child := range v {
			lists(child, act)
		}
	}
}

// populated is a template in which every field of the core API says something, but for a share of nils, with lists of a
// length.
func populated(t require.TestingT, seed int64, nils float64, length int) map[string]any {
	template := corev1.PodTemplateSpec{}
	quantity := func(q *resource.Quantity, c randfill.Continue) {
		*q = *resource.NewMilliQuantity(c.Int63n(1<<40)+1, resource.DecimalSI)
	}
	randfill.NewWithSeed(seed).NilChance(nils).NumElements(length, length).Funcs(
		quantity,
		func(list *corev1.ResourceList, c randfill.Continue) {
			*list = corev1.ResourceList{}
			for _, name := range []corev1.ResourceName{"cpu", "memory", "example.com/gpu"} {
				var q resource.Quantity
				quantity(&q, c)
				(*list)[name] = q
			}
		},
		func(at *metav1.Time, c randfill.Continue) { *at = metav1.NewTime(time.Unix(c.Int63n(1<<31), 0).UTC()) },
		func(at *metav1.MicroTime, _ randfill.Continue) { *at = metav1.MicroTime{} },
		func(fields *metav1.FieldsV1, _ randfill.Continue) { fields.SetRawString(`{"f:a":{}}`) },
		func(i *intstr.IntOrString, c randfill.Continue) { *i = intstr.FromInt32(c.Int31n(1<<16) + 1) },
		func(text *string, c randfill.Continue) { *text = fmt.Sprintf("s%x", c.Uint64()) },
		func(n *int32, c randfill.Continue) { *n = c.Int31n(1<<20) + 100 },
		func(n *int64, c randfill.Continue) { *n = c.Int63n(1<<20) + 7200 },
		func(yes *bool, _ randfill.Continue) { *yes = true },
		func(operator *corev1.TolerationOperator, _ randfill.Continue) { *operator = corev1.TolerationOpEqual },
	).Fill(&template)
	raw, err := json.Marshal(template)
	require.NoError(t, err)
	var out map[string]any
	require.NoError(t, json.Unmarshal(raw, &out))
	spec := object(out["spec"])
	spec["enableServiceLinks"] = false
	for _, list := range []string{"initContainers", "ephemeralContainers"} { // they are compared as containers are
		for _, container := range objects(spec[list]) {
			maps.DeleteFunc(container, func(field string, _ any) bool { return field != "name" && field != "image" })
		}
	}
	return withText(out).(map[string]any)
}

// withText is a value in which no text is empty.
func withText(value any) any {
	switch v := value.(type) {
	case map[string]any:
		for key, child := range v {
			v[key] = withText(child)
		}
	case []any:
		for i, child := range v {
			v[i] = withText(child)
		}
	case string:
		if v == "" {
			return "x"
		}
	}
	return value
}

// ordered are the lists of which the order counts always.
var ordered = []string{
	"containers", "initContainers", "ephemeralContainers", "command", "args", "envFrom", "restartPolicyRules",
	"httpHeaders",
	"hostAliases", "hostnames", "nameservers", "searches", "options", "sources", "finalizers", "ownerReferences",
	"managedFields",
	"monitors", "portals", "targetWWNs", "wwids", "bindMountOptions", "evictionResponders",
}

func TestOfEachListItIsKnownWhetherItsOrderCounts(t *testing.T) {
	template := populated(t, 1, 0, 2)
	before := dataOf(t, map[string]any{"template": template})
	seen := map[string]bool{}
	lists(template, func(field string, list []any) {
		seen[field] = true
		list[0], list[1] = list[1], list[0]
		same := before.Same(dataOf(t, map[string]any{"template": template}))
		list[0], list[1] = list[1], list[0]
		if same == slices.Contains(ordered, field) {
			t.Error(field)
		}
	})
	for field := range unordered {
		assert.True(t, seen[field], "no Pod has a list %s", field)
	}
}

func TestEveryChangeThatMattersCounts(t *testing.T) {
	template := populated(t, 2, 0, 1)
	before := dataOf(t, map[string]any{"template": template})
	tried := 0
	// What a template says in these does not reach a Pod.
	meansNothing := func(path string) bool {
		path = strings.TrimSuffix(path, " gone")
		return strings.HasSuffix(path, ".metadata.creationTimestamp") || path == "template.spec.serviceAccount"
	}
	ofStrings := []string{"labels", "annotations", "nodeSelector", "matchLabels", "limits", "requests", "overhead",
		"options", "volumeAttributes", "userAnnotations", "fieldsV1"}
	check := func(path string) {
		t.Helper()
		tried++
		after := dataOf(t, map[string]any{"template": template})
		if meansNothing(path) {
			return
		}
		if before.Same(after) || reflect.DeepEqual(Change{}, Explain(before, after, all)) {
			t.Error(path)
		}
	}
	var mutate func(path string, value any, set func(any))
	mutate = func(path string, value any, set func(any)) {
		switch v := value.(type) {
		case map[string]any:
			for key, child := range v {
				at := path + "." + key
				delete(v, key)
				check(at + " gone")
				v[key] = child
				mutate(at, child, func(other any) { v[key] = other })
			}
			if !slices.Contains(ofStrings, path[strings.LastIndexByte(path, '.')+1:]) {
				v["fieldOfTheFuture"] = false
				check(path + ".fieldOfTheFuture")
				delete(v, "fieldOfTheFuture")
			}
			return
		case []any:
			for i, child := range v {
				mutate(fmt.Sprintf("%s[%d]", path, i), child, func(other any) { v[i] = other })
			}
			set(v[1:])
		case string:
			if at, err := time.Parse(time.RFC3339, v); err == nil {
				set(at.Add(time.Hour).Format(time.RFC3339))
			} else if q, err := resource.ParseQuantity(v); err == nil {
				q.Add(resource.MustParse("1"))
				set(q.String())
			} else {
				set(v + "x")
			}
		case float64:
			set(v + 1)
		case bool:
			set(!v)
		}
		check(path)
		set(value)
	}
	mutate("template", template, nil)
	t.Logf("%d changes", tried)
	assert.Greater(t, tried, 1000)
}

func TestWordsMakeNoRevision(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		template := populated(t, rapid.Int64().Draw(t, "seed"),
			rapid.SampledFrom([]float64{0.2, 0.5, 0.9}).Draw(t, "nils"), 2)
		one := dataOf(t, map[string]any{"template": template})
		other := runtime.DeepCopyJSON(template)
		if rapid.Bool().Draw(t, "spell the defaults out") {
			typed := corev1.PodTemplateSpec{}
			convert(other, &typed)
			fill(&typed)
			raw, err := json.Marshal(typed)
			require.NoError(t, err)
			other = nil
			require.NoError(t, json.Unmarshal(raw, &other))
		}
		lists(other, func(field string, list []any) {
			if free := unordered[field]; free != nil && free(list) && len(list) > 1 {
				copy(list, rapid.Permutation(list).Draw(t, field))
			}
		})
		sayNothing(t, one, dataOf(t, map[string]any{"template": other}))
	})
}
