package webhook

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
	"kusionstack.io/kuperator/internal/drain"
	"kusionstack.io/kuperator/internal/drain/evicted"
)

// remover answers requests to delete and to evict Pods. Its methods are safe for concurrent use, and any number of
// replicas may answer: what they agree on is the mark on the Pod.
type remover struct {
	policy removalPolicy
	// namespaces reads metadata of Namespaces from a cache.
	namespaces client.Reader
	// live reads past any cache: Pods that are evicted, and their PodDisruptionBudgets. Both are rare.
	live     client.Reader
	writer   client.Writer
	refusals refusals
	clock    clock.PassiveClock
}

// +kubebuilder:rbac:groups="",resources=pods,verbs=get;patch
// +kubebuilder:rbac:groups="",resources=namespaces,verbs=get;list;watch
// +kubebuilder:rbac:groups=apps.kusionstack.io,resources=collasets,verbs=get
// +kubebuilder:rbac:groups=policy,resources=poddisruptionbudgets,verbs=list

// deletion answers a DELETE of a Pod.
func (r *remover) deletion(ctx context.Context, request admission.Request) admission.Response {
	if !concerns(request, "pods", admissionv1.Delete) {
		return admission.Allowed("")
	}
	pod, options := &corev1.Pod{}, metav1.DeleteOptions{}
	if err := json.Unmarshal(request.OldObject.Raw, pod); err != nil {
		return undecodable("Pod", err)
	}
	if len(request.Options.Raw) > 0 {
		if err := json.Unmarshal(request.Options.Raw, &options); err != nil {
			return undecodable("DeleteOptions", err)
		}
	}
	return r.answer(ctx, removalOf(request, removeByDelete, pod, options), pod)
}

// eviction answers the creation of an Eviction. The API server does not say anything about the Pod.
func (r *remover) eviction(ctx context.Context, request admission.Request) admission.Response {
	if request.Resource.Resource != "pods" || request.SubResource != "eviction" ||
		request.Operation != admissionv1.Create {
		return admission.Allowed("")
	}
	eviction := policyv1.Eviction{}
	if err := json.Unmarshal(request.Object.Raw, &eviction); err != nil {
		return undecodable("Eviction", err)
	}
	pod, key := &corev1.Pod{}, client.ObjectKey{Namespace: request.Namespace, Name: request.Name}
	if err := r.live.Get(ctx, key, pod); apierrors.IsNotFound(err) {
		return admission.Allowed("") // the API server says so itself
	} else if err != nil {
		return failed(ctx, removal{Verb: removeByEviction, Pod: podops.View{Name: key.Name}},
			fmt.Errorf("reading Pod %s: %w", key, err))
	}
	options := ptr.Deref(eviction.DeleteOptions, metav1.DeleteOptions{})
	if p := options.Preconditions; p != nil &&
		(p.UID != nil && *p.UID != pod.UID || p.ResourceVersion != nil && *p.ResourceVersion != pod.ResourceVersion) {
		return admission.Allowed("") // as above
	}
	asked := removalOf(request, removeByEviction, pod, options)
	asked.Repeated = options.Preconditions == nil && nameComesAgain(pod) && r.refusals.refused(evictorOf(asked), pod.UID)
	if !asked.DryRun && !asked.Pod.Terminating && r.refusals.replaced(evictorOf(asked), pod.UID) {
		return count(asked.Verb, replaced(pod), false)
	}
	return r.answer(ctx, asked, pod)
}

// removalOf puts together what the request and the Pod say.
func removalOf(request admission.Request, verb removalVerb, pod *corev1.Pod, options metav1.DeleteOptions) removal {
	return removal{
		Verb:   verb,
		User:   request.UserInfo.Username,
		Groups: request.UserInfo.Groups,
		// kubectl drain asks for a dry run in the Eviction's body alone.
		DryRun: ptr.Deref(request.DryRun, false) || slices.Contains(options.DryRun, metav1.DryRunAll),
		Forced: options.GracePeriodSeconds != nil && *options.GracePeriodSeconds == 0,
		Pinned: options.Preconditions != nil &&
			ptr.Deref(options.Preconditions.ResourceVersion, "") == pod.ResourceVersion,
		Pod:       podops.Read(pod),
		Scheduled: pod.Spec.NodeName != "",
	}
}

