package grants

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
)

// someGroups are those that Pods of properties are of: two sets have a group of the same index, "" is none.
var someGroups = []string{"", "shop/0", "shop/1", "shop/2", "mail/0"}

// genSnapshot is a namespace in any state whatever, the ledger included.
func genSnapshot() *rapid.Generator[Snapshot] {
	return rapid.Custom(func(t *rapid.T) Snapshot {
		s := Snapshot{Now: testNow, Nodes: someNodes(),
			Frozen: rapid.SampledFrom([]string{"", "", "night"}).Draw(t, "frozen")}
		for i := range rapid.IntRange(0, 7).Draw(t, "pods") {
			p := aPod(fmt.Sprintf("p%d", i))
			for _, step := range rapid.SliceOfN(rapid.IntRange(0, 11), 0, 3).Draw(t, "state") {
				seconds := rapid.IntRange(0, 3).Draw(t, "since")
				switch step {
				case 0, 1, 2:
					p.asks(seconds)
				case 3:
					p.asksAs("other", seconds)
				case 4:
					p.operates(seconds)
				case 5:
					p.finished(seconds)
				case 6:
					p.down()
				case 7:
					p.terminating()
				case 8:
					p.terminal()
				case 9:
					p.unmanaged()
				case 10:
					p.label("app", "other")
				case 11:
					p.skips("available")
				}
			}
			p.on(rapid.SampledFrom([]string{"", "a1", "a2", "b1", "c1", "plain", "unknown"}).Draw(t, "node"))
			p.ownedBy(rapid.SampledFrom([]string{"", "set", "job"}).Draw(t, "owner"))
			p.grouped(rapid.SampledFrom(someGroups).Draw(t, "group"))
			s.Pods = append(s.Pods, p.Pod)
		}
		s.Owners = []Owner{{UID: "set", Replicas: int32(rapid.IntRange(0, 6).Draw(t, "replicas")),
			PodLabels: map[string]string{"app": "web"}}}
		for i := range rapid.IntRange(0, 3).Draw(t, "rules") {
			r := aRule(fmt.Sprintf("r%d", i))
			for range rapid.IntRange(0, 2).Draw(t, "checks") {
				r.Spec.Rules = append(r.Spec.Rules, rapid.SampledFrom([]appsv1alpha1.TransitionRule{
					maxUnavailable("1"), maxUnavailable("50%"), available("", "1"), available("", ""), webhook(), webhook(),
					atPostCheck(webhook()), requires("app", "web"),
					atPostCheck(requires("app", "web")), atPostCheck(maxUnavailable("1")), filtered(maxUnavailable("1"), "app", "web"),
					zones(1, ""), zones(2, "2"), groupsOf(1, ""), groupsOf(2, "2"), zonesAndGroups(1, 2),
					expFuncs(&appsv1alpha1.ExpFunc{Coeff: "0.5"}, nil),
					expFuncs(nil, &appsv1alpha1.ExpFunc{Pow: "0.5"}),
				}).Draw(t, "check"))
			}
			s.Rules = append(s.Rules, r)
		}
		for _, r := range s.Rules { // whatever was written before
			for i := range s.Pods {
				if !rapid.Bool().Draw(t, "granted") {
					continue
				}
				r.Status.Grants = append(r.Status.Grants, appsv1alpha1.PodGrant{
					PodName: s.Pods[i].Name, PodUID: s.Pods[i].UID, Stage: rapid.SampledFrom(stages[:]).Draw(t, "stage"),
					Operations: []appsv1alpha1.GrantedOperation{{ID: "op", Type: "update",
						Request: stamp(rapid.IntRange(0, 3).Draw(t, "request"))}},
					Rules: []appsv1alpha1.RuleReference{
						{Name: r.Name, UID: r.UID}, {Name: "named",
							UID: types.UID(rapid.SampledFrom([]string{"r0-uid", "r1-uid", "gone"}).Draw(t, "named"))},
					},
				})
			}
		}
		s.Answers = genAnswers(t, Decide(s).Questions)
		return s
	})
}

