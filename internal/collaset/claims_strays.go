package collaset

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/internal/collaset/setplan"
)

// Every user who may edit a claim can remove what the claim is found by. Nothing else happens to it: it holds the data
// of its instance ID, which is to have no second claim. So before a claim is made, and when one is not found any more
// that was, all claims of the namespace are listed.

// claimIdentity is what was known of a claim.
type claimIdentity struct {
	id          int
	template    string
	terminating bool
}

// observeStrayClaims fills in the claims that are the CollaSet's and lack labels by which they are found.
func observeStrayClaims(ctx context.Context, live client.Reader, o *observation) error {
	m := &o.memory.claims
	for name, before := range m.last {
		if o.claims[name] == nil && !before.terminating && m.strays[name] == nil {
			m.lost = true
		}
	}
	if m.lost {
		switch behind, err := listClaims(ctx, live, o); {
		case err != nil:
			return err
		case behind:
			return errStale
		}
		m.lost = false
	}
	for name, claim := range m.strays {
		if o.claims[name] != nil {
			delete(m.strays, name)
			continue
		}
		id, template := identifyClaim(o, claim)
		o.addClaimOf(claim, id, template, !labelled(o.set, claim))
	}
	before := m.last
	m.last = nil
	for i := range o.snapshot.Claims {
		c := &o.snapshot.Claims[i]
		if m.last == nil {
			m.last = make(map[string]claimIdentity, len(o.snapshot.Claims))
		}
		m.last[c.Name] = claimIdentity{c.ID, c.Template, c.Terminating}
		if known, noted := before[c.Name]; noted && c.ID == setplan.NoID {
			m.last[c.Name] = known
		}
	}
	return nil
}

// listClaims looks at the API server for claims of the CollaSet that are not found as such. It reports whether the
// cache lacks one that will be.
func listClaims(ctx context.Context, live client.Reader, o *observation) (behind bool, err error) {
	list := &metav1.PartialObjectMetadataList{}
	list.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("PersistentVolumeClaimList"))
	if err := live.List(ctx, list, client.InNamespace(o.set.Namespace)); err != nil {
		return false, fmt.Errorf("making sure that no claim is made twice: %w", err)
	}
	mounted := o.mounted()
	for i := range list.Items {
		claim := &list.Items[i]
		switch {
		case claim.DeletionTimestamp != nil || o.claims[claim.Name] != nil || o.memory.claims.strays[claim.Name] != nil:
		case labelled(o.set, claim) && ours(o.set, claim) && namedFor(o, claim):
			behind = true
		case !labelled(o.set, claim) && strayed(o, claim, mounted[claim.Name]):
			full := &corev1.PersistentVolumeClaim{}
			switch err := live.Get(ctx, client.ObjectKeyFromObject(claim), full); {
			case apierrors.IsNotFound(err):
				continue
			case err != nil:
				return false, fmt.Errorf("reading claim %s: %w", claim.Name, err)
			}
			if o.memory.claims.strays == nil {
				o.memory.claims.strays = map[string]*corev1.PersistentVolumeClaim{}
			}
			o.memory.claims.strays[claim.Name] = full
		}
	}
	return behind, nil
}

// labelled reports whether a claim has the labels by which the CollaSet's are found.
func labelled(set *appsv1alpha1.CollaSet, claim metav1.Object) bool {
	for key, value := range claimLabels(set) {
		if claim.GetLabels()[key] != value {
			return false
		}
	}
	return instanceID(claim) != setplan.NoID && claim.GetLabels()[appsv1alpha1.ClaimTemplateNameLabel] != ""
}

// namedFor reports whether a claim that the CollaSet's labels are on is found by its keys.
func namedFor(o *observation, claim client.Object) bool {
	for _, key := range claimKeys(claim) {
		if key == ownedKey(o.set.UID) || key == namedKey(o.set.Name) {
			return true
		}
	}
	return false
}

