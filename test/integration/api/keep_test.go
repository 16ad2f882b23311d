package api

import (
	"context"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

var kinds = []string{"collaset", "operationjob", "poddecoration", "podtransitionrule", "resourcecontext"}

// ways are how manifests get to the API server, unknown fields being an error as with kubectl.
var ways = map[string]func(context.Context, *unstructured.Unstructured) error{
	"applied on the server": func(ctx context.Context, object *unstructured.Unstructured) error {
		return cluster.Apply(ctx, client.ApplyConfigurationFromUnstructured(object), client.FieldOwner("test"))
	},
	"created": func(ctx context.Context, object *unstructured.Unstructured) error {
		return cluster.Create(ctx, object, client.FieldValidation("Strict"))
	},
}

func TestManifestsOfKuperatorAreKept(t *testing.T) {
	for _, kind := range kinds {
		for way, write := range ways {
			t.Run(kind+" with every field, "+way, func(t *testing.T) {
				object, status := every(t, kind)
				object.SetNamespace(newNamespace(t))
				want := object.DeepCopy()
				require.NoError(t, write(t.Context(), object.DeepCopy()))
				got := fetch(t.Context(), t, object)
				if diff := cmp.Diff(want.Object["spec"], got.Object["spec"]); diff != "" {
					t.Errorf("the spec changed (-manifest +stored):\n%s", diff)
				}
				if status == nil {
					return
				}
				got.Object["status"] = status
				require.NoError(t, cluster.Status().Update(t.Context(), got.DeepCopy(), &client.SubResourceUpdateOptions{
					UpdateOptions: client.UpdateOptions{FieldValidation: "Strict"},
				}))
				want.Object["status"] = counted(t, kind, status)
				if diff := cmp.Diff(want.Object["status"], fetch(t.Context(), t, object).Object["status"]); diff != "" {
					t.Errorf("the status changed (-manifest +stored):\n%s", diff)
				}
			})
		}
	}
}

// notOfKuperator are the fields that this project adds to Kuperator's, and so not in the manifests of testdata.
var notOfKuperator = map[string][]string{
	"collaset": {
		"spec.disruption", "spec.minReadySeconds", "spec.progressDeadlineSeconds", "spec.updateStrategy.maxSurge",
		"spec.updateStrategy.rollingUpdate.maxUnavailable", "spec.updateStrategy.failurePolicy",
		"spec.scaleStrategy.persistentVolumeClaimRetentionPolicy.whenTemplateChanged", "status.lastProgressTime",
		"status.halted", "spec.updateStrategy.followConfiguration", "status.configuration",
		"status.nextUpdate", "status.selector", "status.blockers", "status.conditions.observedGeneration",
		"status.readiness",
	},
	"operationjob": {
		"spec.targetSelector", "spec.parallelism", "spec.failurePolicy", "spec.restart", "status.conditions",
		"status.targetDetails.operation",
	},
	"poddecoration": {
		"spec.required", "spec.progressDeadlineSeconds", "spec.updateStrategy.paused", "spec.updateStrategy.podUpgradePolicy",
		"spec.updateStrategy.failurePolicy", "spec.updateStrategy.rollingUpdate.maxUnavailable", "status.details.workload",
		"status.lastProgressTime", "status.halted", "status.pilot", "status.nextUpdate", "status.conditions",
		"status.blockers",
	},
	"podtransitionrule": {
		"status.conditions", "status.desired", "status.available", "status.granted", "status.blocked", "status.grants",
		"spec.mirrorPodDisruptionBudget", "spec.rules.availablePolicy.topology", "spec.rules.availablePolicy.groups",
		"spec.rules.webhook.clientConfig.secretName",
		"status.ruleStates.webhookStatus.taskStates.subjects", "status.ruleStates.webhookStatus.history.subjects",
	},
}

// TestManifestsHaveEveryField holds the manifests of testdata to their promise: it walks the schemas, but not into the
// Pod template and the claims.
func TestManifestsHaveEveryField(t *testing.T) {
	for _, kind := range kinds {
		t.Run(kind, func(t *testing.T) {
			object, status := every(t, kind)
			schema := schemaOf(t, kind)
			var missing []string
			lookFor(schema.Properties["spec"], "spec", []any{object.Object["spec"]}, notOfKuperator[kind], &missing)
			if status != nil {
				lookFor(schema.Properties["status"], "status", []any{status}, notOfKuperator[kind], &missing)
			}
			require.Empty(t, missing, "set these fields in testdata, or list them as additions")
		})
	}
}

// lookFor reports the properties of a schema that none of the values at its path has.
func lookFor(schema apiextensionsv1.JSONSchemaProps, path string, values []any, except []string, missing *[]string) {
	if slices.Contains(except, path) {
		return
	}
	if len(values) == 0 {
		*missing = append(*missing, path)
		return
	}
	if schema.Items != nil {
		var items []any
		for _, value := range values {
			items = append(items, value.([]any)...)
		}
		lookFor(*schema.Items.Schema, path, items, except, missing)
		return
	}
	if schema.XPreserveUnknownFields != nil {
		return
	}
	for name, property := range schema.Properties {
		var found []any
		for _, value := range values {
			if child, ok := value.(map[string]any)[name]; ok {
				found = append(found, child)
			}
		}
		lookFor(property, path+"."+name, found, except, missing)
	}
}

func TestDefaultsAreThoseOfKuperator(t *testing.T) {
	tests := map[string]struct{ manifest, want string }{
		"a CollaSet that says as little as possible": {
			manifest: `
apiVersion: apps.kusionstack.io/v1alpha1
kind: CollaSet
metadata: {name: small}
spec:
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec: {containers: [{name: web, image: nginx, ports: [{containerPort: 80}]}]}`,
			want: `
replicas: 0
historyLimit: 20
selector: {matchLabels: {app: web}}
template:
  metadata: {labels: {app: web}}
  spec: {containers: [{name: web, image: nginx, ports: [{containerPort: 80}]}]}
updateStrategy: {podUpgradePolicy: InPlaceIfPossible, rollingUpdate: {byPartition: {}}}`,
		},
		"a CollaSet updated by label with an empty naming strategy and no history": {
			manifest: `
apiVersion: apps.kusionstack.io/v1alpha1
kind: CollaSet
metadata: {name: bylabel}
spec:
  replicas: 2
  historyLimit: 0
  namingStrategy: {}
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec: {containers: [{name: web, image: nginx}]}
  updateStrategy: {rollingUpdate: {byLabel: {}}}`,
			want: `
replicas: 2
historyLimit: 0
namingStrategy: {podNamingSuffixPolicy: Random}
selector: {matchLabels: {app: web}}
template:
  metadata: {labels: {app: web}}
  spec: {containers: [{name: web, image: nginx}]}
updateStrategy: {podUpgradePolicy: InPlaceIfPossible, rollingUpdate: {byLabel: {}}}`,
		},
		"a webhook rule that polls": {
			manifest: `
apiVersion: apps.kusionstack.io/v1alpha1
kind: PodTransitionRule
metadata: {name: small}
spec:
  selector: {}
  rules:
  - name: ask
    webhook: {clientConfig: {url: "http://a/b", poll: {url: "http://a/c"}}}`,
			want: `
selector: {}
rules:
- name: ask
  webhook:
    failurePolicy: Ignore
    clientConfig: {url: "http://a/b", poll: {url: "http://a/c", intervalSeconds: 5, timeoutSeconds: 60}}`,
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			object, _ := parse(t, tc.manifest)
			object.SetNamespace(newNamespace(t))
			require.NoError(t, cluster.Create(t.Context(), object))
			want, _ := parse(t, "apiVersion: v1\nkind: Want\nspec:"+indent(tc.want))
			if diff := cmp.Diff(want.Object["spec"], object.Object["spec"]); diff != "" {
				t.Errorf("(-want +stored):\n%s", diff)
			}
		})
	}
}

