package bootstrap

import (
	"context"
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	ctrl "sigs.k8s.io/controller-runtime"
)

const (
	// garbagePercent is how much a program's heap grows, as a part of what is reachable, before garbage is collected. Go's own 100
	// has a cache of 40 MB cost 80. The environment variable GOGC changes it, as it does in every Go program.
	garbagePercent = 50
	// roomAtLeast is how much a program allocates between two collections at least, in bytes. Of a heap of 7 MB the half is so little
	// that collections took a quarter of the CPU of a rollout. What is not used afterwards is given back.
	roomAtLeast = 24 << 20
	// mostPercent bounds what that is as a part of a heap that is nearly empty.
	mostPercent = 800
	// lookAtMemory is how often memory that nobody uses is looked for.
	lookAtMemory = 10 * time.Second
	// idleMemory is how much of it is given back at a time, in bytes. Each time costs a collection.
	idleMemory = 2 << 20
	// busyAllocations is how much is allocated between two looks where memory is about to be used again, in bytes.
	busyAllocations = 8 << 20
	// restingLooks is how many looks in a row find little to do before garbage is collected once whatever there seems to be of it: what is
	// remembered for some seconds after work (podcache.Memo) becomes garbage that no counter tells of until the next collection.
	restingLooks = 2
)

// paceGarbage has garbage collected when a heap has grown by garbagePercent, or by roomAtLeast if that is more.
func paceGarbage() {
	if os.Getenv("GOGC") == "" {
		(&pace{}).keep()
	}
}

// pace follows the heap. It is used by one goroutine at a time.
type pace struct{ percent int }

// keep sets the pace now and after each collection.
func (p *pace) keep() {
	live := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	metrics.Read(live)
	if percent := percentOf(live[0].Value.Uint64()); p.percent == 0 || max(percent, p.percent)*7 > min(percent, p.percent)*8 { // to set it stops the program for a moment
		debug.SetGCPercent(percent)
		p.percent = percent
	}
	collected := new(*pace)
	runtime.AddCleanup(collected, (*pace).keep, p)
}

// percentOf is the percentage for a heap of which so many bytes are reachable, 0 for not known yet.
func percentOf(live uint64) int {
	if live == 0 {
		return mostPercent
	}
	return max(garbagePercent, int(min(mostPercent, roomAtLeast*100/live))) //nolint:gosec // it is small
}

// addMemoryReturn gives memory back that was needed to fill the caches, or for much work, once there is little work. Go does so by
// itself, but keeps what the heap may grow to.
func addMemoryReturn(mgr ctrl.Manager) error {
	return mgr.Add(&memoryReturn{read: readMemory, giveBack: debug.FreeOSMemory})
}

// memoryReturn runs on standbys too.
type memoryReturn struct {
	read     func() memory
	giveBack func()
	// resting is how many looks in a row have found little to do.
	resting int
}

// NeedLeaderElection implements manager.LeaderElectionRunnable.
func (*memoryReturn) NeedLeaderElection() bool { return false }

// Start implements manager.Runnable.
func (m *memoryReturn) Start(ctx context.Context) error {
	var last memory
	wait.UntilWithContext(ctx, func(context.Context) { last = m.look(last) }, lookAtMemory)
	return nil
}

// look gives memory back if little was allocated since the last look, and there is enough of it or the rest has just begun.
func (m *memoryReturn) look(last memory) memory {
	now := m.read()
	if now.allocated-last.allocated > busyAllocations {
		m.resting = 0
		return now
	}
	m.resting++
	if now.unused() >= idleMemory || m.resting == restingLooks {
		m.giveBack()
	}
	return now
}

// memory is what the runtime says of the heap, in bytes.
type memory struct {
	// allocated in all since the start.
	allocated uint64
	// free is mapped, in use by nothing and not given back; garbage is what was allocated and not freed, less what was reachable when
	// garbage was last collected.
	free, garbage uint64
}

func (m memory) unused() uint64 { return m.free + m.garbage }

func readMemory() memory {
	samples := []metrics.Sample{
		{Name: "/gc/heap/allocs:bytes"}, {Name: "/memory/classes/heap/free:bytes"},
		{Name: "/memory/classes/heap/objects:bytes"}, {Name: "/gc/heap/live:bytes"},
	}
	metrics.Read(samples)
	m := memory{allocated: samples[0].Value.Uint64(), free: samples[1].Value.Uint64()}
	if objects, live := samples[2].Value.Uint64(), samples[3].Value.Uint64(); objects > live {
		m.garbage = objects - live
	}
	return m
}
