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
	"kusionstack.io/kuperator/internal/freshness"
	"kusionstack.io/kuperator/internal/resourceconsist/backend"
	"kusionstack.io/kuperator/internal/resourceconsist/traffic"
)

// +kubebuilder:rbac:groups="",resources=pods,verbs=get;list;watch;patch
// +kubebuilder:rbac:groups="",resources=services,verbs=get;list;watch;patch
// +kubebuilder:rbac:groups=discovery.k8s.io,resources=endpointslices,verbs=get;list;watch
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch

// Reconcile does what is due on one Pod.
func (c *podController) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
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
		c.backendConditions.reportPod(req.NamespacedName, nil)
		c.writes.Forget(req.NamespacedName)
		if !c.unmanagedPods.has(req.NamespacedName) {
			c.forget(req.NamespacedName)
		}
		return reconcile.Result{}, nil
	}
	if wait > 0 { // an old view only asks for what was already written
		return reconcile.Result{RequeueAfter: wait}, nil
	}
	snapshot, observeErr := c.observe(ctx, pod)
	plan := traffic.Decide(snapshot)
	c.report(pod, plan)
	c.backendConditions.reportPod(req.NamespacedName, c.finalizerConflicts(plan))
	c.move(pod, plan.Moves)
	result, writeErr := c.write(ctx, pod, snapshot.Pod, plan)
	if err := errors.Join(observeErr, writeErr); err != nil {
		return reconcile.Result{}, err
	}
	return result, nil
}

// forget tells the adapters that there is no such Pod any more, or none that they have to do with.
func (c *podController) forget(key types.NamespacedName) {
	for _, a := range c.adapters {
		if caller, ok := a.(backend.Caller); ok {
			caller.Forget(key)
		}
	}
}

// read returns the Pod from the cache, or from the API server if it has left the cache without being deleted. Nil means
// that there is nothing to do.
func (c *podController) read(ctx context.Context, key types.NamespacedName) (*corev1.Pod, error) {
	pod := &corev1.Pod{}
	err := c.client.Get(ctx, key, pod)
	if err == nil {
		c.unmanagedPods.drop(key)
		return pod, nil
	}
	if !apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("reading pod %s from the cache: %w", key, err)
	}
	if !c.unmanagedPods.has(key) {
		return nil, nil
	}
	if err := c.live.Get(ctx, key, pod); err != nil {
		if apierrors.IsNotFound(err) {
			c.unmanagedPods.drop(key)
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
// usable also if some employer could not be read, which is the error.
func (c *podController) observe(ctx context.Context, pod *corev1.Pod) (traffic.Snapshot, error) {
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
				s.Employers = append(s.Employers,
					traffic.Employer{Key: key, Finalizer: finalizer, Backends: []traffic.Backend{{Moves: true, Unknown: true}}})
			}
		}
		if e != nil && !contains(found, e) {
			found = append(found, e)
		}
	}
	for _, e := range found {
		key := client.ObjectKeyFromObject(e.object)
		observed := traffic.Employer{
			Key: api.EmployerKey(c.kind, key), Finalizer: api.Finalizer(e.object.GetName()), Drain: e.drain,
			Prepared: c.prepared(e),
		}
		for i := range c.adapters {
			observed.Backends = append(observed.Backends, c.ask(i, e, pod, now))
		}
		s.Employers = append(s.Employers, observed)
	}
	return s, errors.Join(errs...)
}

// finalizerConflicts are what to tell employers of the Pod whose finalizer one of another kind has, too.
func (c *podController) finalizerConflicts(plan traffic.Plan) map[subject]metav1.Condition {
	told := map[subject]metav1.Condition{}
	for _, conflict := range plan.FinalizerConflicts {
		key, ok := keyOf(c.kind, conflict.Employer)
		if !ok {
			continue
		}
		told[subject{key, "", "finalizer of " + conflict.With}] = failure(api.ConditionReasonFinalizerShared, fmt.Sprintf(
			"the finalizer %s is also that of %s, so Pods of both wait until both have let go of them: "+
				"give one of them another name",
			api.Finalizer(key.Name), conflict.With))
	}
	return told
}

