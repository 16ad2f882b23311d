// Package neighbours has the suite live with what else is in a real cluster: admission policies, quotas, the garbage
// collector, autoscalers, backup tools, other controllers and people act on the same objects. Whatever they refuse,
// change or take away, the service stays up, nothing is lost, and what a person has to do is told. See
// docs/contributing/faults.md.
package neighbours
