package collaset

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"strconv"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
	"kusionstack.io/kuperator/internal/collaset/setplan"
)

// observeCandidates fills in the Pods that podToInclude names and that are not ours yet.
func observeCandidates(ctx context.Context, cached, live client.Reader, o *observation) error {
	seen := map[string]bool{}
	for _, name := range o.set.Spec.ScaleStrategy.PodToInclude {
		if o.find(name) >= 0 || seen[name] || o.snapshot.Deleting {
			continue
		}
		seen[name] = true
		c := setplan.Candidate{Name: name}
		pod, err := candidate(ctx, cached, live, o.set, name)
		switch {
		case client.IgnoreNotFound(err) != nil:
			return fmt.Errorf("reading Pod %s, which is to be included: %w", name, err)
		case err == nil:
			p := podOf(pod, o.selector)
			c.Pod = &p
			if owner := metav1.GetControllerOf(pod); owner != nil {
				c.Owner = owner.Kind + " " + owner.Name
			}
			c.Refusal = refuseVolumes(ctx, cached, o, pod)
			o.candidates[name] = pod
		}
		o.snapshot.Candidates = append(o.snapshot.Candidates, c)
	}
	return nil
}

// candidate reads a Pod that is to be included. A user who has one CollaSet exclude the Pod and then asks this one to
// include it may be faster than the cache of Pods, and the place that is meant for it would go to a new Pod: so a
// CollaSet that is asked for something new looks at the API server before it believes that the Pod still has a
// controller. What changes later is an event of the Pod.
func candidate(
	ctx context.Context, cached, live client.Reader, set *appsv1alpha1.CollaSet, name string,
) (*corev1.Pod, error) {
	pod, key := &corev1.Pod{}, types.NamespacedName{Namespace: set.Namespace, Name: name}
	err := cached.Get(ctx, key, pod)
	if err != nil || metav1.GetControllerOf(pod) == nil || set.Status.ObservedGeneration == set.Generation {
		return pod, err
	}
	pod = &corev1.Pod{}
	return pod, live.Get(ctx, key, pod)
}

// membership is a patch of what makes a Pod a member.
type membership struct {
	Metadata struct {
		UID             types.UID               `json:"uid"`
		ResourceVersion string                  `json:"resourceVersion"`
		OwnerReferences []metav1.OwnerReference `json:"ownerReferences"`
		Labels          map[string]*string      `json:"labels,omitempty"`
		Annotations     map[string]*string      `json:"annotations,omitempty"`
	} `json:"metadata"`
}

func newMembership(pod *setplan.Pod, change podops.Change, owners []metav1.OwnerReference) membership {
	var m membership
	m.Metadata.UID, m.Metadata.ResourceVersion, m.Metadata.OwnerReferences = pod.UID(), pod.View.ResourceVersion, owners
	m.Metadata.Labels, m.Metadata.Annotations = map[string]*string{}, map[string]*string{}
	maps.Copy(m.Metadata.Labels, change.Labels)
	maps.Copy(m.Metadata.Annotations, change.Annotations)
	return m
}

// memberWriter takes Pods in, with their claims, and releases them.
type memberWriter struct{ claimWriter }

// exclude releases Pods and reports whether all of them were released, so that entries may follow. Our operation on a
// Pod is undone and the owner reference goes in one write; lifecycle-controller brings the Pod back into service.
func (w memberWriter) exclude(ctx context.Context, o *observation, plan *setplan.Plan, out *outcome) (all bool) {
	actions := make([]action, 0, len(plan.Exclusions))
	for _, pod := range plan.Exclusions {
		actions = append(actions, action{name: "exclude", into: &out.ScaleIn,
			do: func() error {
				if err := w.excludePod(ctx, o, pod); err != nil {
					return fmt.Errorf("excluding Pod %s: %w", pod.Name(), err)
				}
				return nil
			},
			done: func(err error) {
				if err == nil {
					out.excluded = append(out.excluded, pod.Name())
				}
			}})
	}
	out.conflict = run(ctx, actions) || out.conflict
	return len(out.excluded) == len(plan.Exclusions)
}

