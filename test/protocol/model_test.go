// Package protocol searches all interleavings of the suite's real decision
// functions over a small store: the cores of collaset-controller,
// lifecycle-controller, podtransitionrule-controller and
// resourceconsist-controller, other operators (with the SDK of api/podops, or
// with bare labels), a kubelet, an EndpointSlice controller, a workload that
// replaces Pods, users, lost Pods, crashes and changes of leader.
//
// What is modelled of the API server: one object, one version; a write succeeds
// only on the version it was decided on. An actor that reads and writes one
// object therefore always acts on its present state or fails, so staleness is
// modelled where it matters: what the rule engine and collaset-controller know of
// Pods, and what lifecycle-controller knows of rules and of the freeze. A cache
// follows one watch, so what it holds is some past state of all objects of its
// kind: "sees" steps bring it to the present one, at any time or never.
//
// docs/safety.md says what is shown by this, and what is not.
package protocol_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
	"kusionstack.io/kuperator/internal/collaset/setplan"
	"kusionstack.io/kuperator/internal/podtransitionrule/grants"
	"kusionstack.io/kuperator/internal/testkit/explorer"
)

const (
	maxPods   = 4
	maxRules  = 2
	maxWrites = maxRules
	finalizer = "prot.podopslifecycle.kusionstack.io/e54505f60aa10ceb"
	employer  = "Service/default/server"
	// tested is a label that a PostCheck rule asks for.
	tested = "tested"
)

// now never changes, but for requests: no decision may depend on it.
var now = time.Unix(1_700_000_000, 0)

// scenario is what to search.
type scenario struct {
	pods int
	// replicas is what the owner of the Pods wants; 0 means as many as there are.
	replicas  int
	rules     []ruleSpec
	operators []operator
	collaset  bool // collaset-controller updates all Pods from revision 1 to 2, in place
	recreate  bool // it deletes them, and the workload's part is to create others
	surge     bool // it creates others first, under the IDs that are free, and keeps entries for that
	// unavailable is how many Pods its updates may take out of service at a time, as its window begins them; 0 is a
	// collaset-controller without a window, which begins what a decision allows. places is how many may be the suite's
	// to move.
	unavailable, places int
	// cooperator is true if resourceconsist-controller and a Service have every Pod; unannounced that a Pod
	// that is created does not say so from the beginning.
	cooperator, unannounced bool
	// secondLifecycle is another process of lifecycle-controller with its own cache: leader change and two leaders in one.
	secondLifecycle bool

	budget
	defects
	maxStates int
}

// budget bounds what cannot be relied on: users' whims and bad luck.
type budget struct {
	losses    int8 // Pods that stop being Ready by themselves
	evictions int8 // Pods that are deleted past the protocol and replaced under the same name
	failovers int8 // crashes or changes of leader of the rule engine
	oldLeader int8 // decisions that a leader makes after it has lost its Lease
	relapses  int8 // times that a kubelet that lags reports Ready although the gate is off
	cancels   int8 // operations that are taken back
	rollbacks int8 // times that the CollaSet is set back to its other revision
	creations int8 // rules, the last ones, that are created midway
	deletions int8 // rules, the last ones, that are deleted midway
	lowerings int8 // times that the first rule's maxUnavailable becomes one less
	marks     int8 // Pods that are marked to-delete
	unmarks   int8 // marks that are taken away again
	freezes   int8 // times that everything is frozen
	refusals  int8 // times that the webhook says no
	absences  int8 // times that a cooperator is taken for absent
	restarts  int8 // times that collaset-controller is restarted
	drains    int8 // Pods that are evicted, of a CollaSet that has another Pod come first
	opens     int8 // times that the node of such a Pod takes Pods again
	lates     int8 // times that its window hears of a Pod after its cache shows it
}

