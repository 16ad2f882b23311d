package jobplan

import (
	"fmt"
	"slices"
	"strings"
	"time"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
	"kusionstack.io/kuperator/internal/imagename"
)

// inPlace carries out an action that leaves the Pod where it is, under the lifecycle with the job's ID: it asks, writes
// the Pod's task as soon as it may, and ends the operation when the task is done.
type inPlace struct{ kind inPlaceKind }

// inPlaceKind is what is done to the Pod.
type inPlaceKind interface {
	// mayBegin reports whether the operation may be requested now. If not, the target waits, fails or is re-created.
	// Trial is images that the API server has to take first, nil for none.
	mayBegin(t *target, pod *Pod) (trial map[string]string, may bool)
	// task is what is to be done, and the images that are written with it. Without a task there is nothing to do yet.
	task(t *target, pod *Pod) (task *podops.Task, images map[string]string)
	// isDone reports whether the task was carried out, and what it waits for if not. It may end the target.
	isDone(t *target, pod *Pod, task podops.Task) (done bool, waits string)
}

func (a inPlace) operate(t *target) {
	pod := t.pod()
	if !t.requirePod() {
		return
	}
	if !pod.Managed {
		t.fail(appsv1alpha1.ReasonNotSupported, fmt.Sprintf("the Pod is not managed: set label %s=%s",
			appsv1alpha1.ControlLabel, appsv1alpha1.ControlValue))
		return
	}
	id, v := podops.JobOperationID(t.Job.Name), pod.View
	isDuring := podops.IsDuring(v, id, t.operationType())
	tasks, _ := podops.Tasks(v) // what cannot be read is replaced
	if task := tasks[id]; t.isOwn(task, isDuring, podops.OperationOf(v, id).Request) {
		a.check(t, pod, task, isDuring)
		return
	}
	switch {
	case isDuring:
		t.setStage(appsv1alpha1.OpsStageAsked)
		a.act(t, pod, id)
	case t.stored().Stage == appsv1alpha1.OpsStageAsked:
		if t.requireLive() {
			t.fail(appsv1alpha1.ReasonCancelled, "the operation on the Pod was cancelled")
		}
	default:
		a.begin(t, pod, id)
	}
}

// begin asks for the operation. What the API server refuses for long is not waited for.
func (a inPlace) begin(t *target, pod *Pod, id string) {
	trial, may := a.kind.mayBegin(t, pod)
	if !may || t.failIfRefused() {
		return
	}
	c, err := podops.Begin(pod.View, podops.Request{ID: id, Type: t.operationType()}, t.Now)
	if err != nil {
		t.fail(appsv1alpha1.ReasonUpdateObjectFailed, err.Error())
		return
	}
	t.write(Write{Pod: pod, Does: "asking for an operation on", Change: c, Asks: true, Trial: trial})
}

// failIfRefused fails the target if the API server has refused for long what is to be written to its Pod.
func (t *target) failIfRefused() bool {
	refused := t.Refused != "" && t.Now.Sub(t.RefusedSince) > waitingAfter
	if refused {
		t.fail(appsv1alpha1.ReasonUpdateObjectFailed, "the API server refuses a write to the Pod: "+t.Refused)
	}
	return refused
}

// isOwn reports whether a task is of this target, and not left by a job of the same name: of its action and, while an
// operation is under way, of its request. Before anything was asked for there can be none.
func (t *target) isOwn(task podops.Task, isDuring bool, request string) bool {
	if isDuring {
		return task.Action == string(t.Job.Spec.Action) && task.Request == request
	}
	return task.Action == string(t.Job.Spec.Action) && t.stored().Stage == appsv1alpha1.OpsStageAsked
}

// act has the action carried out as soon as it may.
func (a inPlace) act(t *target, pod *Pod, id string) {
	if !podops.Allowed(pod.View, id, t.operationType()) {
		t.reportWait(waitingFor(pod, id))
		return
	}
	if t.failIfRefused() { // the Pod would be out of service for nothing
		return
	}
	if since, ok := podops.OperateTime(pod.View, id); ok {
		if wait := since.Add(seconds(t.Job.Spec.OperationDelaySeconds, 0)).Sub(t.Now); wait > 0 {
			t.decideWithin(wait)
			t.reportWait("spec.operationDelaySeconds has not passed yet")
			return
		}
	}
	task, images := a.kind.task(t, pod)
	if task == nil {
		return
	}
	task.Action, task.Request = string(t.Job.Spec.Action), podops.OperationOf(pod.View, id).Request
	t.write(Write{Pod: pod, Does: "operating on", Change: podops.PutTask(pod.View, id, task), Images: images})
}

