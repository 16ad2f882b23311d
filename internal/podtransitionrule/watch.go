package podtransitionrule

import (
	"context"
	"maps"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
	"kusionstack.io/kuperator/internal/bootstrap"
)

// strip keeps of every object what a decision reads. Never write such a Pod or workload back.
func strip(object any) (any, error) {
	switch o := object.(type) {
	case *corev1.Pod:
		return stripPod(o), nil
	case *appsv1.ReplicaSet:
		kept := &appsv1.ReplicaSet{ObjectMeta: stripMeta(&o.ObjectMeta)}
		kept.Spec.Replicas, kept.Spec.Template.Labels = o.Spec.Replicas, o.Spec.Template.Labels
		return kept, nil
	case *appsv1.StatefulSet:
		kept := &appsv1.StatefulSet{ObjectMeta: stripMeta(&o.ObjectMeta)}
		kept.Spec.Replicas, kept.Spec.Template.Labels = o.Spec.Replicas, o.Spec.Template.Labels
		return kept, nil
	case *policyv1.PodDisruptionBudget:
		kept := &policyv1.PodDisruptionBudget{ObjectMeta: stripMeta(&o.ObjectMeta), Spec: o.Spec}
		kept.OwnerReferences = o.OwnerReferences
		return kept, nil
	case *metav1.PartialObjectMetadata: // nodes and namespaces
		kept := &metav1.PartialObjectMetadata{TypeMeta: o.TypeMeta, ObjectMeta: stripMeta(&o.ObjectMeta)}
		kept.Annotations = bootstrap.OnlyAnnotations(o.Annotations,
			func(key string) bool { return key == podops.FreezeAnnotation || key == podops.FreezeClusterAnnotation })
		return kept, nil
	case *appsv1alpha1.CollaSet:
		kept := &appsv1alpha1.CollaSet{ObjectMeta: stripMeta(&o.ObjectMeta)}
		kept.Spec.Replicas, kept.Spec.Template.Labels = o.Spec.Replicas, o.Spec.Template.Labels
		kept.Spec.Disruption, kept.Spec.NamingStrategy = o.Spec.Disruption, o.Spec.NamingStrategy
		if len(o.Spec.VolumeClaimTemplates) > 0 { // whether there are any matters to drain.PolicyOf
			kept.Spec.VolumeClaimTemplates = make([]corev1.PersistentVolumeClaim, 1)
		}
		return kept, nil
	}
	return bootstrap.StripManagedFields(object)
}

// stripPod keeps labels, the skip annotation, the notes of rules and an annotation that cannot be read, the node, the
// controller, phase and readiness: all Pods of the cluster are cached, because a rule may select any of them.
func stripPod(pod *corev1.Pod) *corev1.Pod {
	kept := &corev1.Pod{ObjectMeta: stripMeta(&pod.ObjectMeta)}
	kept.Annotations = bootstrap.OnlyAnnotations(pod.Annotations,
		func(key string) bool { return key == podops.SkipRulesAnnotation || isNote(key) })
	if _, err := podops.ExpectedFinalizers(pod.Annotations); err != nil { // then only it matters to a decision
		metav1.SetMetaDataAnnotation(&kept.ObjectMeta, podops.AvailableConditionsAnnotation,
			pod.Annotations[podops.AvailableConditionsAnnotation])
	}
	kept.Spec.NodeName = pod.Spec.NodeName
	if owner := metav1.GetControllerOfNoCopy(pod); owner != nil {
		kept.OwnerReferences = []metav1.OwnerReference{{UID: owner.UID, Controller: owner.Controller}}
	}
	kept.Status.Phase = pod.Status.Phase
	kept.Status.Conditions = bootstrap.OnlyConditions(pod.Status.Conditions, corev1.PodReady)
	return kept
}

// hasNotes reports whether rules have left notes on a Pod.
func hasNotes(annotations map[string]string) bool {
	return bootstrap.OnlyAnnotations(annotations, isNote) != nil
}

// isNote reports whether an annotation is a rule's note on a Pod.
func isNote(key string) bool { return strings.HasPrefix(key, podops.RuleDetailPrefix+"/") }

func stripMeta(m *metav1.ObjectMeta) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Namespace: m.Namespace, Name: m.Name, UID: m.UID, ResourceVersion: m.ResourceVersion,
		Generation: m.Generation, DeletionTimestamp: m.DeletionTimestamp, Labels: m.Labels,
	}
}