// answer looks at what the request did not bring, decides, and marks the Pod if that is decided.
func (r *remover) answer(ctx context.Context, asked removal, pod *corev1.Pod) admission.Response {
	if err := r.readOwner(ctx, &asked, pod); err != nil {
		return failed(ctx, asked, err)
	}
	if unprepared(asked, r.policy) {
		return count(asked.Verb, admission.Allowed(""), false)
	}
	if err := r.readNamespace(ctx, &asked); err != nil {
		return failed(ctx, asked, err)
	}
	answer := decideRemoval(asked, r.policy)
	if asked.Verb == removeByEviction && (!answer.Allowed || asked.DryRun || !r.policy.Graceful) {
		if err := r.readPolicy(ctx, &asked, pod); err != nil {
			return failed(ctx, asked, err)
		}
		answer = decideRemoval(asked, r.policy)
	}
	if asked.Verb == removeByEviction && !answer.Allowed && !asked.DryRun {
		r.refusals.remember(evictorOf(asked), pod.UID)
	}
	if answer.Mark != "" {
		if err := r.mark(ctx, asked, pod, answer.Mark); err != nil {
			return failed(ctx, asked, err)
		}
	}
	return count(asked.Verb, respond(pod.Name, answer), answer.Mark != "")
}

// readPolicy adds what an eviction does to the Pod, and whether a PodDisruptionBudget is in the way of the first one.
func (r *remover) readPolicy(ctx context.Context, asked *removal, pod *corev1.Pod) error {
	workload, err := evicted.Read(ctx, r.live, pod)
	asked.Policy, asked.Awaits, asked.Budget = workload.Policy, workload.Awaits, workload.Budget
	return err
}

func evictorOf(r removal) evictor {
	return evictor{user: r.User, pod: types.NamespacedName{Namespace: r.Pod.Namespace, Name: r.Pod.Name}}
}

// garbageCollector deletes the Pods of owners that are gone, and those of an owner that is deleted in the foreground
// if their owner reference blocks that.
const garbageCollector = "system:serviceaccount:kube-system:generic-garbage-collector"

// readOwner adds whether the Pod's CollaSet is there to take the Pod out of service, if the garbage collector wants
// to delete it. Pods that Kuperator v0.7 or an earlier version of this suite made have an owner reference that
// blocks.
func (r *remover) readOwner(ctx context.Context, asked *removal, pod *corev1.Pod) error {
	owner := evicted.CollaSetOf(pod)
	if asked.User != garbageCollector || owner == nil {
		return nil
	}
	set := &metav1.PartialObjectMetadata{}
	set.SetGroupVersionKind(appsv1alpha1.SchemeGroupVersion.WithKind(appsv1alpha1.CollaSetKind))
	err := r.live.Get(ctx, client.ObjectKey{Namespace: pod.Namespace, Name: owner.Name}, set)
	switch {
	case apierrors.IsNotFound(err) || meta.IsNoMatchError(err):
		return nil
	case err != nil:
		return fmt.Errorf("reading CollaSet %s/%s: %w", pod.Namespace, owner.Name, err)
	case set.UID == owner.UID && set.DeletionTimestamp != nil &&
		slices.Contains(set.Finalizers, appsv1alpha1.CollaSetFinalizer):
		asked.Leaving = set.Name
	}
	return nil
}

// readNamespace adds what the namespace says.
func (r *remover) readNamespace(ctx context.Context, asked *removal) error {
	namespace := &metav1.PartialObjectMetadata{}
	namespace.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Namespace"))
	key := client.ObjectKey{Name: asked.Pod.Namespace}
	err := r.namespaces.Get(ctx, key, namespace)
	if apierrors.IsNotFound(err) { // made a moment ago
		err = r.live.Get(ctx, key, namespace)
	}
	if err != nil {
		return fmt.Errorf("reading Namespace %s: %w", key.Name, err)
	}
	asked.NamespaceTerminating = namespace.DeletionTimestamp != nil
	asked.NamespaceLabel = namespace.Labels[podops.GracefulDeletionLabel]
	return nil
}

// nameComesAgain reports whether another Pod gets the Pod's name: that of its owner and a number, as in a StatefulSet
// or in a CollaSet with names in sequence.
func nameComesAgain(pod *corev1.Pod) bool {
	owner := metav1.GetControllerOf(pod)
	if owner == nil {
		return false
	}
	number, named := strings.CutPrefix(pod.Name, owner.Name+"-")
	_, err := strconv.ParseUint(number, 10, 32)
	return named && err == nil
}

