package setplan_test

import (
	"embed"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/meta"

	"k8s.io/apimachinery/pkg/types"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
	"kusionstack.io/kuperator/internal/collaset/setplan"
)

// goldenLogs is testdata as it was built in, so that Go need not repeat the tests in every clone.
//
//go:embed testdata/*.log
var goldenLogs embed.FS

var updateGolden = flag.Bool("update", false, "write the logs in testdata instead of comparing with them")

// story is a set under a user's hands: the template is at spec, and status is kept from round to round, as the shell
// does.
type story struct {
	*world
	t      *testing.T
	spec   string
	status appsv1alpha1.CollaSetStatus
	passes func() bool
	silent bool // no text: it costs more than the story
	text   strings.Builder
	begun  time.Time
	shown  string
}

// tell begins with a set of this size at rest at r1.
func tell(t *testing.T, replicas int, passes func() bool, change func(*world)) *story {
	t.Helper()
	w := newWorld(replicas)
	w.broken = map[string]bool{}
	if change != nil {
		change(w)
	}
	s := &story{world: w, t: t, spec: "r1", passes: always}
	s.rest()
	require.Empty(t, w.problems)
	s.passes, s.begun, s.shown = passes, w.Now, ""
	s.text.Reset()
	s.write("at rest")
	return s
}

// user does something to the spec, or to Pods.
func (s *story) user(what string, do func()) {
	do()
	s.Generation++
	fmt.Fprintf(&s.text, "\nUSER: %s\n", what)
}

// template moves the template to a revision.
func (s *story) template(revision string) {
	s.user("the template becomes "+revision, func() { s.spec = revision })
}

func (s *story) known(revision string) bool { _, ok := s.Revisions[revision]; return ok }

// look is one decision and what follows: the shell, the API server, kubelets, rules and lifecycle.
func (s *story) look() (busy bool) {
	s.Halted = s.Failure.Halt(&s.status, s.spec, s.known)
	s.SpecRevision, s.UpdatedRevision = s.spec, setplan.Target(s.spec, s.Halted)
	if s.status.CurrentRevision != "" {
		s.CurrentRevision = s.status.CurrentRevision
	}
	s.Returned = s.Halted == nil && s.status.CurrentRevision == s.spec
	plan := s.decide()
	before := s.status
	s.status = setplan.StatusOf(&s.Snapshot, &plan, setplan.Outcome{}, *before.DeepCopy())
	s.saysAllOnce()
	from := len(s.log)
	s.mayCreate(plan)
	s.apply(plan, s.passes)
	s.settle(s.passes)
	s.write(grouped(s.log[from:])...)
	halted := (before.Halted == nil) != (s.status.Halted == nil)
	return !plan.IsZero() || halted || plan.NextLook > 0 || setplan.DeadlineIn(&s.Snapshot, setplan.Goal{}, &s.status) > 0
}

// decide is a decision, after what the window leaves of it.
func (s *story) decide() setplan.Plan {
	plan := setplan.Decide(&s.Snapshot)
	if s.shut {
		plan.Admit(func(types.UID) bool { return false })
	}
	return plan
}

func (s *story) looks(n int) {
	for range n {
		s.look()
	}
}

// rest goes on until nothing is due any more and nothing will be by time alone.
func (s *story) rest() {
	s.t.Helper()
	quiet, enough := 0, 10
	if s.silent {
		enough = 40 // kubelets may do nothing for long in random order
	}
	for range 3000 {
		if quiet++; s.look() {
			quiet = 0
		}
		if quiet == enough {
			return
		}
	}
	s.t.Fatalf("it does not come to rest:\n%s", s.text.String()[max(0, s.text.Len()-4000):])
}

// write notes what was done and, if it changed, where Pods and status stand.
func (s *story) write(done ...string) {
	if s.silent {
		return
	}
	state := s.state()
	if len(done) == 0 && state == s.shown {
		return
	}
	s.shown = state
	if len(done) == 0 {
		done = []string{"(lifecycle, rules and kubelets)"}
	}
	fmt.Fprintf(&s.text, "%4.0fs  %s\n       %s\n", s.Now.Sub(s.begun).Seconds(), strings.Join(done, "; "), state)
}

