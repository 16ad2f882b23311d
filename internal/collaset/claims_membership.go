package collaset

import (
	"context"
	"fmt"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/internal/collaset/setplan"
)

// Claims go where their Pods go. They are written first, so that after a crash between the two writes the Pod is still
// where it was and the rest follows. A volume that is a claim of another kind, made by hand, is left alone: it has no
// instance ID.

// releaseVolumes excludes the claims of a Pod before the Pod is let go. An error keeps it.
func (w claimWriter) releaseVolumes(ctx context.Context, o *observation, pod *setplan.Pod) error {
	for _, m := range pod.Mounts {
		claim := o.claims[m.Claim]
		if claim == nil {
			continue // not ours, or excluded already
		}
		metadata := map[string]any{
			"labels":          map[string]string{appsv1alpha1.OrphanedLabel: appsv1alpha1.OrphanedValue},
			"annotations":     map[string]any{appsv1alpha1.ClaimOwnerAnnotation: nil},
			"ownerReferences": refsWithout(claim, o.set.UID),
		}
		if err := w.patchClaim(ctx, o, claimOf(claim), metadata, nil); err != nil {
			return fmt.Errorf("excluding its claims: %w", err)
		}
	}
	return nil
}

// refuseVolumes says why a Pod cannot be included because of its volumes, "" if it can.
func refuseVolumes(ctx context.Context, cached client.Reader, o *observation, pod *corev1.Pod) string {
	for _, claim := range movableClaims(ctx, cached, o.set.Namespace, mountsIn(pod)) {
		if owner := metav1.GetControllerOf(claim); owner != nil && owner.UID != o.set.UID {
			return fmt.Sprintf("its claim %s belongs to %s %s: exclude the Pod there first, or take the owner reference off",
				claim.Name, owner.Kind, owner.Name)
		}
		if claim.DeletionTimestamp != nil {
			return fmt.Sprintf("its claim %s is being deleted", claim.Name)
		}
	}
	return ""
}

// movableClaims are the claims among a Pod's volumes that were made for an instance ID, as the cache has them.
func movableClaims(
	ctx context.Context, cached client.Reader, namespace string, mounts []setplan.Mount,
) map[string]*corev1.PersistentVolumeClaim {
	out := map[string]*corev1.PersistentVolumeClaim{}
	for _, m := range mounts {
		claim := &corev1.PersistentVolumeClaim{}
		if err := cached.Get(ctx, types.NamespacedName{Namespace: namespace, Name: m.Claim}, claim); err != nil {
			continue // no managed claim
		}
		if _, made := claim.Labels[appsv1alpha1.InstanceIDLabel]; made {
			out[m.Volume] = claim
		}
	}
	return out
}

// adoptVolumes takes in the claims of a Pod before the Pod is taken in, under the instance ID that it gets. An error
// keeps it out.
func (w claimWriter) adoptVolumes(ctx context.Context, o *observation, i setplan.Inclusion) error {
	for volume, claim := range movableClaims(ctx, w.client, o.set.Namespace, i.Pod.Mounts) {
		all := map[string]any{appsv1alpha1.OrphanedLabel: nil}
		for key, value := range claimLabels(o.set) {
			all[key] = value
		}
		all[appsv1alpha1.InstanceIDLabel], all[appsv1alpha1.ClaimTemplateNameLabel] = strconv.Itoa(i.ID), volume
		metadata := map[string]any{"labels": all}
		if claimBase(claim) != o.set.Name+"-"+volume {
			metadata["annotations"] = map[string]string{appsv1alpha1.ClaimOwnerAnnotation: o.set.Name}
		}
		if owned := metav1.IsControlledBy(claim, o.set); o.snapshot.Retention.Deleted && !owned {
			metadata["ownerReferences"] = append(refsWithout(claim, o.set.UID), ownerReference(o.set))
		}
		if err := w.patchClaim(ctx, o, claimOf(claim), metadata, nil); err != nil {
			return fmt.Errorf("including its claims: %w", err)
		}
	}
	return nil
}

// claimOf is as much of a claim as a write needs.
func claimOf(claim client.Object) *setplan.Claim {
	return &setplan.Claim{Name: claim.GetName(), UID: claim.GetUID(), ResourceVersion: claim.GetResourceVersion()}
}
