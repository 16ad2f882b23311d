package poddecoration

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/internal/decoration"
	"kusionstack.io/kuperator/internal/failures"
	"kusionstack.io/kuperator/internal/freshness"
	"kusionstack.io/kuperator/internal/podcache"
	"kusionstack.io/kuperator/internal/poddecoration/decoplan"
	"kusionstack.io/kuperator/internal/remembered"
	"kusionstack.io/kuperator/internal/revision"
	"kusionstack.io/kuperator/internal/soonest"
)

const (
	// interval is the least time between two decisions about a namespace, or perPod for each of its Pods if that is more:
	// one decision serves many events. The first event after that is served at once.
	interval = 200 * time.Millisecond
	perPod   = 100 * time.Microsecond
	// recordedFor is how long a revision that an entry of a ResourceContext names is taken to be in use: to look again
	// costs a list.
	recordedFor = 10 * time.Minute
)

var (
	decorationKind = appsv1alpha1.SchemeGroupVersion.WithKind(appsv1alpha1.PodDecorationKind)
	podKind        = corev1.SchemeGroupVersion.WithKind("Pod")
)

type reconciler struct {
	client     client.Client
	live       client.Reader // past the cache
	cached     *podcache.Store
	writes     *freshness.Tracker
	events     events.EventRecorder
	clock      clock.PassiveClock
	serverCan  func(context.Context) (revision.Capabilities, error)
	namespaces remembered.Map[namespace]
}

// namespace is what is remembered of one with decorations between two decisions. Losing it costs reads.
type namespace struct {
	next  time.Time // when the next decision may be made
	check freshness.Check[freshness.Namespace]
	read  podcache.Memo[decoplan.Pod]
	// rendered are the present templates by decoration, parsed the contents of revisions.
	rendered map[types.UID]rendered
	parsed   map[types.UID]decoration.Decoration
	// changes are worked out for changesFor.
	changes    map[changeKey]worked
	changesFor revision.Capabilities
	// recorded are when entries of ResourceContexts were found to name unused revisions.
	recorded map[types.UID]time.Time
	// refused are writes to Pods that the API server does not take.
	refused map[types.UID]refusal
}

// view is a namespace as the cache shows it.
type view struct {
	name        string
	decorations []*appsv1alpha1.PodDecoration // of the cache
	histories   map[types.UID]history
	pods        []*podcache.Pod // in the order of snapshot.Pods
	snapshot    decoplan.Snapshot
}

// Reconcile decides on one namespace.
func (r *reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	name := req.Name
	ns := r.namespaces.Of(req.NamespacedName, "")
	if wait := ns.next.Sub(r.clock.Now()); wait > 0 {
		return ctrl.Result{RequeueAfter: wait}, nil
	}
	if wait, err := r.writes.Unobserved(ctx, req.NamespacedName); err != nil || wait > 0 {
		return ctrl.Result{RequeueAfter: wait}, err
	}
	v, err := r.view(ctx, name, ns)
	if err != nil {
		return ctrl.Result{}, err
	}
	if len(v.decorations) == 0 {
		r.writes.Forget(req.NamespacedName)
		r.namespaces.Forget(req.NamespacedName)
		return ctrl.Result{}, nil
	}
	read := func() (*freshness.Namespace, error) { // of Pods too: one that the leader before has told counts
		return freshness.ReadNamespace(ctx, r.live, name, decorationKind, podKind)
	}
	if wait, err := ns.check.Pass(r.clock.Now(), read, v.shows); err != nil || wait > 0 {
		return ctrl.Result{RequeueAfter: wait}, err
	}
	result, err := r.decide(ctx, req, v, ns)
	switch {
	case errors.Is(err, errStale):
		return ctrl.Result{RequeueAfter: freshness.LookAgain}, nil
	case err != nil: // a write may have been made whose answer was lost
		ns.check.Repeat()
	}
	return result, err
}