// strayed reports whether a claim that lacks labels is the CollaSet's: it owns the claim, or no controller does and the
// claim's annotation or its name says so, which is made of the CollaSet's and a template's. What only has such a name,
// which every user may give, needs further evidence.
func strayed(o *observation, claim client.Object, mounted bool) bool {
	if _, orphaned := claim.GetLabels()[appsv1alpha1.OrphanedLabel]; orphaned {
		return false
	}
	if ref := metav1.GetControllerOfNoCopy(claim); ref != nil && !dangling(ref, o.set) {
		return ref.UID == o.set.UID
	}
	if of := claim.GetAnnotations()[appsv1alpha1.ClaimOwnerAnnotation]; of != "" {
		return of == o.set.Name
	}
	template, known := strayTemplate(o, claim)
	of := claim.GetLabels()[appsv1alpha1.ClaimTemplateNameLabel]
	return known && (of == "" || of == template) &&
		(mounted || o.memory.claims.knows(claim) || strings.HasPrefix(claim.GetGenerateName(), o.set.Name+"-"+template+"-") ||
			slices.ContainsFunc(claimMarks, func(key string) bool { return claim.GetLabels()[key] != "" }))
}

// claimMarks are labels that only claims of CollaSets have.
var claimMarks = []string{appsv1alpha1.ControlLabel, appsv1alpha1.InstanceIDLabel, appsv1alpha1.ClaimTemplateNameLabel,
	appsv1alpha1.ClaimTemplateHashLabel}

// knows reports whether a claim was one of the CollaSet's when it was last decided on.
func (k *knownClaims) knows(claim metav1.Object) bool {
	_, known := k.last[claim.GetName()]
	return known
}

// strayTemplate is the template that a claim was made from by its name, if some revision has one of that name.
func strayTemplate(o *observation, claim client.Object) (template string, known bool) {
	name, ok := strings.CutPrefix(claimBase(claim), o.set.Name+"-")
	if !ok || !o.hasTemplate(name) {
		return "", false
	}
	return name, true
}

// identifyClaim finds out the instance ID and the template of a claim: by its labels, by what was known of it, by the
// Pod that mounts it, or, the template, by its name. The ID is setplan.NoID if nothing tells.
func identifyClaim(o *observation, claim *corev1.PersistentVolumeClaim) (id int, template string) {
	id, template = instanceID(claim), claim.Labels[appsv1alpha1.ClaimTemplateNameLabel]
	known, noted := o.memory.claims.last[claim.Name]
	if noted && id == setplan.NoID {
		id = known.id
	}
	if noted && template == "" {
		template = known.template
	}
	for i := range o.snapshot.Pods {
		for _, m := range o.snapshot.Pods[i].Mounts {
			if m.Claim != claim.Name {
				continue
			}
			if id == setplan.NoID {
				id = o.snapshot.Pods[i].ID
			}
			if template == "" {
				template = m.Volume
			}
		}
	}
	if template == "" {
		template, _ = strayTemplate(o, claim)
	}
	return id, template
}

// ensureFreshClaims looks at the API server before claims are made when the cache may lack one: first thing of this
// process, and after a creation whose answer is not known. A claim made twice for one Pod would never go by itself.
func (w claimWriter) ensureFreshClaims(ctx context.Context, o *observation, plan *setplan.Plan) error {
	if o.memory.claims.verified.Load() || !makesClaims(plan) {
		return nil
	}
	known := len(o.memory.claims.strays)
	behind, err := listClaims(ctx, w.live, o)
	if err != nil {
		return err
	}
	if behind || len(o.memory.claims.strays) > known {
		return errStale
	}
	o.memory.claims.verified.Store(true)
	return nil
}

// repairClaim gives a claim back the labels by which it is found. The cache shows it then; or it has changed since it
// was read.
func (w claimWriter) repairClaim(ctx context.Context, o *observation, c *setplan.Claim) error {
	all := map[string]string{}
	maps.Copy(all, claimLabels(o.set))
	all[appsv1alpha1.InstanceIDLabel], all[appsv1alpha1.ClaimTemplateNameLabel] = strconv.Itoa(c.ID), c.Template
	err := w.patchClaim(ctx, o, c, map[string]any{"labels": all}, nil)
	if err != nil && !oldView("repair-claim", err) {
		return err
	}
	o.memory.claims.mu.Lock()
	delete(o.memory.claims.strays, c.Name)
	o.memory.claims.lost = true
	o.memory.claims.mu.Unlock()
	if err == nil {
		w.events.Eventf(o.set, o.claims[c.Name], corev1.EventTypeWarning, "LabelsRestored", "CheckClaims",
			"claim %s of instance ID %d is this CollaSet's and lacked labels by which it is found, which were put back",
			c.Name, c.ID)
	}
	return err
}
