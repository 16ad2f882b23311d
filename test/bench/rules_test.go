package bench

import (
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
	"kusionstack.io/kuperator/internal/testkit/suite"
)

// What must hold however slow the machine is.
const (
	mostStatusBytes = 256 << 10
	mostGrowth      = 1.10 // of writes per Pod, from the first and smallest number of Pods and rules to any other
	// leastWrites are out of service, back, and in service. What asks for less cannot be; less that is counted was lost.
	leastWrites = 3
)

// BenchmarkRules prints what rules cost as Pods and rules become more. It fails on broken promises, never on time.
func BenchmarkRules(b *testing.B) {
	sizes := numbers(b, "BENCH_SIZES", "500,2000")
	window, err := time.ParseDuration(fromEnvironment("BENCH_WINDOW", "10m"))
	require.NoError(b, err, "BENCH_WINDOW is a duration")
	a := newArena(b, nil)
	fmt.Fprintf(os.Stdout, "\nload of the machine at the start: %s\n", load())
	fmt.Fprintf(os.Stdout, "\n%s", a.growth(sizes, window))
	fmt.Fprintf(os.Stdout, "\nload at the end: %s\n\n", load())
	require.NoError(b, a.suite.Died())
}

func fromEnvironment(name, otherwise string) string {
	if value, ok := os.LookupEnv(name); ok {
		return value
	}
	return otherwise
}

// numbers reads numbers of Pods, separated by commas.
func numbers(b *testing.B, variable, otherwise string) []int {
	b.Helper()
	all := numbersFromZero(b, variable, otherwise)
	require.NotEmpty(b, all, "%s holds numbers", variable)
	for _, n := range all {
		require.Positive(b, n, "%s holds numbers above 0", variable)
	}
	return all
}

// numbersFromZero may be empty.
func numbersFromZero(b *testing.B, variable, otherwise string) []int {
	b.Helper()
	var all []int
	for field := range strings.FieldsFuncSeq(fromEnvironment(variable, otherwise),
		func(r rune) bool { return r == ',' || r == ' ' }) {
		n, err := strconv.Atoi(field)
		require.NoError(b, err, "%s holds numbers", variable)
		require.GreaterOrEqual(b, n, 0, "%s holds numbers", variable)
		all = append(all, n)
	}
	return all
}

// load is the machine's load average, where the system tells it.
func load() string {
	content, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(string(content))
}

// collaSet creates a CollaSet and waits until all its Pods serve.
func (a arena) collaSet(m *meter, namespace string, pods int) *appsv1alpha1.CollaSet {
	m.lap(serving(oldImage))
	set := a.createSet(namespace, "web", pods)
	require.Equal(a, pods, m.wait(a.Context(), pods, patience), "Pods of the CollaSet serve")
	return set
}

// createSet creates a CollaSet whose Pods have its name as the label "app".
func (a arena) createSet(namespace, name string, pods int) *appsv1alpha1.CollaSet {
	return a.createSetOf(templateOn(node, name), namespace, name, pods)
}

// templateOn is of Pods on one node, or where kube-scheduler puts them if that is "", with this name as the label
// "app".
func templateOn(node, name string) corev1.PodTemplateSpec {
	return corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": name}},
		Spec:       corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "app", Image: oldImage}}},
	}
}

