// Package setplan decides for one CollaSet: which instance IDs it holds, which Pods to create, update, finish, cancel
// and delete, and what its status says. Decide is a function of the Snapshot alone.
//
// Words. A Pod is *live* when it is neither being deleted nor terminal. An *entry* is what the ResourceContext
// remembers of one instance ID. A *slot* is an active entry: with its live Pod, or vacant. A live Pod that scale-in
// removes is *condemned*. A *pair* is an origin and the new Pod that replaces it: one replica, in the origin's slot. A
// Pod that is *excluding* leaves the set now: it does not count as live. A slot is *in scope* when the update strategy
// wants it at the updated revision.
//
// Decide asks one question after the other. Each has a part of the Snapshot as its input, its own type or function, and
// gives actions; what else it finds is written to the item of a Pod or to the ledger, for those after it (findings):
//
//	question     type or function         input                                      answers
//	-----------  -----------------------  -----------------------------------------  ----------------------------------
//	identity     members, ledger          Pods, Identity, History, Volumes           who has which ID; pairs
//	             repairing                + Scale                                    Repairs, IDs that are not vacant
//	membership   membership               Identity, Scale, History                   Exclusions, Inclusions
//	scale        scaling                  Scale, Strategy, History                   who is condemned, slots; scale-in
//	rollout      scope                    Scale, Strategy, History, who is condemned who is in scope; goals
//	replacement  replacing                Strategy, History, who is in scope         pairs; Marks, Deletions
//	rollout      updating                 Scale, Strategy, History, scope, pairs     Changes, Begins, Rollout and others
//	scale        filling                  Identity, Scale, History, slots            Creations, Deletions, Marks
//	volumes      claimIndex, keeping      Volumes, History, who is condemned         ClaimActions
//	the rest     takenNames, relabels,    all of the above                           Names, Labels, Entries, Goal
//	             store, goal
//
// All of them know the Mode, and what the API server said (asking); what users are to know goes to notes.
//
// Invariants, for every Snapshot:
//
//   - no Pod is created for an ID that a live Pod carries, and live replicas plus creations never exceed the replicas
//     wanted;
//   - an origin has at most one new Pod, which is created after the entries of both say so, and goes only when that is
//     available; updates have at most Strategy.MaxSurge pairs;
//   - no Pod is touched (changed, deleted) under the lifecycle before podops.Allowed says so;
//   - with partition p no Pod beyond replicas-p is moved to the updated revision, and none is moved back;
//   - with names in sequence or volumes no Pod is created for an ID of which any Pod is left;
//   - of several live Pods with one ID the oldest keeps it and the others are removed first;
//   - a plan that excludes or includes Pods creates and deletes none; a Pod is included after its entry is stored, and
//     an entry is dropped after its Pod was excluded;
//   - a Pod that is to be excluded, now or as soon as it may, is not deleted, handed over or begun upon, and counts as
//     gone for scale-in (with names in sequence, where none can leave, it is still updated and comes again when it has
//     ended);
//   - names that are removed from the spec have taken effect, and no Pod of such a name in sequence is made before they
//     are;
//   - an entry of another CollaSet is never changed, and its ID never taken, unless its owner is gone or has another
//     pool;
//   - a plan is a set of independent actions: any subset of it, applied and decided again, is safe. The one order that
//     matters is that Entries are stored before Creations and Deletions, which Plan.EntriesFirst says;
//   - the order of the input does not matter, and a set at its goal gets an empty plan.
package setplan