// defects are planted to show that the search finds them.
type defects struct {
	staleLeader bool // a new leader decides on its warm cache, without a fresh read
	blindWrites bool // the engine writes without resourceVersion, and does not wait to see its own writes
	ruleByRule  bool // the engine decides for each rule alone
	oneGrant    bool // lifecycle-controller takes the grant of one rule for that of all
	thawed      bool // lifecycle-controller ignores the freeze
	grantByName bool // lifecycle-controller knows grants by the Pod's name
	formerSpec  bool // lifecycle-controller lets grants of a former spec count
	hastyAct    bool // operators act as soon as they see "operate", whatever Ready says, and it is granted while Ready
	lax         bool // only states are checked, not steps: to show that a defect breaks the bound too
	trusting    bool // a leader does not read Pods afresh when it sees grants that it has not written
	rash        bool // webhook-server has an evicted Pod deleted that is to be replaced first
	hopeful     bool // collaset-controller takes every Pod for available
	forgetful   bool // collaset-controller creates new Pods before it has stored for whom
	unheld      bool // operators are let act at once on a Pod that went out without its cooperator
	unforeseen  bool // collaset-controller's window does not tell decisions what it has begun
	strict      bool // involuntary losses are counted against voluntary actions, whenever they happen
}

// ruleSpec is a PodTransitionRule.
type ruleSpec struct {
	max    int   // maxUnavailable; none if min is set
	min    int   // minAvailable; 0 is none
	pods   []int // the Pods that it selects; nil selects all
	tested bool  // at PostCheck, a Pod must be labelled as tested
	asks   bool  // at PreCheck, a webhook is asked
}

// operator is a program that wants to act once on every Pod.
type operator struct {
	id      string
	deletes bool // acting is deleting; the workload replaces the Pod if it is missed
	raw     bool // knows two labels and no SDK
	first   bool // acts on the first Pod only
}

// sdk are operators in place.
func sdk(ids ...string) []operator {
	var out []operator
	for _, id := range ids {
		out = append(out, operator{id: id})
	}
	return out
}

// podObject is one version of a Pod, or of its absence.
type podObject struct {
	view podops.View
	// gone is true if there is no such Pod; only the name, born, done and ours mean something.
	gone bool
	// born counts the Pods of this name before.
	born int8
	// ours is true if the Pod is missing, or not yet in service, because of a voluntary action.
	ours bool
	done int // bit per operator that has acted
	lost bool
	// revision is the CollaSet's; 0 without one. recorded is true if a change in place was made and not yet finished.
	revision int8
	recorded bool
	// request is the one that the record names.
	request string
	// listed is true if the Service's EndpointSlice has the Pod as ready.
	listed bool
	// begun counts requests: each has its own value, as clocks go on.
	begun int
}

// at is the time by the Pod's writers.
func (p podObject) at() time.Time { return now.Add(time.Duration(p.begun)) }

// out reports whether the Pod is out of service by our doing.
func (p podObject) out() bool {
	return p.ours || !p.gone && p.view.ServiceReady == corev1.ConditionFalse
}

// state is the store, the caches that may lag behind it, and what is under way.
// Pods and rules are numbers of versions; 0 is an object that does not exist.
type state struct {
	pods  [maxPods]int32
	rules [maxRules]int32

	lifecycleRules [maxRules]int32
	secondRules    [maxRules]int32 // only with secondLifecycle
	enginePods     [maxPods]int32
	engineRules    [maxRules]int32
	standbyPods    [maxPods]int32 // only with staleLeader
	collasetPods   [maxPods]int32 // only with collaset
	old            oldLeader
	target         int8 // revision that the CollaSet asks for
	// entries is the ResourceContext, only with surge: collaset-controller, its one writer, always sees it. ahead is true
	// if it has written a Pod and not yet seen that, so that it decides nothing.
	entries int32
	ahead   bool
	window  int32 // what collaset-controller knows of who begins, only with unavailable
	// late is the number of a Pod, from 1, of which the window has yet to hear what its cache shows, and lateFrom what
	// it was before; 0 if it has heard everything.
	late     int8
	lateFrom int32

	// pending and ghost are what a leader, and one that lost its Lease, still mean to write.
	pending, ghost [maxWrites]ruleWrite
	// unseen are the rules, as bits, that the engine has written and not yet seen so.
	unseen uint8
	// foreign is true if another process has written rules since the engine's last look at them.
	foreign bool
	// frozen says who knows of the freeze.
	frozen freeze
	// answers are what the webhook has said about each Pod, by number.
	answers [maxPods]int32
	// credit are the Pods, as bits, that had permission or were out before a rule was what it is now.
	credit [maxRules]uint8
	left   budget
}

