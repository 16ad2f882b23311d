// Package v1alpha1 is the API of the suite: CollaSet, PodTransitionRule and ResourceContext of group
// apps.kusionstack.io, compatible with Kuperator v0.7.
//
// Every field of Kuperator v0.7 exists under its JSON name, so its manifests apply unchanged and its stored objects are
// read unchanged. What this package adds is optional: the scale subresource, standard conditions, blockers, and the
// ledger of grants in PodTransitionRule status.
//
// Validation and defaults are in the schema (the markers of the fields, generated into deploy/crd), so an invalid
// object is rejected even if the webhook server is down. Messages name the field, the invalid value and the remedy.
//
// The keys that advance a Pod through an operation (podopslifecycle.kusionstack.io and related ones) are in api/podops.
//
// +kubebuilder:object:generate=true
// +groupName=apps.kusionstack.io
package v1alpha1
