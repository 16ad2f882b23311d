package setplan_test

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
	"kusionstack.io/kuperator/internal/collaset/setplan"
)

var (
	web, shop = types.NamespacedName{Name: "web"}, types.NamespacedName{Name: "shop"}
	noon      = time.Unix(1_700_000_000, 0)
)

// queued are Pods of these names.
func queued(names ...string) (all []setplan.Queued) {
	for _, name := range names {
		all = append(all, setplan.Queued{NextPod: setplan.NextPod{Name: name, UID: types.UID(name)}, Version: "1"})
	}
	return all
}

// allowing is a plan by which these may begin.
func allowing(names ...string) setplan.WindowPlan {
	return setplan.WindowPlan{Allowed: queued(names...)}
}

func names(a setplan.Answer) (chosen []string) {
	for _, c := range a.Begin {
		chosen = append(chosen, c.Pod.Name)
	}
	return chosen
}

// version is a Pod at a version.
func version(name, version string) *setplan.Pod {
	return &setplan.Pod{View: podops.View{Name: name, UID: types.UID(name), ResourceVersion: version,
		Labels: map[string]string{podops.ServiceAvailableLabel: "1"}}}
}

// sent sends the begin of a Pod.
func sent(w *setplan.Window, set types.NamespacedName, name string) bool {
	pod := version(name, "1")
	change, err := podops.Begin(pod.View, podops.Request{ID: setplan.OperatorID, Type: podops.TypeUpdate}, noon)
	if err != nil {
		panic(err)
	}
	begun := change.Apply(pod.View)
	return w.Send(set, pod, &begun)
}

// places are limits with so many Pods in flight.
func places(n int) setplan.Limits {
	limits := setplan.DefaultLimits()
	limits.InFlight = n
	return limits
}

// back has a Pod come back, in a version after that which its begin was sent on.
func back(w *setplan.Window, set types.NamespacedName, name string, now time.Time) setplan.Answer {
	sent(w, set, name)
	return w.Back(set, types.UID(name), "2", now)
}

func TestOnlyPodsThatAreOursToMoveTakeAPlace(t *testing.T) {
	limits := places(2)
	w := setplan.NewWindow(limits)
	a := w.Planned(web, allowing("a", "b", "c", "d"), noon)
	require.Equal(t, []string{"a", "b"}, names(a))
	require.Equal(t, 3*time.Second, a.Look, "a Pod that does not move on is held up by something unknown")
	require.True(t, sent(w, web, "a"))

	a = w.Moved(web, "a", false, noon)
	require.Empty(t, a.Begin, "a kubelet that answers at once gives back the next one")
	require.Equal(t, 250*time.Millisecond, a.Look)
	at := noon.Add(250 * time.Millisecond)
	require.Equal(t, []string{"c"}, names(w.Tick(at)), "one that takes long does not hold up others")

	require.Empty(t, w.Moved(web, "a", true, at).Begin)
	taken, waiting := w.Counts(at)
	require.Equal(t, []int{3, 1}, []int{taken, waiting}, "who moves on takes a place in any case")
	require.Empty(t, names(back(w, web, "a", at)))
	require.Equal(t, []string{"d"}, names(w.Tick(noon.Add(3*time.Second))))
	require.Zero(t, w.Tick(noon.Add(time.Minute)).Look, "nothing waits")
}

func TestPodsBeyondTheBudgetBeginAsOthersComeBack(t *testing.T) {
	w := setplan.NewWindow(setplan.DefaultLimits())
	plan := setplan.WindowPlan{
		Allowed: queued("a"), Next: queued("b", "c", "d"), Spare: -1, UnderWay: map[types.UID]bool{"x": false, "y": false},
	}
	require.Equal(t, []string{"a"}, names(w.Planned(web, plan, noon)))
	require.True(t, sent(w, web, "a"))
	require.True(t, w.Follows(web))
	require.Empty(t, names(back(w, web, "a", noon)), "more are unavailable than may be")
	require.Equal(t, []string{"b"}, names(back(w, web, "x", noon)))
	w.Lost(web)
	require.Empty(t, names(back(w, web, "b", noon)), "another is unavailable by itself")
	require.Equal(t, []string{"c"}, names(back(w, web, "y", noon)))
	require.Empty(t, names(back(w, shop, "z", noon)), "of another CollaSet")
	require.Equal(t, []string{"d"}, names(back(w, web, "c", noon)))
	require.False(t, w.Follows(web))
}

