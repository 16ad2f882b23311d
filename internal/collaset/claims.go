package collaset

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/internal/collaset/setplan"
	"kusionstack.io/kuperator/internal/failures"
	"kusionstack.io/kuperator/internal/revision"
	"kusionstack.io/kuperator/internal/shorten"
)

// Whose a claim is. A claim with a controller is the controller's. One without is the CollaSet's that
// ClaimOwnerAnnotation names, or whose name and the template's are what the claim's own name was made of, if it
// carries the selector's matchLabels and is not excluded. So two CollaSets never take each other's claims, whatever
// their labels.
//
// A claim whose controller is an earlier CollaSet of this name has none any more. One that lacks labels is found by a
// list (claims_strays.go).
//
// Only with whenDeleted Delete do claims get an owner reference: with one, a deletion in the foreground would take them
// along before it could be taken off.

// claimIndex is the cache index of claims by what claimKeys says.
const claimIndex = "collaset.claims"

// mountIndex is the cache index of Pods by the claims that they mount.
const mountIndex = "collaset.mounts"

// retryRefused is how long a refused expansion is not tried again, unless the claim or the template changes.
const retryRefused = time.Minute

func ownedKey(uid types.UID) string { return "uid/" + string(uid) }

func namedKey(set string) string { return "name/" + set }

// claimKeys say under which CollaSet a claim may be found: the controlling one, or those that its name may come from.
func claimKeys(object client.Object) []string {
	if ref := metav1.GetControllerOf(object); ref != nil {
		if ref.Kind != appsv1alpha1.CollaSetKind {
			return nil
		}
		return []string{ownedKey(ref.UID), namedKey(ref.Name)} // by its name, if that is another CollaSet now
	}
	var keys []string
	for _, set := range claimOwners(object) {
		keys = append(keys, namedKey(set))
	}
	return keys
}

// claimOwners are the names of the CollaSets that an ownerless claim may belong to: one, or several where a claim of
// early Kuperator lacks the template's name.
func claimOwners(object client.Object) []string {
	if _, orphaned := object.GetLabels()[appsv1alpha1.OrphanedLabel]; orphaned {
		return nil
	}
	if _, has := object.GetLabels()[appsv1alpha1.InstanceIDLabel]; !has {
		return nil
	}
	if set := object.GetAnnotations()[appsv1alpha1.ClaimOwnerAnnotation]; set != "" {
		return []string{set}
	}
	base := claimBase(object)
	if template := object.GetLabels()[appsv1alpha1.ClaimTemplateNameLabel]; template != "" {
		if set, ok := strings.CutSuffix(base, "-"+template); ok && set != "" {
			return []string{set}
		}
		return nil
	}
	var sets []string
	for i, c := range base {
		if c == '-' && i > 0 {
			sets = append(sets, base[:i])
		}
	}
	return sets
}

// claimBase is a claim's name without the random suffix: the CollaSet's name, a dash, the template's name.
func claimBase(object client.Object) string {
	if prefix := object.GetGenerateName(); prefix != "" {
		return strings.TrimSuffix(prefix, "-")
	}
	name := object.GetName()
	return name[:max(strings.LastIndexByte(name, '-'), 0)]
}

// templateOf is the name of the template that a claim of the CollaSet was made from; "" if it cannot be told.
func templateOf(object client.Object, set string) string {
	if template := object.GetLabels()[appsv1alpha1.ClaimTemplateNameLabel]; template != "" {
		return template
	}
	template, _ := strings.CutPrefix(claimBase(object), set+"-")
	return template
}

// claimUsers are the CollaSets that a claim is of interest to.
func claimUsers(_ context.Context, object client.Object) []reconcile.Request {
	names := claimOwners(object)
	if ref := metav1.GetControllerOf(object); ref != nil {
		names = nil
		if ref.Kind == appsv1alpha1.CollaSetKind {
			names = []string{ref.Name}
		}
	}
	requests := make([]reconcile.Request, 0, len(names))
	for _, name := range names {
		requests = append(requests, reconcile.Request{NamespacedName: types.NamespacedName{Namespace: object.GetNamespace(),
			Name: name}})
	}
	return requests
}