// freeze is whether nothing may be taken out of service, and which components know.
type freeze struct {
	set, lifecycle, second, engine bool
}

// answer is what the webhook has said about a Pod.
type answer struct {
	subject grants.Subject
	passed  bool
}

// oldLeader is the rule engine in a process that has lost its Lease and does not know yet.
type oldLeader struct {
	pods  [maxPods]int32
	rules [maxRules]int32
	left  int8 // decisions it will still make
	// waits is true if it has to see its own writes first; foreign that another process has written rules since its
	// last look at them.
	waits, foreign bool
}

type ruleWrite struct {
	set           bool
	rule          int8
	expected, new int32
}

// model interns versions and takes steps.
type model struct {
	scenario
	podVersions  []podObject
	podProblems  []error
	podIndex     map[string]int32
	ruleVersions []*appsv1alpha1.PodTransitionRule
	compiled     []podops.Rule
	ruleIndex    map[string]int32
	decided      map[ledgerKey]decision
	answered     []answer
	answerIndex  map[answer]int32
	advanced     map[advanceKey]advance
	moved        map[int32][]move
	planned      map[collaSetKey]collaSetDecision
	windows      []windowState
	windowIndex  map[string]int32
	contexts     [][]setplan.Entry
	contextIndex map[string]int32
}

func newModel(s scenario) *model {
	if s.replicas == 0 {
		s.replicas = s.pods
	}
	return &model{
		scenario:    s,
		podVersions: make([]podObject, 1), podProblems: make([]error, 1), podIndex: map[string]int32{},
		ruleVersions: make([]*appsv1alpha1.PodTransitionRule, 1), compiled: make([]podops.Rule, 1),
		ruleIndex: map[string]int32{},
		decided:   map[ledgerKey]decision{}, answered: make([]answer, 1), answerIndex: map[answer]int32{},
		advanced: map[advanceKey]advance{},
		moved:    map[int32][]move{}, planned: map[collaSetKey]collaSetDecision{}, contextIndex: map[string]int32{},
		windowIndex: map[string]int32{},
	}
}

// search searches the scenario whole and logs how much that was.
func search(t *testing.T, s scenario) (explorer.Result, error) {
	t.Helper()
	m := newModel(s)
	start := time.Now()
	result, err := explorer.Search(explorer.Model[state]{
		Initial: m.initial(), Steps: m.steps, Key: stateKey, Check: m.check, Goal: m.goal, MaxStates: s.maxStates, Fair: fair,
	})
	t.Logf("%d states, %d steps, depth %d, %d goal states, %d Pod versions, %d rule versions, %.1fs",
		result.States, result.Steps, result.Depth, result.Goals, len(m.podVersions)-1, len(m.ruleVersions)-1,
		time.Since(start).Seconds())
	return result, err
}

// fair reports whether a step may be counted on; users and bad luck may not.
func fair(name string) bool {
	for _, unfair := range []string{"user", "chance", "failover", "the old leader"} {
		if strings.HasPrefix(name, unfair) {
			return false
		}
	}
	return true
}

func (m *model) initial() state {
	s := state{left: m.budget}
	for i := range m.scenario.pods {
		p := m.newPod(i, 0)
		p.view.Ready, p.view.ContainersReady, p.view.ServiceReady = true, true, corev1.ConditionTrue
		delete(p.view.Labels, podops.CreatingLabel)
		p.view.Labels[podops.ServiceAvailableLabel] = "1"
		if m.cooperator {
			p.view.Finalizers = []string{finalizer}
			p.view = m.announced(p.view)
		}
		p.listed = m.cooperator
		if m.collaset {
			p.revision = 1
		}
		s.pods[i] = m.podVersion(p)
	}
	for k := range len(m.scenario.rules) - int(m.creations) {
		s.rules[k] = m.ruleVersion(m.newRule(k))
	}
	s.lifecycleRules, s.engineRules, s.enginePods = s.rules, s.rules, s.pods
	if m.secondLifecycle {
		s.secondRules = s.rules
	}
	if m.staleLeader {
		s.standbyPods = s.pods
	}
	if m.surge {
		m.leaveRoom(&s)
	}
	if m.collaset {
		s.collasetPods, s.target = s.pods, 2
		if m.drains > 0 {
			s.target = 1 // it is at rest
		}
	}
	if m.unavailable > 0 {
		s.window = m.newWindow()
	}
	return s
}