// TestAnEventThatComesLate is about a Pod that the last decision saw in service already.
func TestAnEventThatComesLate(t *testing.T) {
	plan := setplan.WindowPlan{Allowed: queued("a"), Next: queued("b", "c")}
	for name, begins := range map[string]func(*setplan.Window){
		"a Pod that has nothing to do":        func(*setplan.Window) {},
		"a Pod that is chosen again":          func(w *setplan.Window) { require.NotNil(t, w.Chosen(web, "a")) },
		"a Pod whose begin is on its way":     func(w *setplan.Window) { require.True(t, sent(w, web, "a")) },
		"a Pod of which nothing is known yet": func(w *setplan.Window) { w.Hold(shop, noon) },
	} {
		t.Run(name, func(t *testing.T) {
			w := setplan.NewWindow(setplan.DefaultLimits())
			require.Equal(t, []string{"a"}, names(w.Planned(web, plan, noon)))
			begins(w)
			for _, late := range []types.UID{"a", "x"} {
				require.Empty(t, names(w.Back(web, late, "1", noon)))
			}
		})
	}
	w := setplan.NewWindow(setplan.DefaultLimits())
	w.Planned(web, plan, noon)
	require.True(t, sent(w, web, "a"))
	require.Equal(t, []string{"b"}, names(back(w, web, "a", noon)), "it went out and came back")
	require.Empty(t, names(back(w, web, "a", noon)), "once")
}

func TestADecisionThatReadsTakesBackWhatIsNotSent(t *testing.T) {
	w := setplan.NewWindow(places(2))
	require.Equal(t, []string{"a", "b"}, names(w.Planned(web, allowing("a", "b", "c"), noon)))
	require.Empty(t, names(w.Planned(shop, allowing("s"), noon)))
	require.True(t, sent(w, web, "a"))
	require.Equal(t, []string{"s"}, names(w.Hold(web, noon)), "its place is free")
	require.False(t, sent(w, web, "b"))
	require.Nil(t, w.Chosen(web, "b"))
	require.Empty(t, names(back(w, web, "x", noon)))

	read := []setplan.Pod{*version("a", "1"), *version("b", "1")}
	w.Foresee(web, read)
	require.True(t, podops.IsDuring(read[0].View, setplan.OperatorID, podops.TypeUpdate),
		"what was begun and is not seen yet counts as begun")
	require.False(t, podops.IsDuring(read[1].View, setplan.OperatorID, podops.TypeUpdate))
	seen := []setplan.Pod{*version("a", "2")}
	w.Foresee(web, seen)
	require.False(t, podops.IsDuring(seen[0].View, setplan.OperatorID, podops.TypeUpdate),
		"and when it is seen, what is seen counts")
}

func TestABeginThatFailed(t *testing.T) {
	a := version("a", "1")
	w := setplan.NewWindow(setplan.DefaultLimits())
	w.Planned(web, allowing("a"), noon)
	require.True(t, sent(w, web, "a"))
	require.False(t, w.Failed(web, a), "it may be sent again")
	require.True(t, sent(w, web, "a"))
	w.Hold(web, noon)
	require.True(t, w.Failed(web, a), "a decision may have counted on it")
	require.False(t, sent(w, web, "a"))

	require.True(t, w.Send(web, a, nil), "another step needs no choice")
	require.False(t, w.Send(web, a, nil), "one on each version")
	require.True(t, w.Send(web, version("a", "2"), nil))
	require.True(t, w.Failed(web, version("a", "2")))
	require.True(t, w.Send(web, version("a", "2"), nil))
}

func TestCollaSetsTakeTurns(t *testing.T) {
	w := setplan.NewWindow(places(1))
	require.Equal(t, []string{"a"}, names(w.Planned(web, allowing("a", "b", "c", "d"), noon)))
	require.Empty(t, names(w.Planned(shop, allowing("s", "t"), noon)))
	var order []string
	for last := "a"; last != ""; {
		a := back(w, web, last, noon)
		if last = ""; len(a.Begin) > 0 {
			last = a.Begin[0].Pod.Name
			order = append(order, last)
			w.Forget(types.NamespacedName{Name: "unknown"}, noon)
			if a.Begin[0].Set == shop {
				a = back(w, shop, last, noon)
				for _, c := range a.Begin {
					order, last = append(order, c.Pod.Name), c.Pod.Name
				}
			}
		}
	}
	require.Equal(t, []string{"b", "s", "c", "t", "d"}, order, "a small CollaSet does not wait for a large one")
}

func TestAPodThatIsNotFitGivesItsPlaceBack(t *testing.T) {
	w := setplan.NewWindow(places(1))
	w.Planned(web, allowing("a", "b"), noon)
	require.Equal(t, []string{"b"}, names(w.Drop(web, "a", noon)))
	require.Empty(t, names(w.Planned(shop, allowing("s"), noon)))
	require.Equal(t, []string{"s"}, names(w.Forget(web, noon)))
}