// ours reports whether a claim that is found under the CollaSet's keys is its own.
func ours(set *appsv1alpha1.CollaSet, claim client.Object) bool {
	if _, orphaned := claim.GetLabels()[appsv1alpha1.OrphanedLabel]; orphaned {
		return false
	}
	if ref := metav1.GetControllerOf(claim); ref != nil && !dangling(ref, set) {
		return ref.UID == set.UID
	}
	return set.Spec.Selector == nil || labels.SelectorFromSet(set.Spec.Selector.MatchLabels).Matches(
		labels.Set(claim.GetLabels()))
}

// refusal is the API server's answer to an attempt to expand a claim.
type refusal struct {
	hash   string // of the template
	phase  corev1.PersistentVolumeClaimPhase
	answer string
	until  time.Time
}

// knownClaims is what is kept of claims.
type knownClaims struct {
	mu sync.Mutex // of what writes change, which are made in parallel
	// refused are answers of the API server to expansions, by UID.
	refused map[types.UID]refusal
	// verified is false while the cache may lack a claim that was created.
	verified atomic.Bool
	// last are those of the last decision, and strays the CollaSet's that the cache does not find as such, by name. lost
	// is true if one may be among them.
	last   map[string]claimIdentity
	strays map[string]*corev1.PersistentVolumeClaim
	lost   bool
}

// refuse remembers the answer to an attempt to expand a claim; attempts are made in parallel.
func (k *knownClaims) refuse(claim types.UID, r refusal) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.refused == nil {
		k.refused = map[types.UID]refusal{}
	}
	k.refused[claim] = r
}

// keepRefusals forgets the answers about claims that are no more.
func (k *knownClaims) keepRefusals(claims []setplan.Claim) {
	if len(k.refused) == 0 {
		return
	}
	kept := map[types.UID]refusal{}
	for i := range claims {
		if r, ok := k.refused[claims[i].UID]; ok {
			kept[claims[i].UID] = r
		}
	}
	k.refused = kept
}

// observeClaims fills in what the snapshot has of claims and of their templates.
func observeClaims(ctx context.Context, cached, live client.Reader, o *observation) error {
	set, s := o.set, &o.snapshot
	s.Retention = s.Conventions.Retention(set.Spec.ScaleStrategy.PersistentVolumeClaimRetentionPolicy)
	for name, data := range o.history.data {
		if templates := data.ClaimTemplates(); len(templates) > 0 {
			if s.Templates == nil {
				s.Templates = map[string][]setplan.ClaimTemplate{}
			}
			s.Templates[name] = claimTemplates(templates)
		}
	}
	addForcing(s)
	for _, key := range []string{ownedKey(set.UID), namedKey(set.Name)} {
		list := &corev1.PersistentVolumeClaimList{}
		err := cached.List(ctx, list, client.InNamespace(set.Namespace), client.MatchingFields{claimIndex: key},
			client.UnsafeDisableDeepCopy)
		if err != nil {
			return fmt.Errorf("listing claims: %w", err)
		}
		for i := range list.Items {
			if claim := &list.Items[i]; o.claims[claim.Name] == nil && ours(set, claim) && o.tells(claim) {
				o.addClaim(claim)
			}
		}
	}
	if err := observeStrayClaims(ctx, live, o); err != nil {
		return err
	}
	o.memory.claims.keepRefusals(s.Claims)
	return findStrangers(ctx, cached, o)
}

// findStrangers notes the Pods of others that mount claims of the CollaSet which none of its own Pods mounts.
func findStrangers(ctx context.Context, cached client.Reader, o *observation) error {
	mounted := o.mounted()
	for i := range o.snapshot.Claims {
		c := &o.snapshot.Claims[i]
		if mounted[c.Name] {
			continue
		}
		pods := &corev1.PodList{}
		err := cached.List(ctx, pods, client.InNamespace(o.set.Namespace), client.MatchingFields{mountIndex: c.Name},
			client.UnsafeDisableDeepCopy)
		if err != nil {
			return fmt.Errorf("listing the Pods that mount claim %s: %w", c.Name, err)
		}
		for j := range pods.Items {
			pod := &pods.Items[j]
			over := pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
			if !over && (c.UsedBy == "" || pod.Name < c.UsedBy) {
				c.UsedBy = pod.Name
			}
		}
	}
	return nil
}

