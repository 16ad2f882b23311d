package revision

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"reflect"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/internal/shorten"
)

// record is the content of LastPodStatusAnnotation: what an in-place change has to see change. The first two keys of a
// container are Kuperator's; everything else is ours and optional.
type record struct {
	ContainerStates map[string]containerState `json:"containerStates,omitempty"`
	// Resize is what pods/resize is told by container name, PodResize what of the Pod as a whole.
	Resize    map[string]corev1.ResourceRequirements `json:"resize,omitempty"`
	PodResize *corev1.ResourceRequirements           `json:"podResize,omitempty"`
	// Refused is why the API server refuses that, "" if it does not.
	Refused string `json:"refused,omitempty"`
	// Unnamed is a container that cannot be restarted, for its image has no second name; "" for none.
	Unnamed string `json:"unnamed,omitempty"`
	// Finish is the operation that lifecycle-controller finishes when all of it is carried out; nil: the operator does.
	Finish *Finish `json:"finish,omitempty"`
}

// Finish names an operation on a Pod: its ID, its type, and the value of its operating label, by which requests are
// told apart.
type Finish struct {
	ID      string `json:"id"`
	Type    string `json:"type"`
	Request string `json:"request"`
}

type containerState struct {
	LatestImage string `json:"latestImage,omitempty"`
	LastImageID string `json:"lastImageID,omitempty"`
	// LastImage is the image that the container with LastContainerID was started from.
	LastImage string `json:"lastImage,omitempty"`
	// LastContainerID is that of the container to be restarted; "" if there was none, nil if Kuperator wrote the record.
	LastContainerID *string `json:"lastContainerID,omitempty"`
	// LastRestartCount is the container's restart count then; nil if Kuperator wrote the record.
	LastRestartCount *int32 `json:"lastRestartCount,omitempty"`
}

func (r *record) resizes() bool { return len(r.Resize) > 0 || r.PodResize != nil }

// recordOf reads the Pod's record. A Pod without one has an empty one.
func recordOf(pod *corev1.Pod) (record, error) {
	var r record
	text, ok := pod.Annotations[appsv1alpha1.LastPodStatusAnnotation]
	if !ok {
		return r, nil
	}
	if err := json.Unmarshal([]byte(text), &r); err != nil {
		return record{}, fmt.Errorf("annotation %s is not valid JSON; set it to {} to call the update finished",
			appsv1alpha1.LastPodStatusAnnotation)
	}
	return r, nil
}

// Recorded reports whether an in-place change was made on the Pod that has not been finished yet.
func Recorded(pod metav1.Object) bool {
	_, ok := pod.GetAnnotations()[appsv1alpha1.LastPodStatusAnnotation]
	return ok
}

// Wait is why an in-place change is not carried out yet.
type Wait string

const (
	// WaitNone: nothing is waited for.
	WaitNone Wait = ""
	// WaitContainers: the kubelet has not seen the change, or a container has not been restarted.
	WaitContainers Wait = "WaitingForContainers"
	// WaitResize: the kubelet has not changed the resources yet.
	WaitResize Wait = "WaitingForResize"
	// WaitResizeDeferred: the node has no room for the resources now.
	WaitResizeDeferred Wait = "ResizeDeferred"
	// WaitResizeInfeasible: the Pod cannot get the resources where it is, or the API server refuses them.
	WaitResizeInfeasible Wait = "ResizeInfeasible"
	// WaitRestartInfeasible: a container cannot be restarted without another Pod.
	WaitRestartInfeasible Wait = "RestartInfeasible"
	// WaitRecordUnreadable: the Pod's record of the change is not JSON. A user has to correct it.
	WaitRecordUnreadable Wait = "RecordUnreadable"
)

// Progress says how far the in-place change that a Pod's annotation records has come.
type Progress struct {
	// Done is true if the kubelet has carried all of it out.
	Done bool
	// ResizeDue is true if pods/resize has yet to be written: ResizePatch.
	ResizeDue bool
	// ResizeRestarts reports whether that write restarts a container.
	ResizeRestarts bool
	// Restarting reports whether a container has yet to restart, or does not run.
	Restarting bool
	// Wait is what is waited for, and Missing says it to people; empty when Done.
	Wait    Wait
	Missing string
	// Finish is the operation that lifecycle-controller finishes now; nil unless Done, or if that is left to the operator.
	Finish *Finish
}

