package podcache

import (
	"maps"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

// small is a Pod as it is kept: what names it; what else its metadata say, and its spec once it was stripped, which
// many Pods have in common; and its status, in common too unless it says what no other Pod has, else encoded. It is
// never changed.
type small struct {
	namespace *string
	name      string
	created   metav1.Time
	// own are UID, resourceVersion, and the labels' values in the order of their keys, which many Pods have in common: a
	// map for each Pod took as much memory as all the rest.
	own  string
	keys *[]string
	// rest is the metadata without what is above.
	rest *metav1.ObjectMeta
	spec *corev1.PodSpec
	// status is shared; encoded is the Pod's own, in protobuf, where status is nil.
	status  *corev1.PodStatus
	encoded []byte
}

// separator is between the parts of what is a Pod's own; the API server has none in a UID, a resourceVersion or a
// label.
const separator = "\x00"

// shrink returns the Pod as it is kept, or the Pod itself if it cannot be encoded.
func shrink(pod *corev1.Pod) runtime.Object {
	own, keys, ok := pack(&pod.ObjectMeta)
	if !ok {
		return pod
	}
	spec, err := pod.Spec.Marshal()
	if err != nil {
		return pod
	}
	status, err := pod.Status.Marshal()
	if err != nil {
		return pod
	}
	s := &small{
		namespace: texts.one([]byte(pod.Namespace), &pod.Namespace), name: pod.Name, created: pod.CreationTimestamp,
		own: own, keys: keys,
		rest: rest(pod.ObjectMeta), spec: specs.one(spec, &pod.Spec),
	}
	if common(&pod.Status) {
		s.status = statuses.one(status, &pod.Status)
	} else {
		s.encoded = status
	}
	return s
}

// pack returns what is a Pod's own of its metadata, and the keys of its labels; not ok if a separator is in it.
func pack(m *metav1.ObjectMeta) (own string, keys *[]string, ok bool) {
	parts := make([]string, 2, 2+len(m.Labels))
	parts[0], parts[1] = string(m.UID), m.ResourceVersion
	if len(m.Labels) > 0 {
		sorted := slices.Sorted(maps.Keys(m.Labels))
		for _, key := range sorted {
			parts = append(parts, m.Labels[key])
		}
		keys = labelKeys.one([]byte(strings.Join(sorted, separator)), &sorted)
	}
	own = strings.Join(parts, separator)
	return own, keys, strings.Count(own, separator) == len(parts)-1
}

// identify fills in what the metadata say, but for labels.
func (s *small) identify(m *metav1.ObjectMeta) {
	uid, own, _ := strings.Cut(s.own, separator)
	version, _, _ := strings.Cut(own, separator)
	*m = *s.rest
	m.Namespace, m.Name, m.CreationTimestamp = *s.namespace, s.name, s.created
	m.UID, m.ResourceVersion = types.UID(uid), version
}

// labels is a new map, nil for none.
func (s *small) labels() map[string]string {
	if s.keys == nil {
		return nil
	}
	labels := make(map[string]string, len(*s.keys))
	values := strings.Split(s.own, separator)[2:]
	for i, key := range *s.keys {
		labels[key] = values[i]
	}
	return labels
}

// common reports whether many Pods can have the same status: one without addresses, times and containers.
func common(s *corev1.PodStatus) bool {
	timed := func(c corev1.PodCondition) bool { return !c.LastTransitionTime.IsZero() || !c.LastProbeTime.IsZero() }
	return s.PodIP == "" && len(s.PodIPs) == 0 && s.StartTime == nil && len(s.ContainerStatuses) == 0 &&
		len(s.InitContainerStatuses) == 0 &&
		!slices.ContainsFunc(s.Conditions, timed)
}

// whole returns the Pod. It shares what the small one holds, like any object in a cache: it must not be changed.
func (s *small) whole() *corev1.Pod {
	pod := &corev1.Pod{}
	s.into(pod)
	return pod
}

func (s *small) into(pod *corev1.Pod) {
	s.identify(&pod.ObjectMeta)
	pod.Spec = *s.spec
	pod.Labels = s.labels()
	if s.status != nil {
		pod.Status = *s.status
		return
	}
	pod.Status = corev1.PodStatus{}
	// What was encoded here can be decoded: an error would be one of the generated code.
	if err := pod.Status.Unmarshal(s.encoded); err != nil {
		panic(err)
	}
}

// GetObjectMeta is part of metav1.ObjectMetaAccessor, by which the informer asks for name and version, and for
// nothing else: there are no labels.
func (s *small) GetObjectMeta() metav1.Object {
	m := &metav1.ObjectMeta{}
	s.identify(m)
	return m
}

// GetObjectKind is part of runtime.Object. Like other objects in a cache it does not say its kind.
func (*small) GetObjectKind() schema.ObjectKind { return schema.EmptyObjectKind }

// DeepCopyObject is part of runtime.Object.
func (s *small) DeepCopyObject() runtime.Object {
	kept := *s
	kept.rest = s.rest.DeepCopy()
	return &kept
}

// mostShared bounds the values of one kind that are kept to be shared. Beyond it all are forgotten and collected again:
// then Pods with equal parts do not share them, and that is all.
const mostShared = 4 << 10

// parts are equal parts of Pods, by their encoding.
type parts[T any] struct {
	mu    sync.Mutex
	known map[string]*T
}

var (
	specs     parts[corev1.PodSpec]
	statuses  parts[corev1.PodStatus]
	metadata  parts[metav1.ObjectMeta]
	owners    parts[[]metav1.OwnerReference]
	labelKeys parts[[]string]
	texts     parts[string]
)

// rest is the metadata without what a small Pod keeps itself: in one piece of memory for all Pods that have it in
// common, which those being deleted and those with annotations have not.
func rest(m metav1.ObjectMeta) *metav1.ObjectMeta {
	m.Namespace, m.Name, m.ResourceVersion, m.UID, m.CreationTimestamp, m.Labels = "", "", "", "", metav1.Time{}, nil
	if len(m.Annotations) > 0 || m.DeletionTimestamp != nil {
		m.OwnerReferences = sharedOwners(m.OwnerReferences)
		m.GenerateName, m.Annotations = sharedText(m.GenerateName), sharedTexts(m.Annotations)
		return &m
	}
	// who appends to one Pod's shall not write into all
	m.Finalizers, m.OwnerReferences = slices.Clip(m.Finalizers), slices.Clip(m.OwnerReferences)
	encoded, err := m.Marshal()
	if err != nil {
		return &m
	}
	return metadata.one(encoded, &m)
}

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

// longestText is in bytes: longer ones are rarely the same in two Pods.
const longestText = 256

// sharedText is the same text, in one piece of memory for many Pods.
func sharedText(text string) string {
	if text == "" || len(text) > longestText {
		return text
	}
	return *texts.one([]byte(text), &text)
}

// sharedTexts are the same entries of a map, in texts that many Pods have in common: a template's annotations are
// those of all its Pods.
func sharedTexts(of map[string]string) map[string]string {
	if len(of) == 0 {
		return of
	}
	kept := make(map[string]string, len(of))
	for key, value := range of {
		kept[sharedText(key)] = sharedText(value)
	}
	return kept
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
