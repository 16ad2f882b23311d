// Package jobplan decides what an OperationJob does next: which targets start, what is written to their Pods, and what
// the job's status says. It is pure: the same Snapshot gives the same Plan, and any subset of a Plan may be applied.
//
// A target passes through stages, which the status remembers (OpsStage). Three rules make every crash safe:
//
//   - nothing is written to the Pod of a target before its start is stored;
//   - what shows how far a target is stays on its Pod until the next stage is stored;
//   - that something is gone, which ends a target, is only believed of a view that was read past the cache (Live).
package jobplan
