package bulk

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"

	api "kusionstack.io/kuperator/api/resourceconsist"
)

// TestAPlaceIsEmptyAfterAFullReadingThatCoversIt: one that began before the place was named says nothing of it.
func TestAPlaceIsEmptyAfterAFullReadingThatCoversIt(t *testing.T) {
	now := time.Date(2026, 5, 4, 3, 2, 1, 0, time.UTC)
	options := withDefaults(api.CallOptions{})
	g := newGroup(options, true, func(d time.Duration) time.Duration { return d }, now)
	at := func(place string) bool {
		return g.cleanOf(func(id string) bool { return strings.HasPrefix(id, place+"/") })
	}
	read := func(while func(), found ...api.Held[any]) {
		now = now.Add(time.Minute)
		c := g.next(now)
		require.NotNil(t, c, "a reading is due")
		require.Empty(t, c.ids, "of everything")
		while()
		g.answered(found, nil, now)
	}
	nothing := func() {}
	require.False(t, at("old"), "nothing was read")
	read(nothing)
	require.True(t, at("old"))

	g.readAllAgain(now)
	require.False(t, at("old"), "the reading was of other places")
	read(func() { g.readAllAgain(now) })
	require.False(t, at("old"), "the reading had begun before")
	read(nothing, api.Held[any]{ID: "new/a", State: 1, Serving: true})
	require.True(t, at("old"))
	require.False(t, at("new"), "an employee is there")
	require.False(t, g.cleanOf(func(string) bool { return true }))
}

// TestAMemberThatIsTakenOverIsWishedAgain: what was sent for the one before may still take effect, but it is not tried
// any more; the present Pod of the member must not wait for it.
func TestAMemberThatIsTakenOverIsWishedAgain(t *testing.T) {
	now := epoch
	g := newGroup(withDefaults(api.CallOptions{}), true, func(d time.Duration) time.Duration { return d }, now)
	failing := errors.New("no answer")
	// call makes the next call and ends it; what it says of changes that were made.
	call := func(err error) []api.Change[any] {
		now = now.Add(time.Minute)
		c := g.next(now)
		require.NotNil(t, c)
		if c.verb == read {
			err = nil // nothing is there
		}
		g.answered(nil, err, now)
		return c.changes
	}
	apply := func(err error) []api.Change[any] {
		for range 10 {
			if changes := call(err); len(changes) > 0 {
				return changes
			}
		}
		t.Fatal("nothing is changed")
		return nil
	}
	pod := func(uid string) view {
		return view{key: employeeKey{types.NamespacedName{Namespace: "shop", Name: "web-0"}, types.UID(uid)}, created: now,
			serve: map[string]any{"10.0.0.1": 1}}
	}
	before := pod("1")
	g.look(before, intent{direction: joining}, now)
	call(nil)
	g.register(before, intent{direction: joining}, true, now)
	require.False(t, apply(failing)[0].Remove)
	before.terminating = true
	g.look(before, intent{direction: leaving, arrived: true}, now)
	g.register(before, intent{direction: leaving, arrived: true}, false, now)
	require.True(t, apply(failing)[0].Remove)
	g.forget(before.key.NamespacedName, now)

	after := pod("2")
	for range 10 {
		a := g.look(after, intent{direction: joining}, now)
		require.False(t, a.serving)
		if !a.unknown {
			g.register(after, intent{direction: joining}, true, now)
		}
		if changes := call(nil); len(changes) > 0 {
			require.Equal(t, []api.Change[any]{{ID: "10.0.0.1", State: 1}}, changes)
			return
		}
	}
	t.Fatal("it is never known that the Pod gets no traffic, so it is not asked for")
}

// TestAMemberThatCameWhileLeavingIsReadFirst: what was read before the Pod had it is no ground to let the Pod go.
func TestAMemberThatCameWhileLeavingIsReadFirst(t *testing.T) {
	now := epoch
	g := newGroup(withDefaults(api.CallOptions{}), true, func(d time.Duration) time.Duration { return d }, now)
	v := view{key: employeeKey{types.NamespacedName{Namespace: "shop", Name: "web-0"}, "1"}, created: now,
		terminating: true, invalid: errors.New("no such port")}
	leaves := intent{direction: leaving}
	g.look(v, leaves, now)
	read := func(serving bool) {
		now = now.Add(time.Hour)
		require.NotNil(t, g.next(now))
		g.answered([]api.Held[any]{{ID: "10.0.0.1", State: 1, Serving: serving}}, nil, now)
	}
	read(false) // it should serve, and does not for a reason of its own
	v.invalid, v.serve = nil, map[string]any{"10.0.0.1": 1}
	require.True(t, g.look(v, leaves, now).unknown, "it may have become well since")
	read(true)
	require.True(t, g.look(v, leaves, now).serving)
}

// TestAMemberThatIsHadAgainIsOwnedAgain: of two that die the younger has it, as before it was without for a moment.
func TestAMemberThatIsHadAgainIsOwnedAgain(t *testing.T) {
	now := epoch
	g := newGroup(withDefaults(api.CallOptions{}), true, func(d time.Duration) time.Duration { return d }, now)
	pod := func(name string, age time.Duration, members ...string) view {
		v := view{key: employeeKey{types.NamespacedName{Namespace: "shop", Name: name}, types.UID(name)},
			created: now.Add(-age), terminating: true, serve: map[string]any{}}
		for _, id := range members {
			v.serve[id] = 1
		}
		return v
	}
	leaves := intent{direction: leaving}
	g.look(pod("young", 0, "a"), leaves, now)
	now = now.Add(time.Hour)
	require.NotNil(t, g.next(now))
	g.answered([]api.Held[any]{{ID: "a", State: 1, Serving: true}}, nil, now)
	require.True(t, g.look(pod("young", time.Hour, "a"), leaves, now).serving)
	g.look(pod("young", time.Hour), leaves, now)
	g.look(pod("old", 2*time.Hour, "a"), leaves, now)
	require.True(t, g.look(pod("young", time.Hour, "a"), leaves, now).serving)
}
