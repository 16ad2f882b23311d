// Package rules_test shows on a real API server, with lifecycle-controller and podtransitionrule-controller as they
// ship, each under its own ServiceAccount, that none of the ways in which Kuperator v0.7 exceeds, ignores or never
// finishes with its own rules is open here. One test is named for each. The test itself is the kubelet, and an
// operator that knows two labels.
package rules_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
	"kusionstack.io/kuperator/internal/testkit/observer"
	"kusionstack.io/kuperator/internal/testkit/race"
	"kusionstack.io/kuperator/internal/testkit/suite"
	"kusionstack.io/kuperator/internal/testkit/testcluster"
	"kusionstack.io/kuperator/internal/testkit/testsuite"
)

const (
	patience = 3 * time.Minute // for what takes milliseconds, on a busy machine
	interval = 20 * time.Millisecond
	// standstill is how long nothing must happen that would happen within milliseconds if it could.
	standstill = 2 * time.Second

	// The operator: its slot on Pods, and what it does to them.
	id     = "job"
	opType = "restart"

	before, after = "web:1", "web:2"

	nobody  = "nobody" // no such scheduler: Pods get no node, and only the test is their kubelet
	holding = "example.com/hold"
)

// shared is the suite that all tests use: first those that want it alone, one after the other, then the others
// together.
var shared = testsuite.Share(newWorld)

// world is the suite and an administrator's client.
type world struct {
	*suite.Suite
	client.Client
}

func TestMain(m *testing.M) { shared.Main(m) }

func newWorld(ctx context.Context) (*world, error) {
	s, err := suite.Start(ctx, suite.Config{
		Name: "rules", Components: []string{suite.PodTransitionRule, suite.Lifecycle}, Race: race.Enabled,
		Progress: os.Stderr,
		Args: map[string][]string{suite.PodTransitionRule: {
			"--rule-webhook-allow=127.0.0.0/8", // where the tests' servers are
			"--rule-webhook-timeout=10s",       // a server that answers is not asked again because it is slow
		}},
	})
	if err != nil {
		return nil, err
	}
	c, err := testsuite.Client(s.RESTConfig())
	if err != nil {
		return nil, errors.Join(err, s.Stop())
	}
	return &world{Suite: s, Client: c}, nil
}

// story is one test in its own namespace, watched by an observer that fails it for any broken promise.
type story struct {
	*testing.T
	*world
	namespace string
	observer  *observer.Observer
	sick      map[string]bool // Pods whose containers do not run
	busy      map[string]bool // Pods that the operator does not finish with
}

// alone begins a story with all components at work, which may stop them: no other runs meanwhile, and the test must
// not be parallel.
func alone(t *testing.T) *story {
	t.Helper()
	var s *story
	t.Cleanup(func() { // after the observer has ended
		if s != nil {
			s.restore()
		}
	})
	s = begin(t)
	s.restore()
	return s
}

// together begins a story that leaves components alone. It runs beside others, when those that want the suite alone
// are over.
func together(t *testing.T) *story {
	t.Helper()
	t.Parallel()
	return begin(t)
}

func begin(t *testing.T) *story {
	t.Helper()
	s := &story{T: t, world: shared.Get(t), sick: map[string]bool{}, busy: map[string]bool{}}
	s.namespace = testcluster.Namespace(t, s.Cluster, nil)
	var err error
	s.observer, err = observer.Start(context.WithoutCancel(t.Context()), s.RESTConfig(), observer.Options{
		Namespace: s.namespace, StuckAfter: 2 * patience,
		Without: []observer.Invariant{observer.Revision, observer.Churn, observer.Orphan}, // CollaSets are played
	})
	require.NoError(t, err)
	t.Cleanup(s.end)
	return s
}

// restore brings every component back to work: a new process may wait for the Lease of one that was killed.
func (s *story) restore() {
	s.Helper()
	for _, name := range []string{suite.Lifecycle, suite.PodTransitionRule} {
		if !slices.Contains(s.Running(), name) {
			require.NoError(s, s.Restart(context.WithoutCancel(s.Context()), name))
		}
	}
	require.NoError(s, s.WaitLeading(context.WithoutCancel(s.Context()), suite.Lifecycle, suite.PodTransitionRule))
}

