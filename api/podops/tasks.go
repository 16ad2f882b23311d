package podops

import (
	"encoding/json"
	"fmt"
	"hash/fnv"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
)

// TasksAnnotation is JSON {"<ID>":{"action":"example.com/warm-cache","request":"…","result":"Succeeded"}}: actions of
// OperationJobs that may be carried out now, or were. An entry is there only while its operation has permission to act.
// Written by operationjob-controller; the owner of an action answers through Answer.
const TasksAnnotation = "operationjob.kusionstack.io/tasks"

// Task is what an OperationJob wants done to a Pod.
type Task struct {
	// Action is the action of the job, such as "example.com/warm-cache".
	Action string `json:"action"`
	// Request is the value of the operation's request (OperatingPrefix): an answer is to this request only.
	Request string `json:"request"`
	// Containers are those that the job names; nil if it names none.
	Containers []string `json:"containers,omitempty"`
	// Before are the IDs that containers had before the action Restart, by name; nil for other actions.
	Before map[string]string `json:"before,omitempty"`
	// Result is what became of it; "" while it is carried out.
	Result TaskResult `json:"result,omitempty"`
	// Message is for people: how far it is, or why it failed. At most MaxTaskMessage bytes are kept.
	Message string `json:"message,omitempty"`
}

// TaskResult is what became of a Task.
type TaskResult string

const (
	// TaskSucceeded: the action was carried out, and the Pod may serve again.
	TaskSucceeded TaskResult = "Succeeded"
	// TaskFailed: it was not, and is not tried again. The Pod may serve again.
	TaskFailed TaskResult = "Failed"
)

// MaxTaskMessage is how many bytes of a Task's message are kept.
const MaxTaskMessage = 1024

// JobOperationID is the ID of an OperationJob's operations on Pods: the job's name or, if that is longer than 63
// characters, its FNV-32a hash as in Kuperator v0.7.
func JobOperationID(job string) string {
	if len(job) <= validation.LabelValueMaxLength {
		return job
	}
	h := fnv.New32a()
	_, _ = h.Write([]byte(job)) // never an error
	return fmt.Sprintf("%#x", h.Sum32())
}

// JobOperationType is the type of the operations of an action: its name, with "_" in place of "/", which no label value
// can have. A longer name keeps its last 63 characters, so that two long actions may share a type.
func JobOperationType(action string) string {
	name := strings.ReplaceAll(action, "/", "_")
	name = name[max(0, len(name)-validation.LabelValueMaxLength):]
	return strings.TrimLeft(name, "-_.")
}

// Tasks reads TasksAnnotation: tasks by the ID of their operation, nil without any. It returns an error if the value
// is not valid JSON of that form.
func Tasks(v View) (map[string]Task, error) {
	raw := v.Annotations[TasksAnnotation]
	if raw == "" {
		return nil, nil
	}
	var tasks map[string]Task
	if err := json.Unmarshal([]byte(raw), &tasks); err != nil {
		return nil, fmt.Errorf("annotation %s is not valid JSON, remove it: %w", TasksAnnotation, err)
	}
	return tasks, nil
}

// TasksFor returns the tasks of one action that wait to be carried out, by the ID of their operation: without a result,
// and with permission for the request that they are about. The owner of an action acts on these, and on no others.
// It is empty if there are none, and nil if the annotation cannot be read.
func TasksFor(v View, action string) map[string]Task {
	tasks, err := Tasks(v)
	if err != nil {
		return nil
	}
	for id, task := range tasks {
		if task.Action != action || task.Result != "" || OperationOf(v, id).Request != task.Request ||
			!Allowed(v, id, JobOperationType(action)) {
			delete(tasks, id)
		}
	}
	return tasks
}

// Answer sets a task's result, or with result "" its progress message. The request is that of the Task that was carried
// out, so that the Pod may be read again before. Answer changes nothing if the Pod has no such task any more: the job
// was deleted, its deadline is over, or a later job of that name has put another task under the same ID.
func Answer(v View, id, request string, result TaskResult, message string) Change {
	tasks, err := Tasks(v)
	task, known := tasks[id]
	if err != nil || !known || task.Request != request {
		return Change{}
	}
	task.Result, task.Message = result, strings.ToValidUTF8(message[:min(len(message), MaxTaskMessage)], "")
	return PutTask(v, id, &task)
}

// PutTask sets the task of an operation, and removes it with nil. A value that cannot be read is replaced; tasks of
// other jobs in it are lost.
func PutTask(v View, id string, task *Task) Change {
	tasks, _ := Tasks(v) // what cannot be read holds no task
	if tasks == nil {
		tasks = map[string]Task{}
	}
	if task != nil {
		tasks[id] = *task
	} else {
		delete(tasks, id)
	}
	before, present := v.Annotations[TasksAnnotation]
	if len(tasks) == 0 {
		if !present {
			return Change{}
		}
		return Change{Annotations: map[string]*string{TasksAnnotation: nil}}
	}
	after := string(mustMarshal(tasks))
	if present && after == before {
		return Change{}
	}
	return Change{Annotations: map[string]*string{TasksAnnotation: &after}}
}
