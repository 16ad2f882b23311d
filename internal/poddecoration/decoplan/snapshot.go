package decoplan

import (
	"cmp"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
	"kusionstack.io/kuperator/internal/decoration"
)

// OperatorID is the operation ID of updates, and the name under which a deletion is asked for.
const OperatorID = "poddecoration"

// Snapshot is all that a decision is made from. Nothing in it is changed, and the order of its lists does not matter.
type Snapshot struct {
	// Now is the time of the decision.
	Now time.Time
	// Decorations and Pods are all of the namespace.
	Decorations []Decoration
	Pods        []Pod
	// Wanted is how many Pods owners are to have, as far as that is known.
	Wanted map[Owner]int
}

// Decoration is what is known of a PodDecoration.
type Decoration struct {
	Name       string
	Generation int64
	// Deleting is whether it is being deleted, Protected whether our finalizer keeps it.
	Deleting, Protected bool
	Spec                appsv1alpha1.PodDecorationSpec
	Status              appsv1alpha1.PodDecorationStatus
	// Updated is the revision of the present template, "" if it has none for the reason in Problem.
	Updated string
	Problem string
	// Collisions is how often the name of a new revision was taken, for status.
	Collisions *int32
	// Next is what lies between status.currentRevision and Updated; nil if that is not known, or they are equal.
	Next *appsv1alpha1.UpdateForecast
}

// Pod is what is known of a Pod.
type Pod struct {
	// View is what the protocol reads of it. Labels are those without the ones that its decorations set: by these the next
	// Pod of its workload is selected.
	View    podops.View
	Labels  map[string]string
	Created time.Time
	// Has and Refused are what it was made with and what it cannot have; Desired is what it was told to have, if IsTold.
	Has     []decoration.Mark
	Refused []decoration.Refusal
	Desired []decoration.Mark
	IsTold  bool
	// Managed is whether it takes part in the lifecycle, Available whether it serves.
	Managed, Available bool
	Owner              Owner
	// Recorded is whether a change in place was made that is not finished; Carried that the kubelet has carried it out,
	// and Missing what is missing if not. Delegated is whether lifecycle-controller is to finish it, and has time for
	// that.
	Recorded, Carried, Delegated bool
	Missing                      string
	// ResizeDue is whether the recorded change lacks its write to pods/resize, ResizeRestarts that this restarts a
	// container, Infeasible that the Pod cannot have the resources where it is. All of this is only if Recorded.
	ResizeDue, ResizeRestarts, Infeasible bool
	// Difference is what lies between what the Pod has and Desired. Nil: it is not known, or nothing does.
	Difference *Difference
	// Refusal is why the API server does not take the last write to it, "" if it does. Nothing is written to it then.
	Refusal string
}

// recreating are the kinds of group apps that create another Pod in the place of one that is deleted. Of others that is
// not known, and a Job counts a deleted Pod as one that failed.
var recreating = map[string]bool{"ReplicaSet": true, "StatefulSet": true, "DaemonSet": true}

// PodOf reads a Pod, without what is told by a change that was made in place.
func PodOf(pod *corev1.Pod) Pod {
	p := Pod{
		View: podops.Read(pod), Labels: decoration.OwnLabels(pod.Labels, pod.Annotations),
		Created: pod.CreationTimestamp.Time,
		Has:     decoration.MarksOf(pod.Annotations), Refused: decoration.RefusedOf(pod.Annotations),
		Desired: decoration.MarksIn(pod.Annotations[appsv1alpha1.PodDecorationDesiredAnnotation]),
		Managed: pod.Labels[appsv1alpha1.ControlLabel] == appsv1alpha1.ControlValue,
	}
	p.IsTold = p.Desired != nil
	p.Available = p.View.Ready && (p.View.ServiceAvailable() || !p.View.Gate)
	if owner := metav1.GetControllerOfNoCopy(pod); owner != nil {
		p.Owner = Owner{Kind: owner.Kind, Name: owner.Name,
			Recreates: recreating[owner.Kind] && owner.APIVersion == appsv1.SchemeGroupVersion.String()}
	}
	return p
}

// TemplateOf is the same text for Pods of one template of a workload, which are changed alike. A Pod of which that is
// not known has one of its own.
func TemplateOf(pod *corev1.Pod) string {
	hash := cmp.Or(pod.Labels["pod-template-hash"], pod.Labels[appsv1.ControllerRevisionHashLabelKey])
	if owner := metav1.GetControllerOfNoCopy(pod); owner != nil && hash != "" {
		return string(owner.UID) + "/" + hash
	}
	return string(pod.UID)
}

// Owner is the controller of a Pod.
type Owner struct {
	// Kind and Name are empty for a Pod without a controller.
	Kind, Name string
	// Recreates is whether it creates another Pod when this one is deleted, and nothing is lost by that. A Job counts a
	// deleted Pod as one that failed.
	Recreates bool
}

