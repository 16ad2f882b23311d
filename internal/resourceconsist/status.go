package resourceconsist

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	api "kusionstack.io/kuperator/api/resourceconsist"
	"kusionstack.io/kuperator/internal/failures"
	"kusionstack.io/kuperator/internal/resourceconsist/backend"
	"kusionstack.io/kuperator/internal/shorten"
)

// +kubebuilder:rbac:groups="",resources=services/status,verbs=patch

// failure and success are the conditions of one subject.
func failure(reason, message string) metav1.Condition {
	return metav1.Condition{Type: api.ConditionInSync, Status: metav1.ConditionFalse, Reason: reason, Message: message}
}

func success() metav1.Condition {
	return metav1.Condition{Type: api.ConditionInSync, Status: metav1.ConditionTrue, Reason: api.ConditionReasonInSync,
		Message: "every backend follows"}
}

// outcome is the condition of a call to a backend.
func outcome(err error) metav1.Condition {
	if err == nil {
		return success()
	}
	return failure(api.ConditionReasonBackendFailed, failures.Text(err))
}

// subject is what a condition is about: an adapter, and which of its duties. The adapter is "" for the framework.
type subject struct {
	employer       client.ObjectKey
	adapter, about string
}

// backendConditions holds how the backends of each employer stand, and says which employers are to be looked at because
// that has changed. It is safe for concurrent use. Losing it all, at a restart, costs nothing but time.
type backendConditions struct {
	mu        sync.Mutex
	employers map[client.ObjectKey]map[subject]*subjectState
	// failing holds what fails for a Pod.
	failing map[types.NamespacedName]map[subject]struct{}
	// changed is told of employers whose subjectState has changed; it must not call back.
	changed func(client.ObjectKey)
}

// subjectState is how one subject stands.
type subjectState struct {
	// condition is what was said of it, apart from single Pods.
	condition metav1.Condition
	// pods are those for which it fails, and named is the one whose condition is shown: it changes only when that Pod
	// is done with, so that many Pods that fail in turn are one change.
	pods  map[types.NamespacedName]metav1.Condition
	named types.NamespacedName
}

func newBackendConditions(changed func(client.ObjectKey)) *backendConditions {
	return &backendConditions{
		employers: map[client.ObjectKey]map[subject]*subjectState{}, failing: map[types.NamespacedName]map[subject]struct{}{},
		changed: changed,
	}
}

// report takes in what is said of a subject.
func (s *backendConditions) report(of subject, condition metav1.Condition) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.change(of, func(st *subjectState) { st.condition = condition })
}

// reportPod takes in what fails for one Pod. A subject that failed for it and is missing here does so no more.
func (s *backendConditions) reportPod(pod types.NamespacedName, failing map[subject]metav1.Condition) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for of := range s.failing[pod] {
		if _, still := failing[of]; !still {
			s.change(of, func(st *subjectState) { delete(st.pods, pod) })
			delete(s.failing[pod], of)
		}
	}
	for of, condition := range failing {
		s.change(of, func(st *subjectState) { st.pods[pod] = condition })
		if s.failing[pod] == nil {
			s.failing[pod] = map[subject]struct{}{}
		}
		s.failing[pod][of] = struct{}{}
	}
	if len(s.failing[pod]) == 0 {
		delete(s.failing, pod)
	}
}

// change changes a subjectState, and calls changed if that shows.
func (s *backendConditions) change(of subject, by func(*subjectState)) {
	st := s.employers[of.employer][of]
	if st == nil {
		st = &subjectState{condition: success(), pods: map[types.NamespacedName]metav1.Condition{}}
		if s.employers[of.employer] == nil {
			s.employers[of.employer] = map[subject]*subjectState{}
		}
		s.employers[of.employer][of] = st
		defer s.changed(of.employer) // that it is known at all is news
	}
	before := st.shown()
	by(st)
	if _, still := st.pods[st.named]; !still && len(st.pods) > 0 {
		st.named = slices.MinFunc(slices.Collect(maps.Keys(st.pods)),
			func(a, b types.NamespacedName) int { return cmp.Compare(a.String(), b.String()) })
	}
	if !sameCondition(before, st.shown()) {
		s.changed(of.employer)
	}
}

// shown is the condition of a subjectState.
func (st *subjectState) shown() metav1.Condition {
	if condition, ok := st.pods[st.named]; ok && st.condition.Status == metav1.ConditionTrue {
		return condition
	}
	return st.condition
}

// of merges what is known of the employer's subjects: one that fails makes all fail. It also returns the adapters of
// which something is known.
func (s *backendConditions) of(employer client.ObjectKey) (metav1.Condition, []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	subjects := slices.SortedFunc(maps.Keys(s.employers[employer]), func(a, b subject) int {
		return cmp.Or(cmp.Compare(a.adapter, b.adapter), cmp.Compare(a.about, b.about))
	})
	merged := success()
	var known, failing []string
	for _, of := range subjects {
		known = append(known, of.adapter)
		shown := s.employers[employer][of].shown()
		if shown.Status == metav1.ConditionTrue {
			continue
		}
		if len(failing) == 0 {
			merged = failure(shown.Reason, "")
		}
		text := shown.Message
		if of.adapter != "" {
			text = of.adapter + ": " + strings.TrimPrefix(text, of.adapter+": ")
		}
		failing = append(failing, text)
	}
	if len(failing) > 0 {
		merged.Message = shorten.Bytes(strings.Join(failing, "; "), mostMessage)
	}
	return merged, known
}

