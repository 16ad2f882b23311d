package protocol_test

import (
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
	"kusionstack.io/kuperator/internal/collaset/setplan"
	"kusionstack.io/kuperator/internal/drain"
	"kusionstack.io/kuperator/internal/lifecycle/podphase"
	"kusionstack.io/kuperator/internal/resourceconsist/traffic"
	"kusionstack.io/kuperator/internal/testkit/explorer"
)

// steps lists everything that may happen next.
func (m *model) steps(s state) []explorer.Step[state] {
	w := walk{model: m, state: s}
	for i := range m.scenario.pods {
		w.ofPod(i)
		w.lifecycle(i)
		w.replace(i)
	}
	w.engine()
	w.oldEngine()
	w.lifecycleCaches()
	w.freeze()
	if m.collaset {
		w.collaSet()
	}
	w.userOfRules()
	for n := range w.out {
		m.settleCredit(&w.out[n].To)
	}
	return w.out
}

// walk collects the steps from a state.
type walk struct {
	*model
	state
	out []explorer.Step[state]
}

func (w *walk) add(name string, to state) { w.try(name, to, nil) }

func (w *walk) try(name string, to state, err error) {
	w.out = append(w.out, explorer.Step[state]{Name: name, To: to, Err: err})
}

func (w *walk) pod(i int) podObject { return w.podVersions[w.pods[i]] }

// with is the state with another version of a Pod.
func (w *walk) with(i int, p podObject) state {
	n := w.state
	n.pods[i] = w.podVersion(p)
	return n
}

// move is a step that depends on one Pod alone, and changes nothing else.
type move struct {
	name string
	to   int32 // the Pod's next version
	err  error
	// spend names what of the budget it costs; nil costs nothing.
	spend func(*budget) *int8
}

// ofPod is everything that happens to one Pod by what it is.
func (w *walk) ofPod(i int) {
	for _, mv := range w.moves(w.pods[i]) {
		n := w.state
		n.pods[i] = mv.to
		if mv.spend != nil {
			left := mv.spend(&n.left)
			if *left == 0 {
				continue
			}
			*left--
		}
		w.try(mv.name, n, mv.err)
	}
}

// moves are the steps of a version of a Pod.
func (m *model) moves(version int32) []move {
	if known, ok := m.moved[version]; ok {
		return known
	}
	l := local{model: m, p: m.podVersions[version]}
	if !l.p.gone {
		l.node()
		if !l.p.view.Terminating {
			l.operators()
			l.accident()
			l.user()
		}
	}
	m.moved[version] = l.out
	return l.out
}

// local collects the moves of one Pod.
type local struct {
	*model
	p   podObject
	out []move
}

func (l *local) add(what string, next podObject) { l.spend(nil, what, next, nil) }

func (l *local) try(what string, next podObject, err error) { l.spend(nil, what, next, err) }

func (l *local) spend(of func(*budget) *int8, what string, next podObject, err error) {
	if of != nil && *of(&l.scenario.budget) == 0 {
		return
	}
	l.out = append(l.out, move{fmt.Sprintf(what, l.p.view.Name), l.podVersion(next), err, of})
}

// changed is the Pod with a change of its metadata.
func (p podObject) changed(c podops.Change) podObject {
	p.view = c.Apply(p.view)
	return p
}

// labelled is the Pod with labels set, or removed where the value is nil.
func (p podObject) labelled(labels map[string]*string) podObject {
	return p.changed(podops.Change{Labels: labels})
}

// deleted is what is left of a Pod; ours is true if the protocol allowed it.
func (m *model) deleted(p podObject, ours bool) podObject {
	p.gone, p.ours = true, ours || p.out()
	p.done = 0
	if ours {
		p.done = m.allDone(p.view.Name) // the next one comes as its operators want it
	}
	return p
}

func (m *model) allDone(pod string) int {
	done := 0
	for o, by := range m.scenario.operators {
		if !by.first || pod == "p0" {
			done |= 1 << o
		}
	}
	return done
}

// operators are what each operator may do to one Pod.
func (l *local) operators() {
	for o, by := range l.scenario.operators {
		switch {
		case by.first && l.p.view.Name != "p0":
		case by.raw:
			l.rawOperator(o, by)
		default:
			l.operator(o, by)
		}
	}
}

