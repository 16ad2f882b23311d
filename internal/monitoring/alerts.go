package monitoring

import (
	"fmt"
	"regexp"
	"strings"

	"sigs.k8s.io/yaml"
)

// Severity is how soon a person on call has to look.
type Severity string

const (
	// Critical: operations, admission or a whole controller have stopped.
	Critical Severity = "critical"
	// Warning: users wait longer than usual, or soon will.
	Warning Severity = "warning"
	// Info: a state that a user chose, and may have forgotten.
	Info Severity = "info"
)

// Alert is a Prometheus alert: it fires while Value meets Condition for as long as For.
type Alert struct {
	Name string
	// Value is the query without its threshold; on a running suite it returns something.
	Value string
	// Condition is the threshold, such as "> 0".
	Condition string
	For       string
	Severity  Severity
	// Summary is one line. Description is the situation and its consequence. Both are Prometheus templates.
	Summary, Description string
	// Who are the labels that name what it is about; none if that is the whole cluster.
	Who []string
	// Needs is what must happen before Value returns a series; "" if it always does.
	Needs string
}

// Expr is the alert's whole query.
func (a Alert) Expr() string { return "(" + a.Value + ") " + a.Condition }

// jobs matches the scrape jobs of all binaries, which have the names of the binaries.
var jobs = func() string {
	var names []string
	for _, p := range Programs() {
		names = append(names, p.Name)
	}
	return `job=~"` + strings.Join(names, "|") + `"`
}()

// RunbookBase is where alerts find their runbooks unless a URL is given: to a release, to the chart or to the
// generator (docs/operations/monitoring.md). It is their folder in the sources.
const RunbookBase = "docs/operations/runbooks"