// check looks how far the task is.
func (a inPlace) check(t *target, pod *Pod, task podops.Task, isDuring bool) {
	t.setStage(appsv1alpha1.OpsStageAsked)
	done, waits := a.kind.isDone(t, pod, task)
	switch {
	case done:
		t.setStage(appsv1alpha1.OpsStageOperated)
	case t.details.Operation.Stage == appsv1alpha1.OpsStageReleasing:
	case !isDuring && task.Before == nil: // what has begun to restart goes on
		if t.requireLive() {
			t.fail(appsv1alpha1.ReasonCancelled, "the operation on the Pod was cancelled")
		}
	default:
		t.reportWait(waits)
	}
}

func (a inPlace) isDone(t *target) (done bool, waits string) {
	if !t.requirePod() {
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
		switch _, asksRules := podops.StageOfPhase(wait.Phase); {
		case wait.ID != id:
		case asksRules && wait.Reason == podops.WaitLifecycle: // rules are not read here
			return fmt.Sprintf("in %s: the PodTransitionRules that select the Pod have to let it pass, their status has the "+
				"reason if one does not; then lifecycle-controller advances it", wait.Phase)
		default:
			return wait.Message
		}
	}
	return "lifecycle-controller has not begun the operation"
}

// restart restarts containers by giving their images other names.
type restart struct{}

func (r restart) mayBegin(t *target, pod *Pod) (trial map[string]string, may bool) {
	if pod.NeverRestarts {
		t.fail(appsv1alpha1.ReasonNotSupported, "the Pod's restartPolicy is Never")
		return nil, false
	}
	containers := r.containers(t, pod)
	if containers == nil {
		return nil, false
	}
	return r.otherImages(t, pod, containers)
}

func (r restart) task(t *target, pod *Pod) (task *podops.Task, images map[string]string) {
	containers := r.containers(t, pod)
	if containers == nil {
		return nil, nil
	}
	images, can := r.otherImages(t, pod, containers)
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
		if pod.Container(name) == nil {
			t.fail(appsv1alpha1.ReasonContainerNotFound, fmt.Sprintf("the Pod has no container %q that can be restarted: "+
				"name regular containers and native sidecars", name))
			return nil
		}
	}
	return found
}

// otherImages are other names of the images of containers. Without one for each it has the Pod re-created, or fails
// the target.
func (restart) otherImages(t *target, pod *Pod, containers []*Container) (images map[string]string, can bool) {
	if pod.View.Annotations[appsv1alpha1.LastPodStatusAnnotation] != "" { // image IDs may be of the images before
		t.reportWait("collaset-controller is updating the Pod in place")
		return nil, false
	}
	images = map[string]string{}
	for _, c := range containers {
		if !pod.Observed || !c.Running || c.ID == "" || c.ImageID == "" { // what is known is of an image before
			t.reportWait(fmt.Sprintf("container %s does not run yet", c.Name))
			return nil, false
		}
		if images[c.Name] = imagename.Second(c.Image, c.ImageID); images[c.Name] != "" {
			continue
		}
		why := fmt.Sprintf("container %s cannot be restarted in place: image %s has no second name, the node has it as %s",
			c.Name, c.Image, c.ImageID)
		if options := t.Job.Spec.Restart; options != nil && options.Fallback == appsv1alpha1.RestartFallbackFail {
			t.fail(appsv1alpha1.ReasonNotSupported, why)
		} else {
			t.details.Operation.Recreates = true
			t.setStage(appsv1alpha1.OpsStageStarted) // the other mark has yet to be set
			t.setExtraInfo(appsv1alpha1.ExtraInfoRecreated, why)
			t.decideWithin(time.Millisecond)
		}
		return nil, false
	}
	return images, true
}

func (restart) isDone(_ *target, pod *Pod, task podops.Task) (done bool, waits string) {
	var late []string
	for name, before := range task.Before {
		if c := pod.Container(name); c != nil && (c.ID == before || c.ID == "" || !c.Ready) {
			late = append(late, name)
		}
	}
	slices.Sort(late)
	return len(late) == 0 && pod.Observed, "these containers have to restart and be ready: " + strings.Join(late, ", ")
}

// custom is an action that its owner carries out.
type custom struct{}

func (custom) mayBegin(*target, *Pod) (trial map[string]string, may bool) { return nil, true }

func (custom) task(t *target, _ *Pod) (task *podops.Task, images map[string]string) {
	return &podops.Task{Containers: t.containers()}, nil
}

func (custom) isDone(t *target, _ *Pod, task podops.Task) (done bool, waits string) {
	switch task.Result {
	case podops.TaskSucceeded:
		return true, ""
	case podops.TaskFailed:
		t.fail(appsv1alpha1.ReasonActionFailed, task.Message)
		return false, ""
	}
	waits = fmt.Sprintf("the program for action %s has not answered", task.Action)
	if task.Message != "" {
		waits += ": " + task.Message
	}
	return false, waits
}
