package collaset

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
	"kusionstack.io/kuperator/internal/collaset/setplan"
	"kusionstack.io/kuperator/internal/revision"
)

// Pods that are a CollaSet's and are not found as its members (docs/design/0024-one-pod-per-identity.md):
//
//   - free ones: managed, with an instance ID, and without a controller. The cache has them;
//   - dangling ones: their controller is a CollaSet of this name that is no more. The cache has them under its UID,
//     and the first look at the API server, or an event, tells their names;
//   - unmanaged ones: the CollaSet controls them, and the label by which the cache selects Pods is gone. Only a list
//     tells of them. It is made when a Pod has left the cache that was not seen to end.

// knownStrays is what is kept of Pods that are not found as members: what events tell of identities, and what the last
// list of Pods that the cache does not have told.
type knownStrays struct {
	identities identities
	vacancy    vacancy
	unmanaged  []*corev1.Pod
}

// vacancy is what is known of Pods that the cache does not have.
type vacancy int

const (
	// neverListed: the Pods have not been listed yet.
	neverListed vacancy = iota
	// nothingLost: every Pod that has left the cache since the last list has ended.
	nothingLost
	// somethingLost: a Pod may have left the cache that has not ended.
	somethingLost
)

// unmanaged selects what the cache does not have.
var unmanaged = func() labels.Selector {
	without, err := labels.NewRequirement(appsv1alpha1.ControlLabel, selection.NotEquals,
		[]string{appsv1alpha1.ControlValue})
	if err != nil {
		panic(err) // the label is a constant
	}
	return labels.NewSelector().Add(*without)
}()

// isFree reports whether a Pod is a member of no set, and looks as if it had been one.
func isFree(pod metav1.Object) bool {
	_, has := pod.GetLabels()[appsv1alpha1.InstanceIDLabel]
	_, orphaned := pod.GetLabels()[appsv1alpha1.OrphanedLabel]
	return has && !orphaned && metav1.GetControllerOfNoCopy(pod) == nil
}

// dangling reports whether a reference is to an earlier CollaSet of the same name.
func dangling(ref *metav1.OwnerReference, set *appsv1alpha1.CollaSet) bool {
	return refersTo(ref, appsv1alpha1.CollaSetKind, set.Name) && ref.UID != set.UID
}

// refersTo reports whether a reference is to an object of our group, of that kind and name.
func refersTo(ref *metav1.OwnerReference, kind, name string) bool {
	group, err := schema.ParseGroupVersion(ref.APIVersion)
	return err == nil && group.Group == appsv1alpha1.SchemeGroupVersion.Group && ref.Kind == kind && ref.Name == name
}

// hasDangling reports whether an object's controller is an earlier CollaSet of the same name.
func hasDangling(object metav1.Object, set *appsv1alpha1.CollaSet) bool {
	ref := metav1.GetControllerOfNoCopy(object)
	return ref != nil && dangling(ref, set)
}

// madeFor reports whether a Pod was made for the CollaSet: by its revision's name, or, if it has none, by its own.
func madeFor(pod metav1.Object, set *appsv1alpha1.CollaSet) bool {
	if of := pod.GetLabels()[appsv1.ControllerRevisionHashLabelKey]; of != "" {
		return of == revision.Name(set.Name, of[strings.LastIndexByte(of, '-')+1:])
	}
	name := pod.GetName()
	return name[:max(strings.LastIndexByte(name, '-'), 0)] == strings.TrimSuffix(namePrefix(set.Name), "-")
}

// leftBehind reports whether a managed Pod that the CollaSet does not control is its own by what it carries.
func leftBehind(pod metav1.Object, set *appsv1alpha1.CollaSet) bool {
	_, orphaned := pod.GetLabels()[appsv1alpha1.OrphanedLabel]
	return (isFree(pod) || hasDangling(pod, set) && !orphaned) && madeFor(pod, set)
}

// refsOfOthers are an object's owner references but those to a CollaSet and to earlier ones of its name; never nil.
func refsOfOthers(object metav1.Object, set *appsv1alpha1.CollaSet) []metav1.OwnerReference {
	return slices.DeleteFunc(refsWithout(object, set.UID),
		func(ref metav1.OwnerReference) bool { return dangling(&ref, set) })
}

