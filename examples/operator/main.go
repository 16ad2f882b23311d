// Command retag is an operator: it brings the first container of a Pod to the image that an annotation of the Pod
// names, in place, while the Pod is out of service.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"

	"kusionstack.io/kuperator/api/podops"
)

const (
	id     = "retag"                      // this operator's slot on Pods
	retag  = "retag"                      // what it does there
	wanted = "retag.example.com/image"    // set by people
	before = "retag.example.com/restarts" // the count of restarts when the image was changed; set by this program
)

// step is the patch that is due on a Pod, nil if none is.
func step(pod *corev1.Pod, now time.Time) (client.Patch, error) {
	view, container := podops.Read(pod), &pod.Spec.Containers[0]
	isRunning, restarts := reported(pod, container.Name)
	hasChanged := podops.IsDuring(view, id, retag) && pod.Annotations[before] != ""
	image := pod.Annotations[wanted]
	isWanted := image != "" && image != container.Image

	switch {
	case hasChanged && isRunning && restarts == pod.Annotations[before]: // the kubelet has not seen the change
		return nil, nil
	case isWanted && podops.Allowed(view, id, retag):
		return imagePatch(pod, image, restarts), nil
	case isWanted:
		begin, err := podops.Begin(view, podops.Request{ID: id, Type: retag}, now)
		if err != nil || begin.IsZero() { // it waits
			return nil, err
		}
		forget := podops.Change{Annotations: map[string]*string{before: nil}}
		return patchOf(view, begin.Then(view, forget)), nil
	case hasChanged && !view.ContainersReady: // the container starts
		return nil, nil
	}
	return patchOf(view, podops.Finish(view, id, retag, now)), nil // changes nothing if it does not operate
}

// reported is what the kubelet tells of a container: whether it runs, and how often it has been started again. When the
// count changes, the image has been carried out. The image in the status does not tell: the kubelet writes its full
// name there.
func reported(pod *corev1.Pod, container string) (isRunning bool, restarts string) {
	for _, status := range pod.Status.ContainerStatuses {
		if status.Name == container {
			return status.State.Running != nil, strconv.Itoa(int(status.RestartCount))
		}
	}
	return false, "0"
}

// patchOf is a change of labels and annotations, nil for none. It has the Pod's UID and resourceVersion.
func patchOf(view podops.View, change podops.Change) client.Patch {
	if change.IsZero() {
		return nil
	}
	return client.RawPatch(types.MergePatchType, change.MergePatch(view))
}

// imagePatch is the operation itself: allowed for this resourceVersion, and refused for any other.
func imagePatch(pod *corev1.Pod, image, restarts string) client.Patch {
	return client.RawPatch(types.StrategicMergePatchType, fmt.Appendf(nil,
		`{"metadata":{"uid":%q,"resourceVersion":%q,"annotations":{%q:%q}},"spec":{"containers":[{"name":%q,"image":%q}]}}`,
		pod.UID, pod.ResourceVersion, before, restarts, pod.Spec.Containers[0].Name, image))
}

// operator brings Pods to their images.
type operator struct{ client.Client }

// Reconcile is called for every event of a Pod, and takes the one step that is due. If the Pod is another by now, its
// next event leads here again.
func (o *operator) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	pod := &corev1.Pod{}
	if err := o.Get(ctx, request.NamespacedName, pod); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	patch, err := step(pod, time.Now())
	if err != nil || patch == nil {
		return ctrl.Result{}, err
	}
	if err := o.Patch(ctx, pod, patch); !apierrors.IsConflict(err) {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	return ctrl.Result{}, nil
}

func main() {
	flag.Parse() // --kubeconfig
	ctrl.SetLogger(zap.New())
	if err := run(ctrl.SetupSignalHandler()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// run watches the Pods that take part, and no others, until ctx ends.
func run(ctx context.Context) error {
	managed := cache.ByObject{Label: labels.SelectorFromSet(labels.Set{"kusionstack.io/control": "true"})}
	options := ctrl.Options{Cache: cache.Options{ByObject: map[client.Object]cache.ByObject{&corev1.Pod{}: managed}}}
	options.Metrics.BindAddress = "0"
	mgr, err := ctrl.NewManager(ctrl.GetConfigOrDie(), options)
	if err != nil {
		return err
	}
	err = ctrl.NewControllerManagedBy(mgr).For(&corev1.Pod{}).Complete(&operator{mgr.GetClient()})
	if err != nil {
		return err
	}
	return mgr.Start(ctx)
}
