package jobplan

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
)

// Snapshot is all that a decision is made from.
type Snapshot struct {
	// Job is the job as it is stored. It is not changed.
	Job *appsv1alpha1.OperationJob
	// Selected are the names of the Pods that spec.targetSelector selects, in the order in which they start. It is read
	// only before the targets are recorded in the status.
	Selected []string
	// Invalid is why spec.targetSelector cannot be resolved, "" if it can. It is read only then.
	Invalid string
	// Targets are what is known of status.targetDetails, one for each, in that order.
	Targets []Target
	// Now is the time of the decision.
	Now time.Time
}

// Target is what is known of one target.
type Target struct {
	// Pod is the Pod of the target's name, nil if there is none.
	Pod *Pod
	// Successor is a Pod of the instance ID that the target awaits (TargetOperation), other than the target's own and not
	// terminating; nil if there is none, or none is awaited.
	Successor *Pod
	// Live is whether both were read past the cache.
	Live bool
	// Refused is why the API server did not take the last write to the Pod, "" if it did, and RefusedSince since when it
	// has taken none. PutOff is whether the last was less than RefusedAgain ago: nothing is written to it now.
	Refused      string
	RefusedSince time.Time
	PutOff       bool
}

// Pod is what is read of a Pod.
type Pod struct {
	// View is what the protocol reads of it.
	View podops.View
	// Managed is whether it takes part in the lifecycle.
	Managed bool
	// CollaSet is the UID of the CollaSet that controls it, "" if none does. InstanceID is its label, "" without one.
	CollaSet   types.UID
	InstanceID string
	// NeverRestarts is whether its containers stay as they ended.
	NeverRestarts bool
	// Observed is whether the status is of the present spec: its kubelet has seen it, or does not say what it has seen.
	Observed bool
	// Containers are the regular containers, and then the native sidecars.
	Containers []Container
}

// Container is what is read of a container.
type Container struct {
	// Name and Image are of the spec. Sidecar is whether it is a native sidecar, an init container that goes on running.
	Name, Image string
	Sidecar     bool
	// ID, ImageID, Running and Ready are of its status, zero without one. IDs of a container that does not run are of
	// the one before it.
	ID, ImageID    string
	Running, Ready bool
}

// Read returns what is read of a Pod, which must not be nil.
func Read(pod *corev1.Pod) *Pod {
	p := &Pod{
		View:          podops.Read(pod),
		Managed:       pod.Labels[appsv1alpha1.ControlLabel] == appsv1alpha1.ControlValue,
		InstanceID:    pod.Labels[appsv1alpha1.InstanceIDLabel],
		NeverRestarts: pod.Spec.RestartPolicy == corev1.RestartPolicyNever,
		Observed:      pod.Status.ObservedGeneration == 0 || pod.Status.ObservedGeneration >= pod.Generation,
	}
	for _, ref := range pod.OwnerReferences {
		if ref.Controller != nil && *ref.Controller && ref.Kind == appsv1alpha1.CollaSetKind {
			p.CollaSet = ref.UID
		}
	}
	add := func(c *corev1.Container, isSidecar bool, statuses []corev1.ContainerStatus) {
		read := Container{Name: c.Name, Image: c.Image, Sidecar: isSidecar}
		for i := range statuses {
			if s := &statuses[i]; s.Name == c.Name {
				read.ID, read.ImageID, read.Running, read.Ready = s.ContainerID, s.ImageID, s.State.Running != nil, s.Ready
			}
		}
		p.Containers = append(p.Containers, read)
	}
	for i := range pod.Spec.Containers {
		add(&pod.Spec.Containers[i], false, pod.Status.ContainerStatuses)
	}
	for i := range pod.Spec.InitContainers {
		c := &pod.Spec.InitContainers[i]
		if c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			add(c, true, pod.Status.InitContainerStatuses)
		}
	}
	return p
}

// Container returns the container of a name, nil if there is none.
func (p *Pod) Container(name string) *Container {
	for i := range p.Containers {
		if p.Containers[i].Name == name {
			return &p.Containers[i]
		}
	}
	return nil
}

// serves reports whether the Pod is in service. Without the readiness gate no lifecycle takes it out.
func (p *Pod) serves() bool {
	v := p.View
	_, leaves := v.Labels[appsv1alpha1.ToDeleteLabel]
	return v.Ready && !v.Terminating && !leaves && (v.ServiceAvailable() || !v.Gate)
}

// Plan is what to do. Its parts may be applied in any order and in any subset.
type Plan struct {
	// Status is to be stored, nil if it is as it should be.
	Status *appsv1alpha1.OperationJobStatus
	// Writes are to Pods, at most one for each. Those that ask for something come last.
	Writes []Write
	// More is whether writes are left for the next decision, which should be made at once.
	More bool
	// Confirm are the targets, by number, that may have ended: read them past the cache and decide again.
	Confirm []int
	// Protect is whether the job's finalizer is to be added, Release whether it is to be removed, Delete whether the job
	// is to be deleted because its time is over.
	Protect, Release, Delete bool
	// NextLook is when to decide again if nothing happens before; 0 is never.
	NextLook time.Duration
	// Ended are the targets, by number, that end with Status.
	Ended []int
}

// Write is one write to a Pod, with the resourceVersion of the view that it was decided on.
type Write struct {
	// Pod is the view that the write was decided on.
	Pod *Pod
	// Does is for messages: what is done to the Pod, such as "operating on".
	Does string
	// Change is of its metadata.
	Change podops.Change
	// Images are new images by container name, nil if none changes.
	Images map[string]string
	// Trial is images that are written later: the API server is asked by a dry run whether it takes them. If it does not,
	// this write is not made and counts as refused. Nil for none.
	Trial map[string]string
	// Evict is whether the Pod is to be evicted instead.
	Evict bool
	// Asks is whether it asks for something that takes the Pod out of service.
	Asks bool
}
