package dashboard

import (
	"encoding/json"
	"fmt"
	"maps"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"kusionstack.io/kuperator/internal/insight"
)

var noon = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)

func pod(name string, state insight.State) insight.Pod {
	return insight.Pod{Namespace: "shop", Name: name, Node: "node-1", Revision: "web-1", State: state}
}

func workload(name string, pods ...insight.Pod) insight.Workload {
	w := insight.Workload{Ref: insight.Ref{Kind: "CollaSet", Namespace: "shop", Name: name},
		Counts: map[insight.State]int{}, Pods: pods}
	for _, p := range pods {
		w.Counts[p.State]++
	}
	return w
}

func fleetOf(workloads ...insight.Workload) insight.Fleet {
	f := insight.Fleet{ObservedAt: noon, Counts: map[insight.State]int{}, Workloads: workloads}
	for _, w := range workloads {
		for state, n := range w.Counts {
			f.Counts[state] += n
		}
	}
	return f
}

func partsOf(t require.TestingT, fleet insight.Fleet) Parts {
	parts, err := PartsOf(fleet, Scope{Text: "namespace shop", Context: "kind-prod"})
	require.NoError(t, err)
	return parts
}

func TestOnePodIsOnePiece(t *testing.T) {
	before := partsOf(t, fleetOf(workload("web", pod("a", insight.StateServing), pod("b", insight.StateServing)),
		workload("db", pod("c", insight.StateServing))))
	after := partsOf(t, fleetOf(workload("web", pod("a", insight.StateServing), pod("b", insight.StateDown)),
		workload("db", pod("c", insight.StateServing))))
	change := Between(before, after)
	assert.ElementsMatch(t, []string{"about", "workload/CollaSet/shop/web", "pod/shop/b"}, keysOf(change.Set))
	assert.Empty(t, change.Gone)
	assert.False(t, change.Begin)

	change = Between(after, partsOf(t, fleetOf(workload("db", pod("c", insight.StateServing)))))
	assert.ElementsMatch(t, []string{"workload/CollaSet/shop/web", "pod/shop/a", "pod/shop/b"}, change.Gone)
	assert.Equal(t, []string{"about"}, keysOf(change.Set))
}

func keysOf(parts Parts) []string {
	var keys []string
	for key := range parts {
		keys = append(keys, key)
	}
	return keys
}

func TestPieces(t *testing.T) {
	fleet := fleetOf(workload("web", pod("a", insight.StateServing)))
	fleet.Budgets = []insight.Budget{{Namespace: "shop", Name: "web", Desired: 1}}
	fleet.Jobs = []insight.Job{{Namespace: "shop", Name: "restart", Total: 3}}
	fleet.Decorations = []insight.Decoration{{Namespace: "shop", Name: "proxy", Matched: 4}}
	parts := partsOf(t, fleet)
	fields := func(key string) map[string]any {
		out := map[string]any{}
		require.Contains(t, parts, key)
		require.NoError(t, json.Unmarshal(parts[key], &out))
		return out
	}
	about := fields("about")
	assert.Equal(t, "namespace shop", about["scope"])
	assert.Equal(t, "kind-prod", about["context"])
	assert.NotContains(t, about, "workloads", "they are pieces of their own")
	assert.NotContains(t, about, "budgets")
	assert.NotContains(t, about, "jobs")
	assert.NotContains(t, about, "decorations")
	assert.Equal(t, 4.0, fields("decoration/shop/proxy")["matched"])
	assert.Equal(t, 3.0, fields("job/shop/restart")["total"])
	assert.Equal(t, map[string]any{"Serving": 1.0}, about["counts"])
	assert.NotContains(t, fields("workload/CollaSet/shop/web"), "pods")
	assert.Equal(t, "workload/CollaSet/shop/web", fields("pod/shop/a")["workload"])
	assert.Equal(t, "Serving", fields("pod/shop/a")["state"])
	assert.Equal(t, 1.0, fields("budget/shop/web")["desired"])
}

// TestChangesAddUp: a client that takes every change has the last picture.
func TestChangesAddUp(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		fleets := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) insight.Fleet {
			var workloads []insight.Workload
			for i := range rapid.IntRange(0, 3).Draw(t, "workloads") {
				var pods []insight.Pod
				for j := range rapid.IntRange(0, 4).Draw(t, "pods") {
					pods = append(pods, pod(fmt.Sprintf("%d-%d", i, j), rapid.SampledFrom(insight.States()).Draw(t, "state")))
				}
				workloads = append(workloads, workload(fmt.Sprint(i), pods...))
			}
			return fleetOf(workloads...)
		}), 1, 5).Draw(t, "fleets")
		var sent Parts
		page := Parts{}
		for i, fleet := range fleets {
			parts := partsOf(t, fleet)
			change := Between(sent, parts)
			require.Equal(t, i == 0, change.Begin)
			if change.Begin {
				clear(page)
			}
			maps.Copy(page, change.Set)
			for _, key := range change.Gone {
				require.Contains(t, page, key)
				delete(page, key)
			}
			sent = parts
			require.Equal(t, parts, page)
		}
	})
}
