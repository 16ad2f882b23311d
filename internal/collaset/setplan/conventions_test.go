package setplan_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	"pgregory.net/rapid"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/internal/collaset/setplan"
)

func TestConventionsFillInWhatASpecDoesNotSay(t *testing.T) {
	const retain, deletes = appsv1alpha1.RetainPersistentVolumeClaim, appsv1alpha1.DeletePersistentVolumeClaim
	two, all, third := intstr.FromInt32(2), intstr.FromString("100%"), intstr.FromString("33%")
	partition := &appsv1alpha1.ByPartition{Partition: &two}
	own := func(*appsv1alpha1.CollaSetSpec) {}
	for name, tc := range map[string]struct {
		said func(*appsv1alpha1.CollaSetSpec)
		want func(*appsv1alpha1.CollaSetSpec)
	}{
		"nothing": {own, func(s *appsv1alpha1.CollaSetSpec) {
			s.UpdateStrategy.MaxSurge = &all
			s.UpdateStrategy.RollingUpdate = &appsv1alpha1.RollingUpdateStrategy{MaxUnavailable: &all}
			s.ProgressDeadlineSeconds = ptr.To(appsv1alpha1.NoProgressDeadlineSeconds)
			s.ScaleStrategy.PersistentVolumeClaimRetentionPolicy = &appsv1alpha1.PersistentVolumeClaimRetentionPolicy{WhenDeleted: deletes, WhenScaled: deletes}
		}},
		"retention, in part": {
			func(s *appsv1alpha1.CollaSetSpec) {
				s.ScaleStrategy.PersistentVolumeClaimRetentionPolicy = &appsv1alpha1.PersistentVolumeClaimRetentionPolicy{WhenScaled: retain, WhenTemplateChanged: retain}
			},
			func(s *appsv1alpha1.CollaSetSpec) {
				s.ScaleStrategy.PersistentVolumeClaimRetentionPolicy.WhenDeleted = deletes
			},
		},
		"a surge": {func(s *appsv1alpha1.CollaSetSpec) { s.UpdateStrategy.MaxSurge = &third }, own},
		"a partition": {
			func(s *appsv1alpha1.CollaSetSpec) {
				s.UpdateStrategy.RollingUpdate = &appsv1alpha1.RollingUpdateStrategy{ByPartition: partition}
			},
			func(s *appsv1alpha1.CollaSetSpec) { s.UpdateStrategy.RollingUpdate.MaxUnavailable = &all },
		},
		"what may be unavailable": {
			func(s *appsv1alpha1.CollaSetSpec) {
				s.UpdateStrategy.RollingUpdate = &appsv1alpha1.RollingUpdateStrategy{MaxUnavailable: &two}
			}, own,
		},
		"a delay of updates is one of scale-in": {
			func(s *appsv1alpha1.CollaSetSpec) { s.UpdateStrategy.OperationDelaySeconds = ptr.To[int32](7) },
			func(s *appsv1alpha1.CollaSetSpec) { s.ScaleStrategy.OperationDelaySeconds = ptr.To[int32](7) },
		},
		"a delay of scale-in": {
			func(s *appsv1alpha1.CollaSetSpec) {
				s.UpdateStrategy.OperationDelaySeconds, s.ScaleStrategy.OperationDelaySeconds = ptr.To[int32](7), ptr.To[int32](0)
			}, own,
		},
		"a deadline": {func(s *appsv1alpha1.CollaSetSpec) {
			s.ProgressDeadlineSeconds = ptr.To[int32](
				60)
		}, own},
		"a policy that needs a deadline": {func(
			s *appsv1alpha1.CollaSetSpec) {
			s.UpdateStrategy.FailurePolicy = appsv1alpha1.RolloutFailurePause
		}, own},
		"in place only": {
			func(s *appsv1alpha1.CollaSetSpec) {
				s.UpdateStrategy.PodUpdatePolicy = appsv1alpha1.PodUpdateInPlaceOnly
			},
			func(s *appsv1alpha1.CollaSetSpec) {
				s.UpdateStrategy.PodUpdatePolicy = appsv1alpha1.PodUpdateInPlaceIfPossible
			},
		},
		"a history limit": {func(s *appsv1alpha1.CollaSetSpec) { s.HistoryLimit = ptr.To[int32](0) }, own},
	} {
		t.Run(name, func(t *testing.T) {
			spec := appsv1alpha1.CollaSetSpec{}
			tc.said(&spec)
			before := *spec.DeepCopy()
			require.Equal(t, before, setplan.OwnConventions.Apply(spec))
			filled := setplan.KuperatorV07.Apply(spec)
			assert.Equal(t, before, spec, "what was read is the cache's")
			assert.Equal(t, filled, setplan.KuperatorV07.Apply(filled), "once is enough")

			want := *before.DeepCopy()
			tc.want(&want)
			for _, fill := range []func(s *appsv1alpha1.CollaSetSpec){ // what is not the case's
				func(s *appsv1alpha1.CollaSetSpec) {
					s.UpdateStrategy.MaxSurge = ptr.To(ptr.Deref(s.UpdateStrategy.MaxSurge, all))
				},
				func(s *appsv1alpha1.CollaSetSpec) {
					if s.UpdateStrategy.RollingUpdate == nil {
						s.UpdateStrategy.RollingUpdate = &appsv1alpha1.RollingUpdateStrategy{MaxUnavailable: &all}
					}
				},
				func(s *appsv1alpha1.CollaSetSpec) {
					if s.ProgressDeadlineSeconds == nil && s.UpdateStrategy.FailurePolicy == "" {
						s.ProgressDeadlineSeconds = ptr.To(appsv1alpha1.NoProgressDeadlineSeconds)
					}
				},
				func(s *appsv1alpha1.CollaSetSpec) {
					if s.ScaleStrategy.PersistentVolumeClaimRetentionPolicy == nil {
						s.ScaleStrategy.PersistentVolumeClaimRetentionPolicy = &appsv1alpha1.PersistentVolumeClaimRetentionPolicy{WhenDeleted: deletes, WhenScaled: deletes}
					}
				},
			} {
				fill(&want)
			}
			assert.Equal(t, want, filled)
		})
	}
}

