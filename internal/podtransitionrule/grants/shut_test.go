package grants

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
)

// A leader that died between two writes may still have the second on its way. What it left half written is taken back
// only after that write must fail: test/protocol found what happens otherwise.
func TestHalfAGrantIsShutBeforeItIsTakenBack(t *testing.T) {
	s := Snapshot{
		Rules: []*appsv1alpha1.PodTransitionRule{aRule("r0", maxUnavailable("1")), aRule("r1", maxUnavailable("1"))},
		Pods:  pods(aPod("p0").asks(1), aPod("p1").asks(2)),
		Now:   testNow,
	}
	plan := Decide(s)
	s.Rules = after(s.Rules, plan, 1)
	require.Equal(t, []string{"p0"}, holders(s.Rules[0]))
	require.Empty(t, s.Rules[1].Status.Grants, "the leader died")
	s.Pods[1] = aPod("p1").asks(2).down().Pod // p0 may not go any more, but p1 may

	plan = Decide(s)
	s.Rules = after(s.Rules, plan, len(plan.Statuses))
	assert.Equal(t, []string{"p0"}, holders(s.Rules[0]), "until the other rule is written, it may have been completed")
	assert.Empty(t, holders(s.Rules[1]), "and meanwhile nobody else is granted")
	require.Len(t, s.Rules[1].Status.Grants, 1, "the write that fails the late one")
	assert.Empty(t, s.Rules[1].Status.Grants[0].Operations)

	s = settled(s)
	assert.Equal(t, []string{"p1"}, holders(s.Rules[0]))
	assert.Equal(t, []string{"p1"}, holders(s.Rules[1]))
}

// Leaders that die after every write take it back all the same.
func TestHalfAGrantIsTakenBackWhateverDiesInBetween(t *testing.T) {
	s := Snapshot{
		Rules: []*appsv1alpha1.PodTransitionRule{aRule("r0", maxUnavailable("1")), aRule("r1", maxUnavailable("1"))},
		Pods:  pods(aPod("p0").asks(1), aPod("p1").asks(2)),
		Now:   testNow,
	}
	plan := Decide(s)
	s.Rules = after(s.Rules, plan, len(plan.Statuses))
	s.Rules[0].Status.Grants = nil            // the half that was not written belongs to the rule that is written first
	s.Pods[1] = aPod("p1").asks(2).down().Pod // p0 may not go any more, but p1 may
	for range 8 {
		s.Rules = after(s.Rules, Decide(s), 1)
	}
	assert.Equal(t, []string{"p1"}, holders(s.Rules[0]))
	assert.Equal(t, []string{"p1"}, holders(s.Rules[1]))
}

// A Pod that is being taken back has room until that is written, but it makes none: its domain is not one in which
// others may go on.
func TestHalfAGrantOpensNoDomain(t *testing.T) {
	s := Snapshot{
		Rules: []*appsv1alpha1.PodTransitionRule{aRule("r0", requires("app", "web")), aRule("r1", zones(1, ""))},
		Pods:  pods(aPod("p0").on("a1").asks(1), aPod("p1").on("b1"), aPod("p2").on("a2").asks(2)),
		Nodes: someNodes(), Now: testNow,
	}
	s.Rules = after(s.Rules, Decide(Snapshot{Rules: s.Rules, Pods: s.Pods[:2], Nodes: s.Nodes, Now: s.Now}), 1)
	require.Equal(t, []string{"p0"}, holders(s.Rules[0]))
	require.Empty(t, s.Rules[1].Status.Grants, "the leader died")
	s.Pods[1] = aPod("p1").on("b1").down().Pod // now no other zone may be disrupted

	plan := Decide(s)
	s.Rules = after(s.Rules, plan, len(plan.Statuses))
	assert.Equal(t, []string{"p0"}, holders(s.Rules[0]), "until the other rule is written, it may have been completed")
	assert.Empty(t, holders(s.Rules[1]), "nor may another in its zone")

	s = settled(s)
	assert.Empty(t, mayGo(s))
	s.Pods[1] = aPod("p1").on("b1").Pod
	assert.Equal(t, []string{"p0", "p2"}, mayGo(settled(s)))
}
