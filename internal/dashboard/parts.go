package dashboard

import (
	"encoding/json"
	"fmt"

	"kusionstack.io/kuperator/internal/insight"
)

// Parts are a Fleet in pieces that change on their own, as JSON by keys: "about" (what is not in another piece),
// "budget/<namespace>/<name>", "job/<namespace>/<name>", "decoration/<namespace>/<name>",
// "workload/<kind>/<namespace>/<name>" (without its Pods) and "pod/<namespace>/<name>" (with the key of its workload).
type Parts map[string]json.RawMessage

// about is the piece of what is there once.
type about struct {
	insight.Fleet
	Scope
	// Budgets, Jobs, Decorations and Workloads are pieces of their own.
	Budgets     *struct{} `json:"budgets,omitempty"`
	Jobs        *struct{} `json:"jobs,omitempty"`
	Decorations *struct{} `json:"decorations,omitempty"`
	Workloads   *struct{} `json:"workloads,omitempty"`
}

type podPart struct {
	insight.Pod
	Workload string `json:"workload"`
}

type workloadPart struct {
	insight.Workload
	Pods     *struct{}       `json:"pods,omitempty"`
	Blockers []insight.Stuck `json:"blockers,omitempty"`
}

// PartsOf takes a Fleet to pieces. scope says what it is a picture of.
func PartsOf(fleet insight.Fleet, scope Scope) (Parts, error) {
	parts := Parts{}
	var failed error
	put := func(key string, value any) {
		text, err := json.Marshal(value)
		if err != nil && failed == nil {
			failed = fmt.Errorf("%s: %w", key, err)
		}
		parts[key] = text
	}
	put("about", about{Fleet: fleet, Scope: scope})
	for _, b := range fleet.Budgets {
		put("budget/"+b.Namespace+"/"+b.Name, b)
	}
	for i := range fleet.Jobs {
		put("job/"+fleet.Jobs[i].Namespace+"/"+fleet.Jobs[i].Name, &fleet.Jobs[i])
	}
	for i := range fleet.Decorations {
		put("decoration/"+fleet.Decorations[i].Namespace+"/"+fleet.Decorations[i].Name, &fleet.Decorations[i])
	}
	for _, w := range fleet.Workloads {
		key := "workload/" + w.Kind + "/" + w.Namespace + "/" + w.Name
		put(key, workloadPart{Workload: w, Blockers: insight.Blockers(&w)})
		for _, pod := range w.Pods {
			put("pod/"+pod.Namespace+"/"+pod.Name, podPart{pod, key})
		}
	}
	return parts, failed
}

// Change is what leads from one picture to the next.
type Change struct {
	// Begin is true if there was no picture before.
	Begin bool `json:"begin,omitempty"`
	// Set are the pieces that are new or different, Gone the keys of those that are no more.
	Set  Parts    `json:"set,omitempty"`
	Gone []string `json:"gone,omitempty"`
}

// Between is the change from one picture to another; from nil, everything.
func Between(before, after Parts) Change {
	change := Change{Begin: before == nil, Set: Parts{}}
	for key, value := range after {
		if old, ok := before[key]; !ok || string(old) != string(value) {
			change.Set[key] = value
		}
	}
	for key := range before {
		if _, ok := after[key]; !ok {
			change.Gone = append(change.Gone, key)
		}
	}
	return change
}