// cheapest is the pod-deletion-cost of a marked Pod of a ReplicaSet.
const cheapest = "-2147483648"

// mark asks for the Pod to be deleted gracefully, or to be replaced first. A Pod that is gone, has changed or is another
// one by now (a conflict) is marked at the next request, if it still needs that.
//
// A ReplicaSet that is refused to delete a Pod chooses again next time, and its order changes as Pods go. The marked
// Pod becomes the cheapest to delete, unless its owner has set a cost, so that not a second one is marked in its place.
func (r *remover) mark(ctx context.Context, asked removal, pod *corev1.Pod, mark string) error {
	view := asked.Pod
	change, err := drain.Ask(view, mark == appsv1alpha1.ToReplaceLabel, r.clock.Now(), podops.AskerEviction)
	if asked.Verb == removeByDelete {
		change, err = askedByUser(view, r.clock.Now())
		view.ResourceVersion = "" // a user does not ask twice, so another's write is no reason to give up
	}
	if err != nil {
		return err
	}
	owner := metav1.GetControllerOf(pod)
	if _, priced := pod.Annotations[corev1.PodDeletionCost]; !priced && owner != nil && owner.Kind == "ReplicaSet" {
		cost := cheapest
		change.Annotations = maps.Clone(change.Annotations)
		if change.Annotations == nil {
			change.Annotations = map[string]*string{}
		}
		change.Annotations[corev1.PodDeletionCost] = &cost
	}
	marked := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name}}
	err = r.writer.Patch(ctx, marked, client.RawPatch(types.MergePatchType, change.MergePatch(view)))
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return fmt.Errorf("marking Pod %s/%s with %s: %w", pod.Namespace, pod.Name, mark, err)
	}
	return nil
}

// askedByUser is the change by which a user asks for the Pod's deletion, beside those who ask already and may withdraw.
// It writes the mark even if the Pod has it: that may have been withdrawn by now.
func askedByUser(v podops.View, now time.Time) (podops.Change, error) {
	value, isMarked := v.Labels[appsv1alpha1.ToDeleteLabel]
	if !isMarked {
		value = podops.Stamp(now)
		return podops.Change{Labels: map[string]*string{appsv1alpha1.ToDeleteLabel: &value}}, nil
	}
	beside, err := podops.Mark(v, appsv1alpha1.ToDeleteLabel, value, podops.AskerOther)
	return podops.Change{Labels: map[string]*string{appsv1alpha1.ToDeleteLabel: &value},
		Annotations: beside.Annotations}, err
}

// respond gives the answer the form that the API server passes on: code, reason and details as they are.
func respond(pod string, answer removalAnswer) admission.Response {
	if answer.Allowed {
		return admission.Allowed("").WithWarnings(answer.Warnings...)
	}
	return admission.Response{AdmissionResponse: admissionv1.AdmissionResponse{
		Result: &metav1.Status{
			Status: metav1.StatusFailure, Code: answer.Code, Reason: answer.Reason, Message: answer.Message,
			Details: &metav1.StatusDetails{Kind: "pods", Name: pod, RetryAfterSeconds: answer.RetryAfter},
		},
		Warnings: answer.Warnings,
	}}
}

// replaced answers an eviction that was meant for an earlier Pod of the name.
func replaced(pod *corev1.Pod) admission.Response {
	status := apierrors.NewNotFound(corev1.Resource("pods"), pod.Name).ErrStatus
	status.Message = fmt.Sprintf(
		"the Pod %s that was to be evicted is gone, and another one has its name: to evict that one, ask again", pod.Name)
	return admission.Response{AdmissionResponse: admissionv1.AdmissionResponse{Result: &status}}
}

// failed refuses because it is not known what to do; nothing has been done to the Pod. The client that evicts is told
// to try again.
func failed(ctx context.Context, r removal, err error) admission.Response {
	removals.WithLabelValues(string(r.Verb), resultFailed).Inc()
	log.FromContext(ctx).Error(err, "The graceful deletion of a Pod could not begin.", "verb", r.Verb)
	answer := refuse(r, nil,
		fmt.Sprintf(
			"the graceful deletion of Pod %s could not begin, try again, or delete it with --grace-period=0 --force: %v",
			r.Pod.Name, err))
	if r.Verb == removeByDelete {
		answer.Code, answer.Reason = http.StatusInternalServerError, metav1.StatusReasonInternalError
	}
	return respond(r.Pod.Name, answer)
}