func (s *story) end() {
	report, err := s.observer.Stop()
	if err = errors.Join(err, report.Err()); err != nil {
		s.Error(err)
	}
	if !s.Failed() {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(s.Context()), 30*time.Second)
	defer cancel()
	for _, args := range [][]string{{"get", "pods", "--show-labels"}, {"get", "podtransitionrules", "-o", "yaml"}} {
		out, err := s.Kubectl(ctx, append([]string{"-n", s.namespace}, args...)...)
		s.Logf("kubectl %s\n%s%v", strings.Join(args, " "), out, err)
	}
}

// until plays until check holds.
func (s *story) until(what string, check func() bool) {
	s.Helper()
	for deadline := time.Now().Add(patience); ; time.Sleep(interval) {
		s.play()
		if check() {
			return
		}
		if time.Now().After(deadline) {
			s.Fatalf("not within %s: %s", patience, what)
		}
	}
}

// stays plays for a while, in which check must hold.
func (s *story) stays(what string, check func() bool) {
	s.Helper()
	for deadline := time.Now().Add(standstill); time.Now().Before(deadline); time.Sleep(interval) {
		s.play()
		if !check() {
			s.Fatalf("it ceased to be so that %s", what)
		}
	}
}

// play is one round of the kubelet and the operator. Who comes too late for a Pod tries again in the next round.
func (s *story) play() {
	s.Helper()
	for _, pod := range s.pods() {
		if pod.DeletionTimestamp != nil || pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
			continue
		}
		v := podops.Read(&pod)
		running := !s.sick[pod.Name]
		ready := running && (!v.Gate || v.ServiceReady == corev1.ConditionTrue)
		switch {
		case v.Ready != ready || v.ContainersReady != running:
			s.report(&pod, running, ready)
		case podops.Allowed(v, id, opType) && !s.busy[pod.Name]:
			body := fmt.Sprintf(
				`{"metadata":{"resourceVersion":%q,"labels":{%q:null}},"spec":{"containers":[{"name":"web","image":%q}]}}`,
				pod.ResourceVersion, podops.OperatingPrefix+"/"+id, after)
			s.tolerate(s.Patch(s.Context(), &pod, client.RawPatch(types.StrategicMergePatchType, []byte(body))))
		}
	}
}

// report is what a kubelet says of a Pod.
func (s *story) report(pod *corev1.Pod, running, ready bool) {
	s.Helper()
	status := map[bool]string{true: "True", false: "False"}
	body := fmt.Sprintf(
		`{"metadata":{"resourceVersion":%q},"status":{"phase":"Running","conditions":[{"type":"ContainersReady","status":%q},{"type":"Ready","status":%q}]}}`,
		pod.ResourceVersion, status[running], status[ready])
	s.tolerate(s.Status().Patch(s.Context(), pod, client.RawPatch(types.StrategicMergePatchType, []byte(body))))
}

func (s *story) tolerate(err error) {
	s.Helper()
	if !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
		require.NoError(s, err)
	}
}

// pods are all Pods of the namespace, by name.
func (s *story) pods() []corev1.Pod {
	s.Helper()
	var list corev1.PodList
	require.NoError(s, s.List(s.Context(), &list, client.InNamespace(s.namespace)))
	slices.SortFunc(list.Items, func(a, b corev1.Pod) int { return strings.Compare(a.Name, b.Name) })
	return list.Items
}

func names(pods []corev1.Pod) []string {
	var all []string
	for _, pod := range pods {
		all = append(all, pod.Name)
	}
	return all
}

// template is a managed Pod that takes part in the protocol.
func template() corev1.PodTemplateSpec {
	return corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "web",
			appsv1alpha1.ControlLabel: appsv1alpha1.ControlValue}},
		Spec: corev1.PodSpec{
			SchedulerName:  nobody,
			ReadinessGates: []corev1.PodReadinessGate{{ConditionType: podops.ServiceReadyCondition}},
			Containers:     []corev1.Container{{Name: "web", Image: before}},
		},
	}
}

// pod makes a Pod.
func (s *story) pod(name string, change ...func(*corev1.Pod)) {
	s.Helper()
	like := template()
	pod := &corev1.Pod{ObjectMeta: like.ObjectMeta, Spec: like.Spec}
	pod.Namespace, pod.Name = s.namespace, name
	for _, c := range change {
		c(pod)
	}
	require.NoError(s, s.Create(s.Context(), pod))
}

