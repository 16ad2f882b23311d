package podops_test

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
)

var start = time.Unix(1_700_000_000, 0)

// pod is a small simulation of one Pod's life: a kubelet that follows the gate,
// a lifecycle-controller, and rules that say yes when allow does.
type pod struct {
	podops.View
	allow func(podops.Ask) bool
	now   time.Time
}

func newPod() *pod {
	return &pod{
		View:  podops.View{Name: "p", UID: "u", Gate: true, Labels: map[string]string{}},
		allow: func(podops.Ask) bool { return true },
		now:   start,
	}
}

func servingPod(t require.TestingT) *pod {
	p := newPod()
	p.settle()
	require.True(t, p.ServiceAvailable(), "a new Pod reaches service-available")
	return p
}

func (p *pod) tick() time.Time { p.now = p.now.Add(time.Second); return p.now }

func (p *pod) write(c podops.Change) { p.View = c.Apply(p.View) }

// lifecycle takes one step of lifecycle-controller and reports whether there was one.
func (p *pod) lifecycle() bool {
	verdicts := podops.Verdicts{}
	for _, o := range podops.Operations(p.View) {
		for _, stage := range []appsv1alpha1.TransitionRuleStage{appsv1alpha1.StagePreCheck, appsv1alpha1.StagePostCheck} {
			verdicts[podops.Ask{ID: o.ID, Stage: stage}] = p.allow(podops.Ask{ID: o.ID, Stage: stage})
		}
	}
	step := podops.Advance(p.View, verdicts, p.tick())
	if step.IsZero() {
		return false
	}
	p.View = step.Apply(p.View)
	return true
}

func (p *pod) kubelet() {
	p.ContainersReady = true
	p.Ready = !p.Gate || p.ServiceReady == corev1.ConditionTrue
}

func (p *pod) settle() {
	for range 50 {
		p.kubelet()
		if !p.lifecycle() {
			return
		}
	}
}

func (p *pod) begin(t require.TestingT, id, opType string) {
	c, err := podops.Begin(p.View, podops.Request{ID: id, Type: opType}, p.tick())
	require.NoError(t, err)
	p.write(c)
}

func (p *pod) finish(id, opType string) { p.write(podops.Finish(p.View, id, opType, p.tick())) }

func (p *pod) phase(id string) podops.Phase { return podops.PhaseOf(p.View, id) }

func (p *pod) onlyPrecheck(ids ...string) {
	p.allow = func(a podops.Ask) bool { return slices.Contains(ids, a.ID) }
}

func TestInPlaceUpdateTakesSixWrites(t *testing.T) {
	p := servingPod(t)
	writes := 0
	step := func() { require.True(t, p.lifecycle()); writes++ }

	p.begin(t, "collaset", podops.TypeUpdate)
	writes++
	assert.Equal(t, podops.PhasePreCheck, p.phase("collaset"))
	step() // grant and offline
	assert.Equal(t, podops.PhaseOperate, p.phase("collaset"))
	assert.Equal(t, corev1.ConditionFalse, p.ServiceReady)
	assert.False(t, p.Ready, "Ready=False is written with the gate")
	assert.False(t, p.ServiceAvailable())
	require.True(t, podops.Allowed(p.View, "collaset", podops.TypeUpdate))
	writes++ // the change itself
	p.finish("collaset", podops.TypeUpdate)
	writes++
	assert.Equal(t, podops.PhasePostCheck, p.phase("collaset"))
	step() // post-checked and online
	assert.Equal(t, podops.PhaseCompleting, p.phase("collaset"))
	assert.False(t, p.lifecycle(), "waits for the kubelet")
	p.kubelet()
	step() // available
	assert.True(t, p.ServiceAvailable())
	assert.Empty(t, podops.Operations(p.View))
	assert.Equal(t, 6, writes)
	assert.Empty(t, lifecycleKeys(p.View), "nothing is left behind")
}

