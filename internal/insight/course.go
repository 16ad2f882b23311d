package insight

import (
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
)

// Course is how the rollout of a CollaSet goes.
type Course struct {
	State RolloutState `json:"state"`
	// Images are those of the template's containers.
	Images []CourseImage `json:"images,omitempty"`
	// Partition is a number of Pods or a percentage; empty if it keeps no Pod. Kept is the number of Pods that it keeps.
	Partition string `json:"partition,omitempty"`
	Kept      int32  `json:"kept,omitempty"`
	// InPlace is whether Pods are changed in place; nil if no rollout is under way. Fields are those whose change requires
	// that Pods are re-created.
	InPlace *bool    `json:"inPlace,omitempty"`
	Fields  []string `json:"fields,omitempty"`
	// Progressed is when the rollout last progressed, Deadline when it counts as failed unless it progresses before. Nil
	// means that it is not measured.
	Progressed *time.Time `json:"progressed,omitempty"`
	Deadline   *time.Time `json:"deadline,omitempty"`
	// Expected is when it ends if Pods are updated as fast as the last ones were; nil if that is not known.
	Expected *time.Time `json:"expected,omitempty"`
}

// CourseImage is the image of a container.
type CourseImage struct {
	Container string `json:"container"`
	Image     string `json:"image"`
	// Before is the image of Pods that are not updated; empty if there are none, or if it is the same.
	Before string `json:"before,omitempty"`
}

// courseOf is what the CollaSet itself has about it.
func courseOf(set *appsv1alpha1.CollaSet) *Course {
	c := &Course{State: RolloutOf(set).State, Kept: kept(set)}
	if text := partitionText(Partition(set)); text != "0" {
		c.Partition = text
	}
	for i := range set.Spec.Template.Spec.Containers {
		container := &set.Spec.Template.Spec.Containers[i]
		c.Images = append(c.Images, CourseImage{Container: container.Name, Image: container.Image})
	}
	if next := set.Status.NextUpdate; next != nil {
		c.InPlace, c.Fields = &next.InPlace, next.Fields
	}
	seconds := ptr.Deref(set.Spec.ProgressDeadlineSeconds, appsv1alpha1.DefaultProgressDeadlineSeconds)
	last := set.Status.LastProgressTime
	if c.State != RolloutWaits || last == nil || seconds == appsv1alpha1.NoProgressDeadlineSeconds {
		return c
	}
	c.Progressed = timeOf(last.Time)
	c.Deadline = timeOf(last.Add(time.Duration(seconds+set.Spec.MinReadySeconds) * time.Second))
	return c
}

const (
	// speedPods is how many of the Pods that were updated last tell how fast a rollout is, speedWithin how long before the
	// last one: a canary of yesterday tells nothing.
	speedPods   = 20
	speedWithin = 30 * time.Minute
)

// estimate adds what only the Pods of a CollaSet tell: the images before, and when the rollout is likely to end.
func (x *index) estimate(w *Workload) {
	if w.Course == nil || w.UpdatedRevision == "" {
		return
	}
	old := slices.IndexFunc(w.Pods, func(p Pod) bool { return p.Revision != w.UpdatedRevision })
	if old < 0 {
		return
	}
	before := x.pods[types.NamespacedName{Namespace: w.Namespace, Name: w.Pods[old].Name}]
	for i := range w.Course.Images {
		image := &w.Course.Images[i]
		if was := imageOf(before, image.Container); was != image.Image {
			image.Before = was
		}
	}
	if w.Course.State != RolloutWaits || w.Desired == nil {
		return
	}
	var done []time.Time
	for i := range w.Pods {
		p := &w.Pods[i]
		if p.Revision == w.UpdatedRevision && p.State == StateServing && p.Since != nil {
			done = append(done, *p.Since)
		}
	}
	w.Course.Expected = expected(done, int(*w.Desired-w.Course.Kept)-len(done))
}