// serve makes that many Pods, web-00 and on, and waits until all serve.
func (s *story) serve(n int, change ...func(*corev1.Pod)) []string {
	s.Helper()
	var all []string
	for i := range n {
		name := fmt.Sprintf("web-%02d", i)
		s.pod(name, change...)
		all = append(all, name)
	}
	s.untilServing(all...)
	return all
}

func (s *story) untilServing(pods ...string) {
	s.Helper()
	s.until(strings.Join(pods, ", ")+" serve", func() bool { return s.serving(pods...) == len(pods) })
}

// serving counts the Pods that serve and on which nothing is under way.
func (s *story) serving(pods ...string) int {
	s.Helper()
	return s.count(pods, func(_ *corev1.Pod, v podops.View) bool {
		return v.Ready && v.ServiceAvailable() && !v.Terminating && len(podops.Operations(v)) == 0
	})
}

// done counts the Pods that have been operated on and serve again.
func (s *story) done(pods ...string) int {
	s.Helper()
	return s.count(pods, func(pod *corev1.Pod, v podops.View) bool {
		return pod.Spec.Containers[0].Image == after && v.Ready && v.ServiceAvailable() && len(podops.Operations(v)) == 0
	})
}

// waiting counts the Pods that have not been let go.
func (s *story) waiting(pods ...string) int {
	s.Helper()
	return s.count(pods, func(_ *corev1.Pod, v podops.View) bool {
		phase := podops.PhaseOf(v, id)
		return phase == podops.PhaseRequested || phase == podops.PhasePreCheck
	})
}

// out counts the Pods that have been let go and are not back.
func (s *story) out(pods ...string) int {
	s.Helper()
	return s.count(pods, func(_ *corev1.Pod, v podops.View) bool {
		phase := podops.PhaseOf(v, id)
		return phase != podops.PhaseNone && phase != podops.PhaseRequested && phase != podops.PhasePreCheck
	})
}

// notReady counts the Pods that are out of service as the observer sees it.
func (s *story) notReady(pods ...string) int {
	s.Helper()
	return s.count(pods, func(_ *corev1.Pod, v podops.View) bool { return !v.Ready })
}

func (s *story) count(pods []string, is func(*corev1.Pod, podops.View) bool) int {
	s.Helper()
	n := 0
	for _, pod := range s.pods() {
		if slices.Contains(pods, pod.Name) && is(&pod, podops.Read(&pod)) {
			n++
		}
	}
	return n
}

func (s *story) get(name string) *corev1.Pod {
	s.Helper()
	pod := &corev1.Pod{}
	require.NoError(s, s.Get(s.Context(), client.ObjectKey{Namespace: s.namespace, Name: name}, pod))
	return pod
}

// ask begins the operation on all these Pods together, as an operator does that knows two labels.
func (s *story) ask(pods ...string) {
	s.Helper()
	var all sync.WaitGroup
	errs := make([]error, len(pods))
	for i, name := range pods {
		body := merge(map[string]any{
			podops.OperatingPrefix + "/" + id:     fmt.Sprint(time.Now().UnixNano()),
			podops.OperationTypePrefix + "/" + id: opType,
		})
		all.Go(func() { errs[i] = s.Patch(s.Context(), s.named(name), body) })
	}
	all.Wait()
	require.NoError(s, errors.Join(errs...))
}

func (s *story) named(pod string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: pod}}
}

// merge is a patch of labels; nil takes one away.
func merge(labels map[string]any) client.Patch {
	body, err := json.Marshal(map[string]any{"metadata": map[string]any{"labels": labels}})
	if err != nil {
		panic(err) // strings only
	}
	return client.RawPatch(types.MergePatchType, body)
}

func (s *story) label(pod string, labels map[string]any) {
	s.Helper()
	require.NoError(s, s.Patch(s.Context(), s.named(pod), merge(labels)))
}

// crash ends the containers of Pods; recover starts them.
func (s *story) crash(pods ...string) {
	s.Helper()
	for _, name := range pods {
		s.sick[name] = true
	}
	s.until(strings.Join(pods, ", ")+" are down", func() bool {
		return s.count(pods, func(_ *corev1.Pod, v podops.View) bool { return !v.Ready && !v.ContainersReady }) == len(pods)
	})
}

