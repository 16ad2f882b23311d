// Package observer watches a cluster from outside and reports whether the suite kept its promises. It shares nothing
// with the controllers but the types of the API: not their code, not their caches, and not the Pod protocol's package
// either, so that a mistake there cannot hide itself here.
//
// Checker is the judgement: a plain function of a sequence of events in the order of their resourceVersions. Observer
// feeds it from watches of its own, of Pods, Services, EndpointSlices, ReplicaSets, PersistentVolumeClaims,
// ControllerRevisions, CollaSets, PodTransitionRules, ResourceContexts, Nodes and Namespaces. No promise reaches beyond
// a namespace, and each is judged and reported by itself. The deletion of a namespace asks no rule and no operator:
// from then on nothing in it is judged.
//
// What happened while a watch was broken, until its kind was listed again, is not judged: of an object that changed
// twice meanwhile only the last state was seen. A grant that was given and used may have come and gone. From the list
// on everything is known again.
//
// What is promised, and when it is judged: on every event, at rest (AtRest:
// when nothing is to be done any more, and EndpointSlices, which others write,
// tell what the Pods are), or both.
//
//   - Budget, on events: no Pod goes out of service when a PodTransitionRule that
//     selects it has as many out as it allows, counted on the wanted replicas of
//     the Pods' owners; Pods of an owner that wants none count themselves. A Pod
//     is out of service from the moment an operation takes it away (readiness gate
//     False, an operation being prepared or carried out, or terminating) until it
//     is Ready again. A Pod that was deleted and is still wanted counts as well.
//     No Pod goes out in a further topology domain, or of a further group, while
//     operations have Pods of as many others out as the rule allows.
//     No operation passes PreCheck without a grant of every rule for this very
//     request. A CollaSet keeps to its maxSurge, and with minReadySeconds to a
//     quarter of its Pods.
//   - Traffic, on events: no Pod is changed (image, or resources so that a
//     container restarts) or deleted by an operation while it was last seen
//     Ready, or while an EndpointSlice of a Service under control listed it as
//     ready; and no operator is let act on a Pod that is Ready or that a
//     cooperator still holds.
//   - Backend, on events and on what a test's own provider of traffic tells: no
//     Pod has a weight at a provider while it is operated on.
//   - InstanceID: no two live Pods of a pool of instance IDs have the same. A Pod
//     is created only with an ID that the ResourceContext gives to its CollaSet;
//     an ID is given up only when its Pod, and by policy its claims, are gone.
//   - Revision: a Pod's revision exists and is its CollaSet's, and no revision in
//     use is deleted. At rest every Pod is what its revision says, and the
//     counters in status equal a recount.
//   - Orphan, at rest: every claim, entry of a ResourceContext and revision
//     belongs to something that is there, or is kept by policy.
//   - Stuck: no Pod stays out of service in one and the same state, or waits in a stage without a stated reason, for
//     longer than a limit. At rest no Pod waits, and no CollaSet is not Ready, without a stated reason.
//   - Keys: no key of the Pod protocol comes without its partners. At rest
//     operations that are over have left none.
//   - Churn: a CollaSet creates no Pod that it does not want. At rest as many
//     were created and deleted as the test says are needed (Expect).
//   - Writers, on events: no component writes a field that is another's, by
//     managedFields. Fields taken away leave no trace there and are not judged.
//   - Quiet: nothing is written in a namespace at rest for as long as Quiet lasts.
//   - Size: no object of the suite is over 100 KiB (beyond 1,000 Pods or so a
//     ResourceContext has 256 bytes for each, and a rule 1 KiB for each Pod under
//     way); at rest a CollaSet and a rule have grown by no more than 10 bytes a Pod.
package observer
