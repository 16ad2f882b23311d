package e2e

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/cli-utils/pkg/kstatus/status"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/internal/testkit/argocd"
	"kusionstack.io/kuperator/internal/testkit/await"
	"kusionstack.io/kuperator/internal/testkit/workload"
)

const argoCDConfig = "../../deploy/gitops/argo-cd/argocd-cm.yaml"

// liveObject is an object as tools that know no kind see it.
func (w *world) liveObject(t *testing.T, namespace, kind, name string) *unstructured.Unstructured {
	t.Helper()
	object := &unstructured.Unstructured{}
	object.SetGroupVersionKind(appsv1alpha1.SchemeGroupVersion.WithKind(kind))
	require.NoError(t, w.client.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: name}, object))
	return object
}

// TestHealthForGitOps: Argo CD by its scripts, and Flux and others by kstatus, see how a CollaSet fares.
func TestHealthForGitOps(t *testing.T) {
	w := together(t)
	ns := w.namespace(t)
	argo, err := argocd.Load(argoCDConfig)
	require.NoError(t, err)
	becomes := func(t *testing.T, kind, wantHealth string, wantStatus status.Status, says string) {
		t.Helper()
		await.Nil(t, wantHealth, func() error {
			object := w.liveObject(t, ns, kind, "web")
			health, message, err := argo.Health(object)
			require.NoError(t, err)
			result, err := status.Compute(object)
			require.NoError(t, err)
			if health != wantHealth || result.Status != wantStatus || !strings.Contains(message, says) {
				return fmt.Errorf("Argo CD: %s (%s), kstatus: %s (%s)", health, message, result.Status, result.Message)
			}
			return nil
		})
	}
	change := func(t *testing.T, change func(*appsv1alpha1.CollaSetSpec)) {
		t.Helper()
		set := &appsv1alpha1.CollaSet{}
		require.NoError(t, w.client.Get(t.Context(), client.ObjectKey{Namespace: ns, Name: "web"}, set))
		before := set.DeepCopy()
		change(&set.Spec)
		require.NoError(t, w.client.Patch(t.Context(), set, client.MergeFrom(before)))
	}
	act := func(t *testing.T, action string) {
		t.Helper()
		object := w.liveObject(t, ns, "CollaSet", "web")
		changed, err := argo.Run(action, object)
		require.NoError(t, err)
		require.NoError(t, w.client.Patch(t.Context(), changed, client.MergeFrom(object)))
	}

	w.create(t, workload.CollaSet(ns, "web", image1, 2), workload.Rule(ns, "web", "100%"))
	becomes(t, "CollaSet", "Healthy", status.CurrentStatus, "every Pod is as wanted")
	becomes(t, "PodTransitionRule", "Healthy", status.CurrentStatus, "in force")

	t.Run("a rollout that cannot end", func(t *testing.T) {
		w.setImage(t, ns, "web", "web:non-exist")
		becomes(t, "CollaSet", "Progressing", status.InProgressStatus, "updated")
	})
	t.Run("paused midway by an action", func(t *testing.T) {
		act(t, "pause")
		becomes(t, "CollaSet", "Suspended", status.InProgressStatus, "")
		act(t, "resume")
		becomes(t, "CollaSet", "Progressing", status.InProgressStatus, "updated")
	})
	t.Run("past its deadline", func(t *testing.T) {
		change(t, func(s *appsv1alpha1.CollaSetSpec) { s.ProgressDeadlineSeconds = ptr.To[int32](1) })
		becomes(t, "CollaSet", "Degraded", status.FailedStatus, "within spec.progressDeadlineSeconds")
	})
	t.Run("put right", func(t *testing.T) {
		w.setImage(t, ns, "web", image2)
		becomes(t, "CollaSet", "Healthy", status.CurrentStatus, "every Pod is as wanted")
	})
	t.Run("stalled until somebody changes something", func(t *testing.T) {
		change(t, func(s *appsv1alpha1.CollaSetSpec) {
			s.ProgressDeadlineSeconds = nil
			s.UpdateStrategy.PodUpdatePolicy = appsv1alpha1.PodUpdateInPlaceOnly
			s.Template.Spec.Hostname = "other"
		})
		becomes(t, "CollaSet", "Degraded", status.FailedStatus, "template.spec.hostname")
	})
	t.Run("restarted by an action", func(t *testing.T) {
		change(t, func(s *appsv1alpha1.CollaSetSpec) {
			s.UpdateStrategy.PodUpdatePolicy = appsv1alpha1.PodUpdateRecreate
			s.Template.Spec.Hostname = ""
		})
		becomes(t, "CollaSet", "Healthy", status.CurrentStatus, "every Pod is as wanted")
		old := w.pods(t, ns, "web")
		act(t, "restart")
		becomes(t, "CollaSet", "Healthy", status.CurrentStatus, "every Pod is as wanted")
		for _, pod := range w.pods(t, ns, "web") {
			for _, before := range old {
				require.NotEqual(t, before.UID, pod.UID)
			}
		}
	})
	t.Run("some Pods held back by a partition", func(t *testing.T) {
		change(t, func(s *appsv1alpha1.CollaSetSpec) {
			s.UpdateStrategy.RollingUpdate = &appsv1alpha1.RollingUpdateStrategy{ByPartition: &appsv1alpha1.ByPartition{Partition: ptr.To(intstr.FromInt32(1))}}
			s.Template.Spec.Containers[0].Image = image3
		})
		becomes(t, "CollaSet", "Healthy", status.CurrentStatus, "some stay at revision")
	})
}