// mounted are the claims that the CollaSet's Pods mount, by name.
func (o *observation) mounted() map[string]bool {
	mounted := map[string]bool{}
	for i := range o.snapshot.Pods {
		for _, m := range o.snapshot.Pods[i].Mounts {
			mounted[m.Claim] = true
		}
	}
	return mounted
}

// mountsOf are the claims that a Pod mounts.
func mountsOf(object client.Object) []string {
	pod, ok := object.(*corev1.Pod)
	if !ok {
		return nil
	}
	var claims []string
	for _, m := range mountsIn(pod) {
		claims = append(claims, m.Claim)
	}
	return claims
}

// volumeUsers are the CollaSets whose claims are mounted by a Pod without a controller: they wait for it to go.
func (l listener) volumeUsers(ctx context.Context, object client.Object) []reconcile.Request {
	if metav1.GetControllerOfNoCopy(object) != nil {
		return nil
	}
	var requests []reconcile.Request
	for _, name := range mountsOf(object) {
		claim := &corev1.PersistentVolumeClaim{}
		if err := l.cached.Get(ctx, types.NamespacedName{Namespace: object.GetNamespace(), Name: name}, claim); err == nil {
			requests = append(requests, claimUsers(ctx, claim)...)
		}
	}
	return requests
}

// addForcing says of every revision because of which claim templates its Pods have to be re-created.
func addForcing(s *setplan.Snapshot) {
	for name, difference := range s.Revisions {
		if forcing := setplan.ClaimForcing(s.Templates[name], s.Templates[s.UpdatedRevision], s.Retention); len(forcing) > 0 {
			difference.Forcing = append(slices.Clip(difference.Forcing), forcing...)
			s.Revisions[name] = difference
		}
	}
}

// tells reports whether an ownerless claim's name means the CollaSet for certain: by label, or because some revision
// has a template of the name that is left.
func (o *observation) tells(claim *corev1.PersistentVolumeClaim) bool {
	if metav1.GetControllerOf(claim) != nil || claim.Labels[appsv1alpha1.ClaimTemplateNameLabel] != "" {
		return true
	}
	return o.hasTemplate(templateOf(claim, o.set.Name))
}

// hasTemplate reports whether some revision has a claim template of this name.
func (o *observation) hasTemplate(name string) bool {
	for _, templates := range o.snapshot.Templates {
		if slices.ContainsFunc(templates, func(t setplan.ClaimTemplate) bool { return t.Name == name }) {
			return true
		}
	}
	return false
}

func claimTemplates(templates []revision.ClaimTemplate) []setplan.ClaimTemplate {
	out := make([]setplan.ClaimTemplate, len(templates))
	for i, t := range templates {
		out[i] = setplan.ClaimTemplate{
			Name: t.Name, Hash: t.Hash, Shape: t.Shape, Meta: t.Meta, Spec: t.Spec,
			Request: t.Spec.Resources.Requests.Storage().Value(),
		}
	}
	return out
}

func (o *observation) addClaim(claim *corev1.PersistentVolumeClaim) {
	id := instanceID(claim)
	if id == setplan.NoID {
		return // it belongs to no instance ID: no Pod gets it, and it is never touched
	}
	o.addClaimOf(claim, id, templateOf(claim, o.set.Name), false)
}

