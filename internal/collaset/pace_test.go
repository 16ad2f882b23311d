package collaset

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"
	testingclock "k8s.io/utils/clock/testing"
	"pgregory.net/rapid"

	"kusionstack.io/kuperator/internal/collaset/core"
)

// paced plays CollaSets that are being updated at one pace.
type paced struct {
	*pace
	clock *testingclock.FakeClock
	flows map[types.NamespacedName]*flow
	// begun are the Pods that the pace has begun, in their order, and under those that hold a place as far as is known.
	begun []types.NamespacedName
	under map[types.UID]bool
	look  time.Time // when the pace wants to be looked at; zero for never
}

func newPaced(limit int) *paced {
	c := testingclock.NewFakeClock(time.Unix(1_700_000_000, 0))
	p := &paced{pace: newPace(limit, c), clock: c, flows: map[types.NamespacedName]*flow{}, under: map[types.UID]bool{}}
	p.start(func(pod types.NamespacedName) {
		p.begun = append(p.begun, pod)
		p.under[types.UID(pod.String())] = true
	}, func(wait time.Duration) {
		if at := c.Now().Add(wait); p.look.IsZero() || at.Before(p.look) {
			p.look = at
		}
	})
	return p
}

// passes has time pass, and the pace looked at when it wants to be.
func (p *paced) passes(d time.Duration) {
	for end := p.clock.Now().Add(d); ; {
		if p.look.IsZero() || p.look.After(end) {
			p.clock.SetTime(end)
			return
		}
		p.clock.SetTime(p.look)
		p.look = time.Time{}
		p.pace.look()
	}
}

// decide makes a decision about a CollaSet of which so many Pods are left to begin and so many may be under way, and says how many it began.
func (p *paced) decide(set string, left, most int) (begun int) {
	name := types.NamespacedName{Namespace: "ns", Name: set}
	f := p.flows[name]
	if f == nil {
		f = &flow{}
		p.flows[name] = f
	}
	p.giveBack(f.hold()...)
	room, comes := p.keep(name)
	if comes {
		room = p.admit(min(left, most))
	}
	begun = min(left, most, room)
	var pods []types.UID
	order := &core.Standing{Room: max(0, most-begun)}
	for i := range left {
		pod := fmt.Sprintf("%s-%d", set, left-i)
		uid := types.UID("ns/" + pod)
		switch {
		case i < begun:
			pods = append(pods, uid)
			p.under[uid] = true
		default:
			order.Next = append(order.Next, core.NextPod{Name: pod, UID: uid})
		}
	}
	f.give(order)
	p.decided(name, f, room, pods)
	return begun
}

// underOf are a CollaSet's Pods that are under way, in order.
func (p *paced) underOf(set string) (under []types.UID) {
	for pod := range p.under {
		if strings.HasPrefix(string(pod), "ns/"+set+"-") {
			under = append(under, pod)
		}
	}
	slices.Sort(under)
	return under
}

// comesBack has the first of a CollaSet's Pods that are under way serve again.
func (p *paced) comesBack(set string) bool {
	under := p.underOf(set)
	if len(under) == 0 {
		return false
	}
	delete(p.under, under[0])
	p.back(p.flows[types.NamespacedName{Namespace: "ns", Name: set}], under[0])
	return true
}

// begunOf counts what the pace has begun of each CollaSet, by the first letter of its name.
func (p *paced) begunOf() map[string]int {
	of := map[string]int{}
	for _, pod := range p.begun {
		of[pod.Name[:1]]++
	}
	return of
}

func TestWhatIsSmallIsDoneSoon(t *testing.T) {
	p := newPaced(4)
	require.Equal(t, 4, p.decide("large", 100, 52))
	require.Equal(t, 4, p.decide("small", 10, 52), "it has none yet")
	require.Equal(t, 0, p.decide("other", 20, 52), "twice the limit is the end")
	require.Empty(t, p.begun)
	require.True(t, p.comesBack("large"))
	require.Equal(t, map[string]int{"l": 1}, p.begunOf(), "one for those that went before it")
	for range 3 {
		require.True(t, p.comesBack("large"))
	}
	require.Len(t, p.begun, 1, "until there are no more than usually")
	for range 8 {
		require.True(t, p.comesBack("small"))
	}
	require.Equal(t, map[string]int{"s": 5, "l": 3}, p.begunOf(), "what has fewest left goes first, and each fourth time who waits for longest")
}

