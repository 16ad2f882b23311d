// Package grants decides which Pods of one namespace may go on, and keeps the ledger of that: the status of every
// PodTransitionRule. Decide is a function of its Snapshot alone.
//
// Words. A check is one item of spec.rules that is neither disabled nor conditional. A rule bears on a Pod at a stage
// when it selects the Pod and one of its checks is for that stage, passes its filter and is not skipped by the Pod. An
// entry is one item of status.grants; the entries of all rules for one Pod and stage are its grant. A Pod is held from
// the moment its grant may have been acted on until it is back in service, gone, or its request cancelled.
//
// # Order of checks
//
// Labels first, then webhooks, availability last. A webhook is asked about what one rule has not granted yet: a
// Question, known by its Subject, and only about Pods that no other check refuses but availability. Its Answer counts
// for this Subject alone. So no Pod holds budget while it waits for an answer, and no answer is inherited by a later
// request or a later Pod.
//
// While the namespace is frozen nothing is asked and nothing new granted at PreCheck. What is granted is kept, and
// PostCheck goes on.
//
// # Availability
//
// The population of an availablePolicy check is the Pods that the rule selects and the check's filter lets through,
// except those that have run to their end. Pods that skip the check belong to it: they are not asked, but they are
// missed when they are down.
//
// N, the desired Pods of a population, is the sum over the Pods' controllers of
//
//   - the controller's desired replicas, if every live Pod of it is in the population (or it has no live Pod and its
//     Pod template would be);
//   - the number of its Pods in the population, at most its desired replicas, if only some are: it is not known how
//     many of the others will be;
//   - the number of its Pods in the population, if it wants none (scaled to zero, being deleted) or is not known, and
//     likewise for Pods without a controller.
//
// Pods above the desired number (a surge) therefore do not raise N, and a percentage of N does not grow with them. The
// first kind of controller also has missing Pods: desired replicas less live Pods.
//
// The total is the live Pods of the population and the missing ones. A value or a function of N is maxUnavailable
// rounded up, minAvailable rounded down, and the tightest of all that are given holds:
//
//	allowed = min(maxUnavailable of N; total - minAvailable of N), not below 0
//
// so that under minAvailable Pods above the desired number may go (scaling 10 to 5 under minAvailable 5), as under a
// PodDisruptionBudget. maxUnavailable gives no such credit.
//
// Unavailable is every Pod of the population that is held or granted, terminating, not Ready, or managed and
// without the service-available label, and every missing Pod. A check lets a Pod pass when
//
//   - allowed is not 0, and
//   - the Pod is in service, and unavailable + 1 <= allowed; or
//   - the Pod is down already, and the Pods granted + 1 <= allowed; or
//   - the Pod is held and goes on, and is down already or unavailable <= allowed.
//
// At PostCheck an availablePolicy passes every Pod: holding back a Pod that could serve is of no use.
//
// # Replacement
//
// Of a Pod and the one that is to take its place (label replace-pair-origin-name, same owner), one is too many while the
// other serves. A check that both belong to does not count it, and lets it pass; it still gets a grant, and labels and
// webhooks are asked.
//
// # Domains
//
// A topology budget and a budget of groups are the same bound on other domains, and hold together.
//
//   - Topology: the domain of a Pod is the value of the topologyKey on its node. Nodes without the label are one domain
//     together, a node that is not known is one by itself, a Pod without a node is in none.
//   - Groups: the domain of a Pod is the value of its label groupKey, within the value of its label setKey (none is the
//     empty value). A Pod without the label groupKey is a domain by itself. Missing Pods are in none.
//
// A domain is disrupted while a Pod of the population in it is unavailable. With n for maxDisruptedDomains or
// maxDisruptedGroups, beside the numbers, a check with such a bound lets a Pod pass when
//
//   - the Pod is in service, and its domain is disrupted already or fewer than n are, or is down; and
//   - its domain holds granted Pods already, or fewer than n do; or
//   - the Pod is held and goes on, and is down already or no more than n are disrupted.
//
// So a rollout goes domain by domain: requests in a domain that is disrupted overtake older ones elsewhere.
//
// # The grant
//
// A grant is written rule by rule, and any prefix of the writes must be safe. An operation that some named rule (one
// that exists and still bears) does not cover was never acted on: it is completed, or withdrawn. It is withdrawn in
// two decisions: first the rules that lack it get an entry without operations, so that no other leader's late write
// can complete it any more, then all entries go. Meanwhile its Pod has its place in all budgets, but its domain is
// open to no other Pod on account of it. Therefore the names in an entry that may have been acted on are only ever
//
//   - shortened by rules that are gone or stopped bearing before they had an entry, or
//   - extended by rules that have their entry already.
//
// A rule that comes to bear on a held Pod joins with its own entry; the other entries follow in the next decision, and
// operations are added to the grant after that.
//
// An entry that was given under another generation of its rule than the present one lets nothing go on that still waits
// (podops.VerdictsFor), and is to the decision what a rule is that has yet to join: it stays, and gets the present
// generation when the rule would grant again.
//
// A held Pod all of whose operations wait for rules to join is stuck. What was granted before a rule came to bear
// cannot be bounded by it, because it may have been acted on a moment ago; but stuck Pods get going again only within
// the budget of all rules: a stuck Pod takes a new slot when it joins, and stuck Pods (and their domains) do not
// count against each other, or against Pods that are down, which might otherwise wait for each other for ever.
//
// Only managed Pods are granted anything: no other Pod takes part in the lifecycle.
//
// # Status
//
// Details and grants are of Pods in a stage alone. Targets names all Pods selected, as Kuperator's does, for programs
// that read there whether a rule covers a Pod; up to a bound, and written with the next change of anything else or
// after a moment. RuleStates is what the snapshot
// has as tasks. Conditions have no counters, and Reconciling is True only for what takes more than the plan itself: it
// does not change in a rollout without webhooks and late rules.
package grants