// ask asks the backend at this position. About a Pod that the employer does not employ only one is asked that moves
// traffic and may still hold something for it.
func (c *podController) ask(position int, e *employer, pod *corev1.Pod, now time.Time) traffic.Backend {
	adapter, employs := c.adapters[position], e.employs(position, labels.Set(pod.Labels))
	_, moves := adapter.(backend.Mover)
	moves = moves && (employs || e.holders[position])
	b := traffic.Backend{Adapter: adapter.Name(), Employs: employs, Moves: moves}
	if !employs && !moves {
		return b
	}
	seen := adapter.Observe(e.object, pod)
	b.Unknown, b.Serving, b.LookAgain = seen.Unknown, seen.Serving, seen.LookAgain
	if seen.Unknown {
		return b
	}
	b.NotServingSince = c.records.idle(pod, e.object.GetName()+"/"+adapter.Name(), seen.Serving, now)
	if !seen.Since.IsZero() {
		b.NotServingSince = seen.Since
	}
	return b
}

// move tells the backends what to do.
func (c *podController) move(pod *corev1.Pod, moves []traffic.Action) {
	for _, m := range moves {
		key, _ := keyOf(c.kind, m.Employer)
		e := c.employers.get(key)
		for _, a := range c.adapters {
			mover, ok := a.(backend.Mover)
			if !ok || a.Name() != m.Adapter || e == nil {
				continue
			}
			if m.Verb == traffic.Register {
				mover.Register(e.object, pod)
			} else {
				mover.Deregister(e.object, pod)
			}
			actions.WithLabelValues(c.kind, string(m.Verb)).Inc()
		}
	}
}

// write patches the Pod if the plan changes it.
func (c *podController) write(
	ctx context.Context, pod *corev1.Pod, view podops.View, plan traffic.Plan,
) (reconcile.Result, error) {
	result := reconcile.Result{RequeueAfter: plan.NextLook}
	key := client.ObjectKeyFromObject(pod)
	if plan.Change.IsZero() {
		c.writes.Conflicts.None(key)
		return result, nil
	}
	written := freshness.PodTarget(pod.Namespace, pod.Name)
	err := c.client.Patch(ctx, written, client.RawPatch(types.MergePatchType, plan.Change.MergePatch(view)))
	if !apierrors.IsConflict(err) {
		c.writes.Conflicts.None(key)
	}
	switch {
	case apierrors.IsConflict(err):
		log.FromContext(ctx).V(1).Info("the Pod has changed meanwhile, deciding again", "answer", err.Error())
		if c.unmanagedPods.has(key) { // those are read live anyway
			return reconcile.Result{RequeueAfter: c.writes.Conflicts.Met(key)}, nil
		}
		return reconcile.Result{RequeueAfter: c.writes.Refused(ctx, c.live, key)}, nil
	case apierrors.IsNotFound(err):
		c.unmanagedPods.drop(key)
		return reconcile.Result{}, nil
	case err != nil:
		return reconcile.Result{}, fmt.Errorf("patching pod %s: %w", key, err)
	}
	for _, a := range plan.Written {
		actions.WithLabelValues(c.kind, string(a.Verb)).Inc()
	}
	log.FromContext(ctx).V(1).Info("changed the Pod", "actions", plan.Written)
	if c.unmanagedPods.has(key) {
		c.unmanagedPods.drop(key)
		c.records.forget(key)
		c.forget(key)
		c.backendConditions.reportPod(key, nil)
		for _, employer := range expectedKeys(c.kind, pod) { // there is no event of this Pod
			if name, ok := keyOf(c.kind, employer); ok {
				c.employerQueue.Add(name)
			}
		}
		return reconcile.Result{}, nil
	}
	c.writes.Wrote(key, written)
	return result, nil
}

// report publishes what the Pod waits for, and says once what its owner has to mend.
func (c *podController) report(pod *corev1.Pod, plan traffic.Plan) {
	if c.unmanagedPods.has(client.ObjectKeyFromObject(pod)) {
		return
	}
	c.records.waits(pod, plan.Waits)
	if plan.Broken != nil && c.records.tellBroken(pod, pod.Annotations[podops.AvailableConditionsAnnotation]) {
		c.recorder.Eventf(pod, nil, corev1.EventTypeWarning, "AnnotationInvalid", "Expect", "%s", plan.Broken.Error())
	}
}

func contains(list []*employer, e *employer) bool {
	for _, o := range list {
		if client.ObjectKeyFromObject(o.object) == client.ObjectKeyFromObject(e.object) {
			return true
		}
	}
	return false
}

// unmanagedPods are Pods that left the cache without being deleted: they are not managed any more and may have to be
// released. The zero value is ready to use.
type unmanagedPods struct {
	keys sync.Map
}

func (s *unmanagedPods) add(key types.NamespacedName)  { s.keys.Store(key, struct{}{}) }
func (s *unmanagedPods) drop(key types.NamespacedName) { s.keys.Delete(key) }
func (s *unmanagedPods) has(key types.NamespacedName) bool {
	_, ok := s.keys.Load(key)
	return ok
}
