package decoplan_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/utils/ptr"
	"pgregory.net/rapid"

	"kusionstack.io/kuperator/api/podops"
	"kusionstack.io/kuperator/internal/decoration"
	"kusionstack.io/kuperator/internal/poddecoration/decoplan"
)

// sidecar is a decoration of all Pods that goes from v1 to v2.
func sidecar() decoplan.Rollout {
	return decoplan.Rollout{Name: "sidecar", Selector: labels.Everything(), Updated: "v2", Current: "v1"}
}

// pods makes Pods from texts: the revision that each has, and after a > the one that it was told to have.
func pods(texts ...string) []*decoplan.Pod {
	var all []*decoplan.Pod
	for i, text := range texts {
		has, told, isTold := strings.Cut(text, ">")
		pod := &decoplan.Pod{View: podops.View{Name: fmt.Sprintf("p%d", i)}, Available: true, Managed: true,
			Created: time.Unix(int64(i), 0), IsTold: isTold}
		pod.Has, pod.Desired = marks(has), marks(told)
		all = append(all, pod)
	}
	return all
}

func marks(revision string) []decoration.Mark {
	if revision == "" {
		return nil
	}
	return []decoration.Mark{{Name: "sidecar", Revision: revision}}
}

// assign assigns decorations to the Pods that their selectors match.
func assign(rollouts []decoplan.Rollout, pods []*decoplan.Pod) [][]decoration.Mark {
	selected := make([][]int, len(rollouts))
	for i, r := range rollouts {
		for place, p := range pods {
			if r.Selector != nil && r.Selector.Matches(labels.Set(p.Labels)) {
				selected[i] = append(selected[i], place)
			}
		}
	}
	return decoplan.Assign(rollouts, selected, pods)
}

// text is what Pods are to have of the sidecar.
func text(assigned [][]decoration.Mark) string {
	var all []string
	for _, list := range assigned {
		revision := "-"
		for _, m := range list {
			revision = m.Revision
		}
		all = append(all, revision)
	}
	return strings.Join(all, " ")
}

func TestAssign(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*decoplan.Rollout, []*decoplan.Pod)
		pods   []*decoplan.Pod
		want   string
	}{
		"all": {nil, pods("v1", "", "v2"), "v2 v2 v2"},
		"a partition keeps the oldest": {
			func(d *decoplan.Rollout, _ []*decoplan.Pod) { d.Partition = ptr.To[int32](2) },
			pods("v1", "v1", "v1"), "v1 v1 v2",
		},
		"what does not serve goes first": {
			func(d *decoplan.Rollout, pods []*decoplan.Pod) {
				d.Partition, pods[0].Available = ptr.To[int32](2), false
			},
			pods("v1", "v1", "v1"), "v2 v1 v1",
		},
		"what was told comes before what would be": {
			func(d *decoplan.Rollout, _ []*decoplan.Pod) { d.Partition = ptr.To[int32](2) },
			pods("v1>v2", "v1", "v1"), "v2 v1 v1",
		},
		"a raised partition takes back what was told and not what was done": {
			func(d *decoplan.Rollout, _ []*decoplan.Pod) { d.Partition = ptr.To[int32](3) },
			pods("v1>v2", "v2", "v1>v2"), "v1 v2 v1",
		},
		"a partition above the number of Pods": {
			func(d *decoplan.Rollout, _ []*decoplan.Pod) { d.Partition = ptr.To[int32](9) },
			pods("v1", "v2", ""), "v1 v2 v1",
		},
		"at first what is kept back has nothing": {
			func(d *decoplan.Rollout, _ []*decoplan.Pod) { d.Partition, d.Current = ptr.To[int32](1), "" },
			pods("", ""), "- v2",
		},
		"a selector counts, and the partition does not": {
			func(d *decoplan.Rollout, pods []*decoplan.Pod) {
				d.Partition, d.UpdateSelector = ptr.To[int32](3), labels.SelectorFromSet(labels.Set{"canary": "1"})
				pods[1].Labels = map[string]string{"canary": "1"}
			},
			pods("v1", "v1", "v0"), "v1 v2 v0",
		},
		"a canary is given up, whatever the partition": {
			func(d *decoplan.Rollout, _ []*decoplan.Pod) { d.Partition, d.Updated = ptr.To[int32](3), "v1" },
			pods("v1", "v2", "v1", ""), "v1 v1 v1 v1",
		},
		"paused, those that were told get it": {
			func(d *decoplan.Rollout, _ []*decoplan.Pod) { d.Hold = decoplan.HoldTold }, pods("v1>v2", "v1", "v2"),
			"v2 v1 v2",
		},
		"halted, those that were told go back": {
			func(d *decoplan.Rollout, _ []*decoplan.Pod) { d.Hold = decoplan.HoldMade }, pods("v1>v2", "v1", "v2"),
			"v1 v1 v2",
		},
		"a deletion takes it off all, however it is held": {
			func(d *decoplan.Rollout, _ []*decoplan.Pod) { d.Hold, d.Updated = decoplan.HoldMade, "" },
			pods("v1>v2", "v2"), "- -",
		},
		"a deletion takes it off all": {
			func(d *decoplan.Rollout, _ []*decoplan.Pod) { d.Partition, d.Updated = ptr.To[int32](3), "" },
			pods("v1", "v2", ""), "- - -",
		},
		"without a selector it is for none": {
			func(d *decoplan.Rollout, _ []*decoplan.Pod) { d.Selector = nil }, pods("v1", ""), "- -",
		},
		"a Pod that is not selected any more": {
			func(d *decoplan.Rollout, pods []*decoplan.Pod) {
				d.Selector = labels.SelectorFromSet(labels.Set{"app": "web"})
				pods[0].Labels = map[string]string{"app": "web"}
			},
			pods("v1", "v1"), "v2 -",
		},
	} {
		t.Run(name, func(t *testing.T) {
			d := sidecar()
			if test.change != nil {
				test.change(&d, test.pods)
			}
			assert.Equal(t, test.want, text(assign([]decoplan.Rollout{d}, test.pods)))
		})
	}
}

