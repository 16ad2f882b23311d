package setplan_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
	"kusionstack.io/kuperator/internal/collaset/setplan"
)

const deadline = 30 * time.Second

// watched is a set of five Pods at rest with a progress deadline, and r2 crashes.
func watched(t *testing.T, policy appsv1alpha1.RolloutFailurePolicy, change func(*world)) *story {
	t.Helper()
	s := tell(t, 5, always, func(w *world) {
		w.Failure = setplan.FailureHandling{Deadline: deadline, Policy: policy}
		if change != nil {
			change(w)
		}
	})
	s.silent = true
	s.broken["r2"] = true
	return s
}

func (s *story) condition(conditionType string) metav1.Condition {
	c := meta.FindStatusCondition(s.status.Conditions, conditionType)
	require.NotNil(s.t, c, conditionType)
	return *c
}

// pass lets time go by without any other change, and looks.
func (s *story) pass(d time.Duration) {
	s.Now = s.Now.Add(d - time.Second)
	passes := s.passes
	s.passes = func() bool { return false }
	s.look()
	s.passes = passes
}

func TestAProgressDeadlineIsReported(t *testing.T) {
	s := watched(t, appsv1alpha1.RolloutFailureReport, nil)
	s.template("r2")
	s.looks(5)
	assert.Equal(t, "Updating", s.progressing())
	last := s.status.LastProgressTime
	require.NotNil(t, last)
	left := setplan.DeadlineIn(&s.Snapshot, setplan.Goal{}, &s.status)
	assert.Positive(t, left)
	assert.LessOrEqual(t, left, deadline)

	s.Now = last.Add(deadline - 2*time.Second)
	s.look()
	assert.Equal(t, "Updating", s.progressing(), "not yet")
	s.Now = last.Add(deadline)
	s.look()
	progressing := s.condition(appsv1alpha1.CollaSetProgressing)
	assert.Equal(t, metav1.ConditionFalse, progressing.Status)
	assert.Equal(t, "ProgressDeadlineExceeded", progressing.Reason)
	assert.Contains(t, progressing.Message, "it goes on where it can")
	stalled := s.condition(appsv1alpha1.CollaSetStalled)
	assert.Equal(t, metav1.ConditionTrue, stalled.Status, "kstatus has it Failed, as a Deployment")
	assert.Contains(t, stalled.Message, "spec.progressDeadlineSeconds (30)")
	assert.False(t, meta.IsStatusConditionTrue(s.status.Conditions, appsv1alpha1.CollaSetReconciling))
	assert.Nil(t, s.status.Halted)
	assert.Equal(t, last, s.status.LastProgressTime)
	assert.Zero(t, setplan.DeadlineIn(&s.Snapshot, setplan.Goal{}, &s.status), "nothing is to be looked at any more")

	delete(s.broken, "r2")
	s.rest()
	assert.Equal(t, "RolloutComplete", s.progressing(), "what gets better again is progress again")
	assert.False(t, meta.IsStatusConditionTrue(s.status.Conditions, appsv1alpha1.CollaSetStalled))
}

