package collaset

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/log"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/internal/collaset/setplan"
	"kusionstack.io/kuperator/internal/freshness"
	"kusionstack.io/kuperator/internal/revision"
	"kusionstack.io/kuperator/internal/soonest"
)

// errStale means that a cache is behind what was read directly: look again soon.
var errStale = errors.New("the cache is behind the API server")

// server is the API server, as every part of a reconcile reads and writes it. Its methods are what several parts ask of
// it and write to it.
type server struct {
	client client.Client // reads from the cache
	live   client.Reader // reads from the API server
	writes *freshness.Tracker
	events events.EventRecorder
	clock  clock.PassiveClock
	// clearFields has every patch of a Pod clear its metadata.managedFields.
	clearFields bool
	// evictions tells whether the API server serves Evictions (KEP-4563).
	evictions *atomic.Bool
}

// reconciler brings one CollaSet at a time closer to its spec.
type reconciler struct {
	*server
	cached   podReader
	pools    pools
	protocol bool
	// conventions are those by which specs are read.
	conventions setplan.Conventions
	memory      *stateCache
	// serverCan tells what the API server lets change on a running Pod.
	serverCan func(context.Context) (revision.Capabilities, error)
	nodes     *nodes
	// window says which Pods begin their update when, within limits.
	window *window
}

// Reconcile implements reconcile.Reconciler.
func (r *reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	// Deciding on a cache that lacks our own writes would create a Pod twice or touch one too many. The cache is asked
	// before anything is read from it: it may catch up in between.
	wait, err := r.writes.Unobserved(ctx, req.NamespacedName)
	if err != nil {
		return ctrl.Result{}, err
	}
	set := &appsv1alpha1.CollaSet{}
	if err := r.client.Get(ctx, req.NamespacedName, set); err != nil {
		if apierrors.IsNotFound(err) {
			r.memory.Forget(req.NamespacedName)
			r.window.tell(func(w *setplan.Window, now time.Time) setplan.Answer { return w.Forget(req.NamespacedName, now) })
			r.writes.Forget(req.NamespacedName)
		}
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if wait > 0 {
		return ctrl.Result{RequeueAfter: wait}, nil
	}
	result, err := r.reconcile(ctx, set)
	if errors.Is(err, errStale) || apierrors.IsConflict(err) {
		log.FromContext(ctx).V(1).Info("decided on an old view, looking again", "reason", err.Error())
		return ctrl.Result{RequeueAfter: r.writes.Conflicts.Met(req.NamespacedName)}, nil
	}
	return result, err
}

// trialRounds is how often a decision is repeated with the answers to its trials: what an answer lets begin may need
// another, of a deletion that a decision makes at once.
const trialRounds = 2

func (r *reconciler) reconcile(ctx context.Context, set *appsv1alpha1.CollaSet) (ctrl.Result, error) {
	if err := r.hold(ctx, set); err != nil {
		return ctrl.Result{}, err
	}
	set = readBy(r.conventions, set)
	began, key := r.clock.Now(), client.ObjectKeyFromObject(set)
	m := r.memory.Of(key, set.UID)
	o, err := r.observe(ctx, set)
	if err != nil {
		m.rollout.Store(nil)
		return ctrl.Result{}, reporter{r.server}.reportFailure(ctx, m, set, fmt.Errorf("observing: %w", err))
	}
	plan := setplan.Decide(&o.snapshot)
	decideSeconds.WithLabelValues(ofSet).Observe(r.clock.Since(began).Seconds())
	var untried error
	for round := 0; len(plan.Trials) > 0 && round < trialRounds && untried == nil; round++ {
		untried = trials{r.server}.try(ctx, o, plan.Trials)
		if errors.Is(untried, errStale) {
			m.rollout.Store(nil)
			return ctrl.Result{}, untried
		}
		plan = setplan.Decide(&o.snapshot)
	}
	if !plan.IsZero() {
		err := r.ensureFresh(ctx, o)
		if err == nil {
			err = r.ensureVacant(ctx, o, &plan)
		}
		if err != nil {
			m.rollout.Store(nil)
			return ctrl.Result{}, err
		}
	}
	m.follow(o, &plan)
	chosen := r.window.planned(key, setplan.WindowPlanOf(&o.snapshot, &plan))
	plan.Admit(func(pod types.UID) bool { return chosen[pod] })
	writing := applier{claimWriter{r.server}, entryWriter{r.server, &r.pools}, r.window}
	applied := writing.apply(ctx, o, &plan)
	applied.Update = errors.Join(applied.Update, untried)
	if plan.Release && set.DeletionTimestamp != nil {
		return writing.release(ctx, o)
	}
	later, reportErr := reporter{r.server}.report(ctx, o, &plan, applied)
	pruneErr := revisions{r.server}.pruneHistory(ctx, o, &plan)
	if err := errors.Join(applied.err(), reportErr, pruneErr); err != nil {
		return ctrl.Result{}, err
	}
	return ctrl.Result{RequeueAfter: nextLook(&plan, applied, later, r.again(set, applied.conflict))}, nil
}

// readBy is the CollaSet as conventions read it. The one that the cache has is not changed, and this spec is never
// written.
func readBy(conventions setplan.Conventions, set *appsv1alpha1.CollaSet) *appsv1alpha1.CollaSet {
	read := *set
	read.Spec = conventions.Apply(set.Spec)
	return &read
}

// hold puts the finalizer on a CollaSet that is not being deleted, before anything is made for it.
func (r *reconciler) hold(ctx context.Context, set *appsv1alpha1.CollaSet) error {
	if set.DeletionTimestamp != nil || controllerutil.ContainsFinalizer(set, appsv1alpha1.CollaSetFinalizer) {
		return nil
	}
	before := set.DeepCopy()
	controllerutil.AddFinalizer(set, appsv1alpha1.CollaSetFinalizer)
	if err := r.client.Patch(ctx, set, optimisticPatch(before)); err != nil {
		return fmt.Errorf("adding the finalizer: %w", err)
	}
	r.writes.Wrote(client.ObjectKeyFromObject(set), set)
	return nil
}

// nextLook is the soonest of all times at which to look again; 0 if only events matter.
func nextLook(plan *setplan.Plan, applied *outcome, others ...time.Duration) time.Duration {
	others = append(others, plan.NextLook)
	if applied.creationsHeld != nil { // what comes next may be creations, which wait
		others = append(others, applied.creationsIn)
	} else if plan.More && !applied.conflict {
		others = append(others, time.Millisecond)
	}
	return soonest.Of(others...)
}

// again is how long to wait for the cache to catch up after a conflict; 0 if there was none.
func (r *reconciler) again(set *appsv1alpha1.CollaSet, conflict bool) time.Duration {
	if conflict {
		return r.writes.Conflicts.Met(client.ObjectKeyFromObject(set))
	}
	r.writes.Conflicts.None(client.ObjectKeyFromObject(set))
	return 0
}