// expected is when so many more Pods are done, if they take as long as the last ones; nil if that is not known.
func expected(done []time.Time, left int) *time.Time {
	if len(done) < 2 || left <= 0 {
		return nil
	}
	slices.SortFunc(done, time.Time.Compare)
	last := done[len(done)-1]
	done = done[max(0, len(done)-speedPods):]
	first := slices.IndexFunc(done, func(t time.Time) bool { return last.Sub(t) <= speedWithin })
	took, pods := last.Sub(done[first]), len(done)-1-first
	if took == 0 {
		return nil
	}
	return timeOf(last.Add(took * time.Duration(left) / time.Duration(pods)))
}

func imageOf(pod *corev1.Pod, container string) string {
	if pod == nil {
		return ""
	}
	for i := range pod.Spec.Containers {
		if pod.Spec.Containers[i].Name == container {
			return pod.Spec.Containers[i].Image
		}
	}
	return ""
}

// allowed is how many of the rule's Pods may be out of service at the same time by its plain bounds; nil if it has
// none. Checks for some of the Pods do not count.
func allowed(r *appsv1alpha1.PodTransitionRule) *int32 {
	most, found := int(r.Status.Desired), false
	for i := range r.Spec.Rules {
		item := &r.Spec.Rules[i]
		if item.AvailablePolicy == nil || item.Disabled || item.Filter != nil || len(item.Conditions) > 0 ||
			podops.StageOf(item) != appsv1alpha1.StagePreCheck {
			continue
		}
		room, known := roomOf(item.AvailablePolicy,
			appsv1alpha1.PodTransitionRuleStatus{Desired: r.Status.Desired, Available: r.Status.Desired})
		if known {
			most, found = min(most, max(room, 0)), true
		}
	}
	if !found {
		return nil
	}
	return ptr.To(int32(most)) //nolint:gosec // it is at most Desired
}

// Blockers are what a workload and its Pods wait for, once for each code, causes before symptoms. Symptoms are left out
// beside anything else. Count is 0 for what the workload waits for as a whole.
func Blockers(w *Workload) []Stuck {
	byCode := map[Code]Stuck{}
	var reasons []Reason
	add := func(s Stuck) {
		if _, known := byCode[s.Code]; !known {
			byCode[s.Code], reasons = s, append(reasons, s.Example)
		}
	}
	for _, s := range stuck(w.Pods) {
		add(s)
	}
	for _, r := range w.Reasons {
		add(Stuck{Code: r.Code, Pods: []string{}, Example: r})
	}
	var all []Stuck
	for _, r := range byDepth(reasons) {
		if len(all) == 0 || !slices.Contains(symptoms, r.Code) || slices.Contains(symptoms, all[0].Code) {
			all = append(all, byCode[r.Code])
		}
	}
	return all
}

// Revision is one revision of a CollaSet.
type Revision struct {
	Revision int64     `json:"revision"`
	Name     string    `json:"name"`
	Created  time.Time `json:"created"`
	// Current is the revision that Pods come from, Updated that of the present template.
	Current bool `json:"current,omitempty"`
	Updated bool `json:"updated,omitempty"`
	// Pods are at this revision.
	Pods int `json:"pods"`
	// Images are those of its containers, as <container>=<image>.
	Images []string `json:"images"`
	// InPlace is true if a Pod gets here from the revision before without being re-created; Fields are those that force
	// it otherwise. Both are empty for the oldest.
	InPlace *bool    `json:"inPlace,omitempty"`
	Fields  []string `json:"fields,omitempty"`
}

// Details are what there is to know about one workload.
type Details struct {
	Answer
	// Revisions are a CollaSet's, oldest first.
	Revisions []Revision `json:"revisions,omitempty"`
	// Jobs are the names of the OperationJobs of which one of its Pods is a target, Decorations those of the
	// PodDecorations that one of its Pods has or is to get.
	Jobs        []string `json:"jobs,omitempty"`
	Decorations []string `json:"decorations,omitempty"`
	// Drains are its Pods that leave a node.
	Drains []Leaving `json:"drains,omitempty"`
	// PodEvents are the newest Warnings about its Pods, newest first.
	PodEvents []PodEvent `json:"podEvents,omitempty"`
	// OnEviction is what an eviction does to its Pods: spec.disruption.onEviction.
	OnEviction string `json:"onEviction,omitempty"`
}

// PodEvent is an event about a Pod.
type PodEvent struct {
	Pod string `json:"pod"`
	Event
}

