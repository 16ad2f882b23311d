package webhook

import (
	"encoding/base64"
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	jsonpatch "github.com/evanphx/json-patch/v5"
	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/util/cert"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"
	"sigs.k8s.io/yaml"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
)

// ask makes an admission request of YAML. An empty old object means a creation.
func ask(t testing.TB, resource, object, old string) admission.Request {
	t.Helper()
	request := admission.Request{AdmissionRequest: admissionv1.AdmissionRequest{
		UID:       "1",
		Resource:  metav1.GroupVersionResource{Resource: resource},
		Operation: admissionv1.Create,
		Object:    runtime.RawExtension{Raw: toJSON(t, object)},
	}}
	if old != "" {
		request.Operation = admissionv1.Update
		request.OldObject = runtime.RawExtension{Raw: toJSON(t, old)}
	}
	return request
}

func toJSON(t testing.TB, object string) []byte {
	t.Helper()
	raw, err := yaml.YAMLToJSON([]byte(object))
	require.NoError(t, err)
	return raw
}

// patched is the object as the API server has it after the answer.
func patched(t testing.TB, request admission.Request, handle admission.HandlerFunc) string {
	t.Helper()
	response := handle(t.Context(), request)
	require.True(t, response.Allowed)
	require.NoError(t, response.Complete(request))
	if response.Patch == nil {
		return string(request.Object.Raw)
	}
	patch, err := jsonpatch.DecodePatch(response.Patch)
	require.NoError(t, err)
	out, err := patch.Apply(request.Object.Raw)
	require.NoError(t, err)
	return string(out)
}

const gate = podops.ServiceReadyCondition

func TestGatePod(t *testing.T) {
	tests := map[string]struct{ pod, want string }{
		"a managed Pod gets the gate and keeps a field nobody knows": {
			`{metadata: {labels: {kusionstack.io/control: "true"}}, spec: {fieldOfTomorrow: {a: [1]}}}`,
			`{metadata: {labels: {kusionstack.io/control: "true"}}, spec: {fieldOfTomorrow: {a: [1]}, readinessGates: [{conditionType: ` + gate + `}]}}`,
		},
		"null gates are replaced": {
			`{metadata: {labels: {kusionstack.io/control: "true"}}, spec: {readinessGates: null}}`,
			`{metadata: {labels: {kusionstack.io/control: "true"}}, spec: {readinessGates: [{conditionType: ` + gate + `}]}}`,
		},
		"the gate comes after those of others": {
			`{metadata: {labels: {kusionstack.io/control: "true"}}, spec: {readinessGates: [{conditionType: x/y, z: 1}]}}`,
			`{metadata: {labels: {kusionstack.io/control: "true"}}, spec: {readinessGates: [{conditionType: x/y, z: 1}, {conditionType: ` + gate + `}]}}`,
		},
		"a Pod with the gate stays as it is": {
			`{metadata: {labels: {kusionstack.io/control: "true"}}, spec: {readinessGates: [{conditionType: ` + gate + `}]}}`,
			`{metadata: {labels: {kusionstack.io/control: "true"}}, spec: {readinessGates: [{conditionType: ` + gate + `}]}}`,
		},
		"a Pod that is not managed stays as it is": {
			`{metadata: {labels: {kusionstack.io/control: "yes"}}, spec: {}}`,
			`{metadata: {labels: {kusionstack.io/control: "yes"}}, spec: {}}`,
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			request := ask(t, "pods", tc.pod, "")
			got := patched(t, request, (&podMutator{}).mutate)
			require.JSONEq(t, string(toJSON(t, tc.want)), got)
			request.Object.Raw = []byte(got)
			require.JSONEq(t, got, patched(t, request, (&podMutator{}).mutate), "a second time changes nothing")
		})
	}
}

func TestWhatIsNotAskedAboutIsAllowed(t *testing.T) {
	for path, handle := range testHandlers() {
		if path == pathDeletePods || path == pathEvictPods {
			continue // see TestRemovalsThatAreNone
		}
		for name, change := range map[string]func(*admission.Request){
			"another resource":   func(r *admission.Request) { r.Resource.Resource = "widgets" },
			"a subresource":      func(r *admission.Request) { r.SubResource = "status" },
			"another operation":  func(r *admission.Request) { r.Operation = admissionv1.Delete },
			"a connect to a Pod": func(r *admission.Request) { r.Operation = admissionv1.Connect },
		} {
			t.Run(path+" "+name, func(t *testing.T) {
				_, resource, _ := strings.Cut(path[1:], "-")
				request := ask(t, resource, `{}`, "")
				request.Object.Raw = []byte("no JSON")
				response := handle(t.Context(), request)
				require.False(t, response.Allowed, "nonsense is refused")
				require.EqualValues(t, http.StatusBadRequest, response.Result.Code)
				change(&request)
				response = handle(t.Context(), request)
				require.True(t, response.Allowed)
				require.Empty(t, response.Patches)
			})
		}
	}
}