func (l *local) operator(o int, by operator) {
	const opType = podops.TypeUpdate
	p, bit := l.p, 1<<o
	during := podops.IsDuring(p.view, by.id, opType)
	switch {
	case p.done&bit == 0 && !during:
		begin, err := podops.Begin(p.view, podops.Request{ID: by.id, Type: opType, Deletes: by.deletes}, p.at())
		next := p.changed(begin)
		next.begun++
		l.try("operator begins %s for "+by.id, next, err)
	case p.done&bit == 0 && (podops.Allowed(p.view, by.id, opType) || l.hastyAct &&
		podops.PhaseOf(p.view, by.id) == podops.PhaseOperate):
		l.act(o, by)
	case p.done&bit != 0 && during:
		l.add("operator finishes %s for "+by.id, p.changed(podops.Finish(p.view, by.id, opType, p.at())))
	}
}

// rawOperator is one that was written for upstream v0.7: it writes two labels, waits for a third, and looks at Ready.
func (l *local) rawOperator(o int, by operator) {
	p, bit := l.p, 1<<o
	operating := podops.OperatingPrefix + "/" + by.id
	_, during := p.view.Labels[operating]
	_, permitted := p.view.Labels[podops.OperatePrefix+"/"+by.id]
	switch {
	case p.done&bit == 0 && !during:
		next := p.labelled(map[string]*string{operating: ptr.To(podops.Stamp(p.at())),
			podops.OperationTypePrefix + "/" + by.id: ptr.To("restart")})
		next.begun++
		l.add("operator labels %s for "+by.id, next)
	case p.done&bit == 0 && permitted && !p.view.Ready:
		l.act(o, by)
	case p.done&bit != 0 && during:
		l.add("operator takes its label off %s for "+by.id, p.labelled(map[string]*string{operating: nil}))
	}
}

// act is the operation itself.
func (l *local) act(o int, by operator) {
	next := l.p
	next.done |= 1 << o
	if by.deletes {
		next = l.deleted(l.p, true)
	} else {
		next = next.labelled(map[string]*string{tested: nil})
	}
	l.try("operator acts on %s for "+by.id, next, mayBeTouched(l.p))
}

// advanceKey is what the next write of lifecycle-controller depends on.
type advanceKey struct {
	pod   int32
	rules [maxRules]int32
	// frozen is what it knows.
	frozen bool
	// later is true if time has passed: a cooperator that is missing counts as absent, and a Pod that went out without
	// one has waited for it.
	later bool
}

type advance struct {
	pod int32 // the next version, 0 if nothing is due
	err error
}

// lifecycle is lifecycle-controller's next write to a Pod, by any process of it.
func (w *walk) lifecycle(i int) {
	first := advanceKey{pod: w.pods[i], rules: w.lifecycleRules, frozen: w.frozen.lifecycle}
	second := advanceKey{pod: w.pods[i], rules: w.secondRules, frozen: w.frozen.second}
	w.lifecycleWith("lifecycle", i, first)
	w.lifecycleLater(i, first)
	if w.secondLifecycle && second != first {
		w.lifecycleWith("second lifecycle", i, second)
	}
}

func (w *walk) lifecycleWith(who string, i int, known advanceKey) {
	next := w.advance(known)
	if next.pod == 0 {
		return
	}
	n := w.state
	n.pods[i] = next.pod
	w.try(who+" advances "+w.pod(i).view.Name, n, next.err)
}

// lifecycleLater is its next write after some time. In the time that a Pod is held that went out without its
// cooperator, all others have taken note of that.
func (w *walk) lifecycleLater(i int, known advanceKey) {
	p := w.pod(i)
	known.later = true
	n := w.state
	name := "lifecycle ends the hold of "
	switch _, held := p.view.Labels[podops.UnheldLabel]; {
	case held && p.listed && !w.unheld:
		return
	case held:
	case w.left.absences > 0 && p.view.Ready && len(podops.MissingEmployers(p.view)) > 0:
		name = "chance: lifecycle takes the cooperator for absent of "
		n.left.absences--
	default:
		return
	}
	if next := w.advance(known); next.pod != 0 {
		n.pods[i] = next.pod
		w.try(name+p.view.Name, n, next.err)
	}
}