func TestWhoseTurnItIsToMoveAPod(t *testing.T) {
	at := podops.Stamp(noon)
	with := func(prefixes ...string) *setplan.Pod {
		p := version("a", "1")
		p.View.Gate, p.View.Ready = true, true
		p.View.Labels[podops.OperatingPrefix+"/"+setplan.OperatorID] = at
		p.View.Labels[podops.OperationTypePrefix+"/"+setplan.OperatorID] = podops.TypeUpdate
		p.View.Labels[podops.PermissionPrefix+"/"+podops.TypeUpdate] = at
		for _, prefix := range prefixes {
			p.View.Labels[prefix+"/"+setplan.OperatorID] = at
		}
		return p
	}
	allowed := []string{podops.PreCheckedPrefix, podops.PreparingPrefix, podops.OperatePrefix}
	set := func(p *setplan.Pod, change func(*setplan.Pod)) *setplan.Pod { change(p); return p }
	notReady := func(p *setplan.Pod) { p.View.Ready = false }
	for name, tc := range map[string]struct {
		pod  *setplan.Pod
		ours bool
	}{
		"asked for": {with(), true},
		"held by a rule": {set(with(podops.PreCheckPrefix), func(p *setplan.Pod) {
			p.View.Annotations = map[string]string{podops.RuleDetailPrefix + "/web": "{}"}
		}), false},
		"its kubelet has to say that it is not Ready": {with(podops.PreCheckedPrefix, podops.PreparingPrefix), false},
		"a cooperator has to leave": {set(with(podops.PreCheckedPrefix, podops.PreparingPrefix), func(p *setplan.Pod) {
			p.View.Ready, p.View.Finalizers = false, []string{podops.ProtectionFinalizerPrefix + "/lb"}
		}), false},
		"out of service":       {set(with(podops.PreCheckedPrefix, podops.PreparingPrefix), notReady), true},
		"allowed":              {set(with(allowed...), notReady), true},
		"changed":              {set(with(allowed...), func(p *setplan.Pod) { p.Recorded = true }), false},
		"carried out":          {set(with(allowed...), func(p *setplan.Pod) { p.Recorded, p.Carried = true, true }), true},
		"nothing is under way": {version("a", "1"), true},
	} {
		assert.Equal(t, tc.ours, setplan.NextIsOurs(tc.pod), name)
	}
}

// windowed plays events in any order on a Window, and judges every answer by its own model.
type windowed struct {
	*rapid.T
	limits setplan.Limits
	window *setplan.Window
	now    time.Time
	sets   map[types.NamespacedName]*windowedSet
	ours   map[types.UID]time.Time // since when a Pod is ours to move, or until when it counts as such
}

type windowedSet struct {
	left    []string // Pods that are to be updated
	may     map[string]bool
	next    []string
	spare   int
	chosen  map[string]bool
	under   map[string]bool // seen under way
	ourTurn map[string]bool
	known   map[string]bool // under way, as far as this process knows
}

func (w *windowed) heed(a setplan.Answer) {
	for _, c := range a.Begin {
		s := w.sets[c.Set]
		switch name := c.Pod.Name; {
		case s.may[name]:
			delete(s.may, name)
		default:
			require.Positive(w, s.spare, "%s is beyond the budget", name)
			require.NotEmpty(w, s.next)
			require.Equal(w, s.next[0], name, "in its order")
			s.next = s.next[1:]
			s.spare--
		}
		s.chosen[c.Pod.Name] = true
		w.ours[c.Pod.UID] = w.now.Add(w.limits.OursFor)
	}
	if len(a.Begin) > 0 {
		n := 0
		for _, until := range w.ours {
			if until.After(w.now) {
				n++
			}
		}
		require.LessOrEqual(w, n, w.limits.InFlight)
	}
}

// plan has a decision made about a CollaSet.
func (w *windowed) plan(set types.NamespacedName, budget int) {
	s := w.sets[set]
	s.may, s.next, s.spare = nil, nil, 0
	for name := range s.chosen {
		delete(w.ours, types.UID(name))
	}
	clear(s.chosen)
	w.heed(w.window.Hold(set, w.now))
	plan := setplan.WindowPlan{UnderWay: map[types.UID]bool{}}
	for name := range s.under {
		plan.UnderWay[types.UID(name)] = s.ourTurn[name]
		if !s.known[name] {
			s.known[name] = true
			w.takes(set, name)
		}
	}
	s.may = map[string]bool{}
	s.spare = budget - len(s.under)
	for _, name := range s.left {
		switch {
		case s.under[name]:
		case s.spare > 0:
			s.may[name] = true
			plan.Allowed = append(plan.Allowed, queued(name)...)
			s.spare--
		default:
			s.next = append(s.next, name)
			plan.Next = append(plan.Next, queued(name)...)
		}
	}
	plan.Spare = s.spare
	w.heed(w.window.Planned(set, plan, w.now))
}