func TestDefaultCollaSet(t *testing.T) {
	tests := map[string]struct{ set, want string }{
		"a rolling update of neither kind is by partition": {
			`{spec: {updateStrategy: {rollingUpdate: {}}, template: {spec: {fieldOfTomorrow: 1}}}}`,
			`{spec: {updateStrategy: {rollingUpdate: {byPartition: {}}}, template: {spec: {fieldOfTomorrow: 1}}}}`,
		},
		"by label stays by label": {
			`{spec: {updateStrategy: {rollingUpdate: {byLabel: {}}}}}`,
			`{spec: {updateStrategy: {rollingUpdate: {byLabel: {}}}}}`,
		},
		"empty words get their meaning": {
			`{spec: {updateStrategy: {podUpgradePolicy: ""}, namingStrategy: {podNamingSuffixPolicy: ""}}}`,
			`{spec: {updateStrategy: {podUpgradePolicy: InPlaceIfPossible}, namingStrategy: {podNamingSuffixPolicy: Random}}}`,
		},
		"what is absent is the schema's affair":           {`{spec: {namingStrategy: {}}}`, `{spec: {namingStrategy: {}}}`},
		"an object without a spec is the schema's affair": {`{}`, `{}`},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			request := ask(t, "collasets", tc.set, "")
			got := patched(t, request, defaultCollaSet)
			require.JSONEq(t, string(toJSON(t, tc.want)), got)
			request.Object.Raw = []byte(got)
			require.JSONEq(t, got, patched(t, request, defaultCollaSet), "a second time changes nothing")
		})
	}
}

const soundSet = `
metadata: {name: web, namespace: shop}
spec:
  replicas: 3
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      fieldOfTomorrow: 1
      volumes: [{name: data, emptyDir: {}}]
      containers:
      - name: main
        image: web:1
        ports: [{name: http, containerPort: 80}]
        env: [{name: A, value: b}]
        volumeMounts: [{name: data, mountPath: /data}]
        resources: {requests: {cpu: 100m}, limits: {cpu: "1"}}
`

// with is the sound object after a JSON patch.
func with(t testing.TB, object, patch string) string {
	t.Helper()
	if patch == "" {
		return object
	}
	p, err := jsonpatch.DecodePatch(toJSON(t, patch))
	require.NoError(t, err)
	out, err := p.Apply(toJSON(t, object))
	require.NoError(t, err)
	return string(out)
}

// answer is what the tables compare: the fields refused, and the warnings.
type answer struct{ Refused, Warnings []string }

func answerOf(t testing.TB, response admission.Response) answer {
	t.Helper()
	got := answer{Warnings: response.Warnings}
	for _, warning := range response.Warnings {
		assert.LessOrEqual(t, len(warning), 160, "API servers cut long warnings")
	}
	if response.Allowed {
		return got
	}
	require.EqualValues(t, http.StatusUnprocessableEntity, response.Result.Code)
	for _, cause := range response.Result.Details.Causes {
		assert.NotEmpty(t, cause.Message)
		assert.Contains(t, response.Result.Message, cause.Message)
		got.Refused = append(got.Refused, cause.Field)
	}
	return got
}

