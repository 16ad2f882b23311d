package fault

import (
	"cmp"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/internal/decoration"
)

// snapshot is a state without what differs from run to run: one sorted line for each object. Two runs of a scenario
// end with the same, whatever happened on the way.
func (s *state) snapshot(of scenario) []string {
	revisions := map[string]string{}
	for _, r := range these[*appsv1.ControllerRevision](s) {
		revisions[r.Name] = "revision " + s.contentOf(r)
	}
	var lines []string
	for _, object := range s.objects {
		line := ""
		switch o := object.(type) {
		case *corev1.Pod:
			line = s.pod(o, revisions, of)
		case *corev1.PersistentVolumeClaim:
			line = fmt.Sprintf("claim of %s, instance %s, %s", o.Labels[appsv1alpha1.ClaimTemplateNameLabel],
				of.instance(o.Labels[appsv1alpha1.InstanceIDLabel]), s.meta(o))
		case *appsv1.ControllerRevision:
			line = revisions[o.Name] + ", " + s.meta(o)
		case *appsv1alpha1.CollaSet:
			line = s.set(o, revisions)
		case *appsv1alpha1.PodTransitionRule:
			line = fmt.Sprintf("rule %s: desired %d, available %d, targets %d, gone %d, granted %d, blocked %d, "+
				"observed %t%s, %s", s.plain(o.Name),
				o.Status.Desired, o.Status.Available, len(o.Status.Targets), s.gone(o.Status.Targets), o.Status.Granted,
				o.Status.Blocked, o.Status.ObservedGeneration == o.Generation,
				conditions(o.Status.Conditions), s.meta(o))
		case *appsv1alpha1.ResourceContext:
			line = s.context(o, revisions, of)
		case *appsv1alpha1.OperationJob:
			line = s.job(o)
		case *appsv1alpha1.PodDecoration:
			line = s.decoration(o, revisions)
		case *corev1.Service:
			line = fmt.Sprintf("service %s: %s", s.plain(o.Name), s.meta(o))
		case *discoveryv1.EndpointSlice:
			ready := 0
			for _, e := range o.Endpoints {
				if e.Conditions.Ready != nil && *e.Conditions.Ready {
					ready++
				}
			}
			line = fmt.Sprintf("endpoints of %s: %d of %d ready", s.plain(o.Labels[discoveryv1.LabelServiceName]), ready,
				len(o.Endpoints))
		}
		lines = append(lines, line)
	}
	slices.Sort(lines)
	return lines
}

// gone is how many of the Pods with these names are not there: a rule names its Pods some time after they change.
func (s *state) gone(names []string) int {
	n := len(names)
	for _, pod := range these[*corev1.Pod](s) {
		if slices.Contains(names, pod.Name) {
			n--
		}
	}
	return n
}

// imagesIn finds the images that a revision is about.
var imagesIn = regexp.MustCompile(`"image":"([^"]*)"|"(note|version)":"([^"]*)"`)

func (s *state) contentOf(r *appsv1.ControllerRevision) string {
	var parts []string
	for _, found := range imagesIn.FindAllSubmatch(r.Data.Raw, -1) {
		parts = append(parts, string(found[1])+string(found[3]))
	}
	return strings.Join(parts, ",")
}

// meta is what matters of an object's metadata. Of keys only their being there counts, as values have times.
func (s *state) meta(o metav1.Object) string {
	text := fmt.Sprintf("labels %v, annotations %v", s.keys(o.GetLabels()), s.keys(o.GetAnnotations()))
	for _, owner := range o.GetOwnerReferences() {
		text += fmt.Sprintf(", owner %s %s", owner.Kind, s.plain(owner.Name))
	}
	if len(o.GetFinalizers()) > 0 {
		text += fmt.Sprintf(", finalizers %d", len(o.GetFinalizers()))
	}
	if o.GetDeletionTimestamp() != nil {
		text += ", terminating"
	}
	return text
}

func (s *state) keys(of map[string]string) []string {
	var keys []string
	for key := range of {
		if strings.HasPrefix(key, "endpoints.kubernetes.io/") {
			continue // when a trigger was last seen
		}
		keys = append(keys, s.plain(key))
	}
	slices.Sort(keys)
	return keys
}