// takes has a Pod take a place.
func (w *windowed) takes(set types.NamespacedName, name string) {
	w.ours[types.UID(name)] = w.now.Add(w.limits.HandoverFor)
	if w.sets[set].ourTurn[name] {
		w.ours[types.UID(name)] = w.now.Add(w.limits.OursFor)
	}
}

func (w *windowed) move(set types.NamespacedName, name string, ours bool) {
	s, uid := w.sets[set], types.UID(name)
	moved := s.ourTurn[name] != ours
	if s.ourTurn[name] = ours; moved && s.known[name] {
		w.takes(set, name)
	}
	w.heed(w.window.Moved(set, uid, ours, w.now))
}

func (w *windowed) begin(set types.NamespacedName, name string, fails bool) {
	s := w.sets[set]
	if !sent(w.window, set, name) {
		return
	}
	require.True(w, s.chosen[name], "%s was not chosen", name)
	if fails {
		require.False(w, w.window.Failed(set, version(name, "1")))
		return
	}
	delete(s.chosen, name)
	s.under[name], s.ourTurn[name], s.known[name] = true, true, true
}

func (w *windowed) back(set types.NamespacedName, name string) {
	s := w.sets[set]
	delete(s.under, name)
	delete(w.ours, types.UID(name))
	s.left = slices.DeleteFunc(s.left, func(other string) bool { return other == name })
	s.spare++
	w.heed(back(w.window, set, name, w.now))
}

// TestAWindowInAnyOrder: never more places than there are, never a Pod that no plan allows, all of them in the end,
// and nothing is lost that was only memory.
func TestAWindowInAnyOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := &windowed{T: t, now: noon, sets: map[types.NamespacedName]*windowedSet{}, ours: map[types.UID]time.Time{}}
		w.limits = places(rapid.IntRange(1, 4).Draw(t, "places"))
		w.window = setplan.NewWindow(w.limits)
		sets := []types.NamespacedName{web, shop, {Name: "third"}}[:rapid.IntRange(1, 3).Draw(t, "sets")]
		for _, set := range sets {
			s := &windowedSet{chosen: map[string]bool{}, under: map[string]bool{}, ourTurn: map[string]bool{},
				known: map[string]bool{}}
			for i := range rapid.IntRange(1, 8).Draw(t, "Pods") {
				s.left = append(s.left, fmt.Sprintf("%s-%d", set.Name, i))
			}
			w.sets[set] = s
		}
		budget := rapid.IntRange(1, 9).Draw(t, "budget")
		one := func(of map[string]bool) string {
			if len(of) == 0 {
				return ""
			}
			return rapid.SampledFrom(slices.Sorted(maps.Keys(of))).Draw(t, "Pod")
		}
		for range rapid.IntRange(0, 80).Draw(t, "events") {
			set := rapid.SampledFrom(sets).Draw(t, "set")
			s := w.sets[set]
			require.Equal(t, w.window.String(), w.window.Copy().String())
			switch rapid.IntRange(0, 7).Draw(t, "what") {
			case 0:
				w.plan(set, budget)
			case 1, 2:
				if name := one(s.chosen); name != "" {
					w.begin(set, name, rapid.Bool().Draw(t, "fails"))
				}
			case 3:
				if name := one(s.under); name != "" {
					w.move(set, name, rapid.Bool().Draw(t, "ours"))
				}
			case 4:
				if name := one(s.under); name != "" {
					w.back(set, name)
				}
			case 5:
				w.now = w.now.Add(rapid.SampledFrom([]time.Duration{time.Second / 8, time.Second, 4 * time.Second}).Draw(t, "time"))
				w.heed(w.window.Tick(w.now))
			case 6: // the process ends, and another begins
				w.window = setplan.NewWindow(w.limits)
				clear(w.ours)
				for _, s := range w.sets {
					s.may, s.next, s.spare = nil, nil, 0
					clear(s.chosen)
					clear(s.known)
				}
			case 7:
				w.window.Lost(set)
				s.spare--
			}
		}
		for range 100 {
			done := true
			for _, set := range sets {
				s := w.sets[set]
				done = done && len(s.left) == 0
				w.plan(set, budget)
				for _, of := range sets { // soon
					for _, name := range slices.Sorted(maps.Keys(w.sets[of].chosen)) {
						w.begin(of, name, false)
					}
				}
				for _, name := range slices.Sorted(maps.Keys(s.under)) {
					w.move(set, name, false)
					w.move(set, name, true)
					w.back(set, name)
				}
			}
			if done {
				return
			}
		}
		t.Fatalf("not all begin: %s", w.window)
	})
}

