package collaset

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
	"kusionstack.io/kuperator/internal/collaset/setplan"
	"kusionstack.io/kuperator/internal/decoration"
	"kusionstack.io/kuperator/internal/drain"
	"kusionstack.io/kuperator/internal/podcache"
	"kusionstack.io/kuperator/internal/revision"
)

// observation is one CollaSet and what belongs to it, as the caches show it. The objects in it belong to the cache.
type observation struct {
	set      *appsv1alpha1.CollaSet
	selector labels.Selector
	snapshot setplan.Snapshot
	// pods are the Pods of the snapshot, each at the same place.
	pods    []*podcache.Pod
	history *history
	// pod is one of the Pods of the snapshot by its name, nil if there is none; it takes time and memory.
	pod func(name string) *corev1.Pod
	// strays are the Pods of snapshot.Strays, by name.
	strays map[string]*corev1.Pod
	// candidates are Pods of others that are to be included, by name.
	candidates map[string]*corev1.Pod
	// context is the ResourceContext, nil if there is none.
	context *appsv1alpha1.ResourceContext
	claims  map[string]*corev1.PersistentVolumeClaim
	memory  *setState
	// single reports whether this is about one Pod alone, for a separate step. What is written then is not waited for
	// before the set is decided on: neither the Pods in flight nor what may be begun depend on it.
	single bool
}

// knownPods is what is kept of Pods.
type knownPods struct {
	// memo has the Pods as they were read for the last decision, for the selector selected.
	memo     podcache.Memo[setplan.Pod]
	selected string
	// allowed is when the permission on a Pod was first seen.
	allowed map[types.UID]permission
	// carried is when a change that lifecycle-controller is to finish was first seen carried out.
	carried map[types.UID]time.Time
	// restarts are the Pods that ran to their ends.
	restarts restartBackoff
}

// permission is one request on one Pod that was let pass.
type permission struct {
	request string
	since   time.Time
}

// podReader is a podcache.Store.
type podReader interface {
	ByIndex(index, value string) ([]*podcache.Pod, error)
}

// observe reads everything that a decision needs and resolves defaults. It decides nothing.
func (r *reconciler) observe(ctx context.Context, set *appsv1alpha1.CollaSet) (*observation, error) {
	key := client.ObjectKeyFromObject(set)
	o := &observation{
		set: set, memory: r.memory.Of(key, set.UID), candidates: map[string]*corev1.Pod{},
		claims: map[string]*corev1.PersistentVolumeClaim{},
	}
	h, err := revisions{r.server}.observe(ctx, set, &o.memory.revisions, r.serverCan)
	if err != nil {
		return nil, err
	}
	o.history = h
	o.memory.decidedAt.Store(r.clock.Now().UnixNano())
	// before Pods are read
	r.window.tell(func(w *setplan.Window, now time.Time) setplan.Answer { return w.Hold(key, now) })
	pods, err := r.cached.ByIndex(ownerIndex, ownedBy(set.Namespace, set.UID))
	if err != nil {
		return nil, err
	}
	context := &appsv1alpha1.ResourceContext{}
	switch err := r.client.Get(ctx, types.NamespacedName{Namespace: set.Namespace, Name: contextName(set)}, context,
		client.UnsafeDisableDeepCopy); {
	case err == nil:
		o.context = context
	case client.IgnoreNotFound(err) != nil:
		return nil, fmt.Errorf("reading the ResourceContext: %w", err)
	}
	selector, err := metav1.LabelSelectorAsSelector(set.Spec.Selector)
	if err != nil {
		return nil, fmt.Errorf("spec.selector: %w", err)
	}
	o.selector = selector
	o.describe(r.clock.Now(), r.protocol, selector)
	o.snapshot.Conventions = r.conventions
	o.snapshot.Limits = r.window.limits
	o.pods, o.snapshot.Pods = pods, o.memory.readPods(pods, selector)
	ask(r.window, func(w *setplan.Window) bool { w.Foresee(key, o.snapshot.Pods); return true })
	o.observePods()
	if err := observeStrays(ctx, r.cached, r.client, o); err != nil {
		return nil, err
	}
	o.observeTopology(ctx, r.nodes)
	o.observeNodes(ctx, r.nodes)
	if err := observeCandidates(ctx, r.client, r.live, o); err != nil {
		return nil, err
	}
	if err := observeOwners(ctx, r.client, r.live, o); err != nil {
		return nil, err
	}
	observeBudgets(ctx, r.live, o)
	if err := observeClaims(ctx, r.client, r.live, o); err != nil {
		return nil, err
	}
	if err := r.observeDecorations(ctx, o); err != nil {
		return nil, err
	}
	return o, nil
}