func TestValidateCollaSet(t *testing.T) {
	const container = "/spec/template/spec/containers/0"
	tests := map[string]struct {
		patch string
		want  answer
	}{
		"a sound one is allowed": {"", answer{}},
		"a label of the selector that is none": {`[{op: add, path: /spec/selector/matchLabels, value: {"a b": c}}]`,
			answer{Refused: []string{"spec.selector.matchLabels"}}},
		"an operator without values": {`[{op: add, path: /spec/selector/matchExpressions, value: [{key: app, operator: In}]}]`,
			answer{Refused: []string{"spec.selector.matchExpressions[0].values"}}},
		"an empty selector": {`[{op: replace, path: /spec/selector, value: {}}]`,
			answer{Refused: []string{"spec.selector"}}},
		"a template that the selector does not match": {`[{op: replace, path: /spec/template/metadata/labels, value: {app: other}}]`,
			answer{Refused: []string{"spec.selector"}}},
		"a label value that is too long": {`[{op: add, path: /spec/template/metadata/labels/x, value: "` + strings.Repeat("x",
			64) + `"}]`,
			answer{Refused: []string{"spec.template.metadata.labels"}}},
		"an annotation whose key is none": {`[{op: add, path: /spec/template/metadata/annotations, value: {"a b": c}}]`,
			answer{Refused: []string{"spec.template.metadata.annotations"}}},
		"two containers of one name": {`[{op: add, path: /spec/template/spec/initContainers, value: [{name: main, image: x}]}]`,
			answer{Refused: []string{"spec.template.spec.containers[0].name"}}},
		"a container without a name": {`[{op: remove, path: ` + container + `/name}]`,
			answer{Refused: []string{"spec.template.spec.containers[0].name"}}},
		"a container name with capitals": {`[{op: replace, path: ` + container + `/name, value: Main}]`,
			answer{Refused: []string{"spec.template.spec.containers[0].name"}}},
		"an image with a space": {`[{op: replace, path: ` + container + `/image, value: "web:1 "}]`,
			answer{Refused: []string{"spec.template.spec.containers[0].image"}}},
		"a port out of range, and a port name twice": {`[{op: add, path: ` + container +
			`/ports/-, value: {name: http, containerPort: 70000}}]`,
			answer{Refused: []string{"spec.template.spec.containers[0].ports[1].containerPort",
				"spec.template.spec.containers[0].ports[1].name"}}},
		"a variable that is no variable": {`[{op: replace, path: ` + container + `/env/0/name, value: "A=B"}]`,
			answer{Refused: []string{"spec.template.spec.containers[0].env[0].name"}}},
		"a variable with two sources": {`[{op: add, path: ` + container +
			`/env/0/valueFrom, value: {fieldRef: {fieldPath: metadata.name}}}]`,
			answer{Refused: []string{"spec.template.spec.containers[0].env[0]"}}},
		"a mount of a volume that is not there": {`[{op: replace, path: ` + container + `/volumeMounts/0/name, value: log}]`,
			answer{Refused: []string{"spec.template.spec.containers[0].volumeMounts[0].name"}}},
		"two mounts at one path": {`[{op: add, path: ` + container +
			`/volumeMounts/-, value: {name: data, mountPath: /data}}, {op: add, path: ` + container +
			`/volumeMounts/-, value: {name: data}}]`,
			answer{Refused: []string{"spec.template.spec.containers[0].volumeMounts[1].mountPath",
				"spec.template.spec.containers[0].volumeMounts[2].mountPath"}}},
		"a request above its limit": {`[{op: replace, path: ` + container + `/resources/requests/cpu, value: "2"}]`,
			answer{Refused: []string{"spec.template.spec.containers[0].resources.requests[cpu]"}}},
		"a negative quantity": {`[{op: replace, path: ` + container + `/resources, value: {limits: {memory: "-1"}}}]`,
			answer{Refused: []string{"spec.template.spec.containers[0].resources.limits[memory]"}}},
		"two volumes of one name": {`[{op: add, path: /spec/template/spec/volumes/-, value: {name: data}}]`,
			answer{Refused: []string{"spec.template.spec.volumes[1].name"}}},
		"words that are none": {`[{op: add, path: /spec/template/spec/restartPolicy, value: Sometimes}, {op: add, path: /spec/template/spec/serviceAccountName, value: "A B"},
			{op: add, path: /spec/template/spec/hostname, value: a.b}, {op: add, path: /spec/template/spec/terminationGracePeriodSeconds, value: -1}]`,
			answer{Refused: []string{"spec.template.spec.restartPolicy", "spec.template.spec.terminationGracePeriodSeconds",
				"spec.template.spec.serviceAccountName", "spec.template.spec.hostname"}}},
		"a readiness gate twice": {`[{op: add, path: /spec/template/spec/readinessGates, value: [{conditionType: a/b}, {conditionType: a/b}]}]`,
			answer{Refused: []string{"spec.template.spec.readinessGates[1].conditionType"}}},
		"ephemeral containers": {`[{op: add, path: /spec/template/spec/ephemeralContainers, value: [{name: x, image: tool:1}]}]`,
			answer{Refused: []string{"spec.template.spec.ephemeralContainers"}}},
		"a node selector that is none": {`[{op: add, path: /spec/template/spec/nodeSelector, value: {"a b": c}}]`,
			answer{Refused: []string{"spec.template.spec.nodeSelector"}}},
		"a name that is too long for a label with a hash": {`[{op: replace, path: /metadata/name, value: "` +
			strings.Repeat("x", 53) + `"}]`,
			answer{Refused: []string{"metadata.name"}}},
		"a name with dots that becomes a hostname": {`[{op: replace, path: /metadata/name, value: a.b}, {op: add, path: /spec/namingStrategy, value: {podNamingSuffixPolicy: PersistentSequence}}]`,
			answer{Refused: []string{"metadata.name"}}},
		"what is no Pod name, and no pool name": {`[{op: add, path: /spec/scaleStrategy, value: {context: "A", podToDelete: [web-1, "web 2"], podToExclude: [""], podToInclude: [a/b]}}]`,
			answer{Refused: []string{"spec.scaleStrategy.podToExclude[0]", "spec.scaleStrategy.podToInclude[0]",
				"spec.scaleStrategy.podToDelete[1]", "spec.scaleStrategy.context"}}},
		"a claim template without size and mode, mounted": {`[{op: add, path: /spec/volumeClaimTemplates, value: [{metadata: {name: disk}}]}, {op: replace, path: ` + container + `/volumeMounts/0/name, value: disk}]`,
			answer{Refused: []string{"spec.volumeClaimTemplates[0].spec.accessModes",
				"spec.volumeClaimTemplates[0].spec.resources.requests[storage]"}}},
		"two ways to choose Pods are allowed with a warning": {`[{op: add, path: /spec/updateStrategy, value: {podUpgradePolicy: Replace, rollingUpdate: {byLabel: {}, byPartition: {partition: 1}}}}]`,
			answer{Warnings: []string{"spec.updateStrategy.rollingUpdate sets byLabel and byPartition: byLabel wins, the partition is ignored"}}},
		"a failure policy with the default deadline": {`[{op: add, path: /spec/updateStrategy, value: {failurePolicy: Rollback}}]`, answer{}},
		"a failure policy without a deadline": {`[{op: add, path: /spec/updateStrategy, value: {failurePolicy: Rollback}}, {op: add, path: /spec/progressDeadlineSeconds, value: 2147483647}]`,
			answer{Warnings: []string{"spec.updateStrategy.failurePolicy Rollback does nothing: spec.progressDeadlineSeconds 2147483647 means no deadline"}}},
		"a partition that holds back everything": {`[{op: add, path: /spec/updateStrategy, value: {rollingUpdate: {byPartition: {partition: 4}}}}]`,
			answer{Warnings: []string{"spec.updateStrategy.rollingUpdate.byPartition.partition 4 holds back all 3 Pods: none is updated"}}},
		"what is said twice": {`[{op: add, path: ` + container + `/env/-, value: {name: A, value: c}},
			{op: add, path: /spec/template/spec/hostAliases, value: [{ip: 1.1.1.1, hostnames: [a]}, {ip: 1.1.1.1, hostnames: [b]}]}]`,
			answer{Warnings: []string{
				"spec.template.spec.containers[main].env has A more than once: the last one counts",
				"spec.template.spec.hostAliases has 1.1.1.1 more than once: the hosts of all count",
			}}},
		"a long name twice": {`[{op: add, path: ` + container + `/env, value: [{name: ` + strings.Repeat("A", 200) +
			`}, {name: ` + strings.Repeat("A", 200) + `}]}]`,
			answer{Warnings: []string{"spec.template.spec.containers[main].env has a name more than once: the last one counts"}}},
		"a claim template with the name of a volume": {`[{op: add, path: /spec/volumeClaimTemplates, value: [{metadata: {name: data}, spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}}]}]`,
			answer{Warnings: []string{"spec.template.spec.volumes[data] is not used: the claim template of that name takes its place"}}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got := answerOf(t, validateCollaSet(t.Context(), ask(t, "collasets", with(t, soundSet, tc.patch), "")))
			require.Empty(t, cmp.Diff(tc.want, got))
		})
	}
}

