package podtransitionrule

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/internal/freeze"
	"kusionstack.io/kuperator/internal/freshness"
	"kusionstack.io/kuperator/internal/podcache"
	"kusionstack.io/kuperator/internal/podtransitionrule/asking"
	"kusionstack.io/kuperator/internal/podtransitionrule/grants"
	"kusionstack.io/kuperator/internal/remembered"
	"kusionstack.io/kuperator/internal/soonest"
)

// interval is the least time from the end of one decision about a namespace, with all that it wrote, to the next. The
// whole ledger of a rule is written for every change of it, so one decision serves many events. The first event after
// the interval is served at once.
const interval = 200 * time.Millisecond

type reconciler struct {
	client client.Client
	cached podReader
	direct client.Reader // past the cache
	writes *freshness.Tracker
	events events.EventRecorder
	clock  clock.PassiveClock
	owners *owners
	asker  *asking.Asker
	freeze *freeze.Namespaces
	nodes  *nodes

	// annotateAfter is how long something must hold a Pod up before it is written there. Zero means that nothing is.
	annotateAfter time.Duration
	figures       *figures
	namespaces    remembered.Map[namespace]
	resting       sync.Map // names of namespaces that are at rest
}

// namespace is what is remembered of a namespace between two decisions. Losing it costs a fresh read.
type namespace struct {
	check   freshness.Check[freshness.Namespace] // passed: and no write of ours has an unknown outcome
	known   ownLedgers                           // while the check is passed
	next    time.Time                            // when the next decision may be made
	waiting map[types.UID]*waitingPod
	// cleanSince is when the namespace was first seen to have neither rules nor notes of rules.
	cleanSince time.Time
	pods       podcache.Memo[grants.Pod]
}

// Reconcile decides on one namespace.
func (r *reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	ns := r.namespace(req.Name)
	if wait := ns.next.Sub(r.clock.Now()); wait > 0 {
		return ctrl.Result{RequeueAfter: wait}, nil
	}
	// deciding on a cache that lacks our own writes would grant a slot twice
	if wait, err := r.writes.Unobserved(ctx, req.NamespacedName); err != nil || wait > 0 {
		return ctrl.Result{RequeueAfter: wait}, err
	}
	rules, err := r.rules(ctx, req.Name)
	if err != nil {
		return ctrl.Result{}, err
	}
	if len(rules) == 0 {
		wait, err := r.sweep(ctx, req.Name, ns)
		r.forget(req.Name)
		if wait > 0 {
			again := r.namespace(req.Name)
			again.waiting, again.cleanSince = ns.waiting, ns.cleanSince
		}
		return ctrl.Result{RequeueAfter: wait}, err
	}
	r.resting.Delete(req.Name)
	ns.cleanSince = time.Time{}
	pods, err := r.pods(req.Name, ns)
	if err != nil {
		return ctrl.Result{}, err
	}
	o := observed{rules: rules, pods: pods}
	if wait, err := r.ensureFresh(ctx, req.Name, ns, o); err != nil || wait > 0 {
		return ctrl.Result{RequeueAfter: wait}, err
	}
	snapshot, err := r.snapshot(ctx, req.Name, o)
	if errors.Is(err, errCollaSetsUnknown) || errors.Is(err, errNamespaceUnknown) {
		return ctrl.Result{RequeueAfter: freshness.LookAgain}, nil
	}
	if err != nil {
		return ctrl.Result{}, err
	}
	heard := r.asker.Heard(req.Name, rules)
	snapshot.Answers, snapshot.Tasks = heard.Answers, heard.Tasks
	snapshot.Invalid, snapshot.Unreachable = heard.Invalid, heard.Unreachable
	plan := r.decide(req.Name, snapshot)
	askAgain := r.asker.Ask(req.Name, plan.Questions)
	if err := r.apply(ctx, req, ns, o, plan); err != nil {
		return r.after(ctx, req, ns, err)
	}
	r.writes.Conflicts.None(req.NamespacedName)
	err = errors.Join(r.mirror(ctx, req.Name, plan.Budgets), r.release(ctx, rules))
	noteAgain := r.annotate(ctx, req.Name, ns, plan.Notes)
	return ctrl.Result{RequeueAfter: soonest.Of(plan.NextLook, askAgain, noteAgain)}, err
}

func (r *reconciler) decide(namespace string, s grants.Snapshot) grants.Plan {
	began := r.clock.Now()
	plan := grants.Decide(s)
	decideSeconds.Observe(r.clock.Now().Sub(began).Seconds())
	r.figures.set(namespace, plan.Figures, s.Frozen != "")
	return plan
}

