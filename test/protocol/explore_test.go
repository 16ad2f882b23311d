package protocol_test

import (
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// one is a rule over all Pods that allows one to be out.
var one = ruleSpec{max: 1}

// update is the operator of most scenarios.
var update = sdk("collaset")

// scenarios are what TestExplore searches whole. The long ones are searched by make explore.
var scenarios = []struct {
	name string
	long bool
	scenario
}{
	// One Pod: operators among themselves.
	{"one Pod, no rule, two operators", false, scenario{pods: 1, operators: sdk("collaset", "job")}},
	{"one Pod, no rule, two operators and two cancels", false,
		scenario{pods: 1, operators: sdk("a", "b"), budget: budget{cancels: 2}}},
	{"one Pod, no rule, three operators and a cancel", true,
		scenario{pods: 1, operators: sdk("a", "b", "c"), budget: budget{cancels: 1}}},
	{"one Pod, no rule, an operator of two labels and one that deletes", false,
		scenario{pods: 1, operators: []operator{{id: "job", raw: true}, {id: "mover", deletes: true}},
			budget: budget{cancels: 1}}},
	{"one Pod with a cooperator, two operators, a loss", false,
		scenario{pods: 1, operators: sdk("a", "b"), cooperator: true, budget: budget{losses: 1}}},
	{"one Pod with a cooperator that is taken for absent, two operators, a cancel", false,
		scenario{pods: 1, operators: sdk("a", "b"), cooperator: true, budget: budget{cancels: 1, absences: 2}}},
	{"a CollaSet of one Pod behind a Service whose cooperator is taken for absent, a mark and its removal", false,
		scenario{pods: 1, collaset: true, cooperator: true, budget: budget{marks: 1, unmarks: 1, absences: 2}}},
	{"two Pods with a cooperator that is taken for absent, one rule, a loss", true,
		scenario{pods: 2, rules: []ruleSpec{one}, operators: update, cooperator: true,
			budget: budget{losses: 1, absences: 2}}},
	{"one Pod with a cooperator, two operators, a cancel, a loss", true,
		scenario{pods: 1, operators: sdk("a", "b"), cooperator: true, budget: budget{cancels: 1, losses: 1}}},
	{"one Pod with a cooperator, marked and unmarked beside an update", false,
		scenario{pods: 1, operators: update, cooperator: true, budget: budget{marks: 2, unmarks: 1}}},
	{"one Pod with a cooperator, deleted past the protocol during an update", false,
		scenario{pods: 1, operators: update, cooperator: true, budget: budget{evictions: 2}}},
	{"one Pod, a kubelet that lags", false, scenario{pods: 1, operators: sdk("a", "b"), budget: budget{relapses: 2}}},

	// One rule.
	{"two Pods, one rule", false, scenario{pods: 2, rules: []ruleSpec{one}, operators: update}},
	{"two Pods, one rule, a loss, a failover", false,
		scenario{pods: 2, rules: []ruleSpec{one}, operators: update, budget: budget{losses: 1, failovers: 1}}},
	{"two Pods, one rule, a cancel and a failover", false,
		scenario{pods: 2, rules: []ruleSpec{one}, operators: update, budget: budget{cancels: 1, failovers: 1}}},
	{"two Pods, one rule, a second operator on the first Pod", false,
		scenario{pods: 2, rules: []ruleSpec{one}, operators: append(sdk("collaset"), operator{id: "job", first: true})}},
	{"two Pods, one rule, Pods deleted past the protocol and replaced under their names", false,
		scenario{pods: 2, rules: []ruleSpec{one}, operators: update, budget: budget{evictions: 1}}},
	{"two Pods, one rule, operators that delete", false,
		scenario{pods: 2, rules: []ruleSpec{one}, operators: []operator{{id: "mover", deletes: true}},
			budget: budget{failovers: 1}}},
	{"two Pods, one rule, a mark beside an update", false,
		scenario{pods: 2, rules: []ruleSpec{one}, operators: update, budget: budget{marks: 1}}},
	{"two Pods, one rule, a mark and its removal beside an update", true,
		scenario{pods: 2, rules: []ruleSpec{one}, operators: update, budget: budget{marks: 1, unmarks: 1}}},
	{"two Pods with a cooperator, one rule", false,
		scenario{pods: 2, rules: []ruleSpec{one}, operators: update, cooperator: true}},
	{"two Pods, one rule that wants a test before they return", false,
		scenario{pods: 2, rules: []ruleSpec{{max: 1, tested: true}}, operators: update, budget: budget{failovers: 1}}},
	{"two Pods, one rule, a freeze", false,
		scenario{pods: 2, rules: []ruleSpec{one}, operators: update, budget: budget{freezes: 1}}},
	{"one Pod, no rule, two freezes, two lifecycle-controllers", false,
		scenario{pods: 1, operators: update, secondLifecycle: true, budget: budget{freezes: 2}}},
	{"two Pods, one rule that asks a webhook", false,
		scenario{pods: 2, rules: []ruleSpec{{max: 1, asks: true}}, operators: update, budget: budget{refusals: 1}}},
	{"two Pods, one rule that asks a webhook, a cancel", true,
		scenario{pods: 2, rules: []ruleSpec{{max: 1, asks: true}}, operators: update,
			budget: budget{refusals: 1, cancels: 1}}},
	{"two Pods, one rule that asks a webhook, a failover", true,
		scenario{pods: 2, rules: []ruleSpec{{max: 1, asks: true}}, operators: update,
			budget: budget{refusals: 1, failovers: 1}}},
	{"two Pods, two rules of which one asks a webhook", true,
		scenario{pods: 2, rules: []ruleSpec{{max: 1, asks: true}, one}, operators: update,
			budget: budget{refusals: 1, cancels: 1}}},
	{"two Pods with a cooperator, one rule, a freeze, a failover", true,
		scenario{pods: 2, rules: []ruleSpec{one}, operators: update, cooperator: true,
			budget: budget{freezes: 1, failovers: 1}}},
	{"two Pods, one rule, two lifecycle-controllers", false,
		scenario{pods: 2, rules: []ruleSpec{one}, operators: update, secondLifecycle: true, budget: budget{cancels: 1}}},
	{"two Pods, one rule, an old leader that decides once more", false,
		scenario{pods: 2, rules: []ruleSpec{one}, operators: update, budget: budget{failovers: 1, oldLeader: 1}}},
	{"two Pods, a rule created midway", false,
		scenario{pods: 2, rules: []ruleSpec{one}, operators: update, budget: budget{creations: 1}}},
	{"two Pods, a rule created midway, a failover", true,
		scenario{pods: 2, rules: []ruleSpec{one}, operators: update, budget: budget{creations: 1, failovers: 1}}},
	{"three Pods, one rule", false, scenario{pods: 3, rules: []ruleSpec{one}, operators: update}},
	{"two Pods, one rule that becomes stricter", false,
		scenario{pods: 2, rules: []ruleSpec{{max: 2}}, operators: update, budget: budget{lowerings: 1}}},
	{"two Pods, one rule that becomes stricter, a failover", false,
		scenario{pods: 2, rules: []ruleSpec{{max: 2}}, operators: update, budget: budget{lowerings: 1, failovers: 1}}},
	{"two Pods, one rule that asks a webhook and becomes stricter", false,
		scenario{pods: 2, rules: []ruleSpec{{max: 2, asks: true}}, operators: update,
			budget: budget{lowerings: 1, refusals: 1}}},
	{"three Pods, one rule that becomes stricter", true,
		scenario{pods: 3, rules: []ruleSpec{{max: 2}}, operators: update, budget: budget{lowerings: 1}}},
	{"three Pods of which two are wanted and two kept", false, scenario{
		pods: 3, replicas: 2, rules: []ruleSpec{{min: 2}},
		operators: []operator{{id: "scaler", deletes: true, first: true}},
	}},
	{"three Pods, one rule, a failover", true,
		scenario{pods: 3, rules: []ruleSpec{one}, operators: update, budget: budget{failovers: 1}}},
	{"two Pods with a cooperator, one rule, a loss, a cancel, a failover", true,
		scenario{pods: 2, rules: []ruleSpec{one}, operators: update, cooperator: true,
			budget: budget{losses: 1, cancels: 1, failovers: 1}}},

	// Two rules.
	{"two Pods, two rules, a failover midway", false,
		scenario{pods: 2, rules: []ruleSpec{one, one}, operators: update, budget: budget{failovers: 1}}},
	{"two Pods, two rules, one deleted midway", false,
		scenario{pods: 2, rules: []ruleSpec{one, one}, operators: update, budget: budget{deletions: 1}}},
	{"two Pods, two rules, one created midway", false,
		scenario{pods: 2, rules: []ruleSpec{one, one}, operators: update, budget: budget{creations: 1}}},
	{"two Pods, one lax rule, a strict one created midway", true,
		scenario{pods: 2, rules: []ruleSpec{{max: 2}, one}, operators: update, budget: budget{creations: 1}}},
	{"three Pods, two rules that overlap in one", false,
		scenario{pods: 3, rules: []ruleSpec{{max: 1, pods: []int{0, 1}}, {max: 1, pods: []int{1, 2}}}, operators: update}},
	{"three Pods, two rules", true, scenario{pods: 3, rules: []ruleSpec{one, one}, operators: update}},
	{"three Pods, two rules that overlap in one, a failover", true,
		scenario{pods: 3, rules: []ruleSpec{{max: 1, pods: []int{0, 1}}, {max: 1, pods: []int{1, 2}}}, operators: update,
			budget: budget{failovers: 1}}},
	{"two Pods, two rules, one deleted midway, a failover", true,
		scenario{pods: 2, rules: []ruleSpec{one, one}, operators: update, budget: budget{deletions: 1, failovers: 1}}},
	{"two Pods, two rules, one created and deleted midway, a failover", true,
		scenario{pods: 2, rules: []ruleSpec{one, one}, operators: update,
			budget: budget{creations: 1, deletions: 1, failovers: 1}}},
	{"two Pods, two rules, a loss and a cancel", true,
		scenario{pods: 2, rules: []ruleSpec{one, one}, operators: update, budget: budget{losses: 1, cancels: 1}}},
	{"two Pods, two rules, an old leader that decides once more", true,
		scenario{pods: 2, rules: []ruleSpec{one, one}, operators: update, budget: budget{failovers: 1, oldLeader: 1}}},

	{"two Pods, two rules, a freeze, a failover", true,
		scenario{pods: 2, rules: []ruleSpec{one, one}, operators: update, budget: budget{freezes: 1, failovers: 1}}},
	{"two Pods, two rules, a loss and a failover", true,
		scenario{pods: 2, rules: []ruleSpec{one, one}, operators: update, budget: budget{losses: 1, failovers: 1}}},
	{"two Pods, two rules of which one asks a webhook, a failover", true,
		scenario{pods: 2, rules: []ruleSpec{{max: 1, asks: true}, one}, operators: update,
			budget: budget{refusals: 1, failovers: 1}}},
	{"two Pods, two rules, a freeze", false,
		scenario{pods: 2, rules: []ruleSpec{one, one}, operators: update, budget: budget{freezes: 1}}},
	{"two Pods, two rules, a cancel and a failover", true,
		scenario{pods: 2, rules: []ruleSpec{one, one}, operators: update, budget: budget{cancels: 1, failovers: 1}}},
	{"two Pods, two rules, Pods deleted past the protocol, a failover", true,
		scenario{pods: 2, rules: []ruleSpec{one, one}, operators: update, budget: budget{evictions: 1, failovers: 1}}},

	// The real operator.
	{"a CollaSet of two Pods, one rule", false, scenario{pods: 2, rules: []ruleSpec{one}, collaset: true}},
	{"a CollaSet of two Pods behind a Service, one rule", false,
		scenario{pods: 2, rules: []ruleSpec{one}, collaset: true, cooperator: true}},
	{"a CollaSet of two Pods, one rule, a rollback", false,
		scenario{pods: 2, rules: []ruleSpec{one}, collaset: true, budget: budget{rollbacks: 1}}},
	{"a CollaSet of one Pod behind a Service, an operator of two labels", false,
		scenario{pods: 1, collaset: true, cooperator: true, operators: []operator{{id: "job", raw: true}}}},
	{"a CollaSet of one Pod, one rule, an operator of two labels, a mark and its removal", true, scenario{
		pods: 1, rules: []ruleSpec{one}, collaset: true, operators: []operator{{id: "job", raw: true}},
		budget: budget{marks: 1, unmarks: 1},
	}},
	{"a CollaSet of two Pods, its window and a budget of one", false,
		scenario{pods: 2, collaset: true, unavailable: 1, places: 2, budget: budget{restarts: 1, rollbacks: 1}}},
	{"a CollaSet of three Pods, its window and a budget of one, an event that comes late", false,
		scenario{pods: 3, collaset: true, unavailable: 1, places: 3, budget: budget{lates: 1}}},
	{"a CollaSet of two Pods, its window and a budget of one, a rollback, an event that comes late", true,
		scenario{pods: 2, collaset: true, unavailable: 1, places: 2, budget: budget{lates: 1, rollbacks: 1}}},
	{"a CollaSet of two Pods, its window of one place", false,
		scenario{pods: 2, collaset: true, unavailable: 2, places: 1, budget: budget{restarts: 1}}},
	{"a CollaSet of two Pods, its window and a budget of one, a loss", true,
		scenario{pods: 2, collaset: true, unavailable: 1, places: 2, budget: budget{losses: 1}}},
	{"a CollaSet of two Pods that recreates, one rule", false,
		scenario{pods: 2, rules: []ruleSpec{one}, collaset: true, recreate: true}},
	{"a CollaSet of two Pods behind a Service that recreates, one rule, a failover", true,
		scenario{pods: 2, rules: []ruleSpec{one}, collaset: true, recreate: true, cooperator: true,
			budget: budget{failovers: 1}}},
	{"a CollaSet of one Pod that is replaced", false, scenario{pods: 3, replicas: 1, collaset: true, surge: true}},
	{"a CollaSet of one Pod that is replaced, a rollback", false,
		scenario{pods: 3, replicas: 1, collaset: true, surge: true, budget: budget{rollbacks: 1}}},
	{"a CollaSet of one Pod behind a Service that is replaced, a rollback", false,
		scenario{pods: 3, replicas: 1, collaset: true, surge: true, cooperator: true, budget: budget{rollbacks: 1}}},
	{"a CollaSet of one Pod that is replaced, a mark and its removal", true,
		scenario{pods: 3, replicas: 1, collaset: true, surge: true, budget: budget{marks: 1, unmarks: 1}}},
	{"a CollaSet of one Pod that is replaced, a Pod deleted past the protocol", false,
		scenario{pods: 3, replicas: 1, collaset: true, surge: true, budget: budget{evictions: 1}}},
	{"a CollaSet of one Pod that is replaced, a Pod deleted past the protocol, a rollback", true,
		scenario{pods: 3, replicas: 1, collaset: true, surge: true, budget: budget{evictions: 1, rollbacks: 1}}},
	{"a CollaSet of one Pod that is evicted, and its node opened again", false,
		scenario{pods: 3, replicas: 1, collaset: true, surge: true, budget: budget{drains: 1, opens: 1}}},
	{"a CollaSet of one Pod that is evicted, a rule that lets no Pod go", false,
		scenario{pods: 3, replicas: 1, collaset: true, surge: true, rules: []ruleSpec{{max: 0}},
			budget: budget{drains: 1, opens: 1}}},
	{"a CollaSet of one Pod behind a Service that is evicted twice, a rule that lets no Pod go, a failover", true,
		scenario{pods: 3, replicas: 1, collaset: true, surge: true, cooperator: true, rules: []ruleSpec{{max: 0}},
			budget: budget{drains: 2, opens: 1, failovers: 1}}},
	{"a CollaSet of one Pod that is evicted, an update", false,
		scenario{pods: 3, replicas: 1, collaset: true, surge: true, budget: budget{drains: 1, opens: 1, rollbacks: 1}}},
	{"a CollaSet that updates three Pods and removes one, one rule", true,
		scenario{pods: 3, replicas: 2, rules: []ruleSpec{{min: 1}}, collaset: true}},
	{"a CollaSet of two Pods, one rule, a rollback, a failover", true,
		scenario{pods: 2, rules: []ruleSpec{one}, collaset: true, budget: budget{rollbacks: 1, failovers: 1}}},
	{"a CollaSet of two Pods behind a Service, another operator", true,
		scenario{pods: 2, rules: []ruleSpec{one}, collaset: true, cooperator: true,
			operators: []operator{{id: "job", first: true}}}},
	{"a CollaSet of two Pods, a Pod deleted past the protocol", true,
		scenario{pods: 2, rules: []ruleSpec{one}, collaset: true, budget: budget{evictions: 1}}},
	{"a CollaSet of three Pods, one rule", true, scenario{pods: 3, rules: []ruleSpec{one}, collaset: true}},
	{"a CollaSet of three Pods behind a Service, one rule, a failover", true,
		scenario{pods: 3, rules: []ruleSpec{one}, collaset: true, cooperator: true, budget: budget{failovers: 1}}},
	{"four Pods, one rule that allows two", true, scenario{pods: 4, rules: []ruleSpec{{max: 2}}, operators: update}},
}

// TestExplore searches each scenario whole: the bound holds in every state, no
// operator ever acts on a serving Pod, and from every state the goal can still
// be reached.
func TestExplore(t *testing.T) {
	total := 0
	for _, tc := range scenarios {
		t.Run(tc.name, func(t *testing.T) {
			if tc.long && os.Getenv("EXPLORE") != "all" {
				t.Skip("searched by make explore")
			}
			result, err := search(t, tc.scenario)
			require.NoError(t, err)
			assert.Positive(t, result.Goals)
			total += result.States
		})
	}
	t.Logf("%d states in total", total)
}