func TestCooperatorCostsTwoWrites(t *testing.T) {
	const fin, employer = "prot.podopslifecycle.kusionstack.io/e54505f60aa10ceb", "Service/default/server"
	p := newPod()
	c, err := podops.Expect(p.View, employer, fin)
	require.NoError(t, err)
	p.write(c)
	p.settle()
	assert.False(t, p.ServiceAvailable(), "not in service before the cooperator has it")
	assert.Equal(t, podops.WaitExpected, podops.Explain(p.View, nil)[0].Reason)
	p.write(podops.Join(p.View, fin, p.tick()))
	assert.True(t, p.ServiceAvailable(), "the last to join completes, in its own write")

	p.begin(t, "op", "restart")
	require.True(t, p.lifecycle())
	assert.Equal(t, podops.PhasePreparing, p.phase("op"))
	assert.False(t, podops.Allowed(p.View, "op", "restart"))
	wait := podops.Explain(p.View, nil)[0]
	assert.Equal(t, podops.WaitFinalizer, wait.Reason)
	assert.Contains(t, wait.Message, employer)
	assert.True(t, podops.MustLeave(p.View))
	p.write(podops.Leave(p.View, fin, p.tick()))
	assert.Equal(t, podops.PhaseOperate, p.phase("op"), "the last to leave opens the Pod, in its own write")
	p.finish("op", "restart")
	p.settle()
	assert.Equal(t, podops.PhaseCompleting, p.phase("op"))
	assert.True(t, podops.MayJoin(p.View))
	p.write(podops.Join(p.View, fin, p.tick()))
	assert.True(t, p.ServiceAvailable())
	assert.Empty(t, lifecycleKeys(p.View))
}

// The explorer found this: an operation that begins between Ready and the
// cooperator's finalizer would not wait for traffic, which may already come.
func TestPodThatJustCameBackIsNotTakenOutBeforeItsCooperatorHoldsIt(t *testing.T) {
	const fin = "prot.podopslifecycle.kusionstack.io/x"
	p := newPod()
	c, err := podops.Expect(p.View, "Service/d/s", fin)
	require.NoError(t, err)
	p.write(c)
	p.settle()
	require.True(t, p.Ready, "traffic may come")
	p.begin(t, "a", "update")
	p.settle()
	assert.Equal(t, podops.PhasePreCheck, p.phase("a"))
	wait := podops.Explain(p.View, nil)[0]
	assert.Equal(t, podops.WaitExpected, wait.Reason)
	assert.Contains(t, wait.Message, "Service/d/s")

	p.write(podops.Join(p.View, fin, p.tick()))
	p.settle()
	assert.Equal(t, podops.PhasePreparing, p.phase("a"))
	p.write(podops.Leave(p.View, fin, p.tick()))
	assert.True(t, podops.Allowed(p.View, "a", "update"))

	broken := newPod() // never Ready: no traffic to wait for, and it must be possible to repair it
	broken.write(c)
	broken.ServiceReady = corev1.ConditionTrue
	broken.begin(t, "a", "update")
	require.True(t, broken.lifecycle())
	assert.True(t, podops.Allowed(broken.View, "a", "update"))
}

func TestThirdPartyOperatorWritesTwoLabels(t *testing.T) {
	p := servingPod(t)
	p.Labels = map[string]string{
		podops.ServiceAvailableLabel:        "1",
		podops.OperatingPrefix + "/job":     podops.Stamp(start),
		podops.OperationTypePrefix + "/job": "restart",
	}
	require.True(t, p.lifecycle())
	assert.Equal(t, podops.PhaseOperate, p.phase("job"), "one write goes all the way when no rule objects")
	delete(p.Labels, podops.OperatingPrefix+"/job")
	p.settle()
	assert.True(t, p.ServiceAvailable())
	assert.Empty(t, lifecycleKeys(p.View))
}

// The failure modes of upstream v0.7 that a total function must not have.

