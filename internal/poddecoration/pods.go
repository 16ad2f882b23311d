package poddecoration

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
	"kusionstack.io/kuperator/internal/decoration"
	"kusionstack.io/kuperator/internal/poddecoration/decoplan"
	"kusionstack.io/kuperator/internal/revision"
)

// maxChanges is how many changes one decision works out: each takes a read of a Pod.
const maxChanges = 64

// read reads a Pod.
func read(pod *corev1.Pod) decoplan.Pod {
	p := decoplan.PodOf(pod)
	p.Recorded = revision.Recorded(pod)
	if p.Recorded {
		progress := revision.Carried(pod)
		p.Carried, p.Missing, p.ResizeDue, p.ResizeRestarts = progress.Done, progress.Missing, progress.ResizeDue,
			progress.ResizeRestarts
		p.Infeasible = progress.Wait == revision.WaitResizeInfeasible || progress.Wait == revision.WaitRestartInfeasible
		if f := progress.Finish; f != nil {
			op := podops.OperationOf(p.View, decoplan.OperatorID)
			p.Delegated = op.Phase == podops.PhaseOperate && *f == revision.Finish{ID: op.ID, Type: op.Type, Request: op.Request}
		}
	}
	return p
}

// changeKey is what a change depends on: Pods of one template of a workload are changed alike.
type changeKey struct{ of, from, to string }

func keyOf(pod *corev1.Pod, p *decoplan.Pod) changeKey {
	return changeKey{decoplan.TemplateOf(pod), decoration.Key(p.Has), decoration.Key(p.Desired)}
}

// worked is what lies between two lists of decorations.
type worked struct {
	from, to []decoration.Decoration
	// gone are marks of both lists whose revisions do not exist any more: what they have added stays.
	gone    []decoration.Mark
	change  revision.Change
	missing string
}

// on works the change out for a Pod, given as JSON.
func (w *worked) on(pod map[string]any, can revision.Capabilities) (revision.Change, error) {
	change, refused, err := revision.Redecorate(pod, w.from, w.to, can)
	if err != nil || len(w.gone) == 0 {
		return change, err
	}
	marks := slices.Clone(w.gone)
	for _, d := range w.to {
		if !slices.ContainsFunc(refused, func(r decoration.Refusal) bool { return r.Name == d.Name }) {
			marks = append(marks, decoration.Mark{Name: d.Name, Revision: d.Revision})
		}
	}
	text, err := decoration.Text(marks)
	if err != nil {
		return change, err
	}
	if change.Annotations == nil {
		change.Annotations = map[string]*string{}
	}
	change.Annotations[appsv1alpha1.PodDecorationRevisionsAnnotation] = &text
	if next, isChanged := change.Annotations[appsv1alpha1.PodDecorationChangesAnnotation]; isChanged {
		now := (&unstructured.Unstructured{Object: pod}).GetAnnotations()[appsv1alpha1.PodDecorationChangesAnnotation]
		kept, err := decoration.KeepChanges(now, ptr.Deref(next, ""))
		if err != nil {
			return change, err
		}
		change.Annotations[appsv1alpha1.PodDecorationChangesAnnotation] = &kept
	}
	return change, nil
}

func (w *worked) difference() *decoplan.Difference {
	return &decoplan.Difference{Forcing: w.change.Forcing, Quiet: !w.change.Restarts && len(w.change.Resize) == 0 &&
		w.change.PodResize == nil, Missing: w.missing}
}

// observeChanges fills in what lies between what Pods have and what they are to have. It reports whether some are left
// for the next decision.
func (r *reconciler) observeChanges(
	ctx context.Context, v *view, ns *namespace, can revision.Capabilities,
) (more bool, err error) {
	if ns.changes == nil || ns.changesFor != can {
		ns.changes, ns.changesFor = map[changeKey]worked{}, can
	}
	needed, reads := map[changeKey]worked{}, 0
	for i := range v.snapshot.Pods {
		p := &v.snapshot.Pods[i]
		if !p.IsDue() || !p.Managed || p.Owner.Kind == appsv1alpha1.CollaSetKind || p.View.Terminal || p.View.Terminating {
			continue
		}
		pod := v.pods[i].Whole()
		key := keyOf(pod, p)
		w, known := ns.changes[key]
		if !known {
			if reads == maxChanges {
				more = true
				continue
			}
			reads++
			switch w, err = r.workOut(ctx, ns, pod, p, can); {
			case apierrors.IsNotFound(err): // it is gone
				continue
			case err != nil:
				return false, err
			}
		}
		p.Difference = w.difference()
		if w.missing == "" { // else it may be there the next time
			ns.changes[key], needed[key] = w, w
		}
	}
	ns.changes = needed
	return more, nil
}