// contextName is the name of the CollaSet's ResourceContext.
func contextName(set *appsv1alpha1.CollaSet) string {
	if set.Spec.ScaleStrategy.Context != "" {
		return set.Spec.ScaleStrategy.Context
	}
	return set.Name
}

// describe fills in what the snapshot has of the spec, its revisions and the ResourceContext.
func (o *observation) describe(now time.Time, protocol bool, selector labels.Selector) {
	spec := &o.set.Spec
	replicas := int(ptr.Deref(spec.Replicas, 0))
	naming := ptr.Deref(spec.NamingStrategy, appsv1alpha1.NamingStrategy{})
	s := setplan.Snapshot{
		Generation: o.set.Generation, Selector: selector.String(), Verdicts: o.memory.verdicts.all(now),
		Failure: o.history.failure,
		Mode: setplan.Mode{
			Now: now, Paused: spec.Paused, Deleting: o.set.DeletionTimestamp != nil, Protocol: protocol,
			Orphaning: slices.Contains(o.set.Finalizers, metav1.FinalizerOrphanDependents),
		},
		Identity: setplan.Identity{
			Name:       o.set.Name,
			Sequential: naming.PodNamingSuffixPolicy == appsv1alpha1.PodNamingSuffixPersistentSequence,
		},
		Scale: setplan.Scale{
			Replicas:     replicas,
			ScaleInDelay: seconds(spec.ScaleStrategy.OperationDelaySeconds),
			ToDelete:     spec.ScaleStrategy.PodToDelete, ToExclude: spec.ScaleStrategy.PodToExclude,
			ToInclude: spec.ScaleStrategy.PodToInclude,
		},
		Strategy: setplan.Strategy{
			Policy:      spec.UpdateStrategy.PodUpdatePolicy,
			UpdateDelay: seconds(spec.UpdateStrategy.OperationDelaySeconds),
			MaxSurge:    surge(spec.UpdateStrategy.MaxSurge, replicas),
			MinReady:    time.Duration(spec.MinReadySeconds) * time.Second,
		},
		History: setplan.History{
			UpdatedRevision: o.history.updated, CurrentRevision: o.set.Status.CurrentRevision,
			SpecRevision: o.history.spec, Halted: o.history.halted,
			Returned:  o.history.halted == nil && o.set.Status.CurrentRevision == o.history.updated,
			Revisions: make(map[string]setplan.Difference, len(o.history.changes)),
		},
	}
	if s.Policy == "" {
		s.Policy = appsv1alpha1.PodUpdateInPlaceIfPossible
	}
	if rolling := spec.UpdateStrategy.RollingUpdate; rolling != nil {
		s.ByLabel = rolling.ByLabel != nil
		if rolling.ByPartition != nil {
			s.Partition = scaled(rolling.ByPartition.Partition, s.Replicas)
		}
	}
	if disruption := spec.Disruption; disruption != nil {
		s.Surge = surge(disruption.MaxSurge, replicas)
		s.DeletesWhenFull = disruption.OnEviction == appsv1alpha1.EvictionReplaceWhenBlocked
		s.Drain = drain.PolicyOf(o.set)
	}
	s.MaxUnavailable = maxUnavailable(spec.UpdateStrategy.RollingUpdate, s.Replicas)
	for name, change := range o.history.changes {
		s.Revisions[name] = differenceOf(&change, name == s.UpdatedRevision)
	}
	if _, exists := s.Revisions[s.CurrentRevision]; !exists && !s.Deleting {
		s.CurrentRevision = s.UpdatedRevision
	}
	if o.context != nil {
		s.Entries = make([]setplan.Entry, len(o.context.Spec.Contexts))
		for i := range o.context.Spec.Contexts {
			s.Entries[i] = setplan.Entry{ID: o.context.Spec.Contexts[i].ID, Data: o.context.Spec.Contexts[i].Data}
		}
	}
	o.snapshot = s
}

// differenceOf is what decisions read of a change; isSame is whether it is from a revision to itself.
func differenceOf(change *revision.Change, isSame bool) setplan.Difference {
	return setplan.Difference{
		Forcing: withoutClaims(change.Forcing), Quiet: !isSame && !change.Restarts,
		Resizes: len(change.Resize) > 0 || change.PodResize != nil,
	}
}

// scaled is a number, or a percentage of the whole rounded up; 0 for nil and for what cannot be read.
func scaled(value *intstr.IntOrString, whole int) int { return rounded(value, whole, true) }

func rounded(value *intstr.IntOrString, whole int, up bool) int {
	if value == nil {
		return 0
	}
	n, err := intstr.GetScaledValueFromIntOrPercent(value, whole, up)
	if err != nil {
		return 0 // the schema refuses that
	}
	return n
}

