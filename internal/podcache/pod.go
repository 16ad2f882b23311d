package podcache

import (
	"fmt"
	"maps"
	"os"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"weak"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
)

// Pod is a Pod as it is kept. It always stands for the same state: when the Pod has changed, another one is kept.
type Pod struct {
	common *common
	// own is what this Pod alone has, as metadata in protobuf. In place of the finalizers are the values of its labels, in
	// the order of common.labels, and its node.
	own string
	// status is the status in protobuf, "" if it is in common.
	status string

	mu   sync.Mutex
	made weak.Pointer[corev1.Pod] // what Whole returned last
}

// common is what the Pods of a workload have in common, in one piece of memory for all of them.
type common struct {
	pod     corev1.Pod // without what is own; its labels have no values
	labels  []string   // the keys, sorted
	encoded string     // pod in protobuf
}

// Pack returns a Pod as it is kept. What the given one points to must not be changed any more.
func Pack(pod *corev1.Pod) *Pod {
	c := &common{pod: corev1.Pod{ObjectMeta: pod.ObjectMeta, Spec: pod.Spec}, labels: slices.Sorted(maps.Keys(pod.Labels))}
	var own metav1.ObjectMeta
	copyOwn(&own, &pod.ObjectMeta)
	m := &c.pod.ObjectMeta
	copyOwn(m, &metav1.ObjectMeta{})
	m.Labels = maps.Clone(pod.Labels)
	for _, key := range c.labels {
		m.Labels[key] = ""
		own.Finalizers = append(own.Finalizers, pod.Labels[key])
	}
	own.Finalizers, c.pod.Spec.NodeName = append(own.Finalizers, pod.Spec.NodeName), ""
	// who appends to one Pod's shall not write into all
	m.OwnerReferences, m.Finalizers = slices.Clip(m.OwnerReferences), slices.Clip(m.Finalizers)
	p := &Pod{common: c, own: encode(&own)}
	if isCommon(&pod.Status) {
		c.pod.Status = pod.Status
	} else {
		p.status = encode(&pod.Status)
	}
	c.encoded = encode(&c.pod)
	return p
}

// copyOwn copies of metadata what is a Pod's own and is encoded as it is.
func copyOwn(to, from *metav1.ObjectMeta) {
	to.Name, to.UID, to.ResourceVersion, to.Annotations = from.Name, from.UID, from.ResourceVersion, from.Annotations
	to.CreationTimestamp, to.DeletionTimestamp = from.CreationTimestamp, from.DeletionTimestamp
	to.DeletionGracePeriodSeconds = from.DeletionGracePeriodSeconds
}

// encode returns a part of a Pod in protobuf. An error would be one of the generated code, as where it is decoded.
func encode(part interface{ Marshal() ([]byte, error) }) string {
	encoded, err := part.Marshal()
	utilruntime.Must(err)
	return string(encoded)
}

// isCommon reports whether many Pods can have the same status: one without addresses, times and containers.
func isCommon(s *corev1.PodStatus) bool {
	timed := func(c corev1.PodCondition) bool { return !c.LastTransitionTime.IsZero() || !c.LastProbeTime.IsZero() }
	return s.PodIP == "" && len(s.PodIPs) == 0 && s.StartTime == nil && len(s.ContainerStatuses) == 0 &&
		len(s.InitContainerStatuses) == 0 && !slices.ContainsFunc(s.Conditions, timed)
}

// Whole returns the Pod, the same one as long as anyone has it. Like any object in a cache it must not be changed.
func (p *Pod) Whole() *corev1.Pod {
	p.mu.Lock()
	defer p.mu.Unlock()
	if pod := p.made.Value(); pod != nil {
		return pod
	}
	pod := p.unpack()
	p.made = weak.Make(pod)
	if detectsChanges {
		runtime.SetFinalizer(pod, p.mustBeUnchanged)
	}
	return pod
}

// unpack makes the Pod.
func (p *Pod) unpack() *corev1.Pod {
	pod, own := p.common.pod, metav1.ObjectMeta{}
	utilruntime.Must(own.Unmarshal([]byte(p.own)))
	copyOwn(&pod.ObjectMeta, &own)
	pod.Labels = maps.Clone(pod.Labels)
	for i, key := range p.common.labels {
		pod.Labels[key] = own.Finalizers[i]
	}
	pod.Spec.NodeName = own.Finalizers[len(p.common.labels)]
	if p.status != "" {
		utilruntime.Must(pod.Status.Unmarshal([]byte(p.status)))
	}
	return &pod
}

// detectsChanges is set by the variable that turns on client-go's mutation detector, which cannot see whole Pods.
var detectsChanges, _ = strconv.ParseBool(os.Getenv("KUBE_CACHE_MUTATION_DETECTOR"))

// mustBeUnchanged panics if a reader changed what Whole returned.
func (p *Pod) mustBeUnchanged(pod *corev1.Pod) {
	if now := Pack(pod); now.own != p.own || now.status != p.status || now.common.encoded != p.common.encoded {
		panic(fmt.Sprintf("Pod %s/%s is the cache's, and was changed by a reader", pod.Namespace, pod.Name))
	}
}

// GetObjectMeta is part of metav1.ObjectMetaAccessor, by which the informer asks for name and version.
func (p *Pod) GetObjectMeta() metav1.Object { return &p.Whole().ObjectMeta }

// workloads are what Pods that are kept have in common, by its encoding.
type workloads struct {
	mu    sync.Mutex
	known map[string]weak.Pointer[common]
}

func newWorkloads() *workloads { return &workloads{known: map[string]weak.Pointer[common]{}} }

// pack is Pack, with what the Pod has in common with others in the same memory as theirs.
func (w *workloads) pack(pod *corev1.Pod) *Pod {
	p := Pack(pod)
	w.mu.Lock()
	defer w.mu.Unlock()
	if known := w.known[p.common.encoded].Value(); known != nil {
		p.common = known
		return p
	}
	w.known[p.common.encoded] = weak.Make(p.common)
	runtime.AddCleanup(p.common, w.forget, p.common.encoded)
	return p
}

// forget is called when the last Pod with a common is gone.
func (w *workloads) forget(encoded string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.known[encoded].Value() == nil { // and no other has come with an equal one
		delete(w.known, encoded)
	}
}
