package collaset

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
	"kusionstack.io/kuperator/internal/collaset/setplan"
	"kusionstack.io/kuperator/internal/drain"
	"kusionstack.io/kuperator/internal/failures"
)

// createPods creates Pods in batches of 1, 2, 4, … and stops after a batch with a failure: what fails once, a quota
// or a template that is refused, mostly fails for all. After failures it waits, whatever happens to other Pods
// meanwhile.
func (a applier) createPods(ctx context.Context, o *observation, plan *setplan.Plan, out *outcome) {
	now, generation := a.clock.Now(), o.set.Generation
	if out.creationsIn = o.memory.creations.left(now, generation); out.creationsIn > 0 && len(plan.Creations) > 0 {
		out.creationsHeld = o.memory.creations.err
		return
	}
	before := out.created
	a.createInBatches(ctx, o, plan, out)
	if len(plan.Creations) > 0 {
		o.memory.creations.attempted(out.ScaleOut, out.created > before, now, generation)
	}
}

func (a applier) createInBatches(ctx context.Context, o *observation, plan *setplan.Plan, out *outcome) {
	if err := a.ensureFreshClaims(ctx, o, plan); err != nil {
		if errors.Is(err, errStale) {
			out.conflict = true
			return
		}
		out.ScaleOut = errors.Join(out.ScaleOut, err)
		return
	}
	var refused []setplan.Creation
	for start, batch := 0, 1; start < len(plan.Creations) && out.ScaleOut == nil; start, batch = start+batch, batch*2 {
		var actions []action
		for _, c := range plan.Creations[start:min(start+batch, len(plan.Creations))] {
			actions = append(actions, action{name: actionCreate, into: &out.ScaleOut,
				do: func() error { return a.createPod(ctx, o, c) },
				done: func(err error) {
					if err == nil && c.Origin == "" {
						out.created++
					}
					if apierrors.IsInvalid(err) && c.Advance && c.Revision != o.history.updated {
						refused = append(refused, c)
					}
				}})
		}
		out.conflict = run(ctx, actions) || out.conflict
	}
	if len(refused) > 0 {
		o.memory.creations = createBackoff{}
		if err := a.entries.advance(ctx, o, plan, refused); err != nil && !apierrors.IsConflict(err) {
			out.ScaleOut = errors.Join(out.ScaleOut, err)
		}
	}
}

// advance moves entries whose old revision the API server refuses to the updated one: it can be repaired, the old one
// cannot.
func (w entryWriter) advance(
	ctx context.Context, o *observation, plan *setplan.Plan, refused []setplan.Creation,
) error {
	entries := o.snapshot.Entries
	if plan.EntriesChanged {
		entries = plan.Entries
	}
	moved := make([]setplan.Entry, len(entries))
	for i, e := range entries {
		moved[i] = e
		for _, c := range refused {
			if c.ID != e.ID {
				continue
			}
			moved[i].Data = maps.Clone(e.Data)
			moved[i].Data[appsv1alpha1.ContextRevision] = o.history.updated
		}
	}
	return w.storeEntries(ctx, o, moved)
}

func (a applier) createPod(ctx context.Context, o *observation, c setplan.Creation) error {
	pod, err := a.newPod(ctx, o, c)
	if err != nil {
		return fmt.Errorf("making the Pod of instance ID %d: %w", c.ID, err)
	}
	if err := a.mountClaims(ctx, o, c, pod); err != nil {
		return err
	}
	err = a.client.Create(ctx, pod)
	if !c.FirstOfID && c.Origin == "" { // others are no successors, and may be refused for their number
		_ = trials{a.server}.took(ctx, o, setplan.Trial{Write: setplan.TrialCreate, To: c.Form()}, err)
	}
	if c.Origin != "" {
		_ = trials{a.server}.took(ctx, o, setplan.Trial{Write: setplan.TrialSurge, To: c.Form()}, err)
	}
	if err != nil {
		o.memory.view.Repeat()
		return fmt.Errorf("creating the Pod of instance ID %d: %w", c.ID, failures.Unnamed(err, pod.GetGenerateName()))
	}
	a.writes.Created(client.ObjectKeyFromObject(o.set), pod)
	return nil
}

