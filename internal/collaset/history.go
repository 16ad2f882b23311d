package collaset

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"

	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/internal/collaset/setplan"
	"kusionstack.io/kuperator/internal/revision"
)

// defaultHistoryLimit is the number of unused revisions kept when spec.historyLimit is nil.
const defaultHistoryLimit = 20

// maxCollisions bounds the names tried for one new revision.
const maxCollisions = 16

// history is the CollaSet's revisions.
type history struct {
	list    []appsv1.ControllerRevision // oldest first
	updated string
	// spec is the revision of the present template. updated is another where halted goes back.
	spec    string
	halted  *appsv1alpha1.HaltedRollout
	failure setplan.FailureHandling
	// data has the content of each that can be read, changes what lies between it and the updated one.
	data       map[string]*revision.Data
	changes    map[string]revision.Change
	collisions int32
}

// knownRevisions is what is kept of the revisions' contents.
type knownRevisions struct {
	// generation and configuration are those that rendered and wanted were made from; 0 for none.
	generation    int64
	configuration []appsv1alpha1.ConfigurationStatus
	rendered      []byte
	wanted        *revision.Data
	// parsed holds the revisions' contents by UID; changes what lies between them and the one named changesTo.
	parsed    map[types.UID]*revision.Data
	changes   map[string]revision.Change
	changesTo types.UID
	// changesFor are the capabilities that changes were worked out for.
	changesFor revision.Capabilities
}

// revisions reads, makes and deletes the revisions of CollaSets.
type revisions struct{ *server }

// observe lists the CollaSet's revisions and makes sure that the present template has one.
func (r revisions) observe(
	ctx context.Context, set *appsv1alpha1.CollaSet, m *knownRevisions,
	serverCan func(context.Context) (revision.Capabilities, error),
) (*history, error) {
	list := &appsv1.ControllerRevisionList{}
	err := r.client.List(ctx, list, client.InNamespace(set.Namespace), client.MatchingFields{ownerIndex: string(set.UID)},
		client.UnsafeDisableDeepCopy)
	if err != nil {
		return nil, fmt.Errorf("listing revisions: %w", err)
	}
	h := &history{list: list.Items, data: map[string]*revision.Data{}, failure: failureHandling(set)}
	if set.DeletionTimestamp == nil {
		if err := r.adoptRevisions(ctx, set, h); err != nil {
			return nil, err
		}
	}
	h.collisions = ptr.Deref(set.Status.CollisionCount, 0)
	slices.SortFunc(h.list, func(a, b appsv1.ControllerRevision) int {
		return cmp.Or(cmp.Compare(a.Revision, b.Revision), cmp.Compare(a.Name, b.Name))
	})
	kept := map[types.UID]*revision.Data{}
	for i := range h.list {
		h.read(ctx, &h.list[i], m, kept)
	}
	m.parsed = kept
	if set.DeletionTimestamp != nil {
		// Nothing is made of the template any more, and status goes on telling which Pods have it.
		h.updated = set.Status.UpdatedRevision
		return h, nil
	}
	if err := r.render(ctx, set, m); err != nil {
		return nil, err
	}
	if err := r.ensureUpdated(ctx, set, m, h); err != nil {
		return nil, err
	}
	h.aim(set)
	can, err := serverCan(ctx)
	if err != nil {
		return nil, err
	}
	h.explain(m, can)
	return h, nil
}

// failureHandling is what the spec says about rollouts that do not progress.
func failureHandling(set *appsv1alpha1.CollaSet) setplan.FailureHandling {
	return setplan.FailureHandling{Deadline: setplan.DeadlineOf(set.Spec.ProgressDeadlineSeconds),
		Policy: set.Spec.UpdateStrategy.FailurePolicy}
}

// aim takes a halted rollout into account: updated is the revision that Pods go to.
func (h *history) aim(set *appsv1alpha1.CollaSet) {
	h.spec = h.updated
	current := h.data[set.Status.CurrentRevision]
	if h.failure.Policy == appsv1alpha1.RolloutFailureRollback && current != nil && current.SameTemplate(h.data[h.spec]) {
		h.failure.Policy = appsv1alpha1.RolloutFailurePause // Pods would go back, and not the content that they read
	}
	h.halted = h.failure.Halt(&set.Status, h.spec,
		func(revision string) bool { return h.data[revision] != nil })
	h.updated = setplan.Target(h.spec, h.halted)
}

// read takes a revision's content. One that cannot be read is left out: its Pods are of an unknown revision then.
func (h *history) read(
	ctx context.Context, cr *appsv1.ControllerRevision, m *knownRevisions, kept map[types.UID]*revision.Data,
) {
	data := m.parsed[cr.UID]
	if data == nil {
		var err error
		if data, err = revision.Parse(cr.Data.Raw); err != nil {
			log.FromContext(ctx).Info("a revision cannot be read and is ignored", "controllerRevision", cr.Name, "problem",
				err.Error())
			return
		}
	}
	kept[cr.UID] = data
	h.data[cr.Name] = data
}

