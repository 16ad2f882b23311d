package placement_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"kusionstack.io/kuperator/internal/shard/placement"
)

// TestOf pins the hash: another one in a later version would give a namespace two owners during an update. The
// figures are those of `printf %s NAME | sha256sum | cut -c1-8`.
func TestOf(t *testing.T) {
	for name, first := range map[string]uint32{"default": 0x37a8eec1, "kube-system": 0x88007f70, "team-a": 0x96c2886c,
		"team-b": 0xe618ceaa} {
		for _, shards := range []int{1, 3, 8, 64} {
			assert.Equal(t, int(first%uint32(shards)), placement.Of(name, shards), "%s of %d", name, shards)
		}
	}
}

// TestNumberedNamespacesSpread: names that differ in a digit are what clusters have.
func TestNumberedNamespacesSpread(t *testing.T) {
	const shards = 8
	count := make([]int, shards)
	for i := range 1000 {
		count[placement.Of(fmt.Sprintf("team-%d", i), shards)]++
	}
	assert.Less(t, slices.Max(count), 2*slices.Min(count), "%v", count)
}

func names(t *rapid.T, label string, least int) []string {
	return rapid.SliceOfNDistinct(rapid.StringMatching(`[a-d][0-9]{1,2}`), least, 7, rapid.ID[string]).Draw(t, label)
}

// drawn are members and holders, some of which are no members.
func drawn(t *rapid.T) (members, holders []string) {
	members = names(t, "members", 1)
	anybody := append(names(t, "strangers", 1), append(slices.Clone(members), "")...)
	return members, rapid.SliceOfN(rapid.SampledFrom(anybody), 1, 20).Draw(t, "holders")
}

func counts(members, target []string) map[string]int {
	count := map[string]int{}
	for _, m := range members {
		count[m] = 0
	}
	for _, m := range target {
		count[m]++
	}
	return count
}

func TestAssignIsBalanced(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		members, holders := drawn(t)
		target := placement.Assign(members, holders)
		require.Len(t, target, len(holders))
		for member, n := range counts(members, target) {
			require.Contains(t, members, member)
			least := len(holders) / len(members)
			require.Contains(t, []int{least, least + 1}, n)
			if len(holders)%len(members) == 0 {
				require.Equal(t, least, n)
			}
		}
	})
}

// TestAssignMovesLeast compares with the least that any balanced distribution needs: a member keeps at most its
// share, and at most as many as remain get one more.
func TestAssignMovesLeast(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		members, holders := drawn(t)
		target := placement.Assign(members, holders)
		moved, surplus, overloaded := 0, 0, 0
		held := counts(members, holders)
		for _, m := range members {
			surplus += max(0, held[m]-len(holders)/len(members))
			if held[m] > len(holders)/len(members) {
				overloaded++
			}
		}
		for shard, holder := range holders {
			if slices.Contains(members, holder) && target[shard] != holder {
				moved++
			}
		}
		require.Equal(t, surplus-min(overloaded, len(holders)%len(members)), moved)
	})
}

func TestAssignIsAFixedPoint(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		members, holders := drawn(t)
		target := placement.Assign(members, holders)
		require.Equal(t, target, placement.Assign(members, target))
	})
}

func TestAssignDoesNotDependOnOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		members, holders := drawn(t)
		shuffled := append(rapid.Permutation(members).Draw(t, "shuffled"), members[0])
		require.Equal(t, placement.Assign(members, holders), placement.Assign(shuffled, holders))
	})
}

func TestNobodyIsAssignedWhereNobodyIs(t *testing.T) {
	require.Equal(t, []string{"", ""}, placement.Assign(nil, []string{"gone", ""}))
}

// fleet is a number of replicas that share Leases and each decide by themselves.
type fleet struct {
	holders []string
	stages  map[string][]placement.Stage
	members []string
	moves   int
}

func (f *fleet) join(name string) {
	f.members = append(f.members, name)
	f.stages[name] = make([]placement.Stage, len(f.holders))
}