func TestUnknownPodFieldsSurvive(t *testing.T) {
	for way, write := range ways {
		t.Run("fields of a later Kubernetes are kept when "+way, func(t *testing.T) {
			object, _ := every(t, "collaset")
			object.SetNamespace(newNamespace(t))
			template := object.Object["spec"].(map[string]any)["template"].(map[string]any)
			pod := template["spec"].(map[string]any)
			template["metadata"].(map[string]any)["creationTimestamp"] = nil // Kuperator stored this
			pod["futureField"] = map[string]any{"a": []any{int64(1), "b"}}
			container := pod["containers"].([]any)[0].(map[string]any)
			container["futureField"] = "x"
			container["readinessProbe"].(map[string]any)["futureProbe"] = map[string]any{"depth": int64(2)}
			claim := object.Object["spec"].(map[string]any)["volumeClaimTemplates"].([]any)[0].(map[string]any)
			claim["spec"].(map[string]any)["futureField"] = true
			claim["status"] = map[string]any{}
			want := object.DeepCopy()
			require.NoError(t, write(t.Context(), object.DeepCopy()))
			got := fetch(t.Context(), t, object)
			if diff := cmp.Diff(want.Object["spec"], got.Object["spec"]); diff != "" {
				t.Errorf("the spec changed (-manifest +stored):\n%s", diff)
			}
		})
	}
}

