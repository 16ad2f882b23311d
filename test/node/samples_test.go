package node

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
	"kusionstack.io/kuperator/internal/testkit/child"
	"kusionstack.io/kuperator/internal/testkit/realnode"
	"kusionstack.io/kuperator/internal/testkit/suite"
)

// TestSamplesOfTheSDK runs the programs of examples/operator and examples/action on Pods of a Deployment, each with the
// rights of its manifest. The images have names that the kubelet writes in full, and two of them are the same.
func TestSamplesOfTheSDK(t *testing.T) {
	needsRealNodes(t)
	server, err := realnode.BuildProgram(t.Context(), root(t), "./hack/webserver", t.TempDir())
	require.NoError(t, err)
	var short []realnode.Image
	for _, tag := range []string{"2", "same-as-2"} {
		short = append(short, realnode.Image{Name: "docker.io/library/web:" + tag, Program: server,
			Env: []string{"VERSION=2"}})
	}
	w := newWorld(t, 1, suite.Config{Args: map[string][]string{suite.ResourceConsist: {"--adapters=endpointslice"}}},
		short...)
	w.create(t, w.guests()...)
	pod := w.guest(t, "to serve", func(pod *corev1.Pod) error { return isServing(pod, images["1"]) })

	w.runSample(t, "operator", "retag")
	for restarts, image := range []string{"web:2", "web:same-as-2", images["1"]} {
		w.want(t, image)
		now := w.guest(t, "to serve with "+image, func(pod *corev1.Pod) error { return isServing(pod, image) })
		require.Equal(t, pod.UID, now.UID)
		require.EqualValues(t, restarts+1, now.Status.ContainerStatuses[0].RestartCount)
		if image == "web:2" {
			require.NotEqual(t, image, now.Status.ContainerStatuses[0].Image, "the kubelet writes the full name")
		}
	}
	w.want(t, "web:missing")
	w.guest(t, "to lack its image", func(pod *corev1.Pod) error {
		for _, status := range pod.Status.ContainerStatuses {
			if status.State.Waiting != nil && status.State.Waiting.Reason == "ErrImageNeverPull" {
				return nil
			}
		}
		return errors.New("it does not wait for it")
	})
	w.want(t, images["1"])
	pod = w.guest(t, "to serve again", func(pod *corev1.Pod) error { return isServing(pod, images["1"]) })

	w.runSample(t, "action", "warm-cache")
	job := &appsv1alpha1.OperationJob{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "warm-web"}}
	job.Spec.Action = "example.com/warm-cache"
	job.Spec.Targets = []appsv1alpha1.PodOpsTarget{{Name: pod.Name}}
	require.NoError(t, w.client.Create(t.Context(), job))
	w.waitEnd(t, job)
	require.Equal(t, appsv1alpha1.OperationProgressSucceeded, job.Status.Progress, "%+v", job.Status)
	w.guest(t, "to serve after the job", func(pod *corev1.Pod) error { return isServing(pod, images["1"]) })
}

// guests are a Deployment with one Pod, which takes part, its Service and its rule.
func (w *world) guests() []client.Object {
	set := webSet(true)
	set.Spec.Replicas = ptr.To[int32](1)
	set.Spec.Template.Spec.InitContainers = nil
	set.Spec.Template.Spec.Containers[0].Ports = []corev1.ContainerPort{{ContainerPort: port}}
	service, rule := webService(true), webRule(1)
	service.Spec.Selector = map[string]string{"app": guest}
	rule.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": guest}}
	return []client.Object{service, rule, deploymentOf(set)}
}

// guest waits until check has nothing against the Deployment's only Pod.
func (w *world) guest(t *testing.T, what string, check func(*corev1.Pod) error) *corev1.Pod {
	t.Helper()
	list := &corev1.PodList{}
	eventually(t.Context(), t, "the Pod "+what, func() error {
		err := w.client.List(t.Context(), list, client.InNamespace(namespace), client.MatchingLabels{"app": guest})
		if err != nil {
			return err
		}
		if len(list.Items) != 1 {
			return fmt.Errorf("%d Pods exist", len(list.Items))
		}
		return check(&list.Items[0])
	})
	return &list.Items[0]
}

// isServing is nil for a Pod that is in service with the image, and under no operation.
func isServing(pod *corev1.Pod, image string) error {
	view := podops.Read(pod)
	if pod.Spec.Containers[0].Image == image && view.Gate && view.Ready && view.ServiceAvailable() &&
		len(podops.Operations(view)) == 0 {
		return nil
	}
	return fmt.Errorf("image %s, Ready %t, operations %v", pod.Spec.Containers[0].Image, view.Ready,
		podops.Operations(view))
}

// want annotates the Pod with the image that the operator is to bring it to.
func (w *world) want(t *testing.T, image string) {
	t.Helper()
	_, err := w.Kubectl(t.Context(), "-n", namespace, "annotate", "pods", "-l", "app="+guest, "--overwrite",
		"retag.example.com/image="+image)
	require.NoError(t, err)
}

// waitEnd waits until a job has ended.
func (w *world) waitEnd(t *testing.T, job *appsv1alpha1.OperationJob) {
	t.Helper()
	eventually(t.Context(), t, "job "+job.Name+" to end", func() error {
		if err := w.client.Get(t.Context(), client.ObjectKeyFromObject(job), job); err != nil {
			return err
		}
		if job.Status.EndTime == nil {
			return fmt.Errorf("%d of %d targets have succeeded: %+v", job.Status.SucceededPodCount,
				job.Status.TotalPodCount, job.Status.TargetDetails)
		}
		return nil
	})
}

// runSample runs the program of a sample until the test ends, as the service account of its manifest.
func (w *world) runSample(t *testing.T, sample, program string) {
	t.Helper()
	folder, dir := filepath.Join(root(t), "examples", sample), t.TempDir()
	path, err := realnode.BuildProgram(t.Context(), folder, "example.com/"+program, dir)
	require.NoError(t, err)
	_, err = w.Kubectl(t.Context(), "apply", "-f", filepath.Join(folder, "rbac.yaml"))
	require.NoError(t, err)
	kubeconfig, err := w.cluster.ServiceAccountKubeconfig(t.Context(), suite.Namespace, program)
	require.NoError(t, err)
	isProxy := func(variable string) bool { return strings.Contains(strings.ToLower(variable), "_proxy=") }
	process := &child.Process{Name: program, Log: filepath.Join(dir, "log")}
	require.NoError(t, process.Start(path, nil,
		append(slices.DeleteFunc(os.Environ(), isProxy), "KUBECONFIG="+kubeconfig), false))
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(process.Tail(20))
		}
		require.NoError(t, process.End(syscall.SIGTERM, time.Minute))
	})
}