func TestUpdates(t *testing.T) {
	broken := with(t, soundSet, `[{op: replace, path: /spec/template/spec/containers/0/name, value: Main}]`)
	tests := map[string]struct {
		old, patch string
		want       answer
	}{
		"a broken spec that stays is allowed": {broken,
			`[{op: add, path: /metadata/finalizers, value: [a/b]}]`, answer{}},
		"a broken object that is being deleted is allowed": {soundSet,
			`[{op: add, path: /metadata/deletionTimestamp, value: "2030-01-01T00:00:00Z"}, {op: replace, path: /spec/template/spec/containers/0/name, value: Main}]`, answer{}},
		"a change of a broken spec is checked": {broken, `[{op: replace, path: /spec/replicas, value: 4}]`,
			answer{Refused: []string{"spec.template.spec.containers[0].name"}}},
		"names in sequence are refused for a name with dots": {with(t, soundSet,
			`[{op: replace, path: /metadata/name, value: a.b}]`),
			`[{op: add, path: /spec/namingStrategy, value: {podNamingSuffixPolicy: PersistentSequence}}]`,
			answer{Refused: []string{"metadata.name"}}},
		"a set that has them already can change": {with(t, soundSet,
			`[{op: replace, path: /metadata/name, value: a.b}, {op: add, path: /spec/namingStrategy, value: {podNamingSuffixPolicy: PersistentSequence}}]`),
			`[{op: replace, path: /spec/replicas, value: 4}]`, answer{}},
		"a long name is checked at creation only": {with(t, soundSet,
			`[{op: replace, path: /metadata/name, value: "`+strings.Repeat("x", 60)+`"}]`),
			`[{op: replace, path: /spec/replicas, value: 4}]`, answer{}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got := answerOf(t, validateCollaSet(t.Context(), ask(t, "collasets", with(t, tc.old, tc.patch), tc.old)))
			require.Empty(t, cmp.Diff(tc.want, got))
		})
	}
}

