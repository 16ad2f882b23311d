package grants

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestFigures(t *testing.T) {
	t.Run("a budget with two Pods that wait for it", func(t *testing.T) {
		s := settled(Snapshot{Rules: rules{aRule("r", maxUnavailable("1"))}, Pods: pods(owned("set", 4, 3)...),
			Owners: []Owner{{UID: "set", Replicas: 4}}, Now: testNow})
		assert.Equal(t, []Figures{{Name: "r", Limited: true, Allowed: 1, Unavailable: 1,
			Blocked: map[BlockReason]int{BlockedByAvailability: 2}}}, Decide(s).Figures)
	})
	t.Run("a webhook that has not answered", func(t *testing.T) {
		s := settled(Snapshot{Rules: rules{aRule("r", webhook(), maxUnavailable("1"))},
			Pods: pods(aPod("a").asks(2), aPod("b").asks(1)), Now: testNow})
		figures := Decide(s).Figures
		require.Len(t, figures, 1)
		assert.Equal(t, map[BlockReason]int{BlockedByWebhook: 2}, figures[0].Blocked)
	})
	t.Run("a rule that waits for another one, and a rule without a bound", func(t *testing.T) {
		s := settled(Snapshot{Rules: rules{aRule("a", maxUnavailable("0")), aRule("b", webhook())},
			Pods: pods(aPod("a").asks(2)), Now: testNow})
		s = settled(said(s, Answer{Passed: true}))
		figures := Decide(s).Figures
		require.Len(t, figures, 2)
		assert.Equal(t, map[BlockReason]int{BlockedByAvailability: 1}, figures[0].Blocked)
		assert.Equal(t, Figures{Name: "b", Blocked: map[BlockReason]int{BlockedByOtherRule: 1}}, figures[1])
	})
	t.Run("an annotation that cannot be read", func(t *testing.T) {
		s := Snapshot{Rules: rules{aRule("r", maxUnavailable("1"))}, Pods: pods(aPod("a").asks(2).annotated("{")),
			Now: testNow}
		assert.Equal(t, map[BlockReason]int{BlockedByAnnotation: 1}, Decide(s).Figures[0].Blocked)
	})
	t.Run("a freeze comes before everything else", func(t *testing.T) {
		s := Snapshot{Rules: rules{aRule("r", maxUnavailable("0"))}, Pods: pods(aPod("a").asks(2)), Now: testNow,
			Frozen: "audit"}
		assert.Equal(t, map[BlockReason]int{BlockedByFreeze: 1}, Decide(s).Figures[0].Blocked)
	})
}