// createSetOf creates a CollaSet of a template whose label "app" is its name.
func (a arena) createSetOf(template corev1.PodTemplateSpec, namespace, name string, pods int) *appsv1alpha1.CollaSet {
	set := &appsv1alpha1.CollaSet{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	set.Spec.Replicas = ptr.To(int32(pods))
	set.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": name}}
	set.Spec.Template = template
	require.NoError(a, a.Create(a.Context(), set))
	return set
}

// serving reports whether a Pod is in service, with nothing left to do on it.
func serving(image string) func(*corev1.Pod) bool {
	return func(p *corev1.Pod) bool {
		v := podops.Read(p)
		return p.Spec.Containers[0].Image == image && v.ServiceAvailable() && len(podops.Operations(v)) == 0
	}
}

// growth has a third party operate on all of so many Pods at once, under one rule and under three that overlap, and
// under three for the larger numbers.
func (a arena) growth(sizes []int, window time.Duration) string {
	var text strings.Builder
	w := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "All Pods begun at once by an operator that knows only the labels, maxUnavailable 10 % in every rule:")
	fmt.Fprintln(w,
		"Pods\trules\tfinished\tPods/s\twrites/Pod\tPods with n writes\tlargest status, KiB\tstatus writes\teach p50, ms\tp99, ms\treconcile p50, ms\tp99, ms\tdecide p50, ms\tp99, ms\tmost out / allowed")
	type run struct{ pods, rules int }
	runs := []run{{sizes[0], 1}}
	for _, pods := range sizes {
		runs = append(runs, run{pods, 3})
	}
	first := 0.0
	for _, r := range runs {
		g := a.operateAtOnce(r.pods, r.rules, window)
		note := ""
		if len(g.pods) < r.pods {
			note = fmt.Sprintf(" (of %d, when the window of %s closed; at this pace all would take %s)",
				r.pods, window, time.Duration(float64(r.pods)/g.rate()*float64(time.Second)).Round(time.Second))
		}
		fmt.Fprintf(w, "%d\t%d\t%d%s\t%.1f\t%.2f\t%s\t%.1f\t%d\t%.0f\t%.0f\t%.0f\t%.0f\t%.1f\t%.1f\t%s\n", r.pods, r.rules,
			len(g.pods), note, g.rate(), g.writes,
			strings.TrimPrefix(fmt.Sprint(g.byWrites), "map"), float64(g.statusBytes)/1024, len(g.ledger), g.ledgerTook(.5),
			g.ledgerTook(.99), g.reconcile.quantile(.5)*1e3, g.reconcile.quantile(.99)*1e3, g.decide.quantile(.5)*1e3,
			g.decide.quantile(.99)*1e3, g.outs())
		first = cmp.Or(first, g.writes)
		if g.writes > first*mostGrowth {
			a.Errorf("writes per Pod grow from %.2f to %.2f with %d Pods and %d rules: they must not depend on either", first,
				g.writes, r.pods, r.rules)
		}
		a.ReportMetric(g.writes, fmt.Sprintf("writes/Pod-%d-%d", r.pods, r.rules))
		a.ReportMetric(g.reconcile.quantile(.99)*1e3, fmt.Sprintf("ms-p99-%d-%d", r.pods, r.rules))
	}
	fmt.Fprintln(w, "Upstream at 5,000 Pods: 517 ms for one rule's reconcile, status 1,330 KiB.")
	require.NoError(a, w.Flush())
	return text.String()
}

// gauged is what operating on all Pods at once came to.
type gauged struct {
	figures
	// writes to Pods per Pod that finished, by the suite; byWrites says to how many Pods there were how many.
	writes   float64
	byWrites map[int]int
	// ledger is how long the API server took over each successful write of a rule's status, sorted.
	ledger            []time.Duration
	statusBytes       int
	reconcile, decide histogram
	allowed           map[string]int
}

// count reads from the API server's own record what was written since a moment.
func (g *gauged) count(a arena, namespace string, since time.Time) {
	requests, err := a.suite.Requests(since)
	require.NoError(a, err)
	byPod := map[string]int{}
	for _, r := range requests {
		switch {
		case r.Namespace != namespace || !r.Write() || r.Component() == "":
		case r.Resource == "pods" && g.pods[r.Name]:
			byPod[r.Name]++
		case r.Resource == "podtransitionrules" && r.OK():
			g.ledger = append(g.ledger, r.Took)
		}
	}
	slices.Sort(g.ledger)
	g.byWrites = map[int]int{}
	total := 0
	for name := range g.pods {
		total += byPod[name]
		g.byWrites[byPod[name]]++
	}
	g.writes = float64(total) / float64(len(g.pods))
}

// ledgerTook is in milliseconds; q is between 0 and 1.
func (g gauged) ledgerTook(q float64) float64 {
	if len(g.ledger) == 0 {
		return 0
	}
	return g.ledger[int(q*float64(len(g.ledger)-1))].Seconds() * 1e3
}

func (g gauged) outs() string {
	var all []string
	for _, name := range ruleNames {
		if allowed, ok := g.allowed[name]; ok {
			all = append(all, fmt.Sprintf("%d/%d", g.most[name], allowed))
		}
	}
	return strings.Join(all, " ")
}

// The rules overlap: a third of the Pods is under all of them, the others under two.
var (
	ruleNames = []string{"all", "left", "right"}
	ruleParts = map[string][]string{"all": {"0", "1", "2"}, "left": {"0", "1"}, "right": {"1", "2"}}
)

const partLabel = "part"

func under(rule string) func(*corev1.Pod) bool {
	return func(p *corev1.Pod) bool {
		for _, part := range ruleParts[rule] {
			if p.Labels[partLabel] == part {
				return true
			}
		}
		return false
	}
}

