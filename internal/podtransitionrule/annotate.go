package podtransitionrule

import (
	"context"
	"encoding/json"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"kusionstack.io/kuperator/internal/freshness"
	"kusionstack.io/kuperator/internal/podtransitionrule/grants"
)

const (
	// notesAtOnce bounds what is handed over in one decision, and what lies ready to be written.
	notesAtOnce = 64
	// noteAgain is when a note is written again that the cache does not show.
	noteAgain = 10 * time.Second
)

// annotator writes on Pods what they wait for. It works beside the decisions, one write after the other: what does not
// get written in time, or fails, comes again with a later decision.
type annotator struct {
	client client.Client
	// after is how long something must hold a Pod up before it is written there. Zero means that nothing is.
	after time.Duration
	queue chan podNote
}

// podNote is one write: the annotations of a Pod to set, or to remove if "".
type podNote struct {
	pod     types.NamespacedName
	uid     types.UID
	changes map[string]string
	// written is where the resourceVersion is left that the Pod has with them.
	written *atomic.Pointer[string]
}

// waitingPod is what is remembered of a Pod that waits.
type waitingPod struct {
	texts map[string]waitingText // by annotation
	asked time.Time              // when it was last handed over
	// written is the Pod's resourceVersion after the last write of a note that the API server has confirmed; nil before
	// there is one.
	written atomic.Pointer[string]
}

// isBehind reports whether the view of a Pod is of before the last note that was written there. After a restart of
// the API server it may be for as long as a minute.
func (h *waitingPod) isBehind(version string) bool {
	written := h.written.Load()
	return written != nil && freshness.Newer(*written, version)
}

type waitingText struct {
	text  string
	since time.Time
}

func newAnnotator(c client.Client, after time.Duration) *annotator {
	return &annotator{client: c, after: after, queue: make(chan podNote, notesAtOnce)}
}

// Start writes until ctx ends.
func (a *annotator) Start(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case n := <-a.queue:
			a.write(ctx, n)
		}
	}
}

func (a *annotator) write(ctx context.Context, n podNote) {
	annotations := make(map[string]any, len(n.changes))
	for key, text := range n.changes {
		annotations[key] = nil
		if text != "" {
			annotations[key] = text
		}
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": n.uid, "annotations": annotations}})
	pod := freshness.PodTarget(n.pod.Namespace, n.pod.Name)
	if err == nil {
		err = a.client.Patch(ctx, pod, client.RawPatch(types.MergePatchType, patch))
	}
	switch {
	case err == nil:
		n.written.Store(ptr.To(pod.ResourceVersion))
		noteWrites.WithLabelValues("written").Inc()
	case apierrors.IsNotFound(err), apierrors.IsConflict(err): // gone, or another Pod by now
		noteWrites.WithLabelValues("gone").Inc()
	default:
		noteWrites.WithLabelValues("failed").Inc()
		ctrl.LoggerFrom(ctx).V(1).Info("a Pod was not annotated with what it waits for; trying again later", "pod", n.pod,
			"answer", err.Error())
	}
}

// pass hands over what is due of a decision's notes. It never waits. It returns when to decide again for the rest, zero
// for never.
func (a *annotator) pass(name string, ns *namespace, notes []grants.Note, now time.Time) (next time.Duration) {
	remembered := ns.waiting
	ns.waiting = make(map[types.UID]*waitingPod, len(notes))
	handedOver := 0
	for _, note := range notes {
		h := remembered[note.PodUID]
		if h == nil {
			h = &waitingPod{texts: map[string]waitingText{}}
		}
		ns.waiting[note.PodUID] = h
		changes := note.Differences(func(key, text string) bool {
			wait := a.ripensIn(h, key, text, now)
			next = grants.Soonest(next, max(wait, 0))
			return wait == 0
		})
		switch again := noteAgain - now.Sub(h.asked); {
		case len(changes) == 0:
		case h.isBehind(note.PodVersion): // the event that shows it leads to the next decision
		case !h.asked.IsZero() && again > 0:
			next = grants.Soonest(next, again)
		case handedOver < notesAtOnce &&
			a.offer(podNote{types.NamespacedName{Namespace: name, Name: note.PodName}, note.PodUID, changes, &h.written}):
			h.asked = now
			handedOver++
		default:
			next = grants.Soonest(next, time.Second)
		}
	}
	return next
}

// sweep removes the notes that rules have left on Pods of a namespace that has no rule any more. It returns when to
// look again, zero for never: what was on its way when the last rule went may be written after the first look.
func (r *reconciler) sweep(ctx context.Context, name string, ns *namespace) (time.Duration, error) {
	now, clean := r.clock.Now(), r.clean(name)
	if clean.settled {
		if state, err := r.freeze.Of(ctx, name); err == nil && !state.Known {
			r.cleanNamespaces.Delete(name)
		}
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
	notes := grants.Decide(s).Notes
	if len(notes) > 0 {
		r.cleanNamespaces.Delete(name)
		return grants.Soonest(r.notes.pass(name, ns, notes, now), noteAgain), nil
	}
	if clean.since.IsZero() {
		clean.since = now
	}
	rest := noteAgain - now.Sub(clean.since)
	clean.settled = rest <= 0
	r.cleanNamespaces.Store(name, clean)
	return max(rest, 0), nil
}

// cleanNamespace is a namespace without rules, on whose Pods there are no notes of rules.
type cleanNamespace struct {
	// since is when that was first seen.
	since time.Time
	// settled is true when no note can be on its way any more.
	settled bool
}

// clean is what is remembered of a namespace without rules: the zero value if it had some, or notes, or was not seen.
func (r *reconciler) clean(namespace string) cleanNamespace {
	found, _ := r.cleanNamespaces.Load(namespace)
	clean, _ := found.(cleanNamespace)
	return clean
}

// ripensIn is how long a text must still hold before it is written, zero if it has for long enough, -1 for never.
func (a *annotator) ripensIn(h *waitingPod, key, text string, now time.Time) time.Duration {
	if a.after == 0 {
		return -1
	}
	seen, has := h.texts[key]
	if !has || seen.text != text {
		seen = waitingText{text: text, since: now}
		h.texts[key] = seen
	}
	return max(a.after-now.Sub(seen.since), 0)
}

func (a *annotator) offer(n podNote) bool {
	select {
	case a.queue <- n:
		return true
	default:
		return false
	}
}