// step has one replica decide by what is so now, or by older members, and one thing happen of what it began.
func (f *fleet) step(t *rapid.T, me string, members []string) bool {
	plan := placement.Decide(placement.Snapshot{Me: me, Members: members, Holders: f.holders, Stages: f.stages[me]})
	for _, shard := range plan.GiveUp {
		if f.stages[me][shard] == placement.Held {
			f.moves++
			f.stages[me][shard] = placement.Leaving
		} else {
			f.stages[me][shard] = placement.Idle
		}
	}
	for _, shard := range plan.Take {
		require.Empty(t, f.holders[shard], "only free shards are taken")
		f.stages[me][shard] = placement.Taking
	}
	var open []int
	for shard, stage := range f.stages[me] {
		if stage == placement.Taking || stage == placement.Leaving {
			open = append(open, shard)
		}
	}
	if len(open) == 0 {
		return len(plan.GiveUp) > 0
	}
	shard := rapid.SampledFrom(open).Draw(t, "shard")
	switch {
	case f.stages[me][shard] == placement.Leaving:
		f.holders[shard], f.stages[me][shard] = "", placement.Idle
	case f.holders[shard] == "": // the Lease decides between two who ask
		f.holders[shard], f.stages[me][shard] = me, placement.Held
	default:
		f.stages[me][shard] = placement.Idle
	}
	return true
}

// settle lets replicas act in any order until nothing happens any more.
func (f *fleet) settle(t *rapid.T) {
	for quiet := 0; quiet < len(f.members); {
		quiet = 0
		for _, me := range rapid.Permutation(f.members).Draw(t, "order") {
			if !f.step(t, me, f.members) {
				quiet++
			}
		}
	}
}

// TestFleetSettles: whichever members come and go, in whatever order replicas act, every shard ends with a member,
// balanced; and with steady members nothing that was balanced moves.
func TestFleetSettles(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		shards := rapid.IntRange(1, 12).Draw(t, "shards")
		f := &fleet{holders: make([]string, shards), stages: map[string][]placement.Stage{}}
		f.join("first")
		for i := range rapid.IntRange(1, 6).Draw(t, "changes") {
			stale := slices.Clone(f.members)
			switch {
			case len(f.members) < 2 || rapid.Bool().Draw(t, "join"):
				f.join(fmt.Sprintf("later-%d", i))
			default: // dies: its Leases run out
				gone := rapid.SampledFrom(f.members).Draw(t, "gone")
				f.members = slices.DeleteFunc(f.members, func(m string) bool { return m == gone })
				delete(f.stages, gone)
				for shard, holder := range f.holders {
					if holder == gone {
						f.holders[shard] = ""
					}
				}
			}
			for range rapid.IntRange(0, 3).Draw(t, "steps by an old view") {
				f.step(t, rapid.SampledFrom(f.members).Draw(t, "who"), stale)
			}
			f.settle(t)
			for shard, holder := range f.holders {
				require.Contains(t, f.members, holder)
				require.Equal(t, placement.Held, f.stages[holder][shard])
			}
			count := counts(f.members, f.holders)
			for _, n := range count {
				require.LessOrEqual(t, n-shards/len(f.members), 1)
				require.GreaterOrEqual(t, n, shards/len(f.members))
			}
			before := f.moves
			f.settle(t)
			require.Equal(t, before, f.moves, "what is balanced stays")
		}
	})
}

// TestWhoIsNoMemberGivesUp: a replica that is being stopped takes its name off first.
func TestWhoIsNoMemberGivesUp(t *testing.T) {
	plan := placement.Decide(placement.Snapshot{
		Me: "a", Members: []string{"b"}, Holders: []string{"a", "a", "", "b"},
		Stages: []placement.Stage{placement.Held, placement.Leaving, placement.Taking, placement.Idle},
	})
	assert.Equal(t, placement.Plan{GiveUp: []int{0, 2}}, plan)
	assert.Equal(t, placement.Plan{GiveUp: []int{0}},
		placement.Decide(placement.Snapshot{Me: "a", Holders: []string{"a"}, Stages: []placement.Stage{placement.Held}}))
}

// TestHeldByWhoLeaves: a live Lease of a holder that is no member any more is waited for.
func TestHeldByWhoLeaves(t *testing.T) {
	s := placement.Snapshot{Me: "a", Members: []string{"a"}, Holders: []string{"leaving"},
		Stages: []placement.Stage{placement.Idle}}
	assert.Empty(t, placement.Decide(s))
	s.Holders[0] = ""
	assert.Equal(t, placement.Plan{Take: []int{0}}, placement.Decide(s))
}