func TestErrorsNameFieldValueAndRemedy(t *testing.T) {
	response := validateCollaSet(t.Context(),
		ask(t, "collasets",
			with(t, soundSet, `[{op: replace, path: /spec/template/spec/containers/0/resources/requests/cpu, value: "2"}]`), ""))
	require.Equal(t,
		`CollaSet.apps.kusionstack.io "web" is invalid: spec.template.spec.containers[0].resources.requests[cpu]: Invalid value: "2": `+
			`it is more than the limit 1: lower it, or raise the limit`, response.Result.Message)
}

func encoded(text string) string { return base64.StdEncoding.EncodeToString([]byte(text)) }

func TestValidatePodTransitionRule(t *testing.T) {
	certificate, key, err := cert.GenerateSelfSignedCertKey("hooks.example.test", nil, nil)
	require.NoError(t, err)
	const sound = `{metadata: {name: r}, spec: {selector: {matchLabels: {app: web}}, rules: [{name: a, availablePolicy: {maxUnavailableValue: 25%}}]}}`
	hook := func(config string) string {
		return `[{op: replace, path: /spec/rules/0, value: {name: a, webhook: {clientConfig: ` + config + `}}}]`
	}
	tests := map[string]struct {
		patch string
		want  answer
	}{
		"a sound one is allowed":         {"", answer{}},
		"an empty selector is every Pod": {`[{op: replace, path: /spec/selector, value: {}}]`, answer{}},
		"selectors with mistakes": {`[{op: replace, path: /spec/selector, value: {matchLabels: {a: "b c"}}},
			{op: add, path: /spec/rules/-, value: {name: b, filter: {labelSelector: {matchExpressions: [{key: a, operator: Like, values: [b]}]}}, labelCheck: {requires: {matchExpressions: [{key: a, operator: Exists, values: [b]}]}}}}]`,
			answer{Refused: []string{"spec.selector.matchLabels",
				"spec.rules[1].filter.labelSelector.matchExpressions[0].operator",
				"spec.rules[1].labelCheck.requires.matchExpressions[0].values"}}},
		"no rules": {`[{op: remove, path: /spec/rules}]`,
			answer{Warnings: []string{"spec.rules is empty: every Pod passes"}}},
		"a rule of no kind": {`[{op: remove, path: /spec/rules/0/availablePolicy}]`,
			answer{Warnings: []string{"spec.rules[0] demands nothing: set availablePolicy, labelCheck or webhook"}}},
		"a rule of two kinds": {`[{op: add, path: /spec/rules/0/labelCheck, value: {requires: {matchLabels: {a: b}}}}]`,
			answer{Warnings: []string{"spec.rules[0] sets availablePolicy and labelCheck: only availablePolicy is used"}}},
		"conditions": {`[{op: add, path: /spec/rules/0/conditions, value: [x]}]`,
			answer{Warnings: []string{"spec.rules[0].conditions names conditions that are not registered: the rule applies to no Pod"}}},
		"a topology key that is no label": {`[{op: replace, path: /spec/rules/0/availablePolicy, value: {topology: {topologyKey: "zone of node"}}}]`,
			answer{Refused: []string{"spec.rules[0].availablePolicy.topology.topologyKey"}}},
		"a budget of zones, and numbers of expFunc": {`[{op: replace, path: /spec/rules/0/availablePolicy, value: {topology: {topologyKey: topology.kubernetes.io/zone}, maxUnavailablePolicy: {expFunc: {coeff: "0.5", pow: "0.7"}}}}]`, answer{}},
		"keys of groups that are no labels": {`[{op: replace, path: /spec/rules/0/availablePolicy, value: {groups: {groupKey: "group of Pod", setKey: "a/b/c"}}}]`,
			answer{Refused: []string{"spec.rules[0].availablePolicy.groups.groupKey", "spec.rules[0].availablePolicy.groups.setKey"}}},
		"a budget of groups":             {`[{op: replace, path: /spec/rules/0/availablePolicy, value: {groups: {groupKey: leaderworkerset.sigs.k8s.io/group-index}}}]`, answer{}},
		"a budget of groups within sets": {`[{op: replace, path: /spec/rules/0/availablePolicy, value: {groups: {groupKey: leaderworkerset.sigs.k8s.io/group-index, setKey: leaderworkerset.sigs.k8s.io/name}}}]`, answer{}},
		"numbers of expFunc that are none": {`[{op: replace, path: /spec/rules/0/availablePolicy, value: {minAvailablePolicy: {expFunc: {coeff: "-1", pow: "1e3"}}}}]`,
			answer{Refused: []string{"spec.rules[0].availablePolicy.minAvailablePolicy.expFunc.coeff",
				"spec.rules[0].availablePolicy.minAvailablePolicy.expFunc.pow"}}},
		"credentials over https": {hook(
			`{url: "https://hooks.example.test", poll: {url: "https://hooks.example.test"}, secretName: hook}`), answer{}},
		"credentials over http": {hook(
			`{url: "https://hooks.example.test", poll: {url: "http://hooks.example.test"}, secretName: hook}`),
			answer{Refused: []string{"spec.rules[0].webhook.clientConfig.poll.url"}}},
		"credentials over http at once": {hook(`{url: "http://hooks.example.test", secretName: hook}`),
			answer{Refused: []string{"spec.rules[0].webhook.clientConfig.url"}}},
		"credentials in no Secret that can be": {hook(`{url: "https://hooks.example.test", secretName: "other/hook"}`),
			answer{Refused: []string{"spec.rules[0].webhook.clientConfig.secretName"}}},
		"a webhook that nobody answers at is no error": {hook(`{url: "https://127.0.0.1:1/a", caBundle: "` +
			encoded(string(certificate)) + `", poll: {url: "http://hooks.example.test/poll", caBundle: Cg==}}`),
			answer{}},
		"a port out of range": {hook(`{url: "https://hooks.example.test:70000"}`),
			answer{Refused: []string{"spec.rules[0].webhook.clientConfig.url"}}},
		"a URL that cannot be read": {hook(`{url: "https://[::1"}`),
			answer{Refused: []string{"spec.rules[0].webhook.clientConfig.url"}}},
		"a password in the URL": {hook(`{url: "http://user:hunter2@hooks.example.test", secretName: hook}`),
			answer{Refused: []string{"spec.rules[0].webhook.clientConfig.url"}}},
		"a poll of another scheme": {hook(`{url: "https://hooks.example.test", poll: {url: "file:///etc/passwd"}}`),
			answer{Refused: []string{"spec.rules[0].webhook.clientConfig.poll.url"}}},
		"a bundle that is no base64": {hook(`{url: "https://hooks.example.test", caBundle: "%%"}`),
			answer{Refused: []string{"spec.rules[0].webhook.clientConfig.caBundle"}}},
		"a bundle that is no PEM": {hook(`{url: "https://hooks.example.test", caBundle: "` + encoded("hello") + `"}`),
			answer{Refused: []string{"spec.rules[0].webhook.clientConfig.caBundle"}}},
		"a bundle with a key": {hook(`{url: "https://hooks.example.test", caBundle: "` +
			encoded(string(certificate)+string(key)) + `"}`),
			answer{Refused: []string{"spec.rules[0].webhook.clientConfig.caBundle"}}},
		"a bundle with a broken certificate": {hook(`{url: "https://hooks.example.test", caBundle: "` +
			encoded("-----BEGIN CERTIFICATE-----\naGVsbG8=\n-----END CERTIFICATE-----\n") + `"}`),
			answer{Refused: []string{"spec.rules[0].webhook.clientConfig.caBundle"}}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			response := validatePodTransitionRule(t.Context(), ask(t, "podtransitionrules", with(t, sound, tc.patch), ""))
			require.Empty(t, cmp.Diff(tc.want, answerOf(t, response)))
			if response.Result != nil {
				require.NotContains(t, response.Result.Message, "hunter2")
			}
		})
	}
	t.Run("the finalizer of a rule with a mistake can be removed", func(t *testing.T) {
		broken := with(t, sound,
			`[{op: replace, path: /spec/selector, value: {matchLabels: {a: "b c"}}}, {op: add, path: /metadata/finalizers, value: [a/b]}]`)
		require.True(t, validatePodTransitionRule(t.Context(),
			ask(t, "podtransitionrules", with(t, broken, `[{op: remove, path: /metadata/finalizers}]`), broken)).Allowed)
	})
}

