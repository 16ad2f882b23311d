package poddecoration

import (
	"context"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
	"kusionstack.io/kuperator/internal/bootstrap"
	"kusionstack.io/kuperator/internal/revision"
)

// ownerIndex is of ControllerRevisions, by the UID of the PodDecoration that controls them.
const ownerIndex = "owner"

// revisionOwner is the value of ownerIndex.
func revisionOwner(o client.Object) []string {
	owner := metav1.GetControllerOfNoCopy(o)
	if owner == nil || !isDecoration(owner) {
		return nil
	}
	return []string{string(owner.UID)}
}

// isDecoration reports whether a reference is to a PodDecoration.
func isDecoration(ref *metav1.OwnerReference) bool {
	return ref.Kind == appsv1alpha1.PodDecorationKind && ref.APIVersion == appsv1alpha1.SchemeGroupVersion.String()
}

// request is about a namespace: the unit of decision.
func request(namespace string) reconcile.Request {
	return reconcile.Request{NamespacedName: types.NamespacedName{Name: namespace}}
}

func byNamespace(_ context.Context, o client.Object) []reconcile.Request {
	return []reconcile.Request{request(o.GetNamespace())}
}

var changed = predicate.ResourceVersionChangedPredicate{}

func decorationSource(mgr ctrl.Manager) source.Source {
	return source.Kind(mgr.GetCache(), client.Object(&appsv1alpha1.PodDecoration{}),
		handler.EnqueueRequestsFromMapFunc(byNamespace), changed)
}

// revisionSource enqueues the namespaces of revisions of PodDecorations.
func revisionSource(mgr ctrl.Manager) source.Source {
	ours := predicate.NewPredicateFuncs(func(o client.Object) bool { return len(revisionOwner(o)) > 0 })
	return source.Kind(mgr.GetCache(), client.Object(&appsv1.ControllerRevision{}),
		handler.EnqueueRequestsFromMapFunc(byNamespace), ours, changed)
}

// podSource enqueues the namespaces of Pods, but for those without decorations: most Pods of a cluster have none. A
// decoration that comes has the namespace looked at, and all Pods that it then has.
func (r *reconciler) podSource(mgr ctrl.Manager) source.Source {
	namespaces := func(_ context.Context, o client.Object) []reconcile.Request {
		req := request(o.GetNamespace())
		if r.namespaces.Find(req.NamespacedName, "") == nil {
			return nil
		}
		return []reconcile.Request{req}
	}
	return source.Kind(mgr.GetCache(), client.Object(&corev1.Pod{}), handler.EnqueueRequestsFromMapFunc(namespaces),
		changed)
}

// stripRevision keeps the content of revisions of PodDecorations only.
func stripRevision(object any) (any, error) {
	cr, ok := object.(*appsv1.ControllerRevision)
	if !ok {
		return bootstrap.StripManagedFields(object)
	}
	cr.ManagedFields = nil
	if len(revisionOwner(cr)) == 0 {
		cr.Data, cr.Labels, cr.Annotations = runtime.RawExtension{}, nil, nil
	}
	return cr, nil
}

// stripPod keeps what decisions read of a Pod, of one outside the lifecycle only what tells which decorations it is to
// have, has, and whether it is Ready. Never write such a Pod back.
var stripPod = bootstrap.ProtocolPods(isRead, func(pod *corev1.Pod, spec *corev1.PodSpec, status *corev1.PodStatus) {
	if revision.Recorded(pod) {
		spec.Containers = revision.OnlyContainers(pod.Spec.Containers, true)
		spec.InitContainers = revision.OnlyContainers(pod.Spec.InitContainers, true)
		spec.Resources, status.Resources = pod.Spec.Resources, pod.Status.Resources
		status.ContainerStatuses = revision.OnlyStatuses(pod.Status.ContainerStatuses, true)
		status.InitContainerStatuses = revision.OnlyStatuses(revision.SidecarStatuses(pod), true)
		status.ObservedGeneration = pod.Status.ObservedGeneration
		for _, c := range pod.Status.Conditions {
			if c.Type == corev1.PodResizePending || c.Type == corev1.PodResizeInProgress {
				status.Conditions = append(status.Conditions, corev1.PodCondition{Type: c.Type, Status: c.Status,
					Reason: c.Reason, Message: c.Message, ObservedGeneration: c.ObservedGeneration})
			}
		}
	}
})

// isRead reports whether a decision reads the annotation.
func isRead(annotation string) bool {
	switch annotation {
	case appsv1alpha1.PodDecorationRevisionsAnnotation, appsv1alpha1.PodDecorationRefusedAnnotation,
		appsv1alpha1.PodDecorationDesiredAnnotation, appsv1alpha1.PodDecorationChangesAnnotation,
		podops.AvailableConditionsAnnotation, podops.DeletionRefusedAnnotation, appsv1alpha1.LastPodStatusAnnotation,
		appsv1alpha1.ToDeleteLabel + podops.AskersSuffix:
		return true
	}
	return false
}
