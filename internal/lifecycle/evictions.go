package lifecycle

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	lifecyclev1alpha1 "k8s.io/api/lifecycle/v1alpha1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"kusionstack.io/kuperator/api/podops"
	"kusionstack.io/kuperator/internal/bootstrap"
	"kusionstack.io/kuperator/internal/drain"
	"kusionstack.io/kuperator/internal/drain/evicted"
	"kusionstack.io/kuperator/internal/failures"
	"kusionstack.io/kuperator/internal/freeze"
)

// evictionLook is how often a Pod is looked at while it is our turn in an Eviction: not all that it waits for is
// watched.
const evictionLook = time.Minute

// evictionRetry is how soon to look again at what has changed meanwhile.
const evictionRetry = time.Second

// responder takes Pods out of service for EvictionRequests (KEP-4563), by the marks that evictions set. It remembers
// nothing: as long as it is our turn in some Eviction of a Pod, the Pod's mark names us, and when it is no longer, our
// name is taken away.
type responder struct {
	client client.Client
	// live reads past the cache.
	live   client.Reader
	rules  *rules
	freeze *freeze.Namespaces
	// patience is how long rules may hold a Pod before the next responder gets the turn; zero for ever.
	patience time.Duration
	clock    clock.PassiveClock
}

// +kubebuilder:rbac:groups=lifecycle.k8s.io,resources=evictions,verbs=get;list;watch
// +kubebuilder:rbac:groups=lifecycle.k8s.io,resources=evictions/status,verbs=patch
// +kubebuilder:rbac:groups=apps.kusionstack.io,resources=collasets,verbs=get
// +kubebuilder:rbac:groups=policy,resources=poddisruptionbudgets,verbs=list

// respondToEvictions adds the responder as soon as the API server serves Evictions.
func respondToEvictions(
	ctx context.Context, mgr ctrl.Manager, o bootstrap.Options, r *reconciler, patience time.Duration,
) error {
	return bootstrap.WhenOffered(mgr, lifecyclev1alpha1.SchemeGroupVersion.WithKind("Eviction"),
		func(mgr ctrl.Manager) error {
			r := &responder{client: r.client, live: r.live, rules: r.rules, freeze: r.freeze, patience: patience,
				clock: r.clock}
			if err := r.mayList(ctx, o.Namespaces); err != nil {
				mgr.GetLogger().Info("Evictions cannot be listed, so EvictionRequests are not responded to: apply the roles of "+
					"this version, and restart", "reason", err.Error())
				return nil
			}
			err := builder.ControllerManagedBy(mgr).
				Named(Name+"-evictions").
				Watches(&lifecyclev1alpha1.Eviction{}, handler.EnqueueRequestsFromMapFunc(targetOf)).
				WatchesRawSource(requestedSource(mgr)).
				WithOptions(bootstrap.ControllerOptions(0)).
				Complete(r)
			if err != nil {
				return fmt.Errorf("adding the controller of Evictions: %w", err)
			}
			return nil
		})
}

// mayList reports why Evictions cannot be listed, which would end the process once they were watched.
func (r *responder) mayList(ctx context.Context, namespaces []string) error {
	if len(namespaces) == 0 {
		namespaces = []string{metav1.NamespaceAll}
	}
	for _, namespace := range namespaces {
		var list lifecyclev1alpha1.EvictionList
		if err := r.live.List(ctx, &list, client.InNamespace(namespace), client.Limit(1)); err != nil {
			return err
		}
	}
	return nil
}

// targetOf is the Pod that an Eviction is about, if we have a turn in it.
func targetOf(_ context.Context, object client.Object) []reconcile.Request {
	eviction, ok := object.(*lifecyclev1alpha1.Eviction)
	if _, isNamed := object.GetLabels()[drain.Responder]; !ok || !isNamed || eviction.Spec.Target.Pod == nil {
		return nil
	}
	return []reconcile.Request{{NamespacedName: types.NamespacedName{Namespace: eviction.Namespace,
		Name: eviction.Spec.Target.Pod.Name}}}
}

// requestedSource enqueues the Pods that were asked to leave: what they wait for has changed, or the request is gone.
func requestedSource(mgr ctrl.Manager) source.Source {
	enqueue := func(o client.Object, q queue) {
		if pod, ok := o.(*corev1.Pod); ok && drain.IsRequested(podops.Read(pod)) {
			q.Add(reconcile.Request{NamespacedName: client.ObjectKeyFromObject(pod)})
		}
	}
	return source.Kind(mgr.GetCache(), client.Object(&corev1.Pod{}), handler.Funcs{
		CreateFunc: func(_ context.Context, e event.CreateEvent, q queue) { enqueue(e.Object, q) },
		UpdateFunc: func(_ context.Context, e event.UpdateEvent, q queue) { enqueue(e.ObjectNew, q) },
	})
}

