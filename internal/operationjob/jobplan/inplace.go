package jobplan

import (
	"fmt"
	"slices"
	"strings"
	"time"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
)

// inPlace carries out an action that leaves the Pod where it is, under the lifecycle with the job's ID: it asks, writes
// the Pod's task as soon as it may, and ends the operation when the task is done.
type inPlace struct{ kind inPlaceKind }

// inPlaceKind is what is done to the Pod.
type inPlaceKind interface {
	// begins reports whether the operation makes sense, before it is asked for. If not it ends the target.
	begins(t *target, pod *Pod) bool
	// acts is the task, and what is written with it. Without a task there is nothing to do yet.
	acts(t *target, pod *Pod) (task *podops.Task, images map[string]string)
	// isDone reports whether the task was carried out, and what it waits for if not. It may end the target.
	isDone(t *target, pod *Pod, task podops.Task) (done bool, waits string)
}

func (a inPlace) operate(t *target) {
	pod := t.pod()
	if !t.isThere() {
		return
	}
	if !pod.Managed {
		t.fail(appsv1alpha1.ReasonNotSupported, fmt.Sprintf("the Pod takes no part in the lifecycle: label it %s=%s",
			appsv1alpha1.ControlLabel, appsv1alpha1.ControlValue))
		return
	}
	id, v := podops.JobOperationID(t.Job.Name), pod.View
	isDuring := podops.IsDuring(v, id, t.operationType())
	tasks, _ := podops.Tasks(v) // what cannot be read is replaced
	if task, acted := tasks[id]; acted {
		a.check(t, pod, task, isDuring)
		return
	}
	switch {
	case isDuring:
		t.reach(appsv1alpha1.OpsStageAsked)
		a.act(t, pod, id)
	case t.stored().Stage == appsv1alpha1.OpsStageAsked:
		if t.confirmed() {
			t.fail(appsv1alpha1.ReasonCancelled, "the operation on the Pod was cancelled")
		}
	case a.kind.begins(t, pod):
		c, err := podops.Begin(v, podops.Request{ID: id, Type: t.operationType()}, t.Now)
		if err != nil {
			t.fail(appsv1alpha1.ReasonUpdateObjectFailed, err.Error())
			return
		}
		t.write(pod, "asking for an operation on", c)
	}
}

// act has the action carried out as soon as it may.
func (a inPlace) act(t *target, pod *Pod, id string) {
	if !podops.Allowed(pod.View, id, t.operationType()) {
		t.waits(waitingFor(pod, id))
		return
	}
	if since, ok := podops.OperateTime(pod.View, id); ok {
		if wait := since.Add(seconds(t.Job.Spec.OperationDelaySeconds, 0)).Sub(t.Now); wait > 0 {
			t.look(wait)
			return
		}
	}
	task, images := a.kind.acts(t, pod)
	if task == nil {
		return
	}
	task.Action, task.Request = string(t.Job.Spec.Action), podops.OperationOf(pod.View, id).Request
	t.write(pod, "operating on", podops.PutTask(pod.View, id, task))
	t.plan.Writes[len(t.plan.Writes)-1].Images = images
}

// check looks how far the task is.
func (a inPlace) check(t *target, pod *Pod, task podops.Task, isDuring bool) {
	t.reach(appsv1alpha1.OpsStageAsked)
	done, waits := a.kind.isDone(t, pod, task)
	switch {
	case done:
		t.reach(appsv1alpha1.OpsStageOperated)
	case t.details.Operation.Stage == appsv1alpha1.OpsStageReleasing:
	case !isDuring && task.Before == nil: // what has begun to restart goes on
		if t.confirmed() {
			t.fail(appsv1alpha1.ReasonCancelled, "the operation on the Pod was cancelled")
		}
	default:
		t.waits(waits)
	}
}

func (a inPlace) isDone(t *target) (done bool, waits string) {
	if !t.isThere() {
		return false, ""
	}
	pod, id := t.pod(), podops.JobOperationID(t.Job.Name)
	if podops.PhaseOf(pod.View, id) != podops.PhaseNone {
		return false, waitingFor(pod, id)
	}
	return pod.serves(), "the Pod is not in service yet"
}