func (w memberWriter) excludePod(ctx context.Context, o *observation, pod *setplan.Pod) error {
	if err := w.releaseVolumes(ctx, o, pod); err != nil {
		return err
	}
	var change podops.Change
	if o.snapshot.Protocol {
		change = podops.Cancel(pod.View, setplan.OperatorID, w.clock.Now())
	}
	if pod.Recorded {
		change.Annotations = map[string]*string{appsv1alpha1.LastPodStatusAnnotation: nil}
	}
	m := newMembership(pod, change, refsWithout(o.pod(pod.Name()), o.set.UID))
	orphaned := appsv1alpha1.OrphanedValue
	m.Metadata.Labels[appsv1alpha1.OrphanedLabel] = &orphaned
	if pod.Excluded {
		m.Metadata.Labels[appsv1alpha1.ToExcludeLabel] = nil
	}
	if pod.Replacing {
		for _, key := range setplan.ReplacementLabels {
			m.Metadata.Labels[key] = nil
		}
		m.Metadata.Annotations[appsv1alpha1.ToReplaceLabel+podops.AskersSuffix] = nil
	}
	if pod.ToDelete { // by its replacement, or it were not excluded
		m.Metadata.Labels[appsv1alpha1.ToDeleteLabel] = nil
		m.Metadata.Annotations[appsv1alpha1.ToDeleteLabel+podops.AskersSuffix] = nil
	}
	if err := w.patchMembership(ctx, o, pod, m); err != nil {
		return err
	}
	o.memory.strays.identities.left(pod.UID())
	return nil
}

// include takes Pods in.
func (w memberWriter) include(ctx context.Context, o *observation, plan *setplan.Plan, out *outcome) {
	actions := make([]action, 0, len(plan.Inclusions))
	for _, i := range plan.Inclusions {
		// One after the other: they may bring the same revision.
		revision, err := revisions{w.server}.bring(ctx, o, i.Pod)
		actions = append(actions, action{name: "include", into: &out.ScaleOut,
			do: func() error {
				if err == nil {
					err = w.includePod(ctx, o, i, revision)
				}
				if err != nil {
					return fmt.Errorf("including Pod %s: %w", i.Pod.Name(), err)
				}
				return nil
			},
			done: func(err error) {
				if err == nil {
					out.included = append(out.included, i.Pod.Name())
				}
			}})
	}
	out.conflict = run(ctx, actions) || out.conflict
}

// includePod takes a Pod in, under another name of its revision unless that is "".
func (w memberWriter) includePod(ctx context.Context, o *observation, i setplan.Inclusion, revision string) error {
	if err := w.adoptVolumes(ctx, o, i); err != nil {
		return err
	}
	owners := append([]metav1.OwnerReference{}, o.candidates[i.Pod.Name()].OwnerReferences...)
	m := newMembership(i.Pod, podops.Change{}, append(owners, ownerReference(o.set)))
	id := strconv.Itoa(i.ID)
	m.Metadata.Labels[appsv1alpha1.InstanceIDLabel] = &id
	m.Metadata.Labels[appsv1alpha1.OrphanedLabel] = nil
	if revision != "" {
		m.Metadata.Labels[appsv1.ControllerRevisionHashLabelKey] = &revision
	}
	return w.patchMembership(ctx, o, i.Pod, m)
}

func (w memberWriter) patchMembership(ctx context.Context, o *observation, pod *setplan.Pod, m membership) error {
	data, err := json.Marshal(m)
	if err != nil {
		return err
	}
	return w.patch(ctx, o, pod, types.MergePatchType, data)
}

// includeIndex is the cache index of CollaSets by the names of Pods that they are to include.
const includeIndex = "collaset.includes"

func includedBy(object client.Object) []string {
	if set, ok := object.(*appsv1alpha1.CollaSet); ok {
		return set.Spec.ScaleStrategy.PodToInclude
	}
	return nil
}

// wouldInclude are the CollaSets that wait to include a Pod which has no controller.
func (l listener) wouldInclude(ctx context.Context, object client.Object) []reconcile.Request {
	if metav1.GetControllerOfNoCopy(object) != nil {
		return nil
	}
	return l.setsBy(ctx, object.GetNamespace(), includeIndex, object.GetName())
}

func (l listener) setsBy(ctx context.Context, namespace, index, value string) []reconcile.Request {
	sets := &appsv1alpha1.CollaSetList{}
	if err := l.cached.List(ctx, sets, client.InNamespace(namespace), client.MatchingFields{index: value},
		client.UnsafeDisableDeepCopy); err != nil {
		return nil // the cache is being stopped
	}
	requests := make([]reconcile.Request, 0, len(sets.Items))
	for i := range sets.Items {
		requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&sets.Items[i])})
	}
	return requests
}