// genAnswers answers some of the questions, and some that are not asked.
func genAnswers(t *rapid.T, questions []Question) map[Subject]Answer {
	answers := map[Subject]Answer{}
	for _, q := range questions {
		about := q.Subject
		switch rapid.IntRange(0, 4).Draw(t, "about") {
		case 0:
			continue
		case 1:
			about.Pod = "p0-uid"
		case 2:
			about.Operations = OperationsKey([]appsv1alpha1.GrantedOperation{{ID: "op", Type: "update", Request: stamp(1)}})
		}
		answers[about] = Answer{Passed: rapid.Bool().Draw(t, "passed"),
			Reason: rapid.SampledFrom([]string{"", "no"}).Draw(t, "reason")}
	}
	return answers
}

func TestOrderOfInputsDoesNotMatterAndInputsAreNotChanged(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := genSnapshot().Draw(t, "snapshot")
		copied := s
		copied.Rules, copied.Pods = after(s.Rules, Plan{}, 0), slices.Clone(s.Pods)
		random := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))
		random.Shuffle(len(copied.Pods), func(i, j int) { copied.Pods[i], copied.Pods[j] = copied.Pods[j], copied.Pods[i] })
		random.Shuffle(len(copied.Rules), func(i, j int) {
			copied.Rules[i], copied.Rules[j] = copied.Rules[j],
				copied.Rules[i]
		})
		before := after(s.Rules, Plan{}, 0)
		if diff := cmp.Diff(Decide(s), Decide(copied), cmpopts.EquateEmpty()); diff != "" {
			t.Fatalf("another order gives another plan:\n%s", diff)
		}
		if diff := cmp.Diff(before, s.Rules, cmpopts.EquateEmpty()); diff != "" {
			t.Fatalf("the snapshot was changed:\n%s", diff)
		}
	})
}

func TestAnyLedgerComesToRest(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := genSnapshot().Draw(t, "snapshot")
		s = settled(s)
		require.Empty(t, Decide(s).Statuses)
	})
}

// grantedOperations is everything that the rules grant at a stage.
func grantedOperations(
	rules []*appsv1alpha1.PodTransitionRule, stage appsv1alpha1.TransitionRuleStage,
) map[string]bool {
	all := map[string]bool{}
	for _, r := range rules {
		for _, g := range r.Status.Grants {
			for _, o := range g.Operations {
				if g.Stage == stage {
					all[fmt.Sprint(r.UID, g.PodUID, o)] = true
				}
			}
		}
	}
	return all
}

func TestWhileFrozenNothingNewIsGrantedAtPreCheckAndPostCheckGoesOn(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := genSnapshot().Draw(t, "snapshot")
		s.Frozen = "night"
		before := grantedOperations(s.Rules, appsv1alpha1.StagePreCheck)
		plan := Decide(s)
		frozen := after(s.Rules, plan, len(plan.Statuses))
		for each := range grantedOperations(frozen, appsv1alpha1.StagePreCheck) {
			require.True(t, before[each], "%s was granted", each)
		}
		for _, q := range plan.Questions {
			require.Equal(t, appsv1alpha1.StagePostCheck, q.Stage, "nobody is asked in vain")
		}
		s.Frozen = ""
		plan = Decide(s)
		require.Equal(t, grantedOperations(after(s.Rules, plan, len(plan.Statuses)), appsv1alpha1.StagePostCheck),
			grantedOperations(frozen, appsv1alpha1.StagePostCheck))
	})
}

