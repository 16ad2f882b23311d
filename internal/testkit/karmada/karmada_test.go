package karmada

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"
)

const shipped = "../../../deploy/gitops/karmada/interpreters.yaml"

// interpret calls a script with values written in YAML.
func interpret(t *testing.T, kind, field string, values ...string) any {
	t.Helper()
	all, err := Load(shipped)
	require.NoError(t, err)
	read := make([]any, len(values))
	for i, text := range values {
		require.NoError(t, yaml.Unmarshal([]byte(text), &read[i]))
	}
	result, err := all.Call(kind, field, read...)
	require.NoError(t, err)
	return result
}

// status is that of an object after a script.
func status(t *testing.T, object any) map[string]any {
	t.Helper()
	is, ok := object.(map[string]any)["status"].(map[string]any)
	require.True(t, ok, "%v", object)
	return is
}

func conditions(status map[string]any) map[string]map[string]any {
	all := map[string]map[string]any{}
	list, _ := status["conditions"].([]any)
	for _, c := range list {
		condition := c.(map[string]any)
		all[condition["type"].(string)] = condition
	}
	return all
}

func TestHealth(t *testing.T) {
	const ready = `conditions: [{type: Stalled, status: "False"}, {type: Ready, status: "True", observedGeneration: 3}]`
	for name, tc := range map[string]struct {
		object string
		want   bool
	}{
		"not looked at yet":         {`{metadata: {generation: 1}, spec: {}}`, false},
		"the present spec":          {`{metadata: {generation: 3}, status: {` + ready + `}}`, true},
		"the spec before":           {`{metadata: {generation: 4}, status: {` + ready + `}}`, false},
		"on the way":                {`{metadata: {generation: 3}, status: {conditions: [{type: Ready, status: "False", observedGeneration: 3}]}}`, false},
		"a job that has ended well": {`{metadata: {generation: 4}, status: {progress: Succeeded}}`, true},
	} {
		t.Run(name, func(t *testing.T) {
			for _, kind := range []string{"CollaSet", "OperationJob", "PodDecoration", "PodTransitionRule"} {
				assert.Equal(t, tc.want, interpret(t, kind, "healthInterpretation", tc.object), kind)
			}
		})
	}
}

func TestReplicas(t *testing.T) {
	const set = `{kind: CollaSet, metadata: {namespace: shop, name: web},
  spec: {replicas: 6, template: {spec: {containers: [{name: web, args: []}]}}}}`
	assert.InEpsilon(t, 6, interpret(t, "CollaSet", "replicaResource", set), 0)
	revised := interpret(t, "CollaSet", "replicaRevision", set, "2").(map[string]any)
	assert.EqualValues(t, 2, revised["spec"].(map[string]any)["replicas"])
	assert.Equal(t, map[string]any{"name": "web", "args": []any{}},
		revised["spec"].(map[string]any)["template"].(map[string]any)["spec"].(map[string]any)["containers"].([]any)[0])
	assert.Contains(t, interpret(t, "CollaSet", "dependencyInterpretation", set), "spec", "asked with the Pod template")

	retained := func(labels string) any {
		desired := `{kind: CollaSet, metadata: {name: web, labels: {` + labels + `}}, spec: {replicas: 2}}`
		kept := interpret(t, "CollaSet", "retention", desired, `{metadata: {name: web}, spec: {replicas: 5}}`)
		return kept.(map[string]any)["spec"].(map[string]any)["replicas"]
	}
	assert.EqualValues(t, 2, retained(""))
	assert.EqualValues(t, 5, retained(`resourcetemplate.karmada.io/retain-replicas: "true"`))
}

func TestWhatIsKeptOfAMember(t *testing.T) {
	kept := interpret(t, "CollaSet", "statusReflection", `
metadata: {generation: 7, annotations: {resourcetemplate.karmada.io/generation: "3"}}
status: {observedGeneration: 7, replicas: 2, readiness: 2/2, blockers: [{reason: Budget}], conditions: [{type: Ready, status: "True"}]}`)
	assert.Equal(t, map[string]any{
		"generation": int64(7), "resourceTemplateGeneration": int64(3), "observedGeneration": int64(7),
		"replicas": int64(2), "readiness": "2/2", "conditions": []any{map[string]any{"type": "Ready", "status": "True"}},
	}, kept)
	assert.Empty(t, interpret(t, "CollaSet", "statusReflection", `{metadata: {generation: 1}}`))
}

