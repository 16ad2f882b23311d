// Package configuration_test has CollaSets follow ConfigMaps and Secrets, with the whole suite and simulated nodes.
package configuration_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
	"kusionstack.io/kuperator/internal/testkit/await"
	"kusionstack.io/kuperator/internal/testkit/observer"
	"kusionstack.io/kuperator/internal/testkit/race"
	"kusionstack.io/kuperator/internal/testkit/suite"
	"kusionstack.io/kuperator/internal/testkit/testcluster"
	"kusionstack.io/kuperator/internal/testkit/testsuite"
	"kusionstack.io/kuperator/internal/testkit/workload"
)

const image = "app:v1"

// shared is the suite that all tests use.
var shared = testsuite.Share(newWorld)

// world is the suite and an administrator's client.
type world struct {
	*suite.Suite
	client.Client
}

func TestMain(m *testing.M) { shared.Main(m) }

func newWorld(ctx context.Context) (*world, error) {
	s, err := suite.Start(ctx, suite.Config{Name: "configuration", Nodes: 5, Race: race.Enabled, Progress: os.Stderr})
	if err != nil {
		return nil, err
	}
	c, err := testsuite.Client(s.RESTConfig())
	if err != nil {
		return nil, errors.Join(err, s.Stop())
	}
	return &world{Suite: s, Client: c}, nil
}

// story is one test in its own namespace, with a rule about the Pods of a CollaSet "web".
type story struct {
	*testing.T
	*world
	namespace string
	pods      int32
}

// begin makes the namespace, and an observer that watches the rule. Until allowed, collaset-controller may read no
// ConfigMaps and Secrets there.
func begin(t *testing.T, pods int32, maxUnavailable string) *story {
	t.Helper()
	s := &story{T: t, world: shared.Get(t), pods: pods}
	s.namespace = testcluster.Namespace(t, s.Cluster, nil)
	o, err := observer.Start(context.WithoutCancel(t.Context()), s.RESTConfig(),
		observer.Options{Namespace: s.namespace})
	require.NoError(t, err)
	t.Cleanup(func() {
		report, err := o.Stop()
		require.NoError(t, err)
		require.Empty(t, report.Violations)
	})
	require.NoError(t, s.Create(t.Context(), workload.Rule(s.namespace, "web", maxUnavailable)))
	return s
}

// allow gives collaset-controller the permission to read ConfigMaps and Secrets of the namespace.
func (s *story) allow() {
	s.Helper()
	require.NoError(s, s.Create(s.Context(), &rbacv1.Role{
		ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: "kuperator-follow-secrets"},
		Rules: []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"secrets"},
			Verbs: []string{"get", "list", "watch"}}},
	}))
	for role, kind := range map[string]string{"kuperator-follow-configmaps": "ClusterRole",
		"kuperator-follow-secrets": "Role"} {
		require.NoError(s, s.Create(s.Context(), &rbacv1.RoleBinding{
			ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: role},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: kind, Name: role},
			Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: suite.Namespace,
				Name: suite.CollaSet}},
		}))
	}
}

func (s *story) await(what string, check func() error) {
	s.Helper()
	await.Nil(s.T, what, check)
}

// configMap writes a ConfigMap with this content.
func (s *story) configMap(name, content string) {
	s.Helper()
	wanted := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: name},
		Data: map[string]string{"key": content}}
	if err := s.Update(s.Context(), wanted); err != nil {
		require.NoError(s, client.IgnoreNotFound(err))
		require.NoError(s, s.Create(s.Context(), wanted))
	}
}

