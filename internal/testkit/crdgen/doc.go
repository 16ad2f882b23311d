// Package crdgen makes operations on custom resources from their schemas: objects to create and changes to objects,
// most of them with a wrong value, as from a user, a template or a broken client.
//
// It is pure: the same schemas, seed objects and seed number give the same operations in the same order. What becomes
// of an operation is for the caller to find out. The approach is Acto's (SOSP'23): values by the type and the bounds
// of each field, the removal of what is there, duplicates in lists with keys, and pairs of changes.
package crdgen
