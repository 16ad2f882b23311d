// Package evictions plays the controller of EvictionRequests (KEP-4563), which Kubernetes 1.37 has the API for and does
// not have yet. It keeps to what the API server validates, and does no more than tests of a responder need: Pods that
// are targets exist when the first request is made.
package evictions

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	lifecyclev1alpha1 "k8s.io/api/lifecycle/v1alpha1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Flags are those of kube-apiserver that have it serve the API, from Kubernetes 1.37 on.
func Flags() []string {
	return []string{"--feature-gates=EvictionRequestAPI=true", "--runtime-config=lifecycle.k8s.io/v1alpha1=true"}
}

// pause is between two looks.
const pause = 100 * time.Millisecond

// Request is an EvictionRequest by a requester for a Pod.
func Request(pod *corev1.Pod, requester string) *lifecyclev1alpha1.EvictionRequest {
	return &lifecyclev1alpha1.EvictionRequest{
		ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, GenerateName: pod.Name + "-"},
		Spec: lifecyclev1alpha1.EvictionRequestSpec{
			Target: lifecyclev1alpha1.EvictionRequestTarget{
				Pod: &lifecyclev1alpha1.EvictionRequestPodReference{Name: pod.Name, UID: pod.UID}},
			Requester: requester, Intent: lifecyclev1alpha1.EvictionRequestIntentEviction,
		},
	}
}

// Controller plays the controller in one namespace.
type Controller struct {
	Client    client.Client
	Namespace string
}

