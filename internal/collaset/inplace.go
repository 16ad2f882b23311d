package collaset

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"kusionstack.io/kuperator/api/podops"
	"kusionstack.io/kuperator/internal/collaset/setplan"
	"kusionstack.io/kuperator/internal/revision"
)

// change brings a Pod to its goal in place: the Pod first, with the record of what has to follow, and then
// its resources. If the second write does not come about, the record asks for it again.
func (s podStepper) change(ctx context.Context, o *observation, c setplan.PodChange) error {
	return s.window.once(o, c.Pod, nil, func() error { return s.changeInPlace(ctx, o, c.Pod, c.To) })
}

func (s podStepper) changeInPlace(ctx context.Context, o *observation, pod *setplan.Pod, to setplan.Form) error {
	change, err := s.changeOf(ctx, o, setplan.FormChange{From: pod.Form(), To: to})
	if err != nil {
		return err
	}
	changed := *o.pod(pod.Name()) // a shallow copy: the object belongs to the cache
	if len(change.Tolerations) > 0 {
		live := &corev1.Pod{}
		if err := s.live.Get(ctx, client.ObjectKeyFromObject(&changed), live); err != nil {
			return fmt.Errorf("reading the tolerations of Pod %s: %w", pod.Name(), err)
		}
		changed.Spec.Tolerations = live.Spec.Tolerations // the patch fails if they are newer than the rest
	}
	data := change.Patch(&changed, to.Revision, finishedBy(o, pod))
	answer, err := s.patchMeta(ctx, o, pod, types.StrategicMergePatchType, data)
	if err = s.took(ctx, o, setplan.Trial{Write: setplan.TrialPatch, From: pod.Form(), To: to}, err); err != nil {
		return fmt.Errorf("updating Pod %s in place: %w", pod.Name(), err)
	}
	changed.ObjectMeta = answer.ObjectMeta
	return s.resize(ctx, o, pod, to, &changed)
}

// finishedBy is the operation that lifecycle-controller is to finish, nil if that is done here: without the protocol,
// and where more than the record of the change goes with it.
func finishedBy(o *observation, pod *setplan.Pod) *revision.Finish {
	op := podops.OperationOf(pod.View, setplan.OperatorID)
	if !o.snapshot.Protocol || pod.Included || op.Phase != podops.PhaseOperate {
		return nil
	}
	return &revision.Finish{ID: op.ID, Type: op.Type, Request: op.Request}
}

// resize gives a Pod of a revision the resources of its record, if it lacks some. live is the Pod as it was read or
// written last.
//
// A refusal may be for the Pod's node, which is too old or too small, or for what the Pod is: then another Pod helps,
// and the refusal is recorded on the Pod, for the next look to decide on. Where a policy or a quota would refuse that
// one as well, it is not: the Pod goes on as it is.
func (s podStepper) resize(
	ctx context.Context, o *observation, pod *setplan.Pod, to setplan.Form, live *corev1.Pod,
) error {
	data := revision.ResizePatch(live)
	if data == nil {
		return nil
	}
	trial := setplan.Trial{Write: setplan.TrialResize, To: to}
	answer, err := s.patchResources(ctx, o, live, data)
	_, refused := refusalIn(err)
	switch {
	case err == nil:
		o.memory.verdicts.accept(trial, false, s.clock.Now())
		if data = revision.AdmittedPatch(answer); data != nil {
			err = s.patch(ctx, o, pod, types.StrategicMergePatchType, data)
		}
	case refused && !o.inPlaceOnly() && s.mayExist(ctx, o, pod, to):
		// Once more: the limit that forbade it may have gone between the two questions.
		if _, err = s.patchResources(ctx, o, live, data); err != nil {
			err = s.patch(ctx, o, pod, types.StrategicMergePatchType, revision.RefusedPatch(live, err.Error()))
		}
	default:
		err = s.took(ctx, o, trial, err)
	}
	if err != nil {
		return fmt.Errorf("changing the resources of Pod %s in place: %w", pod.Name(), err)
	}
	return nil
}

// patchResources writes to the resize subresource and remembers that it did.
func (s *server) patchResources(
	ctx context.Context, o *observation, live *corev1.Pod, data []byte,
) (*corev1.Pod, error) {
	answer := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: live.Namespace, Name: live.Name}}
	if err := s.client.SubResource("resize").Patch(ctx, answer,
		client.RawPatch(types.StrategicMergePatchType, data)); err != nil {
		return nil, err
	}
	s.wrote(o, answer)
	return answer, nil
}

// mayExist reports whether the API server would take another Pod of a revision in the place of this one now.
func (s podStepper) mayExist(ctx context.Context, o *observation, pod *setplan.Pod, to setplan.Form) bool {
	live := &corev1.Pod{}
	if err := s.live.Get(ctx, types.NamespacedName{Namespace: o.set.Namespace, Name: pod.Name()}, live); err != nil {
		return false
	}
	return s.tryCreate(ctx, o, live.Name, pod.ID, to) == nil
}
