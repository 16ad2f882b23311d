package resourceconsist

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	api "kusionstack.io/kuperator/api/resourceconsist"
	"kusionstack.io/kuperator/internal/resourceconsist/bulk"
)

// employerController keeps the clean-up finalizer on employers that have a Mover, and removes it from employers that
// are being deleted. Employers that are only observed need none: their Pods name them, and are released when they are
// gone.
type employerController[E client.Object] struct {
	client   client.Client
	recorder events.EventRecorder
	kind     string
	adapters []api.Adapter[E]
	// told holds the annotation of drain seconds that was reported as invalid, by the employer's UID. Only the one
	// worker touches it.
	told map[types.UID]string
}

// cleanPoll is how soon to look again whether the last Pod of an employer that is being deleted is released.
const cleanPoll = time.Second

// mostTold bounds the memory of reported employers.
const mostTold = 1000

func addEmployerController[E client.Object](mgr manager.Manager, pods *podController[E]) error {
	r := &employerController[E]{
		client: pods.client, recorder: pods.recorder, kind: pods.kind, adapters: pods.adapters, told: map[types.UID]string{},
	}
	name := "resourceconsist-" + strings.ToLower(pods.kind) + "-employers"
	ctl, err := controller.New(name, mgr, controller.Options{Reconciler: r, MaxConcurrentReconciles: 1})
	if err != nil {
		return fmt.Errorf("adding controller %s: %w", name, err)
	}
	due := predicate.NewPredicateFuncs(func(o client.Object) bool {
		e, ok := o.(E)
		_, drainErr := api.DrainTime(o, 0)
		return ok && (drainErr != nil || o.GetDeletionTimestamp() != nil && len(cleanFinalizers(o)) > 0 || r.needsFinalizer(e))
	})
	if err := ctl.Watch(source.Kind(mgr.GetCache(), client.Object(bulk.NewObject[E]()), handler.EventHandler(&handler.EnqueueRequestForObject{}), due)); err != nil {
		return fmt.Errorf("adding a watch to controller %s: %w", name, err)
	}
	return nil
}

// Reconcile adds or removes the clean-up finalizer of one employer, if that is due, and says once what its owner has to
// mend.
func (r *employerController[E]) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	object := bulk.NewObject[E]()
	if err := r.client.Get(ctx, req.NamespacedName, object); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	r.report(object)
	finalizers := slices.Clone(object.GetFinalizers())
	switch {
	case object.GetDeletionTimestamp() != nil && len(cleanFinalizers(object)) > 0:
		if r.hasMover() {
			employed, err := r.employs(ctx, req.NamespacedName)
			if err != nil || employed {
				return reconcile.Result{RequeueAfter: cleanPoll}, err
			}
		}
		clean := cleanFinalizers(object)
		finalizers = slices.DeleteFunc(finalizers, func(f string) bool { return slices.Contains(clean, f) })
	case r.needsFinalizer(object):
		finalizers = append(finalizers, api.CleanFinalizer)
	default:
		return reconcile.Result{}, nil
	}
	return r.write(ctx, object, finalizers)
}

func (r *employerController[E]) report(object E) {
	_, err := api.DrainTime(object, 0)
	raw := object.GetAnnotations()[api.DrainSecondsAnnotation]
	if err == nil || r.told[object.GetUID()] == raw {
		return
	}
	if len(r.told) >= mostTold {
		clear(r.told) // telling some of them again is better than growing for ever
	}
	r.told[object.GetUID()] = raw
	r.recorder.Eventf(object, nil, corev1.EventTypeWarning, "DrainTimeInvalid", "Drain",
		"annotation %s is %q: give whole seconds, at least 0; the default counts until then", api.DrainSecondsAnnotation, raw)
}

func (r *employerController[E]) write(ctx context.Context, object E, finalizers []string) (reconcile.Result, error) {
	if finalizers == nil {
		finalizers = []string{}
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"uid": object.GetUID(), "resourceVersion": object.GetResourceVersion(), "finalizers": finalizers,
	}})
	if err != nil {
		return reconcile.Result{}, fmt.Errorf("encoding the finalizers of %s %s: %w", r.kind, client.ObjectKeyFromObject(object), err)
	}
	written := bulk.NewObject[E]()
	written.SetNamespace(object.GetNamespace())
	written.SetName(object.GetName())
	err = r.client.Patch(ctx, written, client.RawPatch(types.MergePatchType, patch))
	if apierrors.IsConflict(err) {
		return reconcile.Result{RequeueAfter: 20*time.Millisecond + rand.N(30*time.Millisecond)}, nil //nolint:gosec // jitter, no secret
	}
	if client.IgnoreNotFound(err) != nil {
		return reconcile.Result{}, fmt.Errorf("patching the finalizers of %s %s: %w", r.kind, client.ObjectKeyFromObject(object), err)
	}
	return reconcile.Result{}, nil
}

// employs says whether some Pod still names the employer.
func (r *employerController[E]) employs(ctx context.Context, key client.ObjectKey) (bool, error) {
	var pods corev1.PodList
	err := r.client.List(ctx, &pods, client.InNamespace(key.Namespace), client.UnsafeDisableDeepCopy,
		client.MatchingFields{indexName(r.kind): api.EmployerKey(r.kind, key)})
	if err != nil {
		return false, fmt.Errorf("listing the Pods of %s %s: %w", r.kind, key, err)
	}
	return len(pods.Items) > 0, nil
}

func (r *employerController[E]) hasMover() bool {
	return slices.ContainsFunc(r.adapters, func(a api.Adapter[E]) bool { _, ok := a.(api.Mover[E]); return ok })
}

// needsFinalizer says whether an adapter that moves traffic employs Pods for this employer, which does not hold the
// clean-up finalizer yet.
func (r *employerController[E]) needsFinalizer(object E) bool {
	if object.GetDeletionTimestamp() != nil || slices.Contains(object.GetFinalizers(), api.CleanFinalizer) {
		return false
	}
	return slices.ContainsFunc(r.adapters, func(a api.Adapter[E]) bool {
		_, moves := a.(api.Mover[E])
		return moves && a.Selector(object) != nil
	})
}

// cleanFinalizers are the finalizers on the object that hold it until its backend is clean, in both forms.
func cleanFinalizers(object client.Object) []string {
	var found []string
	for _, f := range object.GetFinalizers() {
		if f == api.CleanFinalizer || f == api.LegacyCleanFinalizer(object.GetName()) {
			found = append(found, f)
		}
	}
	return found
}
