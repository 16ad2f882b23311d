package podtransitionrule

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/internal/metric"
	"kusionstack.io/kuperator/internal/podtransitionrule/grants"
	"kusionstack.io/kuperator/internal/testkit/gathered"
)

func TestMetricsAreSound(t *testing.T) {
	for _, m := range Metrics() {
		assert.NoError(t, m.Check())
	}
}

func TestGauges(t *testing.T) {
	rule := func(name string, conditions ...metav1.Condition) *appsv1alpha1.PodTransitionRule {
		return &appsv1alpha1.PodTransitionRule{
			ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name},
			Status: appsv1alpha1.PodTransitionRuleStatus{Desired: 4, Available: 3, Granted: 1, Blocked: 2,
				Conditions: conditions},
		}
	}
	stalled := metav1.Condition{Type: appsv1alpha1.RuleStalled, Status: metav1.ConditionTrue}
	away := metav1.Condition{Type: appsv1alpha1.RuleReady, Status: metav1.ConditionFalse,
		Reason: string(appsv1alpha1.ReasonWebhookUnreachable)}
	ready := metav1.Condition{Type: appsv1alpha1.RuleReady, Status: metav1.ConditionTrue,
		Reason: string(appsv1alpha1.ReasonInForce)}
	c, elected := fakeClient(t, interceptor.Funcs{}, rule("a", ready), rule("b", stalled), rule("c", away), rule("d")),
		make(chan struct{})
	decided := newFigures()
	g := newGauges(t.Context(), c, elected, decided)
	decided.set("shop", []grants.Figures{{Name: "a", Limited: true, Allowed: 1, Unavailable: 1,
		Blocked: map[grants.BlockReason]int{grants.BlockedByAvailability: 2}}}, true)
	assert.Empty(t, gathered.Lines(t, g), "a standby does not count")
	close(elected)
	lines := gathered.Lines(t, g)
	for _, line := range []string{
		"kuperator_podtransitionrule_rules{state=stalled} 1", "kuperator_podtransitionrule_rules{state=unreachable} 1",
		"kuperator_podtransitionrule_rules{state=inforce} 1", "kuperator_podtransitionrule_rules{state=unknown} 1",
		"kuperator_podtransitionrule_pods{count=blocked} 8",
		"kuperator_podtransitionrule_waiting_pods{reason=availability} 2",
		"kuperator_podtransitionrule_waiting_pods{reason=webhook} 0",
		"kuperator_podtransitionrule_budget_pods{namespace=shop,rule=a} 1",
		"kuperator_podtransitionrule_unavailable_pods{namespace=shop,rule=a} 1",
		"kuperator_podtransitionrule_granted_pods{namespace=shop,rule=b} 1",
		"kuperator_podtransitionrule_frozen{namespace=shop} 1",
	} {
		assert.Contains(t, lines, line)
	}
	assert.NotContains(t, strings.Join(lines, "\n"), "budget_pods{namespace=shop,rule=b}", "nothing was decided on it")
	require.NoError(t, c.Delete(t.Context(), rule("a")))
	assert.NotContains(t, strings.Join(gathered.Lines(t, g), "\n"), "rule=a", "what is gone has no series")
	decided.forget("shop")
	assert.NotContains(t, strings.Join(gathered.Lines(t, g), "\n"), "_frozen{")
}

func TestSeriesOfRulesAreBounded(t *testing.T) {
	var rules []client.Object
	for i := range metric.Limit + 5 {
		rules = append(rules, &appsv1alpha1.PodTransitionRule{ObjectMeta: metav1.ObjectMeta{Namespace: "shop",
			Name: fmt.Sprintf("r-%04d", i)}})
	}
	elected := make(chan struct{})
	close(elected)
	lines := gathered.Lines(t, newGauges(t.Context(), fakeClient(t, interceptor.Funcs{}, rules...), elected, newFigures()))
	assert.Contains(t, lines, fmt.Sprintf("kuperator_podtransitionrule_rules{state=unknown} %d", len(rules)),
		"totals count all")
	assert.Contains(t, lines, metric.LeftOut.Name+"{kind=PodTransitionRule} 5")
	own := slices.DeleteFunc(lines, func(line string) bool { return !strings.HasPrefix(line, grantedMetric.Name) })
	assert.Len(t, own, metric.Limit)
}
