package podtransitionrule

import (
	"context"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/internal/metric"
	"kusionstack.io/kuperator/internal/podtransitionrule/asking"
	"kusionstack.io/kuperator/internal/podtransitionrule/grants"
)

// ofRule declares a gauge with a series for each rule.
func ofRule(name, help string) metric.Metric {
	return metric.Metric{
		Name: "kuperator_podtransitionrule_" + name, Kind: metric.Gauge, Unit: "Pods", Help: help, PerObject: true,
		Labels: []metric.Label{{Name: "namespace", Values: "its namespace"},
			{Name: "rule", Values: "its name, of at most 1000 PodTransitionRules"}},
	}
}

var (
	desiredMetric = ofRule("desired_pods",
		"Desired Pods of the rule: selected Pods, and those that their owners have yet to create.")
	availableMetric = ofRule("available_pods", "Selected Pods that are in service and not granted.")
	grantedMetric   = ofRule("granted_pods", "Pods with a grant of the rule.")
	blockedMetric   = ofRule("blocked_pods", "Pods in a stage of the rule without a grant.")
	budgetMetric    = ofRule("budget_pods",
		"Pods that the rule's availablePolicy allows to be out of service at the same time, as of the last decision. "+
			"Rules without a limit have no series.")
	unavailableMetric = ofRule("unavailable_pods",
		"Pods that count against that budget, as of the last decision: granted, out of service, or missing.")
	frozenMetric = metric.Metric{
		Name: "kuperator_podtransitionrule_frozen", Kind: metric.Gauge, Unit: "1", PerObject: true,
		Help: "1 for a namespace with rules in which no new grants are given, because it or the cluster is frozen. " +
			"Other namespaces have no series.",
		Labels: []metric.Label{{Name: "namespace", Values: "frozen namespaces with rules among the at most 1000 rules"}},
	}
	rulesMetric = metric.Metric{
		Name: "kuperator_podtransitionrule_rules", Kind: metric.Gauge, Unit: "PodTransitionRules",
		Help: "PodTransitionRules by state. Each counts once: stalled (the rule must be changed), " +
			"unreachable (its webhook does not answer), inforce, or unknown (not reconciled yet).",
		Labels: []metric.Label{{Name: "state", Values: "stalled, unreachable, inforce, unknown"}},
	}
	waitingMetric = metric.Metric{
		Name: "kuperator_podtransitionrule_waiting_pods", Kind: metric.Gauge, Unit: "Pods",
		Help: "Pods in a stage of a rule without a grant, of all rules, by what they wait for. " +
			"A Pod counts once for each rule that blocks it.",
		Labels: []metric.Label{{Name: "reason",
			Values: "availability, label, webhook, frozen, invalid, annotation, other_rule"}},
	}
	totalMetric = metric.Metric{
		Name: "kuperator_podtransitionrule_pods", Kind: metric.Gauge, Unit: "Pods",
		Help:   "Pods of all rules, by counter of the rules' status. A Pod counts once for each rule that selects it.",
		Labels: []metric.Label{{Name: "count", Values: "desired, available, granted, blocked"}},
	}
	decideMetric = metric.Metric{
		Name: "kuperator_podtransitionrule_decide_seconds", Kind: metric.Histogram, Unit: "seconds",
		Help:    "Time of a decision on one namespace, without reads and writes.",
		Buckets: prometheus.ExponentialBuckets(0.0001, 4, 8),
	}
	notesMetric = metric.Metric{
		Name: "kuperator_podtransitionrule_notes_total", Kind: metric.Counter, Unit: "writes",
		Help: "Writes of what a Pod waits for to its annotations, by result: written, gone (the Pod no longer exists), " +
			"failed.",
		Labels: []metric.Label{{Name: "result", Values: "written, gone, failed"}},
	}
	conflictsMetric = metric.Metric{
		Name: "kuperator_podtransitionrule_conflicts_total", Kind: metric.Counter, Unit: "writes",
		Help: "Writes that the API server refused because the rule had changed. " +
			"They are retried with a new decision on the namespace.",
	}

	decideSeconds = prometheus.NewHistogram(prometheus.HistogramOpts{Name: decideMetric.Name, Help: decideMetric.Help,
		Buckets: decideMetric.Buckets})
	noteWrites = notesMetric.CounterVec()
	conflicts  = prometheus.NewCounter(prometheus.CounterOpts{Name: conflictsMetric.Name, Help: conflictsMetric.Help})

	desiredDesc, availableDesc, grantedDesc, blockedDesc = desiredMetric.Desc(), availableMetric.Desc(),
		grantedMetric.Desc(), blockedMetric.Desc()
	budgetDesc, unavailableDesc, frozenDesc = budgetMetric.Desc(), unavailableMetric.Desc(),
		frozenMetric.Desc()
	rulesDesc, waitingDesc, totalDesc = rulesMetric.Desc(), waitingMetric.Desc(), totalMetric.Desc()
)

// Metrics are what podtransitionrule-controller publishes beside what every component does.
func Metrics() []metric.Metric {
	return append([]metric.Metric{
		rulesMetric, totalMetric, waitingMetric, desiredMetric, availableMetric, grantedMetric, blockedMetric, budgetMetric,
		unavailableMetric,
		frozenMetric, decideMetric, notesMetric, conflictsMetric,
	}, asking.Metrics()...)
}