// Carried reports whether the kubelet has carried out the in-place change that the Pod's annotation records, and if
// not, what is missing. A Pod without the record has nothing to carry out.
//
// A container counts when it runs under another container ID than before, or has been restarted, so a new tag with an
// equal digest is done as well; only records without container IDs (Kuperator's) are judged by the image ID. Resources
// count when the kubelet reports them as those of the running container. Where the kubelet reports
// status.observedGeneration, what it said before it saw the change does not count.
func Carried(pod *corev1.Pod) Progress {
	r, err := recordOf(pod)
	if err != nil {
		return Progress{Wait: WaitRecordUnreadable, Missing: err.Error()}
	}
	restart := missingRestarts(pod, &r)
	if r.Unnamed != "" {
		return Progress{Wait: WaitRestartInfeasible, Restarting: restart != "", Missing: fmt.Sprintf(
			"container %s cannot be restarted in place: its image has no second name on the node", r.Unnamed)}
	}
	if r.resizes() {
		switch {
		case r.Refused != "":
			return Progress{Wait: WaitResizeInfeasible, Missing: r.Refused, Restarting: restart != ""}
		case resizeDue(pod, &r):
			return Progress{
				ResizeDue: true, ResizeRestarts: resizeRestarts(pod, &r), Restarting: restart != "",
				Wait: WaitResize, Missing: "pods/resize has yet to be written",
			}
		}
	}
	if observed := pod.Status.ObservedGeneration; observed > 0 && observed < pod.Generation {
		return Progress{Wait: WaitContainers, Missing: "the kubelet has not seen the change yet"}
	}
	if r.resizes() {
		if wait, missing := pendingResize(pod); wait != WaitNone {
			return Progress{Wait: wait, Missing: missing, Restarting: restart != ""}
		}
	}
	if restart != "" {
		return Progress{Wait: WaitContainers, Missing: restart, Restarting: true}
	}
	if missing := missingResources(pod, &r); missing != "" {
		return Progress{Wait: WaitResize, Missing: missing}
	}
	return Progress{Done: true, Finish: r.Finish}
}

// missingRestarts is what is missing of the first container whose restart is, "" for nothing.
func missingRestarts(pod *corev1.Pod, r *record) string {
	for _, name := range slices.Sorted(maps.Keys(r.ContainerStates)) {
		if missing := missingRestart(pod, name, r.ContainerStates[name]); missing != "" {
			return missing
		}
	}
	return ""
}

// resizeRestarts reports whether the resources that the Pod lacks restart a container when they are set.
func resizeRestarts(pod *corev1.Pod, r *record) bool {
	for name, wanted := range r.Resize {
		c := containerOf(pod, name)
		if c != nil && !has(&c.Resources, wanted) && (!isInit(pod, name) || isSidecar(c)) &&
			restartsFor(c.ResizePolicy, wanted) {
			return true
		}
	}
	return false
}

// missingRestart says what is missing of a container's restart, "" for nothing.
//
// Admission may change an image on its way into the Pod, for example pin a tag to a digest. A container that runs
// what the Pod names now, as it was admitted, has nothing to restart for: the kubelet compares with that, too.
func missingRestart(pod *corev1.Pod, name string, state containerState) string {
	container := containerOf(pod, name)
	if container == nil || (state.LastContainerID == nil && state.LastImageID == "") {
		return ""
	}
	status := statusOf(pod, name)
	switch {
	case status != nil && status.State.Running != nil && state.LastContainerID != nil &&
		*state.LastContainerID == status.ContainerID && state.LastImage == container.Image:
		return ""
	case status == nil, status.State.Running == nil:
		return fmt.Sprintf("container %s does not run%s", name, waitingReason(status))
	case state.LastContainerID == nil && state.LastImageID == status.ImageID,
		state.LastContainerID != nil && *state.LastContainerID == status.ContainerID &&
			status.RestartCount <= ptr.Deref(state.LastRestartCount, math.MaxInt32):
		return fmt.Sprintf("container %s has not been restarted yet", name)
	}
	return ""
}

func waitingReason(status *corev1.ContainerStatus) string {
	if status == nil || status.State.Waiting == nil || status.State.Waiting.Reason == "" {
		return ""
	}
	return ": " + status.State.Waiting.Reason
}