func (s *story) recover(pods ...string) {
	for _, name := range pods {
		delete(s.sick, name)
	}
}

// work keeps the operator busy with Pods that it is let have; finish ends that.
func (s *story) work(pods ...string) {
	for _, name := range pods {
		s.busy[name] = true
	}
}

func (s *story) finish() { clear(s.busy) }

// atMost is a check that lets so many Pods be out of service.
func atMost(bound string) appsv1alpha1.TransitionRule {
	value := intstr.Parse(bound)
	return check("available",
		appsv1alpha1.TransitionRuleDefinition{AvailablePolicy: &appsv1alpha1.AvailableRule{MaxUnavailableValue: &value}})
}

// atLeast is a check that keeps so many Pods in service.
func atLeast(bound string) appsv1alpha1.TransitionRule {
	value := intstr.Parse(bound)
	return check("available",
		appsv1alpha1.TransitionRuleDefinition{AvailablePolicy: &appsv1alpha1.AvailableRule{MinAvailableValue: &value}})
}

// requires is a check that demands a label.
func requires(label string) appsv1alpha1.TransitionRule {
	return check("needs-"+label, appsv1alpha1.TransitionRuleDefinition{
		LabelCheck: &appsv1alpha1.LabelCheckRule{Requires: &metav1.LabelSelector{MatchLabels: map[string]string{label: "yes"}}},
	})
}

func check(name string, d appsv1alpha1.TransitionRuleDefinition) appsv1alpha1.TransitionRule {
	return appsv1alpha1.TransitionRule{Name: name, TransitionRuleDefinition: d}
}

// web selects the Pods of the template.
var web = map[string]string{"app": "web"}

// aRule is an object that has not been created.
func (s *story) aRule(
	name string, selects map[string]string, checks ...appsv1alpha1.TransitionRule,
) *appsv1alpha1.PodTransitionRule {
	return &appsv1alpha1.PodTransitionRule{
		ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: name},
		Spec:       appsv1alpha1.PodTransitionRuleSpec{Selector: &metav1.LabelSelector{MatchLabels: selects}, Rules: checks},
	}
}

// rule creates one for the Pods of the template, and waits until it has been evaluated.
func (s *story) rule(name string, checks ...appsv1alpha1.TransitionRule) *appsv1alpha1.PodTransitionRule {
	s.Helper()
	return s.ruleFor(name, web, checks...)
}

func (s *story) ruleFor(
	name string, selects map[string]string, checks ...appsv1alpha1.TransitionRule,
) *appsv1alpha1.PodTransitionRule {
	s.Helper()
	rule := s.aRule(name, selects, checks...)
	require.NoError(s, s.Create(s.Context(), rule))
	s.until("rule "+name+" is evaluated", func() bool { return s.status(rule).ObservedGeneration == rule.Generation })
	return rule
}

func (s *story) status(rule *appsv1alpha1.PodTransitionRule) appsv1alpha1.PodTransitionRuleStatus {
	s.Helper()
	now := &appsv1alpha1.PodTransitionRule{}
	require.NoError(s, s.Get(s.Context(), client.ObjectKeyFromObject(rule), now))
	return now.Status
}

// untilCounted waits until the rule says how many Pods may go on and how many wait.
func (s *story) untilCounted(rule *appsv1alpha1.PodTransitionRule, granted, blocked int) {
	s.Helper()
	s.until(fmt.Sprintf("rule %s grants %d and blocks %d", rule.Name, granted, blocked), func() bool {
		status := s.status(rule)
		return int(status.Granted) == granted && int(status.Blocked) == blocked
	})
}

// requireOut says how many Pods of the rule were out of service at a time, at most, as the observer saw it.
func (s *story) requireOut(rule *appsv1alpha1.PodTransitionRule, most int) {
	s.Helper()
	seen, known := s.observer.Settled(s.Context()).Rule(s.namespace, rule.Name)
	require.True(s, known, "the observer has seen the rule")
	require.Equal(s, most, seen.MaxOut, "Pods of rule %s out of service at a time", rule.Name)
}

func (s *story) edit(object client.Object, body string) {
	s.Helper()
	require.NoError(s, s.Patch(s.Context(), object, client.RawPatch(types.MergePatchType, []byte(body))))
}