// TestNoGrantWithoutAnAnswerToThisVeryQuestion: whatever a rule with a webhook newly grants, that webhook has let
// pass for this Pod and request.
func TestNoGrantWithoutAnAnswerToThisVeryQuestion(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := genSnapshot().Draw(t, "snapshot")
		plan := Decide(s)
		for i, r := range after(s.Rules, plan, len(plan.Statuses)) {
			for _, k := range compile(r, "").checks {
				for _, g := range r.Status.Grants {
					at := slices.IndexFunc(s.Pods, func(p Pod) bool { return p.UID == g.PodUID })
					p := &pod{Pod: &s.Pods[at], labels: s.Pods[at].Labels}
					if !k.webhook || !k.appliesTo(p, g.Stage) {
						continue
					}
					old := slices.IndexFunc(s.Rules[i].Status.Grants,
						func(o appsv1alpha1.PodGrant) bool { return o.PodUID == g.PodUID && o.Stage == g.Stage })
					if old < 0 && len(g.Operations) > 0 { // a rule that joins has the operations that others cover already
						requireAnswered(t, s, Subject{Rule: r.UID, Check: k.name, Pod: g.PodUID, Stage: g.Stage},
							waiting(observed(p), g.Stage))
					}
				}
			}
		}
	})
}

func observed(p *pod) *pod {
	p.managed, p.ops = true, podops.Operations(p.View)
	return p
}

func requireAnswered(t *rapid.T, s Snapshot, about Subject, waiting []podops.Operation) {
	var requests []appsv1alpha1.GrantedOperation
	for _, o := range waiting {
		requests = append(requests, operation(o))
	}
	about.Operations = OperationsKey(requests)
	require.True(t, s.Answers[about].Passed, "%v has a grant", about)
}

func TestBearingIsWhatTheProtocolSays(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := genSnapshot().Draw(t, "snapshot")
		for _, r := range s.Rules {
			mine, theirs := compile(r, ""), podops.CompileRule(r)
			for i := range s.Pods {
				for _, stage := range stages {
					p := &pod{Pod: &s.Pods[i], labels: s.Pods[i].Labels}
					require.Equal(t, theirs.BearsOn(s.Pods[i].View, stage), bears(mine, p, stage), "%s on %s", r.Name, p.Name)
				}
			}
		}
	})
}

// world is a namespace in which all participants act in any order: lifecycle-controller by the protocol's own
// functions, an operator, the kubelet, and the engine, whose view of the Pods lags and whose writes may break off.
type world struct {
	rules   []*appsv1alpha1.PodTransitionRule
	pods    []Pod
	seen    [][]Pod // what the engine has yet to see, oldest first
	owner   Owner
	clock   int
	birth   int
	frozen  string
	answers map[Subject]Answer
	asked   []Question // by the last plan
	lossy   bool       // Pods also fail by themselves
	editing bool       // rules come and go
	surging bool       // Pods are replaced by others, which come first
}

func (w *world) now() time.Time {
	w.clock++
	return testNow.Add(time.Duration(w.clock) * time.Millisecond)
}

func (w *world) changed() {
	w.seen = append(w.seen, slices.Clone(w.pods))
}

func (w *world) update(i int, c podops.Change) {
	if !c.IsZero() {
		w.pods[i].View = c.Apply(w.pods[i].View)
		w.changed()
	}
}

func (w *world) lifecycle(i int) (tookOffline bool) {
	p := &w.pods[i]
	wasUp := p.Ready && p.ServiceAvailable() && !p.Terminating
	compiled := make([]podops.Rule, len(w.rules))
	for j, r := range w.rules {
		compiled[j] = podops.CompileRule(r)
	}
	step := podops.Advance(p.View, podops.VerdictsFor(p.View, compiled), w.now())
	if step.IsZero() {
		return false
	}
	p.View = step.Apply(p.View)
	if step.ServiceReady != "" {
		p.ServiceReady = step.ServiceReady
		p.Ready = step.ServiceReady == corev1.ConditionTrue
	}
	w.changed()
	return wasUp && !p.Ready
}

