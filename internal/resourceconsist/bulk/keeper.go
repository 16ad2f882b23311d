package bulk

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	api "kusionstack.io/kuperator/api/resourceconsist"
	"kusionstack.io/kuperator/internal/resourceconsist/podqueue"
)

// keeper keeps a backend's members equal to what the selected employees should be, for employees that have no lifecycle.
// An event of one employee costs the work for that one; a change of an employer that for all of its namespace.
type keeper[E, P client.Object, S comparable] struct {
	*Engine[E, P, S]
	client   client.Client
	scheme   *runtime.Scheme
	recorder events.EventRecorder
	kind     string

	lock sync.Mutex
	// kept are the employers whose members are kept, by namespace and name.
	kept map[string]map[types.NamespacedName]kept[E]

	news sync.Mutex
	// conditions holds what is to be recorded on employers.
	conditions map[types.NamespacedName]metav1.Condition
	queue      podqueue.Queue
}

// kept is an employer that is ready for members.
type kept[E client.Object] struct {
	employer E
	selector labels.Selector
}

// AddBackendToManager is setup.AddBackendToManager.
func AddBackendToManager[E, P client.Object, S comparable](mgr manager.Manager, options api.BulkOptions, backend api.Backend[E, P, S]) error {
	k := &keeper[E, P, S]{
		Engine: newEngine(backend, backend, options, nil), client: mgr.GetClient(), scheme: mgr.GetScheme(),
		recorder: mgr.GetEventRecorder("resourceconsist-controller"),
		kept:     map[string]map[types.NamespacedName]kept[E]{}, conditions: map[types.NamespacedName]metav1.Condition{},
	}
	if k.err != nil {
		return k.err
	}
	if _, places := any(backend).(api.Placer[E]); places {
		return fmt.Errorf("adding backend %s: it has several places (api.Placer), which only those of Pods may have", backend.Name())
	}
	gvk, err := apiutil.GVKForObject(NewObject[E](), k.scheme)
	if err != nil {
		return fmt.Errorf("adding backend %s: %w", backend.Name(), err)
	}
	k.kind = gvk.Kind
	if _, err := k.list(); err != nil {
		return fmt.Errorf("adding backend %s: %w", backend.Name(), err)
	}
	k.allLooked = k.everyOneLooked
	k.ReportTo(k.takeCondition)
	name := "resourceconsist-" + strings.ToLower(k.kind) + "-" + backend.Name()
	err = AddController(mgr, name, controller.Options{Reconciler: k},
		source.Func(func(_ context.Context, q podqueue.Queue) error {
			k.news.Lock()
			defer k.news.Unlock()
			k.queue = q
			return nil
		}),
		source.Kind(mgr.GetCache(), client.Object(NewObject[E]()), k.employerEvents()),
		source.Kind(mgr.GetCache(), client.Object(NewObject[P]()), k.employeeEvents()),
	)
	if err != nil {
		return err
	}
	return mgr.Add(k.Engine)
}

// AddController adds a controller with its watches. Its workers wait for the caches of them all, even if the manager runs already: what is added to that
// begins with the watches that it has by then.
func AddController(mgr manager.Manager, name string, options controller.Options, sources ...source.Source) error {
	options.DefaultFromConfig(mgr.GetControllerOptions())
	ctl, err := controller.NewUnmanaged(name, options)
	if err != nil {
		return fmt.Errorf("adding controller %s: %w", name, err)
	}
	for _, s := range sources {
		if err := ctl.Watch(s); err != nil {
			return fmt.Errorf("adding a watch to controller %s: %w", name, err)
		}
	}
	return mgr.Add(ctl)
}

// employerEvents enqueues employers of which more has changed than their status.
func (k *keeper[E, P, S]) employerEvents() handler.EventHandler {
	add := func(o client.Object, q podqueue.Queue) {
		q.Add(reconcile.Request{NamespacedName: client.ObjectKeyFromObject(o)})
	}
	return handler.Funcs{
		CreateFunc: func(_ context.Context, e event.CreateEvent, q podqueue.Queue) { add(e.Object, q) },
		UpdateFunc: func(_ context.Context, e event.UpdateEvent, q podqueue.Queue) {
			if Differ(e.ObjectOld, e.ObjectNew) || !slices.Equal(e.ObjectOld.GetFinalizers(), e.ObjectNew.GetFinalizers()) {
				add(e.ObjectNew, q)
			}
		},
		DeleteFunc: func(_ context.Context, e event.DeleteEvent, q podqueue.Queue) { add(e.Object, q) },
	}
}

