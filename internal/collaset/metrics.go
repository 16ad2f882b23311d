package collaset

import (
	"context"
	"errors"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/internal/metric"
)

var (
	actionsMetric = metric.Metric{
		Name: "kuperator_collaset_actions_total", Kind: metric.Counter, Unit: "writes",
		Help: "Writes of Pods, claims and ResourceContexts, and dry runs of writes of Pods (try), by action and result. An action that never happened has no series.",
		Labels: []metric.Label{
			{Name: "action",
				Values: "create, delete, begin, change, resize, finish, cancel, mark, relabel, exclude, include, repair, adopt, store, create-claim, update-claim, adopt-claim, release-claim, repair-claim, delete-claim, names, try"},
			{Name: "result", Values: "done, conflict, failed"},
		},
	}
	decideMetric = metric.Metric{
		Name: "kuperator_collaset_decide_seconds", Kind: metric.Histogram, Unit: "seconds",
		Help:    "Time of reading what a decision depends on from the cache and of deciding, without writing: about a whole CollaSet (set), or about the next step of one Pod that is updated in place (pod).",
		Labels:  []metric.Label{{Name: "of", Values: "set, pod"}},
		Buckets: prometheus.ExponentialBuckets(1e-6, 4, 10),
	}
	setsMetric = metric.Metric{
		Name: "kuperator_collaset_sets", Kind: metric.Gauge, Unit: "CollaSets",
		Help: "CollaSets by state. Each counts once: halted or rolling back after a failure, stalled (the spec must change), overdue (spec.progressDeadlineSeconds passed), paused, deleting, reconciling, ready, or unknown (not looked at yet).",
		Labels: []metric.Label{
			{Name: "state", Values: "halted, stalled, overdue, paused, deleting, reconciling, ready, unknown"},
		},
	}
	podsMetric = metric.Metric{
		Name: "kuperator_collaset_pods", Kind: metric.Gauge, Unit: "Pods",
		Help: "Pods of all CollaSets, by count of status.",
		Labels: []metric.Label{{Name: "count",
			Values: "desired, current, ready, available, updated, operating, terminating"}},
	}
	blockedMetric = metric.Metric{
		Name: "kuperator_collaset_blocked_pods", Kind: metric.Gauge, Unit: "Pods",
		Help:   "Pods of all CollaSets that wait, by their reason in status.blockers. A reason that no Pod waits for has no series, except Paused.",
		Labels: []metric.Label{{Name: "reason", Values: "the reasons of status.blockers"}},
	}
	replicasMetric = metric.Metric{
		Name: "kuperator_collaset_replicas", Kind: metric.Gauge, Unit: "Pods", PerObject: true,
		Help: "Pods of a CollaSet, by what its status counts; desired is spec.replicas.",
		Labels: []metric.Label{
			{Name: "namespace", Values: "its namespace"}, {Name: "collaset", Values: "its name, of at most 1000 CollaSets"},
			{Name: "count", Values: "desired, current, ready, available, updated, operating, terminating"},
		},
	}
	stateMetric = metric.Metric{
		Name: "kuperator_collaset_state", Kind: metric.Gauge, Unit: "1", PerObject: true,
		Help: "1 with the state of a CollaSet, as in kuperator_collaset_sets.",
		Labels: []metric.Label{
			{Name: "namespace", Values: "its namespace"}, {Name: "collaset", Values: "its name, of at most 1000 CollaSets"},
			{Name: "state", Values: "halted, stalled, overdue, paused, deleting, reconciling, ready, unknown"},
		},
	}

	inFlightMetric = metric.Metric{
		Name: "kuperator_collaset_in_flight_pods", Kind: metric.Gauge, Unit: "Pods",
		Help: "Pods that are on their way through an update whose next step is the suite's, and count against --max-pods-in-flight.",
	}
	waitingMetric = metric.Metric{
		Name: "kuperator_collaset_waiting_sets", Kind: metric.Gauge, Unit: "CollaSets",
		Help: "CollaSets that have Pods to update which wait until others of them, or of other CollaSets, are no longer in flight.",
	}

	actions                                                        = actionsMetric.CounterVec()
	decideSeconds                                                  = decideMetric.HistogramVec()
	setsDesc, podsDesc, blockedDesc, setReplicasDesc, setStateDesc = setsMetric.Desc(), podsMetric.Desc(),
		blockedMetric.Desc(), replicasMetric.Desc(), stateMetric.Desc()
	inFlightDesc, waitingDesc = inFlightMetric.Desc(), waitingMetric.Desc()
)

// Metrics are what collaset-controller publishes beside what every component does.
func Metrics() []metric.Metric {
	return []metric.Metric{actionsMetric, decideMetric, setsMetric, podsMetric, blockedMetric, inFlightMetric,
		waitingMetric, replicasMetric, stateMetric}
}

// Results of an action.
const (
	resultDone     = "done"
	resultConflict = "conflict"
	resultFailed   = "failed"
)