// waitingFor is what an operation waits for.
func waitingFor(pod *Pod, id string) string {
	for _, wait := range podops.ExplainWith(pod.View, podops.Surroundings{Brief: true}) {
		if wait.ID == id {
			return wait.Message
		}
	}
	return "lifecycle-controller has to begin"
}

// restart restarts containers by giving their images other names.
type restart struct{}

func (r restart) begins(t *target, pod *Pod) bool {
	if pod.NeverRestarts {
		t.fail(appsv1alpha1.ReasonNotSupported, "the Pod's restartPolicy is Never")
		return false
	}
	containers := r.containers(t, pod)
	if containers == nil {
		return false
	}
	_, can := r.names(t, containers)
	return can
}

func (r restart) acts(t *target, pod *Pod) (task *podops.Task, images map[string]string) {
	if pod.View.Annotations[appsv1alpha1.LastPodStatusAnnotation] != "" {
		t.waits("collaset-controller is updating the Pod in place")
		return nil, nil
	}
	containers := r.containers(t, pod)
	if containers == nil {
		return nil, nil
	}
	images, can := r.names(t, containers)
	if !can {
		return nil, nil
	}
	task = &podops.Task{Containers: t.containers(), Before: map[string]string{}}
	for _, c := range containers {
		task.Before[c.Name] = c.ID
	}
	return task, images
}

// containers are those to restart. It fails the target, and returns nil, if one is not there.
func (restart) containers(t *target, pod *Pod) []*Container {
	var found []*Container
	names := t.containers()
	for i := range pod.Containers {
		c := &pod.Containers[i]
		if len(names) == 0 && !c.Sidecar || slices.Contains(names, c.Name) {
			found = append(found, c)
		}
	}
	for _, name := range names {
		if pod.container(name) == nil {
			t.fail(appsv1alpha1.ReasonContainerNotFound, fmt.Sprintf("the Pod has no container %q that can be restarted: "+
				"name regular containers and native sidecars", name))
			return nil
		}
	}
	return found
}

// names are other names of the images of containers. Without one for each it has the Pod re-created, or fails the
// target.
func (restart) names(t *target, containers []*Container) (images map[string]string, can bool) {
	images = map[string]string{}
	for _, c := range containers {
		if c.ID == "" || c.ImageID == "" {
			t.waits(fmt.Sprintf("container %s has not started yet", c.Name))
			return nil, false
		}
		if images[c.Name] = secondName(c.Image, c.ImageID); images[c.Name] != "" {
			continue
		}
		why := fmt.Sprintf("container %s cannot be restarted in place: image %s has no second name, the node has it as %s",
			c.Name, c.Image, c.ImageID)
		if options := t.Job.Spec.Restart; options != nil && options.Fallback == appsv1alpha1.RestartFallbackFail {
			t.fail(appsv1alpha1.ReasonNotSupported, why)
		} else {
			t.details.Operation.Recreates = true
			t.say(appsv1alpha1.ExtraInfoRecreated, why)
			t.look(time.Millisecond)
		}
		return nil, false
	}
	return images, true
}

func (restart) isDone(_ *target, pod *Pod, task podops.Task) (done bool, waits string) {
	var late []string
	for name, before := range task.Before {
		if c := pod.container(name); c != nil && (c.ID == before || c.ID == "" || !c.Ready) {
			late = append(late, name)
		}
	}
	slices.Sort(late)
	return len(late) == 0, "these containers have to restart and be ready: " + strings.Join(late, ", ")
}

// foreign is an action that its owner carries out.
type foreign struct{}

func (foreign) begins(*target, *Pod) bool { return true }

func (foreign) acts(t *target, _ *Pod) (task *podops.Task, images map[string]string) {
	return &podops.Task{Containers: t.containers()}, nil
}

func (foreign) isDone(t *target, _ *Pod, task podops.Task) (done bool, waits string) {
	switch task.Result {
	case podops.TaskSucceeded:
		return true, ""
	case podops.TaskFailed:
		t.fail(appsv1alpha1.ReasonActionFailed, task.Message)
		return false, ""
	}
	waits = fmt.Sprintf("the owner of action %s has to carry it out", task.Action)
	if task.Message != "" {
		waits += ": " + task.Message
	}
	return false, waits
}
