package fault

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
	"kusionstack.io/kuperator/internal/testkit/faultproxy"
)

// scenario is what users do: a setup that is never faulted, and steps that are. Both return when what they asked for
// has come.
type scenario struct {
	name         string
	setup, steps func(*play) error
	// longest are steps that come to as much work as the others may where a controller sees them late. What is written
	// is compared with what they take; nil means the steps.
	longest func(*play) error
	// components are those whose writes are faulted; nil means those of a cell.
	components []string
	// anyRestarts is true if it is chance which Pods are restarted.
	anyRestarts bool
	// anyInstances is true if it is chance which instance IDs Pods have in the end: what gives an ID back is not waited
	// for.
	anyInstances bool
	// narrow has a collaset-controller that lets few Pods begin at a time, so that the others wait for the window.
	narrow bool
}

// play is one run of a scenario.
type play struct {
	ctx      context.Context
	scenario scenario
	plane    *plane
	cell     *cell
	prefix   string

	mu sync.Mutex
	// writes are the components' writes about objects of this play since the steps began, in the order in which they came.
	writes []written
	began  time.Time // of the steps
	last   time.Time // when the last write came
	after  []func()  // ends what the play started besides objects
}

// written is a write by one of the components.
type written struct {
	component, key string
	at             time.Time
}

// name is that of an object of the play.
func (p *play) name(plain string) string { return p.prefix + "-" + plain }

// user retries what a user asks for while webhook-server is away: the API server refuses it meanwhile.
func (p *play) user(ask func() error) error {
	for deadline := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		err := ask()
		if err == nil || time.Now().After(deadline) || !retriable(err) {
			return err
		}
	}
}

func retriable(err error) bool {
	return apierrors.IsInternalError(err) || apierrors.IsConflict(err) || apierrors.IsServerTimeout(err) ||
		apierrors.IsTimeout(err) || apierrors.IsTooManyRequests(err) && !strings.Contains(err.Error(), "out of service")
}

func (p *play) create(objects ...client.Object) error {
	for _, o := range objects {
		o.SetNamespace(p.cell.namespace)
		if err := p.user(func() error { return p.plane.client.Create(p.ctx, o) }); err != nil &&
			!apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("creating %T %s: %w", o, o.GetName(), err)
		}
	}
	return nil
}

// patch changes an object with a JSON merge patch.
func (p *play) patch(o client.Object, plain string, change map[string]any) error {
	body, err := json.Marshal(change)
	if err != nil {
		return err
	}
	o.SetNamespace(p.cell.namespace)
	o.SetName(p.name(plain))
	return p.user(func() error { return p.plane.client.Patch(p.ctx, o, client.RawPatch(types.MergePatchType, body)) })
}

func (p *play) spec(set string, change map[string]any) error {
	return p.patch(&appsv1alpha1.CollaSet{}, set, map[string]any{"spec": change})
}

func (p *play) image(set, image string) error {
	return p.spec(set,
		map[string]any{"template": map[string]any{"spec": map[string]any{"containers": []any{map[string]any{"name": "main",
			"image": image}}}}})
}

func (p *play) scale(set string, n int) error { return p.spec(set, map[string]any{"replicas": n}) }

// labelPod sets labels of a Pod, named in full; nil removes.
func (p *play) labelPod(pod *corev1.Pod, labels map[string]any) error {
	body, err := json.Marshal(map[string]any{"metadata": map[string]any{"labels": labels}})
	if err != nil {
		return err
	}
	return p.user(func() error {
		return p.plane.client.Patch(p.ctx, pod.DeepCopy(), client.RawPatch(types.MergePatchType, body))
	})
}

func (p *play) delete(o client.Object, plain string) error {
	o.SetNamespace(p.cell.namespace)
	o.SetName(p.name(plain))
	return p.user(func() error { return client.IgnoreNotFound(p.plane.client.Delete(p.ctx, o)) })
}

func (p *play) await(what string, check func(*state) error) error {
	return p.plane.view.await(p.ctx, p.prefix, what, check)
}

// serving waits until a workload has n Pods, all in service with the image, and nothing is left of an operation.
func (p *play) serving(workload string, n int, image string) error {
	return p.await(fmt.Sprintf("%d Pods of %s to serve %s", n, workload, image),
		func(s *state) error { return serves(s, workload, n, image) })
}

func serves(s *state, workload string, n int, image string) error {
	pods := podsOf(s, workload)
	if len(pods) != n {
		return fmt.Errorf("there are %d Pods", len(pods))
	}
	for _, pod := range pods {
		v := podops.Read(pod)
		if pod.DeletionTimestamp != nil || pod.Spec.Containers[0].Image != image || !v.Ready || !v.ServiceAvailable() ||
			len(podops.Operations(v)) > 0 {
			return fmt.Errorf("Pod %s with image %s: terminating %t, ready %t, in service %t, operations %v", pod.Name,
				pod.Spec.Containers[0].Image,
				pod.DeletionTimestamp != nil, v.Ready, v.ServiceAvailable(), podops.Operations(v))
		}
	}
	set, ok := get[*appsv1alpha1.CollaSet](s, workload)
	if ok && (set.Status.ObservedGeneration != set.Generation || int(set.Status.AvailableReplicas) != n ||
		int(set.Status.Replicas) != n || set.Status.TerminatingReplicas != 0) {
		return errors.New("its status does not say so yet")
	}
	return nil
}