func TestConventionsOfRetention(t *testing.T) {
	const retain, deletes = appsv1alpha1.RetainPersistentVolumeClaim, appsv1alpha1.DeletePersistentVolumeClaim
	for name, tc := range map[string]struct {
		said      appsv1alpha1.PersistentVolumeClaimRetentionPolicy
		own, then setplan.Retention
	}{
		"nothing": {then: setplan.Retention{Scaled: true, Deleted: true, Changed: true, Replaced: true, Renewed: true}},
		"scaled: Retain": {
			said: appsv1alpha1.PersistentVolumeClaimRetentionPolicy{WhenScaled: retain},
			then: setplan.Retention{Deleted: true, Replaced: true, Renewed: true},
		},
		"changed: Retain": {
			said: appsv1alpha1.PersistentVolumeClaimRetentionPolicy{WhenTemplateChanged: retain},
			then: setplan.Retention{Scaled: true, Deleted: true, Replaced: true},
		},
		"changed: Delete": {
			said: appsv1alpha1.PersistentVolumeClaimRetentionPolicy{WhenScaled: retain, WhenDeleted: retain,
				WhenTemplateChanged: deletes},
			own: setplan.Retention{Changed: true}, then: setplan.Retention{Changed: true, Replaced: true},
		},
	} {
		t.Run(name, func(t *testing.T) {
			for conventions, want := range map[setplan.Conventions]setplan.Retention{setplan.OwnConventions: tc.own,
				setplan.KuperatorV07: tc.then} {
				spec := appsv1alpha1.CollaSetSpec{}
				spec.ScaleStrategy.PersistentVolumeClaimRetentionPolicy = &tc.said
				filled := conventions.Apply(spec)
				assert.Equal(t, want, conventions.Retention(filled.ScaleStrategy.PersistentVolumeClaimRetentionPolicy), "%q",
					conventions)
			}
		})
	}
	assert.Zero(t, setplan.OwnConventions.Retention(nil))
}