// state says of every Pod its ID, its revision and what it does, and what status says.
func (s *story) state() string {
	var pods []string
	sorted := slices.Clone(s.Pods)
	slices.SortFunc(sorted, func(a, b setplan.Pod) int { return strings.Compare(a.Name(), b.Name()) })
	slices.SortStableFunc(sorted, func(a, b setplan.Pod) int { return a.ID - b.ID })
	for i := range sorted {
		p := &sorted[i]
		does := ""
		switch {
		case p.View.Terminating:
			does = ":going"
		case !p.View.ServiceAvailable() && s.Protocol, !p.View.Ready:
			does = ":out"
		case !p.Available:
			does = ":bakes"
		}
		if podops.IsDuring(p.View, setplan.OperatorID, podops.TypeUpdate) && does == "" {
			does = ":asked"
		}
		if origin := s.find(p.View.Labels[appsv1alpha1.ReplacePairOriginNameLabel]); origin != nil {
			does += fmt.Sprintf("(for %d)", origin.ID)
		}
		pods = append(pods, fmt.Sprintf("%d=%s%s", p.ID, p.Revision, does))
	}
	reason := ""
	if c := meta.FindStatusCondition(s.status.Conditions, appsv1alpha1.CollaSetProgressing); c != nil {
		reason = fmt.Sprintf("  [%s, current %s]", c.Reason, s.status.CurrentRevision)
	}
	return strings.Join(pods, " ") + reason
}

// grouped puts the IDs of like actions together: "begin 1 update", "begin 2 update" is "begin update 1 2".
func grouped(log []string) []string {
	var out []string
	at := map[string]int{}
	for _, line := range log {
		words := strings.Fields(line)
		if words[0] == "store" {
			out = append(out, "store entries")
			continue
		}
		what := strings.Join(append(words[:1:1], words[2:]...), " ")
		if i, ok := at[what]; ok {
			out[i] += " " + words[1]
			continue
		}
		at[what] = len(out)
		out = append(out, what+" "+words[1])
	}
	return out
}

// TestGoldenRollouts simulates whole rollouts: once in the order of the plans, with a log to read (testdata, written
// by go test ./internal/collaset/setplan -run Golden -update), and 100 times with actions and kubelets in random
// order, of which only the end is checked, and what must hold always.
func TestGoldenRollouts(t *testing.T) {
	for name, sc := range goldens {
		t.Run(name, func(t *testing.T) {
			t.Run("in order", func(t *testing.T) {
				s := tell(t, sc.replicas, always, sc.setup)
				sc.play(s)
				s.rest()
				s.ends(sc.end)
				path := filepath.Join("testdata", strings.ReplaceAll(name, " ", "-")+".log")
				text := "# " + sc.about + "\n\n" + s.text.String()
				if *updateGolden {
					require.NoError(t, os.MkdirAll("testdata", 0o755))
					require.NoError(t, os.WriteFile(path, []byte(text), 0o644))
					return
				}
				want, err := goldenLogs.ReadFile(path)
				require.NoError(t, err)
				assert.Equal(t, string(want), text, "if this is meant, run with -update and read the difference")
			})
			t.Run("in random order", func(t *testing.T) {
				for seed := range uint64(100) {
					s := tell(t, sc.replicas, sometimes(seed, 0.5), sc.setup)
					s.silent = true
					sc.play(s)
					s.rest()
					s.ends(sc.end)
					if t.Failed() {
						t.Fatalf("seed %d: %s", seed, strings.Join(s.log, "; "))
					}
				}
			})
		})
	}
}

// ends checks the end of a story.
func (s *story) ends(check func(*testing.T, *story)) {
	s.t.Helper()
	assert.Empty(s.t, s.problems)
	assert.Len(s.t, s.live(), s.Replicas)
	check(s.t, s)
}

// progressing is the reason of the condition.
func (s *story) progressing() string {
	c := meta.FindStatusCondition(s.status.Conditions, appsv1alpha1.CollaSetProgressing)
	if c == nil {
		return ""
	}
	return c.Reason
}

