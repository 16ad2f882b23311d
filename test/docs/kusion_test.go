package docs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/jsonmergepatch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"kusionstack.io/kuperator/internal/testkit/await"
	"kusionstack.io/kuperator/internal/testkit/pages"
)

// project is the one of the page about Kusion, and so the namespace.
const project = "store"

// kusion plays Kusion.
type kusion struct {
	*world
	applied map[string]*unstructured.Unstructured
}

// apply applies an object about which the suite has no warning.
func (k *kusion) apply(t *testing.T, object *unstructured.Unstructured) *unstructured.Unstructured {
	t.Helper()
	k.warnings.take()
	live := k.send(t, object)
	require.Empty(t, k.warnings.take())
	return live
}

// send does what Kusion does: it creates an object, or sends a merge patch of what it applied before, what it is to
// apply now, and what is there.
func (k *kusion) send(t *testing.T, object *unstructured.Unstructured) *unstructured.Unstructured {
	t.Helper()
	object = object.DeepCopy()
	live := &unstructured.Unstructured{}
	live.SetGroupVersionKind(object.GroupVersionKind())
	err := k.client.Get(t.Context(), client.ObjectKeyFromObject(object), live)
	if apierrors.IsNotFound(err) {
		live = object.DeepCopy()
		err = k.client.Create(t.Context(), live, client.FieldOwner("kusion"), client.FieldValidation("Strict"))
	} else if err == nil {
		var patch []byte
		patch, err = jsonmergepatch.CreateThreeWayJSONMergePatch(text(t, k.applied[id(object)]), text(t, object),
			text(t, live))
		require.NoError(t, err)
		err = k.client.Patch(t.Context(), live, client.RawPatch(types.MergePatchType, patch), client.FieldOwner("kusion"),
			client.FieldValidation("Strict"))
	}
	require.NoError(t, err)
	k.applied[id(object)] = object
	return live
}

func id(object *unstructured.Unstructured) string { return object.GetKind() + " " + object.GetName() }

func text(t *testing.T, object *unstructured.Unstructured) []byte {
	t.Helper()
	out, err := json.Marshal(object.Object)
	require.NoError(t, err)
	return out
}

// number is an integer of an object, 0 if it is not there.
func number(object *unstructured.Unstructured, path ...string) int64 {
	n, _, _ := unstructured.NestedInt64(object.Object, path...)
	return n
}

// takenForReady is Kusion's own rule about CollaSets.
func takenForReady(set *unstructured.Unstructured) bool {
	return number(set, "spec", "replicas") == number(set, "status", "updatedAvailableReplicas")
}

// healthy is the page's health policy, which is in a language that is not interpreted here.
func healthy(set *unstructured.Unstructured) bool {
	conditions, _, _ := unstructured.NestedSlice(set.Object, "status", "conditions")
	return number(set, "status", "observedGeneration") == set.GetGeneration() &&
		slices.ContainsFunc(conditions, func(c any) bool {
			condition := &unstructured.Unstructured{Object: c.(map[string]any)}
			return condition.Object["type"] == "Ready" && condition.Object["status"] == "True" &&
				number(condition, "observedGeneration") == set.GetGeneration()
		})
}

// reached waits as Kusion does with the health policy.
func (k *kusion) reached(t *testing.T, set *unstructured.Unstructured) *unstructured.Unstructured {
	t.Helper()
	live := set.DeepCopy()
	await.Nil(t, "the health policy", func() error {
		if err := k.client.Get(t.Context(), client.ObjectKeyFromObject(set), live); err != nil {
			return err
		}
		if !healthy(live) {
			return fmt.Errorf("status is %v", live.Object["status"])
		}
		return nil
	})
	return live
}

// pods are the names and UIDs of the project's Pods, sorted.
func (k *kusion) pods(t *testing.T) []string {
	t.Helper()
	list := &corev1.PodList{}
	require.NoError(t, k.client.List(t.Context(), list, client.InNamespace(project)))
	var all []string
	for _, pod := range list.Items {
		all = append(all, pod.Name+" "+string(pod.UID))
	}
	slices.Sort(all)
	return all
}

// container is the container of the page's CollaSet.
func container(set *unstructured.Unstructured) map[string]any {
	spec := set.Object["spec"].(map[string]any)["template"].(map[string]any)["spec"].(map[string]any)
	return spec["containers"].([]any)[0].(map[string]any)
}

