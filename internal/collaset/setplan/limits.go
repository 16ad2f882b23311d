package setplan

import "time"

// Limits bound how much is done at a time, and how often. None of them is a promise to users: budgets and rules are.
// DefaultLimits has values for all.
type Limits struct {
	// InFlight is how many Pods of all CollaSets may be on their way through an update whose next step is the suite's.
	// At half, the programs wait for each other now and then; at double, no Pod is updated sooner, and each is out of
	// service for longer.
	InFlight int
	// OursFor is how long a Pod counts as the suite's to move. At half, an API server that is slow for a moment gets
	// more to do; at double, Pods that something unknown holds up keep others waiting for longer.
	OursFor time.Duration
	// HandoverFor is how long a Pod still counts after its next step became that of a kubelet, a cooperator or a rule.
	// At half, those that answer at once are given more Pods than the API server can follow; at double, Pods of slow
	// containers begin more slowly.
	HandoverFor time.Duration
	// Interval is the least time between a decision about a CollaSet and the next one that changes of its Pods ask for.
	// At half, a CollaSet of 5,000 Pods takes a third of a core while it changes; at double, what only decisions move
	// waits for longer with every step.
	Interval time.Duration
	// RolloutInterval is Interval while the window knows which Pods begin next: only counts in status wait then. At
	// half, large rollouts spend twice as much on decisions and status; at double, status is noticeably late.
	RolloutInterval time.Duration
	// Begins is how many operations of one kind that no window begins (scale-in, replacement, changes of claims, changes
	// that restart nothing) one decision begins. At half, large CollaSets take more decisions; at double, a decision
	// holds its CollaSet up for longer.
	Begins int
	// Creations is how many Pods one decision creates. At half, status is written more often than users read it; at
	// double, a large CollaSet tells less often how far it is.
	Creations int
	// Next is how many Pods beyond the budget a decision names as next. At half, a fast API server has begun them all
	// before the next decision; at double, a decision about a large CollaSet takes more memory for nothing.
	Next int
}

// DefaultLimits are those of the program as it ships.
func DefaultLimits() Limits {
	return Limits{
		InFlight:        16,
		OursFor:         3 * time.Second,
		HandoverFor:     250 * time.Millisecond,
		Interval:        100 * time.Millisecond,
		RolloutInterval: time.Second,
		Begins:          64,
		Creations:       256,
		Next:            1024,
	}
}