// addClaimOf fills in a claim of an instance ID, or setplan.NoID, and a template; unlabelled is true if its labels do
// not tell.
func (o *observation) addClaimOf(claim *corev1.PersistentVolumeClaim, id int, template string, unlabelled bool) {
	c := setplan.Claim{
		Name: claim.Name, UID: claim.UID, ResourceVersion: claim.ResourceVersion, ID: id, Template: template,
		Unlabelled: unlabelled,
		Hash:       claim.Labels[appsv1alpha1.ClaimTemplateHashLabel], Spec: &claim.Spec,
		Requested: claim.Spec.Resources.Requests.Storage().Value(),
		Created:   claim.CreationTimestamp.Time, Terminating: claim.DeletionTimestamp != nil, Expanding: expanding(claim),
	}
	if ref := metav1.GetControllerOf(claim); ref != nil {
		c.Owned, c.Dangling = ref.UID == o.set.UID, dangling(ref, o.set)
		c.Inherited = ref.BlockOwnerDeletion != nil && *ref.BlockOwnerDeletion
	}
	if refused, ok := o.memory.claims.refused[claim.UID]; ok && refused.phase == claim.Status.Phase {
		c.Refused, c.RefusedHash, c.RetryIn = refused.answer, refused.hash, max(refused.until.Sub(o.snapshot.Now), 0)
	}
	o.claims[claim.Name] = claim
	o.snapshot.Claims = append(o.snapshot.Claims, c)
}

// expanding says what a growing volume waits for, "" if it does not grow.
func expanding(claim *corev1.PersistentVolumeClaim) string {
	has, known := claim.Status.Capacity[corev1.ResourceStorage]
	if claim.Status.Phase != corev1.ClaimBound || !known || has.Cmp(*claim.Spec.Resources.Requests.Storage()) >= 0 {
		return ""
	}
	switch claim.Status.AllocatedResourceStatuses[corev1.ResourceStorage] {
	case corev1.PersistentVolumeClaimControllerResizeInfeasible, corev1.PersistentVolumeClaimNodeResizeInfeasible:
		return "the storage driver says that it cannot be done; ask for less, but for more than " + has.String()
	default:
	}
	waits := "the storage driver has not begun"
	for _, c := range claim.Status.Conditions {
		switch {
		case c.Status != corev1.ConditionTrue:
		case c.Type == corev1.PersistentVolumeClaimFileSystemResizePending:
			return "the file system grows on the node; some drivers do that only when the Pod is re-created"
		case c.Type == corev1.PersistentVolumeClaimResizing:
			waits = "the storage driver is at it"
		}
	}
	return waits
}

func makesClaims(plan *setplan.Plan) bool {
	for _, c := range plan.Creations {
		for _, claim := range c.Claims {
			if claim.Claim == nil {
				return true
			}
		}
	}
	return false
}

// claimLabels are on every claim of the CollaSet, and on every Pod that it makes.
func claimLabels(set *appsv1alpha1.CollaSet) map[string]string {
	out := map[string]string{}
	if set.Spec.Selector != nil {
		maps.Copy(out, set.Spec.Selector.MatchLabels)
	}
	out[appsv1alpha1.ControlLabel] = appsv1alpha1.ControlValue
	return out
}

// claimWriter makes, changes and deletes the claims of a CollaSet.
type claimWriter struct{ *server }

// mountClaims gives a Pod that is about to be created its claims, and makes those that lack.
func (w claimWriter) mountClaims(
	ctx context.Context, o *observation, c setplan.Creation, pod *unstructured.Unstructured,
) error {
	if len(c.Claims) == 0 {
		return nil
	}
	names := make(map[string]string, len(c.Claims))
	for i, t := range o.history.data[c.Revision].ClaimTemplates() {
		existing := c.Claims[i].Claim
		if existing != nil {
			names[t.Name] = existing.Name
			continue
		}
		claim := newClaim(o, t, c.ID)
		err := w.client.Create(ctx, claim)
		countAction(actionCreateClaim, err)
		if err != nil {
			o.memory.claims.verified.Store(false)
			return fmt.Errorf("creating claim %s of instance ID %d: %w", t.Name, c.ID,
				failures.Unnamed(err, claim.GetGenerateName()))
		}
		w.writes.Created(client.ObjectKeyFromObject(o.set), claimMeta(claim))
		names[t.Name] = claim.GetName()
	}
	mount(pod, o.history.data[c.Revision].ClaimTemplates(), names)
	return nil
}

