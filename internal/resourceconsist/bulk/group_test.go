package bulk

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	api "kusionstack.io/kuperator/api/resourceconsist"
)

// TestAPlaceIsEmptyAfterAFullReadingThatCoversIt: one that began before the place was named says nothing of it.
func TestAPlaceIsEmptyAfterAFullReadingThatCoversIt(t *testing.T) {
	now := time.Date(2026, 5, 4, 3, 2, 1, 0, time.UTC)
	options := withDefaults(api.BulkOptions{})
	g := newGroup[int](options, true, func(d time.Duration) time.Duration { return d }, now)
	at := func(place string) bool {
		return g.cleanOf(func(id string) bool { return strings.HasPrefix(id, place+"/") })
	}
	read := func(while func(), found ...api.Held[int]) {
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
	read(nothing, api.Held[int]{ID: "new/a", State: 1, Serving: true})
	require.True(t, at("old"))
	require.False(t, at("new"), "somebody is there")
	require.False(t, g.clean())
}