func TestTheProgressClock(t *testing.T) {
	for name, tc := range map[string]struct {
		change    func(*story)
		wantMoved bool
	}{
		"nothing happens": {change: func(*story) {}},
		"a Pod is updated": {
			change: func(s *story) { s.Pods[4].Revision = "r2" }, wantMoved: true,
		},
		"a Pod becomes Ready": {
			change: func(s *story) { s.Pods[0].View.Ready = true }, wantMoved: true,
		},
		"a Pod becomes Ready where it has to stay so": {
			change: func(s *story) { s.MinReady = time.Minute; s.Pods[0].View.Ready = true },
		},
		"a Pod becomes available": {
			change: func(s *story) { s.MinReady = time.Minute; s.Pods[0].Available = true }, wantMoved: true,
		},
		"a Pod is no longer Ready": {
			change: func(s *story) { s.Pods[3].View.Ready = false },
		},
		"a Pod is lost": {
			change: func(s *story) { s.lose(s.Pods[4].Name()) },
		},
		"the spec changes": {
			change: func(s *story) { s.Generation++ }, wantMoved: true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := watched(t, "", nil)
			s.template("r2")
			s.Pods[0].View.Ready, s.Pods[0].Available = false, false
			s.pass(time.Second)
			s.pass(time.Second)
			before := s.status.LastProgressTime
			s.Now = s.Now.Add(5 * time.Second)
			tc.change(s)
			s.pass(time.Second)
			assert.Equal(t, tc.wantMoved, !before.Equal(s.status.LastProgressTime))
		})
	}
	t.Run("without a deadline there is none", func(t *testing.T) {
		s := watched(t, "", nil)
		require.NotNil(t, s.status.LastProgressTime)
		s.Failure.Deadline = 0
		s.look()
		assert.Nil(t, s.status.LastProgressTime)
	})
	t.Run("time of waiting for other CollaSets does not count", func(t *testing.T) {
		s := watched(t, appsv1alpha1.RolloutFailurePause, nil)
		s.shut = true
		s.template("r2")
		writes := 0
		for range 40 {
			before := s.status.LastProgressTime
			s.pass(deadline / 10)
			if !before.Equal(s.status.LastProgressTime) {
				writes++
			}
		}
		assert.Equal(t, "Updating", s.progressing())
		assert.Nil(t, s.status.Halted)
		assert.LessOrEqual(t, writes, 16, "the clock is a status to write")
		goal := s.decide().Goal
		require.True(t, goal.Waits)
		assert.LessOrEqual(t, setplan.DeadlineIn(&s.Snapshot, goal, &s.status), deadline/4, "it is looked at again")
		assert.Positive(t, setplan.DeadlineIn(&s.Snapshot, goal, &s.status))
		s.shut = false
		for range 7 {
			s.pass(deadline / 10)
			assert.Equal(t, "Updating", s.progressing(), "three fourths of the deadline are left, at least")
		}
		s.pass(deadline)
		assert.Equal(t, "RolloutHalted", s.progressing(), "then it counts")
	})
	t.Run("time while paused does not count", func(t *testing.T) {
		s := watched(t, appsv1alpha1.RolloutFailurePause, nil)
		s.template("r2")
		s.looks(3)
		s.user("pauses", func() { s.Paused = true })
		s.pass(10 * deadline)
		assert.Equal(t, "Paused", s.progressing())
		assert.Nil(t, s.status.Halted)
		assert.Zero(t, setplan.DeadlineIn(&s.Snapshot, setplan.Goal{}, &s.status))
		s.user("goes on", func() { s.Paused = false })
		s.pass(time.Second)
		s.pass(deadline - 3*time.Second)
		assert.Equal(t, "Updating", s.progressing())
		s.pass(5 * time.Second)
		assert.Equal(t, "RolloutHalted", s.progressing())
	})
	t.Run("a Pod that is lost after the rollout is no rollout", func(t *testing.T) {
		s := watched(t, appsv1alpha1.RolloutFailureRollback, func(w *world) { w.Partition = 4 })
		delete(s.broken, "r2")
		s.template("r2")
		s.rest()
		require.Equal(t, "RolloutComplete", s.progressing())
		s.broken["r2"], s.broken["r1"] = true, true
		s.lose(s.Pods[0].Name())
		s.lose(s.first(func(p *setplan.Pod) bool { return p.Revision == "r2" }).Name())
		s.looks(3)
		s.pass(10 * deadline)
		assert.Equal(t, "RolloutComplete", s.progressing())
		assert.False(t, s.ready(), "which is not what Ready says")
		assert.Nil(t, s.status.Halted)
	})
	t.Run("Pods labelled later are a rollout again", func(t *testing.T) {
		s := watched(t, "", func(w *world) { w.ByLabel = true })
		s.template("r2")
		s.rest()
		s.pass(10 * deadline)
		require.Equal(t, "RolloutComplete", s.progressing())
		yes := "1"
		s.label(&s.Pods[0], appsv1alpha1.UpdateIncludedLabel, &yes)
		s.looks(3)
		assert.Equal(t, "Updating", s.progressing(), "the clock began anew")
		s.pass(deadline)
		assert.Equal(t, "ProgressDeadlineExceeded", s.progressing())
	})
	t.Run("minReadySeconds comes on top", func(t *testing.T) {
		s := watched(t, "", func(w *world) { w.MinReady = time.Minute })
		s.template("r2")
		s.looks(3)
		s.pass(deadline + 50*time.Second)
		assert.Equal(t, "Updating", s.progressing())
		s.pass(12 * time.Second)
		assert.Equal(t, "ProgressDeadlineExceeded", s.progressing())
	})
}