func (w *world) engine(writes int) {
	s := Snapshot{
		Rules: w.rules, Pods: w.seen[0], Owners: []Owner{w.owner}, Nodes: someNodes(), Frozen: w.frozen, Answers: w.answers,
		Now: w.now(),
	}
	plan := Decide(s)
	w.asked = plan.Questions
	w.rules = after(w.rules, plan, writes)
}

// surge has another Pod come in the place of one, unless there is one already.
func (w *world) surge(i int) {
	p := w.pods[i]
	if _, isNew := p.Labels[appsv1alpha1.ReplacePairOriginNameLabel]; !w.surging || isNew || w.isReplaced(p) {
		return
	}
	w.birth++
	fresh := aPod(fmt.Sprintf("%s-new%d", p.Name, w.birth)).ownedBy("set").on(p.NodeName).down().
		label(appsv1alpha1.ReplacePairOriginNameLabel, p.Name)
	w.pods = append(slices.Clone(w.pods), fresh.Pod)
	w.changed()
}

// isReplaced reports whether another Pod was made in the place of this one.
func (w *world) isReplaced(p Pod) bool {
	return slices.ContainsFunc(w.pods, func(other Pod) bool {
		return other.Labels[appsv1alpha1.ReplacePairOriginNameLabel] == p.Name
	})
}

// enoughServe checks that what serves keeps all bounds, where Pods are replaced.
func (w *world) enoughServe(t *rapid.T) {
	up, n := 0, int(w.owner.Replicas)
	for _, p := range w.pods {
		if p.Ready && p.ServiceAvailable() && !p.Terminating {
			up++
		}
	}
	for _, r := range w.rules {
		for _, k := range compile(r, "").checks {
			if k.policy == nil {
				continue
			}
			k.policy.desired, k.policy.total = n, n
			k.policy.limit(false)
			require.GreaterOrEqual(t, up, n-k.policy.allowed, "%s: as many are in service", r.Name)
		}
	}
}

// unavailable is how many Pods are really out of service, of those the world should have.
func (w *world) unavailable() int {
	up, down := 0, 0
	for _, p := range w.pods {
		if p.Ready && p.ServiceAvailable() && !p.Terminating {
			up++
		} else {
			down++
		}
	}
	return down + max(0, int(w.owner.Replicas)-up-down)
}

// policies are what bounds the world now, with the rule that each belongs to.
func (w *world) policies() map[*policy]*appsv1alpha1.PodTransitionRule {
	all := map[*policy]*appsv1alpha1.PodTransitionRule{}
	for _, r := range w.rules {
		for _, k := range compile(r, "").checks {
			if k.policy != nil {
				k.policy.desired = int(w.owner.Replicas)
				k.policy.total = max(int(w.owner.Replicas), len(w.pods))
				k.policy.limit(false)
				all[k.policy] = r
			}
		}
	}
	return all
}

// zonesOf and groupsOfPods are the domains of Pods.
func zonesOf(pods []Pod) map[string]bool {
	all := map[string]bool{}
	for _, p := range pods {
		all[someNodes()[p.NodeName][zone]] = true
	}
	return all
}

func groupsOfPods(pods []Pod) map[string]bool {
	all := map[string]bool{}
	for _, p := range pods {
		if index, has := p.Labels[groupLabel]; has {
			all["group "+p.Labels[setLabel]+"/"+index] = true
		} else {
			all["Pod "+p.Name] = true
		}
	}
	return all
}

// requireFewDomains checks that the Pods are in no more domains than checks of the rule allow.
func requireFewDomains(t *rapid.T, r *appsv1alpha1.PodTransitionRule, pods []Pod, are string) {
	for i := range r.Spec.Rules {
		policy := r.Spec.Rules[i].AvailablePolicy
		if policy == nil {
			continue
		}
		if in := zonesOf(pods); policy.Topology != nil && len(in) > int(*policy.Topology.MaxDisruptedDomains) {
			t.Fatalf("%s: zones %v %s, of %d allowed", r.Name, in, are, *policy.Topology.MaxDisruptedDomains)
		}
		if in := groupsOfPods(pods); policy.Groups != nil && len(in) > int(*policy.Groups.MaxDisruptedGroups) {
			t.Fatalf("%s: groups %v %s, of %d allowed", r.Name, in, are, *policy.Groups.MaxDisruptedGroups)
		}
	}
}