// whatPeopleKeepInGit has values in every form that the API takes, also those that an API server might write otherwise.
const whatPeopleKeepInGit = `
apiVersion: apps.kusionstack.io/v1alpha1
kind: CollaSet
metadata:
  name: web
  labels: {app: web}
spec:
  selector: {matchLabels: {app: web}}
  paused: false
  minReadySeconds: 0
  historyLimit: 5
  progressDeadlineSeconds: 600
  namingStrategy: {podNamingSuffixPolicy: Random}
  scaleStrategy:
    podToDelete: []
    persistentVolumeClaimRetentionPolicy: {whenDeleted: Delete, whenScaled: Retain}
  updateStrategy:
    podUpgradePolicy: InPlaceIfPossible
    maxSurge: 50%
    rollingUpdate: {byPartition: {partition: 0}}
  template:
    metadata:
      labels: {app: web}
      annotations: {note: ""}
    spec:
      terminationGracePeriodSeconds: 5
      securityContext: {}
      nodeSelector: {}
      tolerations: []
      containers:
      - name: main
        image: web:1
        args: []
        ports: [{containerPort: 80}]
        env: [{name: EMPTY, value: ""}]
        resources: {requests: {cpu: "0.1", memory: "134217728"}, limits: {cpu: 1, memory: 1024Mi}}
        readinessProbe: {httpGet: {path: /, port: 80}, periodSeconds: 1}
---
apiVersion: apps.kusionstack.io/v1alpha1
kind: CollaSet
metadata: {name: least}
spec:
  replicas: 1
  selector: {matchLabels: {app: least}}
  template:
    metadata: {labels: {app: least}}
    spec: {containers: [{name: main, image: "web:1"}]}
---
apiVersion: apps.kusionstack.io/v1alpha1
kind: PodTransitionRule
metadata: {name: web}
spec:
  selector: {matchLabels: {app: web}, matchExpressions: []}
  rules:
  - {name: number, availablePolicy: {maxUnavailableValue: 1}}
  - name: percentage
    stage: PreCheck
    filter: {labelSelector: {matchExpressions: [{key: app, operator: Exists}]}}
    availablePolicy: {maxUnavailableValue: 50%, minAvailableValue: 0}
  - {name: labels, disabled: false, labelCheck: {requires: {matchLabels: {app: web}}}}
`

