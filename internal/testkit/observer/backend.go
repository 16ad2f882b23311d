package observer

import (
	"context"
	"fmt"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// Weighing is one change that a provider of traffic was asked for.
type Weighing struct {
	// Pod is as the API server had it when the provider was asked.
	Pod *corev1.Pod
	// Weight is its share of traffic from now on; 0 is none.
	Weight int
	// Time is when.
	Time time.Time
}

// Weigh judges a change at a provider: a Pod that is operated on gets no traffic.
func (c *Checker) Weigh(w Weighing) {
	s := c.space(w.Pod.Namespace)
	s.checks[Backend]++
	version, _ := strconv.ParseUint(w.Pod.ResourceVersion, 10, 64) // 0 is before everything
	e := Event{ResourceVersion: version, Time: w.Time, Object: w.Pod}
	if w.Weight > 0 && hasKey(w.Pod, operatePrefix) {
		s.report(Backend, e, fmt.Sprintf("was given weight %d while it was operated on", w.Weight))
	}
	s.weights[string(w.Pod.UID)] = append(s.weights[string(w.Pod.UID)], weight{version, w.Weight})
}

// weight is what a Pod has had since a resourceVersion.
type weight struct {
	since  uint64
	weight int
}

// checkBackend judges a Pod that begins to be operated on by what its provider was told before.
func (s *space) checkBackend(obj *corev1.Pod, e Event) {
	told := s.weights[string(obj.UID)]
	if len(told) == 0 {
		return
	}
	s.checks[Backend]++
	last := 0
	for _, w := range told {
		if w.since < e.ResourceVersion {
			last = w.weight
		}
	}
	if last > 0 {
		s.report(Backend, e, fmt.Sprintf("is operated on and has weight %d", last))
	}
}

// Weigh tells the observer, from within a test's provider of traffic and before the provider answers, that it was asked
// to give a Pod a weight. It reads the Pod from the API server; a Pod that is gone is not judged.
func (o *Observer) Weigh(ctx context.Context, namespace, pod string, weight int) error {
	obj, err := o.podNow(ctx, namespace, pod)
	if err != nil || obj == nil {
		return err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.checker.Weigh(Weighing{Pod: obj, Weight: weight, Time: time.Now()})
	return nil
}