func TestStatusOfAllMembers(t *testing.T) {
	const (
		set  = `{kind: CollaSet, metadata: {generation: 3}, spec: {replicas: 6}, status: {observedGeneration: 2}}`
		east = `
clusterName: east
status: {observedGeneration: 9, generation: 9, resourceTemplateGeneration: 3, replicas: 2, readyReplicas: 2, collisionCount: 0,
  readiness: 2/2, updatedRevision: web-2, currentRevision: web-2, selector: app=web, conditions: [
  {type: Ready, status: "True", reason: Available, message: "", observedGeneration: 9, lastTransitionTime: "2026-01-01T00:00:00Z"},
  {type: Stalled, status: "False", reason: Available, message: "", observedGeneration: 9, lastTransitionTime: "2026-01-01T00:00:00Z"}]}`
		west = `
clusterName: west
status: {observedGeneration: 4, generation: 4, resourceTemplateGeneration: 3, replicas: 4, readyReplicas: 3, collisionCount: 0,
  readiness: 3/4, updatedRevision: web-2, currentRevision: web-1, selector: app=web, conditions: [
  {type: Ready, status: "False", reason: Updating, message: not every Pod is updated, observedGeneration: 4, lastTransitionTime: "2026-01-02T00:00:00Z"},
  {type: Stalled, status: "False", reason: Updating, message: "", observedGeneration: 4, lastTransitionTime: "2026-01-02T00:00:00Z"}]}`
	)
	of := func(object string, items string) map[string]any {
		return status(t, interpret(t, "CollaSet", "statusAggregation", object, items))
	}
	both := of(set, "["+inline(east)+","+inline(west)+"]")
	assert.EqualValues(t, 6, both["replicas"])
	assert.EqualValues(t, 5, both["readyReplicas"])
	assert.EqualValues(t, 3, both["observedGeneration"], "of the object in Karmada, not of a member")
	assert.Equal(t, "5/6", both["readiness"])
	assert.Equal(t, "web-2", both["updatedRevision"])
	assert.NotContains(t, both, "currentRevision", "they differ")
	assert.NotContains(t, both, "collisionCount")
	ready := conditions(both)["Ready"]
	assert.Equal(t, "False", ready["status"])
	assert.Equal(t, "Updating", ready["reason"])
	assert.Equal(t, "west: not every Pod is updated", ready["message"])
	assert.EqualValues(t, 3, ready["observedGeneration"])
	assert.NotEmpty(t, ready["lastTransitionTime"])
	assert.Equal(t, "False", conditions(both)["Stalled"]["status"])

	t.Run("a time stays until the condition turns", func(t *testing.T) {
		before := `{kind: CollaSet, metadata: {generation: 3}, spec: {replicas: 2}, status: {observedGeneration: 3,
  conditions: [{type: Ready, status: "True", lastTransitionTime: "2025-05-05T05:05:05Z"}]}}`
		one := of(before, "["+inline(east)+"]")
		assert.Equal(t, "2025-05-05T05:05:05Z", conditions(one)["Ready"]["lastTransitionTime"])
		assert.Equal(t, "web-2", one["currentRevision"])
		two := of(before, "["+inline(east)+","+inline(west)+"]")
		assert.NotEqual(t, "2025-05-05T05:05:05Z", conditions(two)["Ready"]["lastTransitionTime"])
	})
	t.Run("a member that has not answered", func(t *testing.T) {
		half := of(set, "["+inline(east)+",{clusterName: north}]")
		assert.EqualValues(t, 2, half["observedGeneration"], "not every member has seen this one")
		assert.Equal(t, "False", conditions(half)["Ready"]["status"])
		assert.Contains(t, conditions(half)["Ready"]["message"], "north")
	})
	t.Run("no member", func(t *testing.T) {
		none := of(set, "null")
		assert.Equal(t, "0/6", none["readiness"])
		assert.EqualValues(t, 3, none["observedGeneration"])
	})
}

func TestProgressOfAJobInSeveralClusters(t *testing.T) {
	for want, members := range map[string][]string{
		"Pending":    {"Pending", ""},
		"Processing": {"Pending", "Succeeded"},
		"Succeeded":  {"Succeeded", "Succeeded"},
		"Failed":     {"Failed", "Succeeded"},
	} {
		items := "["
		for _, progress := range members {
			items += `{clusterName: c, status: {succeededPodCount: 2`
			if progress != "" {
				items += ", progress: " + progress
			}
			items += "}},"
		}
		is := status(t, interpret(t, "OperationJob", "statusAggregation", `{kind: OperationJob, metadata: {generation: 1}}`, items+"]"))
		assert.Equal(t, want, is["progress"])
		assert.EqualValues(t, 4, is["succeededPodCount"])
	}
}

// inline makes a block fit into brackets.
func inline(block string) string {
	converted, err := yaml.YAMLToJSON([]byte(block))
	if err != nil {
		panic(err)
	}
	return string(converted)
}
