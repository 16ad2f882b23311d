// Package schema does to the suite what its API allows: operations on every kind, generated from the schemas by
// internal/testkit/crdgen, against the real API server and the real controllers.
//
//   - TestAdmission: every operation, with webhook-server and without, is refused with the field that is wrong, or
//     accepted; never is an answer a failure of the server. What only webhook-server refuses is on a list with a
//     reason.
//   - TestReconciliation: what is accepted is reconciled to what it says, or a condition says what to change; and when
//     the change is taken back, everything is as if it had never been made.
//   - TestHostileLabels: a user who may patch Pods writes lifecycle labels at will: no operation that no rule granted
//     takes a Pod away, and the Pod comes back when the labels go.
//   - TestCorruptStorage: objects are changed in etcd, behind the API server's back: other objects are not affected,
//     and Pods are not deleted by the dozen.
//
// Without FAULTS=all each is a short selection. FAULT_SEED chooses other operations, OPERATION='{"kind":…}' does a
// single one again, as a failure prints it. Operations that once failed are in testdata/regressions and always run.
package schema