// render makes the content of the present template's revision, from the stored JSON: the cached object has lost what
// its Go type does not know. It costs one read for each generation and configuration.
func (r revisions) render(ctx context.Context, set *appsv1alpha1.CollaSet, m *knownRevisions) error {
	if m.generation == set.Generation && slices.Equal(m.configuration, set.Status.Configuration) {
		return nil
	}
	stored := &unstructured.Unstructured{}
	stored.SetGroupVersionKind(appsv1alpha1.SchemeGroupVersion.WithKind(appsv1alpha1.CollaSetKind))
	if err := r.live.Get(ctx, client.ObjectKeyFromObject(set), stored); err != nil {
		if apierrors.IsNotFound(err) {
			return errStale
		}
		return fmt.Errorf("reading the stored CollaSet: %w", err)
	}
	if stored.GetGeneration() != set.Generation || stored.GetUID() != set.UID {
		return errStale
	}
	var typed appsv1alpha1.CollaSet
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(stored.Object, &typed); err != nil {
		return fmt.Errorf("reading the stored CollaSet: %w", err)
	}
	configuration := typed.Status.Configuration
	if !slices.Equal(configuration, set.Status.Configuration) {
		return errStale
	}
	spec, _ := stored.Object["spec"].(map[string]any)
	rendered, err := revision.RenderWith(spec, configuration)
	if err != nil {
		return fmt.Errorf("making a revision of the template: %w", err)
	}
	wanted, err := revision.Parse(rendered)
	if err != nil {
		return fmt.Errorf("making a revision of the template: %w", err)
	}
	m.rendered, m.wanted, m.generation, m.configuration = rendered, wanted, set.Generation, configuration
	return nil
}

// ensureUpdated finds the revision that means the present template, or makes one. An older one becomes the newest.
func (r revisions) ensureUpdated(ctx context.Context, set *appsv1alpha1.CollaSet, m *knownRevisions, h *history) error {
	newest := int64(0)
	var found *appsv1.ControllerRevision
	for i := range h.list {
		cr := &h.list[i]
		newest = max(newest, cr.Revision)
		if data := h.data[cr.Name]; data != nil && data.Same(m.wanted) {
			found = cr
		}
	}
	switch {
	case found == nil:
		var err error
		h.updated, err = r.createRevision(ctx, set, m, h, m.rendered, m.wanted, newest+1)
		return err
	case found.Revision < newest:
		// A copy: the listed object belongs to the cache.
		again := found.DeepCopy()
		patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": found.UID}, "revision": newest + 1})
		if err != nil {
			return err
		}
		if err := r.client.Patch(ctx, again, client.RawPatch(types.MergePatchType, patch)); err != nil {
			return fmt.Errorf("making revision %s the newest: %w", found.Name, err)
		}
		r.writes.Wrote(client.ObjectKeyFromObject(set), again)
	}
	h.updated = found.Name
	return nil
}

// createRevision makes a revision of the set and returns its name: content is what data says.
func (r revisions) createRevision(
	ctx context.Context, set *appsv1alpha1.CollaSet, m *knownRevisions, h *history, data []byte, content *revision.Data,
	number int64,
) (string, error) {
	for range maxCollisions {
		cr := newRevision(set, data, h.collisions, number)
		err := r.client.Create(ctx, cr)
		if err == nil {
			r.writes.Created(client.ObjectKeyFromObject(set), cr)
		}
		if apierrors.IsAlreadyExists(err) {
			name := client.ObjectKeyFromObject(cr)
			cr = &appsv1.ControllerRevision{}
			if err = r.live.Get(ctx, name, cr); err != nil {
				return "", fmt.Errorf("reading revision %s: %w", name.Name, err)
			}
			existing, unreadable := revision.Parse(cr.Data.Raw)
			if unreadable == nil && existing.Same(content) && adoptable(cr, set) { // which the cache does not show yet
				if err := r.adoptRevision(ctx, set, cr); err != nil {
					return "", err
				}
			}
			if unreadable != nil || !existing.Same(content) || !metav1.IsControlledBy(cr, set) {
				h.collisions++
				continue
			}
		}
		if err != nil {
			return "", fmt.Errorf("creating revision %s: %w", cr.Name, err)
		}
		h.data[cr.Name], m.parsed[cr.UID] = content, content
		h.list = append(h.list, *cr)
		return cr.Name, nil
	}
	return "",
		fmt.Errorf("creating a revision: %d names are taken by other content; delete ControllerRevisions that no Pod uses",
			maxCollisions)
}

