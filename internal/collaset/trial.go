package collaset

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"kusionstack.io/kuperator/internal/collaset/setplan"
	"kusionstack.io/kuperator/internal/failures"
	"kusionstack.io/kuperator/internal/freshness"
	"kusionstack.io/kuperator/internal/revision"
	"kusionstack.io/kuperator/internal/shorten"
)

// trials asks the API server whether it would take a write, and notes what it answers.
type trials struct{ *server }

// try makes the trials that a decision lacks, as dry runs, and has the snapshot know the answers. What cannot be asked
// now is an error; the decision does without it.
func (q trials) try(ctx context.Context, o *observation, trials []setplan.PodTrial) error {
	var failed []error
	for _, t := range trials {
		err := q.makeTrial(ctx, o, t)
		countAction("try", err)
		switch {
		case err == nil:
			o.memory.verdicts.accept(t.Trial, true, q.clock.Now())
		case q.refused(ctx, o, t.Trial, err):
		case apierrors.IsConflict(err), apierrors.IsNotFound(err):
			return errStale
		default:
			failed = append(failed, fmt.Errorf("trying %s of Pod %s: %w", t.Write, t.Pod.Name(), err))
		}
	}
	o.snapshot.Verdicts = o.memory.verdicts.all(o.snapshot.Now)
	return errors.Join(failed...)
}

func (q trials) makeTrial(ctx context.Context, o *observation, t setplan.PodTrial) error {
	switch t.Write {
	case setplan.TrialDelete:
		return q.tryDelete(ctx, o, t.Pod)
	case setplan.TrialCreate:
		return q.tryCreate(ctx, o, t.Pod.Name(), t.Pod.ID, t.To)
	case setplan.TrialSurge:
		return nil // it is never asked for
	case setplan.TrialPatch, setplan.TrialResize:
	}
	live := &corev1.Pod{}
	if err := q.live.Get(ctx, types.NamespacedName{Namespace: o.set.Namespace, Name: t.Pod.Name()}, live); err != nil {
		return err
	}
	if live.UID != t.Pod.UID() {
		return errStale
	}
	change, err := q.changeOf(ctx, o, setplan.FormChange{From: t.Pod.Form(), To: t.To})
	if err != nil {
		return err
	}
	if t.Write == setplan.TrialPatch {
		data := change.Patch(live, t.To.Revision, nil)
		return q.client.Patch(ctx, freshness.PodTarget(live.Namespace, live.Name),
			client.RawPatch(types.StrategicMergePatchType, data), client.DryRunAll)
	}
	data := change.ResizeTrial(live)
	if t.Pod.Form() == t.To {
		data = revision.ResizePatch(live)
	}
	if data == nil {
		return nil
	}
	err = q.client.SubResource("resize").Patch(ctx, freshness.PodTarget(live.Namespace, live.Name),
		client.RawPatch(types.StrategicMergePatchType, data), client.DryRunAll)
	if _, refused := refusalIn(err); refused && !o.inPlaceOnly() && q.tryCreate(ctx, o, live.Name, t.Pod.ID, t.To) == nil {
		return nil // the Pod is re-created where its node or its kind does not let it be resized
	}
	return err
}

// tryDelete asks whether a Pod may be deleted.
func (q trials) tryDelete(ctx context.Context, o *observation, pod *setplan.Pod) error {
	uid := pod.UID()
	object := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: o.set.Namespace, Name: pod.Name()}}
	return q.client.Delete(ctx, object, client.DryRunAll, client.Preconditions{UID: &uid})
}

// tryCreate asks whether a Pod of a revision may be created in the place of one that is there.
func (q trials) tryCreate(ctx context.Context, o *observation, gone string, id int, to setplan.Form) error {
	other, err := q.newPod(ctx, o, setplan.Creation{ID: id, Revision: to.Revision, Decorations: to.Decorations})
	if err != nil {
		return err
	}
	other.SetName("") // the name may be that of the Pod which is there
	names := map[string]string{}
	templates := o.history.data[to.Revision].ClaimTemplates()
	for _, t := range templates {
		names[t.Name] = namePrefix(o.set.Name) + t.Name // whether there is such a claim does not matter
	}
	mount(other, templates, names)
	err = q.client.Create(ctx, other, client.DryRunAll)
	why, refused := refusalIn(err)
	if !refused || !why.Quota {
		return err
	}
	live := &corev1.Pod{}
	if err := q.live.Get(ctx, types.NamespacedName{Namespace: o.set.Namespace, Name: gone}, live); err != nil {
		return err
	}
	if fitsAfter(why.Why, live) {
		return nil
	}
	return err
}

// refusal is refusalIn without the names that were generated for Pods of the set: they are others with each attempt.
func (o *observation) refusal(err error) (failures.Rejection, bool) {
	why, refused := refusalIn(err)
	why.Why = failures.WithoutNames(why.Why, namePrefix(o.set.Name))
	return why, refused
}

// refused notes that the API server refuses a write, if that is what the error says, and tells of it once.
func (q trials) refused(ctx context.Context, o *observation, t setplan.Trial, err error) bool {
	why, refused := o.refusal(err)
	if !refused {
		return false
	}
	verdict := setplan.Verdict{Refused: why.Why, Quota: why.Quota}
	verdict.Full = why.Quota && t.Write == setplan.TrialCreate && q.isFullForBefore(ctx, o, t, why.Why)
	if o.memory.verdicts.refuse(t, verdict, q.clock.Now()) {
		q.events.Eventf(o.set, nil, corev1.EventTypeWarning, setplan.BlockChangeRefused, "Update", "%s",
			shorten.Note(t.Refusal(why.Why)))
	}
	return true
}

// isFullForBefore reports whether a quota has no room for a Pod of the revision that Pods come from either.
func (q trials) isFullForBefore(ctx context.Context, o *observation, t setplan.Trial, why string) bool {
	made, err := q.newPod(ctx, o, setplan.Creation{Revision: o.snapshot.CurrentRevision, Decorations: t.To.Decorations})
	if err != nil {
		return false
	}
	before := &corev1.Pod{}
	return runtime.DefaultUnstructuredConverter.FromUnstructured(made.Object, before) == nil && isFullFor(why, before)
}

// took notes the answer to a write that a trial is about, and gives errNotTaken for a refusal.
func (q trials) took(ctx context.Context, o *observation, t setplan.Trial, err error) error {
	switch {
	case err == nil:
		o.memory.verdicts.accept(t, false, q.clock.Now())
	case q.refused(ctx, o, t, err):
		return fmt.Errorf("%w: %w", errNotTaken, err)
	}
	return err
}