// newPod is a Pod as its workload creates it.
func (m *model) newPod(i int, born int8) podObject {
	v := podops.View{
		Namespace: "default", Name: fmt.Sprintf("p%d", i), UID: types.UID(fmt.Sprintf("u%d-%d", i, born)), Gate: true,
		Labels: map[string]string{appsv1alpha1.ControlLabel: appsv1alpha1.ControlValue, podops.CreatingLabel: "1"},
	}
	for k, r := range m.scenario.rules {
		if slices.Contains(r.pods, i) {
			v.Labels[ruleName(k)] = "yes"
		}
	}
	if m.cooperator && !m.unannounced {
		v = m.announced(v)
	}
	return podObject{view: v, born: born}
}

// announced is the Pod as admission leaves it: it names the Service as an employer.
func (m *model) announced(v podops.View) podops.View {
	expect, err := podops.Expect(v, employer, finalizer)
	if err != nil {
		panic(err)
	}
	return expect.Apply(v)
}

func ruleName(k int) string { return fmt.Sprintf("r%d", k) }

func (m *model) newRule(k int) *appsv1alpha1.PodTransitionRule {
	spec := m.scenario.rules[k]
	r := &appsv1alpha1.PodTransitionRule{}
	r.Namespace, r.Name, r.UID, r.ResourceVersion = "default", ruleName(k), types.UID(ruleName(k)), "1"
	r.Generation = 1
	r.Spec.Selector = &metav1.LabelSelector{}
	if spec.pods != nil {
		r.Spec.Selector.MatchLabels = map[string]string{ruleName(k): "yes"}
	}
	policy := &appsv1alpha1.AvailableRule{}
	if spec.min > 0 {
		policy.MinAvailableValue = ptr.To(intstr.FromInt(spec.min))
	} else {
		policy.MaxUnavailableValue = ptr.To(intstr.FromInt(spec.max))
	}
	r.Spec.Rules = []appsv1alpha1.TransitionRule{
		{Name: "available", TransitionRuleDefinition: appsv1alpha1.TransitionRuleDefinition{AvailablePolicy: policy}},
	}
	if spec.asks {
		r.Spec.Rules = append(r.Spec.Rules, appsv1alpha1.TransitionRule{
			Name: "asks", TransitionRuleDefinition: appsv1alpha1.TransitionRuleDefinition{
				Webhook: &appsv1alpha1.TransitionRuleWebhook{ClientConfig: appsv1alpha1.WebhookClientConfig{URL: "https://example.com/"}},
			},
		})
	}
	if spec.tested {
		r.Spec.Rules = append(r.Spec.Rules, appsv1alpha1.TransitionRule{
			Name: "tested", Stage: ptr.To(appsv1alpha1.StagePostCheck),
			TransitionRuleDefinition: appsv1alpha1.TransitionRuleDefinition{LabelCheck: &appsv1alpha1.LabelCheckRule{
				Requires: &metav1.LabelSelector{MatchLabels: map[string]string{tested: "yes"}},
			}},
		})
	}
	return r
}

