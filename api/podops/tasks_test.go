package podops_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"pgregory.net/rapid"

	"kusionstack.io/kuperator/api/podops"
)

const warm = "example.com/warm-cache"

// allowed is a Pod on which the job "a" may act, with this request and these tasks.
func allowed(request, tasks string) podops.View {
	v := podops.View{Gate: true, ServiceReady: corev1.ConditionFalse, Labels: map[string]string{
		podops.OperatingPrefix + "/a": request, podops.OperationTypePrefix + "/a": podops.JobOperationType(warm),
		podops.PreCheckedPrefix + "/a": request, podops.OperatePrefix + "/a": request, podops.PermissionPrefix + "/" + podops.JobOperationType(warm): request,
	}}
	if tasks != "" {
		v.Annotations = map[string]string{podops.TasksAnnotation: tasks}
	}
	return v
}

func TestOperationsOfJobs(t *testing.T) {
	assert.Equal(t, "restart-web", podops.JobOperationID("restart-web"))
	long := strings.Repeat("a", 64)
	assert.Equal(t, "0xd96f0f85", podops.JobOperationID(long))
	assert.Equal(t, "Restart", podops.JobOperationType("Restart"))
	assert.Equal(t, "example.com_warm-cache", podops.JobOperationType(warm))
	assert.Len(t, podops.JobOperationType("example.com/"+long), 63)
	rapid.Check(t, func(t *rapid.T) {
		action := rapid.StringMatching(`([a-z0-9]([-a-z0-9.]{0,80}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,80}[A-Za-z0-9])?`).
			Draw(t, "action")
		require.Empty(t, validation.IsValidLabelValue(podops.JobOperationType(action)))
		require.NotEmpty(t, podops.JobOperationType(action))
		require.NoError(t, podops.Request{ID: podops.JobOperationID("a"), Type: podops.JobOperationType(action)}.Validate())
	})
}

func TestTasksFor(t *testing.T) {
	const task = `{"a":{"action":"` + warm + `","request":"1","containers":["app"]}}`
	for name, test := range map[string]struct {
		view podops.View
		want int
	}{
		"one that waits":                   {allowed("1", task), 1},
		"of an earlier request":            {allowed("2", task), 0},
		"none":                             {allowed("1", ""), 0},
		"of another action":                {allowed("1", strings.ReplaceAll(task, warm, "example.com/other")), 0},
		"answered already":                 {allowed("1", strings.ReplaceAll(task, `"containers":["app"]`, `"result":"Failed"`)), 0},
		"of an operation that is no more":  {podops.View{Annotations: map[string]string{podops.TasksAnnotation: task}}, 0},
		"in an annotation that is no JSON": {allowed("1", "{"), 0},
	} {
		t.Run(name, func(t *testing.T) {
			assert.Len(t, podops.TasksFor(test.view, warm), test.want)
		})
	}
	serving := allowed("1", task)
	serving.Ready = true
	assert.Empty(t, podops.TasksFor(serving, warm), "the Pod is still Ready")
}

func TestAnswer(t *testing.T) {
	v := allowed("1", `{"a":{"action":"`+warm+`","request":"1"},"b":{"action":"Restart","request":"2"}}`)
	v = podops.Answer(v, "a", "1", "", "half of it").Apply(v)
	require.Len(t, podops.TasksFor(v, warm), 1, "it is still carried out")
	v = podops.Answer(v, "a", "1", podops.TaskFailed, strings.Repeat("é", podops.MaxTaskMessage)).Apply(v)
	tasks, err := podops.Tasks(v)
	require.NoError(t, err)
	assert.Equal(t, podops.TaskFailed, tasks["a"].Result)
	assert.Equal(t, strings.Repeat("é", podops.MaxTaskMessage/2), tasks["a"].Message)
	assert.Equal(t, podops.Task{Action: "Restart", Request: "2"}, tasks["b"])
	assert.True(t, podops.Answer(v, "a", "0", podops.TaskSucceeded, "").IsZero(), "it answers an earlier request")
	assert.True(t, podops.Answer(v, "gone", "1", podops.TaskSucceeded, "").IsZero())
	assert.True(t, podops.Answer(allowed("1", "{"), "a", "1", podops.TaskSucceeded, "").IsZero())
}

func TestPutTask(t *testing.T) {
	task := podops.Task{Action: warm, Request: "1", Before: map[string]string{"app": "c1"}}
	for name, before := range map[string]string{"on a Pod without": "", "in place of what is no JSON": "{"} {
		t.Run(name, func(t *testing.T) {
			v := allowed("1", before)
			v = podops.PutTask(v, "a", &task).Apply(v)
			tasks, err := podops.Tasks(v)
			require.NoError(t, err)
			assert.Equal(t, map[string]podops.Task{"a": task}, tasks)
			assert.True(t, podops.PutTask(v, "a", &task).IsZero(), "it is there")
			v = podops.PutTask(v, "a", nil).Apply(v)
			assert.NotContains(t, v.Annotations, podops.TasksAnnotation)
		})
	}
	assert.True(t, podops.PutTask(allowed("1", ""), "a", nil).IsZero())
	_, err := podops.Tasks(allowed("1", "{"))
	require.ErrorContains(t, err, "remove it")
}