// bring returns the set's revision with the content of the revision of a Pod that comes from another CollaSet, and
// creates it if there is none: unless the difference between the Pod and the present template is known, the Pod has to
// be re-created. "" means that the Pod's revision is the set's already, or that it cannot be known or be the set's;
// the Pod keeps its label then.
func (r revisions) bring(ctx context.Context, o *observation, pod *setplan.Pod) (string, error) {
	if pod.Revision == "" || o.history.data[pod.Revision] != nil {
		return "", nil
	}
	cr := &appsv1.ControllerRevision{}
	if err := r.live.Get(ctx, types.NamespacedName{Namespace: o.set.Namespace, Name: pod.Revision}, cr); err != nil {
		return "", client.IgnoreNotFound(err)
	}
	content, err := revision.Parse(cr.Data.Raw)
	if _, _, ofSet := setOf(cr); err != nil || !ofSet &&
		(metav1.GetControllerOfNoCopy(cr) != nil || cr.Labels[appsv1alpha1.RevisionHashLabel] == "") {
		return "", nil //nolint:nilerr // it says nothing about the Pod
	}
	for i := range o.history.list {
		if name := o.history.list[i].Name; o.history.data[name] != nil && o.history.data[name].Same(content) {
			return name, nil
		}
	}
	template := unstructured.Unstructured{Object: content.Template()}
	if !o.selector.Matches(labels.Set(template.GetLabels())) {
		return "", nil // a Pod made of it would be released at once
	}
	// it comes before the set's own
	return r.createRevision(ctx, o.set, &o.memory.revisions, o.history, cr.Data.Raw, content, 0)
}

func newRevision(set *appsv1alpha1.CollaSet, data []byte, collisions int32, number int64) *appsv1.ControllerRevision {
	hash := revision.Hash(data, collisions)
	labels := map[string]string{}
	if set.Spec.Selector != nil {
		maps.Copy(labels, set.Spec.Selector.MatchLabels)
	}
	labels[appsv1alpha1.RevisionHashLabel] = hash
	labels[appsv1alpha1.RevisionCollisionLabel] = strconv.Itoa(int(collisions))
	return &appsv1.ControllerRevision{
		ObjectMeta: metav1.ObjectMeta{
			Name: revision.Name(set.Name, hash), Namespace: set.Namespace, Labels: labels,
			OwnerReferences: []metav1.OwnerReference{ownerReference(set)},
		},
		Data:     runtime.RawExtension{Raw: data},
		Revision: number,
	}
}

// ownerReference is the owner reference of what a CollaSet makes. It does not block the owner's deletion: in a
// deletion in the foreground the garbage collector deletes what blocks at once, past every rule, and our finalizer
// keeps the CollaSet until its Pods have left.
func ownerReference(set *appsv1alpha1.CollaSet) metav1.OwnerReference {
	ref := *metav1.NewControllerRef(set, appsv1alpha1.SchemeGroupVersion.WithKind(appsv1alpha1.CollaSetKind))
	ref.BlockOwnerDeletion = nil
	return ref
}

// explain works out what lies between each revision and the updated one, once for each pair.
func (h *history) explain(m *knownRevisions, can revision.Capabilities) {
	var to types.UID
	for i := range h.list {
		if h.list[i].Name == h.updated {
			to = h.list[i].UID
		}
	}
	if m.changesTo != to || m.changesFor != can || m.changes == nil {
		m.changes, m.changesTo, m.changesFor = map[string]revision.Change{}, to, can
	}
	h.changes = make(map[string]revision.Change, len(h.data))
	for name, data := range h.data {
		change, known := m.changes[name]
		if !known {
			change = revision.Explain(data, h.data[h.updated], can)
			m.changes[name] = change
		}
		h.changes[name] = change
	}
}

// pruneHistory deletes the oldest unused revisions, beyond the limit. A revision is used if a Pod, an entry of the
// ResourceContext or status names it.
func (r revisions) pruneHistory(ctx context.Context, o *observation, plan *setplan.Plan) error {
	limit := int(ptr.Deref(o.set.Spec.HistoryLimit, defaultHistoryLimit))
	// What Pods bring that are being included is used as soon as they are seen.
	if o.set.DeletionTimestamp != nil || len(plan.Inclusions) > 0 || len(o.history.list) <= limit+1 {
		return nil
	}
	used := map[string]bool{o.history.updated: true, o.history.spec: true, o.set.Status.CurrentRevision: true,
		o.set.Status.UpdatedRevision: true, o.snapshot.CurrentRevision: true}
	for i := range o.snapshot.Pods {
		used[o.snapshot.Pods[i].Revision] = true
	}
	for _, entries := range [][]setplan.Entry{o.snapshot.Entries, plan.Entries} {
		for _, e := range entries {
			used[e.Data[appsv1alpha1.ContextRevision]] = true
		}
	}
	var unused []*appsv1.ControllerRevision
	for i := range o.history.list {
		if cr := &o.history.list[i]; !used[cr.Name] {
			unused = append(unused, cr)
		}
	}
	for _, cr := range unused[:max(len(unused)-limit, 0)] {
		err := r.client.Delete(ctx, cr.DeepCopy(), client.Preconditions{UID: &cr.UID, ResourceVersion: &cr.ResourceVersion})
		switch {
		case err == nil:
			r.writes.Deleted(client.ObjectKeyFromObject(o.set), cr)
		case apierrors.IsNotFound(err), apierrors.IsConflict(err):
			// Another look decides. Recording it as deleted would make the CollaSet wait for what does not happen.
		default:
			return fmt.Errorf("deleting revision %s: %w", cr.Name, err)
		}
	}
	return nil
}