// collaSet creates a CollaSet that follows ConfigMaps and Secrets, and waits until its Pods serve.
func (s *story) collaSet(change func(*appsv1alpha1.CollaSet)) {
	s.Helper()
	set := workload.CollaSet(s.namespace, "web", image, s.pods)
	set.Spec.UpdateStrategy.FollowConfiguration = &appsv1alpha1.FollowConfiguration{
		Kinds: []appsv1alpha1.ConfigurationKind{appsv1alpha1.ConfigurationConfigMap, appsv1alpha1.ConfigurationSecret}}
	change(set)
	require.NoError(s, s.Create(s.Context(), set))
	s.await("the Pods to serve", s.atRest)
}

// atRest is nil if all Pods serve and none is under an operation. Their images may have got other names.
func (s *story) atRest() error {
	pods := s.list()
	for i := range pods {
		v := podops.Read(&pods[i])
		if pods[i].DeletionTimestamp != nil || !v.Ready || !v.ServiceAvailable() || len(podops.Operations(v)) > 0 {
			return fmt.Errorf("%s: %v", pods[i].Name, podops.Explain(v, nil))
		}
	}
	if len(pods) != int(s.pods) {
		return fmt.Errorf("there are %d Pods", len(pods))
	}
	return nil
}

// mounts has the Pods of a CollaSet mount a ConfigMap.
func mounts(name string) func(*appsv1alpha1.CollaSet) {
	return func(set *appsv1alpha1.CollaSet) {
		pod := &set.Spec.Template.Spec
		pod.Volumes = append(pod.Volumes, corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{
			ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: name}}}})
		pod.Containers[0].VolumeMounts = append(pod.Containers[0].VolumeMounts,
			corev1.VolumeMount{Name: name, MountPath: "/" + name})
	}
}

func (s *story) get() *appsv1alpha1.CollaSet {
	s.Helper()
	set := &appsv1alpha1.CollaSet{}
	require.NoError(s, s.Get(s.Context(), client.ObjectKey{Namespace: s.namespace, Name: "web"}, set))
	return set
}

// follows waits until status has the hash of an object, another one than before, and returns it.
func (s *story) follows(name, before string) (hash string) {
	s.Helper()
	s.await("status to have "+name, func() error {
		for _, entry := range s.get().Status.Configuration {
			if entry.Name == name && entry.Hash != "" && entry.Hash != before && entry.Message == "" {
				hash = entry.Hash
				return nil
			}
		}
		return fmt.Errorf("it has %+v", s.get().Status.Configuration)
	})
	return hash
}

// restarts waits until every Pod serves, with so many of them restarted so often, by restart count. No count is passed
// by on the way: Pods restart once for each change.
func (s *story) restarts(want map[int32]int) {
	s.Helper()
	most := int32(0)
	for count := range want {
		most = max(most, count)
	}
	s.await(fmt.Sprintf("restarts %v", want), func() error {
		if err := s.atRest(); err != nil {
			return err
		}
		counts := map[int32]int{}
		for _, pod := range s.list() {
			counts[pod.Status.ContainerStatuses[0].RestartCount]++
		}
		for count := range counts {
			require.LessOrEqual(s, count, most, "a Pod has restarted more than once for a change")
		}
		if fmt.Sprint(counts) != fmt.Sprint(want) {
			return fmt.Errorf("there are %v", counts)
		}
		return nil
	})
}

func (s *story) list() []corev1.Pod {
	s.Helper()
	pods, err := workload.Pods(s.Context(), s.Client, s.namespace, "web")
	require.NoError(s, err)
	return pods
}

func (s *story) uids() []types.UID { s.Helper(); return workload.UIDs(s.list()) }

// event waits for an event about the CollaSet with this reason and a part of its text.
func (s *story) event(reason, part string) {
	s.Helper()
	s.await("event "+reason, func() error {
		list := &corev1.EventList{}
		if err := s.List(s.Context(), list, client.InNamespace(s.namespace)); err != nil {
			return err
		}
		for i := range list.Items {
			if e := &list.Items[i]; e.Reason == reason && strings.Contains(e.Message, part) {
				return nil
			}
		}
		return fmt.Errorf("there is none among %d", len(list.Items))
	})
}