func TestWhatIsHalted(t *testing.T) {
	for name, tc := range map[string]struct {
		policy appsv1alpha1.RolloutFailurePolicy
		before func(*story)
		want   *appsv1alpha1.HaltedRollout
	}{
		"Pause stops it": {
			policy: appsv1alpha1.RolloutFailurePause,
			before: func(s *story) { s.template("r2") },
			want:   &appsv1alpha1.HaltedRollout{Revision: "r2"},
		},
		"Rollback goes back": {
			policy: appsv1alpha1.RolloutFailureRollback,
			before: func(s *story) { s.template("r2") },
			want:   &appsv1alpha1.HaltedRollout{Revision: "r2", RollbackTo: "r1"},
		},
		"Report goes on": {
			policy: appsv1alpha1.RolloutFailureReport,
			before: func(s *story) { s.template("r2") },
		},
		"the revision that Pods come from is not halted": {
			policy: appsv1alpha1.RolloutFailureRollback,
			before: func(s *story) { s.broken["r1"] = true; s.user("replicas 9", func() { s.Replicas = 9 }) },
		},
		"a scale-out that is stuck is not the revision's fault": {
			policy: appsv1alpha1.RolloutFailureRollback,
			before: func(s *story) {
				delete(s.broken, "r2")
				s.user("a canary", func() { s.spec, s.Partition = "r2", 4 })
				s.rest()
				s.user("replicas 9, which the quota refuses", func() { s.Replicas = 9 })
				s.passes = func() bool { return false }
			},
		},
		"what the policy refuses says so itself": {
			policy: appsv1alpha1.RolloutFailureRollback,
			before: func(s *story) {
				s.user("r2 needs other Pods",
					func() { s.spec = "r2"; s.Policy = appsv1alpha1.PodUpdateInPlaceOnly; forcing(s.world) })
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := watched(t, tc.policy, nil)
			tc.before(s)
			s.looks(4)
			s.pass(deadline)
			s.looks(2)
			if got := s.status.Halted; got != nil {
				assert.False(t, got.Since.IsZero())
				got.Since = metav1.Time{}
			}
			assert.Equal(t, tc.want, s.status.Halted)
			assert.Equal(t, "r1", s.status.CurrentRevision)
			assert.False(t, s.ready())
		})
	}
}