// Alerts are all alerts.
func Alerts() []Alert {
	return []Alert{
		{
			Name: "KuperatorComponentDown", Severity: Critical, For: "5m",
			Who:       []string{"job"},
			Value:     `sum by (job) (up{` + jobs + `}) or 0 * group by (job) (present_over_time(up{` + jobs + `}[6h]))`,
			Condition: "== 0",
			Summary:   "No replica of {{ $labels.job }} answers",
			Description: "Prometheus has not reached a replica of {{ $labels.job }} for 5 minutes. " +
				"Work that waits for it does not " +
				"progress. No data is lost, and Pods keep running.",
		},
		{
			Name: "KuperatorNoLeader", Severity: Critical, For: "5m",
			Who:       []string{"job"},
			Value:     `sum by (job) (leader_election_master_status{` + jobs + `})`,
			Condition: "== 0",
			Summary:   "No replica of {{ $labels.job }} holds the Lease",
			Description: "Replicas of {{ $labels.job }} are running, but none has been the leader for 5 minutes, " +
				"so none reconciles.",
		},
		{
			Name: "KuperatorReconcileErrors", Severity: Warning, For: "15m",
			Who: []string{"job", "controller"},
			Value: `sum by (job, controller) (rate(controller_runtime_reconcile_errors_total{` + jobs + `}[10m]))` +
				` / (sum by (job, controller) (rate(controller_runtime_reconcile_total{` + jobs + `}[10m])) > 0)`,
			Condition:   "> 0.1",
			Summary:     "{{ $value | humanizePercentage }} of the reconciles of {{ $labels.controller }} fail",
			Description: "{{ $labels.job }} retries with back-off. The objects whose reconciles fail do not progress.",
			Needs:       "a reconcile in the last ten minutes",
		},
		{
			Name: "KuperatorPodStuck", Severity: Warning, For: "5m",
			Who:       []string{"namespace", "phase"},
			Value:     `max by (namespace, phase) (kuperator_lifecycle_namespace_oldest_phase_seconds{phase!="PreCheck"})`,
			Condition: "> 1800",
			Summary:   "A Pod in {{ $labels.namespace }} has been in {{ $labels.phase }} for {{ $value | humanizeDuration }}",
			Description: "The Pod is out of service and uses the budget of its rules, so the next Pods wait for it. " +
				"PreCheck is not included, because a Pod is in service while it waits there.",
			Needs: "an operation under way",
		},
		{
			Name: "KuperatorOperationOverdue", Severity: Warning, For: "1m",
			Who:       []string{"type", "phase"},
			Value:     `sum by (phase, type, policy) (kuperator_lifecycle_overdue_operations)`,
			Condition: "> 0",
			Summary:   "{{ $value }} operations of type {{ $labels.type }} are past their deadline in {{ $labels.phase }}",
			Description: "The deadline of this phase, set by a flag or an annotation, has passed. " +
				"Policy {{ $labels.policy }} applies.",
			Needs: "an operation past its deadline",
		},
		{
			Name: "KuperatorBudgetExhausted", Severity: Warning, For: "1h",
			Who: []string{"namespace", "rule"},
			Value: `kuperator_podtransitionrule_blocked_pods and on (namespace, rule)` +
				` (kuperator_podtransitionrule_unavailable_pods >= kuperator_podtransitionrule_budget_pods)`,
			Condition: "> 0",
			Summary: "{{ $value }} Pods have waited for the budget of rule {{ $labels.namespace }}/{{ $labels.rule }} " +
				"for an hour",
			Description: "As many Pods as the rule allows are out of service. " +
				"Either they do not come back, or more operations are requested than the budget allows.",
			Needs: "a rule whose budget is used up while Pods wait",
		},
		{
			Name: "KuperatorBlockedByWebhookRule", Severity: Warning, For: "30m",
			Value:       `max(kuperator_podtransitionrule_waiting_pods{reason="webhook"})`,
			Condition:   "> 0",
			Summary:     "{{ $value }} Pods wait for webhooks of PodTransitionRules",
			Description: "Pods have waited for half an hour: the webhooks refuse them, have not decided yet, or do not answer.",
		},
		{
			Name: "KuperatorRuleWebhookFailing", Severity: Warning, For: "10m",
			Who:       []string{"namespace", "rule"},
			Value:     `sum by (namespace, rule) (increase(kuperator_rule_webhook_requests_total{result!="answered"}[10m]))`,
			Condition: "> 0",
			Summary:   "Requests to the webhook of rule {{ $labels.namespace }}/{{ $labels.rule }} fail",
			Description: "Requests fail or are not sent. With failurePolicy Fail the rule's Pods wait; " +
				"with Ignore they proceed without an answer.",
			Needs: "a webhook rule that was asked about Pods",
		},
		{
			Name: "KuperatorRuleStalled", Severity: Warning, For: "10m",
			Who:       []string{"state"},
			Value:     `max by (state) (kuperator_podtransitionrule_rules{state=~"stalled|unreachable"})`,
			Condition: "> 0",
			Summary:   "{{ $value }} PodTransitionRules are {{ $labels.state }}",
			Description: "stalled: the rule cannot be evaluated until a user corrects it, and its Pods wait. " +
				"unreachable: its webhook does not answer.",
		},
		{
			Name: "KuperatorRolloutStalled", Severity: Warning, For: "10m",
			Who:       []string{"namespace", "collaset"},
			Value:     `max by (namespace, collaset, state) (kuperator_collaset_state{state!~"ready|deleting|reconciling|paused|unknown"})`,
			Condition: "> 0",
			Summary:   "CollaSet {{ $labels.namespace }}/{{ $labels.collaset }} is {{ $labels.state }}",
			Description: "halted: its failure policy stopped the rollout. stalled: its spec must be changed. " +
				"overdue: there was no progress within progressDeadlineSeconds.",
			Needs: "a CollaSet that is halted, stalled or overdue",
		},
		{
			Name: "KuperatorCertificateExpiresSoon", Severity: Warning, For: "1h",
			Value:     `(min(kuperator_webhook_certificate_expiry_timestamp_seconds) - time()) / 86400`,
			Condition: "< 14",
			Summary:   "The certificate of webhook-server expires in {{ $value | humanize }} days",
			Description: "It should have been renewed. Once it has expired, the API server cannot call webhook-server: " +
				"Pods are created without the readiness gate and deleted without preparation.",
		},
		{
			Name: "KuperatorAdmissionErrors", Severity: Warning, For: "5m",
			Who:       []string{"webhook"},
			Value:     `sum by (webhook) (increase(kuperator_webhook_decisions_total{decision="error"}[10m]))`,
			Condition: "> 0",
			Summary:   "webhook-server failed to decide on requests to {{ $labels.webhook }}",
			Description: "Such a request is refused, and its user sees the error: " +
				"failurePolicy Ignore applies only to servers that do not answer.",
		},
		{
			Name: "KuperatorAdmissionSlow", Severity: Warning, For: "10m",
			Who:         []string{"webhook"},
			Value:       `histogram_quantile(0.99, sum by (webhook, le) (rate(controller_runtime_webhook_latency_seconds_bucket{job="webhook-server"}[10m])))`,
			Condition:   "> 1",
			Summary:     "The 99th percentile of requests to {{ $labels.webhook }} takes {{ $value | humanizeDuration }}",
			Description: "The API server waits for 2 to 5 seconds, then continues without webhook-server.",
			Needs:       "admission requests in the last ten minutes",
		},
		{
			Name: "KuperatorProviderFailing", Severity: Warning, For: "15m",
			Who:       []string{"adapter"},
			Value:     `max by (adapter) (kuperator_resourceconsist_backend_failing_employers)`,
			Condition: "> 0",
			Summary:   "The backends of {{ $value }} employers of adapter {{ $labels.adapter }} are not up to date",
			Description: "Calls to the provider fail. Pods wait in Preparing until they are out of traffic, " +
				"and in Completing until they are back in it.",
			Needs: "an adapter that makes calls",
		},
		{
			Name: "KuperatorEmployerFailing", Severity: Warning, For: "15m",
			Who:         []string{"kind"},
			Value:       `max by (kind) (kuperator_resourceconsist_failing_employers)`,
			Condition:   "> 0",
			Summary:     "{{ $value }} employers of kind {{ $labels.kind }} fail",
			Description: "A backend fails, or two employers share a finalizer. Their conditions or events have the reason.",
		},
		{
			Name: "KuperatorStaleCache", Severity: Warning, For: "5m",
			Who:       []string{"job"},
			Value:     `max by (job) (kuperator_stale_cache_oldest_wait_seconds)`,
			Condition: "> 60",
			Summary:   "{{ $labels.job }} has waited for its cache for {{ $value | humanizeDuration }}",
			Description: "It does not reconcile an object until the cache shows its own last write to it: " +
				"watches lag or are broken.",
		},
		{
			Name: "KuperatorWritesRefused", Severity: Warning, For: "15m",
			Who:         []string{"job", "resource"},
			Value:       `sum by (job, resource, verb) (rate(kuperator_api_writes_total{result=~"refused|failed"}[10m]))`,
			Condition:   "> 0",
			Summary:     "Writes of {{ $labels.job }} to the API server fail ({{ $labels.verb }} {{ $labels.resource }})",
			Description: "RBAC, a quota, Pod Security or an admission webhook refuses them, or the API server fails.",
		},
		{
			Name: "KuperatorQueueGrows", Severity: Warning, For: "15m",
			Who:       []string{"job", "controller"},
			Value:     `sum by (job, controller) (workqueue_depth{` + jobs + `})`,
			Condition: "> 1000",
			Summary:   "{{ $value }} objects wait for a worker of {{ $labels.controller }}",
			Description: "{{ $labels.job }} does not keep up: the API server is slow, or there is more work than its workers " +
				"can do.",
		},
		{
			Name: "KuperatorFrozen", Severity: Info, For: "4h",
			Value:     `max(kuperator_lifecycle_cluster_frozen)`,
			Condition: "> 0",
			Summary:   "The cluster has been frozen for four hours",
			Description: "The cluster is frozen by annotation: no Pod is taken out of service in any namespace, " +
				"so updates and drains wait.",
		},
		{
			Name: "KuperatorSeriesLeftOut", Severity: Info, For: "1h",
			Who:         []string{"job", "kind"},
			Value:       `max by (job, kind) (kuperator_metrics_objects_left_out)`,
			Condition:   "> 0",
			Summary:     "{{ $value }} objects of kind {{ $labels.kind }} have no series of their own",
			Description: "There are more than 1000. Totals include them; dashboards and alerts of single objects do not.",
		},
	}
}