// Leaving is a Pod that leaves its node.
type Leaving struct {
	Pod  string `json:"pod"`
	Node string `json:"node,omitempty"`
	// Cordoned is true if the node takes no new Pods.
	Cordoned bool `json:"cordoned,omitempty"`
	// Asked is what a drain or an eviction asks for: that the Pod is deleted, or replaced. Empty means nothing yet.
	Asked string `json:"asked,omitempty"`
}

// maxEvents bounds the events of Details.
const maxEvents = 20

// DetailsOf says what there is to know about one workload. events are about it, ofPods about Pods of its namespace.
// False: the facts have no such workload.
func DetailsOf(f Facts, ref Ref, revisions []Revision, events, ofPods []corev1.Event) (Details, bool) {
	x := newIndex(&f)
	answer, found := x.whyWorkload(ref, events)
	if !found {
		return Details{}, false
	}
	d := Details{Answer: answer, Revisions: revisions}
	d.Events = newest(events, maxEvents, func(*corev1.Event) bool { return true })
	names := map[string]bool{}
	for i := range x.Pods {
		pod := &x.Pods[i]
		if ownerOf(pod) != ref {
			continue
		}
		names[pod.Name] = true
		for label := range pod.Labels {
			if name, ok := strings.CutPrefix(label, appsv1alpha1.PodDecorationLabelPrefix); ok {
				d.Decorations = append(d.Decorations, name)
			}
		}
		d.Decorations = append(d.Decorations, dueDecorations(pod)...)
		if l := x.leaving(pod); l != nil {
			d.Drains = append(d.Drains, *l)
		}
	}
	d.PodEvents = podEvents(ofPods, names)
	slices.Sort(d.Decorations)
	d.Decorations = slices.Compact(d.Decorations)
	slices.SortFunc(d.Drains, func(a, b Leaving) int { return strings.Compare(a.Pod, b.Pod) })
	for i := range x.Jobs {
		job := &x.Jobs[i]
		isTarget := func(t appsv1alpha1.OpsStatus) bool {
			return names[t.Name] || names[t.ExtraInfo[appsv1alpha1.ExtraInfoNewPod]]
		}
		if job.Namespace == ref.Namespace && slices.ContainsFunc(job.Status.TargetDetails, isTarget) {
			d.Jobs = append(d.Jobs, job.Name)
		}
	}
	slices.Sort(d.Jobs)
	set := x.sets[types.NamespacedName{Namespace: ref.Namespace, Name: ref.Name}]
	if ref.Kind == appsv1alpha1.CollaSetKind && set != nil && set.Spec.Disruption != nil {
		d.OnEviction = string(set.Spec.Disruption.OnEviction)
	}
	return d, true
}

// podEvents are the newest Warnings about the Pods of these names, newest first.
func podEvents(events []corev1.Event, pods map[string]bool) []PodEvent {
	var found []PodEvent
	for i := range events {
		e := &events[i]
		if e.Type == corev1.EventTypeWarning && pods[e.InvolvedObject.Name] {
			found = append(found, PodEvent{e.InvolvedObject.Name, eventOf(e)})
		}
	}
	slices.SortStableFunc(found, func(a, b PodEvent) int { return newerFirst(a.Event, b.Event) })
	return found[:min(len(found), maxEvents)]
}

// leaving is what a drain of the Pod's node, or an eviction, asks of it; nil if they ask nothing.
func (x *index) leaving(pod *corev1.Pod) *Leaving {
	v := podops.Read(pod)
	l := Leaving{Pod: pod.Name, Node: pod.Spec.NodeName}
	if node := x.Nodes[pod.Spec.NodeName]; node != nil {
		l.Cordoned = node.Spec.Unschedulable
	}
	for label, asked := range map[string]string{appsv1alpha1.ToDeleteLabel: "deleted",
		appsv1alpha1.ToReplaceLabel: "replaced"} {
		if slices.ContainsFunc([]string{podops.AskerEviction, podops.AskerEvictionRequest, podops.AskerDrain},
			func(asker string) bool { return podops.MarkedBy(v, label, asker) }) {
			l.Asked = asked
		}
	}
	if !l.Cordoned && l.Asked == "" {
		return nil
	}
	return &l
}