func (m *model) advance(key advanceKey) advance {
	if a, ok := m.advanced[key]; ok {
		return a
	}
	a := m.decideAdvance(m.podVersions[key.pod], key)
	m.advanced[key] = a
	return a
}

func (m *model) decideAdvance(p podObject, known advanceKey) advance {
	if p.gone {
		return advance{}
	}
	agreed := podphase.Verdict{At: p.at()}
	snapshot := podphase.Snapshot{Pod: p.view, Rules: m.rulesFor(p, known.rules), Deletion: agreed, Now: p.at()}
	if known.frozen && !m.thawed {
		snapshot.Frozen = "by the user"
	}
	if p.recorded {
		snapshot.Finish = podphase.Finish{ID: setplan.OperatorID, Type: podops.TypeUpdate, Request: p.request}
	}
	snapshot.Patience = time.Second
	if known.later {
		before := now.Add(-time.Hour)
		if len(podops.MissingEmployers(p.view)) > 0 && p.view.Ready {
			snapshot.MissingSince = before
		}
		if _, held := p.view.Labels[podops.UnheldLabel]; held {
			snapshot.Pod = podops.Change{Labels: map[string]*string{podops.UnheldLabel: ptr.To(podops.Stamp(before))}}.Apply(
				p.view)
		}
	}
	plan := podphase.Decide(snapshot)
	if plan.IsZero() {
		return advance{}
	}
	if plan.Delete {
		return advance{m.podVersion(m.deleted(p, true)), mayBeTouched(p)}
	}
	next := p
	next.view = plan.Step.Apply(snapshot.Pod)
	if before, after := podops.OperationOf(p.view, setplan.OperatorID),
		podops.OperationOf(next.view, setplan.OperatorID); p.recorded &&
		before.Phase == podops.PhaseOperate && after.Phase != podops.PhaseOperate {
		next.recorded, next.request = false, ""
	}
	if m.hastyAct && plan.Step.ServiceReady == corev1.ConditionFalse {
		next.view.Ready = true // as upstream does: the kubelet will say so later
	}
	if podops.OperationOf(next.view, podops.DeletionID).Request != podops.OperationOf(p.view, podops.DeletionID).Request {
		next.begun++
	}
	return advance{m.podVersion(next), m.mayPass(p, next, known)}
}

// rulesFor are the rules as lifecycle-controller reads them for a Pod.
func (m *model) rulesFor(p podObject, known [maxRules]int32) []podops.Rule {
	var rules []podops.Rule
	for _, r := range known {
		switch {
		case r == 0:
		case m.oneGrant || m.grantByName || m.formerSpec:
			rules = append(rules, m.misread(p, r))
		default:
			rules = append(rules, m.compiled[r])
		}
	}
	if m.oneGrant { // a rule that has not granted is passed over
		granted := slices.DeleteFunc(slices.Clone(rules), func(r podops.Rule) bool {
			return len(podops.VerdictsFor(p.view, []podops.Rule{r})) == 0
		})
		if len(granted) > 0 {
			return granted
		}
	}
	return rules
}

// misread is a rule as a defective lifecycle-controller reads it.
func (m *model) misread(p podObject, version int32) podops.Rule {
	r := m.ruleVersions[version].DeepCopy()
	for n := range r.Status.Grants {
		g := &r.Status.Grants[n]
		if m.oneGrant {
			g.Rules = nil
		}
		if m.formerSpec {
			g.Generation = r.Generation
		}
		if m.grantByName && g.PodName == p.view.Name {
			g.PodUID, g.Operations = p.view.UID, nil
			for _, o := range podops.Operations(p.view) {
				g.Operations = append(g.Operations, appsv1alpha1.GrantedOperation{ID: o.ID, Type: o.Type, Request: o.Request})
			}
		}
	}
	return podops.CompileRule(r)
}

// freeze is the emergency stop and who gets to see it. It ends, sooner or later.
func (w *walk) freeze() {
	if w.scenario.freezes == 0 {
		return
	}
	name := "the freeze ends"
	n := w.state
	n.frozen.set = !w.frozen.set
	if n.frozen.set {
		n.left.freezes--
		name = "user freezes everything"
	}
	if n.left.freezes >= 0 {
		w.add(name, n)
	}
	see := func(who string, of func(*freeze) *bool) {
		n := w.state
		if known := of(&n.frozen); *known != n.frozen.set {
			*known = n.frozen.set
			w.add(who+" sees whether it is frozen", n)
		}
	}
	see("lifecycle", func(f *freeze) *bool { return &f.lifecycle })
	see("engine", func(f *freeze) *bool { return &f.engine })
	if w.secondLifecycle {
		see("second lifecycle", func(f *freeze) *bool { return &f.second })
	}
}