// forget drops what is known of an employer.
func (s *backendConditions) forget(employer client.ObjectKey) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for of, st := range s.employers[employer] {
		for pod := range st.pods {
			delete(s.failing[pod], of)
			if len(s.failing[pod]) == 0 {
				delete(s.failing, pod)
			}
		}
	}
	delete(s.employers, employer)
}

// failures is the number of employers of which something fails.
func (s *backendConditions) failures() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	count := 0
	for _, subjects := range s.employers {
		for _, st := range subjects {
			if st.shown().Status != metav1.ConditionTrue {
				count++
				break
			}
		}
	}
	return count
}

// mostMessage bounds a message: an event's note has room for 1,024 bytes.
const mostMessage = 1000

func sameCondition(a, b metav1.Condition) bool {
	return a.Status == b.Status && a.Reason == b.Reason && a.Message == b.Message
}

// recordedCondition is what was recorded on an employer.
type recordedCondition struct {
	condition metav1.Condition
	at        time.Time
}

// messagePause is how long a failure whose message alone changes stays as it is recorded.
const messagePause = 30 * time.Second

// record publishes how the employer's backends follow, if that has changed, and returns when to look again, zero if
// there is no need.
func (r *employerController) record(ctx context.Context, object client.Object) (time.Duration, error) {
	now := r.clock.Now()
	condition, known := r.backendConditions.of(client.ObjectKeyFromObject(object))
	remembered, _ := r.recordedConditions.Get(object.GetUID())
	last, recorded := remembered.(recordedCondition)
	if existing := conditionOn(object); !recorded && existing != nil {
		last, recorded = recordedCondition{condition: *existing}, true
	}
	fine := condition.Status == metav1.ConditionTrue
	switch {
	case recorded && sameCondition(last.condition, condition),
		recorded && fine && last.condition.Status == metav1.ConditionTrue:
		return 0, nil
	case fine && !recorded, fine && !r.allKnown(ctx, object, known): // never was bad, or it is not known yet
		return 0, nil
	case !fine && recorded && last.condition.Status == condition.Status && last.condition.Reason == condition.Reason &&
		now.Sub(last.at) < messagePause:
		return messagePause - now.Sub(last.at), nil
	}
	condition.LastTransitionTime, condition.ObservedGeneration = metav1.NewTime(now), object.GetGeneration()
	if err := r.patchCondition(ctx, object, condition); err != nil {
		return 0, fmt.Errorf("recording that %s %s is %s: %w", r.kind, client.ObjectKeyFromObject(object),
			condition.Reason, err)
	}
	r.recordedConditions.Add(object.GetUID(), recordedCondition{condition, now})
	if fine {
		r.recorder.Eventf(object, nil, corev1.EventTypeNormal, condition.Reason, "Sync", "%s", condition.Message)
	} else {
		r.recorder.Eventf(object, nil, corev1.EventTypeWarning, condition.Reason, "Sync", "%s", condition.Message)
	}
	return 0, nil
}

// allKnown reports whether every backend that makes calls for Pods of the employer has reported since the process
// started. None needs to if there is no Pod.
func (r *employerController) allKnown(ctx context.Context, object client.Object, known []string) bool {
	employed, err := r.employs(ctx, client.ObjectKeyFromObject(object))
	if err == nil && !employed {
		return true
	}
	return !slices.ContainsFunc(r.adapters, func(a backend.Backend) bool {
		_, calls := a.(backend.Caller)
		return calls && selectorOf(a, object) != nil && !slices.Contains(known, a.Name())
	})
}

// patchCondition writes the condition to status.conditions, if the kind has such.
func (r *employerController) patchCondition(
	ctx context.Context, object client.Object, condition metav1.Condition,
) error {
	held, ok := api.ConditionsOf(object)
	if !ok {
		return nil
	}
	conditions := slices.Clone(held)
	meta.SetStatusCondition(&conditions, condition)
	_, err := r.patchConditions(ctx, object, conditions)
	return err
}

// patchConditions writes all of status.conditions, if the employer is still as it was read, and takes them over. It
// reports whether there was a status to write: not if the employer is gone, or has no such subresource.
func (r *employerController) patchConditions(
	ctx context.Context, object client.Object, conditions []metav1.Condition,
) (bool, error) {
	if conditions == nil {
		conditions = []metav1.Condition{}
	}
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": object.GetUID(), "resourceVersion": object.GetResourceVersion()},
		"status":   map[string]any{"conditions": conditions},
	})
	if err != nil {
		return false, err
	}
	written := backend.New(r.pods.example)
	written.SetNamespace(object.GetNamespace())
	written.SetName(object.GetName())
	err = r.client.Status().Patch(ctx, written, client.RawPatch(types.MergePatchType, patch))
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	reflect.ValueOf(object).Elem().FieldByName("Status").FieldByName("Conditions").Set(reflect.ValueOf(conditions))
	r.wrote(object, written)
	return true, nil
}

// conditionOn is the condition that the employer has, nil if it has none.
func conditionOn(object client.Object) *metav1.Condition {
	conditions, _ := api.ConditionsOf(object)
	return meta.FindStatusCondition(conditions, api.ConditionInSync)
}