func TestAHaltEnds(t *testing.T) {
	halted := &appsv1alpha1.CollaSetStatus{CurrentRevision: "r1",
		Halted: &appsv1alpha1.HaltedRollout{Revision: "r2", RollbackTo: "r1"}}
	rollback := setplan.FailureHandling{Deadline: deadline, Policy: appsv1alpha1.RolloutFailureRollback}
	for name, tc := range map[string]struct {
		failure    setplan.FailureHandling
		spec       string
		gone       string // a revision that does not exist any more
		wantHalted bool
		wantTarget string
	}{
		"it lasts as long as nobody changes anything": {failure: rollback, spec: "r2", wantHalted: true,
			wantTarget: "r1"},
		"another template ends it":   {failure: rollback, spec: "r3", wantTarget: "r3"},
		"going back oneself ends it": {failure: rollback, spec: "r1", wantTarget: "r1"},
		"taking the deadline away ends it": {failure: setplan.FailureHandling{Policy: rollback.Policy},
			spec: "r2", wantTarget: "r2"},
		"taking the policy away ends it": {failure: setplan.FailureHandling{Deadline: deadline},
			spec: "r2", wantTarget: "r2"},
		"Report ends it": {failure: setplan.FailureHandling{Deadline: deadline,
			Policy: appsv1alpha1.RolloutFailureReport}, spec: "r2", wantTarget: "r2"},
		"Pause leaves Pods where they are": {failure: setplan.FailureHandling{Deadline: deadline,
			Policy: appsv1alpha1.RolloutFailurePause}, spec: "r2", wantHalted: true, wantTarget: "r2"},
		"without the revision before there is no going back": {failure: rollback, spec: "r2", gone: "r1", wantHalted: true,
			wantTarget: "r2"},
	} {
		t.Run(name, func(t *testing.T) {
			got := tc.failure.Halt(halted, tc.spec, func(r string) bool { return r != tc.gone })
			assert.Equal(t, tc.wantHalted, got != nil)
			assert.Equal(t, tc.wantTarget, setplan.Target(tc.spec, got))
		})
	}
	t.Run("Rollback follows upon Pause", func(t *testing.T) {
		s := watched(t, appsv1alpha1.RolloutFailurePause, nil)
		s.template("r2")
		s.rest()
		require.Equal(t, "RolloutHalted", s.progressing())
		s.user("failurePolicy Rollback", func() { s.Failure.Policy = appsv1alpha1.RolloutFailureRollback })
		s.rest()
		rolledBack(t, s)
	})
	t.Run("taking the policy away begins the rollout again, with a new deadline", func(t *testing.T) {
		s := watched(t, appsv1alpha1.RolloutFailureRollback, nil)
		s.template("r2")
		s.rest()
		rolledBack(t, s)
		delete(s.broken, "r2")
		s.user("failurePolicy Report", func() { s.Failure.Policy = appsv1alpha1.RolloutFailureReport })
		s.look()
		assert.Nil(t, s.status.Halted)
		s.rest()
		reached("r2")(t, s)
	})
	t.Run("neither scaling nor a lost Pod ends it", func(t *testing.T) {
		s := watched(t, appsv1alpha1.RolloutFailureRollback, nil)
		s.template("r2")
		s.rest()
		s.user("replicas 7", func() { s.Replicas = 7 })
		s.rest()
		s.lose(s.Pods[3].Name())
		s.rest()
		s.user("replicas 3", func() { s.Replicas = 3 })
		s.rest()
		rolledBack(t, s)
	})
}

func TestARollbackTouchesOnlyWhatIsAtTheRevision(t *testing.T) {
	s := tell(t, 6, always, func(w *world) {
		w.Failure = setplan.FailureHandling{Deadline: deadline, Policy: appsv1alpha1.RolloutFailureRollback}
	})
	s.silent = true
	s.user("r2 for two", func() { s.spec, s.Partition = "r2", 4 })
	s.rest()
	before := map[types.UID]string{}
	for _, p := range s.live() {
		before[p.UID()] = p.Revision
	}
	s.broken["r3"] = true
	s.user("r3 for three, one of which was at r1", func() { s.spec, s.Partition = "r3", 3 })
	s.rest()
	require.NotNil(t, s.status.Halted)
	assert.Equal(t, "r1", s.status.Halted.RollbackTo, "the revision that all Pods last came from")
	for _, p := range s.live() {
		assert.Contains(t, []string{"r1", "r2"}, p.Revision)
		if was := before[p.UID()]; was == "r1" {
			assert.Equal(t, "r1", p.Revision)
		}
	}
	assert.Empty(t, s.problems)
}

func TestCurrentRevisionWaitsForAvailability(t *testing.T) {
	s := tell(t, 2, always, func(w *world) { w.MinReady = 20 * time.Second })
	s.silent = true
	s.template("r2")
	for s.atRevision("r2") < 2 || s.status.UpdatedReadyReplicas < 2 {
		assert.Equal(t, "r1", s.status.CurrentRevision)
		s.look()
	}
	assert.Less(t, int(s.status.UpdatedAvailableReplicas), 2)
	assert.Equal(t, "r1", s.status.CurrentRevision, "Ready for a moment is not enough")
	s.rest()
	assert.Equal(t, "r2", s.status.CurrentRevision)
}

