package setplan_test

import (
	"errors"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"pgregory.net/rapid"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/internal/collaset/setplan"
)

func TestTheDefaultDeadlineIsADeployments(t *testing.T) {
	for want, given := range map[time.Duration]*int32{
		600 * time.Second:                 nil,
		time.Second:                       ptr.To[int32](1),
		0:                                 ptr.To[int32](math.MaxInt32),
		(math.MaxInt32 - 1) * time.Second: ptr.To[int32](math.MaxInt32 - 1),
	} {
		assert.Equal(t, want, setplan.DeadlineOf(given))
	}
}

// TestADeadlineCostsNothingAtRest has a status that knows no clock, as before there was a default.
func TestADeadlineCostsNothingAtRest(t *testing.T) {
	s := tell(t, 3, always, nil)
	s.silent = true
	require.Nil(t, s.status.LastProgressTime)
	require.Equal(t, "RolloutComplete", s.progressing())
	before := s.status.DeepCopy()
	s.Failure.Deadline = setplan.DeadlineOf(nil)
	s.pass(time.Hour)
	assert.Equal(t, *before, s.status)
	assert.Zero(t, setplan.DeadlineIn(&s.Snapshot, setplan.Goal{}, &s.status))

	s.lose(s.Pods[0].Name())
	s.broken["r1"] = true
	s.looks(5)
	s.pass(time.Hour)
	assert.Equal(t, "RolloutComplete", s.progressing(), "a node that dies is no rollout")
	assert.Nil(t, s.status.LastProgressTime)

	s.broken["r2"] = true
	s.template("r2")
	s.looks(5)
	assert.NotNil(t, s.status.LastProgressTime, "a rollout is one")
	s.pass(time.Hour)
	assert.Equal(t, "ProgressDeadlineExceeded", s.progressing())
}

// serves reports whether some Pod serves with a revision, not with what it had before.
func (s *story) serves(revision string) bool {
	for _, p := range s.live() {
		if p.Revision == revision && p.Available && p.View.Ready && (!p.Recorded || p.Carried) {
			return true
		}
	}
	return false
}

// begunWith reports whether some Pod is at the revision, or was deleted on the way to it.
func (s *story) begunWith(revision string) bool {
	return s.atRevision(revision) > 0 || slices.ContainsFunc(s.log,
		func(line string) bool { return strings.HasSuffix(line, string(setplan.DeleteRecreate)) })
}

// claims are the words of status that the revision of the template is reached.
func (s *story) claims() (words []string) {
	for conditionType, reason := range map[string]appsv1alpha1.ConditionReason{
		appsv1alpha1.CollaSetProgressing: appsv1alpha1.ReasonRolloutComplete,
		appsv1alpha1.CollaSetUpdate:      appsv1alpha1.ReasonUpdated,
		appsv1alpha1.CollaSetReady:       appsv1alpha1.ReasonAvailable,
	} {
		if c := meta.FindStatusCondition(s.status.Conditions, conditionType); c != nil && c.Reason == string(reason) &&
			c.ObservedGeneration == s.Generation {
			words = append(words, conditionType)
		}
	}
	if s.status.CurrentRevision == s.spec && s.status.UpdatedRevision == s.spec {
		words = append(words, "currentRevision")
	}
	if s.status.UpdatedAvailableReplicas > 0 && s.status.UpdatedRevision == s.spec {
		words = append(words, "updatedAvailableReplicas")
	}
	return words
}

// TestARevisionThatNeverServedIsNotComplete updates Pods to a revision whose image cannot be pulled, by every policy
// and choice of Pods, with actions and kubelets in any order, and writes of status that are put off.
func TestARevisionThatNeverServedIsNotComplete(t *testing.T) {
	begun := false
	rapid.Check(t, func(rt *rapid.T) {
		passes := sometimes(rapid.Uint64().Draw(rt, "seed"), rapid.Float64Range(0.3, 1).Draw(rt, "chance"))
		byLabel := rapid.Bool().Draw(rt, "by label")
		s := tell(t, rapid.IntRange(1, 4).Draw(rt, "replicas"), passes, func(w *world) {
			w.Protocol, w.Sequential = rapid.Bool().Draw(rt, "protocol"), rapid.Bool().Draw(rt, "sequential")
			w.ByLabel = byLabel
			w.Policy = rapid.SampledFrom([]appsv1alpha1.PodUpdatePolicy{
				appsv1alpha1.PodUpdateRecreate, appsv1alpha1.PodUpdateInPlaceIfPossible, appsv1alpha1.PodUpdateReplace,
			}).Draw(rt, "policy")
			if rapid.Bool().Draw(rt, "deadline") {
				w.Failure.Deadline = setplan.DeadlineOf(nil)
			}
		})
		s.silent = true
		s.broken["r2"] = true
		s.user("r2", func() {
			s.spec = "r2"
			if !byLabel {
				s.Partition = rapid.IntRange(0, s.Replicas-1).Draw(rt, "partition")
			}
		})
		s.looks(2)
		yes := "1"
		for i := range s.Pods {
			if byLabel && (i == 0 || rapid.Bool().Draw(rt, "labelled")) {
				s.label(&s.Pods[i], appsv1alpha1.UpdateIncludedLabel, &yes)
			}
		}
		for range 60 {
			before, begun := *s.status.DeepCopy(), s.begunWith("r2")
			s.look()
			if words := s.claims(); begun && len(words) > 0 {
				rt.Fatalf("%v although no Pod ever served with r2: %v\n%+v", words, s.log, s.status)
			}
			if rapid.IntRange(0, 2).Draw(rt, "put off") > 0 && s.status.ObservedGeneration == before.ObservedGeneration {
				s.status = before
				continue
			}
		}
		begun = begun || s.begunWith("r2")
		delete(s.broken, "r2")
		s.rest()
		if s.progressing() != "RolloutComplete" || !s.serves("r2") {
			rt.Fatalf("it does not come to its end: %v", s.status.Conditions)
		}
	})
	require.True(t, begun, "some Pods got as far")
}

