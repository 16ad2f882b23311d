package monitoring

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"

	"kusionstack.io/kuperator/internal/monitoring"
)

func TestRulesAreSound(t *testing.T) {
	promtool(t, "", "check", "rules", rulesFile)
}

// input is one series in promtool's notation, a value a minute.
type input map[string]string

// situation is what is so when an alert must fire, and when it must not.
type situation struct {
	at    string // when to look: the alert's for, and what comes before
	fires []input
	quiet []input
}

const hours = "x240" // of one value a minute

// situations are those of every alert.
var situations = map[string]situation{
	"KuperatorComponentDown": {
		at: "30m",
		fires: []input{
			{`up{job="collaset-controller",instance="a"}`: "1x5 0" + hours,
				`up{job="collaset-controller",instance="b"}`: "0" + hours},
			{`up{job="webhook-server",instance="a"}`: "1x5 _" + hours}, // no replica is left to be scraped
		},
		quiet: []input{
			{`up{job="collaset-controller",instance="a"}`: "0" + hours,
				`up{job="collaset-controller",instance="b"}`: "1" + hours},
			{`up{job="somebody-else",instance="a"}`: "0" + hours},
			{`up{job="collaset-controller",instance="a"}`: "1x20 0x3 1" + hours}, // a restart
		},
	},
	"KuperatorNoLeader": {
		at: "30m",
		fires: []input{{`leader_election_master_status{job="lifecycle-controller",instance="a"}`: "0" + hours,
			`leader_election_master_status{job="lifecycle-controller",instance="b"}`: "1x5 0" + hours}},
		quiet: []input{{`leader_election_master_status{job="lifecycle-controller",instance="a"}`: "0" + hours,
			`leader_election_master_status{job="lifecycle-controller",instance="b"}`: "1" + hours}},
	},
	"KuperatorReconcileErrors": {
		at: "40m",
		fires: []input{{`controller_runtime_reconcile_errors_total{job="collaset-controller",controller="c"}`: "0+5" + hours,
			`controller_runtime_reconcile_total{job="collaset-controller",controller="c",result="error"}`: "0+10" + hours}},
		quiet: []input{
			{`controller_runtime_reconcile_errors_total{job="collaset-controller",controller="c"}`: "0+1" + hours,
				`controller_runtime_reconcile_total{job="collaset-controller",controller="c",result="success"}`: "0+100" + hours},
			// idle
			{`controller_runtime_reconcile_errors_total{job="collaset-controller",controller="c"}`: "3" + hours,
				`controller_runtime_reconcile_total{job="collaset-controller",controller="c",result="error"}`: "3" + hours},
		},
	},
	"KuperatorPodStuck": {
		at: "45m",
		fires: []input{{`kuperator_lifecycle_namespace_oldest_phase_seconds{namespace="a",phase="Preparing"}`: "0+60" +
			hours}},
		quiet: []input{
			{`kuperator_lifecycle_namespace_oldest_phase_seconds{namespace="a",phase="PreCheck"}`: "0+60" + hours},
			{`kuperator_lifecycle_namespace_oldest_phase_seconds{namespace="a",phase="Operate"}`: "600" + hours},
		},
	},
	"KuperatorOperationOverdue": {
		at: "5m",
		fires: []input{{`kuperator_lifecycle_overdue_operations{phase="Preparing",type="update",policy="Wait"}`: "1" +
			hours}},
		quiet: []input{{`kuperator_lifecycle_operations{phase="Preparing"}`: "1" + hours}},
	},
	"KuperatorBudgetExhausted": {
		at: "90m",
		fires: []input{{
			`kuperator_podtransitionrule_blocked_pods{namespace="a",rule="r"}`:     "3" + hours,
			`kuperator_podtransitionrule_unavailable_pods{namespace="a",rule="r"}`: "2" + hours,
			`kuperator_podtransitionrule_budget_pods{namespace="a",rule="r"}`:      "2" + hours,
		}},
		quiet: []input{
			{ // room is left: they wait for something else
				`kuperator_podtransitionrule_blocked_pods{namespace="a",rule="r"}`:     "3" + hours,
				`kuperator_podtransitionrule_unavailable_pods{namespace="a",rule="r"}`: "1" + hours,
				`kuperator_podtransitionrule_budget_pods{namespace="a",rule="r"}`:      "2" + hours,
			},
			{ // no Pod waits
				`kuperator_podtransitionrule_blocked_pods{namespace="a",rule="r"}`:     "0" + hours,
				`kuperator_podtransitionrule_unavailable_pods{namespace="a",rule="r"}`: "2" + hours,
				`kuperator_podtransitionrule_budget_pods{namespace="a",rule="r"}`:      "2" + hours,
			},
		},
	},
	"KuperatorBlockedByWebhookRule": {
		at:    "45m",
		fires: []input{{`kuperator_podtransitionrule_waiting_pods{reason="webhook"}`: "2" + hours}},
		quiet: []input{{`kuperator_podtransitionrule_waiting_pods{reason="webhook"}`: "0" + hours,
			`kuperator_podtransitionrule_waiting_pods{reason="availability"}`: "9" + hours}},
	},
	"KuperatorRuleWebhookFailing": {
		at: "30m",
		fires: []input{{`kuperator_rule_webhook_requests_total{namespace="a",rule="r",result="failed"}`: "0+1" + hours},
			{`kuperator_rule_webhook_requests_total{namespace="a",rule="r",result="refused"}`: "0+1" + hours}},
		quiet: []input{{`kuperator_rule_webhook_requests_total{namespace="a",rule="r",result="answered"}`: "0+1" + hours,
			`kuperator_rule_webhook_requests_total{namespace="a",rule="r",result="failed"}`: "7" + hours}},
	},
	"KuperatorRuleStalled": {
		at: "20m",
		fires: []input{{`kuperator_podtransitionrule_rules{state="stalled"}`: "1" + hours},
			{`kuperator_podtransitionrule_rules{state="unreachable"}`: "1" + hours}},
		quiet: []input{{`kuperator_podtransitionrule_rules{state="inforce"}`: "5" + hours,
			`kuperator_podtransitionrule_rules{state="stalled"}`: "0" + hours}},
	},
	"KuperatorRolloutStalled": {
		at: "20m",
		fires: []input{{`kuperator_collaset_state{namespace="a",collaset="s",state="halted"}`: "1" + hours},
			{`kuperator_collaset_state{namespace="a",collaset="s",state="overdue"}`: "1" + hours}},
		quiet: []input{{`kuperator_collaset_state{namespace="a",collaset="s",state="reconciling"}`: "1" + hours},
			{`kuperator_collaset_state{namespace="a",collaset="s",state="paused"}`: "1" + hours}},
	},
	"KuperatorCertificateExpiresSoon": {
		at: "90m",
		fires: []input{{`kuperator_webhook_certificate_expiry_timestamp_seconds{instance="a"}`: "864000" + hours,
			`kuperator_webhook_certificate_expiry_timestamp_seconds{instance="b"}`: "7776000" + hours}},
		quiet: []input{{`kuperator_webhook_certificate_expiry_timestamp_seconds{instance="a"}`: "2592000" + hours}},
	},
	"KuperatorAdmissionErrors": {
		at:    "20m",
		fires: []input{{`kuperator_webhook_decisions_total{webhook="/delete-pods",decision="error"}`: "0+1" + hours}},
		quiet: []input{{`kuperator_webhook_decisions_total{webhook="/delete-pods",decision="error"}`: "0" + hours,
			`kuperator_webhook_decisions_total{webhook="/delete-pods",decision="denied"}`: "0+9" + hours}},
	},
	"KuperatorAdmissionSlow": {
		at:    "30m",
		fires: []input{latencies("0", "0+10")},
		quiet: []input{latencies("0+10", "0+10")},
	},
	"KuperatorProviderFailing": {
		at:    "30m",
		fires: []input{{`kuperator_resourceconsist_backend_failing_employers{adapter="haproxy"}`: "2" + hours}},
		quiet: []input{{`kuperator_resourceconsist_backend_failing_employers{adapter="haproxy"}`: "0x10 1x8 0" + hours}},
	},
	"KuperatorEmployerFailing": {
		at:    "30m",
		fires: []input{{`kuperator_resourceconsist_failing_employers{kind="Service"}`: "1" + hours}},
		quiet: []input{{`kuperator_resourceconsist_failing_employers{kind="Service"}`: "0" + hours}},
	},
	"KuperatorStaleCache": {
		at:    "20m",
		fires: []input{{`kuperator_stale_cache_oldest_wait_seconds{job="collaset-controller"}`: "0+60" + hours}},
		quiet: []input{{`kuperator_stale_cache_oldest_wait_seconds{job="collaset-controller"}`: "5" + hours}},
	},
	"KuperatorWritesRefused": {
		at:    "40m",
		fires: []input{{`kuperator_api_writes_total{job="collaset-controller",resource="pods",verb="create",result="refused"}`: "0+1" + hours}},
		quiet: []input{{`kuperator_api_writes_total{job="collaset-controller",resource="pods",verb="create",result="conflict"}`: "0+9" + hours, `kuperator_api_writes_total{job="collaset-controller",resource="pods",verb="create",result="refused"}`: "4" + hours}},
	},
	"KuperatorQueueGrows": {
		at: "30m",
		fires: []input{{`workqueue_depth{job="lifecycle-controller",controller="c",priority="0"}`: "600" + hours,
			`workqueue_depth{job="lifecycle-controller",controller="c",priority="-100"}`: "600" + hours}},
		quiet: []input{{`workqueue_depth{job="lifecycle-controller",controller="c",priority="0"}`: "5000x5 10" + hours}},
	},
	"KuperatorFrozen": {
		at:    "245m",
		fires: []input{{`kuperator_lifecycle_cluster_frozen`: "1x300"}},
		quiet: []input{{`kuperator_lifecycle_cluster_frozen`: "0x120 1x300"}},
	},
	"KuperatorSeriesLeftOut": {
		at:    "90m",
		fires: []input{{`kuperator_metrics_objects_left_out{job="collaset-controller",kind="CollaSet"}`: "7" + hours}},
		quiet: []input{{`kuperator_metrics_objects_left_out{job="collaset-controller",kind="CollaSet"}`: "0" + hours}},
	},
}