func TestPodsThatAreNotAvailableYetAreInFlight(t *testing.T) {
	t.Run("a quarter, where Pods have to stay Ready", func(t *testing.T) {
		s := tell(t, 10, always, func(w *world) { w.MinReady, w.MaxUnavailable = 15*time.Second, 2 })
		s.silent = true
		s.template("r2")
		most := 0
		for range 200 {
			s.look()
			open := 0
			for _, p := range s.live() {
				if podops.IsDuring(p.View, setplan.OperatorID, podops.TypeUpdate) || !p.Available {
					open++
				}
			}
			most = max(most, open)
		}
		assert.Equal(t, 2, most)
		assert.Equal(t, 10, s.atRevision("r2"))
	})
	t.Run("time alone takes it on", func(t *testing.T) {
		s := tell(t, 1, always, func(w *world) { w.MinReady = 15 * time.Second })
		s.silent = true
		s.lose(s.Pods[0].Name())
		s.looks(3)
		require.False(t, s.Pods[0].Available)
		require.True(t, s.Pods[0].View.Ready)
		plan := setplan.Decide(&s.Snapshot)
		assert.Equal(t, s.Pods[0].AvailableIn, plan.NextLook)
		assert.Positive(t, plan.NextLook)
	})
	t.Run("Pods re-created and not up yet", func(t *testing.T) {
		w := atRest(t, 200, func(w *world) { w.Policy, w.MaxUnavailable = appsv1alpha1.PodUpdateRecreate, 64 })
		w.template("r2")
		w.broken = map[string]bool{"r2": true}
		for range 60 {
			w.round(always)
			w.Now = w.Now.Add(3 * time.Second)
		}
		serving := 0
		for _, p := range w.live() {
			if p.Available {
				serving++
			}
		}
		assert.GreaterOrEqual(t, serving, 200-64, "a revision that crashes does not get further")
		assert.Empty(t, w.problems)
		w.template("r3")
		require.True(t, w.run(always))
		assert.Equal(t, 200, w.atRevision("r3"), "and can be repaired")
	})
	t.Run("a revision that comes while Pods bake does not take all of them out at once", func(t *testing.T) {
		s := tell(t, 8, always, nil)
		s.silent, s.MinReady, s.MaxUnavailable = true, time.Hour, 2
		for i := range s.Pods {
			s.Pods[i].Available = false // Ready and in service, since less than an hour
		}
		s.template("r2")
		s.UpdatedRevision = "r2"
		plan := setplan.Decide(&s.Snapshot)
		assert.Len(t, plan.Begins, 2)
	})
}

func TestUpdateOrder(t *testing.T) {
	at := func(seconds int) time.Time { return time.Unix(1_700_000_000+int64(seconds), 0) }
	pod := func(id int, change func(*setplan.Pod)) setplan.Pod {
		name := fmt.Sprintf("p%d", id)
		p := setplan.Pod{
			View: podops.View{Name: name, UID: types.UID(name), ResourceVersion: "1", Gate: true, Ready: true,
				ServiceReady: "True",
				Labels:       map[string]string{podops.ServiceAvailableLabel: "1"}},
			ID: id, Revision: "r1", Created: at(0),
			Service: setplan.Service{ReadySince: at(10), Available: true, Scheduled: true},
			Marks:   setplan.Marks{Selected: true},
		}
		if change != nil {
			change(&p)
		}
		return p
	}
	asked := func(p *setplan.Pod) {
		c, err := podops.Begin(p.View, podops.Request{ID: setplan.OperatorID, Type: podops.TypeUpdate}, at(20))
		require.NoError(t, err)
		p.View = c.Apply(p.View)
	}
	unavailable := func(p *setplan.Pod) { p.Available = false }
	notReady := func(p *setplan.Pod) { p.Available, p.View.Ready, p.ReadySince = false, false, time.Time{} }
	pending := func(p *setplan.Pod) { notReady(p); p.Scheduled = false }
	for name, tc := range map[string]struct {
		first, then func(*setplan.Pod)
	}{
		"one that is updated before one that is asked for": {func(p *setplan.Pod) { p.Revision = "r2" }, asked},
		"one that is asked for before one that is down":    {asked, notReady},
		"one without a node before one that starts":        {pending, notReady},
		"one that is not Ready before one that bakes":      {notReady, unavailable},
		"one that does not serve before one that does":     {unavailable, nil},
		"one that is Ready since recently":                 {func(p *setplan.Pod) { p.ReadySince = at(15) }, nil},
		"the younger":                                      {func(p *setplan.Pod) { p.Created = at(5) }, nil},
		"of equals the higher ID":                          {nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			for _, ids := range [][2]int{{1, 0}, {0, 1}} {
				if tc.first == nil && ids[0] == 0 {
					continue
				}
				w := newWorld(2)
				w.Now = at(30)
				w.Partition, w.UpdatedRevision = 1, "r2"
				w.Pods = []setplan.Pod{pod(ids[0], tc.first), pod(ids[1], tc.then)}
				plan := setplan.Decide(&w.Snapshot)
				first := w.Pods[0].Name()
				for _, b := range plan.Begins {
					assert.Equal(t, first, b.Pod.Name())
				}
				for _, p := range plan.Cancels {
					assert.NotEqual(t, first, p.Name(), "the one chosen is not cancelled")
				}
				chosen := w.Pods[0].Revision == "r2" || podops.IsDuring(w.Pods[0].View, setplan.OperatorID, podops.TypeUpdate) ||
					len(plan.Begins) == 1
				assert.True(t, chosen, "%+v", plan)
			}
		})
	}
}