// TestDeliveredByKusion follows the page: its objects are applied as Kusion does, and what it says of Kusion's waiting
// and of what is left alone is so.
func TestDeliveredByKusion(t *testing.T) {
	k := &kusion{world: everything(t), applied: map[string]*unstructured.Unstructured{}}
	k.namespace(t, project)
	t.Cleanup(func() {
		namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: project}}
		_ = k.client.Delete(context.WithoutCancel(t.Context()), namespace) // the cluster goes anyway
	})
	page := pageOf(t, "docs/kusion.md")
	objects := map[string]*unstructured.Unstructured{}
	var commands []string
	for _, b := range page.Blocks {
		switch {
		case b.Language == "yaml" && b.Note == "":
			found, err := objectsOf(b.Text)
			require.NoError(t, err)
			for _, content := range found {
				object := &unstructured.Unstructured{Object: content}
				require.Equal(t, project, object.GetNamespace(), "Kusion applies it where it says")
				objects[object.GetKind()] = object
			}
		case b.Language == "console":
			commands = append(commands, strings.TrimPrefix(strings.TrimSpace(b.Text), "$ kubectl "))
		}
	}
	set := objects["CollaSet"]
	require.NotNil(t, set)
	k.apply(t, set)
	k.reached(t, set)

	t.Run("the rule applies to its Pods", func(t *testing.T) {
		rule := k.apply(t, objects["PodTransitionRule"])
		await.Nil(t, "the rule", func() error {
			if err := k.client.Get(t.Context(), client.ObjectKeyFromObject(rule), rule); err != nil {
				return err
			}
			if targets, _, _ := unstructured.NestedStringSlice(rule.Object, "status", "targets"); len(targets) != 2 {
				return fmt.Errorf("status is %v", rule.Object["status"])
			}
			return nil
		})
	})
	t.Run("Kusion's own rule ends before a rollout begins", func(t *testing.T) {
		container(set)["image"] = "nginx:1.29"
		answer := k.apply(t, set)
		require.True(t, takenForReady(answer))
		require.False(t, healthy(answer))
		live := k.reached(t, set)
		require.EqualValues(t, 2, number(live, "status", "updatedAvailableReplicas"))
	})
	t.Run("it does not end at a partition", func(t *testing.T) {
		partition := func(n int) {
			_, err := k.Kubectl(t.Context(), "patch", "collaset", "-n", project, set.GetName(), "--type=merge", "-p",
				fmt.Sprintf(`{"spec":{"updateStrategy":{"rollingUpdate":{"byPartition":{"partition":%d}}}}}`, n))
			require.NoError(t, err)
		}
		partition(1)
		container(set)["image"] = "nginx:1.30"
		k.apply(t, set)
		for range 2 { // the second time there is nothing to apply, and the partition is as it was set
			live := k.reached(t, set)
			require.False(t, takenForReady(live))
			require.EqualValues(t, 1, number(live, "status", "updatedReplicas"))
			k.apply(t, set)
		}
		partition(0)
		require.True(t, takenForReady(k.reached(t, set)))
	})
	t.Run("the order of constraints and variables does not matter", func(t *testing.T) {
		inOrder := func(first, second string) {
			spread := func(key string) any {
				return map[string]any{"topologyKey": key, "maxSkew": int64(1), "whenUnsatisfiable": "ScheduleAnyway",
					"labelSelector": map[string]any{"matchLabels": map[string]any{"app.kubernetes.io/name": "shop"}}}
			}
			variable := func(name string) any { return map[string]any{"name": strings.ToUpper(name), "value": name} }
			spec := set.Object["spec"].(map[string]any)["template"].(map[string]any)["spec"].(map[string]any)
			spec["topologySpreadConstraints"] = []any{spread("example.com/" + first), spread("example.com/" + second)}
			container(set)["env"] = []any{variable(first), variable(second)}
		}
		inOrder("rack", "host")
		k.send(t, set) // Pods are made again for it, which is a warning
		before, pods := k.reached(t, set), k.pods(t)
		inOrder("host", "rack")
		require.Greater(t, k.apply(t, set).GetGeneration(), before.GetGeneration())
		after := k.reached(t, set)
		require.Equal(t, before.Object["status"].(map[string]any)["updatedRevision"],
			after.Object["status"].(map[string]any)["updatedRevision"])
		require.Equal(t, pods, k.pods(t))
	})
	t.Run("a label that it did not write stays", func(t *testing.T) {
		service := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "Service",
			"metadata": map[string]any{"name": set.GetName() + "-private", "namespace": project, "creationTimestamp": nil},
			"spec": map[string]any{"type": "ClusterIP", "selector": set.Object["metadata"].(map[string]any)["labels"],
				"ports": []any{map[string]any{"name": "http", "port": int64(80), "protocol": "TCP", "targetPort": int64(80)}}},
			"status": map[string]any{"loadBalancer": map[string]any{}}}}
		k.apply(t, service)
		require.Len(t, commands, 1)
		_, err := k.Kubectl(t.Context(), strings.Fields(commands[0])...)
		require.NoError(t, err)
		require.Equal(t, "true", k.apply(t, service).GetLabels()["kusionstack.io/control"])
	})
}

// pageOf is the page of a path.
func pageOf(t *testing.T, path string) pages.Page {
	t.Helper()
	for _, page := range allPages(t) {
		if page.Path == path {
			return page
		}
	}
	require.NoError(t, errors.New("there is no page "+path))
	return pages.Page{}
}
