// Package v1alpha1 is the API of the suite: CollaSet, PodTransitionRule and ResourceContext of group
// apps.kusionstack.io, compatible with Kuperator v0.7.
//
// Every field of Kuperator v0.7 is present under its JSON name, so its manifests apply unchanged and its stored objects
// are read unchanged. What this package adds is optional: the scale subresource, standard conditions, blockers, and the
// ledger of grants in PodTransitionRule status.
//
// Validation and defaults live in the schema (the markers beside the fields, generated into deploy/crd), so a malformed
// object is refused whether or not the webhook server runs. Messages name the field, the offending value and the remedy.
//
// The keys that move a Pod through an operation (podopslifecycle.kusionstack.io and its relatives) are not here but in
// api/podops.
//
// +kubebuilder:object:generate=true
// +groupName=apps.kusionstack.io
package v1alpha1