func TestF1_BeginWhileAnotherCompletesIsNoDeadEnd(t *testing.T) {
	const fin = "prot.podopslifecycle.kusionstack.io/x"
	p := newPod()
	c, err := podops.Expect(p.View, "Service/d/s", fin)
	require.NoError(t, err)
	p.write(c)
	p.settle()
	p.write(podops.Join(p.View, fin, p.tick()))
	p.begin(t, "a", "update")
	p.settle()
	p.write(podops.Leave(p.View, fin, p.tick()))
	p.finish("a", "update")
	require.True(t, p.lifecycle())
	require.Equal(t, podops.PhaseCompleting, p.phase("a"), "online, and the kubelet has not reported Ready yet")
	p.begin(t, "b", "update")
	require.True(t, p.lifecycle())
	require.Equal(t, podops.PhaseOperate, p.phase("b"))
	p.settle()
	require.Equal(t, podops.PhaseCompleting, p.phase("a"))
	assert.Equal(t, corev1.ConditionFalse, p.ServiceReady, "F2: traffic stays off while b operates")
	p.finish("b", "update")
	p.settle()
	p.write(podops.Join(p.View, fin, p.tick()))
	p.settle()
	assert.True(t, p.ServiceAvailable())
	assert.Empty(t, lifecycleKeys(p.View))
}

func TestF3_BeginDuringPostCheckDoesNotPassBothStages(t *testing.T) {
	p := servingPod(t)
	p.begin(t, "a", "update")
	p.settle()
	p.allow = func(podops.Ask) bool { return false }
	p.finish("a", "update")
	p.settle()
	require.Equal(t, podops.PhasePostCheck, p.phase("a"))
	p.begin(t, "b", "update")
	p.allow = func(a podops.Ask) bool { return a.Stage == appsv1alpha1.StagePostCheck }
	p.settle()
	assert.Equal(t, podops.PhasePreCheck, p.phase("b"), "a's post-check is not b's")
	assert.Equal(t, podops.PhaseNone, p.phase("a"))
	assert.True(t, p.ServiceAvailable())
}

func TestF4_FinishedOperationIsNoHostageOfABlockedOne(t *testing.T) {
	p := servingPod(t)
	p.onlyPrecheck("a")
	p.begin(t, "a", "update")
	p.begin(t, "b", "update")
	p.settle()
	p.finish("a", "update")
	p.settle()
	assert.Equal(t, podops.PhasePreCheck, p.phase("b"))
	assert.Equal(t, podops.PhaseNone, p.phase("a"))
	assert.True(t, p.ServiceAvailable())
}

func TestF5_TypeChangePassesItsOwnPreCheck(t *testing.T) {
	for name, begin := range map[string]func(*pod){
		"by the SDK": func(p *pod) { p.begin(t, "collaset", podops.TypeScaleIn) },
		"by overwriting the type label alone": func(p *pod) {
			p.View = podops.Change{Labels: map[string]*string{podops.OperationTypePrefix +
				"/collaset": ptr.To(podops.TypeScaleIn)}}.Apply(p.View)
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := servingPod(t)
			p.begin(t, "collaset", podops.TypeUpdate)
			p.settle()
			require.Equal(t, podops.PhaseOperate, p.phase("collaset"))
			p.allow = func(podops.Ask) bool { return false }
			begin(p)
			assert.False(t, podops.Allowed(p.View, "collaset", podops.TypeScaleIn))
			p.settle()
			assert.Equal(t, podops.PhasePreCheck, p.phase("collaset"))
			assert.False(t, podops.Allowed(p.View, "collaset", podops.TypeScaleIn))
			assert.Equal(t, corev1.ConditionFalse, p.ServiceReady, "what was operated on and not post-checked stays offline")
			p.allow = func(podops.Ask) bool { return true }
			p.settle()
			assert.True(t, podops.Allowed(p.View, "collaset", podops.TypeScaleIn))
		})
	}
}

