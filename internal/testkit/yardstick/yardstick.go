// Package yardstick tells how fast the machine computes while something else runs on it: a machine that is shared
// changes its speed by half and more within minutes, and what is compared was not measured in the same second.
package yardstick

import (
	"runtime"
	"slices"
	"sync"
	"time"

	"kusionstack.io/kuperator/internal/testkit/cputime"
)

const (
	// every is how often a piece of work is done: it takes 1 to 2 ms, less than a hundredth of a core.
	every = 250 * time.Millisecond
	// links is the length of the chain that a piece of work follows, through more memory than a core's own cache holds.
	links  = 1 << 19
	pieces = 20_000
	// atOnce is how many pieces are enough for a median.
	atOnce = 25
)

// Yardstick does the same piece of work again and again. Make one with Start.
type Yardstick struct {
	stop, stopped chan struct{}

	mu   sync.Mutex
	took []float64
}

// Start begins. Where the CPU time of a thread is not known, all its laps are 0.
func Start() *Yardstick {
	y := &Yardstick{stop: make(chan struct{}), stopped: make(chan struct{})}
	go y.run()
	return y
}

// Stop ends it.
func (y *Yardstick) Stop() {
	close(y.stop)
	<-y.stopped
}

// Lap returns what one piece of work took since the last lap: milliseconds of CPU, the median. It is 0 if none was
// done.
func (y *Yardstick) Lap() float64 {
	y.mu.Lock()
	defer y.mu.Unlock()
	took := y.took
	y.took = nil
	if len(took) == 0 {
		return 0
	}
	return median(took)
}

func (y *Yardstick) run() {
	defer close(y.stopped)
	runtime.LockOSThread() // whose time is read
	defer runtime.UnlockOSThread()
	w := work{chain: newChain()}
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-y.stop:
			return
		case <-tick.C:
		}
		took, err := w.piece()
		if err != nil {
			return
		}
		y.mu.Lock()
		y.took = append(y.took, took)
		y.mu.Unlock()
	}
}

// Measure does some pieces of work at once and returns what one took: milliseconds of CPU, the median, or 0 where the
// CPU time of a thread is not known. They find their memory in a core's caches, and take a fraction of what laps
// beside other work do.
func Measure() float64 {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	w := work{chain: newChain()}
	took := make([]float64, atOnce)
	for i := range took {
		var err error
		if took[i], err = w.piece(); err != nil {
			return 0
		}
	}
	return median(took)
}

// median sorts some figures, of which there is one at least.
func median(took []float64) float64 {
	slices.Sort(took)
	return took[len(took)/2]
}

// work is what is done piece by piece.
type work struct {
	chain []uint32
	at    uint32
}

// piece does one on the thread that it is called on, and says how many milliseconds of CPU it took.
func (w *work) piece() (float64, error) {
	before, err := cputime.Thread()
	if err != nil {
		return 0, err
	}
	for range pieces {
		w.at = w.chain[w.at]
	}
	after, err := cputime.Thread()
	return (after - before).Seconds() * 1e3, err
}

// newChain is one ring of all its links, in no order that memory is good at.
func newChain() []uint32 {
	const prime = 7919 * 40503 // odd, so it meets every link of a power of two
	chain := make([]uint32, links)
	for i := range uint32(links) {
		chain[i*prime%links] = (i + 1) * prime % links
	}
	return chain
}