// apply writes the plan until the first error: what comes after it was decided on the same, stale snapshot. The next
// decision waits for the interval, whether all was written or not.
func (r *reconciler) apply(ctx context.Context, req ctrl.Request, ns *namespace, o observed, plan grants.Plan) error {
	defer func() { ns.next = r.clock.Now().Add(interval) }()
	for _, s := range plan.Statuses {
		i := slices.IndexFunc(o.rules, func(rule *appsv1alpha1.PodTransitionRule) bool { return rule.UID == s.UID })
		old := o.rules[i]
		rule := &appsv1alpha1.PodTransitionRule{ObjectMeta: *old.ObjectMeta.DeepCopy(), Spec: *old.Spec.DeepCopy(),
			Status: s.Status}
		if err := r.client.Status().Update(ctx, rule); err != nil {
			// nothing is decided by a rule that is gone, nor written to it, as long as the cache has it
			if apierrors.IsNotFound(err) {
				r.writes.Deleted(req.NamespacedName, old)
			}
			return fmt.Errorf("writing the status of podtransitionrule %s/%s: %w", req.Name, s.Name, err)
		}
		r.writes.Wrote(req.NamespacedName, rule)
		ns.known.record(rule)
		if s.NewlyForeignBudget != "" {
			r.events.Eventf(rule, nil, corev1.EventTypeWarning, "PodDisruptionBudgetNotOurs", "Mirror", "%s",
				s.NewlyForeignBudget)
		}
		if s.NewlyStalled != "" {
			r.events.Eventf(rule, nil, corev1.EventTypeWarning, stalledReason(&s.Status), "Evaluate", "%s", s.NewlyStalled)
		}
	}
	return nil
}

func stalledReason(s *appsv1alpha1.PodTransitionRuleStatus) string {
	if c := meta.FindStatusCondition(s.Conditions, appsv1alpha1.RuleStalled); c != nil {
		return c.Reason
	}
	return string(appsv1alpha1.ReasonInvalidRule)
}

// after says how to go on after a write failed. A rule that changed or went is no error. A write whose answer was lost
// may have been made: the cache must show how it ended before it is decided on again.
func (r *reconciler) after(ctx context.Context, req ctrl.Request, ns *namespace, err error) (ctrl.Result, error) {
	switch {
	case apierrors.IsConflict(err), apierrors.IsNotFound(err):
		conflicts.Inc()
		ctrl.LoggerFrom(ctx).V(1).Info("a rule changed meanwhile; deciding anew", "answer", err.Error())
		return ctrl.Result{RequeueAfter: max(interval, r.writes.Conflicts.Met(req.NamespacedName))}, nil
	default:
		ns.check.Repeat()
		return ctrl.Result{}, err
	}
}

// release removes Kuperator's finalizer from rules that are being deleted. Nothing outside a rule needs cleaning up.
func (r *reconciler) release(ctx context.Context, rules []*appsv1alpha1.PodTransitionRule) error {
	var errs []error
	for _, rule := range rules {
		at := slices.Index(rule.Finalizers, appsv1alpha1.ProtectionFinalizer)
		if rule.DeletionTimestamp == nil || at < 0 {
			continue
		}
		path := fmt.Sprintf("/metadata/finalizers/%d", at)
		patch, err := json.Marshal([]map[string]string{
			{"op": "test", "path": "/metadata/uid", "value": string(rule.UID)},
			{"op": "test", "path": path, "value": appsv1alpha1.ProtectionFinalizer},
			{"op": "remove", "path": path},
		})
		if err != nil {
			return err
		}
		target := &appsv1alpha1.PodTransitionRule{ObjectMeta: metav1.ObjectMeta{Namespace: rule.Namespace, Name: rule.Name}}
		if err := r.client.Patch(ctx, target,
			client.RawPatch(types.JSONPatchType, patch)); client.IgnoreNotFound(err) != nil {
			errs = append(errs, fmt.Errorf("releasing podtransitionrule %s/%s: %w", rule.Namespace, rule.Name, err))
		}
	}
	return errors.Join(errs...)
}

func (r *reconciler) namespace(name string) *namespace {
	return r.namespaces.Of(types.NamespacedName{Name: name}, "")
}

func (r *reconciler) forget(name string) {
	key := types.NamespacedName{Name: name}
	r.namespaces.Forget(key)
	r.asker.Forget(name)
	r.figures.forget(name)
	r.writes.Forget(key)
}