// mount gives a Pod the volumes of its revision's claim templates, with the claims of these names. They take the
// place of volumes of the same name.
func mount(pod *unstructured.Unstructured, templates []revision.ClaimTemplate, names map[string]string) {
	if len(templates) == 0 {
		return
	}
	spec, _ := pod.Object["spec"].(map[string]any)
	listed, _ := spec["volumes"].([]any)
	volumes := make([]any, 0, len(listed)+len(templates))
	for _, v := range listed {
		volume, _ := v.(map[string]any)
		name, _ := volume["name"].(string)
		if _, replaced := names[name]; !replaced {
			volumes = append(volumes, v)
		}
	}
	for _, t := range templates {
		volumes = append(volumes, map[string]any{
			"name": t.Name, "persistentVolumeClaim": map[string]any{"claimName": names[t.Name]},
		})
	}
	spec["volumes"] = volumes
}

// newClaim makes the claim of an instance ID, from the template's own JSON so that no field is lost.
func newClaim(o *observation, t revision.ClaimTemplate, id int) *unstructured.Unstructured {
	object := t.Object()
	claim := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "PersistentVolumeClaim",
		"spec": object["spec"]}}
	from := unstructured.Unstructured{Object: object}
	claim.SetNamespace(o.set.Namespace)
	claim.SetGenerateName(o.set.Name + "-" + t.Name + "-")
	claim.SetAnnotations(from.GetAnnotations())
	claim.SetFinalizers(from.GetFinalizers())
	all := from.GetLabels()
	if all == nil {
		all = map[string]string{}
	}
	maps.Copy(all, claimLabels(o.set))
	all[appsv1alpha1.InstanceIDLabel] = strconv.Itoa(id)
	all[appsv1alpha1.ClaimTemplateNameLabel] = t.Name
	all[appsv1alpha1.ClaimTemplateHashLabel] = t.Hash
	claim.SetLabels(all)
	if o.snapshot.Retention.Deleted {
		claim.SetOwnerReferences([]metav1.OwnerReference{ownerReference(o.set)})
	}
	return claim
}

// claimMeta is a claim of the given metadata: own writes are tracked under the type that is cached.
func claimMeta(object metav1.Object) *corev1.PersistentVolumeClaim {
	return &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{
		Namespace: object.GetNamespace(), Name: object.GetName(), UID: object.GetUID(),
		ResourceVersion: object.GetResourceVersion(),
	}}
}

// applyClaims changes, adopts, releases and deletes the claims that the plan names.
func (w claimWriter) applyClaims(ctx context.Context, o *observation, plan *setplan.Plan, out *outcome) {
	var actions []action
	made, updated, deleted := 0, 0, 0
	count := func(n *int) func(error) {
		return func(err error) {
			if err == nil {
				*n++
			}
		}
	}
	for _, c := range plan.ClaimCreations {
		created := false
		actions = append(actions, action{name: actionCreateClaim, into: &out.ScaleOut,
			do: func() (err error) { created, err = w.makeClaimAgain(ctx, o, c); return err },
			done: func(error) {
				if created {
					made++
				}
			}})
	}
	for _, u := range plan.ClaimUpdates {
		actions = append(actions, action{name: "update-claim", into: &out.Update,
			do: func() error { return w.updateClaim(ctx, o, u) }, done: count(&updated)})
	}
	for _, c := range plan.ClaimAdoptions {
		refs := []metav1.OwnerReference{ownerReference(o.set)}
		actions = append(actions, action{name: "adopt-claim", into: &out.Update, do: func() error {
			return w.patchClaim(ctx, o, c, map[string]any{"ownerReferences": append(refsOfOthers(o.claims[c.Name], o.set),
				refs...)}, nil)
		}})
	}
	into := &out.Update
	if o.set.DeletionTimestamp != nil {
		into = &out.Reclaim
	}
	for _, c := range plan.ClaimReleases {
		actions = append(actions, action{name: "release-claim", into: into, do: func() error {
			return w.patchClaim(ctx, o, c, map[string]any{"ownerReferences": refsOfOthers(o.claims[c.Name], o.set)}, nil)
		}})
	}
	for _, c := range plan.ClaimRepairs {
		actions = append(actions, action{name: "repair-claim", into: &out.Update,
			do: func() error { return w.repairClaim(ctx, o, c) }})
	}
	for _, c := range plan.ClaimDeletions {
		actions = append(actions, action{name: "delete-claim", into: &out.ScaleIn,
			do: func() error { return w.deleteClaim(ctx, o, c) }, done: count(&deleted)})
	}
	out.conflict = run(ctx, actions) || out.conflict
	if made > 0 {
		w.events.Eventf(o.set, nil, corev1.EventTypeNormal, "ClaimsMadeAgain", "CreateClaims",
			"made %d claims that were missing, for Pods that wait for them; they are empty", made)
	}
	if deleted > 0 {
		w.events.Eventf(o.set, nil, corev1.EventTypeNormal, "ClaimsDeleted", "DeleteClaims",
			"deleted %d claims, as persistentVolumeClaimRetentionPolicy says", deleted)
	}
	if updated > 0 {
		w.events.Eventf(o.set, nil, corev1.EventTypeNormal, "ExpandingVolumes", "UpdateClaims",
			"brought %d claims in line with their templates", updated)
	}
}