func TestF6_FinishBeforeOperateCancels(t *testing.T) {
	for name, allow := range map[string]bool{"in PreCheck": false, "in Preparing": true} {
		t.Run(name, func(t *testing.T) {
			const fin = "prot.podopslifecycle.kusionstack.io/x"
			p := servingPod(t)
			p.Finalizers = []string{fin}
			p.allow = func(podops.Ask) bool { return allow }
			p.begin(t, "a", "update")
			p.settle()
			p.View = podops.Change{Labels: map[string]*string{podops.OperatingPrefix + "/a": nil}}.Apply(p.View)
			p.settle()
			assert.Empty(t, lifecycleKeys(p.View))
			assert.True(t, p.ServiceAvailable())
		})
	}
}

func TestNewRequestNeedsItsOwnPermission(t *testing.T) {
	p := servingPod(t)
	p.begin(t, "a", "update")
	p.settle()
	// A program that knows only the labels ends one operation and begins the next before the Pod has been advanced.
	p.View = podops.Change{Labels: map[string]*string{podops.OperatingPrefix +
		"/a": ptr.To(podops.Stamp(p.tick()))}}.Apply(p.View)
	p.allow = func(podops.Ask) bool { return false }
	assert.False(t, podops.Allowed(p.View, "a", "update"))
	p.settle()
	assert.Equal(t, podops.PhasePreCheck, p.phase("a"))
}

func TestAllowedWaitsForObservedReady(t *testing.T) {
	p := servingPod(t)
	p.begin(t, "a", "update")
	p.settle()
	require.True(t, podops.Allowed(p.View, "a", "update"))
	p.Ready = true // a kubelet that lags writes its old status over ours
	assert.False(t, podops.Allowed(p.View, "a", "update"))
}

func TestTheGateOfANewPodOpensWhenItIsAllThatIsMissing(t *testing.T) {
	p := newPod()
	assert.False(t, p.lifecycle(), "the kubelet has not reported yet")
	p.kubelet()
	require.True(t, p.lifecycle())
	assert.Equal(t, corev1.ConditionTrue, p.ServiceReady)
}

func TestPodWithoutGate(t *testing.T) {
	p := newPod()
	p.Gate = false
	p.Ready = true
	p.settle()
	require.True(t, p.ServiceAvailable())
	assert.Equal(t, corev1.ConditionStatus(""), p.ServiceReady, "no write for its own sake")
	p.Finalizers = []string{"prot.podopslifecycle.kusionstack.io/x"}
	p.begin(t, "a", "update")
	p.settle()
	assert.Equal(t, podops.PhasePreparing, p.phase("a"), "cooperators are waited for")
	assert.True(t, podops.MustLeave(p.View), "and can see that they must leave")
	p.write(podops.Leave(p.View, "prot.podopslifecycle.kusionstack.io/x", p.tick()))
	assert.True(t, podops.Allowed(p.View, "a", "update"))
	p.finish("a", "update")
	p.settle()
	assert.True(t, p.ServiceAvailable())
}

func TestUndo(t *testing.T) {
	for name, tc := range map[string]func(*pod){
		"in PreCheck":   func(p *pod) { p.allow = func(podops.Ask) bool { return false } },
		"in Preparing":  func(p *pod) { p.Finalizers = []string{"prot.podopslifecycle.kusionstack.io/x"} },
		"in Operate":    func(*pod) {},
		"in Completing": func(p *pod) { p.Labels[podops.StayOfflineLabel] = "1" },
	} {
		t.Run(name, func(t *testing.T) {
			p := servingPod(t)
			tc(p)
			c, err := podops.Begin(p.View, podops.Request{ID: "a", Type: "scale-in", Deletes: true}, p.tick())
			require.NoError(t, err)
			p.write(c)
			p.settle()
			if name == "in Completing" {
				p.finish("a", "scale-in")
				p.settle()
			}
			p.write(podops.Cancel(p.View, "a", p.tick()))
			assert.Equal(t, podops.PhaseNone, p.phase("a"), "Cancel leaves nothing, in one write")
			delete(p.Labels, podops.StayOfflineLabel)
			p.settle()
			assert.True(t, p.ServiceAvailable())
			assert.Empty(t, lifecycleKeys(p.View))
			assert.NotContains(t, p.Labels, podops.PreparingToDeleteLabel)
		})
	}
}