// pendingResize is what the kubelet says of a resize that it has not finished.
func pendingResize(pod *corev1.Pod) (Wait, string) {
	for i := range pod.Status.Conditions {
		c := &pod.Status.Conditions[i]
		// A condition about an older spec is about an older request.
		if c.Status != corev1.ConditionTrue || (c.ObservedGeneration > 0 && c.ObservedGeneration < pod.Generation) {
			continue
		}
		said := strings.TrimSuffix(c.Reason+": "+c.Message, ": ")
		switch {
		case c.Type == corev1.PodResizePending && c.Reason == corev1.PodReasonInfeasible:
			return WaitResizeInfeasible, "the kubelet cannot give the Pod these resources: " + said
		case c.Type == corev1.PodResizePending && c.Reason == corev1.PodReasonDeferred:
			return WaitResizeDeferred, "the kubelet has put the resize off: " + said
		case c.Type == corev1.PodResizePending, c.Type == corev1.PodResizeInProgress:
			return WaitResize, strings.TrimSuffix("the kubelet is changing the resources: "+said, ": ")
		}
	}
	return WaitNone, ""
}

// missingResources says what of the recorded resources the running containers do not have yet. Ordinary init containers
// get theirs when they run again.
func missingResources(pod *corev1.Pod, r *record) string {
	for _, name := range slices.Sorted(maps.Keys(r.Resize)) {
		if c := containerOf(pod, name); c == nil || (isInit(pod, name) && !isSidecar(c)) {
			continue
		}
		if status := statusOf(pod, name); status == nil || !has(status.Resources, r.Resize[name]) {
			return fmt.Sprintf("container %s does not have its new resources yet", name)
		}
	}
	if r.PodResize != nil && !has(pod.Status.Resources, *r.PodResize) {
		return "the Pod does not have its new resources yet"
	}
	return ""
}

// resizeDue reports whether the Pod's spec lacks some of the recorded resources.
func resizeDue(pod *corev1.Pod, r *record) bool {
	for name, wanted := range r.Resize {
		if c := containerOf(pod, name); c != nil && !has(&c.Resources, wanted) {
			return true
		}
	}
	return r.PodResize != nil && !has(pod.Spec.Resources, *r.PodResize)
}

// has reports whether all wanted quantities are there.
func has(have *corev1.ResourceRequirements, wanted corev1.ResourceRequirements) bool {
	if have == nil {
		return false
	}
	all := func(have, wanted corev1.ResourceList) bool {
		for name, q := range wanted {
			if h, ok := have[name]; !ok || h.Cmp(q) != 0 {
				return false
			}
		}
		return true
	}
	return all(have.Requests, wanted.Requests) && all(have.Limits, wanted.Limits)
}

// Patch returns a strategic merge patch that makes the change on a running Pod, with only what changes: images,
// labels, annotations, tolerations, the deadline, the revision label and the record by which Carried judges. It holds
// the Pod's UID and resourceVersion. Resources follow with ResizePatch: Carried says so. Tolerations are added to
// those of pod, which must be there. A change that restarts nothing and sets no resources is done with the patch, and
// is not recorded.
//
// revision is that of the Pod's CollaSet, "" for Pods of others.
//
// finish is recorded too, unless resources have to follow or a container cannot be restarted: these are the operator's
// to watch. Nil: the operator finishes.
func (c Change) Patch(pod *corev1.Pod, revision string, finish *Finish) []byte {
	var unnamed string
	c.Images, unnamed = c.imagesOn(pod)
	labels := withDefault(c.Labels)
	if revision != "" {
		labels[appsv1.ControllerRevisionHashLabelKey] = &revision
	}
	annotations := withDefault(c.Annotations)
	r := c.record(pod)
	r.Unnamed = unnamed
	if !r.resizes() && unnamed == "" {
		r.Finish = finish
	}
	if _, unfinished := pod.Annotations[appsv1alpha1.LastPodStatusAnnotation]; c.Restarts || unfinished || finish != nil ||
		r.resizes() || len(r.ContainerStates) > 0 {
		recorded := encode(r)
		annotations[appsv1alpha1.LastPodStatusAnnotation] = &recorded
	}
	spec := containersOf(pod, func(live *corev1.Container) map[string]any {
		if image, ok := c.Images[live.Name]; ok && image != live.Image {
			return map[string]any{"image": image}
		}
		return nil
	})
	if tolerations := c.addTo(pod.Spec.Tolerations); len(c.Tolerations) > 0 &&
		!reflect.DeepEqual(tolerations, pod.Spec.Tolerations) {
		spec["tolerations"] = tolerations
	}
	if old, wanted := pod.Spec.ActiveDeadlineSeconds, c.ActiveDeadlineSeconds; wanted != nil &&
		(old == nil || *old > *wanted) {
		spec["activeDeadlineSeconds"] = *wanted
	}
	return patchOf(pod, map[string]any{"labels": labels, "annotations": annotations}, spec)
}

