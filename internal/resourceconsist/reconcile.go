package resourceconsist

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"kusionstack.io/kuperator/api/podops"
	api "kusionstack.io/kuperator/api/resourceconsist"
	"kusionstack.io/kuperator/internal/resourceconsist/bulk"
	"kusionstack.io/kuperator/internal/resourceconsist/traffic"
	"kusionstack.io/kuperator/internal/writes"
)

// +kubebuilder:rbac:groups="",resources=pods,verbs=get;list;watch;patch
// +kubebuilder:rbac:groups="",resources=services,verbs=get;list;watch;patch
// +kubebuilder:rbac:groups=discovery.k8s.io,resources=endpointslices,verbs=get;list;watch
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch

// Reconcile does what is due on one Pod.
func (c *podController[E]) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	c.started.Store(true)
	wait, err := c.writes.Unobserved(ctx, req.NamespacedName) // before the Pod is read: the cache may catch up in between
	if err != nil {
		return reconcile.Result{}, err
	}
	pod, err := c.read(ctx, req.NamespacedName)
	if err != nil {
		return reconcile.Result{}, err
	}
	if pod == nil {
		c.records.forget(req.NamespacedName)
		c.standings.reportPod(req.NamespacedName, nil)
		c.writes.Forget(req.NamespacedName)
		if !c.strays.has(req.NamespacedName) {
			c.forget(req.NamespacedName)
		}
		return reconcile.Result{}, nil
	}
	if wait > 0 { // an old view only asks for what was already written
		return reconcile.Result{RequeueAfter: wait}, nil
	}
	said := map[subject]metav1.Condition{}
	snapshot, observeErr := c.observe(ctx, pod, said)
	plan := traffic.Decide(snapshot)
	c.report(pod, plan)
	c.clashes(plan, said)
	moveErr := c.move(ctx, pod, plan.Moves, said)
	c.standings.reportPod(req.NamespacedName, said)
	result, writeErr := c.write(ctx, pod, snapshot.Pod, plan)
	if err := errors.Join(observeErr, moveErr, writeErr); err != nil {
		return reconcile.Result{}, err
	}
	return result, nil
}

// forget tells the adapters that there is no such Pod any more, or none that they have to do with.
func (c *podController[E]) forget(key types.NamespacedName) {
	for _, a := range c.adapters {
		if f, ok := a.(bulk.Forgetter); ok {
			f.Forget(key)
		}
	}
}

// read returns the Pod from the cache, or from the API server if it has left the cache without being deleted. Nil means
// that there is nothing to do.
func (c *podController[E]) read(ctx context.Context, key types.NamespacedName) (*corev1.Pod, error) {
	pod := &corev1.Pod{}
	err := c.client.Get(ctx, key, pod)
	if err == nil {
		c.strays.drop(key)
		return pod, nil
	}
	if !apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("reading pod %s from the cache: %w", key, err)
	}
	if !c.strays.has(key) {
		return nil, nil
	}
	if err := c.live.Get(ctx, key, pod); err != nil {
		if apierrors.IsNotFound(err) {
			c.strays.drop(key)
			return nil, nil
		}
		return nil, fmt.Errorf("reading pod %s, which is not managed any more: %w", key, err)
	}
	if api.Controlled(pod) { // its event is on the way
		return nil, nil
	}
	return pod, nil
}