// needed asks for every alert whose condition holds, with the labels severity, alert and who, and no others.
func needed() string {
	var all []string
	for _, a := range Alerts() {
		who := fmt.Sprintf(`label_replace(%s, "who", "the cluster", "", "")`, a.Expr())
		if len(a.Who) > 0 {
			who = fmt.Sprintf(`label_join(%s, "who", "/", "%s")`, a.Expr(), strings.Join(a.Who, `", "`))
		}
		all = append(all, fmt.Sprintf(`label_replace(label_replace(%s, "alert", "%s", "", ""), "severity", "%s", "", "")`,
			who, a.Name, a.Severity))
	}
	return "max by (severity, alert, who) (" + strings.Join(all, " or ") + ")"
}

var forPattern = regexp.MustCompile(`^[0-9]+[mh]$`)

func (a Alert) check() error {
	switch {
	case !strings.HasPrefix(a.Name, "Kuperator"), a.Value == "", a.Condition == "", a.Summary == "", a.Description == "",
		a.Severity == "":
		return fmt.Errorf("alert %q lacks something", a.Name)
	case !forPattern.MatchString(a.For):
		return fmt.Errorf("alert %s: for is %q", a.Name, a.For)
	}
	return nil
}

type ruleFile struct {
	Groups []ruleGroup `json:"groups"`
}

