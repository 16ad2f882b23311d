package bench

import (
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"kusionstack.io/kuperator/api/podops"
)

const operatorID, operationType = "restarter", "restart"

// operator is a third party's: it writes the two labels that ask, waits for its permission, and takes one of them back.
type operator struct {
	a         arena
	meter     *meter
	namespace string
	work      chan string
	done      sync.WaitGroup

	mu   sync.Mutex
	ends map[string]bool // Pods whose operation it has finished, or is about to
}

func newOperator(a arena, m *meter, namespace string) *operator {
	o := &operator{a: a, meter: m, namespace: namespace, work: make(chan string, 1<<16), ends: map[string]bool{}}
	for range inFlight {
		o.done.Go(func() {
			for name := range o.work {
				err := a.write(namespace, name, labelled(map[string]any{podops.OperatingPrefix + "/" + operatorID: nil}))
				if err != nil && !apierrors.IsNotFound(err) && a.Context().Err() == nil {
					a.Errorf("finishing the operation on %s: %v", name, err)
				}
			}
		})
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.notify = o.see
	return o
}

// begin asks for an operation.
func (o *operator) begin(name string) error {
	return o.a.write(o.namespace, name, labelled(map[string]any{
		podops.OperatingPrefix + "/" + operatorID:     fmt.Sprint(time.Now().UnixNano()),
		podops.OperationTypePrefix + "/" + operatorID: operationType,
	}))
}

func (o *operator) see(pod *corev1.Pod) {
	if !podops.Allowed(podops.Read(pod), operatorID, operationType) {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.ends[pod.Name] {
		o.ends[pod.Name] = true
		o.work <- pod.Name
	}
}

// finished reports whether the operation was carried out.
func (o *operator) finished(name string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.ends[name]
}

// stop ends the operator; operations under way stay as they are.
func (o *operator) stop() {
	o.meter.mu.Lock()
	o.meter.notify = nil
	o.meter.mu.Unlock()
	close(o.work)
	o.done.Wait()
}
