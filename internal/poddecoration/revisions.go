package poddecoration

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"

	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/internal/decoration"
	"kusionstack.io/kuperator/internal/poddecoration/decoplan"
	"kusionstack.io/kuperator/internal/revision"
)

const (
	// defaultHistoryLimit is the number of unused revisions kept when spec.historyLimit is nil.
	defaultHistoryLimit = 20
	// maxCollisions bounds the names tried for one new revision.
	maxCollisions = 16
)

// errStale: the cache is behind the API server.
var errStale = errors.New("the view is old")

// rendered is the data of the revision of a template.
type rendered struct {
	generation int64
	data       []byte
	// problem is why the template cannot be rendered, "" if it can.
	problem string
}

// history is the revisions of a PodDecoration, oldest first. Its objects belong to the cache.
type history []*appsv1.ControllerRevision

// historyOf lists the revisions of a decoration.
func (r *reconciler) historyOf(ctx context.Context, d *appsv1alpha1.PodDecoration) (history, error) {
	var list appsv1.ControllerRevisionList
	err := r.client.List(ctx, &list, client.InNamespace(d.Namespace), client.MatchingFields{ownerIndex: string(d.UID)},
		client.UnsafeDisableDeepCopy)
	if err != nil {
		return nil, fmt.Errorf("listing the revisions of PodDecoration %s: %w", d.Name, err)
	}
	h := make(history, 0, len(list.Items))
	for i := range list.Items {
		h = append(h, &list.Items[i])
	}
	slices.SortFunc(h, func(a, b *appsv1.ControllerRevision) int {
		return cmp.Or(cmp.Compare(a.Revision, b.Revision), cmp.Compare(a.Name, b.Name))
	})
	return h, nil
}

// render returns the data of the present template's revision, from the stored JSON: the cached object has lost what its
// Go type does not know. It costs one read for each generation.
func (r *reconciler) render(
	ctx context.Context, d *appsv1alpha1.PodDecoration, ns *namespace,
) (known rendered, err error) {
	if known = ns.rendered[d.UID]; known.generation == d.Generation {
		return known, nil
	}
	stored := &unstructured.Unstructured{}
	stored.SetGroupVersionKind(decorationKind)
	switch err := r.live.Get(ctx, client.ObjectKeyFromObject(d), stored); {
	case apierrors.IsNotFound(err), err == nil && (stored.GetGeneration() != d.Generation || stored.GetUID() != d.UID):
		return known, errStale
	case err != nil:
		return known, fmt.Errorf("reading the stored PodDecoration %s: %w", d.Name, err)
	}
	spec, _ := stored.Object["spec"].(map[string]any)
	known = rendered{generation: d.Generation}
	if known.data, err = decoration.Data(spec); err != nil {
		return known, err
	}
	if _, _, err := decoration.Parse(known.data); err != nil {
		known.problem = "spec.template: " + err.Error()
	}
	ns.rendered[d.UID] = known
	return known, nil
}

// ensureUpdated returns the name of the revision of the present template. It makes it if there is none, and makes an
// older one the newest. problem is why there can be none.
func (r *reconciler) ensureUpdated(
	ctx context.Context, d *appsv1alpha1.PodDecoration, ns *namespace, h history, collisions *int32,
) (name, problem string, err error) {
	if d.DeletionTimestamp != nil {
		return d.Status.UpdatedRevision, "", nil
	}
	wanted, err := r.render(ctx, d, ns)
	if err != nil || wanted.problem != "" {
		return "", wanted.problem, err
	}
	newest := int64(0)
	var found *appsv1.ControllerRevision
	for _, cr := range h {
		newest = max(newest, cr.Revision)
		if same, err := decoration.Same(cr.Data.Raw, wanted.data); err == nil && same { // what is no JSON is none of ours
			found = cr
		}
	}
	if found == nil {
		name, err = r.createRevision(ctx, d, wanted.data, newest+1, collisions)
		return name, "", err
	}
	if found.Revision < newest {
		patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": found.UID}, "revision": newest + 1})
		if err != nil {
			return "", "", err
		}
		again := found.DeepCopy()
		if err := r.client.Patch(ctx, again, client.RawPatch(types.MergePatchType, patch)); err != nil {
			return "", "", fmt.Errorf("making revision %s the newest: %w", found.Name, err)
		}
		r.writes.Wrote(request(d.Namespace).NamespacedName, again)
	}
	return found.Name, "", nil
}

// createRevision makes a revision of a decoration and returns its name.
func (r *reconciler) createRevision(
	ctx context.Context, d *appsv1alpha1.PodDecoration, data []byte, number int64, collisions *int32,
) (string, error) {
	for range maxCollisions {
		cr := newRevision(d, data, *collisions, number)
		err := r.client.Create(ctx, cr)
		if err == nil {
			r.writes.Created(request(d.Namespace).NamespacedName, cr)
			return cr.Name, nil
		}
		if !apierrors.IsAlreadyExists(err) {
			return "", fmt.Errorf("creating revision %s: %w", cr.Name, err)
		}
		there := &appsv1.ControllerRevision{}
		if err := r.live.Get(ctx, client.ObjectKeyFromObject(cr), there); err != nil {
			return "", fmt.Errorf("reading revision %s: %w", cr.Name, err)
		}
		if same, err := decoration.Same(there.Data.Raw, data); err == nil && same && metav1.IsControlledBy(there, d) {
			return there.Name, nil // which the cache does not show yet
		}
		*collisions++
	}
	return "", fmt.Errorf("creating a revision of PodDecoration %s: %d names are taken by other content; delete "+
		"ControllerRevisions that no Pod has", d.Name, maxCollisions)
}

