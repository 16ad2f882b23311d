package operationjob

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
	"kusionstack.io/kuperator/internal/bootstrap"
	"kusionstack.io/kuperator/internal/revision"
)

const (
	// targetIndex is of OperationJobs, by the Pods that matter to targets under way: their names, and the instance IDs
	// that they await.
	targetIndex = "target"
	// instanceIndex is of Pods, by their CollaSet and instance ID.
	instanceIndex = "instance"
)

// targetsOf are the values of targetIndex.
func targetsOf(o client.Object) []string {
	job, ok := o.(*appsv1alpha1.OperationJob)
	if !ok {
		return nil
	}
	var values []string
	for i := range job.Status.TargetDetails {
		d := &job.Status.TargetDetails[i]
		if d.Operation == nil {
			continue
		}
		values = append(values, podKey(d.Name))
		if d.Operation.InstanceID != "" {
			values = append(values, instanceKey(string(d.Operation.CollaSet), d.Operation.InstanceID))
		}
	}
	return values
}

// instanceOf are the values of instanceIndex.
func instanceOf(o client.Object) []string {
	owner, id := metav1.GetControllerOfNoCopy(o), o.GetLabels()[appsv1alpha1.InstanceIDLabel]
	if owner == nil || owner.Kind != appsv1alpha1.CollaSetKind || id == "" {
		return nil
	}
	return []string{instanceKey(string(owner.UID), id)}
}

func podKey(pod string) string               { return "pod/" + pod }
func instanceKey(collaSet, id string) string { return "instance/" + collaSet + "/" + id }

// podSource enqueues the jobs that a Pod matters to.
func podSource(mgr ctrl.Manager) source.Source {
	jobs := func(ctx context.Context, o client.Object) []reconcile.Request {
		requests, err := jobsOf(ctx, mgr.GetClient(), o)
		if err != nil {
			ctrl.LoggerFrom(ctx).Error(err, "listing the OperationJobs of a Pod", "pod", client.ObjectKeyFromObject(o))
		}
		return requests
	}
	return source.Kind(mgr.GetCache(), client.Object(&corev1.Pod{}), handler.EnqueueRequestsFromMapFunc(jobs))
}

// jobsOf are the jobs that a Pod matters to.
func jobsOf(ctx context.Context, from client.Reader, pod client.Object) ([]reconcile.Request, error) {
	var requests []reconcile.Request
	for _, value := range append(instanceOf(pod), podKey(pod.GetName())) {
		var list appsv1alpha1.OperationJobList
		err := from.List(ctx, &list, client.InNamespace(pod.GetNamespace()), client.MatchingFields{targetIndex: value},
			client.UnsafeDisableDeepCopy)
		if err != nil {
			return requests, err
		}
		for i := range list.Items {
			requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&list.Items[i])})
		}
	}
	return requests, nil
}

// stripPod keeps what jobplan reads of a Pod. Never write such a Pod back.
var stripPod = bootstrap.ProtocolPods(isRead, func(pod *corev1.Pod, spec *corev1.PodSpec, status *corev1.PodStatus) {
	spec.RestartPolicy = pod.Spec.RestartPolicy
	spec.Containers = revision.OnlyContainers(pod.Spec.Containers, false)
	spec.InitContainers = revision.OnlyContainers(pod.Spec.InitContainers, false)
	status.ObservedGeneration = pod.Status.ObservedGeneration
	status.ContainerStatuses = runs(pod.Status.ContainerStatuses)
	status.InitContainerStatuses = runs(pod.Status.InitContainerStatuses)
})

// runs are statuses without all but what runs.
func runs(statuses []corev1.ContainerStatus) []corev1.ContainerStatus {
	var kept []corev1.ContainerStatus
	for i := range statuses {
		s := &statuses[i]
		kept = append(kept, corev1.ContainerStatus{Name: s.Name, ContainerID: s.ContainerID, ImageID: s.ImageID,
			Ready: s.Ready, State: corev1.ContainerState{Running: running(s)}})
	}
	return kept
}

// running is whether the container runs.
func running(s *corev1.ContainerStatus) *corev1.ContainerStateRunning {
	if s.State.Running == nil {
		return nil
	}
	return &corev1.ContainerStateRunning{} // without a time, so that Pods have more in common
}

// isRead reports whether jobplan reads the annotation.
func isRead(annotation string) bool {
	switch annotation {
	case podops.TasksAnnotation, podops.AvailableConditionsAnnotation, podops.DeletionRefusedAnnotation,
		appsv1alpha1.LastPodStatusAnnotation, appsv1alpha1.ToReplaceLabel + podops.AskersSuffix,
		appsv1alpha1.ToDeleteLabel + podops.AskersSuffix:
		return true
	}
	return false
}