// inBounds checks that what is out of service keeps all bounds.
func (w *world) inBounds(t *rapid.T) {
	var down []Pod
	for _, p := range w.pods {
		if !p.Ready || !p.ServiceAvailable() || p.Terminating {
			down = append(down, p)
		}
	}
	out, n := w.unavailable(), int(w.owner.Replicas)
	for policy, r := range w.policies() {
		if policy.max != nil || policy.maxFunc != nil {
			require.LessOrEqual(t, out, policy.allowed, "%s: as many are out of service", r.Name)
		}
		keep := 0
		if policy.min != nil {
			keep, _ = scaled(policy.min, n, false)
		} else if policy.minFunc != nil {
			keep = policy.minFunc.of(n, false)
		}
		require.GreaterOrEqual(t, max(n, len(w.pods))-out, keep, "%s: as many are in service", r.Name)
		requireFewDomains(t, r, down, "are disrupted")
	}
}

func newWorld(t *rapid.T) *world {
	n := rapid.IntRange(2, 5).Draw(t, "replicas")
	w := &world{answers: map[Subject]Answer{},
		owner: Owner{UID: "set", Replicas: int32(n), PodLabels: map[string]string{"app": "web"}}}
	nodes := slices.Sorted(maps.Keys(someNodes()))
	for i := range n + rapid.SampledFrom([]int{0, 0, 2}).Draw(t, "surplus") {
		w.pods = append(w.pods, aPod(fmt.Sprintf("p%d", i)).ownedBy("set").
			on(rapid.SampledFrom(nodes).Draw(t, "node")).grouped(rapid.SampledFrom(someGroups).Draw(t, "group")).Pod)
	}
	for i := range rapid.IntRange(1, 3).Draw(t, "rules") {
		w.rules = append(w.rules, aRule(fmt.Sprintf("r%d", i), w.check(t)))
	}
	w.changed()
	return w
}

func (w *world) check(t *rapid.T) appsv1alpha1.TransitionRule {
	return rapid.SampledFrom([]appsv1alpha1.TransitionRule{
		maxUnavailable("1"), maxUnavailable("2"), available("", "1"), maxUnavailable("50%"), requires("app", "web"),
		atPostCheck(requires("app", "web")),
		available("", "60%"), zones(1, ""), zones(2, "2"), groupsOf(1, ""), groupsOf(1, "50%"), groupsOf(2, ""),
		zonesAndGroups(1, 2), zonesAndGroups(2, 1), webhook(), atPostCheck(webhook()),
		expFuncs(&appsv1alpha1.ExpFunc{Coeff: "0.7", Pow: "0.9"}, nil), expFuncs(nil, &appsv1alpha1.ExpFunc{Pow: "0.5"}),
	}).Draw(t, "check")
}

// answer is what webhooks say to some of the questions.
func (w *world) answer(t *rapid.T) {
	answers := maps.Clone(w.answers)
	for _, q := range w.asked {
		if rapid.Bool().Draw(t, "answered") {
			answers[q.Subject] = Answer{Passed: rapid.SampledFrom([]bool{true, true, false}).Draw(t, "passed"),
				Reason: "no"}
		}
	}
	w.answers = answers
}