// Run looks again and again until ctx ends. It returns an error that is no conflict.
func (c *Controller) Run(ctx context.Context) error {
	ticker := time.NewTicker(pause)
	defer ticker.Stop()
	for {
		if err := c.sync(ctx); err != nil && ctx.Err() == nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

// sync makes the Evictions that are requested, and takes each a step further.
func (c *Controller) sync(ctx context.Context) error {
	var requests lifecyclev1alpha1.EvictionRequestList
	if err := c.Client.List(ctx, &requests, client.InNamespace(c.Namespace)); err != nil {
		return err
	}
	byTarget := map[types.UID][]lifecyclev1alpha1.Requester{}
	for i := range requests.Items {
		spec := &requests.Items[i].Spec
		uid := spec.Target.Pod.UID
		byTarget[uid] = append(byTarget[uid], lifecyclev1alpha1.Requester{Name: spec.Requester,
			Intent: lifecyclev1alpha1.RequesterIntent(spec.Intent)})
	}
	var evictions lifecyclev1alpha1.EvictionList
	if err := c.Client.List(ctx, &evictions, client.InNamespace(c.Namespace)); err != nil {
		return err
	}
	known := map[types.UID]bool{}
	for i := range evictions.Items {
		eviction := &evictions.Items[i]
		uid := eviction.Spec.Target.Pod.UID
		known[uid] = true
		err := c.advance(ctx, eviction, byTarget[uid])
		if err != nil && !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
			return fmt.Errorf("advancing Eviction %s: %w", eviction.Name, err)
		}
	}
	for i := range requests.Items {
		request := &requests.Items[i]
		target := request.Spec.Target.Pod
		if known[target.UID] || request.Spec.Intent != lifecyclev1alpha1.EvictionRequestIntentEviction {
			continue
		}
		known[target.UID] = true
		if err := c.create(ctx, target.Name, target.UID, byTarget[target.UID]); err != nil {
			return fmt.Errorf("making the Eviction of Pod %s: %w", target.Name, err)
		}
	}
	return nil
}

// create makes the Eviction of a Pod. A Pod that is gone has none.
func (c *Controller) create(
	ctx context.Context, name string, uid types.UID, requesters []lifecyclev1alpha1.Requester,
) error {
	pod := &corev1.Pod{}
	err := c.Client.Get(ctx, types.NamespacedName{Namespace: c.Namespace, Name: name}, pod)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	eviction := &lifecyclev1alpha1.Eviction{
		ObjectMeta: metav1.ObjectMeta{Namespace: c.Namespace, GenerateName: name + "-", Labels: map[string]string{}},
		Spec: lifecyclev1alpha1.EvictionSpec{Target: lifecyclev1alpha1.EvictionTarget{
			Pod: &lifecyclev1alpha1.EvictionPodReference{Name: name, UID: uid}}},
	}
	for _, requester := range requesters {
		eviction.Labels[requester.Name] = string(lifecyclev1alpha1.EvictionParticipantRoleRequester)
	}
	for _, responder := range pod.Spec.EvictionResponders {
		eviction.Labels[responder.Name] = string(lifecyclev1alpha1.EvictionParticipantRoleResponder)
	}
	if err := c.Client.Create(ctx, eviction); err != nil {
		return err
	}
	status := &eviction.Status
	responders := append(slices.Clone(pod.Spec.EvictionResponders), corev1.EvictionResponder{
		Name: lifecyclev1alpha1.EvictionResponderImperativeEviction, Priority: ptr.To[int32](100)})
	slices.SortStableFunc(responders,
		func(a, b corev1.EvictionResponder) int { return int(*b.Priority - *a.Priority) })
	for _, r := range responders {
		status.TargetResponders = append(status.TargetResponders, lifecyclev1alpha1.TargetResponder{Name: r.Name,
			Priority: r.Priority, State: lifecyclev1alpha1.ResponderStateInactive})
		status.Responders = append(status.Responders, lifecyclev1alpha1.ResponderStatus{Name: r.Name})
	}
	status.Requesters = requesters
	activate(status, 0)
	return c.Client.Status().Update(ctx, eviction)
}

// activate gives a responder the turn.
func activate(status *lifecyclev1alpha1.EvictionStatus, i int) {
	now := metav1.Now()
	status.TargetResponders[i].State, status.Responders[i].StartTime = lifecyclev1alpha1.ResponderStateActive, &now
}

// Active is the responder whose turn it is, -1 if it is nobody's. The controller sorts responders by their priority.
func Active(eviction *lifecyclev1alpha1.Eviction) int {
	return slices.IndexFunc(eviction.Status.TargetResponders, func(r lifecyclev1alpha1.TargetResponder) bool {
		return r.State == lifecyclev1alpha1.ResponderStateActive
	})
}

// advance takes an Eviction a step further.
func (c *Controller) advance(
	ctx context.Context, eviction *lifecyclev1alpha1.Eviction, requesters []lifecyclev1alpha1.Requester,
) error {
	status, i := &eviction.Status, Active(eviction)
	if i < 0 {
		return nil // it has ended, or a test has made it and sets its status
	}
	pod := &corev1.Pod{}
	target := types.NamespacedName{Namespace: c.Namespace, Name: eviction.Spec.Target.Pod.Name}
	err := c.Client.Get(ctx, target, pod)
	if client.IgnoreNotFound(err) != nil {
		return err
	}
	withdrawn := !slices.ContainsFunc(requesters, func(r lifecyclev1alpha1.Requester) bool {
		return r.Intent == lifecyclev1alpha1.RequesterIntentEviction
	})
	switch {
	case err != nil:
		end(status, i, lifecyclev1alpha1.ResponderStateInterrupted, lifecyclev1alpha1.EvictionConditionTargetEvicted,
			lifecyclev1alpha1.EvictionConditionReasonPodDeleted)
	case withdrawn && len(status.Requesters) > 0:
		end(status, i, lifecyclev1alpha1.ResponderStateCanceled, lifecyclev1alpha1.EvictionConditionFailed,
			lifecyclev1alpha1.EvictionConditionReasonCanceledDueToNoRequesters)
	case status.Responders[i].CompletionTime != nil && i+1 < len(status.TargetResponders):
		status.TargetResponders[i].State = lifecyclev1alpha1.ResponderStateCompleted
		activate(status, i+1)
	case status.Responders[i].CompletionTime != nil:
		end(status, i, lifecyclev1alpha1.ResponderStateCompleted, lifecyclev1alpha1.EvictionConditionFailed,
			lifecyclev1alpha1.EvictionConditionReasonNoFurtherResponder)
	case status.TargetResponders[i].Name == lifecyclev1alpha1.EvictionResponderImperativeEviction:
		return c.evict(ctx, pod, eviction.Spec.Target.Pod.UID)
	default:
		return nil
	}
	return c.Client.Status().Update(ctx, eviction)
}

// Interrupt ends an Eviction whose responder was not heard of. The API server wants 20 minutes of silence for that, or
// the end of the whole Eviction.
func (c *Controller) Interrupt(ctx context.Context, eviction *lifecyclev1alpha1.Eviction) error {
	i := Active(eviction)
	if i < 0 {
		return errors.New("it is nobody's turn")
	}
	end(&eviction.Status, i, lifecyclev1alpha1.ResponderStateInterrupted, lifecyclev1alpha1.EvictionConditionFailed,
		lifecyclev1alpha1.EvictionConditionReasonNoFurtherResponder)
	return c.Client.Status().Update(ctx, eviction)
}

// end ends an Eviction, and the turn of the responder that has it.
func end(
	status *lifecyclev1alpha1.EvictionStatus, active int, state lifecyclev1alpha1.ResponderStateType,
	condition lifecyclev1alpha1.EvictionConditionType, reason lifecyclev1alpha1.EvictionConditionReason,
) {
	status.TargetResponders[active].State = state
	meta.SetStatusCondition(&status.Conditions, metav1.Condition{Type: string(condition), Status: metav1.ConditionTrue,
		Reason: string(reason)})
}

// evict is the last responder's turn: the Eviction API.
func (c *Controller) evict(ctx context.Context, pod *corev1.Pod, uid types.UID) error {
	err := c.Client.SubResource("eviction").Create(ctx, pod, &policyv1.Eviction{
		DeleteOptions: &metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}}})
	if apierrors.IsTooManyRequests(err) {
		return nil // at the next look
	}
	return err
}
