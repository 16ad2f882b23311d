package bootstrap

import (
	"runtime/debug"
	"testing"

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

func TestGarbageIsCollectedSoonerUnlessTheEnvironmentSaysWhen(t *testing.T) {
	previous := debug.SetGCPercent(100)
	t.Cleanup(func() { debug.SetGCPercent(previous) })
	t.Setenv("GOGC", "200")
	collectGarbageSooner()
	require.Equal(t, 100, debug.SetGCPercent(100))
	t.Setenv("GOGC", "")
	collectGarbageSooner()
	require.Equal(t, garbagePercent, debug.SetGCPercent(100))
}
