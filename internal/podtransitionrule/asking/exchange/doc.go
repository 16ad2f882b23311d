// Package exchange decides about what webhook rules are asked, and what their answers mean. It is a function of what
// it is told: an Inquiry is the state of one check, its methods are the events, and every method that needs the time
// is given it. It does no input or output and is not safe for concurrent use.
//
// A subject (grants.Subject) is asked about until it has passed or is no longer waiting:
//
//	   ┌──────────── after a rest ◀───────────┐
//	   ▼                                      │ rejected, failed, timed out, stopped
//	waiting ──▶ asked (in one POST) ──▶ in a task (polled) ──▶ passed
//	               └──────────────────────────────────────────▶
//
// An answer counts for the subjects of the request that it answers, and for nothing else: names that were not asked
// about are ignored, and a subject that stopped waiting takes its answer along.
//
// A task is polled only after the rule's status was seen to hold it with its subjects (Known), so that the next leader
// finds every task that was ever polled (Adopt). Before that its subjects are asked about again, which is a new task.
//
// # Rests
//
// After a rejection 5 s, doubling up to 60 s; after a failure 1 s, doubling up to 60 s; after a refusal that only a
// change of settings can mend 60 s. Up to a quarter is added, the same for all subjects of a check with as many
// attempts behind them, so that they are asked about together again.
package exchange
