// Package insight makes one picture of API objects: workload, Pod, operation, what it waits for, and what is behind
// that. `kubectl kuperator` prints it and the live page shows it.
//
// What an operation waits for is podops.ExplainWith, word for word. Insight looks at the object that the wait points at
// (the rule, the Pod's status, its node, a Lease, the CollaSet) and puts what it finds there first: the first of a list
// of reasons is the blocker, which has to change before anything else does.
//
// The package is pure: it reads no clock and does no input or output. It never fails: what it was not given it does not
// tell, and Facts.Gaps says what that is. docs/design/0008-plugin.md has the JSON model.
package insight
