// Package podops is the protocol by which several programs operate on one Pod without conflicts between them and
// without surprises for the Pod's users.
//
// An operator requests an operation (Begin), waits until it is Allowed, acts, and reports that it has finished
// (Finish). It may Cancel at any time. A cooperator maintains something outside the Pod, such as traffic: it announces
// itself (Expect), Leaves when the Pod goes out of service, and Joins when it is back. A rule may block an operation
// before it starts (PreCheck) and before the Pod returns to service (PostCheck).
//
// The protocol is stored in the Pod's metadata under the keys of Kuperator v0.7, so programs written for it take part
// unchanged. Each operation has an ID, which is one operator's slot on the Pod, and each ID has its own small state
// machine:
//
//	Requested -> PreCheck -> Preparing -> Operate -> PostCheck -> Completing -> (gone)
//
// Invariants, for every label set and any mix of IDs:
//
//   - The Pod is offline, service-ready=False, while any ID is between Preparing and PostCheck. An ID that waits in
//     PreCheck does not delay the others.
//   - A permission covers one request of one type. A request that is changed or repeated starts at PreCheck again.
//   - Undo works in every phase and leaves nothing behind.
//   - Every phase has a next step or a reason that Explain names.
//
// The package is pure: it reads no clock and does no input or output. Functions return a Change or a Step, which the
// caller writes as one patch with the Pod's UID and resourceVersion. A decision on an outdated view then fails instead
// of overwriting other changes.
package podops