// lifecycleCaches is what lifecycle-controller gets to see.
func (w *walk) lifecycleCaches() {
	if w.lifecycleRules != w.rules {
		n := w.state
		n.lifecycleRules = w.rules
		w.add("lifecycle sees the rules", n)
	}
	if w.secondLifecycle && w.secondRules != w.rules {
		n := w.state
		n.secondRules = w.rules
		w.add("second lifecycle sees the rules", n)
	}
}

// node is what the kubelet, the cooperator, the EndpointSlice controller and a tester do about a Pod.
func (l *local) node() {
	p := l.p
	ready := !p.lost && p.view.ServiceReady == corev1.ConditionTrue
	switch {
	case p.view.Terminating && !p.listed && !p.view.Protected():
		l.add("kubelet ends %s", l.deleted(p, false))
	case p.view.Terminating:
	case p.view.Ready != ready || p.view.ContainersReady == p.lost:
		next := p
		next.view.Ready, next.view.ContainersReady = ready, !p.lost
		l.add("kubelet reports %s", next)
	}
	if l.cooperator {
		if c := l.cooperate(p); !c.IsZero() {
			l.add("cooperator moves %s", p.changed(c))
		}
		if serves := p.view.Ready && !p.view.Terminating; p.listed != serves {
			next := p
			next.listed = serves
			l.add("slices follow %s", next)
		}
	}
	if l.waitsForTest(p) {
		l.add("tester passes %s", p.labelled(map[string]*string{tested: ptr.To("yes")}))
	}
}

func (m *model) waitsForTest(p podObject) bool {
	return slices.ContainsFunc(m.scenario.rules, func(r ruleSpec) bool { return r.tested }) &&
		p.view.Labels[tested] == "" &&
		slices.ContainsFunc(podops.Operations(p.view),
			func(o podops.Operation) bool { return o.Phase == podops.PhasePostCheck })
}

// replace is the workload's creation of a Pod that it misses.
func (w *walk) replace(i int) {
	p := w.pod(i)
	if !p.gone || w.surge {
		return
	}
	live := 0
	for j := range w.scenario.pods {
		if !w.pod(j).gone {
			live++
		}
	}
	if live >= w.replicas {
		return
	}
	next := w.newPod(i, p.born+1)
	next.ours, next.done, next.begun, next.revision = p.ours, p.done, p.begun, w.target
	w.add("workload creates "+p.view.Name, w.with(i, next))
}

// accident is what chance may do to a Pod.
func (l *local) accident() {
	p, next := l.p, l.p
	if p.lost {
		next.lost = false
		l.add("recovery of %s", next)
	} else if p.view.Ready {
		// Its slices follow at once: a Pod that fails by itself has lost its
		// requests, whatever is listed for the moment after.
		next.lost, next.view.Ready, next.view.ContainersReady, next.listed = true, false, false, false
		l.spend(func(b *budget) *int8 { return &b.losses }, "chance: loss of %s", next, nil)
	}
	next = p
	next.view.Terminating, next.lost = true, false
	l.spend(func(b *budget) *int8 { return &b.evictions }, "chance: deletion of %s", next, nil)
	if !p.lost && !p.view.Ready && p.view.ServiceReady == corev1.ConditionFalse {
		next = p
		next.view.Ready = true
		l.spend(func(b *budget) *int8 { return &b.relapses }, "chance: a kubelet that lags reports %s Ready", next, nil)
	}
}

// user is what users may do to a Pod.
func (l *local) user() {
	for _, o := range podops.Operations(l.p.view) {
		if c := podops.Cancel(l.p.view, o.ID, l.p.at()); !c.IsZero() {
			l.spend(func(b *budget) *int8 { return &b.cancels }, "user cancels "+o.ID+" on %s", l.p.changed(c), nil)
		}
	}
	l.evicted()
	if _, marked := l.p.view.Labels[appsv1alpha1.ToDeleteLabel]; marked {
		next := l.p.labelled(map[string]*string{appsv1alpha1.ToDeleteLabel: nil})
		l.spend(func(b *budget) *int8 { return &b.unmarks }, "user takes the mark off %s", next, nil)
	} else {
		next := l.p.labelled(map[string]*string{appsv1alpha1.ToDeleteLabel: ptr.To("1")})
		l.spend(func(b *budget) *int8 { return &b.marks }, "user marks %s to-delete", next, nil)
	}
}