// observe asks the index for the Pod's employers and the adapters for what their backends do with it. The snapshot is
// usable also if some adapter could not tell, which is the error; said takes in how each backend answers.
func (c *podController[E]) observe(ctx context.Context, pod *corev1.Pod, said map[subject]metav1.Condition) (traffic.Snapshot, error) {
	now := c.clock.Now()
	s := traffic.Snapshot{Pod: podops.Read(pod), Managed: api.Controlled(pod), Kind: c.kind, Now: now}
	s.OutOfServiceSince = c.records.saw(pod, s.Pod, now)

	found := c.employers.of(pod)
	expected, _ := podops.ExpectedFinalizers(pod.Annotations) // Decide reports the error
	var errs []error
	for key, finalizer := range expected {
		name, ok := keyOf(c.kind, key)
		if !ok || name.Namespace != pod.Namespace {
			continue
		}
		e := c.employers.get(name)
		if e == nil {
			var err error
			if e, err = c.find(ctx, name); err != nil { // it may still have a backend that serves the Pod
				errs = append(errs, err)
				s.Employers = append(s.Employers, traffic.Employer{Key: key, Finalizer: finalizer, Backends: []traffic.Backend{{Moves: true, Unknown: true}}})
			}
		}
		if e != nil && !contains(found, e) {
			found = append(found, e)
		}
	}
	for _, e := range found {
		key := client.ObjectKeyFromObject(e.object)
		observed := traffic.Employer{
			Key: api.EmployerKey(c.kind, key), Finalizer: c.finalizer(e.object.GetName()), Drain: e.drain, Prepared: e.prepared,
		}
		for i, adapter := range c.adapters {
			employs := e.employs(i, labels.Set(pod.Labels))
			b, err := c.ask(ctx, i, e, employs, pod, now)
			errs = append(errs, err)
			if _, own := adapter.(bulk.Reporter); !own && (employs || err != nil) && (!b.Unknown || err != nil) {
				said[subject{key, adapter.Name(), "pods"}] = outcome(cause(err))
			}
			observed.Backends = append(observed.Backends, b)
		}
		s.Employers = append(s.Employers, observed)
	}
	return s, errors.Join(errs...)
}

// cause is what an adapter returned, without what was added to it: that names the Pod, and is another for each.
func cause(err error) error {
	if inner := errors.Unwrap(err); inner != nil {
		return inner
	}
	return err
}

// clashes says of employers of the Pod that another one has their finalizer, too.
func (c *podController[E]) clashes(plan traffic.Plan, said map[subject]metav1.Condition) {
	for _, clash := range plan.Clashes {
		key, ok := keyOf(c.kind, clash.Employer)
		if !ok {
			continue
		}
		said[subject{key, "", "finalizer of " + clash.With}] = failure(api.ConditionReasonFinalizerShared, fmt.Sprintf(
			"the finalizer %s is also that of %s, so Pods of both wait until both have let go of them: %s", c.finalizer(key.Name), clash.With, c.toRename(key, clash.With)))
	}
}

// toRename says which of two employers with the same finalizer to rename: the younger.
func (c *podController[E]) toRename(a client.ObjectKey, with string) string {
	b, ok := keyOf(c.kind, with)
	if !ok {
		return "give one of them another name"
	}
	one, other := c.employers.get(a), c.employers.get(b)
	younger := max(api.EmployerKey(c.kind, a), with)
	if one != nil && other != nil {
		switch x, y := one.object.GetCreationTimestamp(), other.object.GetCreationTimestamp(); {
		case y.Before(&x):
			younger = api.EmployerKey(c.kind, a)
		case x.Before(&y):
			younger = with
		}
	}
	return "give " + younger + ", the younger one, another name"
}

// ask reads the backend of the adapter at this position. About a Pod that the employer does not employ only one is asked
// that moves traffic and may still hold something for it.
func (c *podController[E]) ask(ctx context.Context, position int, e *employer[E], employs bool, pod *corev1.Pod, now time.Time) (traffic.Backend, error) {
	adapter := c.adapters[position]
	_, moves := adapter.(api.Mover[E])
	moves = moves && (employs || e.holders[position])
	b := traffic.Backend{Adapter: adapter.Name(), Employs: employs, Moves: moves}
	if !employs && !moves {
		return b, nil
	}
	observed, err := adapter.Observe(ctx, e.object, pod)
	switch {
	case errors.Is(err, api.ErrPending):
		b.Unknown = true
		return b, nil
	case err != nil:
		b.Unknown = true
		return b, fmt.Errorf("asking %s about pod %s/%s: %w", adapter.Name(), pod.Namespace, pod.Name, err)
	}
	b.Serving, b.LookAgain = observed.Serving, observed.LookAgain
	b.NotServingSince = c.records.idle(pod, e.object.GetName()+"/"+adapter.Name(), observed.Serving, now)
	if !observed.Since.IsZero() && !observed.Serving {
		b.NotServingSince = observed.Since
	}
	return b, nil
}

