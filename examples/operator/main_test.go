package main

import (
	"context"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"kusionstack.io/kuperator/api/podops"
)

const (
	oldImage = "nginx:1.28"
	newImage = "nginx:1.29"
)

// cluster is a Pod with a sidecar, what operates on it, and what the suite and the kubelet do.
type cluster struct {
	*testing.T
	operator
	key client.ObjectKey
}

func newCluster(t *testing.T, funcs interceptor.Funcs) *cluster {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web-0", UID: "u",
			Labels:      map[string]string{"kusionstack.io/control": "true"},
			Annotations: map[string]string{before: "0"}}, // of an operation that was cancelled
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "web", Image: oldImage}, {Name: "log", Image: "log:1"}}},
	}
	c := &cluster{T: t, key: client.ObjectKeyFromObject(pod)}
	c.Client = fake.NewClientBuilder().WithObjects(pod).WithStatusSubresource(pod).WithInterceptorFuncs(funcs).Build()
	c.kubelet(true, true, 0)
	return c
}

func (c *cluster) pod() *corev1.Pod {
	c.Helper()
	pod := &corev1.Pod{}
	if err := c.Get(c.Context(), c.key, pod); err != nil {
		c.Fatal(err)
	}
	return pod
}

// want annotates the Pod as people do.
func (c *cluster) want(image string) {
	c.Helper()
	pod := c.pod()
	pod.Annotations = map[string]string{wanted: image, before: pod.Annotations[before]}
	if err := c.Update(c.Context(), pod); err != nil {
		c.Fatal(err)
	}
}

// kubelet reports the containers, in the order of their names, and images by their full names.
func (c *cluster) kubelet(isRunning, isReady bool, restarts int32) {
	c.Helper()
	pod, ready := c.pod(), corev1.ConditionFalse
	web := corev1.ContainerStatus{Name: "web", Image: "registry.example.com/library/" + pod.Spec.Containers[0].Image,
		RestartCount: restarts}
	if isRunning {
		web.State.Running = &corev1.ContainerStateRunning{}
	}
	if isReady {
		ready = corev1.ConditionTrue
	}
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "log", Image: "log:1", RestartCount: 7}, web}
	pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.ContainersReady, Status: ready},
		{Type: corev1.PodReady, Status: ready}}
	if err := c.Status().Update(c.Context(), pod); err != nil {
		c.Fatal(err)
	}
}

// suite takes the steps that are due, as lifecycle-controller does; no rule is in the way.
func (c *cluster) suite() {
	c.Helper()
	view := podops.Read(c.pod())
	granted := podops.Verdicts{{ID: id, Stage: "PreCheck"}: true, {ID: id, Stage: "PostCheck"}: true}
	if due := podops.Advance(view, granted, time.Now()).Change; !due.IsZero() {
		if err := c.Patch(c.Context(), c.pod(), client.RawPatch(types.MergePatchType, due.MergePatch(view))); err != nil {
			c.Fatal(err)
		}
	}
}

// reconcile has the operator look at the Pod, twice as events may come, and checks its image and whether it operates.
func (c *cluster) reconcile(image string, isDuring bool) {
	c.Helper()
	for range 2 {
		if _, err := c.Reconcile(c.Context(), ctrl.Request{NamespacedName: c.key}); err != nil {
			c.Fatal(err)
		}
	}
	pod := c.pod()
	if is := podops.IsDuring(podops.Read(pod), id, retag); pod.Spec.Containers[0].Image != image || is != isDuring {
		c.Fatalf("the Pod has image %s, and operating is %t", pod.Spec.Containers[0].Image, is)
	}
}

func TestAPodGetsItsImage(t *testing.T) {
	c := newCluster(t, interceptor.Funcs{})
	c.reconcile(oldImage, false)
	for count, image := range []string{newImage, oldImage} { // and back
		c.want(image)
		c.reconcile(c.pod().Spec.Containers[0].Image, true)
		c.suite()
		c.reconcile(image, true)
		c.kubelet(true, true, int32(count)) // it has not seen the change
		c.reconcile(image, true)
		c.kubelet(false, false, int32(count)) // it pulls the image
		c.reconcile(image, true)
		c.kubelet(true, false, int32(count)+1)
		c.reconcile(image, true)
		c.kubelet(true, true, int32(count)+1)
		c.reconcile(image, false)
		c.suite()
		if phase := podops.PhaseOf(podops.Read(c.pod()), id); phase != podops.PhaseNone {
			t.Fatalf("the Pod is not back in service: %s", phase)
		}
	}
}

func TestAnImageThatDoesNotStartIsReplaced(t *testing.T) {
	c := newCluster(t, interceptor.Funcs{})
	c.want("nginx:1.92")
	c.reconcile(oldImage, true)
	c.suite()
	c.reconcile("nginx:1.92", true)
	c.want(newImage)
	c.reconcile("nginx:1.92", true) // the kubelet has not seen it yet, and could not tell the one from the other
	c.kubelet(false, false, 0)
	c.reconcile(newImage, true)
	c.kubelet(true, true, 1)
	c.reconcile(newImage, false)
}

func TestWhatIsNotWantedAnyMoreIsNotDone(t *testing.T) {
	for name, isGranted := range map[string]bool{"while it waits": false, "when it may": true} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t, interceptor.Funcs{})
			c.kubelet(false, false, 0)
			c.want(newImage)
			c.reconcile(oldImage, true)
			if isGranted {
				c.suite()
			}
			c.want("")
			c.reconcile(oldImage, false)
		})
	}
}

// TestConflict has the Pod change while the operator decides: it decides again.
func TestConflict(t *testing.T) {
	patches := 0
	c := newCluster(t, interceptor.Funcs{Patch: func(
		ctx context.Context, c client.WithWatch, o client.Object, patch client.Patch, options ...client.PatchOption,
	) error {
		if patches++; patches == 1 {
			return apierrors.NewConflict(corev1.Resource("pods"), o.GetName(), nil)
		}
		return c.Patch(ctx, o, patch, options...)
	}})
	c.want(newImage)
	c.reconcile(oldImage, true)
	if patches != 2 {
		t.Fatalf("there were %d patches", patches)
	}
}