func TestValidateResourceContext(t *testing.T) {
	tests := map[string]struct {
		pool, old string
		want      answer
	}{
		"a pool shared by two CollaSets of other names": {`{metadata: {name: pool}, spec: {contexts: [{id: 0, data: {Owner: a}}, {id: 1, data: {Owner: b}}]}}`, "", answer{}},
		"an empty pool": {`{metadata: {name: pool}}`, "", answer{}},
		"an ID twice": {`{metadata: {name: pool}, spec: {contexts: [{id: 4, data: {Owner: a}}, {id: 4, data: {Owner: b}}]}}`,
			"",
			answer{Refused: []string{"spec.contexts[1].id"}}},
		"an ID twice that was there before, with other metadata": {`{metadata: {name: pool, labels: {a: b}}, spec: {contexts: [{id: 4}, {id: 4}]}}`,
			`{metadata: {name: pool}, spec: {contexts: [{id: 4}, {id: 4}]}}`, answer{}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			require.Empty(t,
				cmp.Diff(tc.want, answerOf(t, validateResourceContext(t.Context(), ask(t, "resourcecontexts", tc.pool, tc.old)))))
		})
	}
}

// The manifest and the code must agree, and nothing of ours may stand in the way of other users' Pods.
func TestManifestMatchesTheHandlers(t *testing.T) {
	raw, err := os.ReadFile(filepath.Join("..", "..", "deploy", "webhook-server", "webhooks.yaml"))
	require.NoError(t, err)
	mutating, validating, found := strings.Cut(string(raw), "\n---\n")
	require.True(t, found)
	var m admissionregistrationv1.MutatingWebhookConfiguration
	var v admissionregistrationv1.ValidatingWebhookConfiguration
	require.NoError(t, yaml.UnmarshalStrict([]byte(mutating), &m))
	require.NoError(t, yaml.UnmarshalStrict([]byte(validating), &v))
	require.Equal(t, []string{Name, Name}, []string{m.Name, v.Name})

	paths := map[string]bool{}
	// The server itself writes the paths.
	pathOf := func(name string, config admissionregistrationv1.WebhookClientConfig) string {
		assert.Nil(t, config.Service.Path, "to apply the manifest again would take the token away")
		return guarded[name]
	}
	common := func(name string, config admissionregistrationv1.WebhookClientConfig,
		policy *admissionregistrationv1.FailurePolicyType, effects *admissionregistrationv1.SideEffectClass, seconds *int32,
		rules []admissionregistrationv1.RuleWithOperations, conditions []admissionregistrationv1.MatchCondition) {
		t.Helper()
		path := pathOf(name, config)
		paths[path] = true
		assert.Equal(t, Name, config.Service.Name)
		assert.Equal(t, admissionregistrationv1.Ignore, *policy)
		marks := slices.Contains([]string{pathDeletePods, pathEvictPods}, path)
		assert.Equal(t, marks, *effects == admissionregistrationv1.SideEffectClassNoneOnDryRun)
		assert.Equal(t, !marks, *effects == admissionregistrationv1.SideEffectClassNone)
		assert.LessOrEqual(t, *seconds, int32(5))
		assert.Equal(t, path != pathMutatePods && path != pathDecoratePods, len(conditions) > 0, path)
		for _, rule := range rules {
			for _, resource := range rule.Resources {
				if resource != "pods/eviction" {
					assert.NotContains(t, resource, "/", "status and other subresources never pass through us")
				}
				assert.NotContains(t, resource, "*")
			}
		}
	}
	for _, w := range m.Webhooks {
		common("mutating "+w.Name, w.ClientConfig, w.FailurePolicy, w.SideEffects, w.TimeoutSeconds, w.Rules,
			w.MatchConditions)
	}
	for _, w := range v.Webhooks {
		common("validating "+w.Name, w.ClientConfig, w.FailurePolicy, w.SideEffects, w.TimeoutSeconds, w.Rules,
			w.MatchConditions)
	}
	served := map[string]bool{}
	for path := range testHandlers() {
		served[path] = true
	}
	require.Equal(t, served, paths)
	pods := m.Webhooks[0]
	require.Equal(t, map[string]string{"kusionstack.io/control": "true"}, pods.ObjectSelector.MatchLabels)
	require.Equal(t, []admissionregistrationv1.OperationType{admissionregistrationv1.Create}, pods.Rules[0].Operations)
	deletion := v.Webhooks[slices.IndexFunc(v.Webhooks, func(w admissionregistrationv1.ValidatingWebhook) bool {
		return pathOf("validating "+w.Name, w.ClientConfig) == pathDeletePods
	})]
	require.Equal(t, pods.ObjectSelector, deletion.ObjectSelector)
	require.Equal(t, pods.NamespaceSelector, deletion.NamespaceSelector)
	others := m.Webhooks[slices.IndexFunc(m.Webhooks, func(w admissionregistrationv1.MutatingWebhook) bool {
		return pathOf("mutating "+w.Name, w.ClientConfig) == pathDecoratePods
	})]
	managed := labels.Set{appsv1alpha1.ControlLabel: appsv1alpha1.ControlValue}
	selector, err := metav1.LabelSelectorAsSelector(others.ObjectSelector)
	require.NoError(t, err)
	require.True(t, selector.Matches(labels.Set{}))
	require.False(t, selector.Matches(managed), "no Pod is sent twice")
	asked, err := metav1.LabelSelectorAsSelector(others.NamespaceSelector)
	require.NoError(t, err)
	require.False(t, asked.Matches(labels.Set{}), "other Pods only where a namespace asks for it")
	require.True(t, asked.Matches(labels.Set{appsv1alpha1.DecorateAllPodsLabel: "true"}))
}