// evicted is what webhook-server makes of an eviction, and what becomes of it when the Pod's node takes Pods again.
func (l *local) evicted() {
	policy := drain.Policy{OnEviction: appsv1alpha1.EvictionReplace}
	if !policy.Replaces(l.p.view, false) {
		return
	}
	mark := appsv1alpha1.ToReplaceLabel
	if l.rash {
		mark = appsv1alpha1.ToDeleteLabel
	}
	ask, err := podops.Mark(l.p.view, mark, "true", podops.AskerEviction)
	if err != nil {
		panic(err)
	}
	l.spend(func(b *budget) *int8 { return &b.drains }, "user evicts %s", l.p.changed(ask), nil)
	if podops.MarkedBy(l.p.view, mark, podops.AskerEviction) {
		next := l.p.changed(podops.Withdraw(l.p.view, mark, podops.AskerEviction))
		l.spend(func(b *budget) *int8 { return &b.opens }, "user uncordons the node of %s", next, nil)
	}
}

// userOfRules is what users may do to rules: the last may come and go, the first become stricter.
func (w *walk) userOfRules() {
	last := len(w.scenario.rules) - 1
	if w.left.creations > 0 {
		n := w.state
		k := slices.Index(n.rules[:], 0)
		n.rules[k] = w.ruleVersion(w.newRule(k))
		n.left.creations--
		w.add("user creates "+ruleName(k), n)
	}
	if w.left.deletions > 0 && w.rules[last] != 0 {
		n := w.state
		n.rules[last] = 0
		n.left.deletions--
		w.add("user deletes "+ruleName(last), n)
	}
	if w.left.lowerings > 0 {
		n := w.state
		r := w.ruleVersions[n.rules[0]].DeepCopy()
		policy := r.Spec.Rules[0].AvailablePolicy
		policy.MaxUnavailableValue = ptr.To(intstr.FromInt32(policy.MaxUnavailableValue.IntVal - 1))
		r.Generation++
		n.rules[0] = w.ruleVersion(r)
		n.left.lowerings--
		n.credit[0] = everybody
		w.add("user lowers maxUnavailable of "+r.Name, n)
	}
}

// cooperate is resourceconsist-controller's next write to a Pod.
func (m *model) cooperate(p podObject) podops.Change {
	return traffic.Decide(traffic.Snapshot{
		Pod: p.view, Managed: true, Kind: "Service", Now: now,
		Employers: []traffic.Employer{{
			Key: employer, Finalizer: finalizer,
			Backends: []traffic.Backend{{Adapter: "endpointslice", Employs: true, Serving: p.listed}},
		}},
	}).Change
}

