// Package placement says to which shard a namespace belongs, and which replica should hold which shard. It is pure:
// replicas that know the same come to the same, and what they do about it is safe when they do not, because a shard
// is acted on by the holder of its Lease alone.
package placement

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"slices"
	"strconv"
)

// Of is the shard of a namespace, from 0 to shards-1: the first 32 bits of the SHA-256 of its name, modulo shards. It
// never changes: two replicas of different versions would otherwise both own a namespace. shards is at least 1.
func Of(namespace string, shards int) int {
	sum := sha256.Sum256([]byte(namespace))
	return int(uint64(binary.BigEndian.Uint32(sum[:4])) % uint64(shards))
}

// Assign says who should hold each shard: the answer has as many entries as holders, each a member; or "" if there is
// none. holders has for each shard the member that holds it, or "" (or an identity that is no member) if it is to be
// given to another. The order of members does not matter, nor that one is named twice.
//
//   - Every member gets len(holders)/len(members) shards or one more.
//   - As few shards as that allows leave a member that holds them. So whatever is balanced stays as it is.
//   - What has to be given away, and to whom, is told by the rendezvous of shard and member.
func Assign(members, holders []string) []string {
	members = slices.Compact(slices.Sorted(slices.Values(members)))
	target := make([]string, len(holders))
	if len(members) == 0 {
		return target
	}
	held := make(map[string][]int, len(members))
	for shard, holder := range holders {
		if _, member := slices.BinarySearch(members, holder); member {
			held[holder] = append(held[holder], shard)
		}
	}
	room := shares(members, held, len(holders))
	for _, member := range members {
		for _, shard := range dearest(member, held[member], room[member]) {
			target[shard] = member
			room[member]--
		}
	}
	for shard := range target {
		if target[shard] == "" {
			target[shard] = closest(shard, members, room)
			room[target[shard]]--
		}
	}
	return target
}

// shares are how many shards each member gets. One more than others get those that hold most, so that they give away
// least.
func shares(members []string, held map[string][]int, shards int) map[string]int {
	byHeld := slices.SortedStableFunc(slices.Values(members), func(a, b string) int {
		return cmp.Compare(len(held[b]), len(held[a]))
	})
	share := make(map[string]int, len(members))
	for i, member := range byHeld {
		share[member] = shards / len(members)
		if i < shards%len(members) {
			share[member]++
		}
	}
	return share
}

// dearest are the n of a member's shards that score highest with it.
func dearest(member string, shards []int, n int) []int {
	sorted := slices.SortedFunc(slices.Values(shards), func(a, b int) int {
		return cmp.Or(cmp.Compare(score(member, b), score(member, a)), cmp.Compare(a, b))
	})
	return sorted[:min(n, len(sorted))]
}

// closest is the member with room that the shard scores highest with.
func closest(shard int, members []string, room map[string]int) string {
	best, highest := "", uint64(0)
	for _, member := range members {
		if s := score(member, shard); room[member] > 0 && (best == "" || s > highest) {
			best, highest = member, s
		}
	}
	return best
}

// score is the rendezvous of a member and a shard.
func score(member string, shard int) uint64 {
	sum := sha256.Sum256([]byte(strconv.Itoa(shard) + "/" + member))
	return binary.BigEndian.Uint64(sum[:8])
}

// Stage is how far this replica is with a shard.
type Stage int

const (
	// Idle shards have nothing of theirs going on here.
	Idle Stage = iota
	// Taking shards have their Lease asked for.
	Taking
	// Held shards run.
	Held
	// Leaving shards are being stopped, or have been and their Lease still seems to be ours.
	Leaving
)

// Snapshot is what a replica knows when it decides.
type Snapshot struct {
	// Me is this replica; it may be no member (yet, or any more) and then gives everything up.
	Me string
	// Members are the replicas that announce themselves.
	Members []string
	// Holders are, for each shard, the holder of its Lease; "" for none, or if it has run out.
	Holders []string
	// Stages are, for each shard, what goes on here. It is as long as Holders.
	Stages []Stage
}

// Plan is what to begin.
type Plan struct {
	// Take are free shards whose Lease is to be asked for.
	Take []int
	// GiveUp are shards to be stopped and given back, or not to be asked for any more.
	GiveUp []int
}

// Decide says what to begin.
func Decide(s Snapshot) Plan {
	holders := slices.Clone(s.Holders)
	for shard, stage := range s.Stages {
		switch {
		case stage == Held:
			holders[shard] = s.Me
		case s.Holders[shard] == s.Me:
			holders[shard] = "" // no longer ours, or not yet
		default:
		}
	}
	var plan Plan
	for shard, member := range Assign(s.Members, holders) {
		ours := member == s.Me && s.Me != ""
		free := s.Holders[shard] == ""
		switch s.Stages[shard] {
		case Idle:
			if ours && free {
				plan.Take = append(plan.Take, shard)
			}
		case Taking:
			if !ours || !free && s.Holders[shard] != s.Me {
				plan.GiveUp = append(plan.GiveUp, shard)
			}
		case Held:
			if !ours {
				plan.GiveUp = append(plan.GiveUp, shard)
			}
		case Leaving:
		}
	}
	return plan
}