// act has one of the world's participants do something.
func (w *world) act(t *rapid.T) {
	i := rapid.IntRange(0, len(w.pods)-1).Draw(t, "pod")
	p := w.pods[i]
	id := rapid.SampledFrom([]string{"op", "other"}).Draw(t, "id")
	op := podops.OperationOf(p.View, id)
	switch action := rapid.IntRange(0, 15).Draw(t, "action"); action {
	case 0, 1: // one Pod, or all at once
		request := podops.Request{ID: id, Type: rapid.SampledFrom([]string{"update", "scale-in"}).Draw(t, "type")}
		for j := range w.pods {
			if j == i || action == 0 {
				begin, err := podops.Begin(w.pods[j].View, request, w.now())
				require.NoError(t, err)
				w.update(j, begin)
			}
		}
	case 2:
		if podops.Allowed(p.View, id, op.Type) {
			w.update(i, podops.Finish(p.View, id, op.Type, w.now()))
		}
	case 3:
		w.update(i, podops.Cancel(p.View, id, w.now()))
	case 4: // recreated by its operator, or not any more
		for range w.pods {
			if podops.Allowed(p.View, id, op.Type) {
				break
			}
			i = (i + 1) % len(w.pods)
			p = w.pods[i]
			op = podops.OperationOf(p.View, id)
		}
		if !podops.Allowed(p.View, id, op.Type) {
			return
		}
		if len(w.pods) > int(w.owner.Replicas) && (!w.surging || w.isReplaced(p)) {
			w.pods = slices.Delete(slices.Clone(w.pods), i, i+1)
			w.changed()
		} else {
			w.birth++
			fresh := aPod(p.Name).ownedBy("set").on(p.NodeName).down()
			for _, key := range []string{groupLabel, setLabel} {
				if v, has := p.Labels[key]; has {
					fresh.label(key, v)
				}
			}
			fresh.UID = types.UID(fmt.Sprintf("%s-%d", p.Name, w.birth))
			w.pods[i] = fresh.Pod
			w.changed()
		}
	case 5: // the kubelet: a new Pod becomes Ready
		if !p.Ready && p.ServiceReady == corev1.ConditionTrue && len(podops.Operations(p.View)) == 0 {
			w.pods[i].Ready = true
			w.changed()
		}
	case 6:
		if w.lossy && p.Ready {
			w.pods[i].Ready = false
			w.changed()
		}
	case 7:
		w.edit(t)
		w.surge(i)
	case 8: // the engine's cache comes on
		w.seen = w.seen[rapid.IntRange(0, len(w.seen)-1).Draw(t, "seen"):]
	case 9, 10:
		w.engine(rapid.IntRange(0, 3).Draw(t, "writes"))
	case 11: // and its writes do not break off
		w.seen = w.seen[len(w.seen)-1:]
		w.engine(len(w.rules))
	case 12:
		w.answer(t)
	case 13:
		w.frozen = rapid.SampledFrom([]string{"", "", "", "night"}).Draw(t, "frozen")
	default: // one Pod, or all
		for j := range w.pods {
			if j != i && action != 14 || !w.lifecycle(j) || w.lossy || w.editing {
				continue
			}
			if w.surging {
				w.enoughServe(t)
			} else {
				w.inBounds(t)
			}
		}
	}
}

// edit adds, removes or changes a rule.
func (w *world) edit(t *rapid.T) {
	if !w.editing {
		return
	}
	i := rapid.IntRange(0, len(w.rules)).Draw(t, "rule")
	w.rules = after(w.rules, Plan{}, 0)
	switch {
	case i == len(w.rules):
		w.birth++
		if len(w.rules) < 4 {
			w.rules = append(w.rules, aRule(fmt.Sprintf("late%d", w.birth), w.check(t)))
		}
	case rapid.Bool().Draw(t, "remove"):
		w.rules = slices.Delete(w.rules, i, i+1)
	default:
		w.rules[i].Generation++
		w.rules[i].Spec.Rules = []appsv1alpha1.TransitionRule{w.check(t)}
	}
}

// grantsInBounds checks that no rule ever grants more Pods than it allows.
func (w *world) grantsInBounds(t *rapid.T) {
	for policy, r := range w.policies() {
		var granted []Pod
		for _, p := range w.pods {
			if slices.ContainsFunc(r.Status.Grants,
				func(g appsv1alpha1.PodGrant) bool { return g.PodUID == p.UID && g.Stage == appsv1alpha1.StagePreCheck }) {
				granted = append(granted, p)
			}
		}
		if len(granted) > policy.allowed {
			t.Fatalf("%s grants %d of %d allowed", r.Name, len(granted), policy.allowed)
		}
		requireFewDomains(t, r, granted, "hold grants")
	}
}