// What is decided about.
const (
	ofSet = "set"
	ofPod = "pod"
)

// registerMetrics is repeatable: two components in one process (a test) share the metrics. Queries find the series of
// what happens rarely from the start.
func registerMetrics() error {
	for _, action := range []string{"create", "delete", "begin", "change", "finish"} {
		for _, result := range []string{resultDone, resultConflict, resultFailed} {
			actions.WithLabelValues(action, result)
		}
	}
	for _, of := range []string{ofSet, ofPod} {
		decideSeconds.WithLabelValues(of)
	}
	return metric.Register(metrics.Registry, actions, decideSeconds)
}

func countAction(action string, err error) {
	result := resultDone
	switch {
	case err == nil:
	case errors.Is(err, errAttempted):
		return // no request was sent
	case oldView(action, err):
		result = resultConflict
	default:
		result = resultFailed
	}
	actions.WithLabelValues(action, result).Inc()
}

// state is what a CollaSet is doing, as far as its status tells.
type state string

const (
	stateHalted      state = "halted"
	stateStalled     state = "stalled"
	stateOverdue     state = "overdue"
	statePaused      state = "paused"
	stateDeleting    state = "deleting"
	stateReconciling state = "reconciling"
	stateReady       state = "ready"
	stateUnknown     state = "unknown"
)

var states = []state{stateHalted, stateStalled, stateOverdue, statePaused, stateDeleting, stateReconciling, stateReady,
	stateUnknown}

// stateOf gives the state that a person who has to act should see first.
func stateOf(set *appsv1alpha1.CollaSet) state {
	holds := func(conditionType string, reason appsv1alpha1.ConditionReason) bool {
		c := meta.FindStatusCondition(set.Status.Conditions, conditionType)
		return c != nil && c.Reason == string(reason)
	}
	is := func(conditionType string) bool {
		return meta.IsStatusConditionTrue(set.Status.Conditions, conditionType)
	}
	switch {
	case set.DeletionTimestamp != nil:
		return stateDeleting
	case set.Status.Halted != nil:
		return stateHalted
	case holds(appsv1alpha1.CollaSetProgressing, appsv1alpha1.ReasonProgressDeadlineExceeded):
		return stateOverdue
	case is(appsv1alpha1.CollaSetStalled):
		return stateStalled
	case holds(appsv1alpha1.CollaSetProgressing, appsv1alpha1.ReasonPaused):
		return statePaused
	case is(appsv1alpha1.CollaSetReady):
		return stateReady
	case is(appsv1alpha1.CollaSetReconciling):
		return stateReconciling
	}
	return stateUnknown
}

// counts are Pods by what a status counts.
type counts map[string]int32

func countsOf(set *appsv1alpha1.CollaSet) counts {
	return counts{
		"desired": ptr.Deref(set.Spec.Replicas, 0), "current": set.Status.Replicas, "ready": set.Status.ReadyReplicas,
		"available": set.Status.AvailableReplicas, "updated": set.Status.UpdatedReplicas,
		"operating": set.Status.OperatingReplicas, "terminating": set.Status.TerminatingReplicas,
	}
}

// newGauges publishes what the status of CollaSets says.
func newGauges(ctx context.Context, cached client.Reader, elected <-chan struct{}) prometheus.Collector {
	return &metric.Objects[*appsv1alpha1.CollaSetList]{
		Process: ctx, Cached: cached, Elected: elected, List: &appsv1alpha1.CollaSetList{}, Publish: publish,
		Descs: []*prometheus.Desc{setsDesc, podsDesc, blockedDesc, setReplicasDesc, setStateDesc, metric.LeftOutDesc},
	}
}

func publish(out chan<- prometheus.Metric, list *appsv1alpha1.CollaSetList) {
	sets := make([]*appsv1alpha1.CollaSet, len(list.Items))
	inState, total, blocked := map[state]int{}, map[string]int{}, map[string]int{"Paused": 0}
	for i := range list.Items {
		sets[i] = &list.Items[i]
		inState[stateOf(sets[i])]++
		for count, n := range countsOf(sets[i]) {
			total[count] += int(n)
		}
		for _, b := range sets[i].Status.Blockers {
			blocked[b.Reason] += int(b.Count)
		}
	}
	for _, s := range states {
		metric.Send(out, setsDesc, inState[s], string(s))
	}
	for count := range countsOf(&appsv1alpha1.CollaSet{}) {
		metric.Send(out, podsDesc, total[count], count)
	}
	for reason, n := range blocked {
		metric.Send(out, blockedDesc, n, reason)
	}
	for _, set := range metric.Bounded(out, appsv1alpha1.CollaSetKind, sets, metric.ByName[*appsv1alpha1.CollaSet]) {
		for count, n := range countsOf(set) {
			metric.Send(out, setReplicasDesc, n, set.Namespace, set.Name, count)
		}
		metric.Send(out, setStateDesc, 1, set.Namespace, set.Name, string(stateOf(set)))
	}
}