func (r *reconciler) decide(ctx context.Context, req ctrl.Request, v *view, ns *namespace) (ctrl.Result, error) {
	ns.next = r.clock.Now().Add(max(interval, time.Duration(len(v.pods))*perPod))
	if ns.rendered == nil {
		ns.rendered, ns.parsed = map[types.UID]rendered{}, map[types.UID]decoration.Decoration{}
		ns.recorded, ns.refused = map[types.UID]time.Time{}, map[types.UID]refusal{}
	}
	more, err := r.observe(ctx, v, ns)
	if err != nil {
		return ctrl.Result{}, err
	}
	again := r.observeRefusals(v, ns)
	plan := decoplan.Decide(&v.snapshot)
	conflict, err := r.apply(ctx, v, ns, &plan)
	if err == nil && !conflict {
		err = r.pruneHistory(ctx, v, ns, plan.Statuses)
	}
	if err != nil { // backs off by itself
		return ctrl.Result{}, err
	}
	if conflict {
		conflicts.Inc()
		return ctrl.Result{RequeueAfter: max(interval, r.writes.Conflicts.Met(req.NamespacedName))}, nil
	}
	r.writes.Conflicts.None(req.NamespacedName)
	next := soonest.Of(plan.NextLook, again)
	if more || plan.More {
		next = interval
	}
	return ctrl.Result{RequeueAfter: next}, nil
}

// view reads the cache.
func (r *reconciler) view(ctx context.Context, name string, ns *namespace) (*view, error) {
	v := &view{name: name, histories: map[types.UID]history{}}
	var list appsv1alpha1.PodDecorationList
	if err := r.client.List(ctx, &list, client.InNamespace(name), client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("listing PodDecorations: %w", err)
	}
	for i := range list.Items {
		v.decorations = append(v.decorations, &list.Items[i])
	}
	if len(v.decorations) == 0 {
		return v, nil
	}
	var err error
	if v.pods, err = r.cached.ByIndex(toolscache.NamespaceIndex, name); err != nil {
		return nil, err
	}
	v.snapshot.Now = r.clock.Now()
	v.snapshot.Pods, _, _ = ns.read.Read(v.pods, read)
	return v, nil
}

// observe fills in the rest of what a decision needs. It reports whether some is left for the next one.
func (r *reconciler) observe(ctx context.Context, v *view, ns *namespace) (more bool, err error) {
	can, err := r.serverCan(ctx)
	if err != nil {
		return false, err
	}
	there, revisions := map[types.UID]bool{}, map[types.UID]bool{}
	for _, d := range v.decorations {
		there[d.UID] = true
		h, err := r.historyOf(ctx, d)
		if err != nil {
			return false, err
		}
		v.histories[d.UID] = h
		for _, cr := range h {
			revisions[cr.UID] = true
		}
		collisions := ptr.Deref(d.Status.CollisionCount, 0)
		updated, problem, err := r.ensureUpdated(ctx, d, ns, h, &collisions)
		if rejection, rejected := failures.RejectionIn(err); rejected { // it stops no other
			problem = "its revision cannot be stored: " + rejection.Why
		} else if err != nil {
			return false, err
		}
		of := decoplan.Decoration{
			Name: d.Name, Generation: d.Generation, Deleting: d.DeletionTimestamp != nil,
			Protected: controllerutil.ContainsFinalizer(d, appsv1alpha1.ProtectionFinalizer),
			Spec:      d.Spec, Status: d.Status, Updated: updated, Problem: problem, Collisions: &collisions,
		}
		if of.Next, err = r.forecast(ctx, d, ns, updated, can); err != nil {
			return false, err
		}
		v.snapshot.Decorations = append(v.snapshot.Decorations, of)
	}
	maps.DeleteFunc(ns.rendered, func(uid types.UID, _ rendered) bool { return !there[uid] })
	maps.DeleteFunc(ns.recorded, func(uid types.UID, _ time.Time) bool { return !revisions[uid] })
	maps.DeleteFunc(ns.parsed, func(uid types.UID, _ decoration.Decoration) bool { return !revisions[uid] })
	if more, err = r.observeChanges(ctx, v, ns, can); err != nil {
		return false, err
	}
	return more, r.observeWanted(ctx, v)
}

// shows reports whether the cache has come at least as far as the API server had after this process won its Lease.
func (v *view) shows(n *freshness.Namespace) bool {
	decorations, pods := map[types.UID]string{}, make(map[types.UID]string, len(v.snapshot.Pods))
	for _, d := range v.decorations {
		decorations[d.UID] = d.ResourceVersion
	}
	for i := range v.snapshot.Pods {
		pod := &v.snapshot.Pods[i].View
		pods[pod.UID] = pod.ResourceVersion
	}
	return n.ShownBy(decorations, pods)
}