func TestRevisionOfPodsAdded(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*story)
		to     int
		want   int // Pods at r2 then
	}{
		"without a partition all are updated": {change: func(s *story) { s.Partition = 0 },
			to: 8, want: 8},
		"a partition of three keeps three": {change: func(s *story) { s.Partition = 3 },
			to: 8, want: 5},
		"a partition of all keeps all": {change: func(s *story) { s.Partition = 8 },
			to: 8, want: 0},
		"a percentage grows with the replicas: half of 4, half of 8": {change: func(s *story) { s.Partition = 2 },
			to: -8, want: 4},
		"by label new Pods come at the current revision": {change: func(s *story) { s.ByLabel = true },
			to: 8, want: 0},
	} {
		t.Run(name, func(t *testing.T) {
			s := tell(t, 4, always, nil)
			s.silent = true
			s.user("r2", func() { s.spec = "r2"; tc.change(s) })
			s.rest()
			already := s.atRevision("r2")
			s.user("more", func() {
				if s.Replicas = tc.to; tc.to < 0 {
					s.Replicas, s.Partition = -tc.to, -tc.to/2
				}
			})
			s.rest()
			assert.Equal(t, tc.want, s.atRevision("r2"))
			assert.GreaterOrEqual(t, s.atRevision("r2"), already, "nobody is downgraded")
			assert.Len(t, s.live(), s.Replicas)
		})
	}
}

// TestTheHighestNewIDsAreUpdated is Kuperator's rule of which of the new IDs get the updated revision.
func TestTheHighestNewIDsAreUpdated(t *testing.T) {
	s := tell(t, 4, always, nil)
	s.silent = true
	s.user("r2 for two", func() { s.spec, s.Partition = "r2", 2 })
	s.rest()
	s.user("replicas 8, partition 4", func() { s.Replicas, s.Partition = 8, 4 })
	s.rest()
	for _, p := range s.live() {
		if p.ID >= 4 {
			assert.Equal(t, map[bool]string{true: "r2", false: "r1"}[p.ID >= 6], p.Revision, "ID %d", p.ID)
		}
	}
}

