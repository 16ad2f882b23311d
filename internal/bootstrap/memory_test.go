package bootstrap

import (
	"runtime"
	"runtime/debug"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestMemoryIsGivenBackWhereThereIsEnoughAndLittleToDo(t *testing.T) {
	for name, c := range map[string]struct {
		last, now memory
		want      bool
	}{
		"much is free":                     {now: memory{allocated: 1 << 20, free: idleMemory}, want: true},
		"much is garbage":                  {now: memory{allocated: 1 << 20, free: idleMemory / 2, garbage: idleMemory / 2}, want: true},
		"little is unused":                 {now: memory{allocated: 1 << 20, free: idleMemory / 2}},
		"much was allocated just now":      {now: memory{allocated: busyAllocations + 1, free: 4 * idleMemory}},
		"much was allocated some time ago": {last: memory{allocated: 1 << 40}, now: memory{allocated: 1 << 40, free: idleMemory}, want: true},
	} {
		t.Run(name, func(t *testing.T) {
			given := false
			m := &memoryReturn{read: func() memory { return c.now }, giveBack: func() { given = true }}
			require.Equal(t, c.now, m.look(c.last))
			require.Equal(t, c.want, given)
		})
	}
}

func TestMemoryIsGivenBackOnceAfterWorkWhateverTheCountersSay(t *testing.T) {
	var now memory
	given := 0
	m := &memoryReturn{read: func() memory { return now }, giveBack: func() { given++ }}
	var last memory
	look := func(allocated uint64) int {
		now.allocated += allocated
		last = m.look(last)
		return given
	}
	for range 2 {
		given = 0
		require.Zero(t, look(busyAllocations+1))
		require.Zero(t, look(0), "what is remembered for a while is still there")
		require.Equal(t, 1, look(0))
		for range 10 {
			require.Equal(t, 1, look(1), "a collection at every look costs more than it gives")
		}
	}
}

var ballast []byte

func TestTheRuntimeTellsWhatIsUnused(t *testing.T) {
	ballast = make([]byte, 64<<20)
	before := readMemory()
	ballast = nil
	debug.FreeOSMemory()
	after := readMemory()
	require.GreaterOrEqual(t, after.allocated, before.allocated)
	require.Less(t, after.unused(), uint64(32<<20), "what was given back is not unused")
}

func TestGarbageIsCollectedAsTheHeapAsksUnlessTheEnvironmentSaysWhen(t *testing.T) {
	previous := debug.SetGCPercent(100)
	t.Cleanup(func() { debug.SetGCPercent(previous) })
	t.Setenv("GOGC", "200")
	paceGarbage()
	require.Equal(t, 100, debug.SetGCPercent(100))
	t.Setenv("GOGC", "")
	paceGarbage()
	is := func(least, most int) func() bool {
		return func() bool {
			runtime.GC()
			now := debug.SetGCPercent(100)
			debug.SetGCPercent(now)
			return least <= now && now <= most
		}
	}
	require.Eventually(t, is(garbagePercent+1, mostPercent), time.Minute, time.Millisecond, "little is reachable")
	ballast = make([]byte, 64<<20)
	require.Eventually(t, is(garbagePercent, garbagePercent), time.Minute, time.Millisecond, "much is reachable")
	require.Len(t, ballast, 64<<20)
	ballast = nil
	require.Eventually(t, is(garbagePercent+1, mostPercent), time.Minute, time.Millisecond, "little is reachable again")
}

func TestRoomForGarbage(t *testing.T) {
	for live, want := range map[uint64]int{0: mostPercent, 1: mostPercent, 8 << 20: 300, 24 << 20: 100, 48 << 20: garbagePercent, 1 << 30: garbagePercent} {
		require.Equal(t, want, percentOf(live), "%d bytes", live)
	}
}