type ruleGroup struct {
	Name  string `json:"name"`
	Rules []rule `json:"rules"`
}

type rule struct {
	Alert       string            `json:"alert"`
	Expr        string            `json:"expr"`
	For         string            `json:"for"`
	Labels      map[string]string `json:"labels"`
	Annotations map[string]string `json:"annotations"`
}

func groups(runbookBase string) ([]ruleGroup, error) {
	group := ruleGroup{Name: "kuperator"}
	for _, a := range Alerts() {
		if err := a.check(); err != nil {
			return nil, err
		}
		group.Rules = append(group.Rules, rule{
			Alert: a.Name, Expr: a.Expr(), For: a.For,
			Labels: map[string]string{"severity": string(a.Severity)},
			Annotations: map[string]string{
				"summary": a.Summary, "description": a.Description, "runbook_url": runbookBase + "/" + a.Name + ".md",
			},
		})
	}
	return []ruleGroup{group}, nil
}

// alertFiles are the rules, once for Prometheus and promtool, once for the Prometheus operator.
func alertFiles(runbookBase string) ([]File, error) {
	all, err := groups(runbookBase)
	if err != nil {
		return nil, err
	}
	plain, err := yaml.Marshal(ruleFile{Groups: all})
	if err != nil {
		return nil, err
	}
	object, err := yaml.Marshal(map[string]any{
		"apiVersion": "monitoring.coreos.com/v1", "kind": "PrometheusRule",
		"metadata": map[string]any{"name": "kuperator", "namespace": "kuperator-system",
			"labels": map[string]string{"app.kubernetes.io/part-of": "kuperator"}},
		"spec": ruleFile{Groups: all},
	})
	if err != nil {
		return nil, err
	}
	top := []byte("# " + generated + "\n")
	return []File{
		{"deploy/monitoring/alerts/rules.yaml", append(top[:len(top):len(top)], plain...)},
		{"deploy/monitoring/alerts/prometheus-rule.yaml", append(top[:len(top):len(top)], object...)},
		{"deploy/monitoring/alerts/kustomization.yaml",
			[]byte("# " + generated +
				"\napiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nresources:\n- prometheus-rule.yaml\n")},
	}, nil
}