func stateKey(s state) string {
	b := make([]byte, 0, 192)
	num := func(n int32) { b = append(b, byte(n), byte(n>>8), byte(n>>16)) }
	for _, list := range [][]int32{
		s.pods[:], s.rules[:], s.lifecycleRules[:], s.secondRules[:], s.enginePods[:], s.engineRules[:], s.standbyPods[:],
		s.collasetPods[:], s.old.pods[:], s.old.rules[:], s.answers[:],
	} {
		for _, n := range list {
			num(n)
		}
	}
	for _, list := range [][maxWrites]ruleWrite{s.pending, s.ghost} {
		for _, w := range list {
			if w.set {
				b = append(b, byte(w.rule))
				num(w.expected)
				num(w.new)
			}
		}
		b = append(b, 0xff)
	}
	b = append(b, s.credit[:]...)
	flags := byte(0)
	for n, flag := range []bool{s.old.waits, s.old.foreign, s.foreign, s.frozen.set, s.frozen.lifecycle, s.frozen.second,
		s.frozen.engine, s.ahead} {
		if flag {
			flags |= 1 << n
		}
	}
	b = append(b, flags, s.unseen, byte(s.old.left), byte(s.target))
	num(s.entries)
	num(s.window)
	b = append(b, byte(s.late))
	num(s.lateFrom)
	for _, n := range []int8{
		s.left.losses, s.left.evictions, s.left.failovers, s.left.oldLeader, s.left.relapses, s.left.cancels,
		s.left.rollbacks,
		s.left.creations, s.left.deletions, s.left.lowerings, s.left.marks, s.left.unmarks, s.left.freezes, s.left.refusals,
		s.left.restarts, s.left.lates, s.left.absences, s.left.drains, s.left.opens,
	} {
		b = append(b, byte(n))
	}
	return string(b)
}

// informational are the prefixes of labels whose values mean nothing.
var informational = []string{
	podops.PreCheckPrefix, podops.PreparingPrefix, podops.OperatePrefix, podops.PostCheckPrefix, podops.PostCheckedPrefix,
	podops.CompletingPrefix, podops.PermissionPrefix, podops.ServiceAvailableLabel, podops.CreatingLabel,
	podops.PreparingToDeleteLabel,
}

// podVersion is the number of a version. Values that mean nothing do not make another.
func (m *model) podVersion(p podObject) int32 {
	if p.gone {
		p = podObject{view: podops.View{Name: p.view.Name}, gone: true, born: p.born, ours: p.ours, done: p.done,
			begun: p.begun}
	}
	p.ours = p.ours && (p.gone || !p.view.ServiceAvailable())
	p.view.Labels = maps.Clone(p.view.Labels)
	var b strings.Builder
	for _, k := range slices.Sorted(maps.Keys(p.view.Labels)) {
		if prefix, _, _ := strings.Cut(k, "/"); slices.Contains(informational, prefix) || slices.Contains(informational, k) {
			p.view.Labels[k] = "1"
		}
		b.WriteString(k + "=" + p.view.Labels[k] + ",")
	}
	fmt.Fprintf(&b, "%s %v %v %v %v %v %v %v", p.view.Name, p.view.Annotations, p.view.Finalizers, p.view.ServiceReady,
		p.view.Ready,
		p.view.ContainersReady, p.view.Terminating, p.gone)
	fmt.Fprintf(&b, "%d %v %d %v %d %v %s %v %d", p.born, p.ours, p.done, p.lost, p.revision, p.recorded, p.request,
		p.listed, p.begun)
	key := b.String()
	id, ok := m.podIndex[key]
	if !ok {
		id = int32(len(m.podVersions))
		m.podIndex[key] = id
		p.view.ResourceVersion = strconv.Itoa(int(id))
		m.podVersions = append(m.podVersions, p)
		m.podProblems = append(m.podProblems, m.podProblem(p))
	}
	return id
}

func (m *model) ruleVersion(r *appsv1alpha1.PodTransitionRule) int32 {
	raw, err := json.Marshal(struct{ Spec, Status any }{r.Spec.Rules[0], r.Status})
	if err != nil {
		panic(err)
	}
	key := r.Name + string(raw)
	id, ok := m.ruleIndex[key]
	if !ok {
		id = int32(len(m.ruleVersions))
		m.ruleIndex[key] = id
		m.ruleVersions = append(m.ruleVersions, r)
		m.compiled = append(m.compiled, podops.CompileRule(r))
	}
	return id
}