// removeNames takes names from the spec, all at once, as one write does.
func (w *world) removeNames(plan setplan.Plan, passes func() bool) {
	if plan.Names.IsZero() || !passes() {
		return
	}
	if w.Conventions == setplan.OwnConventions {
		w.wrong("names are removed: %v", plan.Names)
	}
	without := func(names, gone []string) []string {
		return slices.DeleteFunc(slices.Clone(names), func(name string) bool { return slices.Contains(gone, name) })
	}
	for _, name := range plan.Names.ToDelete {
		if p := w.find(name); p != nil && !p.View.Terminating {
			w.wrong("%s is not to be deleted any more, and was not", name)
		}
	}
	for _, name := range plan.Names.ToExclude {
		if w.find(name) != nil {
			w.wrong("%s is not to be excluded any more, and was not", name)
		}
	}
	for _, name := range plan.Names.ToInclude {
		if w.find(name) == nil {
			w.wrong("%s is not to be included any more, and was not", name)
		}
	}
	w.say("names %v", plan.Names)
	w.ToDelete, w.ToExclude = without(w.ToDelete, plan.Names.ToDelete), without(w.ToExclude, plan.Names.ToExclude)
	w.include = without(w.include, plan.Names.ToInclude)
	w.ToInclude = w.include
	w.offer()
}

func named(w *world) { w.Conventions = setplan.KuperatorV07 }

func TestNamesThatHaveTakenEffectGo(t *testing.T) {
	for name, tc := range map[string]struct {
		before, change func(*world)
		check          func(*testing.T, *world)
	}{
		"of a Pod that is deleted and comes back": {
			change: func(w *world) { w.ToDelete = []string{w.Pods[1].Name(), "never-heard-of"} },
			check: func(t *testing.T, w *world) {
				assert.Equal(t, 1, countPrefix(w.log, "create 1"))
				assert.Empty(t, w.ToDelete)
			},
		},
		"of a Pod in sequence, which is deleted once": {
			before: func(w *world) { w.Sequential = true },
			change: func(w *world) { w.ToDelete = []string{"web-0"} },
			check: func(t *testing.T, w *world) {
				assert.Equal(t, 1, countPrefix(w.log, "create 0"))
				assert.Empty(t, w.ToDelete)
			},
		},
		"of a Pod in sequence without the lifecycle": {
			before: func(w *world) { w.Sequential, w.Protocol = true, false },
			change: func(w *world) { w.ToDelete = []string{"web-0"} },
			check: func(t *testing.T, w *world) {
				assert.Equal(t, 1, countPrefix(w.log, "create 0"))
				assert.Empty(t, w.ToDelete)
			},
		},
		"of Pods that are scaled in, and no others": {
			change: func(w *world) { w.Replicas, w.ToDelete = 2, []string{w.Pods[0].Name()}; w.keeps = true },
			check: func(t *testing.T, w *world) {
				assert.Equal(t, []int{1, 2}, w.ids())
				assert.Empty(t, w.ToDelete)
			},
		},
		"not of a Pod that waits": {
			before: func(w *world) { w.keeps = true },
			change: func(w *world) { w.ToDelete = []string{w.Pods[1].Name()} },
			check:  func(t *testing.T, w *world) { assert.Len(t, w.ToDelete, 1) },
		},
		"of a Pod that is excluded": {
			change: func(w *world) { w.ToExclude = []string{w.Pods[1].Name()} },
			check: func(t *testing.T, w *world) {
				assert.Len(t, w.outside, 1)
				assert.Empty(t, w.ToExclude)
			},
		},
		"not of one that cannot leave": {
			change: func(w *world) { w.Paused, w.ToExclude = true, []string{w.Pods[1].Name()} },
			check:  func(t *testing.T, w *world) { assert.Len(t, w.ToExclude, 1) },
		},
		"of a Pod that is included, and not of one that is not there": {
			change: func(w *world) {
				stranger(w, "old", 9, func(p *setplan.Pod) { p.Revision = "r1" })
				w.Replicas = 4
				w.include = []string{"old", "never-heard-of"}
				w.ToInclude = w.include
				w.offer()
			},
			check: func(t *testing.T, w *world) {
				assert.NotNil(t, w.find("old"))
				assert.Equal(t, []string{"never-heard-of"}, w.include)
			},
		},
	} {
		for conventions, change := range map[string]func(*world){"": func(*world) {}, "kuperator-v0.7": named} {
			t.Run(name+" "+conventions, func(t *testing.T) {
				w := atRest(t, 3, func(w *world) {
					change(w)
					if tc.before != nil {
						tc.before(w)
					}
				})
				tc.change(w)
				if conventions == "" {
					w.rounds(30)
					assert.Zero(t, countPrefix(w.log, "names"))
					return
				}
				require.True(t, w.run(always), "%v", w.log[max(0, len(w.log)-30):])
				assert.Empty(t, w.problems)
				assert.Len(t, w.live(), w.Replicas)
				tc.check(t, w)
			})
		}
	}
}

