package fault

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	"kusionstack.io/kuperator/internal/testkit/child"
	"kusionstack.io/kuperator/internal/testkit/faultproxy"
	"kusionstack.io/kuperator/internal/testkit/suite"
)

// cell is the components that work in one namespace, and nothing else does.
type cell struct {
	namespace string
	processes map[string]*process
	// lingering are plans that are over and whose objects are still there: no component may touch them any more.
	lingering []*outcome
}

// faulted are the components that each cell has for itself.
func faulted() []string { return append(ofWorkloads(), suite.OperationJob, suite.PodDecoration) }

// ofWorkloads are those of them that have work where there are no OperationJobs and PodDecorations.
func ofWorkloads() []string {
	return []string{suite.CollaSet, suite.PodTransitionRule, suite.Lifecycle, suite.ResourceConsist}
}

func (p *plane) startCell(ctx context.Context, namespace string) (*cell, error) {
	if err := p.namespace(ctx, namespace); err != nil {
		return nil, err
	}
	dir := filepath.Join(p.dir, namespace)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	c := &cell{namespace: namespace, processes: map[string]*process{}}
	for _, component := range faulted() {
		flags := []string{"--namespaces=" + namespace, "--leader-elect=false"}
		switch component {
		case suite.PodTransitionRule:
			flags = append(flags, "--rule-webhook-allow=127.0.0.0/8")
		case suite.ResourceConsist:
			provider, err := p.provider.flags(dir)
			if err != nil {
				return nil, err
			}
			flags = append(append(flags, "--drain-time=50ms"), provider...)
		}
		proc, err := p.startProcess(ctx, dir, component, flags...)
		if err != nil {
			c.stop()
			return nil, err
		}
		c.processes[component] = proc
	}
	return c, nil
}

// narrowBounds are for workloads of four Pods what those of the program are for hundreds: two operations begin by a
// plan, and one update of all workloads is on its way.
var narrowBounds = []sourceChange{
	{"internal/collaset/setplan/limits.go", "		InFlight:        16,", "		InFlight:        1,"},
	{"internal/collaset/setplan/limits.go", "		Begins:          64,", "		Begins:          2,"},
}

// narrowed has the cell's collaset-controller with narrow bounds, or as it ships. It is started again if that is
// another program.
func (p *plane) narrowed(c *cell, narrow bool) {
	program := p.program(suite.CollaSet)
	if narrow {
		program = p.narrow
	}
	if proc := c.processes[suite.CollaSet]; proc.runs() != program {
		proc.replace(program)
	}
}

func (c *cell) stop() {
	for _, p := range c.processes {
		p.stop()
	}
}

// process is a component that is started again whenever it ends, until it is stopped.
type process struct {
	component, path, log string
	args                 []string
	proxy                *faultproxy.Proxy

	mu      sync.Mutex
	running *child.Process // nil while it does not run
	killed  bool           // on purpose
	starts  int
	died    []string // the end of the log, for each time that it ended and was not killed
	ending  bool
	stopped chan struct{}
}

// kill ends it as a crash does, and returns when it is gone.
func (p *process) kill() {
	p.mu.Lock()
	running := p.running
	p.killed = p.killed || running != nil && running.Running()
	p.mu.Unlock()
	if running != nil {
		_ = running.End(syscall.SIGKILL, patience)
	}
}

// busy reports whether it works, or would if it had a core.
func (p *process) busy() bool {
	p.mu.Lock()
	running := p.running
	p.mu.Unlock()
	return running != nil && running.Busy()
}

// runs is the path of its program.
func (p *process) runs() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.path
}

// supervise keeps it running.
func (p *process) supervise() {
	p.stopped = make(chan struct{})
	go func() {
		defer close(p.stopped)
		for p.run() {
			time.Sleep(restartAfter)
			p.proxy.Mend()
		}
	}()
}

// run runs it once, and reports whether it is to run again.
func (p *process) run() bool {
	p.mu.Lock()
	if p.ending {
		p.mu.Unlock()
		return false
	}
	running := &child.Process{Name: p.component, Log: p.log}
	// not for this process: it has all objects of all plans in caches
	environment := append(os.Environ(), "KUBE_CACHE_MUTATION_DETECTOR=true")
	if err := running.Start(p.path, p.args, environment, false); err != nil {
		p.died = append(p.died, err.Error())
		p.mu.Unlock()
		return true
	}
	p.running, p.killed = running, false
	p.starts++
	p.mu.Unlock()
	for running.Running() {
		time.Sleep(5 * time.Millisecond)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.running = nil
	if !p.killed && !p.ending {
		p.died = append(p.died, fmt.Sprintf("%s ended by itself; the end of its log:\n%s", p.component,
			child.LogTail(p.log, 20)))
	}
	return !p.ending
}

// deaths returns, once, why it ended although the test did not kill it.
func (p *process) deaths() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	died := p.died
	p.died = nil
	return died
}

// blunders returns what its log says of what must not happen whatever the faults: panics that were caught, and work
// in namespaces of others.
func (p *process) blunders() []string {
	found, err := child.InLog(p.log, append(slices.Clone(child.Crashes), "unknown namespace for the cache")...)
	if err != nil {
		return []string{err.Error()}
	}
	return found
}

func (p *process) stop() {
	p.mu.Lock()
	p.ending = true
	p.mu.Unlock()
	p.kill()
	<-p.stopped
	_ = p.proxy.Close()
}