func TestByLabel(t *testing.T) {
	yes := "1"
	labelled := func(s *story) *setplan.Pod {
		s.template("r2")
		s.label(&s.Pods[0], appsv1alpha1.UpdateIncludedLabel, &yes)
		s.looks(1)
		return &s.Pods[0]
	}
	begin := func(t *testing.T, change func(*world)) *story {
		s := tell(t, 3, always, func(w *world) {
			w.ByLabel = true
			if change != nil {
				change(w)
			}
		})
		s.silent = true
		return s
	}
	t.Run("a label taken away before the change cancels, and the label is the user's", func(t *testing.T) {
		s := begin(t, func(w *world) { w.budget = -1 })
		p := labelled(s)
		require.True(t, podops.IsDuring(p.View, setplan.OperatorID, podops.TypeUpdate))
		s.label(p, appsv1alpha1.UpdateIncludedLabel, nil)
		s.rest()
		assert.Zero(t, s.atRevision("r2"))
		assert.Equal(t, podops.PhaseNone, podops.PhaseOf(s.Pods[0].View, setplan.OperatorID))
	})
	t.Run("after the change it is finished", func(t *testing.T) {
		s := begin(t, nil)
		labelled(s)
		s.looks(1)
		require.True(t, s.Pods[0].Recorded)
		s.label(&s.Pods[0], appsv1alpha1.UpdateIncludedLabel, nil)
		s.rest()
		assert.Equal(t, 1, s.atRevision("r2"))
		assert.Equal(t, podops.PhaseNone, podops.PhaseOf(s.Pods[0].View, setplan.OperatorID))
	})
	t.Run("a rollback before the change cancels, and leaves the label", func(t *testing.T) {
		s := begin(t, func(w *world) { w.budget = -1 })
		labelled(s)
		s.template("r1")
		s.rest()
		assert.True(t, s.Pods[0].Included)
		assert.Equal(t, podops.PhaseNone, podops.PhaseOf(s.Pods[0].View, setplan.OperatorID))
	})
	t.Run("a lost Pod comes back as it was", func(t *testing.T) {
		s := begin(t, nil)
		labelled(s)
		s.rest()
		for _, id := range []int{0, 2} {
			p := s.first(func(p *setplan.Pod) bool { return p.ID == id })
			was := p.Revision
			s.lose(p.Name())
			s.rest()
			assert.Equal(t, was, s.first(func(p *setplan.Pod) bool { return p.ID == id }).Revision)
		}
		assert.Equal(t, 1, s.atRevision("r2"))
	})
}

// TestRevisionsAreStoredAsSeenWhereTheyDiffer: with a partition, a Pod that is lost without having been seen to
// terminate comes back as it was, also in the middle of a wave.
func TestRevisionsAreStoredAsSeenWhereTheyDiffer(t *testing.T) {
	s := tell(t, 6, always, func(w *world) { w.budget = 1 })
	s.silent = true
	s.user("r2 for four", func() { s.spec, s.Partition = "r2", 2 })
	for s.atRevision("r2") < 1 {
		s.look()
	}
	s.look()
	updated := s.first(func(p *setplan.Pod) bool { return p.Revision == "r2" })
	id := updated.ID
	assert.Equal(t, "r2", s.entry(id).Data[appsv1alpha1.ContextRevision])
	s.lose(updated.Name())
	s.looks(1)
	assert.Equal(t, "r2", s.first(func(p *setplan.Pod) bool { return p.ID == id }).Revision)
}