// surge is a Deployment's maxSurge: 25 % by default, rounded up, and at least one.
func surge(value *intstr.IntOrString, replicas int) int {
	return max(1, scaled(ptr.To(ptr.Deref(value, intstr.FromString("25%"))), replicas))
}

// maxUnavailable is a Deployment's: 25 % by default, rounded down, and at least one, for else nothing would be updated.
func maxUnavailable(rolling *appsv1alpha1.RollingUpdateStrategy, replicas int) int {
	value := intstr.FromString("25%")
	if rolling != nil && rolling.MaxUnavailable != nil {
		value = *rolling.MaxUnavailable
	}
	return max(1, rounded(&value, replicas, false))
}

// inPlaceOnly reports whether Pods are never re-created for an update.
func (o *observation) inPlaceOnly() bool {
	return o.set.Spec.UpdateStrategy.PodUpdatePolicy == appsv1alpha1.PodUpdateInPlaceOnly
}

func seconds(n *int32) time.Duration { return time.Duration(ptr.Deref(n, 0)) * time.Second }

// observePods fills in what the snapshot has of Pods.
func (o *observation) observePods() {
	o.pod = func(name string) *corev1.Pod {
		if i := o.find(name); i >= 0 {
			return o.pods[i].Whole()
		}
		return nil
	}
	measured := o.snapshot.UpdateDelay > 0 || o.snapshot.ScaleInDelay > 0
	allowed, carried := map[types.UID]permission{}, map[types.UID]time.Time{}
	for i := range o.snapshot.Pods {
		p := &o.snapshot.Pods[i]
		available(p, &o.snapshot)
		p.CarriedSince = time.Time{}
		if p.Delegated {
			if p.CarriedSince = o.memory.pods.carried[p.UID()]; p.CarriedSince.IsZero() {
				p.CarriedSince = o.snapshot.Now
			}
			carried[p.UID()] = p.CarriedSince
		}
		if op := p.Facts.Op; op.Phase == podops.PhaseOperate && podops.Allowed(p.View, setplan.OperatorID, op.Type) {
			p.AllowedSince = o.snapshot.Now
			if measured {
				now := permission{request: p.View.Labels[podops.OperatingPrefix+"/"+setplan.OperatorID], since: o.snapshot.Now}
				if before, ok := o.memory.pods.allowed[p.UID()]; ok && before.request == now.request {
					now = before
				}
				allowed[p.UID()], p.AllowedSince = now, now.since
			}
		}
	}
	o.memory.pods.allowed, o.memory.pods.carried = allowed, carried
	o.memory.pods.restarts.measure(o.snapshot.Pods, o.snapshot.Now)
}

// find is where the Pod of a name is in the snapshot, -1 if it is not there.
func (o *observation) find(name string) int {
	for i := range o.snapshot.Pods {
		if o.snapshot.Pods[i].View.Name == name {
			return i
		}
	}
	return -1
}

// readPods reads those Pods that have changed, and finds the others where they were read before.
func (m *setState) readPods(pods []*podcache.Pod, selector labels.Selector) []setplan.Pod {
	if by := selector.String(); by != m.pods.selected {
		m.pods.memo.Forget()
		m.pods.selected = by
	}
	var read []types.UID
	all, past, remembered := m.pods.memo.Read(pods, func(pod *corev1.Pod) setplan.Pod {
		read = append(read, pod.UID)
		return podOf(pod, selector)
	})
	m.strays.missing(past, read, remembered)
	m.strays.identities.remind(all)
	return all
}

// missing notes whether a Pod may have been lost since Pods were read before: past are what was known then of those
// that have changed or are gone, and read those that are new or have changed.
func (k *knownStrays) missing(past []setplan.Pod, read []types.UID, remembered bool) {
	ended := k.identities.takeEnded()
	switch {
	case k.vacancy == neverListed:
		return
	case !remembered:
		k.vacancy = somethingLost
		return
	case len(past) == 0:
		return
	}
	there := make(map[types.UID]bool, len(read))
	for _, uid := range read {
		there[uid] = true
	}
	for i := range past {
		if uid := past[i].UID(); !there[uid] && !ended[uid] {
			k.vacancy = somethingLost
		}
	}
}