// employeeEvents takes in what changed of an employee, for each employer that it has or had.
func (k *keeper[E, P, S]) employeeEvents() handler.EventHandler {
	put := func(o client.Object) {
		employee, ok := o.(P)
		if !ok {
			return
		}
		k.lock.Lock()
		defer k.lock.Unlock()
		for _, e := range k.kept[o.GetNamespace()] {
			k.settle(e, employee)
		}
	}
	return handler.Funcs{
		CreateFunc: func(_ context.Context, e event.CreateEvent, _ podqueue.Queue) { put(e.Object) },
		UpdateFunc: func(_ context.Context, e event.UpdateEvent, _ podqueue.Queue) { put(e.ObjectNew) },
		DeleteFunc: func(_ context.Context, e event.DeleteEvent, _ podqueue.Queue) {
			k.Forget(client.ObjectKeyFromObject(e.Object))
		},
	}
}

// selects says whether the employee is to be a member.
func (e kept[E]) selects(employee client.Object) bool {
	return e.selector != nil && employee.GetDeletionTimestamp() == nil && e.selector.Matches(labels.Set(employee.GetLabels()))
}

// settle has one employee as it should be in one employer's backend. The caller holds k.lock, so that it does not
// come after the employer was given up.
func (k *keeper[E, P, S]) settle(e kept[E], employee P) {
	if e.selects(employee) {
		k.keep(e.employer, employee)
	} else {
		k.forgetAt(client.ObjectKeyFromObject(e.employer), client.ObjectKeyFromObject(employee))
	}
}

// Reconcile sees to one employer: its finalizer, its own resource, and all of its employees after it has changed.
func (k *keeper[E, P, S]) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	employer := NewObject[E]()
	if err := k.client.Get(ctx, req.NamespacedName, employer); err != nil {
		if apierrors.IsNotFound(err) {
			k.unkeep(req.NamespacedName)
			k.employerGone(req.NamespacedName)
			k.news.Lock()
			defer k.news.Unlock()
			delete(k.conditions, req.NamespacedName)
			return reconcile.Result{}, nil
		}
		return reconcile.Result{}, fmt.Errorf("reading %s %s from the cache: %w", k.kind, req, err)
	}
	k.employerIs(employer)
	recordErr := k.record(ctx, employer)
	holds := slices.Contains(employer.GetFinalizers(), api.CleanFinalizer)
	takesPart := employer.GetDeletionTimestamp() == nil && k.reader.Selector(employer) != nil
	var result reconcile.Result
	var err error
	switch {
	case takesPart && !holds:
		result, err = k.write(ctx, employer, append(slices.Clone(employer.GetFinalizers()), api.CleanFinalizer))
	case takesPart:
		err = k.provide(ctx, employer)
	case holds:
		result, err = k.clean(ctx, employer)
	}
	return result, errors.Join(err, recordErr)
}

// provide makes the employer's own resource and then its members.
func (k *keeper[E, P, S]) provide(ctx context.Context, employer E) error {
	if p, ok := k.reader.(api.Provisioner[E]); ok {
		if err := p.Provision(ctx, employer); err != nil {
			return fmt.Errorf("provisioning %s %s: %w", k.kind, client.ObjectKeyFromObject(employer), err)
		}
	}
	entry := kept[E]{employer, k.reader.Selector(employer)}
	k.lock.Lock()
	defer k.lock.Unlock()
	if k.kept[employer.GetNamespace()] == nil {
		k.kept[employer.GetNamespace()] = map[types.NamespacedName]kept[E]{}
	}
	k.kept[employer.GetNamespace()][client.ObjectKeyFromObject(employer)] = entry
	return k.each(ctx, employer.GetNamespace(), func(employee P) { k.settle(entry, employee) })
}

// cleanPoll is how soon to look again whether the last member has gone.
const cleanPoll = time.Second

// clean takes all members out and lets the employer go after that.
func (k *keeper[E, P, S]) clean(ctx context.Context, employer E) (reconcile.Result, error) {
	key := client.ObjectKeyFromObject(employer)
	k.unkeep(key)
	if !k.emptied(employer) {
		return reconcile.Result{RequeueAfter: cleanPoll}, nil
	}
	if p, ok := k.reader.(api.Provisioner[E]); ok {
		if err := p.Deprovision(ctx, employer); err != nil {
			return reconcile.Result{}, fmt.Errorf("deprovisioning %s %s: %w", k.kind, key, err)
		}
	}
	return k.write(ctx, employer, slices.DeleteFunc(slices.Clone(employer.GetFinalizers()), func(f string) bool { return f == api.CleanFinalizer }))
}

