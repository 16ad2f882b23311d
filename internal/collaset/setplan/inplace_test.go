package setplan_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/internal/collaset/setplan"
)

func TestResizes(t *testing.T) {
	for _, protocol := range []bool{true, false} {
		for name, tc := range map[string]struct {
			change func(*world)
			check  func(*testing.T, *world, []types.UID)
		}{
			"resources are written once and waited for": {
				change: func(*world) {},
				check: func(t *testing.T, w *world, before []types.UID) {
					assert.Equal(t, before, w.uids())
					assert.Equal(t, 3, w.atRevision("r2"))
					assert.Equal(t, 3, countPrefix(w.log, "resize"))
					assert.Equal(t, 3, countPrefix(w.log, "finish"))
				},
			},
			"what no node can give is given by new Pods of the same IDs": {
				change: func(w *world) { w.infeasible = true },
				check: func(t *testing.T, w *world, before []types.UID) {
					for _, uid := range w.uids() {
						assert.NotContains(t, before, uid)
					}
					assert.Equal(t, []int{0, 1, 2}, w.ids())
					assert.Equal(t, 3, w.atRevision("r2"))
				},
			},
			"with InPlaceOnly what a node cannot give holds the rollout": {
				change: func(w *world) { w.infeasible, w.Policy = true, appsv1alpha1.PodUpdateInPlaceOnly },
				check: func(t *testing.T, w *world, before []types.UID) {
					assert.Equal(t, before, w.uids())
					plan := setplan.Decide(&w.Snapshot)
					assert.True(t, slices.ContainsFunc(plan.Blockers,
						func(b setplan.Blocker) bool { return b.Reason == "ResizeInfeasible" }), plan.Blockers)
					assert.True(t, plan.Goal.Held)
					status := setplan.StatusOf(&w.Snapshot, &plan, setplan.Outcome{}, appsv1alpha1.CollaSetStatus{})
					stalled := meta.FindStatusCondition(status.Conditions, appsv1alpha1.CollaSetStalled)
					require.NotNil(t, stalled)
					assert.Contains(t, stalled.Message, "ask for less")
				},
			},
		} {
			t.Run(map[bool]string{true: "under the lifecycle: ", false: "directly: "}[protocol]+name, func(t *testing.T) {
				w := atRest(t, 3, func(w *world) { w.Protocol = protocol })
				before := w.uids()
				w.resizes = true
				tc.change(w)
				w.template("r2")
				require.True(t, w.run(always))
				require.Empty(t, w.problems)
				tc.check(t, w, before)
			})
		}
	}
}

func TestAResizeGoesOnWhateverIsAskedMeanwhile(t *testing.T) {
	for name, change := range map[string]func(*world){
		"paused":         func(w *world) { w.Paused = true },
		"out of scope":   func(w *world) { w.Partition = 3 },
		"back to before": func(w *world) { w.template("r1") },
		"on to another":  func(w *world) { w.template("r3") },
		"another policy": func(w *world) { w.Policy = appsv1alpha1.PodUpdateRecreate },
		"a change that the policy refuses": func(w *world) {
			w.Policy = appsv1alpha1.PodUpdateInPlaceOnly
			w.template("r3")
			w.Revisions["r2"] = setplan.Difference{Forcing: []string{"template.spec.volumes"}}
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := atRest(t, 3, nil)
			w.resizes = true
			w.template("r2")
			for range 50 {
				w.round(always)
				if w.slotsAt("r2") > 0 {
					break
				}
			}
			require.Positive(t, w.atRevision("r2"), "some Pod is changed and lacks its resources")
			change(w)
			require.True(t, w.run(always))
			require.Empty(t, w.problems)
			for _, p := range w.live() {
				assert.False(t, p.ResizeDue, p.Name())
				assert.False(t, p.Recorded, p.Name())
			}
		})
	}
}

func TestARecordThatIsNoJSONIsReported(t *testing.T) {
	for _, protocol := range []bool{true, false} {
		w := atRest(t, 2, func(w *world) { w.Protocol = protocol })
		p := &w.Pods[0]
		p.Recorded, p.Carried, p.Wait, p.Missing = true, false, "RecordUnreadable", "set it to {}"
		plan := setplan.Decide(&w.Snapshot)
		assert.Empty(t, plan.Begins, "the Pod serves")
		assert.Empty(t, plan.Finishes)
		status := setplan.StatusOf(&w.Snapshot, &plan, setplan.Outcome{}, appsv1alpha1.CollaSetStatus{})
		stalled := meta.FindStatusCondition(status.Conditions, appsv1alpha1.CollaSetStalled)
		require.NotNil(t, stalled)
		assert.Equal(t, metav1.ConditionTrue, stalled.Status)
		assert.Contains(t, stalled.Message, "set it to {}")
	}
}

func TestTheForecast(t *testing.T) {
	w := atRest(t, 2, nil)
	forecast := func() *appsv1alpha1.UpdateForecast {
		plan := setplan.Decide(&w.Snapshot)
		return setplan.StatusOf(&w.Snapshot, &plan, setplan.Outcome{}, appsv1alpha1.CollaSetStatus{}).NextUpdate
	}
	assert.Nil(t, forecast(), "there is nothing to come")
	w.Partition = 2
	w.template("r2")
	assert.Equal(t, &appsv1alpha1.UpdateForecast{InPlace: true}, forecast())
	w.Revisions["r1"] = setplan.Difference{Forcing: []string{"template.spec.volumes"}}
	assert.Equal(t, &appsv1alpha1.UpdateForecast{Fields: []string{"template.spec.volumes"}}, forecast())
	many := make([]string, 40)
	for i := range many {
		many[i] = strings.Repeat("é", 400)
	}
	w.Revisions["r1"] = setplan.Difference{Forcing: many}
	assert.Len(t, forecast().Fields, 16, "what the schema allows")
	assert.Equal(t, "(25 more)", forecast().Fields[15])
	assert.LessOrEqual(t, len(forecast().Fields[0]), 512)
	assert.Len(t, w.Revisions["r1"].Forcing[0], 800, "the snapshot stays as it is")
	w.Partition = 0
	require.True(t, w.run(always))
	assert.Nil(t, forecast(), "it has come")
}

func TestAContainerThatCannotRestartInPlaceIsReported(t *testing.T) {
	w := atRest(t, 2, nil)
	w.template("r2")
	p := &w.Pods[0]
	p.Revision, p.Recorded, p.Infeasible = "r2", true, true
	p.Wait, p.Missing = "RestartInfeasible", "container app cannot be restarted in place"
	w.Policy = appsv1alpha1.PodUpdateInPlaceOnly
	plan := setplan.Decide(&w.Snapshot)
	require.NotEmpty(t, plan.Blockers)
	assert.Equal(t, "RestartInfeasible", plan.Blockers[0].Reason)
	assert.Contains(t, plan.Blockers[0].Message, "set podUpgradePolicy to InPlaceIfPossible")
}

func TestStatusKeepsTheConfigurationThatIsFollowed(t *testing.T) {
	w := atRest(t, 1, nil)
	plan := setplan.Decide(&w.Snapshot)
	followed := []appsv1alpha1.ConfigurationStatus{{Kind: appsv1alpha1.ConfigurationSecret, Name: "token", Hash: "h"}}
	status := setplan.StatusOf(&w.Snapshot, &plan, setplan.Outcome{},
		appsv1alpha1.CollaSetStatus{Configuration: followed})
	assert.Equal(t, followed, status.Configuration)
}
