// Package revision says what a CollaSet's ControllerRevisions hold, how they are named, when two of them mean the same,
// and how a Pod gets from one to another.
//
// A revision's data is {"spec":{"template":{…,"$patch":"replace"},"volumeClaimTemplates":[…]}} in the bytes that
// Kuperator v0.7 writes for the same template, so that names and hashes agree. It is made from the stored JSON and not
// from Go structs: fields of a newer Pod API stay.
//
// Two revisions are compared by what they mean (Data.Same), never by their bytes: a null creationTimestamp, a default
// of the API server's that is spelled out, or another order of tolerations makes no rollout. What this version's Pod
// type does not know still counts.
//
// The package is pure: no input or output, no clock.
package revision