func TestMarksOfBirthGoWhenThePodServes(t *testing.T) {
	p := newPod()
	p.Labels[podops.CreatingLabel] = "1"
	p.Labels[podops.RecreatedLabel] = "1"
	p.settle()
	assert.NotContains(t, p.Labels, podops.CreatingLabel)
	assert.NotContains(t, p.Labels, podops.RecreatedLabel)
}

func TestStayOffline(t *testing.T) {
	p := newPod()
	p.Labels[podops.StayOfflineLabel] = ""
	p.settle()
	assert.False(t, p.ServiceAvailable())
	assert.Equal(t, podops.WaitStayOffline, podops.Explain(p.View, nil)[0].Reason)
	delete(p.Labels, podops.StayOfflineLabel)
	p.settle()
	assert.True(t, p.ServiceAvailable())
}

func TestTerminatingPodIsLeftAlone(t *testing.T) {
	p := servingPod(t)
	p.begin(t, "a", "update")
	p.Terminating = true
	assert.False(t, p.lifecycle())
	c, err := podops.Begin(p.View, podops.Request{ID: "b", Type: "update"}, p.now)
	require.NoError(t, err)
	assert.True(t, c.IsZero())
}

func TestRequestValidation(t *testing.T) {
	_, err := podops.Begin(podops.View{}, podops.Request{ID: "bad/id", Type: ""}, start)
	require.Error(t, err)
	assert.Contains(t, err.Error(), `"bad/id"`)
	assert.Contains(t, err.Error(), "type is empty")
	require.NoError(t, podops.Request{ID: "My_job.1", Type: "scale-in"}.Validate())
}

func TestPatchesCarryPreconditions(t *testing.T) {
	p := servingPod(t)
	p.ResourceVersion = "7"
	c, err := podops.Begin(p.View, podops.Request{ID: "a", Type: "update"}, p.tick())
	require.NoError(t, err)
	var patch struct {
		Metadata struct {
			UID, ResourceVersion string
			Labels               map[string]*string
		}
		Status struct{ Conditions []corev1.PodCondition }
	}
	require.NoError(t, json.Unmarshal(c.MergePatch(p.View), &patch))
	assert.Equal(t, "u", patch.Metadata.UID)
	assert.Equal(t, "7", patch.Metadata.ResourceVersion)
	assert.Len(t, patch.Metadata.Labels, 3)

	p.write(c)
	step := podops.Advance(p.View, podops.Verdicts{{ID: "a", Stage: appsv1alpha1.StagePreCheck}: true}, p.tick())
	require.NoError(t, json.Unmarshal(step.StatusPatch(p.View, metav1.NewTime(start)), &patch))
	var types []string
	for _, c := range patch.Status.Conditions {
		types = append(types, string(c.Type)+"="+string(c.Status))
	}
	assert.Equal(t, []string{"pod.kusionstack.io/service-ready=False", "Ready=False"}, types)
	assert.Nil(t, patch.Metadata.Labels[podops.ServiceAvailableLabel], "removed in the same write")
}

