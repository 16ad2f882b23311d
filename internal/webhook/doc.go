// Package webhook is webhook-server: what the API server asks before it stores a Pod or one of the suite's own objects.
//
//	path                            asked about                answer
//	/mutate-pods                    creation of managed Pods   adds the readiness gate of the Pod protocol,
//	                                                           and announces Services
//	/delete-pods                    deletion of managed Pods   refuses, and marks the Pod, until it is out of service
//	/evict-pods                     evictions                  the same, with 429
//	/mutate-collasets               CollaSets                  sets defaults that the schema cannot express
//	/validate-collasets             CollaSets                  rejects what can never work,
//	                                                           warns of what is not supported
//	/validate-podtransitionrules    PodTransitionRules         the same
//	/validate-resourcecontexts      ResourceContexts           rejects duplicate instance IDs
//
// The server is a convenience on top of the schema, never a condition for anything: the CRDs validate and default
// themselves (CEL), collaset-controller gives its Pods the gate itself, and every webhook has failurePolicy Ignore.
// So a cluster whose webhook-server is down, slow or not installed works on. What the schema already refuses never
// reaches a validating webhook and is not checked here a second time.
//
// Invariants:
//   - of a request that does not end with the token a header is read, and no body; all that is held at once is bounded
//     (server);
//   - a mutation is a JSON patch made from the bytes of the request. Objects are never sent through the Go types and
//     back, so a field that this version does not know is never lost; running a mutation twice changes nothing;
//   - nothing is dialled but the API server, so no client can make the server call an address of its choice. Answers
//     about the suite's own objects depend on the request alone;
//   - a removal is refused only while something is on its way that ends it: the Pod is marked, lifecycle-controller
//     deletes it, and a Pod that is out of service is admitted. The mark is all that is ever written, once, under the
//     Pod's UID, and never in a dry run; what decides is a pure function (decideRemoval);
//   - an update that leaves the spec as it is, and any update of an object that is being deleted, is admitted:
//     finalizers can always be removed;
//   - an error names the field, the value and what to do.
package webhook