// Difference is what lies between what a Pod has and what it was told to have.
type Difference struct {
	// Forcing are the fields that a running Pod cannot take over. Empty: it can be changed in place.
	Forcing []string
	// Quiet is whether it takes the change over without a restart.
	Quiet bool
	// Missing is why no Pod can be made with it, "" if one can.
	Missing string
}

// Plan is what to do. At most one write is about a Pod.
type Plan struct {
	// Writes are of metadata: what Pods are to have, updates to ask for, to finish or to cancel, and deletions to ask for
	// or to take back.
	Writes []Write
	// Changes are Pods to change in place, Resizes those whose change lacks its write to pods/resize.
	Changes, Resizes []*Pod
	// Statuses are those to store, by the decorations' names.
	Statuses map[string]*appsv1alpha1.PodDecorationStatus
	// Protect are the decorations to which our finalizer is to be added, Release those from which it is to be removed.
	Protect, Release []string
	// NextLook is when to decide again if nothing happens before; 0 is never.
	NextLook time.Duration
	// More is whether a bound cut the plan short: decide again as soon as it is applied.
	More bool
}

// Tell is a Pod and the decorations that it is to have.
type Tell struct {
	Pod   *Pod
	Marks []decoration.Mark
}

// Write is a change of a Pod's metadata.
type Write struct {
	Pod *Pod
	// Does is for messages, such as "asking for the deletion of".
	Does   string
	Change podops.Change
	// Tries is whether the API server is asked before, by a dry run, whether it takes the change in place: no Pod is taken
	// out of service for one that is refused.
	Tries bool
}

// answered are the decorations that the Pod was made with, those that it cannot have among them.
func (p *Pod) answered() []decoration.Mark {
	if len(p.Refused) == 0 { // nearly all
		return p.Has
	}
	return decoration.Made(p.Has, p.Refused)
}

// wanted are the decorations that the Pod is to have.
func (p *Pod) wanted() []decoration.Mark {
	if p.IsTold {
		return p.Desired
	}
	return p.answered()
}

// same reports whether two lists are of the same decorations, whatever their order.
func same(a, b []decoration.Mark) bool {
	return slices.Equal(a, b) || decoration.Key(a) == decoration.Key(b)
}

// IsDue reports whether the Pod is to have other decorations than it was made with.
func (p *Pod) IsDue() bool { return !same(p.wanted(), p.answered()) }

// ofCollaSet reports whether collaset-controller has the Pod follow what it is told.
func (p *Pod) ofCollaSet() bool { return p.Owner.Kind == appsv1alpha1.CollaSetKind }

// follows reports whether something has the Pod follow what it is told.
func (p *Pod) follows() bool { return p.Managed || p.ofCollaSet() }

// isUpdating reports whether an update of the Pod is asked for or under way, isAllowed whether it may be changed.
func (p *Pod) isUpdating() bool { return podops.IsDuring(p.View, OperatorID, podops.TypeUpdate) }
func (p *Pod) isAllowed() bool  { return podops.Allowed(p.View, OperatorID, podops.TypeUpdate) }

// isMarked reports whether its deletion was asked for here.
func (p *Pod) isMarked() bool { return podops.MarkedBy(p.View, appsv1alpha1.ToDeleteLabel, OperatorID) }

// wasCancelled reports whether it was asked for here, and the mark is gone: an asker does not ask again then.
func (p *Pod) wasCancelled() bool {
	return !p.isMarked() && podops.Recorded(p.View, appsv1alpha1.ToDeleteLabel, OperatorID)
}

// hasAny reports whether the Pod was made with some revision of a decoration.
func (p *Pod) hasAny(name string) bool { return decoration.RevisionIn(p.answered(), name) != "" }

// Used are the names of revisions that Pods have or are to have, and that statuses name: those that are there, and
// those that are to be.
func Used(s *Snapshot, next map[string]*appsv1alpha1.PodDecorationStatus) map[string]bool {
	used := map[string]bool{}
	for i := range s.Pods {
		for _, m := range slices.Concat(s.Pods[i].answered(), s.Pods[i].Desired) {
			used[m.Revision] = true
		}
	}
	add := func(status *appsv1alpha1.PodDecorationStatus) {
		used[status.CurrentRevision], used[status.UpdatedRevision] = true, true
		if status.Halted != nil {
			used[status.Halted.Revision], used[status.Halted.RollbackTo] = true, true
		}
	}
	for i := range s.Decorations {
		used[s.Decorations[i].Updated] = true
		add(&s.Decorations[i].Status)
	}
	for _, status := range next {
		add(status)
	}
	return used
}
