package resourceconsist

import (
	"cmp"
	"context"
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

// backendConditions holds how the backends of each employer stand, and tells which employers to look at because that
// has changed. It is safe for concurrent use. Losing it all, at a restart, costs nothing but time.
type backendConditions struct {
	mu        sync.Mutex
	employers map[client.ObjectKey]map[subject]metav1.Condition
	// failing holds the Pods for which a subject fails.
	failing map[subject]map[types.NamespacedName]struct{}
	// changed is told of employers of which a condition has changed; it must not call back.
	changed func(client.ObjectKey)
}

func newBackendConditions(changed func(client.ObjectKey)) *backendConditions {
	return &backendConditions{
		employers: map[client.ObjectKey]map[subject]metav1.Condition{},
		failing:   map[subject]map[types.NamespacedName]struct{}{},
		changed:   changed,
	}
}

// report takes in what is said of a subject.
func (s *backendConditions) report(of subject, condition metav1.Condition) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.set(of, condition)
}

// reportPod takes in what fails for one Pod: the condition of each subject is the same for all Pods. A subject that
// failed for it and is missing here does so no more.
func (s *backendConditions) reportPod(pod types.NamespacedName, failing map[subject]metav1.Condition) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for of, pods := range s.failing {
		if _, still := failing[of]; still {
			continue
		}
		if delete(pods, pod); len(pods) == 0 {
			delete(s.failing, of)
			s.set(of, success())
		}
	}
	for of, condition := range failing {
		if s.failing[of] == nil {
			s.failing[of] = map[types.NamespacedName]struct{}{}
		}
		s.failing[of][pod] = struct{}{}
		s.set(of, condition)
	}
}

// set keeps the condition of a subject, and calls changed if that is news.
func (s *backendConditions) set(of subject, condition metav1.Condition) {
	if s.employers[of.employer] == nil {
		s.employers[of.employer] = map[subject]metav1.Condition{}
	}
	before, known := s.employers[of.employer][of]
	s.employers[of.employer][of] = condition
	if !known || !sameCondition(before, condition) {
		s.changed(of.employer)
	}
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
		condition := s.employers[employer][of]
		if condition.Status == metav1.ConditionTrue {
			continue
		}
		if len(failing) == 0 {
			merged = failure(condition.Reason, "")
		}
		text := condition.Message
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
	delete(s.employers, employer)
	maps.DeleteFunc(s.failing, func(of subject, _ map[types.NamespacedName]struct{}) bool {
		return of.employer == employer
	})
}

// failures is the number of employers of which something fails.
func (s *backendConditions) failures() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	count := 0
	for _, subjects := range s.employers {
		for _, condition := range subjects {
			if condition.Status != metav1.ConditionTrue {
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
	next := copyOf(object)
	setConditions(next, conditions)
	err := r.client.Status().Patch(ctx, next,
		client.MergeFromWithOptions(object, client.MergeFromWithOptimisticLock{}))
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	setConditions(object, conditions)
	r.wrote(object, next)
	return true, nil
}

func setConditions(object client.Object, conditions []metav1.Condition) {
	reflect.ValueOf(object).Elem().FieldByName("Status").FieldByName("Conditions").Set(reflect.ValueOf(conditions))
}

// conditionOn is the condition that the employer has, nil if it has none.
func conditionOn(object client.Object) *metav1.Condition {
	conditions, _ := api.ConditionsOf(object)
	return meta.FindStatusCondition(conditions, api.ConditionInSync)
}
