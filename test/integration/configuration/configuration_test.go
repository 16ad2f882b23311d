package configuration_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
	"kusionstack.io/kuperator/internal/testkit/await"
	"kusionstack.io/kuperator/internal/testkit/nightly"
	"kusionstack.io/kuperator/internal/testkit/suite"
	"kusionstack.io/kuperator/internal/testkit/workload"
)

const partition = `{"spec":{"updateStrategy":{"rollingUpdate":{"byPartition":{"partition":%d}}}}}`

// A change of a mounted ConfigMap restarts containers in place, within partition and rule. The content from before takes
// it back. Before collaset-controller may read it, the CollaSet says so.
func TestMountedConfigMap(t *testing.T) {
	t.Parallel()
	s := begin(t, 4, "1")
	s.configMap("settings", "a")
	s.collaSet(mounts("settings"))
	s.event("ConfigurationUnreadable", "may not read ConfigMaps in namespace "+s.namespace)
	s.allow()
	first := s.follows("settings", "")
	revision, pods := s.get().Status.UpdatedRevision, s.uids()
	s.restarts(map[int32]int{0: 4})

	require.NoError(t, workload.Patch(t.Context(), s.Client, s.namespace, "web", fmt.Sprintf(partition, 2)))
	s.configMap("settings", "b")
	second := s.follows("settings", first)
	s.restarts(map[int32]int{0: 2, 1: 2})
	s.event("ConfigurationChanged", "ConfigMap settings has changed")
	require.NoError(t, workload.Patch(t.Context(), s.Client, s.namespace, "web", fmt.Sprintf(partition, 0)))
	s.restarts(map[int32]int{1: 4})
	require.ElementsMatch(t, pods, s.uids())
	require.NotEqual(t, revision, s.get().Status.UpdatedRevision)
	for _, pod := range s.list() {
		require.Equal(t, "ConfigMap/settings="+second, pod.Annotations[appsv1alpha1.ConfigurationAnnotation])
	}

	// Neither labels nor a deletion are a change.
	settings := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: "settings"}}
	require.NoError(t, s.Patch(t.Context(), settings,
		client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"labels":{"x":"y"}}}`))))
	require.NoError(t, s.Delete(t.Context(), settings))
	s.await("status to say that it is gone", func() error {
		if entry := s.get().Status.Configuration[0]; entry.Message != "it does not exist" || entry.Hash != second {
			return fmt.Errorf("it has %+v", entry)
		}
		return nil
	})
	s.configMap("settings", "b")
	s.follows("settings", first)
	s.restarts(map[int32]int{1: 4})

	s.configMap("settings", "a")
	require.Equal(t, first, s.follows("settings", second))
	s.restarts(map[int32]int{2: 4})
	require.ElementsMatch(t, pods, s.uids())
	require.Equal(t, revision, s.get().Status.UpdatedRevision)
	for _, pod := range s.list() {
		require.NotContains(t, pod.Annotations, appsv1alpha1.ConfigurationAnnotation)
	}
}

// A variable comes from a Secret, so Pods are re-created, under their instance IDs. Neither status nor Pods nor events
// have its content.
func TestSecretInAVariable(t *testing.T) {
	t.Parallel()
	s := begin(t, 2, "1")
	s.allow()
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: "token"},
		StringData: map[string]string{"token": "first-token"}}
	require.NoError(t, s.Create(t.Context(), secret))
	s.collaSet(func(set *appsv1alpha1.CollaSet) {
		set.Spec.Template.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "TOKEN", ValueFrom: &corev1.EnvVarSource{
			SecretKeyRef: &corev1.SecretKeySelector{Key: "token",
				LocalObjectReference: corev1.LocalObjectReference{Name: "token"}}}}}
	})
	first, before := s.follows("token", ""), s.list()
	secret.StringData = map[string]string{"token": "second-token"}
	require.NoError(t, s.Update(t.Context(), secret))
	s.follows("token", first)
	s.await("other Pods", func() error {
		if err := s.atRest(); err != nil {
			return err
		}
		ids := map[string]bool{}
		for _, pod := range s.list() {
			if pod.UID == before[0].UID || pod.UID == before[1].UID {
				return fmt.Errorf("Pod %s is still there", pod.Name)
			}
			ids[pod.Labels[appsv1alpha1.InstanceIDLabel]] = true
			require.NotContains(t, fmt.Sprint(pod.ObjectMeta), "second-token")
		}
		require.Len(t, ids, 2)
		return nil
	})
	require.NotContains(t, fmt.Sprint(s.get()), "second-token")
}

// A controller that starts again restarts nothing, at rest or in the middle of a rollout, and learns of what has
// changed meanwhile.
func TestControllerStartsAgain(t *testing.T) {
	pods := int32(20)
	if nightly.Run() {
		pods = 200
	}
	s := begin(t, pods, "10%")
	s.allow()
	s.configMap("settings", "a")
	s.collaSet(mounts("settings"))
	hash := s.follows("settings", "")
	again := func() {
		require.NoError(t, s.Kill(suite.CollaSet))
		require.NoError(t, s.Restart(t.Context(), suite.CollaSet))
		require.NoError(t, s.WaitLeading(t.Context(), suite.CollaSet))
	}
	again()
	require.NoError(t, workload.Patch(t.Context(), s.Client, s.namespace, "web", fmt.Sprintf(partition, pods/2)))
	s.configMap("settings", "b")
	hash = s.follows("settings", hash)
	s.await("the rollout to begin", func() error {
		for _, pod := range s.list() {
			if pod.Status.ContainerStatuses[0].RestartCount > 0 {
				return nil
			}
		}
		return fmt.Errorf("no Pod has restarted")
	})
	again()
	s.restarts(map[int32]int{0: int(pods / 2), 1: int(pods / 2)})
	again()
	require.NoError(t, workload.Patch(t.Context(), s.Client, s.namespace, "web", fmt.Sprintf(partition, 0)))
	s.restarts(map[int32]int{1: int(pods)})

	require.NoError(t, s.Kill(suite.CollaSet))
	s.configMap("settings", "c")
	require.NoError(t, s.Restart(t.Context(), suite.CollaSet))
	s.follows("settings", hash)
	s.restarts(map[int32]int{2: int(pods)})
}

// Many ConfigMaps change while a leader dies: each Pod restarts once.
func TestManyChangesAtALeaderChange(t *testing.T) {
	sets := 20
	if nightly.Run() {
		sets = 1000
	}
	s := begin(t, 1, "100%")
	s.allow()
	name := func(i int) string { return fmt.Sprintf("web-%d", i) }
	for i := range sets {
		s.configMap(name(i), "a")
		set := workload.CollaSet(s.namespace, name(i), image, 1)
		mounts(name(i))(set)
		set.Spec.UpdateStrategy.FollowConfiguration = &appsv1alpha1.FollowConfiguration{
			Kinds: []appsv1alpha1.ConfigurationKind{appsv1alpha1.ConfigurationConfigMap}}
		require.NoError(t, s.Create(t.Context(), set))
	}
	// all reports whether every CollaSet follows its ConfigMap, and its Pod serves after so many restarts.
	all := func(restarts int32) error {
		list := &appsv1alpha1.CollaSetList{}
		if err := s.List(t.Context(), list, client.InNamespace(s.namespace)); err != nil {
			return err
		}
		for i := range list.Items {
			if c := list.Items[i].Status.Configuration; len(c) != 1 || c[0].Hash == "" ||
				(c[0].Hash != c[0].InitialHash) != (restarts > 0) {
				return fmt.Errorf("status.configuration of %s is %+v", list.Items[i].Name, c)
			}
		}
		pods := &corev1.PodList{}
		if err := s.List(t.Context(), pods, client.InNamespace(s.namespace)); err != nil {
			return err
		}
		if len(pods.Items) != sets {
			return fmt.Errorf("there are %d Pods", len(pods.Items))
		}
		for i := range pods.Items {
			pod := &pods.Items[i]
			if v := podops.Read(pod); !v.Ready || !v.ServiceAvailable() || len(podops.Operations(v)) > 0 {
				return fmt.Errorf("Pod %s does not serve", pod.Name)
			}
			count := pod.Status.ContainerStatuses[0].RestartCount
			require.LessOrEqual(t, count, restarts)
			if count < restarts {
				return fmt.Errorf("Pod %s has not restarted", pod.Name)
			}
		}
		return nil
	}
	s.await("the Pods to serve", func() error { return all(0) })
	for i := range sets {
		if i == sets/2 {
			require.NoError(t, s.Kill(suite.CollaSet))
		}
		s.configMap(name(i), "b")
	}
	require.NoError(t, s.Restart(t.Context(), suite.CollaSet))
	s.await("every Pod to restart", func() error { return all(1) })
	require.NoError(t, s.Kill(suite.CollaSet))
	require.NoError(t, s.Restart(t.Context(), suite.CollaSet))
	require.NoError(t, s.WaitLeading(t.Context(), suite.CollaSet))
	await.Always(t, 2*time.Second, "no Pod restarts again", func() error { return all(1) })
}