// registerMetrics adds the metrics to the manager's registry; a second time changes nothing. Queries find the series of
// what happens rarely from the start.
func registerMetrics() error {
	for _, result := range []string{"written", "gone", "failed"} {
		noteWrites.WithLabelValues(result)
	}
	return metric.Register(metrics.Registry, append(asking.Collectors(), decideSeconds, conflicts, noteWrites)...)
}

// figures are what was last decided, by namespace.
type figures struct {
	mu sync.Mutex
	of map[string]namespaceFigures
}

type namespaceFigures struct {
	rules  map[string]grants.Figures
	frozen bool
}

func newFigures() *figures { return &figures{of: map[string]namespaceFigures{}} }

func (f *figures) set(namespace string, decided []grants.Figures, frozen bool) {
	n := namespaceFigures{rules: make(map[string]grants.Figures, len(decided)), frozen: frozen}
	for _, rule := range decided {
		n.rules[rule.Name] = rule
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.of[namespace] = n
}

func (f *figures) forget(namespace string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.of, namespace)
}

// rule is what was decided last on a rule, and whether its namespace is frozen.
func (f *figures) rule(namespace, name string) (decided grants.Figures, known, frozen bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := f.of[namespace]
	decided, known = n.rules[name]
	return decided, known, n.frozen
}

// newGauges publishes the state of the rules, and what was decided on them.
func newGauges(
	ctx context.Context, cached client.Reader, elected <-chan struct{}, decided *figures,
) prometheus.Collector {
	return &metric.Objects[*appsv1alpha1.PodTransitionRuleList]{
		Process: ctx, Cached: cached, Elected: elected, List: &appsv1alpha1.PodTransitionRuleList{}, Publish: decided.publish,
		Descs: []*prometheus.Desc{
			rulesDesc, totalDesc, waitingDesc, desiredDesc, availableDesc, grantedDesc, blockedDesc, budgetDesc,
			unavailableDesc, frozenDesc,
			metric.LeftOutDesc,
		},
	}
}

func (f *figures) publish(out chan<- prometheus.Metric, list *appsv1alpha1.PodTransitionRuleList) {
	rules := make([]*appsv1alpha1.PodTransitionRule, len(list.Items))
	for i := range list.Items {
		rules[i] = &list.Items[i]
	}
	f.totals(out, rules)
	f.single(out, metric.Bounded(out, appsv1alpha1.PodTransitionRuleKind, rules,
		metric.ByName[*appsv1alpha1.PodTransitionRule]))
}

func (f *figures) totals(out chan<- prometheus.Metric, rules []*appsv1alpha1.PodTransitionRule) {
	states := map[string]int{"stalled": 0, "unreachable": 0, "inforce": 0, "unknown": 0}
	pods := map[string]int32{"desired": 0, "available": 0, "granted": 0, "blocked": 0}
	waiting := map[grants.BlockReason]int{}
	for _, rule := range rules {
		states[stateOf(rule)]++
		pods["desired"] += rule.Status.Desired
		pods["available"] += rule.Status.Available
		pods["granted"] += rule.Status.Granted
		pods["blocked"] += rule.Status.Blocked
		decided, _, _ := f.rule(rule.Namespace, rule.Name)
		for reason, n := range decided.Blocked {
			waiting[reason] += n
		}
	}
	for state, n := range states {
		metric.Send(out, rulesDesc, n, state)
	}
	for count, n := range pods {
		metric.Send(out, totalDesc, n, count)
	}
	for _, reason := range grants.BlockReasons() {
		metric.Send(out, waitingDesc, waiting[reason], string(reason))
	}
}

func (f *figures) single(out chan<- prometheus.Metric, rules []*appsv1alpha1.PodTransitionRule) {
	told := map[string]bool{}
	for _, rule := range rules {
		metric.Send(out, desiredDesc, rule.Status.Desired, rule.Namespace, rule.Name)
		metric.Send(out, availableDesc, rule.Status.Available, rule.Namespace, rule.Name)
		metric.Send(out, grantedDesc, rule.Status.Granted, rule.Namespace, rule.Name)
		metric.Send(out, blockedDesc, rule.Status.Blocked, rule.Namespace, rule.Name)
		decided, known, frozen := f.rule(rule.Namespace, rule.Name)
		if known && decided.Limited {
			metric.Send(out, budgetDesc, decided.Allowed, rule.Namespace, rule.Name)
			metric.Send(out, unavailableDesc, decided.Unavailable, rule.Namespace, rule.Name)
		}
		if frozen && !told[rule.Namespace] {
			told[rule.Namespace] = true
			metric.Send(out, frozenDesc, 1, rule.Namespace)
		}
	}
}

// stateOf gives the state that a person who has to act should see first.
func stateOf(rule *appsv1alpha1.PodTransitionRule) string {
	ready := meta.FindStatusCondition(rule.Status.Conditions, appsv1alpha1.RuleReady)
	switch {
	case meta.IsStatusConditionTrue(rule.Status.Conditions, appsv1alpha1.RuleStalled):
		return "stalled"
	case ready == nil:
		return "unknown"
	case ready.Reason == string(appsv1alpha1.ReasonWebhookUnreachable):
		return "unreachable"
	}
	return "inforce"
}