func TestApplyMergesContainersByName(t *testing.T) {
	object, _ := every(t, "collaset")
	object.SetNamespace(newNamespace(t))
	require.NoError(t, cluster.Apply(t.Context(), client.ApplyConfigurationFromUnstructured(object.DeepCopy()),
		client.FieldOwner("first")))
	second, _ := parse(t, `
apiVersion: apps.kusionstack.io/v1alpha1
kind: CollaSet
metadata: {name: every-field}
spec: {template: {spec: {containers: [{name: agent, image: "agent:1"}]}}}`)
	second.SetNamespace(object.GetNamespace())
	require.NoError(t, cluster.Apply(t.Context(), client.ApplyConfigurationFromUnstructured(second),
		client.FieldOwner("second")))
	containers, _, err := unstructured.NestedSlice(fetch(t.Context(), t, object).Object, "spec", "template", "spec",
		"containers")
	require.NoError(t, err)
	var names []string
	for _, container := range containers {
		names = append(names, container.(map[string]any)["name"].(string))
	}
	require.ElementsMatch(t, []string{"web", "sidecar", "agent"}, names)
}

// TestApplyTakesVariablesAsAWhole shows the price of variables that may be there twice.
func TestApplyTakesVariablesAsAWhole(t *testing.T) {
	object, _ := every(t, "collaset")
	object.SetNamespace(newNamespace(t))
	const twice = "[{name: A, value: a}, {name: A, value: b}]"
	set(t, object.Object, "spec.template.spec.containers.0.env", twice)
	apply := func(manifest *unstructured.Unstructured, owner string, more ...client.ApplyOption) error {
		configuration := client.ApplyConfigurationFromUnstructured(manifest.DeepCopy())
		return cluster.Apply(t.Context(), configuration, append(more, client.FieldOwner(owner))...)
	}
	require.NoError(t, apply(object, "first"))
	second, _ := parse(t, `
apiVersion: apps.kusionstack.io/v1alpha1
kind: CollaSet
metadata: {name: every-field}
spec: {template: {spec: {containers: [{name: web, env: [{name: B, value: b}]}]}}}`)
	second.SetNamespace(object.GetNamespace())
	require.True(t, apierrors.IsConflict(apply(second, "second")))
	require.NoError(t, apply(second, "second", client.ForceOwnership))
	containers, _, err := unstructured.NestedSlice(fetch(t.Context(), t, object).Object, "spec", "template", "spec",
		"containers")
	require.NoError(t, err)
	require.Len(t, containers, 2)
	web, ok := containers[0].(map[string]any)
	require.True(t, ok)
	require.Equal(t, []any{map[string]any{"name": "B", "value": "b"}}, web["env"])
	require.Equal(t, "nginx:1.27", web["image"], "the rest of the container is merged")
}