// makeClaimAgain makes a claim that a Pod mounts, and reports whether it did: one of that name may exist and not be
// ours, which the Pod mounts all the same.
func (w claimWriter) makeClaimAgain(ctx context.Context, o *observation, c setplan.ClaimCreation) (bool, error) {
	templates := o.history.data[c.Pod.Revision].ClaimTemplates()
	at := slices.IndexFunc(templates, func(t revision.ClaimTemplate) bool { return t.Name == c.Template })
	if at < 0 {
		return false, fmt.Errorf("revision %q has no claim template %s", c.Pod.Revision, c.Template)
	}
	claim := newClaim(o, templates[at], c.Pod.ID)
	claim.SetName(c.Claim)
	switch err := w.client.Create(ctx, claim); {
	case apierrors.IsAlreadyExists(err):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("making claim %s of Pod %s again: %w", c.Claim, c.Pod.Name(), err)
	}
	w.writes.Created(client.ObjectKeyFromObject(o.set), claimMeta(claim))
	return true, nil
}

// refsWithout are an object's owner references but those to one owner; never nil.
func refsWithout(object metav1.Object, owner types.UID) []metav1.OwnerReference {
	kept := []metav1.OwnerReference{}
	for _, ref := range object.GetOwnerReferences() {
		if ref.UID != owner {
			kept = append(kept, ref)
		}
	}
	return kept
}

// patchClaim writes to one claim as it was seen and remembers that it did.
func (w claimWriter) patchClaim(
	ctx context.Context, o *observation, c *setplan.Claim, metadata, spec map[string]any,
) error {
	metadata["uid"], metadata["resourceVersion"] = c.UID, c.ResourceVersion
	patch := map[string]any{"metadata": metadata}
	if spec != nil {
		patch["spec"] = spec
	}
	data, err := json.Marshal(patch)
	if err != nil {
		return err
	}
	target := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: o.set.Namespace, Name: c.Name}}
	target.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("PersistentVolumeClaim"))
	if err := w.client.Patch(ctx, target, client.RawPatch(types.MergePatchType, data)); err != nil {
		return fmt.Errorf("changing claim %s: %w", c.Name, err)
	}
	w.writes.Wrote(client.ObjectKeyFromObject(o.set), claimMeta(target))
	return nil
}