func TestFlags(t *testing.T) {
	tests := map[string]struct {
		args []string
		want string
	}{
		"the defaults are fine": {nil, ""},
		"a local process": {[]string{"--webhook-bind-address=127.0.0.1",
			"--advertise-url=https://127.0.0.1:9443"}, ""},
		"a URL of another scheme":         {[]string{"--advertise-url=http://127.0.0.1:9443"}, "--advertise-url"},
		"a URL with a path":               {[]string{"--advertise-url=https://127.0.0.1:9443/x"}, "--advertise-url"},
		"a bind address that is none":     {[]string{"--webhook-bind-address=localhost:1"}, "--webhook-bind-address"},
		"a port that is none":             {[]string{"--webhook-port=0"}, "--webhook-port"},
		"a life too short for a rotation": {[]string{"--webhook-cert-lifetime=5m"}, "--webhook-cert-lifetime"},
		"a settle time of nothing":        {[]string{"--webhook-cert-settle=0s"}, "--webhook-cert-settle"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			var f flags
			fs := pflag.NewFlagSet(Name, pflag.ContinueOnError)
			f.add(fs)
			require.NoError(t, fs.Parse(tc.args))
			err := f.validate()
			if tc.want == "" {
				require.NoError(t, err)
			} else {
				require.ErrorContains(t, err, tc.want+" is")
			}
		})
	}
}

func FuzzHandlersNeverPanic(f *testing.F) {
	f.Add([]byte(`{"metadata":{"labels":{"kusionstack.io/control":"true"}},"spec":{"readinessGates":[{}]}}`),
		[]byte(`{"spec":{"rules":[null]}}`))
	f.Add([]byte(`{"spec":null}`), []byte(`{"spec":{"contexts":[{"id":1},{"id":1}]}}`))
	f.Fuzz(func(t *testing.T, object, old []byte) {
		for path, handle := range testHandlers() {
			_, resource, _ := strings.Cut(path[1:], "-")
			for _, operation := range []admissionv1.Operation{admissionv1.Create, admissionv1.Update} {
				request := admission.Request{AdmissionRequest: admissionv1.AdmissionRequest{
					Resource: metav1.GroupVersionResource{Resource: resource}, Operation: operation,
					Object: runtime.RawExtension{Raw: object}, OldObject: runtime.RawExtension{Raw: old},
				}}
				response := handle(t.Context(), request)
				if len(response.Patches) > 0 && json.Valid(object) {
					once := patched(t, request, handle)
					request.Object.Raw = []byte(once)
					require.JSONEq(t, once, patched(t, request, handle))
				}
			}
		}
	})
}