func newRevision(
	d *appsv1alpha1.PodDecoration, data []byte, collisions int32, number int64,
) *appsv1.ControllerRevision {
	hash := revision.Hash(data, collisions)
	labels := map[string]string{}
	if d.Spec.Selector != nil {
		maps.Copy(labels, d.Spec.Selector.MatchLabels)
	}
	labels[appsv1alpha1.RevisionHashLabel] = hash
	labels[appsv1alpha1.RevisionCollisionLabel] = strconv.Itoa(int(collisions))
	owner := *metav1.NewControllerRef(d, decorationKind)
	owner.BlockOwnerDeletion = nil // a deletion in the foreground would delete it before its Pods are without it
	return &appsv1.ControllerRevision{
		ObjectMeta: metav1.ObjectMeta{Name: revision.Name(d.Name, hash), Namespace: d.Namespace, Labels: labels,
			OwnerReferences: []metav1.OwnerReference{owner}},
		Data:     runtime.RawExtension{Raw: data},
		Revision: number,
	}
}

// decorationsOf reads decorations by their marks. missing is why one of them cannot be had, "" if all can.
func (r *reconciler) decorationsOf(
	ctx context.Context, in string, ns *namespace, marks []decoration.Mark,
) (all []decoration.Decoration, missing string, err error) {
	for _, m := range marks {
		cr := &appsv1.ControllerRevision{}
		key := client.ObjectKey{Namespace: in, Name: m.Revision}
		err := r.client.Get(ctx, key, cr)
		if apierrors.IsNotFound(err) { // the cache may not show it yet
			err = client.IgnoreNotFound(r.live.Get(ctx, key, cr))
		}
		if err != nil {
			return nil, "", fmt.Errorf("reading revision %s of PodDecoration %s: %w", m.Revision, m.Name, err)
		}
		d, is := ns.parsed[cr.UID]
		if !is || d.Name != m.Name {
			var isIts bool
			d, isIts, err = decoration.Of(cr, m) // an empty one is none of its own
			switch {
			case !isIts:
				return nil, fmt.Sprintf("revision %s of PodDecoration %s does not exist", m.Revision, m.Name), nil
			case err != nil:
				return nil, fmt.Sprintf("revision %s of PodDecoration %s: %v", m.Revision, m.Name, err), nil
			}
			ns.parsed[cr.UID] = d
		}
		all = append(all, d)
	}
	return all, "", nil
}

// pruneHistory deletes the oldest unused revisions of decorations, beyond their limits. A revision is used if a Pod, an
// entry of a ResourceContext or status names it.
func (r *reconciler) pruneHistory(
	ctx context.Context, v *view, ns *namespace, statuses map[string]*appsv1alpha1.PodDecorationStatus,
) error {
	var used map[string]bool
	var surplus history
	for _, d := range v.decorations {
		limit, h := int(ptr.Deref(d.Spec.HistoryLimit, defaultHistoryLimit)), v.histories[d.UID]
		if d.DeletionTimestamp != nil || len(h) <= limit {
			continue
		}
		if used == nil {
			used = decoplan.Used(&v.snapshot, statuses)
		}
		isUsed := func(cr *appsv1.ControllerRevision) bool {
			seen, isRecorded := ns.recorded[cr.UID]
			return used[cr.Name] || isRecorded && r.clock.Since(seen) < recordedFor
		}
		unused := slices.DeleteFunc(slices.Clone(h), isUsed)
		surplus = append(surplus, unused[:max(len(unused)-limit, 0)]...)
	}
	if len(surplus) == 0 {
		return nil
	}
	recorded, err := r.recordedRevisions(ctx, v.name)
	if err != nil {
		return err
	}
	for _, cr := range surplus {
		if recorded[cr.Name] {
			ns.recorded[cr.UID] = r.clock.Now()
			continue
		}
		err := r.client.Delete(ctx, cr.DeepCopy(), client.Preconditions{UID: &cr.UID, ResourceVersion: &cr.ResourceVersion})
		switch {
		case err == nil:
			r.writes.Deleted(request(v.name).NamespacedName, cr)
		case isOld(err): // another look decides
		default:
			return fmt.Errorf("deleting revision %s: %w", cr.Name, err)
		}
	}
	return nil
}

// recordedRevisions are the names of revisions that entries of ResourceContexts name.
func (r *reconciler) recordedRevisions(ctx context.Context, in string) (map[string]bool, error) {
	var contexts appsv1alpha1.ResourceContextList
	switch err := r.live.List(ctx, &contexts, client.InNamespace(in)); {
	case meta.IsNoMatchError(err), apierrors.IsNotFound(err): // there is no such kind
	case err != nil:
		return nil, fmt.Errorf("listing ResourceContexts: %w", err)
	}
	recorded := map[string]bool{}
	for i := range contexts.Items {
		for _, entry := range contexts.Items[i].Spec.Contexts {
			for _, m := range decoration.MarksIn(entry.Data[appsv1alpha1.ContextPodDecorationRevisions]) {
				recorded[m.Revision] = true
			}
		}
	}
	return recorded, nil
}
