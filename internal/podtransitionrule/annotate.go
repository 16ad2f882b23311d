package podtransitionrule

import (
	"cmp"
	"context"
	"encoding/json"
	"time"

	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"kusionstack.io/kuperator/internal/freshness"
	"kusionstack.io/kuperator/internal/podtransitionrule/grants"
	"kusionstack.io/kuperator/internal/soonest"
)

const (
	// notesAtOnce bounds the Pods that one decision writes notes on, and notesTogether those that it writes at a time.
	notesAtOnce, notesTogether = 64, 16
	// noteAgain is when a note is written again that the cache does not show.
	noteAgain = 10 * time.Second
)

// waitingPod is what is remembered of a Pod that waits.
type waitingPod struct {
	texts map[string]waitingText // by annotation
	asked time.Time              // when a note was last written, or failed to be
	// written is the Pod's resourceVersion after the last write of a note that the API server has confirmed; "" before
	// there is one.
	written string
}

// isBehind reports whether the view of a Pod is of before the last note that was written there. After a restart of
// the API server it may be for as long as a minute.
func (w *waitingPod) isBehind(version string) bool {
	return w.written != "" && freshness.Newer(w.written, version)
}

type waitingText struct {
	text  string
	since time.Time
}

// annotate writes what is due of a decision's notes. No decision depends on them: what is too much for once, or fails,
// comes again with a later one. It returns when to decide again for the rest, zero for never.
func (r *reconciler) annotate(
	ctx context.Context, name string, ns *namespace, notes []grants.Note,
) (next time.Duration) {
	now, remembered := r.clock.Now(), ns.waiting
	ns.waiting = make(map[types.UID]*waitingPod, len(notes))
	var writes errgroup.Group
	writes.SetLimit(notesTogether)
	begun := 0
	for _, note := range notes {
		w := remembered[note.PodUID]
		if w == nil {
			w = &waitingPod{texts: map[string]waitingText{}}
		}
		ns.waiting[note.PodUID] = w
		changes := note.Differences(func(key, text string) bool {
			wait := r.ripensIn(w, key, text, now)
			next = soonest.Of(next, wait)
			return wait == 0
		})
		switch again := noteAgain - now.Sub(w.asked); {
		case len(changes) == 0:
		case w.isBehind(note.PodVersion): // the event that shows it leads to the next decision
		case !w.asked.IsZero() && again > 0:
			next = soonest.Of(next, again)
		case begun == notesAtOnce:
			next = soonest.Of(next, time.Second)
		default:
			begun++
			w.asked = now
			writes.Go(func() error {
				w.written = cmp.Or(r.writeNote(ctx, name, note, changes), w.written)
				return nil
			})
		}
	}
	_ = writes.Wait() // they return no errors
	return next
}

// writeNote sets annotations of a Pod, and removes those that are "". It returns the resourceVersion that the Pod has
// with them, "" if they were not written.
func (r *reconciler) writeNote(ctx context.Context, namespace string, n grants.Note, changes map[string]string) string {
	annotations := make(map[string]any, len(changes))
	for key, text := range changes {
		annotations[key] = nil
		if text != "" {
			annotations[key] = text
		}
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": n.PodUID, "annotations": annotations}})
	pod := freshness.PodTarget(namespace, n.PodName)
	if err == nil {
		err = r.client.Patch(ctx, pod, client.RawPatch(types.MergePatchType, patch))
	}
	switch {
	case err == nil:
		noteWrites.WithLabelValues("written").Inc()
		return pod.ResourceVersion
	case apierrors.IsNotFound(err), apierrors.IsConflict(err): // gone, or another Pod by now
		noteWrites.WithLabelValues("gone").Inc()
	default:
		noteWrites.WithLabelValues("failed").Inc()
		ctrl.LoggerFrom(ctx).V(1).Info("a Pod was not annotated with what it waits for; trying again later",
			"pod", n.PodName, "answer", err.Error())
	}
	return ""
}

// ripensIn is how long a text must still hold before it is written, zero if it has for long enough, -1 for never.
func (r *reconciler) ripensIn(w *waitingPod, key, text string, now time.Time) time.Duration {
	if r.annotateAfter == 0 {
		return -1
	}
	seen, has := w.texts[key]
	if !has || seen.text != text {
		seen = waitingText{text: text, since: now}
		w.texts[key] = seen
	}
	return max(r.annotateAfter-now.Sub(seen.since), 0)
}

// sweep removes the notes that rules have left on Pods of a namespace that has no rule any more. It returns when to
// look again, zero for never: a write of the leader before us, or one whose answer was lost, may take effect after the
// first look.
func (r *reconciler) sweep(ctx context.Context, name string, ns *namespace) (time.Duration, error) {
	state, err := r.freeze.Of(ctx, name)
	switch {
	case err != nil:
		return 0, err
	case !state.Known: // it is gone, or its event leads here again
		r.resting.Delete(name)
		return 0, nil
	case r.atRest(name):
		return 0, nil
	}
	pods, err := r.pods(name, ns)
	if err != nil {
		return 0, err
	}
	var s grants.Snapshot
	for _, pod := range pods {
		if hasNotes(pod.Annotations) {
			s.Pods = append(s.Pods, pod)
		}
	}
	if notes := grants.Decide(s).Notes; len(notes) > 0 {
		ns.cleanSince = time.Time{}
		return soonest.Of(r.annotate(ctx, name, ns, notes), noteAgain), nil
	}
	now := r.clock.Now()
	if ns.cleanSince.IsZero() {
		ns.cleanSince = now
	}
	rest := noteAgain - now.Sub(ns.cleanSince)
	if rest <= 0 {
		r.resting.Store(name, true)
	}
	return max(rest, 0), nil
}