// newPod makes a Pod of a revision, from the revision's own JSON so that no field is lost. Where its decorations do not
// exist any more, it is made without, and webhook-server decides.
func (s *server) newPod(
	ctx context.Context, o *observation, c setplan.Creation,
) (*unstructured.Unstructured, error) {
	data, err := s.made(ctx, o, c.Form())
	if errors.Is(err, errNoForm) && c.Decorations != "" {
		data, err = s.made(ctx, o, setplan.Form{Revision: c.Revision})
	}
	if err != nil {
		return nil, err
	}
	template := data.Template()
	spec, _ := template["spec"].(map[string]any)
	if spec == nil {
		spec = map[string]any{}
	}
	pod := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "Pod", "spec": spec}}
	pod.SetNamespace(o.set.Namespace)
	if metadata, ok := template["metadata"].(map[string]any); ok {
		from := unstructured.Unstructured{Object: map[string]any{"metadata": metadata}}
		pod.SetLabels(from.GetLabels())
		pod.SetAnnotations(from.GetAnnotations())
		pod.SetFinalizers(from.GetFinalizers())
	}
	labels := pod.GetLabels()
	if labels == nil {
		labels = map[string]string{}
	}
	labels[appsv1alpha1.ControlLabel] = appsv1alpha1.ControlValue
	labels[appsv1alpha1.InstanceIDLabel] = strconv.Itoa(c.ID)
	labels[appsv1.ControllerRevisionHashLabelKey] = c.Revision
	mark := podops.RecreatedLabel
	if c.FirstOfID || c.Origin != "" {
		mark = podops.CreatingLabel
	}
	labels[mark] = podops.Stamp(s.clock.Now())
	if c.Origin != "" {
		labels[appsv1alpha1.ReplacePairOriginNameLabel] = c.Origin
	}
	if c.Included != nil {
		labels[appsv1alpha1.UpdateIncludedLabel] = *c.Included
	}
	pod.SetLabels(labels)
	pod.SetOwnerReferences([]metav1.OwnerReference{ownerReference(o.set)})
	pod.SetGenerateName(namePrefix(o.set.Name))
	if o.snapshot.Sequential {
		name := o.set.Name + "-" + strconv.Itoa(c.ID)
		pod.SetName(name)
		spec["hostname"] = name
	}
	if o.snapshot.Protocol {
		addGate(spec)
		if s.evictions.Load() {
			addResponder(spec)
		}
	}
	return pod, nil
}

// namePrefix is what random names begin with: the CollaSet's name and a dash, where that can begin a name.
func namePrefix(set string) string {
	prefix := set + "-"
	if len(validation.IsDNS1123Subdomain(strings.TrimSuffix(prefix, "-")+"-x")) != 0 {
		return set
	}
	return prefix
}

// addGate gives a Pod the readiness gate by which the lifecycle takes it out of service.
func addGate(spec map[string]any) {
	gates, _ := spec["readinessGates"].([]any)
	for _, g := range gates {
		if gate, ok := g.(map[string]any); ok && gate["conditionType"] == podops.ServiceReadyCondition {
			return
		}
	}
	spec["readinessGates"] = append(gates, map[string]any{"conditionType": podops.ServiceReadyCondition})
}

// addResponder names the suite among those that respond to EvictionRequests for a Pod.
func addResponder(spec map[string]any) {
	responders, _ := spec["evictionResponders"].([]any)
	var named []string
	for _, r := range responders {
		if responder, ok := r.(map[string]any); ok {
			name, _ := responder["name"].(string)
			named = append(named, name)
		}
	}
	if ours := drain.ResponderOf(named, spec["schedulingGroup"] != nil); ours != nil {
		spec["evictionResponders"] = append(responders, ours)
	}
}