func TestNeverMoreOutOfServiceThanAllowed(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(t)
		for range rapid.IntRange(20, 120).Draw(t, "steps") {
			w.act(t)
			w.grantsInBounds(t)
		}
	})
}

// TestAReplacedPodIsNoLoss has Pods replaced under rules that let few Pods go, or none: those that are replaced go, and
// never do fewer serve than the rules demand.
func TestAReplacedPodIsNoLoss(t *testing.T) {
	gone := 0
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(t)
		w.surging, w.pods = true, w.pods[:w.owner.Replicas]
		for _, r := range w.rules {
			r.Spec.Rules = []appsv1alpha1.TransitionRule{rapid.SampledFrom([]appsv1alpha1.TransitionRule{
				maxUnavailable("0"), maxUnavailable("1"), available("", "100%"), available("", "1"), available("0", "60%"),
			}).Draw(t, "bound")}
		}
		for i := range int(w.owner.Replicas) {
			if rapid.Bool().Draw(t, "replaced") {
				w.surge(i)
			}
		}
		for i := range w.pods {
			w.pods[i].Ready = true
		}
		w.seen = nil
		w.changed()
		for range rapid.IntRange(20, 160).Draw(t, "steps") {
			before := len(w.pods)
			w.act(t)
			if len(w.pods) < before {
				gone++
			}
		}
	})
	require.Positive(t, gone, "a Pod was replaced and went")
}

func TestNeverMoreGrantedThanAllowedWhenPodsFail(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(t)
		w.lossy = true
		for range rapid.IntRange(20, 120).Draw(t, "steps") {
			w.act(t)
			w.grantsInBounds(t)
		}
	})
}

// String shows who waits for what.
func (w *world) String() string {
	var b strings.Builder
	for _, p := range w.pods {
		fmt.Fprintf(&b, "%s ready %t available %t: %v\n", p.Name, p.Ready, p.ServiceAvailable(), podops.Operations(p.View))
	}
	for _, r := range w.rules {
		fmt.Fprintf(&b, "%s grants %v\n  details %v\n", r.Name, r.Status.Grants, r.Status.Details)
	}
	return b.String()
}

// TestEverythingAskedForHappens: whatever happened before, once Pods recover, operators finish what they began and
// rules are not edited, every request is served and the ledger is empty.
func TestEverythingAskedForHappens(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(t)
		w.lossy, w.editing = rapid.Bool().Draw(t, "lossy"), rapid.Bool().Draw(t, "editing")
		for range rapid.IntRange(20, 80).Draw(t, "steps") {
			w.act(t)
		}
		w.frozen = ""
		for range 400 {
			for i := range w.pods {
				w.lifecycle(i)
				p := w.pods[i]
				for _, o := range podops.Operations(p.View) {
					if podops.Allowed(p.View, o.ID, o.Type) {
						w.update(i, podops.Finish(p.View, o.ID, o.Type, w.now()))
					}
				}
				if !p.Ready && w.pods[i].ServiceReady == corev1.ConditionTrue && !podops.Offline(w.pods[i].View) {
					w.pods[i].Ready = true
					w.changed()
				}
			}
			w.seen = w.seen[len(w.seen)-1:]
			w.engine(1) // dies after every write
			for _, q := range w.asked {
				w.answers[q.Subject] = Answer{Passed: true}
			}
		}
		for _, p := range w.pods {
			require.Empty(t, podops.Operations(p.View), "%s still waits\n%s", p.Name, w)
		}
		for _, r := range w.rules {
			require.Empty(t, r.Status.Grants, r.Name)
		}
	})
}
