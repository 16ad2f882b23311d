// Package decoplan decides about the PodDecorations of a namespace: which decorations each Pod is told to have, what
// is done to Pods that no CollaSet owns so that they get them, and what each decoration's status says. It is pure, and
// remembers nothing: all that it goes by is on the Pods and in the decorations' status, so every process decides the
// same.
//
// What a Pod is told is an annotation. collaset-controller has the Pods of CollaSets follow it. Other managed Pods are
// changed in place, or deleted through their lifecycle where their workload creates another one. Pods that are not
// managed are decorated when they are created, and never touched after that.
//
// A Pod that lacks a decoration although it should have been created with it is deleted only as long as that helps: the
// newest Pod decides. Else Pods would be deleted for ever where new ones are not decorated.
package decoplan