func (k *keeper[E, P, S]) unkeep(key types.NamespacedName) {
	k.lock.Lock()
	defer k.lock.Unlock()
	delete(k.kept[key.Namespace], key)
	if len(k.kept[key.Namespace]) == 0 {
		delete(k.kept, key.Namespace)
	}
}

func (k *keeper[E, P, S]) write(ctx context.Context, employer E, finalizers []string) (reconcile.Result, error) {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"uid": employer.GetUID(), "resourceVersion": employer.GetResourceVersion(), "finalizers": finalizers,
	}})
	if err != nil {
		return reconcile.Result{}, fmt.Errorf("encoding finalizers: %w", err)
	}
	written := NewObject[E]()
	written.SetNamespace(employer.GetNamespace())
	written.SetName(employer.GetName())
	err = k.client.Patch(ctx, written, client.RawPatch(types.MergePatchType, patch))
	if apierrors.IsConflict(err) {
		return reconcile.Result{RequeueAfter: 20*time.Millisecond + rand.N(30*time.Millisecond)}, nil //nolint:gosec // jitter, no secret
	}
	if client.IgnoreNotFound(err) != nil {
		return reconcile.Result{}, fmt.Errorf("patching the finalizers of %s %s: %w", k.kind, client.ObjectKeyFromObject(employer), err)
	}
	return reconcile.Result{}, nil
}

// takeCondition has an employer's condition recorded.
func (k *keeper[E, P, S]) takeCondition(employer types.NamespacedName, condition metav1.Condition) {
	k.news.Lock()
	defer k.news.Unlock()
	k.conditions[employer] = condition
	if k.queue != nil {
		k.queue.Add(reconcile.Request{NamespacedName: employer})
	}
}

// record tells the employer's owner how the backend stands, once per change.
func (k *keeper[E, P, S]) record(ctx context.Context, employer E) error {
	key := client.ObjectKeyFromObject(employer)
	k.news.Lock()
	condition, news := k.conditions[key]
	delete(k.conditions, key)
	k.news.Unlock()
	if !news {
		return nil
	}
	if condition.Status != metav1.ConditionTrue {
		k.recorder.Eventf(employer, nil, corev1.EventTypeWarning, condition.Reason, "Sync", "%s: %s", k.reader.Name(), condition.Message)
	}
	r, ok := k.reader.(api.StatusRecorder[E])
	if !ok {
		return nil
	}
	if err := r.RecordStatus(ctx, employer, condition); err != nil {
		k.news.Lock()
		defer k.news.Unlock()
		if _, newer := k.conditions[key]; !newer {
			k.conditions[key] = condition
		}
		return fmt.Errorf("recording the status of %s %s: %w", k.kind, key, err)
	}
	return nil
}

// list is an empty list of employees.
func (k *keeper[E, P, S]) list() (client.ObjectList, error) {
	gvk, err := apiutil.GVKForObject(NewObject[P](), k.scheme)
	if err != nil {
		return nil, err
	}
	gvk.Kind += "List"
	o, err := k.scheme.New(gvk)
	if err != nil {
		return nil, err
	}
	list, ok := o.(client.ObjectList)
	if !ok {
		return nil, fmt.Errorf("%s is no list", gvk)
	}
	return list, nil
}

// each calls f with every employee of a namespace, from the cache.
func (k *keeper[E, P, S]) each(ctx context.Context, namespace string, f func(P)) error {
	list, err := k.list()
	if err != nil {
		return err
	}
	if err := k.client.List(ctx, list, client.InNamespace(namespace), client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("listing employees: %w", err)
	}
	return meta.EachListItem(list, func(o runtime.Object) error {
		if employee, ok := o.(P); ok {
			f(employee)
		}
		return nil
	})
}

// everyOneLooked says whether all employees that the employer selects have been looked at.
func (k *keeper[E, P, S]) everyOneLooked(ctx context.Context, employer E, looked func(types.NamespacedName, types.UID) bool) (bool, error) {
	e := kept[E]{employer: employer}
	if employer.GetDeletionTimestamp() == nil {
		e.selector = k.reader.Selector(employer)
	}
	all := true
	err := k.each(ctx, employer.GetNamespace(), func(employee P) {
		all = all && (!e.selects(employee) || looked(client.ObjectKeyFromObject(employee), employee.GetUID()))
	})
	return all, err
}
