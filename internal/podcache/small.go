package podcache

import (
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// small is a Pod as it is kept: its metadata as they are, for the informer reads them; its spec, which many Pods have in common
// once it was stripped; and its status, in common too unless it says what no other Pod has, else encoded. It is never changed.
type small struct {
	metav1.ObjectMeta
	spec *corev1.PodSpec
	// status is shared; encoded is the Pod's own, in protobuf, where status is nil.
	status  *corev1.PodStatus
	encoded []byte
}

// shrink returns the Pod as it is kept, or the Pod itself if it cannot be encoded.
func shrink(pod *corev1.Pod) runtime.Object {
	spec, err := pod.Spec.Marshal()
	if err != nil {
		return pod
	}
	status, err := pod.Status.Marshal()
	if err != nil {
		return pod
	}
	s := &small{ObjectMeta: pod.ObjectMeta, spec: specs.one(spec, &pod.Spec)}
	s.OwnerReferences = sharedOwners(pod.OwnerReferences)
	if common(&pod.Status) {
		s.status = statuses.one(status, &pod.Status)
	} else {
		s.encoded = status
	}
	return s
}

// common says whether many Pods can have the same status: one without addresses, times and containers.
func common(s *corev1.PodStatus) bool {
	timed := func(c corev1.PodCondition) bool { return !c.LastTransitionTime.IsZero() || !c.LastProbeTime.IsZero() }
	return s.PodIP == "" && len(s.PodIPs) == 0 && s.StartTime == nil && len(s.ContainerStatuses) == 0 && len(s.InitContainerStatuses) == 0 &&
		!slices.ContainsFunc(s.Conditions, timed)
}

// whole returns the Pod. It shares what the small one holds, like any object in a cache: it must not be changed.
func (s *small) whole() *corev1.Pod {
	pod := &corev1.Pod{}
	s.into(pod)
	return pod
}

func (s *small) into(pod *corev1.Pod) {
	pod.ObjectMeta, pod.Spec = s.ObjectMeta, *s.spec
	if s.status != nil {
		pod.Status = *s.status
		return
	}
	// What was encoded here can be decoded: an error would be one of the generated code.
	if err := pod.Status.Unmarshal(s.encoded); err != nil {
		panic(err)
	}
}

// GetObjectKind is part of runtime.Object. Like other objects in a cache it does not say its kind.
func (*small) GetObjectKind() schema.ObjectKind { return schema.EmptyObjectKind }

// DeepCopyObject is part of runtime.Object.
func (s *small) DeepCopyObject() runtime.Object {
	kept := *s
	s.ObjectMeta.DeepCopyInto(&kept.ObjectMeta)
	return &kept
}

// mostShared bounds the values of one kind that are kept to be shared. Beyond it all are forgotten and begin anew: then Pods with equal parts
// do not share them, and that is all.
const mostShared = 4 << 10

// parts are equal parts of Pods, by their encoding.
type parts[T any] struct {
	mu    sync.Mutex
	known map[string]*T
}

var (
	specs    parts[corev1.PodSpec]
	statuses parts[corev1.PodStatus]
	owners   parts[[]metav1.OwnerReference]
)

// sharedOwners are the same owners, in one piece of memory for all Pods of a workload.
func sharedOwners(of []metav1.OwnerReference) []metav1.OwnerReference {
	if len(of) == 0 {
		return of
	}
	encoded, err := (&metav1.ObjectMeta{OwnerReferences: of}).Marshal()
	if err != nil {
		return of
	}
	return *owners.one(encoded, &of)
}

// one returns the part with this encoding that was first seen, or else a copy of this one.
func (p *parts[T]) one(encoded []byte, part *T) *T {
	p.mu.Lock()
	defer p.mu.Unlock()
	if known, ok := p.known[string(encoded)]; ok {
		return known
	}
	if p.known == nil || len(p.known) >= mostShared {
		p.known = map[string]*T{}
	}
	kept := *part
	p.known[string(encoded)] = &kept
	return &kept
}