// patchOf is a strategic merge patch with the Pod's UID and resourceVersion.
func patchOf(pod *corev1.Pod, metadata, spec map[string]any) []byte {
	metadata["uid"], metadata["resourceVersion"] = pod.UID, pod.ResourceVersion
	patch := map[string]any{"metadata": metadata}
	if len(spec) > 0 {
		patch["spec"] = spec
	}
	return []byte(encode(patch))
}

// containersOf is the part of a patch's spec that gives containers the fields that change returns, if any.
func containersOf(pod *corev1.Pod, change func(*corev1.Container) map[string]any) map[string]any {
	spec := map[string]any{}
	for list, containers := range map[string][]corev1.Container{
		"containers": pod.Spec.Containers, "initContainers": pod.Spec.InitContainers,
	} {
		var changed []map[string]any
		for i := range containers {
			if fields := change(&containers[i]); fields != nil {
				fields["name"] = containers[i].Name
				changed = append(changed, fields)
			}
		}
		if len(changed) > 0 {
			spec[list] = changed
		}
	}
	return spec
}

// addTo adds the tolerations of the change to those of the Pod. The list is one value to the API server.
func (c Change) addTo(live []corev1.Toleration) []corev1.Toleration {
	out := slices.Clone(live)
	for _, t := range c.Tolerations {
		if i := slices.IndexFunc(out, func(have corev1.Toleration) bool { return sameToleration(have, t) }); i >= 0 {
			out[i] = t
		} else {
			out = append(out, t)
		}
	}
	return out
}

// ResizePatch returns a strategic merge patch of pods/resize that sets the resources of the Pod's record, and nil if it
// has none. It holds the Pod's UID and resourceVersion.
func ResizePatch(pod *corev1.Pod) []byte {
	r, err := recordOf(pod)
	if err != nil {
		return nil
	}
	return resizePatch(pod, &r)
}

// ResizeTrial is the ResizePatch that would follow on Patch. It is for dry runs.
func (c Change) ResizeTrial(pod *corev1.Pod) []byte {
	r := c.record(pod)
	return resizePatch(pod, &r)
}

func resizePatch(pod *corev1.Pod, r *record) []byte {
	if !r.resizes() {
		return nil
	}
	spec := containersOf(pod, func(live *corev1.Container) map[string]any {
		if wanted, ok := r.Resize[live.Name]; ok && !has(&live.Resources, wanted) {
			return map[string]any{"resources": wanted}
		}
		return nil
	})
	if r.PodResize != nil && !has(pod.Spec.Resources, *r.PodResize) {
		spec["resources"] = r.PodResize
	}
	if len(spec) == 0 {
		return nil
	}
	return patchOf(pod, map[string]any{}, spec)
}

// AdmittedPatch returns a strategic merge patch that has the Pod's record say what was admitted of its resize, and
// nil if that is what was asked for: admission may set other resources than those, and to ask again would change
// nothing. pod is the API server's answer to ResizePatch.
func AdmittedPatch(pod *corev1.Pod) []byte {
	r, err := recordOf(pod)
	if err != nil || !resizeDue(pod, &r) {
		return nil
	}
	for name, wanted := range r.Resize {
		if c := containerOf(pod, name); c != nil {
			r.Resize[name] = admitted(c.Resources, wanted)
		}
	}
	if r.PodResize != nil {
		r.PodResize = ptr.To(admitted(ptr.Deref(pod.Spec.Resources, corev1.ResourceRequirements{}), *r.PodResize))
	}
	return recordPatch(pod, r)
}

// admitted is what the Pod has of the wanted resources.
func admitted(have, wanted corev1.ResourceRequirements) corev1.ResourceRequirements {
	of := func(have, wanted corev1.ResourceList) corev1.ResourceList {
		out := corev1.ResourceList{}
		for name := range wanted {
			if q, ok := have[name]; ok {
				out[name] = q
			}
		}
		return out
	}
	return corev1.ResourceRequirements{Requests: of(have.Requests, wanted.Requests),
		Limits: of(have.Limits, wanted.Limits)}
}

// RefusedPatch returns a strategic merge patch that records why the API server refuses the resources: Carried says
// then that they are infeasible. It holds the Pod's UID and resourceVersion.
func RefusedPatch(pod *corev1.Pod, why string) []byte {
	r, err := recordOf(pod)
	if err != nil {
		r = record{}
	}
	r.Refused = shorten.Bytes("the API server refuses the resize: "+why, maxRefusal)
	return recordPatch(pod, r)
}