// TestUsersOfEveryKind lets users do anything at any moment, with actions and kubelets in any order, and demands that
// the set comes to rest where the spec and the failure policy say.
func TestUsersOfEveryKind(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		passes := sometimes(rapid.Uint64().Draw(rt, "seed"), rapid.Float64Range(0.3, 1).Draw(rt, "chance"))
		s := tell(t, rapid.IntRange(1, 5).Draw(rt, "replicas"), passes, func(w *world) {
			w.Policy = rapid.SampledFrom([]appsv1alpha1.PodUpdatePolicy{appsv1alpha1.PodUpdateRecreate,
				appsv1alpha1.PodUpdateInPlaceIfPossible}).Draw(rt, "policy")
			w.budget = rapid.IntRange(0, 2).Draw(rt, "budget")
			w.MinReady = time.Duration(rapid.SampledFrom([]int{0, 0, 5}).Draw(rt, "minReady")) * time.Second
			w.Failure = setplan.FailureHandling{Deadline: 40 * time.Second,
				Policy: rapid.SampledFrom([]appsv1alpha1.RolloutFailurePolicy{
					"", appsv1alpha1.RolloutFailureReport, appsv1alpha1.RolloutFailurePause, appsv1alpha1.RolloutFailureRollback,
				}).Draw(rt, "failure")}
		})
		s.silent = true
		s.broken["r3"] = true
		for range rapid.IntRange(1, 6).Draw(rt, "steps") {
			s.step(rt)
			for range rapid.IntRange(0, 8).Draw(rt, "rounds") {
				s.look()
			}
		}
		s.rest()
		if len(s.problems) > 0 {
			rt.Fatalf("%v\n%v", s.problems, s.log)
		}
		if kept := s.keptByRules(); len(s.live())-kept != s.Replicas {
			rt.Fatalf("%d Pods, of which rules keep %d, for %d replicas\n%v", len(s.live()), kept, s.Replicas, s.log)
		}
		if plan := setplan.Decide(&s.Snapshot); !plan.IsZero() {
			rt.Fatalf("a plan at rest: %+v", plan)
		}
		crashed := s.atRevision("r3")
		// A partition keeps Pods where they are, also at a revision that crashes, unless that is taken back.
		switch h := s.status.Halted; {
		case h != nil && h.RollbackTo != "" && crashed > 0 && (h.Revision == "r3" || s.Partition == 0):
			rt.Fatalf("%d Pods did not go back\n%v", crashed, s.log)
		case h != nil && s.status.CurrentRevision == h.Revision:
			rt.Fatalf("the halted revision is the current one\n%v", s.log)
		case h == nil && s.spec != "r3" && !s.ready() && (s.Partition == 0 || crashed == 0):
			rt.Fatalf("not Ready: %v\n%v", s.status.Conditions, s.log)
		case s.ready() && s.spec == "r3" && s.atRevision("r3") > 0:
			rt.Fatalf("Ready with Pods that crash\n%v", s.log)
		}
	})
}

// keptByRules counts Pods that wait to be scaled in because rules let no Pod more go out of service than those that
// crash.
func (s *story) keptByRules() int {
	n := 0
	for _, p := range s.live() {
		o := podops.OperationOf(p.View, setplan.OperatorID)
		if o.Type == podops.TypeScaleIn && o.Phase == podops.PhasePreCheck && !s.permits(p) {
			n++
		}
	}
	return n
}

// step is one thing that a user, or fate, does.
func (s *story) step(rt *rapid.T) {
	switch rapid.IntRange(0, 5).Draw(rt, "what") {
	case 0, 1:
		s.template(rapid.SampledFrom([]string{"r1", "r2", "r3", "r4"}).Draw(rt, "revision"))
	case 2:
		s.user("replicas", func() { s.Replicas = rapid.IntRange(0, 6).Draw(rt, "replicas") })
	case 3:
		s.user("partition", func() { s.Partition = rapid.IntRange(0, 4).Draw(rt, "partition") })
	case 4:
		if live := s.live(); len(live) > 0 {
			s.lose(live[rapid.IntRange(0, len(live)-1).Draw(rt, "lost")].Name())
		}
	case 5:
		s.user("policy", func() {
			s.Failure.Policy = rapid.SampledFrom([]appsv1alpha1.RolloutFailurePolicy{
				appsv1alpha1.RolloutFailureReport, appsv1alpha1.RolloutFailurePause, appsv1alpha1.RolloutFailureRollback,
			}).Draw(rt, "failure")
		})
	}
}

func TestEventualStatusHasNoNumbersThatFlap(t *testing.T) {
	s := watched(t, appsv1alpha1.RolloutFailureRollback, nil)
	s.template("r2")
	s.rest()
	before := s.status.DeepCopy()
	s.pass(time.Hour)
	s.pass(time.Hour)
	assert.Equal(t, *before, s.status, "at rest status is at rest too")
	assert.LessOrEqual(t, len(s.status.Blockers), 16)
	reasons := []string{}
	for _, c := range s.status.Conditions {
		reasons = append(reasons, c.Type)
		assert.Equal(t, s.Generation, c.ObservedGeneration, c.Type)
	}
	slices.Sort(reasons)
	assert.Equal(t, slices.Compact(slices.Clone(reasons)), reasons, "one condition of a type")
}
