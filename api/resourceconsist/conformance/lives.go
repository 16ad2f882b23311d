package conformance

import (
	"fmt"
	"math/rand/v2"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// stage is where a Pod is in the framework's rules, as far as an adapter can tell.
type stage string

const (
	// joining: the Pod may serve, and is registered until every employer's backend has it.
	joining stage = "joining"
	// in: every employer's finalizer is on the Pod, which from now on holds back operations and deletion.
	in stage = "in"
	// leaving: an operation is to begin; the Pod is deregistered until no backend has it, and then operated.
	leaving stage = "leaving"
	// dying: the Pod is being deleted; it is deregistered until no backend has it, and then gone.
	dying stage = "dying"
)

// life is one Pod of a random run.
type life struct {
	pod   *corev1.Pod
	stage stage
	// held says which employers' finalizers the Pod has.
	held []bool
}

// community are the Pods of a random run, under the framework's rules.
type community[E client.Object, S comparable] struct {
	*world[E, S]
	seed      uint64
	random    *rand.Rand
	employers []E
	living    []*life
	// free are addresses whose Pods are gone, for others to have.
	free    []string
	born    int
	actions []string
	// faulty is true if the provider is disturbed now.
	faulty bool
	// ended is true if the run found a failure.
	ended bool
}

const (
	livesAtOnce = 8
	actionsEach = 400
)

func lives[E client.Object, S comparable](w *world[E, S]) {
	for _, seed := range w.provider.Seeds {
		fresh := newWorld(w.TB, w.fixture)
		c := &community[E, S]{world: fresh, seed: seed, random: rand.New(rand.NewPCG(seed, seed))}
		c.employers = []E{fresh.employer(namespace, "web"), fresh.employer(namespace, "admin")}
		for range actionsEach {
			if c.step(); c.ended || w.Failed() {
				return
			}
		}
		c.settle()
	}
}

// step takes one action at random: most are a look of the framework at one Pod.
func (c *community[E, S]) step() {
	switch n := c.random.IntN(100); {
	case n < 8 && len(c.living) < livesAtOnce:
		c.birth()
	case n < 14:
		c.send(leaving)
	case n < 18:
		c.send(dying)
	case n < 20:
		c.vanish()
	case n < 27:
		c.disturb()
	case n < 28 && c.moves():
		c.note("the adapter is restarted")
		c.restart()
	case len(c.living) > 0:
		c.visit(c.living[c.random.IntN(len(c.living))])
	}
}

func (c *community[E, S]) note(format string, arguments ...any) {
	c.actions = append(c.actions, fmt.Sprintf(format, arguments...))
}

// wrong ends the run and tells what led to it.
func (c *community[E, S]) wrong(format string, arguments ...any) {
	c.Helper()
	const last = 15
	c.ended = true
	c.Errorf("seed %d: %s. Before: %q", c.seed, fmt.Sprintf(format, arguments...), c.actions[max(0, len(c.actions)-last):])
}

func (c *community[E, S]) birth() {
	c.born++
	ip := address(c.born)
	if n := len(c.free); n > 0 {
		ip, c.free = c.free[n-1], c.free[:n-1]
	}
	l := &life{pod: c.pod(namespace, fmt.Sprintf("web-%d", c.born), ip), stage: joining,
		held: make([]bool, len(c.employers))}
	c.living = append(c.living, l)
	c.note("%s is born at %s", l.pod.Name, ip)
}

// send begins an operation or a deletion of a Pod that is in.
func (c *community[E, S]) send(to stage) {
	for _, l := range c.living {
		if l.stage == in {
			l.stage = to
			c.note("%s is %s", l.pod.Name, to)
			return
		}
	}
}

// vanish takes a Pod away without a word, where its members can be swept. Its address stays unused until they are.
func (c *community[E, S]) vanish() {
	if c.faulty || len(c.living) == 0 || !c.moves() {
		return
	}
	i := c.random.IntN(len(c.living))
	l, left := c.living[i], slices.Delete(slices.Clone(c.living), i, i+1)
	c.living = left
	c.note("%s vanishes", l.pod.Name)
	for _, e := range c.employers {
		c.eventually("members of a Pod that is gone are removed", func() string {
			if err := c.sweep(c.Context(), e, c.podsOf(left)); err != nil {
				return err.Error()
			}
			if c.serves(e, l.pod) {
				return fmt.Sprintf(
					"%s is still sent traffic by %s: Read without ids has to return all members that the adapter may change",
					l.pod.Name, e.GetName())
			}
			return ""
		})
	}
	c.free = append(c.free, l.pod.Status.PodIP)
}

func (c *community[E, S]) podsOf(lives []*life) []*corev1.Pod {
	var pods []*corev1.Pod
	for _, l := range lives {
		pods = append(pods, l.pod)
	}
	return pods
}

// disturb makes the provider misbehave in one way, or in none.
func (c *community[E, S]) disturb() {
	c.mend()
	switch n := c.random.IntN(8); {
	case n == 0 && c.provider.Fail != nil:
		c.note("the provider fails")
		c.provider.Fail(true)
	case n == 1 && c.provider.Throttle != nil:
		c.note("the provider throttles")
		c.provider.Throttle(true)
	case n == 2 && c.provider.Hold != nil:
		c.note("the provider holds changes")
		c.provider.Hold(true)
	case n == 3 && c.provider.FailFor != nil && len(c.living) > 0:
		bad := c.living[c.random.IntN(len(c.living))].pod
		c.note("the provider fails for %s", bad.Name)
		c.provider.FailFor(bad)
	default:
		c.note("the provider works")
		return
	}
	c.faulty = true
}

func (c *community[E, S]) mend() {
	c.faulty = false
	if c.provider.Fail != nil {
		c.provider.Fail(false)
	}
	if c.provider.Throttle != nil {
		c.provider.Throttle(false)
	}
	if c.provider.Hold != nil {
		c.provider.Hold(false)
	}
	if c.provider.FailFor != nil {
		c.provider.FailFor()
	}
}

// visit does for one Pod what the framework does: it asks every backend, makes the calls that are due, and lets the Pod
// go on when no call is.
func (c *community[E, S]) visit(l *life) {
	for i, e := range c.employers {
		a, err := c.look(e, l.pod)
		switch {
		case err != nil: // not known: the Pod neither joins nor leaves
		case l.stage == joining && a.complete:
			l.held[i] = true
		case l.stage == joining:
			c.note("%s is registered with %s: %s", l.pod.Name, e.GetName(), outcome(c.register(c.Context(), e, l.pod)))
		case l.stage == in:
		case a.serving:
			c.note("%s is deregistered from %s: %s", l.pod.Name, e.GetName(), outcome(c.deregister(c.Context(), e, l.pod)))
		default:
			l.held[i] = false
		}
	}
	switch {
	case l.stage == joining && !slices.Contains(l.held, false):
		l.stage = in
		c.note("%s is in", l.pod.Name)
	case l.stage == leaving && !slices.Contains(l.held, true):
		c.operate(l, "operated on")
		l.stage = joining
	case l.stage == dying && !slices.Contains(l.held, true):
		c.operate(l, "gone")
		c.free = append(c.free, l.pod.Status.PodIP)
		c.living = slices.DeleteFunc(c.living, func(o *life) bool { return o == l })
	}
}

func outcome(err error) string {
	if err == nil {
		return "accepted"
	}
	return err.Error()
}

// operate is where harm would be done.
func (c *community[E, S]) operate(l *life, how string) {
	for _, e := range c.employers {
		if c.serves(e, l.pod) {
			c.wrong("%s is %s while %s sends it traffic", l.pod.Name, how, e.GetName())
		}
	}
	c.note("%s is %s", l.pod.Name, how)
}

// settle lets the provider work and waits until every Pod is in service or gone.
func (c *community[E, S]) settle() {
	c.mend()
	c.note("the provider works")
	c.eventually(fmt.Sprintf("seed %d: all Pods are in or gone", c.seed), func() string {
		waiting := ""
		for _, l := range slices.Clone(c.living) {
			if c.visit(l); l.stage != in && slices.Contains(c.living, l) {
				waiting = fmt.Sprintf("%s is %s", l.pod.Name, l.stage)
			}
		}
		return waiting
	})
	for _, l := range c.living {
		for _, e := range c.employers {
			if !c.serves(e, l.pod) {
				c.wrong("%s is in, and %s sends it no traffic", l.pod.Name, e.GetName())
			}
		}
	}
}
