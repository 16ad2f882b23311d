package observer

import (
	"encoding/json"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
)

const (
	// mostBytes bounds every object of the suite.
	mostBytes = 100 << 10
	// bytesPerEntry is what one instance ID adds to a ResourceContext: Kuperator's format, whose names are no longer than
	// is usual.
	bytesPerEntry = 256
	// bytesPerGrant is what one Pod under way adds to a rule.
	bytesPerGrant = 1 << 10
	// bytesPerTarget is the longest name that a rule may have of a Pod that it selects.
	bytesPerTarget = 256
	// bytesPerPod is what one Pod may add to its CollaSet and its rules at rest, beside its name in a rule's targets.
	bytesPerPod = 10
	// growthFrom is how many Pods must have come or gone for growth to be judged.
	growthFrom = 100
	// slack is what an object may grow without any Pod.
	slack = 2 << 10
)

// Largest is the largest object of a kind.
type Largest struct {
	Name  string
	Bytes int
}

// sample is the size of an object at rest, with so many Pods.
type sample struct{ pods, bytes int }

// checkSize judges that no object of the suite becomes too large.
func (s *space) checkSize(e Event) {
	if e.Deleted {
		return
	}
	most := mostBytes
	switch obj := e.Object.(type) {
	case *corev1.Pod:
		if obj.Labels[controlLabel] != "true" {
			return
		}
	case *appsv1.ControllerRevision, *appsv1alpha1.CollaSet:
	case *appsv1alpha1.ResourceContext:
		most = max(most, bytesPerEntry*len(obj.Spec.Contexts))
	case *appsv1alpha1.PodTransitionRule:
		most += bytesPerGrant*len(obj.Status.Grants) + bytesPerTarget*len(obj.Status.Targets)
	default:
		return
	}
	bytes, kind := size(e.Object), kindOf(e.Object)
	if bytes > s.largest[kind].Bytes {
		s.largest[kind] = Largest{Name: e.Object.GetName(), Bytes: bytes}
	}
	s.checks[Size]++
	if bytes > most {
		s.report(Size, e, fmt.Sprintf("has %d bytes, more than %d", bytes, most))
	}
}

// size is about what the API server stores: protobuf for what it has built in, else JSON.
func size(obj metav1.Object) int {
	if sized, ok := obj.(interface{ Size() int }); ok {
		return sized.Size()
	}
	raw, err := json.Marshal(obj)
	if err != nil {
		return 0
	}
	return len(raw)
}

// judgeGrowth judges an object at rest by what it was with another number of Pods.
func judgeGrowth(r resting, obj metav1.Object, pods int, last *sample) {
	now := sample{pods, size(obj)}
	if last.bytes > 0 && now.pods-last.pods >= growthFrom {
		most := last.bytes + bytesPerPod*(now.pods-last.pods) + slack
		r.judge(Size, obj, now.bytes <= most, "has grown from %d bytes with %d Pods to %d with %d", last.bytes, last.pods,
			now.bytes, now.pods)
	}
	if last.bytes == 0 || now.pods < last.pods || now.pods-last.pods >= growthFrom {
		*last = now
	}
}
