package podops_test

import (
	"context"
	"fmt"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"

	"kusionstack.io/kuperator/api/podops"
)

const (
	restarter      = "restarter"                      // this operator's slot on Pods
	retag          = "retag"                          // what it does
	restartsBefore = "restarter.example.com/restarts" // the count at the change
)

// operate brings one Pod to an image. It is called for every event of the Pod, and takes the one step that is due.
func operate(ctx context.Context, clients kubernetes.Interface, pod *corev1.Pod, image string, now time.Time) error {
	view := podops.Read(pod)
	changed := pod.Spec.Containers[0].Image == image
	switch {
	case changed && !podops.IsDuring(view, restarter, retag):
		return nil
	case changed && view.ContainersReady && restarts(pod) != pod.Annotations[restartsBefore]:
		return write(ctx, clients, pod, podops.Finish(view, restarter, retag, now))
	case changed: // the kubelet restarts the container
		return nil
	case podops.Allowed(view, restarter, retag):
		patch := fmt.Sprintf(`{"metadata":{"uid":%q,"resourceVersion":%q,"annotations":{%q:%q}},
			"spec":{"containers":[{"name":%q,"image":%q}]}}`,
			pod.UID, pod.ResourceVersion, restartsBefore, restarts(pod), pod.Spec.Containers[0].Name, image)
		_, err := clients.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.StrategicMergePatchType, []byte(patch),
			metav1.PatchOptions{})
		return err
	}
	begin, err := podops.Begin(view, podops.Request{ID: restarter, Type: retag}, now)
	if err != nil {
		return err
	}
	return write(ctx, clients, pod, begin) // empty while it waits
}

// restarts is how often the first container has been started again. When the number changes, the kubelet has carried
// the image out; the image in the status would not tell, because a kubelet writes its full name there.
func restarts(pod *corev1.Pod) string {
	for _, status := range pod.Status.ContainerStatuses { // in the order of their names
		if status.Name == pod.Spec.Containers[0].Name {
			return strconv.Itoa(int(status.RestartCount))
		}
	}
	return ""
}

// write sends a change; a conflict means that the Pod has changed, and its next event leads here again.
func write(ctx context.Context, clients kubernetes.Interface, pod *corev1.Pod, change podops.Change) error {
	if change.IsZero() {
		return nil
	}
	_, err := clients.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.MergePatchType,
		change.MergePatch(podops.Read(pod)), metav1.PatchOptions{})
	return err
}

// cooperate keeps one Pod in step with a balancer: send and stop change what it sends, and report whether it has
// followed.
func cooperate(
	ctx context.Context, clients kubernetes.Interface, pod *corev1.Pod, send, stop func(address string) bool,
	now time.Time,
) error {
	const finalizer = podops.ProtectionFinalizerPrefix + "/shop-balancer"
	view := podops.Read(pod)
	expect, err := podops.Expect(view, "Service/"+pod.Namespace+"/web", finalizer)
	switch {
	case err != nil:
		return err
	case !expect.IsZero():
		return write(ctx, clients, pod, expect)
	case podops.MustLeave(view) && stop(pod.Status.PodIP) && !view.Ready:
		return write(ctx, clients, pod, podops.Leave(view, finalizer, now))
	case podops.MayJoin(view) && send(pod.Status.PodIP):
		return write(ctx, clients, pod, podops.Join(view, finalizer, now))
	}
	return nil
}

// An operator asks, and acts only when the Pod is out of service.
func ExampleBegin() {
	ctx, now := context.Background(), time.Unix(1, 0)
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web-0", UID: "1"},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "web", Image: "nginx:1.28"}}},
		Status: corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: corev1.PodReady,
			Status: corev1.ConditionTrue}}},
	}
	clients := fake.NewClientset(pod)
	look := func() *corev1.Pod {
		pod, err := clients.CoreV1().Pods("shop").Get(ctx, "web-0", metav1.GetOptions{})
		if err != nil {
			panic(err)
		}
		return pod
	}
	for range 2 { // the second time it waits
		if err := operate(ctx, clients, look(), "nginx:1.29", now); err != nil {
			panic(err)
		}
	}
	fmt.Println(podops.PhaseOf(podops.Read(look()), restarter), look().Spec.Containers[0].Image)

	if err := write(ctx, clients, look(), podops.Cancel(podops.Read(look()), restarter, now)); err != nil {
		panic(err)
	}
	fmt.Println(podops.PhaseOf(podops.Read(look()), restarter) == podops.PhaseNone)
	// Output:
	// PreCheck nginx:1.28
	// true
}

// The operator ends on a real kubelet, which writes the full name of an image into the status.
func ExampleFinish() {
	ctx, now := context.Background(), time.Unix(1, 0)
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web-0", UID: "1", Labels: map[string]string{
			podops.OperatingPrefix + "/" + restarter:     "1",
			podops.OperationTypePrefix + "/" + restarter: retag,
			podops.PreCheckedPrefix + "/" + restarter:    "1",
			podops.PermissionPrefix + "/" + retag:        "1",
			podops.OperatePrefix + "/" + restarter:       "1",
		}},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "web", Image: "nginx:1.28"}}},
		Status: corev1.PodStatus{
			Conditions:        []corev1.PodCondition{{Type: corev1.ContainersReady, Status: corev1.ConditionTrue}},
			ContainerStatuses: []corev1.ContainerStatus{{Name: "web", Image: "registry.example.com/library/nginx:1.28"}},
		},
	}
	clients := fake.NewClientset(pod)
	step := func() {
		pod, err := clients.CoreV1().Pods("shop").Get(ctx, "web-0", metav1.GetOptions{})
		if err != nil {
			panic(err)
		}
		if err := operate(ctx, clients, pod, "nginx:1.29", now); err != nil {
			panic(err)
		}
		pod, _ = clients.CoreV1().Pods("shop").Get(ctx, "web-0", metav1.GetOptions{})
		fmt.Println(pod.Spec.Containers[0].Image, podops.IsDuring(podops.Read(pod), restarter, retag))
	}
	step() // it may act
	step() // the kubelet has not yet
	pod, err := clients.CoreV1().Pods("shop").Get(ctx, "web-0", metav1.GetOptions{})
	if err != nil {
		panic(err)
	}
	pod.Status.ContainerStatuses[0] = corev1.ContainerStatus{Name: "web", RestartCount: 1,
		Image: "registry.example.com/library/nginx:1.29"}
	if _, err := clients.CoreV1().Pods("shop").UpdateStatus(ctx, pod, metav1.UpdateOptions{}); err != nil {
		panic(err)
	}
	step()
	// Output:
	// nginx:1.29 true
	// nginx:1.29 true
	// nginx:1.29 false
}

// A cooperator joins when the Pod is Ready and its own system sends it traffic.
func ExampleJoin() {
	ctx, now := context.Background(), time.Unix(1, 0)
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web-0", UID: "1"},
		Status: corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: corev1.PodReady,
			Status: corev1.ConditionTrue}}},
	}
	clients := fake.NewClientset(pod)
	yes := func(string) bool { return true }
	for range 2 { // first the announcement, then the finalizer
		pod, err := clients.CoreV1().Pods("shop").Get(ctx, "web-0", metav1.GetOptions{})
		if err != nil {
			panic(err)
		}
		if err := cooperate(ctx, clients, pod, yes, yes, now); err != nil {
			panic(err)
		}
	}
	pod, err := clients.CoreV1().Pods("shop").Get(ctx, "web-0", metav1.GetOptions{})
	fmt.Println(pod.Finalizers, err)
	// Output: [prot.podopslifecycle.kusionstack.io/shop-balancer] <nil>
}