// ready is the condition's status.
func (s *story) ready() bool {
	return meta.IsStatusConditionTrue(s.status.Conditions, appsv1alpha1.CollaSetReady)
}

// lose takes a Pod away at once, as a node that dies does.
func (s *story) lose(name string) {
	s.Pods = slices.DeleteFunc(s.Pods, func(p setplan.Pod) bool { return p.Name() == name })
}

// first is a live Pod for which the condition holds; nil if there is none.
func (s *story) first(holds func(*setplan.Pod) bool) *setplan.Pod {
	for _, p := range s.live() {
		if holds(p) {
			return p
		}
	}
	return nil
}

func (s *story) label(p *setplan.Pod, key string, value *string) {
	s.change(p, podops.Change{Labels: map[string]*string{key: value}})
}

// golden is a rollout whose log is kept.
type golden struct {
	about    string
	replicas int
	setup    func(*world)
	play     func(*story)
	end      func(*testing.T, *story)
}

// reached checks that every Pod is at the revision and the set is Ready.
func reached(revision string) func(*testing.T, *story) {
	return func(t *testing.T, s *story) {
		assert.Equal(t, s.Replicas, s.atRevision(revision))
		assert.True(t, s.ready(), "%v", s.status.Conditions)
		assert.Equal(t, "RolloutComplete", s.progressing())
		assert.Equal(t, revision, s.status.CurrentRevision)
		assert.Equal(t, s.spec, s.status.UpdatedRevision)
	}
}

func twoAtATime(w *world) { w.budget = 2 }

// forcing makes every change a change that needs another Pod.
func forcing(w *world) {
	for r := range w.Revisions {
		w.Revisions[r] = setplan.Difference{Forcing: []string{"template.spec.containers[0].env"}}
	}
}

