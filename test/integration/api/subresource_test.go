package api

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/discovery"
	"sigs.k8s.io/cli-utils/pkg/kstatus/status"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"kusionstack.io/kuperator/api/client/clientset/versioned"
)

func TestCollaSetScales(t *testing.T) {
	clients, err := versioned.NewForConfig(config)
	require.NoError(t, err)
	for name, replicas := range map[string]string{
		"a CollaSet with replicas scales":          "2",
		"a CollaSet that names no replicas scales": "-",
	} {
		t.Run(name, func(t *testing.T) {
			object, _ := parse(t, plain["collaset"])
			object.SetNamespace(newNamespace(t))
			set(t, object.Object, "spec.replicas", replicas)
			require.NoError(t, cluster.Create(t.Context(), object))
			object.Object["status"] = map[string]any{"replicas": int64(1), "selector": "app=web"}
			require.NoError(t, cluster.Status().Update(t.Context(), object))

			sets := clients.AppsV1alpha1().CollaSets(object.GetNamespace())
			scale, err := sets.GetScale(t.Context(), "web", metav1.GetOptions{})
			require.NoError(t, err)
			require.Equal(t, autoscalingv1.ScaleStatus{Replicas: 1, Selector: "app=web"}, scale.Status)
			scale.Spec.Replicas = 7
			_, err = sets.UpdateScale(t.Context(), "web", scale, metav1.UpdateOptions{})
			require.NoError(t, err)
			scaled, err := sets.Get(t.Context(), "web", metav1.GetOptions{})
			require.NoError(t, err)
			require.EqualValues(t, 7, *scaled.Spec.Replicas)
		})
	}
}

func TestStatusHoldsWhatThisProjectAdds(t *testing.T) {
	tests := map[string]struct{ kind, status string }{
		"of a CollaSet": {"collaset", `
selector: app=web
blockers: [{reason: ImagePullFailed, message: "fix the image", count: 3}]
conditions:
- {type: Ready, status: "False", reason: Updating, message: "", lastTransitionTime: "2026-01-02T03:04:05Z", observedGeneration: 2}`},
		"of a PodTransitionRule": {"podtransitionrule", `
desired: 4
available: 2
granted: 1
blocked: 1
conditions:
- {type: Ready, status: "True", reason: InForce, message: "", lastTransitionTime: "2026-01-02T03:04:05Z"}
grants:
- {podName: a, podUID: u1, stage: PreCheck, grantTime: "2026-01-02T03:04:05Z",
   operations: [{id: collaset, type: update, request: "17"}], rules: [{name: web, uid: r1}]}
- {podName: a, podUID: u1, stage: PostCheck, grantTime: "2026-01-02T03:04:05Z",
   operations: [{id: collaset, type: update, request: "17"}], rules: [{name: web, uid: r1}]}`},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			object, _ := parse(t, plain[tc.kind])
			object.SetNamespace(newNamespace(t))
			require.NoError(t, cluster.Create(t.Context(), object))
			_, reported := parse(t, "apiVersion: v1\nkind: Want\nstatus:"+indent(tc.status))
			object.Object["status"] = reported
			require.NoError(t, cluster.Status().Update(t.Context(), object.DeepCopy()))
			want := counted(t, tc.kind, reported)
			if diff := cmp.Diff(want, fetch(t.Context(), t, object).Object["status"]); diff != "" {
				t.Errorf("(-written +stored):\n%s", diff)
			}
		})
	}
}

// TestNewObjectsAreInProgress: kstatus takes an object that reports nothing for one that is ready, and a controller may
// be late.
func TestNewObjectsAreInProgress(t *testing.T) {
	for _, kind := range []string{"collaset", "operationjob", "poddecoration", "podtransitionrule"} {
		object, _ := every(t, kind)
		object.SetNamespace(newNamespace(t))
		require.NoError(t, cluster.Create(t.Context(), object))
		result, err := status.Compute(fetch(t.Context(), t, object))
		require.NoError(t, err)
		require.Equal(t, status.InProgressStatus, result.Status, kind)
	}
}

// TestOpenAPIDescribesThePodTemplate checks what kubectl explain and server-side apply read.
func TestOpenAPIDescribesThePodTemplate(t *testing.T) {
	clients, err := discovery.NewDiscoveryClientForConfig(config)
	require.NoError(t, err)
	var document struct {
		Components struct {
			Schemas map[string]map[string]any `json:"schemas"`
		} `json:"components"`
	}
	require.Eventually(t, func() bool { // the API server publishes the schema of a new CRD a little later
		paths, err := clients.OpenAPIV3().Paths()
		if err != nil || paths["apis/apps.kusionstack.io/v1alpha1"] == nil {
			return false
		}
		content, err := paths["apis/apps.kusionstack.io/v1alpha1"].Schema("application/json")
		return err == nil && json.Unmarshal(content, &document) == nil && len(document.Components.Schemas) > 0
	}, patience, 50*time.Millisecond)

	set, ok := document.Components.Schemas["io.kusionstack.apps.v1alpha1.CollaSet"]
	require.True(t, ok, "the schema of CollaSet")
	podSpec := []string{"properties", "spec", "properties", "template", "properties", "spec", "properties"}
	containers, _, err := unstructured.NestedMap(set, append(podSpec, "containers")...)
	require.NoError(t, err)
	require.Equal(t, []any{"name"}, containers["x-kubernetes-list-map-keys"])
	image, _, err := unstructured.NestedMap(containers, "items", "properties", "image")
	require.NoError(t, err)
	require.Equal(t, "string", image["type"])
	require.Contains(t, image["description"], "Container image name")
}

func TestDefinitionsCanBeAppliedOnTheServer(t *testing.T) {
	for _, kind := range kinds {
		t.Run(kind, func(t *testing.T) {
			content, err := os.ReadFile(filepath.Join(projectRoot, "deploy", "crd", "apps.kusionstack.io_"+kind+"s.yaml"))
			require.NoError(t, err)
			definition, _ := parse(t, string(content))
			for range 2 { // the second time with field ownership in what is stored
				require.NoError(t, cluster.Apply(t.Context(), client.ApplyConfigurationFromUnstructured(definition.DeepCopy()),
					client.FieldOwner("installer"), client.ForceOwnership))
			}
			stored := &apiextensionsv1.CustomResourceDefinition{}
			require.NoError(t, cluster.Get(t.Context(), client.ObjectKeyFromObject(definition), stored))
			encoded, err := json.Marshal(stored)
			require.NoError(t, err)
			require.Less(t, len(encoded), 1_400_000, "etcd takes 1.5 MiB")
			t.Logf("%d bytes stored", len(encoded))
		})
	}
}