// collaSet is what collaset-controller may do: any single action of the
// plan that it makes of the Pods it knows, under the version it knows.
func (w *walk) collaSet() {
	if w.unavailable > 0 {
		w.windowed()
	} else if w.ahead || w.collasetPods != w.pods {
		n := w.state
		n.collasetPods, n.ahead = w.pods, false
		w.add("collaset sees the Pods", n)
	}
	if w.left.rollbacks > 0 {
		n := w.state
		n.left.rollbacks--
		n.target = 3 - w.target
		w.add(fmt.Sprintf("user sets the CollaSet to revision %d", n.target), n)
	}
	if w.ahead {
		return
	}
	snapshot, plan := w.collaSetPlan()
	act := func(verb string, pod *setplan.Pod, change func(*podObject) error) {
		i := slices.IndexFunc(snapshot.Pods, func(p setplan.Pod) bool { return p.UID() == pod.UID() })
		i = snapshot.Pods[i].ID
		if w.collasetPods[i] != w.pods[i] {
			return // a conflict
		}
		next := w.pod(i)
		err := change(&next)
		to := w.with(i, next)
		if w.surge {
			to.ahead, to.entries = true, w.storedBefore(verb, plan)
		}
		w.try("collaset "+verb+" "+pod.Name(), to, err)
	}
	if w.surge {
		w.surges(act, plan)
	}
	for _, b := range plan.Begins {
		if w.unavailable > 0 {
			break // by the window
		}
		act("begins", b.Pod, func(p *podObject) error {
			c, err := podops.Begin(p.view, b.Request, p.at())
			*p = p.changed(c)
			p.begun++
			return err
		})
	}
	for _, change := range plan.Changes {
		act("changes", change.Pod, func(p *podObject) error {
			err := mayBeTouched(*p)
			p.revision, p.recorded = w.target, true
			p.request = podops.OperationOf(p.view, setplan.OperatorID).Request
			return err
		})
	}
	for _, pod := range plan.Finishes {
		act("finishes", pod, func(p *podObject) error {
			*p = p.changed(podops.Finish(p.view, setplan.OperatorID, podops.TypeUpdate, p.at()))
			p.recorded, p.request = false, ""
			return nil
		})
	}
	for _, pod := range plan.Cancels {
		act("cancels", pod, func(p *podObject) error {
			*p = p.changed(podops.Cancel(p.view, setplan.OperatorID, p.at()))
			p.recorded, p.request = false, ""
			return nil
		})
	}
	for _, deletion := range plan.Deletions {
		act("deletes", deletion.Pod, func(p *podObject) error {
			err := mayBeTouched(*p)
			if !w.recreate && w.replicas == w.scenario.pods {
				err = fmt.Errorf("a plan for an update in place deletes: %+v of %+v", plan.Deletions, snapshot.Pods)
			}
			*p = w.deleted(*p, true)
			return err
		})
	}
}

// collaSetKey is what a plan of collaset-controller depends on.
type collaSetKey struct {
	pods    [maxPods]int32
	target  int8
	entries int32
}

type collaSetDecision struct {
	snapshot setplan.Snapshot
	plan     setplan.Plan
}

func (w *walk) collaSetPlan() (setplan.Snapshot, setplan.Plan) {
	key := collaSetKey{w.collasetPods, w.target, w.entries}
	d, ok := w.planned[key]
	if !ok {
		d.snapshot = w.collaSetSnapshot()
		d.plan = setplan.Decide(&d.snapshot)
		w.planned[key] = d
	}
	return d.snapshot, d.plan
}

func (w *walk) collaSetSnapshot() setplan.Snapshot {
	revision := func(n int8) string { return fmt.Sprintf("web-%d", n) }
	policy := appsv1alpha1.PodUpdateInPlaceIfPossible
	if w.recreate {
		policy = appsv1alpha1.PodUpdateRecreate
	}
	snapshot := setplan.Snapshot{
		Mode:     setplan.Mode{Now: now, Protocol: true, Limits: setplan.DefaultLimits()},
		Identity: setplan.Identity{Name: "web"},
		Scale:    setplan.Scale{Replicas: w.replicas},
		Strategy: setplan.Strategy{Policy: policy},
		History: setplan.History{
			UpdatedRevision: revision(w.target), CurrentRevision: revision(1),
			Revisions: map[string]setplan.Difference{revision(1): {}, revision(2): {}},
		},
	}
	if w.surge {
		w.describeSurge(&snapshot)
		return snapshot
	}
	for i := range w.scenario.pods {
		p := w.podVersions[w.collasetPods[i]]
		of := p.revision
		if p.gone {
			if w.replicas < w.scenario.pods {
				continue // scaled in
			}
			of = w.target // its successor, which the workload of the model creates
		} else {
			_, marked := p.view.Labels[appsv1alpha1.ToDeleteLabel]
			snapshot.Pods = append(snapshot.Pods, setplan.Pod{
				View: p.view, ID: i, Revision: revision(p.revision), AllowedSince: now,
				Service: setplan.Service{Available: p.view.ServiceAvailable(), Scheduled: true},
				Marks:   setplan.Marks{Selected: true, ToDelete: marked},
				Change:  setplan.Change{Recorded: p.recorded, Carried: p.recorded},
			})
		}
		snapshot.Entries = append(snapshot.Entries, setplan.Entry{ID: i, Data: map[string]string{
			appsv1alpha1.ContextOwner: "web", appsv1alpha1.ContextRevision: revision(of),
		}})
	}
	return snapshot
}