// TestOneConditionHasTheText: whatever is the matter is told in full once.
func TestOneConditionHasTheText(t *testing.T) {
	failure := errors.New("pods is forbidden: exceeded quota")
	for name, tc := range map[string]struct {
		change  func(*story)
		outcome setplan.Outcome
		// full is the condition that has the text, says a part of it, and short what Ready says in its own words.
		full, says, short string
	}{
		"scaling": {func(s *story) { s.Replicas = 9 }, setplan.Outcome{}, "Progressing", "9 Pods are wanted",
			"there are more or fewer Pods than are wanted"},
		"updating": {func(s *story) { s.spec = "r2" }, setplan.Outcome{}, "Progressing", "updated to r2",
			"not every Pod is updated"},
		"paused": {func(s *story) { s.spec, s.Paused = "r2", true }, setplan.Outcome{}, "Progressing", "updated to r2",
			"spec.paused is set before the spec is reached"},
		"not available": {func(s *story) { s.Pods[0].Available, s.Pods[0].Scheduled = false, false }, setplan.Outcome{},
			"Progressing", "no node", "not every Pod is available"},
		"a creation that fails": {
			func(s *story) { s.Replicas = 9 }, setplan.Outcome{ScaleOut: failure}, "Scale", "exceeded quota",
			"the spec is not reached",
		},
		"an update that fails": {
			func(s *story) { s.spec = "r2" }, setplan.Outcome{Update: failure}, "Update", "exceeded quota",
			"the spec is not reached",
		},
		"something has to be changed": {
			func(s *story) { s.spec, s.Policy = "r2", appsv1alpha1.PodUpdateInPlaceOnly; forcing(s.world) }, setplan.Outcome{},
			"Stalled", "InPlaceOnly", "the spec is not reached, as the condition Stalled explains",
		},
		"being deleted": {func(s *story) { s.Deleting = true }, setplan.Outcome{Reclaim: failure}, "Terminating",
			"exceeded quota", "the spec is not reached"},
		"being deleted without a failure": {func(s *story) { s.Deleting = true }, setplan.Outcome{}, "Progressing",
			"the CollaSet is being deleted", "its Pods are leaving"},
	} {
		t.Run(name, func(t *testing.T) {
			s := tell(t, 3, always, nil)
			s.silent = true
			s.user(name, func() { tc.change(s) })
			s.UpdatedRevision, s.SpecRevision = s.spec, s.spec
			plan := setplan.Decide(&s.Snapshot)
			s.status = setplan.StatusOf(&s.Snapshot, &plan, tc.outcome, s.status)
			assert.Contains(t, s.condition(tc.full).Message, tc.says)
			assert.Equal(t, tc.short, s.condition(appsv1alpha1.CollaSetReady).Message)
			s.saysAllOnce()
		})
	}
	t.Run("after the rollout Ready has it", func(t *testing.T) {
		s := tell(t, 3, always, nil)
		s.silent = true
		s.Pods[0].Available, s.Pods[0].Scheduled = false, false
		s.pass(time.Second)
		require.Equal(t, "RolloutComplete", s.progressing())
		assert.Contains(t, s.condition(appsv1alpha1.CollaSetReady).Message, "no node")
		s.saysAllOnce()
	})
	t.Run("nothing could be decided", func(t *testing.T) {
		s := tell(t, 3, always, nil)
		assert.Equal(t, "3/3", s.status.Readiness)
		s.status = setplan.FailedStatus(s.status, 7, 5, s.Now, failure)
		assert.Equal(t, failure.Error(), s.condition(appsv1alpha1.CollaSetReady).Message)
		assert.Equal(t, "3/5", s.status.Readiness, "what is wanted now")
		s.saysAllOnce()
	})
}

// saysAllOnce checks that no two conditions have one text.
func (s *story) saysAllOnce() {
	s.t.Helper()
	by := map[string]string{}
	for _, c := range s.status.Conditions {
		if other, twice := by[c.Message]; twice && c.Message != "" {
			assert.Fail(s.t, "one text in two conditions", "%s and %s: %s", other, c.Type, c.Message)
		}
		by[c.Message] = c.Type
	}
}

func TestScaleAndUpdateDoNotTellOfWhatIsToCome(t *testing.T) {
	s := tell(t, 3, always, nil)
	s.silent = true
	was := func(conditionType string) string {
		c := s.condition(conditionType)
		assert.Equal(t, metav1.ConditionTrue, c.Status, "nothing failed")
		return c.Reason
	}
	assert.Equal(t, []string{"Scaled", "Updated"},
		[]string{was(appsv1alpha1.CollaSetScale), was(appsv1alpha1.CollaSetUpdate)})
	s.broken["r2"] = true
	s.template("r2")
	for range 10 {
		s.look()
		assert.Equal(t, "Updating", was(appsv1alpha1.CollaSetUpdate))
	}
	delete(s.broken, "r2")
	s.rest()
	assert.Equal(t, "Updated", was(appsv1alpha1.CollaSetUpdate))
	s.user("more", func() { s.Replicas = 5 })
	s.look()
	assert.Equal(t, "Scaling", was(appsv1alpha1.CollaSetScale))
	s.rest()
	assert.Equal(t, []string{"Scaled", "Updated"},
		[]string{was(appsv1alpha1.CollaSetScale), was(appsv1alpha1.CollaSetUpdate)})
}