// TestNamesGoAtAnyTime has every action pass or not, so that names are removed long after they took effect, and Pods
// end, leave and join in between.
func TestNamesGoAtAnyTime(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(rapid.IntRange(1, 4).Draw(t, "replicas"))
		w.Conventions = setplan.KuperatorV07
		w.Protocol, w.Sequential = rapid.Bool().Draw(t, "protocol"), rapid.Bool().Draw(t, "sequential")
		passes := sometimes(rapid.Uint64().Draw(t, "seed"), rapid.Float64Range(0.3, 1).Draw(t, "chance"))
		for range rapid.IntRange(1, 8).Draw(t, "changes") {
			live := w.live()
			if len(live) == 0 {
				break
			}
			p := live[rapid.IntRange(0, len(live)-1).Draw(t, "Pod")]
			switch rapid.IntRange(0, 4).Draw(t, "what") {
			case 0:
				w.ToDelete = append(slices.Clone(w.ToDelete), p.Name())
			case 1:
				if !w.Sequential && !slices.Contains(w.ToDelete, p.Name()) && !slices.Contains(w.include, p.Name()) {
					w.ToExclude = append(slices.Clone(w.ToExclude), p.Name())
				}
			case 2:
				if len(w.outside) > 0 && !slices.Contains(w.ToExclude, w.outside[0].Name()) {
					w.include = append(slices.Clone(w.include), w.outside[0].Name())
					w.ToInclude = w.include
					w.offer()
				}
			case 3:
				w.Replicas = rapid.IntRange(1, 4).Draw(t, "replicas")
			case 4:
				p.View.Terminating = true
			}
			for range rapid.IntRange(0, 6).Draw(t, "rounds") {
				w.round(passes)
			}
		}
		if !w.run(passes) {
			t.Fatalf("it does not come to rest: %v", w.log[max(0, len(w.log)-40):])
		}
		if len(w.problems) > 0 || len(w.live()) != w.Replicas {
			t.Fatalf("%d Pods for %d replicas: %v\n%v", len(w.live()), w.Replicas, w.problems, w.log)
		}
		if left := fmt.Sprint(w.ToDelete, w.ToExclude); left != "[] []" {
			t.Fatalf("left: %s\n%v", left, w.log)
		}
	})
}