// updateClaim brings a claim in line with its template. What the API server refuses is remembered for a while.
func (w claimWriter) updateClaim(ctx context.Context, o *observation, u setplan.ClaimUpdate) error {
	all, annotations := map[string]string{}, map[string]string{}
	for _, t := range o.history.data[u.Revision].ClaimTemplates() {
		if t.Name == u.Template.Name {
			maps.Copy(all, t.Labels)
			maps.Copy(annotations, t.Annotations)
		}
	}
	maps.Copy(all, claimLabels(o.set))
	delete(all, appsv1alpha1.InstanceIDLabel)
	all[appsv1alpha1.ClaimTemplateNameLabel], all[appsv1alpha1.ClaimTemplateHashLabel] = u.Template.Name, u.Template.Hash
	metadata := map[string]any{"labels": all}
	if len(annotations) > 0 {
		metadata["annotations"] = annotations
	}
	var spec map[string]any
	if u.Claim.Requested < u.Template.Request {
		spec = map[string]any{"resources": map[string]any{"requests": map[string]any{
			string(corev1.ResourceStorage): u.Template.Spec.Resources.Requests.Storage(),
		}}}
	}
	err := w.patchClaim(ctx, o, u.Claim, metadata, spec)
	if apierrors.IsForbidden(err) || apierrors.IsInvalid(err) {
		rejection, _ := failures.RejectionIn(err)
		o.memory.claims.refuse(u.Claim.UID, refusal{
			hash: u.Template.Hash, phase: o.claims[u.Claim.Name].Status.Phase, answer: rejection.Why,
			until: w.clock.Now().Add(retryRefused),
		})
		log.FromContext(ctx).Info("a claim cannot be expanded", "claim", u.Claim.Name, "answer", err.Error())
		return fmt.Errorf("%w: %w", errNotTaken, err)
	}
	return err
}

func (w claimWriter) deleteClaim(ctx context.Context, o *observation, c *setplan.Claim) error {
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: o.set.Namespace, Name: c.Name,
		UID: c.UID, ResourceVersion: c.ResourceVersion}}
	if err := w.client.Delete(ctx, claim, client.Preconditions{UID: &c.UID,
		ResourceVersion: &c.ResourceVersion}); err != nil {
		return fmt.Errorf("deleting claim %s: %w", c.Name, err)
	}
	w.writes.Deleted(client.ObjectKeyFromObject(o.set), claim)
	return nil
}

// releaseClaims takes the owner references of a deleted CollaSet off the claims that are to stay, as the API server has
// them: a claim that the cache does not show yet would be collected.
func (w claimWriter) releaseClaims(ctx context.Context, o *observation) error {
	if o.snapshot.Retention.Deleted {
		return nil
	}
	list := &metav1.PartialObjectMetadataList{}
	list.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("PersistentVolumeClaimList"))
	err := w.live.List(ctx, list, client.InNamespace(o.set.Namespace)) // labels may be gone
	if err != nil {
		return fmt.Errorf("making sure that claims are released: %w", err)
	}
	for i := range list.Items {
		claim := &list.Items[i]
		if !metav1.IsControlledBy(claim, o.set) {
			continue
		}
		err := w.patchClaim(ctx, o, claimOf(claim), map[string]any{"ownerReferences": refsWithout(claim, o.set.UID)}, nil)
		if client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("releasing claim %s: %w", claim.Name, err)
		}
	}
	return nil
}

// withoutClaims leaves out what ClaimForcing says.
func withoutClaims(forcing []string) []string {
	var out []string
	for _, f := range forcing {
		if !strings.HasPrefix(f, "volumeClaimTemplates") {
			out = append(out, f)
		}
	}
	return out
}

// recordClaimTurns tells once of what is odd about claims, and when it is over.
func (r reporter) recordClaimTurns(set *appsv1alpha1.CollaSet, after *appsv1alpha1.CollaSetStatus) {
	before := &set.Status
	for _, reason := range []string{setplan.BlockExpansionRefused, setplan.NoteCannotShrink, setplan.NoteTemplateKept,
		setplan.NoteClaimLost, setplan.BlockClaimTerminating} {
		if b := blockerOf(after, reason); b != nil && blockerOf(before, reason) == nil {
			r.events.Eventf(set, nil, corev1.EventTypeWarning, reason, "CheckClaims", "%s", shorten.Note(b.Message))
		}
	}
	if blockerOf(before, setplan.NoteExpanding) != nil && blockerOf(after, setplan.NoteExpanding) == nil {
		r.events.Eventf(set, nil, corev1.EventTypeNormal, "VolumesExpanded", "CheckClaims",
			"all volumes have the size that their claims ask for")
	}
}
