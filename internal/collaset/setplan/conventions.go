package setplan

import (
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
)

// Conventions are how a spec is read where it says nothing, and what becomes of Pods that no field of it can say.
type Conventions string

const (
	// OwnConventions are those of this suite, which keep data and service.
	OwnConventions Conventions = ""
	// KuperatorV07 are those of Kuperator v0.7 (docs/design/0031-drop-in-by-a-switch.md).
	KuperatorV07 Conventions = "kuperator-v0.7"
)

// Apply fills in what a spec does not say, in its own words, so that each CollaSet can say otherwise. The result is
// never written back, and what the spec shares with a cache is not changed.
func (c Conventions) Apply(spec appsv1alpha1.CollaSetSpec) appsv1alpha1.CollaSetSpec {
	if c != KuperatorV07 {
		return spec
	}
	retention := ptr.Deref(spec.ScaleStrategy.PersistentVolumeClaimRetentionPolicy,
		appsv1alpha1.PersistentVolumeClaimRetentionPolicy{})
	for _, word := range []*appsv1alpha1.PersistentVolumeClaimRetentionPolicyType{&retention.WhenDeleted,
		&retention.WhenScaled} {
		if *word == "" {
			*word = appsv1alpha1.DeletePersistentVolumeClaim
		}
	}
	spec.ScaleStrategy.PersistentVolumeClaimRetentionPolicy = &retention

	update := &spec.UpdateStrategy
	rolling := ptr.Deref(update.RollingUpdate, appsv1alpha1.RollingUpdateStrategy{})
	all := intstr.FromString("100%")
	for _, bound := range []**intstr.IntOrString{&rolling.MaxUnavailable, &update.MaxSurge} {
		if *bound == nil {
			*bound = &all
		}
	}
	update.RollingUpdate = &rolling
	if update.PodUpdatePolicy == appsv1alpha1.PodUpdateInPlaceOnly {
		update.PodUpdatePolicy = appsv1alpha1.PodUpdateInPlaceIfPossible
	}
	if spec.ScaleStrategy.OperationDelaySeconds == nil {
		spec.ScaleStrategy.OperationDelaySeconds = update.OperationDelaySeconds
	}
	if spec.ProgressDeadlineSeconds == nil && !(FailureHandling{Deadline: 1, Policy: update.FailurePolicy}).stops() {
		spec.ProgressDeadlineSeconds = ptr.To(appsv1alpha1.NoProgressDeadlineSeconds)
	}
	return spec
}

// Retention is what a spec that Apply has filled in says of claims.
func (c Conventions) Retention(policy *appsv1alpha1.PersistentVolumeClaimRetentionPolicy) Retention {
	said := ptr.Deref(policy, appsv1alpha1.PersistentVolumeClaimRetentionPolicy{})
	r := Retention{
		Scaled:  said.WhenScaled == appsv1alpha1.DeletePersistentVolumeClaim,
		Deleted: said.WhenDeleted == appsv1alpha1.DeletePersistentVolumeClaim,
		Changed: said.WhenTemplateChanged == appsv1alpha1.DeletePersistentVolumeClaim,
	}
	if c == KuperatorV07 {
		r.Replaced = true
		if said.WhenTemplateChanged == "" {
			r.Renewed, r.Changed = true, r.Scaled
		}
	}
	return r
}