// latencies are answers of which so many take less than half a second, and so many less than two.
func latencies(half, two string) input {
	of := func(le string) string {
		return `controller_runtime_webhook_latency_seconds_bucket{job="webhook-server",webhook="/mutate-pods",le="` + le +
			`"}`
	}
	return input{of("0.5"): half + hours, of("2"): two + hours, of("+Inf"): two + hours}
}

// TestAlerts has promtool evaluate every alert in each of its situations, and look for its row in the table that the
// first dashboard begins with.
func TestAlerts(t *testing.T) {
	program(t, "promtool")
	rules, err := filepath.Abs(rulesFile)
	require.NoError(t, err)
	var tests []any
	for _, a := range monitoring.Alerts() {
		s := situations[a.Name]
		assert.NotEmpty(t, s.fires, "%s: when does it fire?", a.Name)
		assert.NotEmpty(t, s.quiet, "%s: when does it not?", a.Name)
		for _, in := range s.fires {
			tests = append(tests, unitTest(a.Name, s.at, in, 1))
		}
		for _, in := range s.quiet {
			tests = append(tests, unitTest(a.Name, s.at, in, 0))
		}
	}
	require.Len(t, situations, len(monitoring.Alerts()), "situations of alerts that there are not")
	content, err := yaml.Marshal(map[string]any{"rule_files": []string{rules}, "evaluation_interval": "1m",
		"tests": tests})
	require.NoError(t, err)
	file := filepath.Join(t.TempDir(), "alerts.yaml")
	require.NoError(t, os.WriteFile(file, content, 0o600))
	promtool(t, "", "test", "rules", file)
}

// unitTest is one of promtool's: so many alerts of the name fire at that time. One that fires is in the table.
func unitTest(alert, at string, in input, firing int) map[string]any {
	var inputs []any
	for s, values := range in {
		inputs = append(inputs, map[string]string{"series": s, "values": values})
	}
	isOne := func(expr string) map[string]any {
		return map[string]any{"expr": "count(" + expr + ") or vector(0)", "eval_time": at,
			"exp_samples": []any{map[string]any{"labels": "{}", "value": firing}}}
	}
	expected := []any{isOne(`ALERTS{alertname="` + alert + `", alertstate="firing"}`)}
	if firing > 0 {
		expected = append(expected, isOne(`count by (alert) (`+whoNeedsAUser()+
			`) and on (alert) label_replace(vector(1), "alert", "`+alert+`", "", "")`))
	}
	return map[string]any{"name": alert, "interval": "1m", "input_series": inputs, "promql_expr_test": expected}
}