func TestDecorationsAreInTheOrderOfTheirWeights(t *testing.T) {
	decorations := []decoplan.Rollout{{Name: "c", Weight: 1}, {Name: "b", Weight: 2}, {Name: "a", Weight: 2}}
	for i := range decorations {
		decorations[i].Selector, decorations[i].Updated = labels.Everything(), "r"
	}
	got := assign(decorations, pods(""))
	assert.Equal(t, [][]decoration.Mark{{{Name: "c", Revision: "r"}, {Name: "a", Revision: "r"},
		{Name: "b", Revision: "r"}}}, got)
}

func TestAssignNew(t *testing.T) {
	canary := labels.SelectorFromSet(labels.Set{"canary": "1"})
	type one = decoplan.Rollout
	for name, test := range map[string]struct {
		change func(*one)
		want   string
	}{
		"the new revision":                {func(*one) {}, "v2"},
		"a partition that keeps none":     {func(d *one) { d.Partition = ptr.To[int32](0) }, "v2"},
		"a partition":                     {func(d *one) { d.Partition = ptr.To[int32](1) }, "v1"},
		"a partition of the first":        {func(d *one) { d.Partition, d.Current = ptr.To[int32](1), "" }, "-"},
		"a Pod that the selector selects": {func(d *one) { d.UpdateSelector = labels.Everything() }, "v2"},
		"another one":                     {func(d *one) { d.UpdateSelector = canary }, "v1"},
		"a decoration of other Pods":      {func(d *one) { d.Selector = canary }, "-"},
		"one that is being deleted":       {func(d *one) { d.Updated = "" }, "-"},
	} {
		t.Run(name, func(t *testing.T) {
			d := sidecar()
			test.change(&d)
			got := decoplan.AssignNew([]decoplan.Rollout{d}, map[string]string{"app": "web"})
			assert.Equal(t, test.want, text([][]decoration.Mark{got}))
		})
	}
}

// TestTheBoundOfAPartition has Pods come, go, be told and be made so in any order, and decisions in between.
func TestTheBoundOfAPartition(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := sidecar()
		var all []*decoplan.Pod
		created := 0
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			switch rapid.SampledFrom([]string{"partition", "come", "go", "serve", "tell", "tell", "do"}).Draw(t, "step") {
			case "partition":
				d.Partition = ptr.To(int32(rapid.IntRange(0, 6).Draw(t, "partition")))
			case "come": // decorated when it was admitted, or not
				created++
				pod := pods("")[0]
				if rapid.Bool().Draw(t, "admitted") {
					pod.Has = decoplan.AssignNew([]decoplan.Rollout{d}, nil)
				}
				pod.View.Name, pod.Created = fmt.Sprintf("p%d", created), time.Unix(int64(created), 0)
				all = append(all, pod)
			case "go":
				if len(all) > 0 {
					i := rapid.IntRange(0, len(all)-1).Draw(t, "which")
					all = slices.Delete(all, i, i+1)
				}
			case "serve":
				if len(all) > 0 {
					i := rapid.IntRange(0, len(all)-1).Draw(t, "which")
					all[i].Available = !all[i].Available
				}
			case "do":
				for i := range all {
					if all[i].IsTold && rapid.Bool().Draw(t, "done") {
						all[i].Has, all[i].IsTold = all[i].Desired, false
					}
				}
			case "tell":
				tell(t, d, all)
			}
		}
	})
}

// tell decides, checks the decision, and tells the Pods.
func tell(t *rapid.T, d decoplan.Rollout, all []*decoplan.Pod) {
	assigned := assign([]decoplan.Rollout{d}, all)
	had, gets := 0, 0
	for i := range all {
		has := slices.Equal(all[i].Has, marks("v2"))
		is := slices.Equal(assigned[i], marks("v2"))
		require.True(t, is || !has, "%s goes back", all[i].View.Name)
		if has {
			had++
		}
		if is {
			gets++
		}
	}
	allowed := len(all)
	if d.Partition != nil {
		allowed = max(0, len(all)-int(*d.Partition))
	}
	require.Equal(t, max(had, allowed), gets, "Pods that get the new revision")

	order := rapid.Permutation(all).Draw(t, "order")
	other := assign([]decoplan.Rollout{d}, order)
	for i := range order {
		at := slices.IndexFunc(all, func(p *decoplan.Pod) bool { return p.View.Name == order[i].View.Name })
		require.Equal(t, assigned[at], other[i], "in another order")
	}
	for i := range all {
		all[i].Desired, all[i].IsTold = assigned[i], decoration.Key(assigned[i]) != decoration.Key(all[i].Has)
	}
	require.Equal(t, assigned, assign([]decoplan.Rollout{d}, all), "decided twice")
}