func (s *state) pod(p *corev1.Pod, revisions map[string]string, of scenario) string {
	text := fmt.Sprintf("pod of %s, instance %s, %s %s", s.plain(p.Labels["app"]),
		of.instance(p.Labels[appsv1alpha1.InstanceIDLabel]), p.Status.Phase,
		cmp.Or(revisions[p.Labels[appsv1.ControllerRevisionHashLabelKey]], revisions[p.Labels["controller-revision-hash"]]))
	for _, c := range p.Spec.Containers {
		text += " " + c.Image
	}
	for _, m := range decoration.MarksOf(p.Annotations) {
		text += " decorated by " + revisions[m.Revision]
	}
	for _, c := range p.Status.ContainerStatuses {
		if !of.anyRestarts {
			text += fmt.Sprintf(" restarts %d", c.RestartCount)
		}
	}
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodReady || strings.Contains(string(c.Type), "kusionstack") {
			text += fmt.Sprintf(" %s=%s", c.Type, c.Status)
		}
	}
	for _, v := range p.Spec.Volumes {
		if v.PersistentVolumeClaim != nil {
			text += " volume " + v.Name
		}
	}
	return text + ", " + s.meta(p)
}

func (s *state) set(o *appsv1alpha1.CollaSet, revisions map[string]string) string {
	st := o.Status
	return fmt.Sprintf(
		"set %s: replicas %d ready %d available %d updated %d/%d/%d operating %d terminating %d, from %q to %q, observed %t, blockers %d%s, %s", s.plain(o.Name),
		st.Replicas, st.ReadyReplicas, st.AvailableReplicas, st.UpdatedReplicas, st.UpdatedReadyReplicas,
		st.UpdatedAvailableReplicas, st.OperatingReplicas,
		st.TerminatingReplicas, revisions[st.CurrentRevision], revisions[st.UpdatedRevision],
		st.ObservedGeneration == o.Generation, len(st.Blockers), conditions(st.Conditions), s.meta(o))
}

// job has no names of targets: those of Pods differ from run to run.
func (s *state) job(o *appsv1alpha1.OperationJob) string {
	st := o.Status
	text := fmt.Sprintf("job %s: %s, %d targets, %d succeeded, %d failed, observed %t%s, %s", s.plain(o.Name), st.Progress,
		st.TotalPodCount, st.SucceededPodCount, st.FailedPodCount, st.ObservedGeneration == o.Generation,
		conditions(st.Conditions), s.meta(o))
	for i := range st.TargetDetails {
		d := &st.TargetDetails[i]
		text += fmt.Sprintf("; target %d %s, under way %t, %v", i, d.Progress, d.Operation != nil,
			slices.Sorted(maps.Keys(d.ExtraInfo)))
		if d.Error != nil {
			text += fmt.Sprintf(" %s: %s", d.Error.Reason, d.Error.Message)
		}
	}
	return text
}

func (s *state) decoration(o *appsv1alpha1.PodDecoration, revisions map[string]string) string {
	st := o.Status
	return fmt.Sprintf("decoration %s: matched %d, injected %d, updated %d/%d/%d, from %q to %q, observed %t, blockers %d%s, %s",
		s.plain(o.Name), st.MatchedPods, st.InjectedPods, st.UpdatedPods, st.UpdatedReadyPods, st.UpdatedAvailablePods,
		revisions[st.CurrentRevision], revisions[st.UpdatedRevision], st.ObservedGeneration == o.Generation, len(st.Blockers),
		conditions(st.Conditions), s.meta(o))
}

// instance is an instance ID as far as it matters.
func (of scenario) instance(id string) string {
	if of.anyInstances && id != "" {
		return "some"
	}
	return cmp.Or(id, "none")
}

func (s *state) context(o *appsv1alpha1.ResourceContext, revisions map[string]string, of scenario) string {
	text := "context " + s.plain(o.Name)
	for _, c := range o.Spec.Contexts {
		text += ", " + of.instance(strconv.Itoa(c.ID))
		for _, key := range slices.Sorted(maps.Keys(c.Data)) {
			value := s.plain(c.Data[key])
			if revision, ok := revisions[c.Data[key]]; ok {
				value = revision
			}
			text += fmt.Sprintf(" %s=%s", key, value)
		}
	}
	return text
}

func conditions(all []metav1.Condition) string {
	var parts []string
	for _, c := range all {
		parts = append(parts, fmt.Sprintf("%s=%s/%s", c.Type, c.Status, c.Reason))
	}
	slices.Sort(parts)
	return fmt.Sprint(" ", parts)
}