// move makes the calls to backends. One that fails does not stop the others.
func (c *podController[E]) move(ctx context.Context, pod *corev1.Pod, moves []traffic.Action, said map[subject]metav1.Condition) error {
	var errs []error
	for _, m := range moves {
		key, _ := keyOf(c.kind, m.Employer)
		e := c.employers.get(key)
		for _, a := range c.adapters {
			mover, ok := a.(api.Mover[E])
			if !ok || a.Name() != m.Adapter || e == nil {
				continue
			}
			call := mover.Register
			if m.Verb == traffic.Deregister {
				call = mover.Deregister
			}
			if err := call(ctx, e.object, pod); err != nil {
				if _, own := a.(bulk.Reporter); !own {
					said[subject{key, a.Name(), "pods"}] = outcome(fmt.Errorf("%s: %w", m.Verb, err))
				}
				errs = append(errs, fmt.Errorf("%s of pod %s/%s by %s for %s: %w", m.Verb, pod.Namespace, pod.Name, m.Adapter, m.Employer, err))
				continue
			}
			c.metrics.did(m.Verb)
		}
	}
	return errors.Join(errs...)
}

// write patches the Pod if the plan changes it.
func (c *podController[E]) write(ctx context.Context, pod *corev1.Pod, view podops.View, plan traffic.Plan) (reconcile.Result, error) {
	result := reconcile.Result{RequeueAfter: plan.NextLook}
	key := client.ObjectKeyFromObject(pod)
	if plan.Change.IsZero() {
		c.conflicts.None(key)
		return result, nil
	}
	written := writes.PodTarget(pod.Namespace, pod.Name)
	err := c.client.Patch(ctx, written, client.RawPatch(types.MergePatchType, plan.Change.MergePatch(view)))
	if !apierrors.IsConflict(err) {
		c.conflicts.None(key)
	}
	switch {
	case apierrors.IsConflict(err):
		log.FromContext(ctx).V(1).Info("the Pod has changed meanwhile, deciding again", "answer", err.Error())
		if !c.strays.has(key) { // those are read live anyway
			c.writes.Refused(ctx, c.live, key)
		}
		return reconcile.Result{RequeueAfter: c.conflicts.Met(key)}, nil
	case apierrors.IsNotFound(err):
		c.strays.drop(key)
		return reconcile.Result{}, nil
	case err != nil:
		return reconcile.Result{}, fmt.Errorf("patching pod %s: %w", key, err)
	}
	for _, a := range plan.Written {
		c.metrics.did(a.Verb)
	}
	log.FromContext(ctx).V(1).Info("changed the Pod", "actions", plan.Written)
	if c.strays.has(key) {
		c.strays.drop(key)
		c.records.forget(key)
		c.forget(key)
		c.standings.reportPod(key, nil)
		for _, employer := range expectedKeys(c.kind, pod) { // there is no event of this Pod
			if name, ok := keyOf(c.kind, employer); ok {
				c.employerQueue.wake(name)
			}
		}
		return reconcile.Result{}, nil
	}
	c.writes.Wrote(key, writes.Pod(written))
	return result, nil
}

// report publishes what the Pod waits for, and says once what its owner has to mend.
func (c *podController[E]) report(pod *corev1.Pod, plan traffic.Plan) {
	if c.strays.has(client.ObjectKeyFromObject(pod)) {
		return
	}
	c.records.waits(pod, plan.Waits)
	if plan.Broken != nil && c.records.tellBroken(pod, pod.Annotations[podops.AvailableConditionsAnnotation]) {
		c.recorder.Eventf(pod, nil, corev1.EventTypeWarning, "AnnotationInvalid", "Expect", "%s", plan.Broken.Error())
	}
}

func contains[E client.Object](list []*employer[E], e *employer[E]) bool {
	for _, o := range list {
		if client.ObjectKeyFromObject(o.object) == client.ObjectKeyFromObject(e.object) {
			return true
		}
	}
	return false
}

// strays are Pods that left the cache without being deleted: they are not managed any more and may have to be released.
// The zero value is ready to use.
type strays struct {
	keys sync.Map
}

func (s *strays) add(key types.NamespacedName)  { s.keys.Store(key, struct{}{}) }
func (s *strays) drop(key types.NamespacedName) { s.keys.Delete(key) }
func (s *strays) has(key types.NamespacedName) bool {
	_, ok := s.keys.Load(key)
	return ok
}