// TestAPairWhoseNewPodIsNamedEndsFirst: with replicas 0 and podToDelete naming a new Pod that does not serve, both
// are kept until it does.
func TestAPairWhoseNewPodIsNamedEndsFirst(t *testing.T) {
	for name, tc := range map[string]struct {
		conventions setplan.Conventions
		names       func(origin, fresh *setplan.Pod) []string
		waits       bool
	}{
		"our own way": {setplan.OwnConventions,
			func(_, fresh *setplan.Pod) []string { return []string{fresh.Name()} }, false},
		"the new Pod is named": {setplan.KuperatorV07,
			func(_, fresh *setplan.Pod) []string { return []string{fresh.Name()} }, true},
		"both are named": {setplan.KuperatorV07,
			func(origin, fresh *setplan.Pod) []string { return []string{origin.Name(), fresh.Name()} }, false},
		"the old one is named": {setplan.KuperatorV07,
			func(origin, _ *setplan.Pod) []string { return []string{origin.Name()} }, false},
		"neither of the two is": {setplan.KuperatorV07, func(*setplan.Pod, *setplan.Pod) []string { return nil }, false},
	} {
		t.Run(name, func(t *testing.T) {
			w := atRest(t, 1, func(w *world) { w.Conventions = tc.conventions })
			w.broken = map[string]bool{"r1": true}
			w.ask(&w.Pods[0])
			w.rounds(5)
			origin, fresh := w.firstPair()
			require.NotNil(t, fresh)
			w.ToDelete, w.Replicas = tc.names(origin, fresh), 0
			w.rounds(20)
			if !tc.waits {
				assert.Empty(t, w.live())
				return
			}
			require.Len(t, w.live(), 2)
			for _, p := range w.live() {
				assert.False(t, p.ToDelete, "neither is handed over")
			}
			assert.Equal(t, 2, w.blockers()["WaitingForReplacement"])
			w.broken = nil
			require.True(t, w.run(always))
			assert.Empty(t, w.problems)
			assert.Empty(t, w.live())
			assert.Empty(t, w.ToDelete)
			assert.Empty(t, w.Entries)
		})
	}
}

// TestEveryUpdateAsksTheRules: what restarts nothing goes through the lifecycle as well, and the label that asked for
// it goes.
func TestEveryUpdateAsksTheRules(t *testing.T) {
	for _, byLabel := range []bool{false, true} {
		for conventions, begins := range map[setplan.Conventions]int{setplan.OwnConventions: 0, setplan.KuperatorV07: 3} {
			w := atRest(t, 3, func(w *world) { w.Conventions = conventions })
			w.ByLabel = byLabel
			for i := range w.Pods {
				label(w, &w.Pods[i], appsv1alpha1.UpdateIncludedLabel)
			}
			w.Revisions["r1"] = setplan.Difference{Quiet: true}
			w.template("r2")
			require.True(t, w.run(always))
			assert.Empty(t, w.problems)
			assert.Equal(t, 3, w.atRevision("r2"))
			assert.Equal(t, begins, countPrefix(w.log, "begin"), "%q: %v", conventions, w.log)
			if conventions == setplan.KuperatorV07 {
				assert.Zero(t, countPrefix(w.log, "cancel"), "%v", w.log)
				for _, p := range w.live() {
					assert.False(t, p.Included)
				}
			}
		}
	}
}

// TestAPartitionKeepsPodsOfARevisionThatIsWithdrawn, as many as it keeps of any.
func TestAPartitionKeepsPodsOfARevisionThatIsWithdrawn(t *testing.T) {
	for conventions, left := range map[setplan.Conventions]int{setplan.OwnConventions: 0, setplan.KuperatorV07: 1} {
		w := atRest(t, 4, func(w *world) { w.Conventions = conventions })
		w.Partition = 3
		w.template("r2")
		require.True(t, w.run(always))
		require.Equal(t, 1, w.atRevision("r2"))
		w.template("r1")
		w.Returned = true
		require.True(t, w.run(always))
		assert.Equal(t, left, w.atRevision("r2"), "%q", conventions)
	}
}

// TestAPodThatIsLostIsNotReplaced: only where its replacement serves do the claims of a Pod go.
func TestAPodThatIsLostIsNotReplaced(t *testing.T) {
	for _, conventions := range []setplan.Conventions{setplan.OwnConventions, setplan.KuperatorV07} {
		w := atRest(t, 2, func(w *world) {
			withClaims(w)
			w.Conventions = conventions
			w.Retention.Replaced = conventions == setplan.KuperatorV07
		})
		w.broken = map[string]bool{"r1": true}
		w.ask(&w.Pods[0])
		w.rounds(5)
		before := w.claimNames()
		origin, fresh := w.firstPair()
		require.NotNil(t, fresh)
		require.False(t, fresh.Available)
		origin.View.Terminating = true // evicted, or its node is gone
		w.rounds(40)
		for claim := range before {
			require.Contains(t, w.claimNames(), claim, "%q", conventions)
		}
	}
}