// recordPatch stores a record.
func recordPatch(pod *corev1.Pod, r record) []byte {
	return patchOf(pod, map[string]any{
		"annotations": map[string]string{appsv1alpha1.LastPodStatusAnnotation: encode(r)},
	}, nil)
}

// maxRefusal bounds what is kept of a refusal, in bytes.
const maxRefusal = 512

// encode writes what always can be written.
func encode(value any) string {
	out, err := json.Marshal(value)
	if err != nil {
		panic(err) // strings, numbers and quantities only
	}
	return string(out)
}

// record is what has to be seen of the Pod after the change, with what an earlier unfinished change still waits for.
func (c Change) record(pod *corev1.Pod) record {
	// An unreadable record of an earlier change is replaced.
	before, _ := recordOf(pod)
	r := record{ContainerStates: map[string]containerState{}}
	for i := range pod.Spec.Containers {
		c.recordRestart(pod, &pod.Spec.Containers[i], &before, &r)
	}
	for i := range pod.Spec.InitContainers {
		if live := &pod.Spec.InitContainers[i]; isSidecar(live) {
			c.recordRestart(pod, live, &before, &r)
		}
	}
	for _, resize := range []map[string]corev1.ResourceRequirements{before.Resize, c.Resize} {
		for name, wanted := range resize {
			put(&r.Resize, name, merge(r.Resize[name], wanted))
		}
	}
	for _, wanted := range []*corev1.ResourceRequirements{before.PodResize, c.PodResize} {
		if wanted != nil {
			r.PodResize = ptr.To(merge(ptr.Deref(r.PodResize, corev1.ResourceRequirements{}), *wanted))
		}
	}
	if len(c.Resize) == 0 && c.PodResize == nil {
		r.Refused = before.Refused
	}
	return r
}

func (c Change) recordRestart(pod *corev1.Pod, live *corev1.Container, before, r *record) {
	status := statusOf(pod, live.Name)
	if status == nil {
		status = &corev1.ContainerStatus{}
	}
	earlier, unfinished := before.ContainerStates[live.Name]
	unfinished = unfinished && earlier.LastContainerID != nil && *earlier.LastContainerID == status.ContainerID
	runs := live.Image
	if unfinished {
		runs = earlier.LastImage
	}
	image, changes := c.Images[live.Name]
	if !changes {
		image = live.Image
	}
	// A container whose image is put back before it was restarted need not be restarted at all.
	if image == runs || (!unfinished && image == live.Image) {
		return
	}
	r.ContainerStates[live.Name] = containerState{
		LatestImage: image, LastImageID: status.ImageID, LastImage: runs,
		LastContainerID: &status.ContainerID, LastRestartCount: &status.RestartCount,
	}
}

// merge lays the quantities of one over those of the other.
func merge(under, over corev1.ResourceRequirements) corev1.ResourceRequirements {
	lay := func(under, over corev1.ResourceList) corev1.ResourceList {
		out := maps.Clone(under)
		if out == nil && len(over) > 0 {
			out = corev1.ResourceList{}
		}
		maps.Copy(out, over)
		return out
	}
	return corev1.ResourceRequirements{Requests: lay(under.Requests, over.Requests),
		Limits: lay(under.Limits, over.Limits)}
}

func withDefault(m map[string]*string) map[string]*string {
	out := maps.Clone(m)
	if out == nil {
		out = map[string]*string{}
	}
	return out
}

func containerOf(pod *corev1.Pod, name string) *corev1.Container {
	for _, list := range [][]corev1.Container{pod.Spec.Containers, pod.Spec.InitContainers} {
		for i := range list {
			if list[i].Name == name {
				return &list[i]
			}
		}
	}
	return nil
}

func isInit(pod *corev1.Pod, name string) bool {
	return slices.ContainsFunc(pod.Spec.InitContainers, func(c corev1.Container) bool { return c.Name == name })
}

// isSidecar reports whether an init container is restarted for as long as the Pod runs.
func isSidecar(c *corev1.Container) bool {
	return c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways
}

func statusOf(pod *corev1.Pod, name string) *corev1.ContainerStatus {
	for _, list := range [][]corev1.ContainerStatus{pod.Status.ContainerStatuses, pod.Status.InitContainerStatuses} {
		for i := range list {
			if list[i].Name == name {
				return &list[i]
			}
		}
	}
	return nil
}