var goldens = map[string]golden{
	"in place": {
		about:    "Five Pods take over a new image in place. Rules let two out of service at a time.",
		replicas: 5, setup: twoAtATime,
		play: func(s *story) { s.template("r2") },
		end:  reached("r2"),
	},
	"recreate": {
		about:    "Five Pods are created anew, under their IDs. Rules let two out of service at a time.",
		replicas: 5, setup: func(w *world) { twoAtATime(w); w.Policy = appsv1alpha1.PodUpdateRecreate },
		play: func(s *story) { s.template("r2") },
		end:  reached("r2"),
	},
	"recreate in sequence": {
		about:    "Names follow from IDs, so a successor waits until its predecessor is gone.",
		replicas: 3, setup: func(w *world) { twoAtATime(w); w.Policy = appsv1alpha1.PodUpdateRecreate; w.Sequential = true },
		play: func(s *story) { s.template("r2") },
		end:  reached("r2"),
	},
	"in place only": {
		about:    "A change that no running Pod can take over is refused, and nothing happens until it is put back.",
		replicas: 3, setup: func(w *world) { w.Policy = appsv1alpha1.PodUpdateInPlaceOnly },
		play: func(s *story) {
			s.user("the template becomes r2, with another environment", func() { s.spec = "r2"; forcing(s.world) })
			s.rest()
			assert.Equal(s.t, "Blocked", s.progressing())
			s.user("the environment is put back: the template becomes r3",
				func() { s.spec = "r3"; s.Revisions["r1"] = setplan.Difference{} })
		},
		end: reached("r3"),
	},
	"without the lifecycle": {
		about:    "One Pod at a time, with nobody asked.",
		replicas: 3, setup: func(w *world) { w.Protocol = false },
		play: func(s *story) { s.template("r2") },
		end:  reached("r2"),
	},
	"partition in steps": {
		about:    "A canary of one Pod, then of three, then all.",
		replicas: 5, setup: twoAtATime,
		play: func(s *story) {
			s.user("the template becomes r2, with partition 4", func() { s.spec = "r2"; s.Partition = 4 })
			s.rest()
			assert.Equal(s.t, 1, s.atRevision("r2"))
			assert.Equal(s.t, "r1", s.status.CurrentRevision)
			s.user("partition 2", func() { s.Partition = 2 })
			s.rest()
			assert.Equal(s.t, 3, s.atRevision("r2"))
			s.user("partition 0", func() { s.Partition = 0 })
		},
		end: reached("r2"),
	},
	"partition raised midway": {
		about:    "Raising the partition downgrades nobody and cancels what has not been changed yet.",
		replicas: 5, setup: func(w *world) { w.budget = 1 },
		play: func(s *story) {
			s.template("r2")
			s.looks(4)
			s.user("partition 4", func() { s.Partition = 4 })
			s.rest()
			updated := s.atRevision("r2")
			assert.Positive(s.t, updated)
			assert.Less(s.t, updated, 5)
			assert.Zero(s.t, s.status.OperatingReplicas)
			s.user("partition 0", func() { s.Partition = 0 })
		},
		end: reached("r2"),
	},
	"partition and back": {
		about:    "A canary of two crashes and is taken back by its template: the partition does not keep it.",
		replicas: 5, setup: func(w *world) { twoAtATime(w); w.Partition = 3 },
		play: func(s *story) {
			s.broken["r2"] = true
			s.template("r2")
			s.looks(4)
			assert.GreaterOrEqual(s.t, s.slotsAt("r1"), 3)
			s.template("r1")
		},
		end: reached("r1"),
	},
	"replace on request during update": {
		about:    "A Pod is to be replaced for reasons of its user while an update in place goes on: the new Pod is at the updated revision.",
		replicas: 3, setup: func(w *world) { w.budget = 1 },
		play: func(s *story) {
			s.template("r2")
			s.looks(1)
			s.user("Pod 2 is labelled to-replace", func() { s.ask(s.first(func(p *setplan.Pod) bool { return p.ID == 2 })) })
		},
		end: reached("r2"),
	},
	"by label": {
		about:    "Pods are updated as they are labelled; a label taken away in time cancels.",
		replicas: 4, setup: func(w *world) { w.budget = 1; w.ByLabel = true },
		play: func(s *story) {
			s.template("r2")
			s.looks(2)
			yes := "1"
			s.user("Pods 0, 1 and 2 are labelled", func() {
				for id := range 3 {
					s.label(s.first(func(p *setplan.Pod) bool { return p.ID == id }), appsv1alpha1.UpdateIncludedLabel, &yes)
				}
			})
			s.looks(2)
			s.user("the label of Pod 2 is taken away again", func() {
				s.label(s.first(func(p *setplan.Pod) bool { return p.ID == 2 }), appsv1alpha1.UpdateIncludedLabel, nil)
			})
		},
		end: func(t *testing.T, s *story) {
			assert.GreaterOrEqual(t, s.atRevision("r2"), 2)
			assert.LessOrEqual(t, s.atRevision("r2"), 3)
			assert.Equal(t, "r1", s.first(func(p *setplan.Pod) bool { return p.ID == 3 }).Revision)
			assert.Zero(t, s.status.OperatingReplicas)
			assert.Nil(t, s.first(func(p *setplan.Pod) bool { return p.Included }), "a label that has served is gone")
		},
	},
	"scale during update": {
		about:    "Replicas go from 4 to 6 and then to 3 while Pods are being updated.",
		replicas: 4, setup: func(w *world) { w.budget = 1 },
		play: func(s *story) {
			s.template("r2")
			s.looks(4)
			s.user("replicas 6", func() { s.Replicas = 6 })
			s.looks(4)
			s.user("replicas 3", func() { s.Replicas = 3 })
		},
		end: reached("r2"),
	},
	"rollback midway": {
		about:    "The template goes back while two of five Pods have changed and others are asked for.",
		replicas: 5, setup: twoAtATime,
		play: func(s *story) {
			s.template("r2")
			s.looks(4)
			s.template("r1")
		},
		end: reached("r1"),
	},
	"revision change midway": {
		about: "Revisions come while Pods have permission, and while they take over the one before: each is applied in the same operation. " +
			"A Pod that is on its way back asks anew.",
		replicas: 5, setup: twoAtATime,
		play: func(s *story) {
			s.template("r2")
			s.looks(1)
			s.template("r3")
			s.looks(1)
			s.template("r4")
			s.looks(2)
			s.template("r2")
		},
		end: reached("r2"),
	},
	"Pod loss midway": {
		about:    "With a partition of two, an updated Pod, one being updated and an old one are lost; each comes back as it was.",
		replicas: 5, setup: func(w *world) { w.budget = 2 },
		play: func(s *story) {
			s.user("the template becomes r2, with partition 2", func() { s.spec = "r2"; s.Partition = 2 })
			s.looks(4)
			for _, kind := range []struct {
				what  string
				holds func(*setplan.Pod) bool
			}{
				{"a Pod that may be updated", func(p *setplan.Pod) bool {
					return p.Revision == "r1" && podops.IsDuring(p.View, setplan.OperatorID, podops.TypeUpdate)
				}},
				{"a Pod at r2", func(p *setplan.Pod) bool { return p.Revision == "r2" }},
				{"a Pod at r1", func(p *setplan.Pod) bool {
					return p.Revision == "r1" && !podops.IsDuring(p.View, setplan.OperatorID, podops.TypeUpdate)
				}},
			} {
				p := s.first(kind.holds)
				if p == nil {
					continue
				}
				id, revision, entry := p.ID, p.Revision, s.entry(p.ID).Data[appsv1alpha1.ContextRevision]
				s.user(fmt.Sprintf("%s is lost: %d", kind.what, id), func() { s.lose(p.Name()) })
				for s.first(func(p *setplan.Pod) bool { return p.ID == id }) == nil {
					s.look()
				}
				back := s.first(func(p *setplan.Pod) bool { return p.ID == id })
				if entry == revision { // no component can bridge the one look in which it was not yet stored
					assert.Equal(s.t, revision, back.Revision, "ID %d", id)
				}
			}
		},
		end: func(t *testing.T, s *story) {
			assert.Equal(t, 3, s.atRevision("r2"))
			assert.Equal(t, 2, s.atRevision("r1"))
			assert.Equal(t, []int{0, 1, 2, 3, 4}, s.ids())
			assert.True(t, s.ready())
		},
	},
	"replace": {
		about:    "A new Pod first, then the old one goes, two at a time.",
		replicas: 5, setup: replacing,
		play: func(s *story) { s.template("r2") },
		end:  reached("r2"),
	},
	"replace with scale and rollback midway": {
		about: "New Pods of r2 cannot start. Replicas go from 3 to 4 and to 2; the template goes back, which gives the new Pods up; then r3 replaces " +
			"all, and one Pod is replaced by its label before.",
		replicas: 3, setup: replacing,
		play: func(s *story) {
			s.broken["r2"] = true
			s.template("r2")
			s.looks(4)
			s.user("replicas 4", func() { s.Replicas = 4 })
			s.looks(4)
			s.user("replicas 2", func() { s.Replicas = 2 })
			s.looks(4)
			s.template("r1")
			s.rest()
			assert.Equal(s.t, 2, s.atRevision("r1"))
			s.user("a Pod is labelled to-replace", func() { s.ask(s.live()[0]) })
			s.looks(2)
			s.template("r3")
		},
		end: reached("r3"),
	},
	"replace under failure policy Rollback": {
		about:    "New Pods of r2 cannot start. After the deadline they are given up, and all old Pods are still there.",
		replicas: 4, setup: func(w *world) {
			replacing(w)
			w.Failure = setplan.FailureHandling{Deadline: 20 * time.Second, Policy: appsv1alpha1.RolloutFailureRollback}
		},
		play: func(s *story) {
			s.broken["r2"] = true
			s.template("r2")
		},
		end: func(t *testing.T, s *story) {
			rolledBack(t, s)
			assert.Equal(t, []int{0, 1, 2, 3}, s.ids())
		},
	},
	"minReadySeconds": {
		about:    "Eight Pods, each to be Ready for 10 s. At most a quarter of them is being updated or bakes.",
		replicas: 8, setup: func(w *world) { w.MinReady, w.MaxUnavailable = 10*time.Second, 2 },
		play: func(s *story) { s.template("r2") },
		end:  reached("r2"),
	},
	"failure policy Pause": {
		about:    "r2 crashes. After the deadline the rollout stops; a Pod lost and Pods added come at r1. Another template ends the halt.",
		replicas: 5, setup: func(w *world) {
			twoAtATime(w)
			w.Failure = setplan.FailureHandling{Deadline: 20 * time.Second, Policy: appsv1alpha1.RolloutFailurePause}
		},
		play: func(s *story) {
			s.broken["r2"] = true
			s.template("r2")
			s.rest()
			assert.Equal(s.t, "RolloutHalted", s.progressing())
			assert.Equal(s.t, 2, s.atRevision("r2"))
			lost := s.first(func(p *setplan.Pod) bool { return p.Revision == "r2" })
			s.user("one of the crashing Pods is lost, and replicas 6", func() { s.lose(lost.Name()); s.Replicas = 6 })
			s.rest()
			assert.Equal(s.t, 1, s.atRevision("r2"))
			assert.Equal(s.t, 5, s.atRevision("r1"))
			assert.Equal(s.t, "RolloutHalted", s.progressing())
			assert.Equal(s.t, "r1", s.status.CurrentRevision)
			s.template("r3")
		},
		end: reached("r3"),
	},
	"failure policy Rollback": {
		about:    "r2 crashes. After the deadline its Pods go back to r1, in the operation that is under way; partition 2 does not matter.",
		replicas: 5, setup: func(w *world) {
			twoAtATime(w)
			w.Partition = 2
			w.Failure = setplan.FailureHandling{Deadline: 20 * time.Second, Policy: appsv1alpha1.RolloutFailureRollback}
		},
		play: func(s *story) {
			s.broken["r2"] = true
			s.template("r2")
		},
		end: rolledBack,
	},
	"failure policy Pause replacing": {
		about:    "r2 does not come up: with Pause, too, new Pods that do not serve are taken back, for their origins do.",
		replicas: 4, setup: func(w *world) {
			replacing(w)
			w.Failure = setplan.FailureHandling{Deadline: 20 * time.Second, Policy: appsv1alpha1.RolloutFailurePause}
		},
		play: func(s *story) {
			s.broken["r2"] = true
			s.template("r2")
			s.rest()
			assert.Equal(s.t, "RolloutHalted", s.progressing())
			assert.Equal(s.t, 4, s.atRevision("r1"))
			assert.Len(s.t, s.live(), 4)
			s.template("r3")
		},
		end: reached("r3"),
	},
	"failure policy Rollback recreating": {
		about:    "r2 crashes in Pods that were created anew; they are created anew at r1. An added Pod comes at r1.",
		replicas: 5, setup: func(w *world) {
			twoAtATime(w)
			w.Policy = appsv1alpha1.PodUpdateRecreate
			w.Failure = setplan.FailureHandling{Deadline: 20 * time.Second, Policy: appsv1alpha1.RolloutFailureRollback}
		},
		play: func(s *story) {
			s.broken["r2"] = true
			s.template("r2")
			s.rest()
			rolledBack(s.t, s)
			s.user("replicas 6", func() { s.Replicas = 6 })
		},
		end: rolledBack,
	},
}

// rolledBack checks that every Pod serves at r1 although the template is r2, and that status reports this.
func rolledBack(t *testing.T, s *story) {
	t.Helper()
	assert.Equal(t, s.Replicas, s.atRevision("r1"))
	assert.EqualValues(t, s.Replicas, s.status.AvailableReplicas)
	assert.False(t, s.ready(), "the spec is not reached")
	assert.Equal(t, "RolledBack", s.progressing())
	assert.True(t, meta.IsStatusConditionTrue(s.status.Conditions, appsv1alpha1.CollaSetStalled))
	assert.Equal(t, "r1", s.status.CurrentRevision)
	assert.Equal(t, "r2", s.status.UpdatedRevision)
	assert.Zero(t, s.status.UpdatedReplicas)
	require.NotNil(t, s.status.Halted)
	assert.Equal(t, "r1", s.status.Halted.RollbackTo)
}