// byNamespace enqueues the namespace of an object: the unit of decision.
func byNamespace(_ context.Context, o client.Object) []reconcile.Request {
	return []reconcile.Request{request(o.GetNamespace())}
}

// concerned are the namespaces to decide about when what their Namespace tells has changed; all with rules if it is "".
func (r *reconciler) concerned(ctx context.Context, namespace string) []reconcile.Request {
	if namespace != "" {
		return []reconcile.Request{request(namespace)}
	}
	return namespacesWithRules(ctx, r.client, func(*appsv1alpha1.PodTransitionRule) bool { return true })
}

func request(namespace string) reconcile.Request {
	return reconcile.Request{NamespacedName: types.NamespacedName{Name: namespace}}
}

// sourceOf watches a kind, and enqueues what an object concerns when it comes, goes or changed.
func sourceOf(
	mgr ctrl.Manager, o client.Object, concerns func(context.Context, client.Object) []reconcile.Request,
	changed func(before, after client.Object) bool,
) source.Source {
	return source.Kind(mgr.GetCache(), o, handler.EnqueueRequestsFromMapFunc(concerns), predicate.Funcs{
		UpdateFunc: func(e event.UpdateEvent) bool { return changed(e.ObjectOld, e.ObjectNew) },
	})
}

// podSource enqueues the namespaces of Pods, except those where nothing is decided: most Pods of a cluster are under
// no rule.
func (r *reconciler) podSource(mgr ctrl.Manager) source.Source {
	return sourceOf(mgr, &corev1.Pod{}, func(ctx context.Context, o client.Object) []reconcile.Request {
		if r.atRest(o.GetNamespace()) {
			return nil
		}
		return byNamespace(ctx, o)
	}, podChanged)
}

// atRest reports whether a namespace had no rules when it was last looked at, and no notes of rules on its Pods. A
// rule that comes has the namespace looked at, and whatever Pods it then has with it.
func (r *reconciler) atRest(namespace string) bool {
	return r.clean(namespace).settled
}

// podChanged reports whether anything changed that a decision reads. Notes are its own writes.
func podChanged(before, after client.Object) bool {
	b, okBefore := before.(*corev1.Pod)
	a, okAfter := after.(*corev1.Pod)
	if !okBefore || !okAfter {
		return true
	}
	was, is := podops.Read(b), podops.Read(a)
	return was.UID != is.UID || was.Ready != is.Ready || was.Terminating != is.Terminating ||
		was.Terminal != is.Terminal ||
		!maps.Equal(was.Labels, is.Labels) ||
		was.Annotations[podops.SkipRulesAnnotation] != is.Annotations[podops.SkipRulesAnnotation] ||
		was.Annotations[podops.AvailableConditionsAnnotation] != is.Annotations[podops.AvailableConditionsAnnotation] ||
		ownerUID(b) != ownerUID(a) || b.Spec.NodeName != a.Spec.NodeName
}

func ruleSource(mgr ctrl.Manager) source.Source {
	return sourceOf(mgr, &appsv1alpha1.PodTransitionRule{}, byNamespace, func(before, after client.Object) bool {
		return before.GetResourceVersion() != after.GetResourceVersion()
	})
}

func ownerSource(mgr ctrl.Manager, kind client.Object) source.Source {
	return sourceOf(mgr, kind, byNamespace, specChanged)
}

// specChanged reports whether the spec of an object changed, or its deletion began, or it is another of that name.
func specChanged(before, after client.Object) bool {
	return before.GetUID() != after.GetUID() || before.GetGeneration() != after.GetGeneration() ||
		(before.GetDeletionTimestamp() == nil) != (after.GetDeletionTimestamp() == nil)
}

// namespacesWithRules are the namespaces that have such a rule.
func namespacesWithRules(
	ctx context.Context, c client.Reader, such func(*appsv1alpha1.PodTransitionRule) bool,
) []reconcile.Request {
	var list appsv1alpha1.PodTransitionRuleList
	if err := c.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "listing podtransitionrules: some namespaces are decided only at their next change")
		return nil
	}
	names := sets.New[string]()
	for i := range list.Items {
		if such(&list.Items[i]) {
			names.Insert(list.Items[i].Namespace)
		}
	}
	requests := make([]reconcile.Request, 0, len(names))
	for _, name := range sets.List(names) {
		requests = append(requests, request(name))
	}
	return requests
}