func TestLedger(t *testing.T) {
	newRule := func(name string, grants ...appsv1alpha1.PodGrant) podops.Rule {
		r := &appsv1alpha1.PodTransitionRule{}
		r.Name = name
		r.UID = types.UID("uid-" + name)
		r.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}
		r.Spec.Rules = []appsv1alpha1.TransitionRule{{Name: "one"}}
		r.Status.Grants = grants
		return podops.CompileRule(r)
	}
	grant := func(uid, request string, rules ...string) appsv1alpha1.PodGrant {
		g := appsv1alpha1.PodGrant{PodName: "p", PodUID: types.UID(uid), Stage: appsv1alpha1.StagePreCheck,
			Operations: []appsv1alpha1.GrantedOperation{{ID: "a", Type: "update", Request: request}}}
		for _, r := range rules {
			g.Rules = append(g.Rules, appsv1alpha1.RuleReference{Name: r, UID: types.UID("uid-" + r)})
		}
		return g
	}
	p := newPod()
	p.Labels["app"] = "web"
	p.settle()
	p.begin(t, "a", "update")
	request := p.Labels[podops.OperatingPrefix+"/a"]
	for name, tc := range map[string]struct {
		rules []podops.Rule
		want  bool
	}{
		"no rule selects the Pod":                      {nil, true},
		"a rule that has not looked yet holds it":      {[]podops.Rule{newRule("r1")}, false},
		"the only rule granted it":                     {[]podops.Rule{newRule("r1", grant("u", request, "r1"))}, true},
		"the grant is for an earlier Pod of this name": {[]podops.Rule{newRule("r1", grant("old", request, "r1"))}, false},
		"the grant is for an earlier request":          {[]podops.Rule{newRule("r1", grant("u", "1", "r1"))}, false},
		"one of two rules granted it": {[]podops.Rule{newRule("r1", grant("u", request, "r1", "r2")),
			newRule("r2")}, false},
		"both granted it": {[]podops.Rule{newRule("r1", grant("u", request, "r1", "r2")),
			newRule("r2", grant("u", request, "r1", "r2"))}, true},
		"the other rule named by the grant is gone": {[]podops.Rule{newRule("r1", grant("u", request, "r1", "r2"))},
			false},
		"a rule newer than the grant holds it": {[]podops.Rule{newRule("r1", grant("u", request, "r1")),
			newRule("r2")}, false},
	} {
		t.Run(name, func(t *testing.T) {
			got := podops.VerdictsFor(p.View, tc.rules)[podops.Ask{ID: "a", Stage: appsv1alpha1.StagePreCheck}]
			assert.Equal(t, tc.want, got)
			if !tc.want {
				assert.NotEmpty(t, podops.Explain(p.View, tc.rules), "Explain has a reason")
			}
		})
	}
}

func TestViewIsNotChanged(t *testing.T) {
	p := servingPod(t)
	before := maps.Clone(p.Labels)
	c, err := podops.Begin(p.View, podops.Request{ID: "a", Type: "update"}, p.tick())
	require.NoError(t, err)
	_ = c.Apply(p.View)
	podops.Advance(c.Apply(p.View), nil, p.tick())
	if d := cmp.Diff(before, p.Labels); d != "" {
		t.Fatalf("the view's labels changed (-before +after):\n%s", d)
	}
}

// lifecycleKeys are the labels of operations left on a Pod.
func lifecycleKeys(v podops.View) []string {
	var keys []string
	for k := range v.Labels {
		if prefix, _, _ := strings.Cut(k, "/"); strings.HasSuffix(prefix, ".podopslifecycle.kusionstack.io") {
			keys = append(keys, k)
		}
	}
	slices.Sort(keys)
	return keys
}

func TestThenKeepsWhatBothChange(t *testing.T) {
	v := podops.View{
		Labels: map[string]string{"kept": "1", "gone": "1"}, Annotations: map[string]string{"back": "1"},
		Finalizers: []string{"a"},
	}
	first := podops.Change{Labels: map[string]*string{"gone": nil}, Annotations: map[string]*string{"back": ptr.To("2")}}
	second := podops.Change{
		Labels: map[string]*string{"new": ptr.To("1")}, Annotations: map[string]*string{"back": ptr.To("1")},
		Finalizers: []string{"a", "b"}, FinalizersChanged: true,
	}
	both := podops.Change{
		Labels:     map[string]*string{"gone": nil, "new": ptr.To("1")},
		Finalizers: []string{"a", "b"}, FinalizersChanged: true,
	}
	require.Empty(t, cmp.Diff(both, first.Then(v, second)))
	require.Empty(t, cmp.Diff(both, second.Then(v, podops.Change{Labels: map[string]*string{"gone": nil}})))
	last := podops.Change{Finalizers: []string{"b"}, FinalizersChanged: true}
	require.Equal(t, []string{"b"}, second.Then(v, last).Finalizers, "the later list counts")
}