// observeStrays fills in the Pods that are the CollaSet's and not among its members.
func observeStrays(ctx context.Context, cached podReader, c client.Reader, o *observation) error {
	o.strays = map[string]*corev1.Pod{}
	if o.snapshot.Orphaning {
		return nil // the garbage collector takes their owner references away
	}
	add := func(pod *corev1.Pod, unmanaged bool) {
		o.strays[pod.Name] = pod
		o.snapshot.Strays = append(o.snapshot.Strays, setplan.Stray{Pod: podOf(pod, o.selector), Unmanaged: unmanaged})
	}
	for _, pod := range o.memory.strays.keepUnmanaged(o.snapshot.Pods) {
		add(pod, true)
	}
	if o.snapshot.Deleting {
		return nil
	}
	free, err := cached.ByIndex(ownerIndex, ownedBy(o.set.Namespace, ""))
	if err != nil {
		return err
	}
	for _, kept := range free {
		if pod := kept.Whole(); leftBehind(pod, o.set) {
			add(pod, false)
		}
	}
	for _, name := range o.memory.strays.identities.danglers() {
		pod := &corev1.Pod{}
		err := c.Get(ctx, types.NamespacedName{Namespace: o.set.Namespace, Name: name}, pod, client.UnsafeDisableDeepCopy)
		switch {
		case client.IgnoreNotFound(err) != nil:
			return fmt.Errorf("reading Pod %s: %w", name, err)
		case err == nil && hasDangling(pod, o.set):
			if leftBehind(pod, o.set) {
				add(pod, false)
			}
		case !o.memory.view.Pending(): // the cache shows what it is
			o.memory.strays.identities.noDangler(name)
		}
	}
	return nil
}

// ensureVacant looks for Pods that are the CollaSet's and that the cache does not have, before a plan relies on an
// instance ID being vacant, if there may be any. Where there are, the plan is decided again, with them.
func (s *server) ensureVacant(ctx context.Context, o *observation, plan *setplan.Plan) error {
	m := &o.memory.strays
	if m.vacancy == nothingLost || !plan.EntriesChanged && len(plan.Creations) == 0 && !plan.Release {
		return nil
	}
	if m.vacancy == neverListed && len(o.snapshot.Entries) == 0 && !plan.Release {
		m.vacancy = nothingLost // nothing was made before
		return nil
	}
	list := &metav1.PartialObjectMetadataList{}
	list.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("PodList"))
	if err := s.live.List(ctx, list, client.InNamespace(o.set.Namespace),
		client.MatchingLabelsSelector{Selector: unmanaged}); err != nil {
		return fmt.Errorf("making sure that instance IDs are vacant: %w", err)
	}
	m.unmanaged = nil
	for i := range list.Items {
		if pod := &list.Items[i]; metav1.IsControlledBy(pod, o.set) {
			m.unmanaged = append(m.unmanaged, &corev1.Pod{ObjectMeta: pod.ObjectMeta})
		}
	}
	m.vacancy = nothingLost
	if !o.knowsStrays(m.unmanaged) {
		return errStale
	}
	return nil
}

// knowsStrays reports whether the snapshot has all of these Pods.
func (o *observation) knowsStrays(pods []*corev1.Pod) bool {
	if o.snapshot.Orphaning {
		return true
	}
	return !slices.ContainsFunc(pods, func(pod *corev1.Pod) bool {
		known := o.strays[pod.Name]
		return known == nil || known.UID != pod.UID
	})
}

// repair gives Pods back by what they are found.
func (w memberWriter) repair(ctx context.Context, o *observation, plan *setplan.Plan, out *outcome) {
	if len(plan.Repairs) == 0 {
		return
	}
	if slices.ContainsFunc(plan.Repairs, func(p setplan.Repair) bool { return p.Adopt }) {
		switch err := w.ensureSetExists(ctx, o.set); {
		case errors.Is(err, errStale):
			out.conflict = true
			return
		case err != nil:
			out.ScaleOut = errors.Join(out.ScaleOut, err)
			return
		}
	}
	look := false
	actions := make([]action, 0, len(plan.Repairs))
	for i := range plan.Repairs {
		p := &plan.Repairs[i]
		name := "repair"
		if p.Adopt {
			name = "adopt"
		}
		actions = append(actions, action{name: name, into: &out.ScaleOut,
			do: func() error {
				if err := w.repairPod(ctx, o, p); err != nil {
					return fmt.Errorf("taking Pod %s back: %w", p.Pod.Name(), err)
				}
				return nil
			},
			done: func(err error) {
				look = look || p.Unmanaged && (err == nil || oldView(name, err))
				if err == nil {
					out.repaired = append(out.repaired, *p)
				}
			}})
	}
	out.conflict = run(ctx, actions) || out.conflict
	if look {
		o.memory.strays.unmanaged, o.memory.strays.vacancy = nil, somethingLost
	}
}