// podOf reads one Pod of a CollaSet with this selector.
func podOf(pod *corev1.Pod, selector labels.Selector) setplan.Pod {
	p := setplan.Pod{
		View: podops.Read(pod), Revision: pod.Labels[appsv1.ControllerRevisionHashLabelKey],
		Created: pod.CreationTimestamp.Time, DeletionCost: deletionCost(pod), Mounts: mountsIn(pod),
		Applied: hasApplied(pod),
		Service: setplan.Service{Phase: pod.Status.Phase, Node: pod.Spec.NodeName},
		Marks:   setplan.Marks{Selected: selector.Matches(labels.Set(pod.Labels))},
		Change:  setplan.Change{Recorded: revision.Recorded(pod)},
	}
	p.ID = instanceID(pod)
	p.Decorations, p.Desired = decoration.Keys(pod.Annotations)
	p.Facts = setplan.FactsOf(p.View)
	if p.Recorded {
		progress := revision.Carried(pod)
		p.Carried, p.Missing, p.Wait = progress.Done, progress.Missing, string(progress.Wait)
		p.ResizeDue = progress.ResizeDue
		p.Infeasible = progress.Wait == revision.WaitResizeInfeasible || progress.Wait == revision.WaitRestartInfeasible
		p.ResizeRestarts, p.Restarting = progress.ResizeRestarts, progress.Restarting
		if f := progress.Finish; f != nil {
			op := p.Facts.Op
			p.Delegated = op.Phase == podops.PhaseOperate && *f == revision.Finish{ID: op.ID, Type: op.Type, Request: op.Request}
		}
	}
	has := func(key string) bool { _, ok := pod.Labels[key]; return ok }
	p.Included, p.Excluded, p.ToDelete = has(appsv1alpha1.UpdateIncludedLabel), has(appsv1alpha1.ToExcludeLabel),
		has(appsv1alpha1.ToDeleteLabel)
	p.Replacing = slices.ContainsFunc(setplan.ReplacementLabels[:], has)
	p.Awaited = awaited(pod, p.View)
	p.Fails = failingContainer(pod)
	for _, c := range pod.Status.Conditions {
		switch {
		case c.Status != corev1.ConditionTrue:
		case c.Type == corev1.PodReady:
			p.ReadySince = c.LastTransitionTime.Time
		case c.Type == corev1.PodScheduled:
			p.Scheduled = true
		}
	}
	if p.View.Terminal {
		p.Ended = ended(pod)
	}
	// A container that restarts quickly, in place, may leave Ready as it is.
	for i := range pod.Status.ContainerStatuses {
		if running := pod.Status.ContainerStatuses[i].State.Running; running != nil && !p.ReadySince.IsZero() &&
			running.StartedAt.After(p.ReadySince) {
			p.ReadySince = running.StartedAt.Time
		}
	}
	return p
}

// instanceID is what an object's label says, setplan.NoID if that is no instance ID.
func instanceID(object metav1.Object) int {
	if id, err := strconv.Atoi(object.GetLabels()[appsv1alpha1.InstanceIDLabel]); err == nil && id >= 0 {
		return id
	}
	return setplan.NoID
}

// awaited is what others have to set before the Pod is available: if its containers are ready, the first of its
// readiness gates that is not True; if it is Ready, the first cooperator's finalizer that is not on.
func awaited(pod *corev1.Pod, v podops.View) string {
	switch {
	case v.Ready && !v.ServiceAvailable():
		employers := podops.MissingEmployers(v)
		if len(employers) == 0 {
			return ""
		}
		expected, _ := podops.ExpectedFinalizers(v.Annotations)
		return expected[employers[0]] + " of " + employers[0]
	case v.Ready, !v.ContainersReady:
		return ""
	}
	for _, gate := range pod.Spec.ReadinessGates {
		isTrue := slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
			return c.Type == gate.ConditionType && c.Status == corev1.ConditionTrue
		})
		if gate.ConditionType != podops.ServiceReadyCondition && !isTrue {
			return string(gate.ConditionType)
		}
	}
	return ""
}

// mountsIn are the Pod's volumes that are claims.
func mountsIn(pod *corev1.Pod) (mounts []setplan.Mount) {
	for i := range pod.Spec.Volumes {
		if claim := pod.Spec.Volumes[i].PersistentVolumeClaim; claim != nil {
			mounts = append(mounts, setplan.Mount{Volume: pod.Spec.Volumes[i].Name, Claim: claim.ClaimName})
		}
	}
	return mounts
}

// available records whether the Pod is available, and if that depends on time only, when it will be.
func available(p *setplan.Pod, s *setplan.Snapshot) {
	serves, minimum := p.View.Ready, s.MinReady
	if s.Protocol {
		serves = p.Facts.InService && (p.View.Ready || minimum == 0)
	}
	if !serves {
		return
	}
	left := minimum - s.Now.Sub(p.ReadySince)
	if minimum == 0 || left <= 0 {
		p.Available = true
		return
	}
	p.AvailableIn = left
}