// idle waits until no component has written anything for a while.
func (p *play) idle(d time.Duration) error {
	ctx, cancel := context.WithTimeout(p.ctx, patience)
	defer cancel()
	for {
		p.mu.Lock()
		rest := d - time.Since(p.last)
		p.mu.Unlock()
		if rest <= 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the components do not come to rest: %v", p.kinds())
		case <-time.After(rest):
		}
	}
}

// observe counts the writes from now on that are about the play, until the returned function is called.
func (p *play) observe() func() {
	p.last = time.Now()
	var armed []*faultproxy.Armed
	for _, proc := range p.processes() {
		armed = append(armed, proc.proxy.Arm(faultproxy.Fault{Action: faultproxy.Observe,
			Match: faultproxy.Match{Where: p.own}, Call: func(w faultproxy.Write) {
				p.mu.Lock()
				defer p.mu.Unlock()
				p.last = time.Now()
				p.writes = append(p.writes, written{proc.component, w.Key(), p.last})
			}}))
	}
	return func() {
		for _, a := range armed {
			a.Disarm()
		}
	}
}

// processes are those that may write about the play.
func (p *play) processes() []*process {
	all := []*process{p.plane.webhook}
	for _, component := range faulted() {
		all = append(all, p.cell.processes[component])
	}
	return all
}

// own reports whether a write is about an object of the play.
func (p *play) own(w faultproxy.Write) bool { return prefixOf(w.Name) == p.prefix }

// ownWrites are those that a process made about the play's objects, with their answers.
func (p *play) ownWrites(proc *process) []faultproxy.Write {
	return slices.DeleteFunc(proc.proxy.Writes(), func(w faultproxy.Write) bool { return !p.own(w) })
}

// begin forgets the writes of the setup.
func (p *play) begin() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.writes, p.began = nil, time.Now()
}

// counts are the writes since the steps began, by component and key.
func (p *play) counts() map[string]map[string]int {
	p.mu.Lock()
	defer p.mu.Unlock()
	counts := map[string]map[string]int{}
	for _, w := range p.writes {
		if counts[w.component] == nil {
			counts[w.component] = map[string]int{}
		}
		counts[w.component][w.key]++
	}
	return counts
}

// kinds are the writes as text.
func (p *play) kinds() []string {
	var lines []string
	for component, keys := range p.counts() {
		for key, n := range keys {
			lines = append(lines, fmt.Sprintf("%s: %d %s", component, n, key))
		}
	}
	slices.Sort(lines)
	return lines
}

// told are the writes of a component since the steps began, each with its answer.
func (p *play) told(component string) []string {
	var lines []string
	for _, proc := range p.processes() {
		if proc.component != component {
			continue
		}
		for _, w := range p.ownWrites(proc) {
			if !w.At.Before(p.began) {
				lines = append(lines, fmt.Sprintf("%s %s", w.At.Sub(p.began).Round(time.Millisecond), w))
			}
		}
	}
	return lines
}

// since are the writes after a moment.
func (p *play) since(moment time.Time) []written {
	p.mu.Lock()
	defer p.mu.Unlock()
	var later []written
	for _, w := range p.writes {
		if w.at.After(moment) {
			later = append(later, w)
		}
	}
	return later
}

// clear deletes all that the play made. It does not wait.
func (p *play) clear() error {
	for _, after := range p.after {
		after()
	}
	now, _ := p.plane.view.state(p.prefix)
	var errs []error
	for _, o := range now.objects {
		switch o.(type) {
		case *appsv1alpha1.PodTransitionRule, *corev1.Service, *appsv1alpha1.CollaSet, *appsv1alpha1.OperationJob,
			*appsv1alpha1.PodDecoration:
			errs = append(errs, p.user(func() error { return client.IgnoreNotFound(p.plane.client.Delete(p.ctx, o)) }))
		}
	}
	return errors.Join(errs...)
}

// cleared waits until nothing is left of the play. What only users may delete it deletes: claims that are retained, and
// Pods without an owner.
func (p *play) cleared() error {
	err := p.await("everything of the plan to be gone", func(s *state) error {
		if len(s.objects) == 0 {
			if n := p.plane.provider.members(p.prefix); n > 0 {
				return fmt.Errorf("the provider still has %d Pods", n)
			}
			return nil
		}
		if len(these[*appsv1alpha1.CollaSet](s)) == 0 {
			for _, o := range s.objects {
				_, claim := o.(*corev1.PersistentVolumeClaim)
				pod, isPod := o.(*corev1.Pod)
				if claim && len(o.GetOwnerReferences()) == 0 && o.GetDeletionTimestamp() == nil || isPod &&
					len(pod.OwnerReferences) == 0 && pod.DeletionTimestamp == nil {
					if err := client.IgnoreNotFound(p.plane.client.Delete(p.ctx, o, client.GracePeriodSeconds(0))); err != nil {
						return err
					}
				}
			}
		}
		return fmt.Errorf("%d objects are left:\n%s", len(s.objects), strings.Join(s.snapshot(p.scenario), "\n"))
	})
	if err == nil {
		p.plane.view.forget(p.prefix)
	}
	return err
}