// ensureSetExists makes sure that the CollaSet is still there and not being deleted, before it adopts anything.
func (s *server) ensureSetExists(ctx context.Context, set *appsv1alpha1.CollaSet) error {
	now, err := s.newestSet(ctx, set)
	if err == nil && now.DeletionTimestamp != nil {
		return errStale
	}
	return err
}

func (w memberWriter) repairPod(ctx context.Context, o *observation, p *setplan.Repair) error {
	if p.Adopt {
		owners := append(refsOfOthers(o.strays[p.Pod.Name()], o.set), ownerReference(o.set))
		return w.patchMembership(ctx, o, p.Pod, newMembership(p.Pod, podops.Change{}, owners))
	}
	change := podops.Change{Labels: map[string]*string{}}
	for key, value := range p.Labels {
		change.Labels[key] = &value
	}
	pod, err := w.patchMeta(ctx, o, p.Pod, types.MergePatchType, change.MergePatch(p.Pod.View))
	if err == nil && p.Unmanaged {
		w.writes.Created(client.ObjectKeyFromObject(o.set), pod) // for the cache it is a new one
	}
	return err
}

// recordRepairs tells what Pods lacked, and of each that was adopted.
func (r reporter) recordRepairs(o *observation, repaired []setplan.Repair) {
	slices.SortFunc(repaired, func(a, b setplan.Repair) int { return strings.Compare(a.Pod.Name(), b.Pod.Name()) })
	each(repaired, ", and so were %d more", func(p setplan.Repair, more string) {
		name := p.Pod.Name()
		related := o.strays[name]
		if related == nil {
			related = o.related(name)
		}
		if p.Adopt {
			r.events.Eventf(o.set, related, corev1.EventTypeNormal, "Adopted", "Adopt",
				"Pod %s had no owner, was made for this CollaSet and was adopted as it is%s", name, more)
			return
		}
		lacked := make([]string, 0, len(p.Labels))
		for key, value := range p.Labels {
			lacked = append(lacked, key+"="+value)
		}
		slices.Sort(lacked)
		r.events.Eventf(o.set, related, corev1.EventTypeWarning, "LabelsRestored", "Adopt",
			"Pod %s is this CollaSet's and lacked %s, which was put back%s; to take a Pod out, name it in spec.scaleStrategy.podToExclude", name, strings.Join(lacked, ", "), more)
	})
}

// adoptRevisions makes those revisions the CollaSet's that were made for it and have no owner: without them nothing
// would tell what its Pods are.
func (r revisions) adoptRevisions(ctx context.Context, set *appsv1alpha1.CollaSet, h *history) error {
	list := &appsv1.ControllerRevisionList{}
	err := r.client.List(ctx, list, client.InNamespace(set.Namespace),
		client.MatchingFields{ownerIndex: revisionKey(revisionBase(set))}, client.UnsafeDisableDeepCopy)
	if err != nil {
		return fmt.Errorf("listing revisions that have no owner: %w", err)
	}
	for i := range list.Items {
		if !adoptable(&list.Items[i], set) {
			continue
		}
		cr := list.Items[i].DeepCopy()
		switch err := r.adoptRevision(ctx, set, cr); {
		case err == nil:
			h.list = append(h.list, *cr)
		case errors.Is(err, errStale), apierrors.IsConflict(err), apierrors.IsNotFound(err):
			return errStale
		default:
			return err
		}
	}
	return nil
}

// adoptable reports whether a revision was made for the CollaSet and has no owner.
func adoptable(cr *appsv1.ControllerRevision, set *appsv1alpha1.CollaSet) bool {
	hash := cr.Labels[appsv1alpha1.RevisionHashLabel]
	if hash == "" || cr.Name != revision.Name(set.Name, hash) || cr.DeletionTimestamp != nil {
		return false
	}
	return metav1.GetControllerOfNoCopy(cr) == nil || hasDangling(cr, set)
}

func (r revisions) adoptRevision(ctx context.Context, set *appsv1alpha1.CollaSet, cr *appsv1.ControllerRevision) error {
	if err := r.ensureSetExists(ctx, set); err != nil {
		return err
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"uid": cr.UID, "resourceVersion": cr.ResourceVersion,
		"ownerReferences": append(refsOfOthers(cr, set), ownerReference(set)),
	}})
	if err != nil {
		return err
	}
	if err := r.client.Patch(ctx, cr, client.RawPatch(types.MergePatchType, patch)); err != nil {
		return fmt.Errorf("adopting revision %s: %w", cr.Name, err)
	}
	r.writes.Wrote(client.ObjectKeyFromObject(set), cr)
	return nil
}

func revisionKey(base string) string { return "name/" + base }

