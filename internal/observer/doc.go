// Package observer watches a cluster from outside and says whether the suite
// kept its promises. It shares nothing with the controllers but the types of the
// API: not their code, not their caches, and not the Pod protocol's package
// either, so that a mistake there cannot hide itself here.
//
// Checker is the judgement: a plain function of a sequence of events in the
// order of their resourceVersions. Observer feeds it from watches of its own.
//
// What is checked on every event:
//
//   - Budget: no Pod goes out of service when a PodTransitionRule that selects it
//     has as many out as it allows, counted on the wanted replicas of the Pods'
//     owners. A Pod is out of service from the moment an operation takes it away
//     (readiness gate False, an operation being prepared or carried out, or
//     terminating) until it is Ready again. A Pod that was deleted and is still
//     wanted counts as well.
//   - InstanceID: no two live Pods of one CollaSet have the same instance ID.
//   - Traffic: no Pod is changed (image) or deleted by an operation while it was
//     last seen Ready, or while an EndpointSlice of a Service under control
//     listed it as ready.
//   - Stuck: no Pod stays out of service, in one and the same state, for longer
//     than a limit.
package observer