func TestPlacesRunOut(t *testing.T) {
	p := newPaced(2)
	require.Equal(t, 2, p.decide("slow", 2, 52))
	require.Equal(t, 2, p.decide("waits", 5, 52))
	p.passes(core.FreshFor - time.Millisecond)
	require.Empty(t, p.begun)
	p.passes(time.Millisecond)
	require.Len(t, p.begun, 2, "it is looked at in time")
	p.handedOver("ns/waits-3")
	p.passes(core.HandedOverFor)
	require.Len(t, p.begun, 3, "a Pod that is changed waits for its kubelet")
	p.handedOver("nobody's")
	p.passes(time.Hour)
	taken, waiting := p.counts()
	require.Zero(t, taken, "all come back")
	require.Zero(t, waiting)
}

func TestARoomOfItsOwn(t *testing.T) {
	p := newPaced(10)
	require.Equal(t, 2, p.decide("one", 9, 2))
	require.Empty(t, p.begun, "no more than its own limit lets")
	p.passes(core.FreshFor)
	require.Empty(t, p.begun, "places that run out do not change that")
	require.True(t, p.comesBack("one"))
	require.Len(t, p.begun, 1)
}

func TestPlacesAreKeptForADecision(t *testing.T) {
	p := newPaced(3)
	for range 10 {
		kept, comes := p.keep(types.NamespacedName{Name: "at rest"})
		require.Zero(t, kept, "most decisions begin nobody")
		require.True(t, comes)
	}
	require.Equal(t, 3, p.admit(10))
	require.Equal(t, 2, p.admit(2))
	require.Equal(t, 1, p.admit(10), "twice the limit")
	require.Equal(t, 0, p.decide("beside", 5, 52))
	require.Empty(t, p.begun)
	for i, kept := range []int{3, 2, 1} {
		p.decided(types.NamespacedName{Name: fmt.Sprint(i)}, &flow{}, kept, nil)
	}
	require.Len(t, p.begun, 3, "what they did not need goes to others")
	p.forget(types.NamespacedName{Namespace: "ns", Name: "beside"})
	p.passes(core.FreshFor)
	require.Len(t, p.begun, 3, "a CollaSet that is gone has nobody begun")
}

// TestThePace plays CollaSets that are decided about, Pods that come back, take long or fail to be begun, in any order.
func TestThePace(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		limit := rapid.IntRange(1, 8).Draw(t, "places")
		p := newPaced(limit)
		sets := []string{"a", "b", "c", "d", "e"}
		left, most := map[string]int{}, map[string]int{}
		for _, set := range sets {
			left[set], most[set] = rapid.IntRange(0, 20).Draw(t, "Pods of "+set), rapid.IntRange(1, 6).Draw(t, "limit of "+set)
		}
		seen := 0
		counted := func() {
			for _, pod := range p.begun[seen:] {
				left[pod.Name[:1]]--
			}
			seen = len(p.begun)
		}
		decide := func(set string) {
			left[set] -= p.decide(set, left[set], max(0, most[set]-len(p.underOf(set))))
		}
		for range rapid.IntRange(5, 60).Draw(t, "events") {
			set := rapid.SampledFrom(sets).Draw(t, "set")
			switch rapid.IntRange(0, 3).Draw(t, "what") {
			case 0:
				decide(set)
			case 1, 2:
				p.comesBack(set)
			case 3:
				p.passes(rapid.SampledFrom([]time.Duration{100 * time.Millisecond, core.FreshFor}).Draw(t, "time"))
			}
			counted()
			require.LessOrEqual(t, len(p.places), 2*limit, "never more places than there are")
			p.pace.look()
			if waits := p.pace.next(false); waits != nil {
				require.LessOrEqual(t, p.free(), 0, "%s waits while a place is free", waits.set)
				require.False(t, p.look.IsZero(), "somebody looks when a place runs out")
			}
		}
		for round := 0; ; round++ {
			require.Less(t, round, 500, "all come to their end: %v", left)
			rest := 0
			for _, set := range sets {
				for p.comesBack(set) {
				}
				counted()
				decide(set)
				counted()
				rest += left[set]
			}
			if rest == 0 {
				break
			}
			p.passes(time.Second)
		}
	})
}

// TestNobodyWaitsForEver has small CollaSets come all the time, each of which goes before the large one.
func TestNobodyWaitsForEver(t *testing.T) {
	p := newPaced(2)
	require.Equal(t, 2, p.decide("large", 500, 52))
	before := 0
	for i := range 40 {
		small := fmt.Sprintf("small%d", i)
		before += p.decide(small, 2, 52)
		require.True(t, p.comesBack("large") || p.comesBack(small))
		for p.comesBack(small) {
		}
	}
	of := p.begunOf()
	require.GreaterOrEqual(t, of["l"], (before+of["s"])/fairTurn, "%v, and %d by decisions", of, before)
}