// TestARolloutThroughTheWindow plays whole rollouts: decisions are rare, Pods begin by the window, and now and then
// all that it knows is lost.
func TestARolloutThroughTheWindow(t *testing.T) {
	settled := newWorld(30)
	settled.run(always)
	rapid.Check(t, func(t *rapid.T) {
		begin := *settled
		w := &begin
		w.Pods, w.Entries, w.log = slices.Clone(w.Pods), slices.Clone(w.Entries), nil
		w.older = rapid.Bool().Draw(t, "lifecycle-controller is older")
		w.Policy = rapid.SampledFrom([]appsv1alpha1.PodUpdatePolicy{appsv1alpha1.PodUpdateInPlaceIfPossible,
			appsv1alpha1.PodUpdateRecreate}).Draw(t, "policy")
		w.MaxUnavailable = rapid.SampledFrom([]int{1, 3, 30}).Draw(t, "maxUnavailable")
		passes := sometimes(rapid.Uint64().Draw(t, "seed"), rapid.Float64Range(0.5, 1).Draw(t, "chance"))
		w.template("r2")
		w.Partition = rapid.SampledFrom([]int{0, 2, 29}).Draw(t, "partition")
		goal := w.Replicas - w.Partition
		rest := rapid.IntRange(1, 12).Draw(t, "rounds from one decision to the next")
		limits := places(rapid.IntRange(1, 30).Draw(t, "places"))
		window := setplan.NewWindow(limits)
		var plan setplan.Plan
		heed := func(a setplan.Answer) {
			for _, c := range a.Begin {
				p := w.find(c.Pod.Name)
				if q := window.Chosen(web, c.Pod.UID); p != nil && q != nil && q.MayBegin(plan.Rollout, p) &&
					sentOn(window, p, q.Request) && passes() {
					begins := []setplan.Begin{{Pod: p, Request: q.Request}}
					w.apply(setplan.Plan{PodActions: setplan.PodActions{Begins: begins}}, always)
				} else if p != nil {
					window.Failed(web, p)
				}
			}
			out := 0
			for _, p := range w.live() {
				if !p.Available || podops.IsDuring(p.View, setplan.OperatorID, podops.TypeUpdate) {
					out++
				}
			}
			require.LessOrEqual(t, out+w.Replicas-len(w.live()), w.MaxUnavailable, "%v", w.log)
			require.LessOrEqual(t, w.atRevision("r2"), goal, "a partition holds")
		}
		for range 4000 / rest {
			if w.underWay() == 0 && w.atRevision("r2") == goal && len(w.live()) == w.Replicas {
				return
			}
			if rapid.IntRange(0, 9).Draw(t, "crash") == 0 {
				window = setplan.NewWindow(limits)
			}
			heed(window.Hold(web, w.Now))
			window.Foresee(web, slices.Clone(w.Pods))
			plan = setplan.Decide(&w.Snapshot)
			a := window.Planned(web, setplan.WindowPlanOf(&w.Snapshot, &plan), w.Now)
			now := plan
			now.Begins = nil
			w.apply(now, passes)
			heed(a)
			for range rest {
				before := map[types.UID]podops.View{}
				for _, p := range w.live() {
					before[p.UID()] = p.View
				}
				w.settle(passes)
				for name, step := range due(w, plan.Rollout) {
					w.step(name, step)
				}
				for _, p := range w.live() {
					if setplan.Back(before[p.UID()], p.View) {
						heed(window.Back(web, p.UID(), p.View.ResourceVersion, w.Now))
					} else {
						heed(window.Moved(web, p.UID(), setplan.NextIsOurs(p), w.Now))
					}
				}
				heed(window.Tick(w.Now))
			}
		}
		t.Fatalf("%d of %d: %s", w.atRevision("r2"), goal, window)
	})
}

func sentOn(w *setplan.Window, pod *setplan.Pod, request podops.Request) bool {
	change, err := podops.Begin(pod.View, request, noon)
	if err != nil {
		return false
	}
	begun := change.Apply(pod.View)
	return w.Send(web, pod, &begun)
}