// workOut works a change out, of the Pod as it is now.
func (r *reconciler) workOut(
	ctx context.Context, ns *namespace, pod *corev1.Pod, p *decoplan.Pod, can revision.Capabilities,
) (w worked, err error) {
	from, to := slices.Clone(p.Has), slices.Clone(p.Desired)
	for _, m := range p.Has {
		if !slices.Contains(p.Desired, m) {
			continue
		}
		if _, missing, err := r.decorationsOf(ctx, pod.Namespace, ns, []decoration.Mark{m}); err != nil {
			return w, err
		} else if missing != "" {
			isGone := func(other decoration.Mark) bool { return other == m }
			from, to, w.gone = slices.DeleteFunc(from, isGone), slices.DeleteFunc(to, isGone), append(w.gone, m)
		}
	}
	if w.to, w.missing, err = r.decorationsOf(ctx, pod.Namespace, ns, to); err != nil || w.missing != "" {
		return w, err
	}
	unknown := ""
	if w.from, unknown, err = r.decorationsOf(ctx, pod.Namespace, ns, from); err != nil {
		return w, err
	}
	if unknown != "" { // what is to be taken away is not known
		w.change = revision.Change{Forcing: []string{unknown}}
		return w, nil
	}
	live := &unstructured.Unstructured{}
	live.SetGroupVersionKind(podKind)
	if err := r.live.Get(ctx, client.ObjectKeyFromObject(pod), live); err != nil {
		return w, fmt.Errorf("reading Pod %s: %w", pod.Name, err)
	}
	if w.change, err = w.on(live.Object, can); err != nil {
		w.missing = err.Error()
	}
	return w, nil
}

// observeWanted fills in how many Pods workloads are to have of which Pods may be deleted.
func (r *reconciler) observeWanted(ctx context.Context, v *view) error {
	v.snapshot.Wanted = map[decoplan.Owner]int{}
	for i := range v.snapshot.Pods {
		p := &v.snapshot.Pods[i]
		_, isRead := v.snapshot.Wanted[p.Owner]
		forces := p.Infeasible || p.Difference != nil && len(p.Difference.Forcing) > 0
		if !p.Owner.Recreates || isRead || !forces {
			continue
		}
		owner := metav1.GetControllerOfNoCopy(v.pods[i].Whole())
		if owner == nil {
			continue
		}
		workload := &unstructured.Unstructured{}
		workload.SetAPIVersion(owner.APIVersion)
		workload.SetKind(owner.Kind)
		err := r.live.Get(ctx, client.ObjectKey{Namespace: v.name, Name: owner.Name}, workload)
		if client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("reading %s %s: %w", owner.Kind, owner.Name, err)
		}
		n, isThere, _ := unstructured.NestedInt64(workload.Object, "spec", "replicas")
		if owner.Kind == "DaemonSet" {
			n, isThere, _ = unstructured.NestedInt64(workload.Object, "status", "desiredNumberScheduled")
		}
		if err == nil && isThere {
			v.snapshot.Wanted[p.Owner] = int(n)
		}
	}
	return nil
}

// forecast is how a Pod gets from one revision of a decoration to another, nil if that is not known. A Pod of any
// workload stands for all: one with a container of every name that the decorations change.
func (r *reconciler) forecast(
	ctx context.Context, d *appsv1alpha1.PodDecoration, ns *namespace, to string, can revision.Capabilities,
) (*appsv1alpha1.UpdateForecast, error) {
	current := d.Status.CurrentRevision
	if to == "" || current == to {
		return nil, nil
	}
	var from []decoration.Mark
	if current != "" {
		from = []decoration.Mark{{Name: d.Name, Revision: current}}
	}
	before, missing, err := r.decorationsOf(ctx, d.Namespace, ns, from)
	if err != nil || missing != "" {
		return nil, err
	}
	after, missing, err := r.decorationsOf(ctx, d.Namespace, ns, []decoration.Mark{{Name: d.Name, Revision: to}})
	if err != nil || missing != "" { // the cache may not show it yet
		return nil, err
	}
	change, err := revision.Forecast(before, after, can)
	if err != nil {
		return nil, nil //nolint:nilerr // it is only a forecast
	}
	return &appsv1alpha1.UpdateForecast{InPlace: change.InPlace(), Fields: change.Forcing}, nil
}