// Reconcile brings the mark of a Pod and our answers in its Evictions up to date.
func (r *responder) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	turns, err := r.turns(ctx, r.client, req.NamespacedName)
	if err != nil {
		return ctrl.Result{}, err
	}
	pod := &corev1.Pod{}
	err = r.live.Get(ctx, req.NamespacedName, pod)
	if apierrors.IsNotFound(err) {
		return ctrl.Result{}, nil // Evictions of Pods that are gone end by themselves
	}
	if err != nil {
		return ctrl.Result{}, fmt.Errorf("reading Pod %s: %w", req.NamespacedName, err)
	}
	if len(turns) == 0 {
		if drain.Unrequest(podops.Read(pod)).IsZero() {
			return ctrl.Result{}, nil
		}
		if turns, err = r.turns(ctx, r.live, req.NamespacedName); err != nil { // the cache may be behind
			return ctrl.Result{}, err
		}
	}
	if err := r.respond(ctx, pod, turns); err != nil {
		if apierrors.IsConflict(err) || apierrors.IsNotFound(err) { // it has changed meanwhile
			return ctrl.Result{RequeueAfter: evictionRetry}, nil
		}
		return ctrl.Result{}, err
	}
	if len(turns) == 0 {
		return ctrl.Result{}, nil
	}
	return ctrl.Result{RequeueAfter: evictionLook}, nil
}

// turns are the Evictions of a Pod, among those that the reader knows, in which it is our turn, as the API server has
// them now.
func (r *responder) turns(
	ctx context.Context, reader client.Reader, pod types.NamespacedName,
) ([]*lifecyclev1alpha1.Eviction, error) {
	var list lifecyclev1alpha1.EvictionList
	if err := reader.List(ctx, &list, client.InNamespace(pod.Namespace), client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("listing the Evictions of namespace %s: %w", pod.Namespace, err)
	}
	var turns []*lifecyclev1alpha1.Eviction
	for i := range list.Items {
		known, eviction := &list.Items[i], &lifecyclev1alpha1.Eviction{}
		if target := known.Spec.Target.Pod; target == nil || target.Name != pod.Name {
			continue
		}
		if _, isOurs := drain.Turn(known); !isOurs {
			continue
		}
		err := r.live.Get(ctx, client.ObjectKeyFromObject(known), eviction)
		if client.IgnoreNotFound(err) != nil {
			return nil, fmt.Errorf("reading Eviction %s/%s: %w", known.Namespace, known.Name, err)
		}
		if _, isOurs := drain.Turn(eviction); err == nil && isOurs {
			turns = append(turns, eviction)
		}
	}
	return turns, nil
}

// respond asks the Pod to leave or takes that back, and answers the Evictions. What is taken back is answered first:
// the Pod's record would not tell why afterwards.
func (r *responder) respond(ctx context.Context, pod *corev1.Pod, turns []*lifecyclev1alpha1.Eviction) error {
	request, err := r.read(ctx, pod)
	if err != nil {
		return err
	}
	asks := false
	answers := make([]drain.Answer, len(turns))
	for i, eviction := range turns {
		was, _ := drain.Turn(eviction)
		request.Target = eviction.Spec.Target.Pod.UID
		answers[i] = request.Answer(was)
		asks = asks || answers[i].Asks
	}
	if asks {
		err := r.mark(ctx, pod, request.Change(), request.Pod)
		if why, refused := failures.RejectionIn(err); refused {
			for i, eviction := range turns {
				was, _ := drain.Turn(eviction)
				answers[i] = request.Complete(was, "the API server refuses to mark the Pod: "+why.Why)
			}
		} else if err != nil {
			return err
		}
	}
	for i, eviction := range turns {
		if err := r.answer(ctx, eviction, answers[i]); err != nil {
			return err
		}
	}
	if asks {
		return nil
	}
	return r.mark(ctx, pod, drain.Unrequest(request.Pod), request.Pod)
}

// mark changes who asks for the Pod to leave.
func (r *responder) mark(ctx context.Context, pod *corev1.Pod, change podops.Change, v podops.View) error {
	if change.IsZero() {
		return nil
	}
	if err := r.client.Patch(ctx, pod, client.RawPatch(types.MergePatchType, change.MergePatch(v))); err != nil {
		return fmt.Errorf("marking Pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	return nil
}

// read reads what the answers depend on.
func (r *responder) read(ctx context.Context, pod *corev1.Pod) (drain.Request, error) {
	facts, err := evicted.Read(ctx, r.live, pod)
	if err != nil {
		return drain.Request{}, err
	}
	rules, err := r.rules.in(ctx, pod.Namespace)
	if err != nil {
		return drain.Request{}, err
	}
	state, err := r.freeze.Of(ctx, pod.Namespace)
	if err != nil {
		return drain.Request{}, err
	}
	return drain.Request{Facts: facts, Pod: podops.Read(pod), Rules: rules,
		Frozen: frozen(r.freeze.Suite, pod.Namespace, state), Patience: r.patience, Now: r.clock.Now(),
		NamespaceLabel: state.GracefulDeletion}, nil
}

// answer writes our part of the status of an Eviction, if it is to change. It returns a conflict if the Eviction has
// changed since it was read: the turn may be over. What the API server refuses as invalid is not insisted on: a clock
// is wrong.
func (r *responder) answer(ctx context.Context, eviction *lifecyclev1alpha1.Eviction, answer drain.Answer) error {
	if answer.Status == nil {
		return nil
	}
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": eviction.UID, "resourceVersion": eviction.ResourceVersion},
		"status":   map[string]any{"responders": []any{answer.Status}},
	})
	if err != nil {
		return fmt.Errorf("encoding the answer: %w", err)
	}
	err = r.client.Status().Patch(ctx, eviction, client.RawPatch(types.StrategicMergePatchType, patch))
	if apierrors.IsInvalid(err) {
		ctrl.LoggerFrom(ctx).Info("the API server refuses an answer: a clock is wrong",
			"eviction", eviction.Name, "reason", err.Error())
		return nil
	}
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("answering Eviction %s/%s: %w", eviction.Namespace, eviction.Name, err)
	}
	return nil
}