func (a arena) operateAtOnce(pods, rules int, window time.Duration) gauged {
	namespace := a.namespace(fmt.Sprintf("at-once-%d-%d", pods, rules))
	g := gauged{allowed: map[string]int{}}
	budgets := map[string]func(*corev1.Pod) bool{}
	for _, name := range ruleNames[:rules] {
		budgets[name] = under(name)
		a.budget(namespace, name, "10%", metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{
			{Key: partLabel, Operator: metav1.LabelSelectorOpIn, Values: ruleParts[name]},
		}})
	}
	m := newMeter(a.B, a.pods, namespace, budgets)
	defer m.close()
	names := a.managedPods(m, namespace, pods)
	for name, selects := range budgets {
		count := 0
		for i := range pods {
			if selects(partOf(i)) {
				count++
			}
		}
		g.allowed[name] = (count + 9) / 10 // rounded up
	}

	reconcileBefore, decideBefore := a.ruleHistograms()
	o := newOperator(a, m, namespace)
	sizes := a.sampleStatus(namespace)
	begin := time.Now()
	m.lap(func(p *corev1.Pod) bool {
		return o.finished(p.Name) && serving(oldImage)(p)
	})
	a.inFlight(names, o.begin)
	m.wait(a.Context(), pods, window-time.Since(begin))
	g.figures, g.statusBytes = m.figures(), sizes()
	reconcileAfter, decideAfter := a.ruleHistograms()
	o.stop()
	g.reconcile, g.decide = reconcileAfter.since(reconcileBefore), decideAfter.since(decideBefore)
	require.NotEmpty(a, g.pods, "no Pod was operated on within %s", window)
	g.count(a, namespace, begin)
	a.judge(g)
	return g
}

// judge fails on what must hold at any speed.
func (a arena) judge(g gauged) {
	if g.statusBytes >= mostStatusBytes {
		a.Errorf("the largest status of a rule has %d bytes; it must stay below %d", g.statusBytes, mostStatusBytes)
	}
	for writes, pods := range g.byWrites {
		if writes < leastWrites {
			a.Errorf("%d Pods finished with %d writes by the suite: no Pod can with fewer than %d, so some were not counted",
				pods, writes, leastWrites)
		}
	}
	for name, allowed := range g.allowed {
		if g.most[name] > allowed {
			a.Errorf("%d Pods of rule %s were out of service at a time, %d are allowed", g.most[name], name, allowed)
		}
		if g.most[name] == 0 {
			a.Errorf("no Pod of rule %s was ever out of service: nothing was measured", name)
		}
	}
}

func partOf(i int) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{partLabel: strconv.Itoa(i % 3)}}}
}

// managedPods creates Pods of no workload and waits until all are in service.
func (a arena) managedPods(m *meter, namespace string, pods int) []string {
	names := numbered("web-", pods)
	m.lap(serving(oldImage))
	a.inFlight(names, func(name string) error {
		var i int
		if _, err := fmt.Sscanf(name, "web-%d", &i); err != nil {
			return err
		}
		pod := partOf(i)
		pod.Name = name
		pod.Labels[appsv1alpha1.ControlLabel] = appsv1alpha1.ControlValue
		pod.Spec = corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "app", Image: oldImage}}}
		_, err := a.pods.CoreV1().Pods(namespace).Create(a.Context(), pod, metav1.CreateOptions{})
		return err
	})
	require.Equal(a, pods, m.wait(a.Context(), pods, patience), "Pods serve")
	return names
}

func (a arena) ruleHistograms() (reconcile, decide histogram) {
	metrics, err := a.suite.Metrics(a.Context(), suite.PodTransitionRule)
	require.NoError(a, err)
	reconcile, err = readHistogram(metrics, "controller_runtime_reconcile_time_seconds",
		`controller="podtransitionrule-controller"`)
	require.NoError(a, err)
	decide, err = readHistogram(metrics, "kuperator_podtransitionrule_decide_seconds")
	require.NoError(a, err)
	return reconcile, decide
}

// sampleStatus looks at the status of every rule four times a second, until its result is asked for: the most bytes
// one had.
func (a arena) sampleStatus(namespace string) func() int {
	done, most := make(chan struct{}), make(chan int)
	path := fmt.Sprintf("/apis/%s/namespaces/%s/podtransitionrules", appsv1alpha1.SchemeGroupVersion, namespace)
	go func() {
		largest := 0
		tick := time.NewTicker(250 * time.Millisecond)
		defer tick.Stop()
		for {
			var list struct {
				Items []struct {
					Status json.RawMessage `json:"status"`
				} `json:"items"`
			}
			raw, err := a.pods.CoreV1().RESTClient().Get().AbsPath(path).Param("resourceVersion", "0").SetHeader("Accept",
				"application/json").DoRaw(a.Context())
			if err == nil {
				err = json.Unmarshal(raw, &list)
			}
			if err != nil {
				a.Errorf("sampling the rules' status: %v", err)
			}
			for _, rule := range list.Items {
				largest = max(largest, len(rule.Status))
			}
			select {
			case <-done:
				most <- largest
				return
			case <-tick.C:
			}
		}
	}()
	return func() int { close(done); return <-most }
}