// TestWhatIsInGitStaysAsItIs: tools that apply the same again and again find nothing to change, and change nothing.
func TestWhatIsInGitStaysAsItIs(t *testing.T) {
	w := together(t)
	ns := w.namespace(t)
	apply := func(t *testing.T, manifest *unstructured.Unstructured,
		opts ...client.ApplyOption) *unstructured.Unstructured {
		t.Helper()
		applied := manifest.DeepCopy()
		opts = append(opts, client.FieldOwner("kustomize-controller"))
		require.NoError(t, w.client.Apply(t.Context(), client.ApplyConfigurationFromUnstructured(applied), opts...))
		return applied
	}
	for _, manifest := range manifests(t, whatPeopleKeepInGit) {
		name := manifest.GetKind() + " " + manifest.GetName()
		manifest.SetNamespace(ns)
		t.Run(name, func(t *testing.T) {
			live := apply(t, manifest)
			if manifest.GetKind() == "CollaSet" {
				if manifest.GetName() == "web" {
					w.scale(t, ns, "web", 3) // another field manager owns replicas
				}
				w.kubectl(t, ns, "wait", "cls/"+manifest.GetName(), "--for=condition=Ready", "--timeout="+await.Patience.String())
			} else {
				w.kubectl(t, ns, "wait", "ptr/"+manifest.GetName(), "--for=condition=Ready", "--timeout="+await.Patience.String())
			}
			live = w.liveObject(t, ns, live.GetKind(), live.GetName())

			// Flux, and Argo CD with server-side diff: a dry run of the same.
			again := apply(t, manifest, client.DryRunAll)
			require.Empty(t, cmp.Diff(content(live), content(again)))
			// Argo CD otherwise, and Helm: what is in Git is in the cluster, word by word.
			require.Empty(t, missing("", manifest.Object, live.Object))
			// And for real.
			generation := live.GetGeneration()
			require.Equal(t, generation, apply(t, manifest).GetGeneration())
			if manifest.GetName() == "web" && manifest.GetKind() == "CollaSet" {
				replicas, _, err := unstructured.NestedInt64(again.Object, "spec", "replicas")
				require.NoError(t, err)
				require.EqualValues(t, 3, replicas)
			}
			// kubectl apply on the client's side, twice.
			text, err := manifest.MarshalJSON()
			require.NoError(t, err)
			_, err = w.KubectlWith(t.Context(), string(text), "apply", "-f", "-")
			require.NoError(t, err)
			out, err := w.KubectlWith(t.Context(), string(text), "apply", "-f", "-")
			require.NoError(t, err)
			require.Contains(t, out, "unchanged")
			require.Equal(t, generation, w.liveObject(t, ns, live.GetKind(), live.GetName()).GetGeneration())
		})
	}
}

func manifests(t *testing.T, text string) []*unstructured.Unstructured {
	t.Helper()
	var objects []*unstructured.Unstructured
	for document := range strings.SplitSeq(text, "\n---\n") {
		object := &unstructured.Unstructured{}
		asJSON, err := yaml.YAMLToJSON([]byte(document))
		require.NoError(t, err)
		require.NoError(t, object.UnmarshalJSON(asJSON))
		objects = append(objects, object)
	}
	return objects
}

// content is an object without what every write changes, and without its status, which goes on.
func content(object *unstructured.Unstructured) map[string]any {
	copied := object.DeepCopy()
	copied.SetManagedFields(nil)
	copied.SetResourceVersion("")
	delete(copied.Object, "status")
	return copied.Object
}

// missing are the paths of values that are wanted and not there.
func missing(path string, want, have any) []string {
	switch w := want.(type) {
	case map[string]any:
		var paths []string
		fields, _ := have.(map[string]any)
		for key, value := range w {
			paths = append(paths, missing(path+"."+key, value, fields[key])...)
		}
		return paths
	case []any:
		items, _ := have.([]any)
		if len(items) != len(w) {
			return []string{fmt.Sprintf("%s: want %v, have %v", path, want, have)}
		}
		var paths []string
		for i := range w {
			paths = append(paths, missing(fmt.Sprintf("%s[%d]", path, i), w[i], items[i])...)
		}
		return paths
	default:
		if !cmp.Equal(want, have) {
			return []string{fmt.Sprintf("%s: want %v, have %v", path, want, have)}
		}
		return nil
	}
}
