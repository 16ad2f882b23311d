package collaset

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/internal/freshness"
)

// TestAQuotaIsNotStormed has an event of some Pod every 200 ms for two minutes, each of which makes a round.
func TestAQuotaIsNotStormed(t *testing.T) {
	w := newWorld(t, true, collaSet(2))
	w.settle()
	w.change(replicas(20))
	w.refuse = refusing("create Pod", errQuota)
	rounds := 0
	for range 5 * 60 * 2 {
		w.see()
		result, err := w.reconcile()
		if err == nil {
			assert.Greater(t, result.RequeueAfter, 10*time.Millisecond, "it comes back by itself, and not at once")
			assert.LessOrEqual(t, result.RequeueAfter, lastAttemptIn)
		}
		rounds++
		w.clock.Step(200 * time.Millisecond)
	}
	// 200 ms, 400 ms, ... 25.6 s are eight waits of 51 s in all, then one every 30 s.
	assert.InDelta(t, 2+8+(120-51)/30, w.count("create Pod"), 2, "attempts in %d rounds", rounds)
	scale := w.condition(appsv1alpha1.CollaSetScale)
	assert.Equal(t, metav1.ConditionFalse, scale.Status, "between attempts, too")
	assert.Contains(t, scale.Message, "exceeded quota")

	// Something that makes room: the next attempt takes it all.
	w.forget()
	w.clock.Step(lastAttemptIn)
	w.see()
	_, err := w.reconcile()
	require.NoError(t, err)
	assert.Len(t, w.pods(), 20)
	w.see()
	w.clock.Step(time.Second)
	_, err = w.reconcile()
	require.NoError(t, err)
	assert.Equal(t, metav1.ConditionTrue, w.condition(appsv1alpha1.CollaSetScale).Status)
}

func TestMoreThanOneDecisionCreatesWaitsLikeFewer(t *testing.T) {
	w := newWorld(t, true, collaSet(300))
	w.refuse = refusing("create Pod", errQuota)
	for range 10 {
		w.see()
		if result, err := w.reconcile(); err == nil {
			assert.Greater(t, result.RequeueAfter, 10*time.Millisecond)
		}
		w.clock.Step(10 * time.Millisecond)
	}
	assert.Equal(t, 2, w.count("create Pod"))
}

func TestAChangedSpecIsTriedAtOnce(t *testing.T) {
	w := newWorld(t, true, collaSet(1))
	w.refuse = refusing("create Pod", errQuota)
	for range 5 {
		w.see()
		_, _ = w.reconcile()
	}
	assert.Equal(t, 2, w.count("create Pod"))
	w.change(replicas(2))
	_, err := w.reconcile()
	require.ErrorIs(t, err, errQuota)
	assert.Equal(t, 3, w.count("create Pod"))
}

func TestPartlyCreatedIsNoSeriesOfFailures(t *testing.T) {
	var c createBackoff
	now := time.Unix(1_700_000_000, 0)
	for range 9 {
		c.attempted(errQuota, false, now, 1)
	}
	assert.Equal(t, 25600*time.Millisecond, c.left(now, 1))
	c.attempted(errQuota, true, now, 1)
	assert.Zero(t, c.left(now, 1), "some were created: it is worth trying again")
	c.attempted(errQuota, false, now, 1)
	assert.Equal(t, firstAttemptIn, c.left(now, 1))
	c.attempted(nil, false, now, 1)
	assert.Equal(t, createBackoff{}, c)
}

// TestAViewOfThePastCreatesNothing is about a process that has just started, with lists of an API server that lags.
func TestAViewOfThePastCreatesNothing(t *testing.T) {
	for name, past := range map[string]func(w *world){
		"before the Pods": func(w *world) { w.seeWithoutPods() },
		"before fewer were wanted": func(w *world) {
			set := w.set()
			replicas(3)(&set.Spec)
			set.Generation++
			require.NoError(w, w.store.Update(w.Context(), set))
			w.seeAllBut(is[*appsv1alpha1.CollaSet])
		},
		"before an instance ID was another's": func(w *world) {
			pool := &appsv1alpha1.ResourceContext{}
			require.NoError(w, w.store.Get(w.Context(), key, pool))
			pool.Spec.Contexts[3].Data[appsv1alpha1.ContextOwner] = "another"
			require.NoError(w, w.store.Update(w.Context(), pool))
			w.seeAllBut(is[*appsv1alpha1.ResourceContext])
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, true, collaSet(4))
			w.settle()
			gone := w.pods()[3]
			gone.Finalizers = nil
			require.NoError(t, w.store.Update(t.Context(), &gone))
			require.NoError(t, w.store.Delete(t.Context(), &gone))
			w.see()
			past(w)
			w.r.memory, w.r.writes = &stateCache{}, freshness.New(w.cache, w.clock)
			w.forget()
			result, err := w.reconcile()
			looksAgain(t, result, err)
			assert.Zero(t, w.count("create Pod"), "%v", w.written)
			w.see()
			_, err = w.reconcile()
			require.NoError(t, err)
			assert.LessOrEqual(t, w.count("create Pod"), 1, "%v", w.written)
		})
	}
}

func TestALargeCollaSetTellsHowFarItIsWhileItCreates(t *testing.T) {
	w := newWorld(t, true, collaSet(600))
	told := map[int32]bool{}
	for range 10 {
		w.see()
		_, err := w.reconcile()
		require.NoError(t, err)
		w.clock.Step(time.Second)
		if status := w.set().Status; status.ObservedGeneration > 0 {
			told[status.Replicas] = true
		}
	}
	assert.Len(t, w.pods(), 600)
	assert.Greater(t, len(told), 2, "numbers of Pods that status told of: %v", told)
}