// revisionBase is what names of the CollaSet's revisions begin with.
func revisionBase(set *appsv1alpha1.CollaSet) string {
	return strings.TrimSuffix(revision.Name(set.Name, ""), "-")
}

// revisionOwner is an index function: the UID of the CollaSet that controls a revision, and what its name begins with,
// which tells for whom it was made.
func revisionOwner(object client.Object) []string {
	var keys []string
	if _, uid, owned := setOf(object); owned {
		keys = append(keys, string(uid))
	}
	if base, ok := strings.CutSuffix(object.GetName(), "-"+object.GetLabels()[appsv1alpha1.RevisionHashLabel]); ok {
		keys = append(keys, revisionKey(base))
	}
	return keys
}

// wouldAdopt are the CollaSets for which a Pod without a controller was made.
func (l listener) wouldAdopt(ctx context.Context, pod client.Object) []reconcile.Request {
	if !isFree(pod) {
		return nil
	}
	sets := &appsv1alpha1.CollaSetList{}
	if err := l.cached.List(ctx, sets, client.InNamespace(pod.GetNamespace()), client.UnsafeDisableDeepCopy); err != nil {
		return nil // the cache is being stopped
	}
	var requests []reconcile.Request
	for i := range sets.Items {
		if madeFor(pod, &sets.Items[i]) {
			requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&sets.Items[i])})
		}
	}
	return requests
}

// identities are what events tell of the Pods of one CollaSet. They are safe for concurrent use.
type identities struct {
	mu sync.Mutex
	// known is what the labels of Pods held before another client changed them.
	known map[types.UID]setplan.Known
	// ended are Pods that have left the cache since they were last read, and have ended.
	ended map[types.UID]bool
	// dangling are names of Pods whose owner reference is to an earlier CollaSet of the same name.
	dangling map[string]bool
}

// relabelled notes what a Pod said before its labels became what they are.
func (i *identities) relabelled(uid types.UID, before, after setplan.Known) {
	if (before.ID == setplan.NoID || before.ID == after.ID) && (before.Revision == "" || after.Revision != "") {
		return
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	if _, noted := i.known[uid]; noted {
		return
	}
	if i.known == nil {
		i.known = map[types.UID]setplan.Known{}
	}
	i.known[uid] = before
}

// remind fills in what Pods said before, and forgets what they say again, and those that are gone.
func (i *identities) remind(pods []setplan.Pod) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if len(i.known) == 0 {
		return
	}
	kept := map[types.UID]setplan.Known{}
	for k := range pods {
		p := &pods[k]
		known, noted := i.known[p.UID()]
		if !noted || (known.ID == setplan.NoID || known.ID == p.ID) && (known.Revision == "" || p.Revision != "") {
			continue
		}
		kept[p.UID()] = known
		p.Known = &known
	}
	i.known = kept
}

// left notes that a Pod has ended, or is not to be looked for.
func (i *identities) left(pod types.UID) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.ended == nil {
		i.ended = map[types.UID]bool{}
	}
	i.ended[pod] = true
}

// takeEnded returns those that were noted since the last call.
func (i *identities) takeEnded() map[types.UID]bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	ended := i.ended
	i.ended = nil
	return ended
}

func (i *identities) dangles(pod string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.dangling == nil {
		i.dangling = map[string]bool{}
	}
	i.dangling[pod] = true
}

func (i *identities) noDangler(pod string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	delete(i.dangling, pod)
}

// danglers are names, sorted.
func (i *identities) danglers() []string {
	i.mu.Lock()
	defer i.mu.Unlock()
	names := make([]string, 0, len(i.dangling))
	for name := range i.dangling {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// saysOf is what a Pod says of itself.
func saysOf(pod metav1.Object) setplan.Known {
	return setplan.Known{ID: instanceID(pod), Revision: pod.GetLabels()[appsv1.ControllerRevisionHashLabelKey]}
}

// hasEnded reports whether a Pod whose last state this is has ended: its node, or a client by force, has deleted it.
// The cache drops a Pod as well that is not selected any more.
func hasEnded(pod metav1.Object) bool {
	grace := pod.GetDeletionGracePeriodSeconds()
	return pod.GetDeletionTimestamp() != nil && grace != nil && *grace == 0
}

// keepUnmanaged forgets those that are members by now, and returns the others.
func (k *knownStrays) keepUnmanaged(members []setplan.Pod) []*corev1.Pod {
	if len(k.unmanaged) > 0 {
		k.unmanaged = slices.DeleteFunc(k.unmanaged, func(pod *corev1.Pod) bool {
			return slices.ContainsFunc(members, func(p setplan.Pod) bool { return p.UID() == pod.UID })
		})
	}
	return k.unmanaged
}
