// Package plugin is `kubectl kuperator`: commands for people who operate Pods under the lifecycle.
//
// Reads are lists with pages, one for each kind; what they say together is decided by internal/insight, which is
// pure. A read that is forbidden is a gap in the answer and not its end. Writes are patches with the object's UID as
// a precondition, tell what they did, and know --dry-run.
package plugin
