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
	pod     corev1.Pod // without what is own
	labels  []string   // the keys, sorted
	encoded string     // pod in protobuf
}

// pack returns a Pod as it is kept, with a common of its own. What the Pod points to must not be changed any more.
func pack(pod *corev1.Pod) *Pod {
	m := &pod.ObjectMeta
	own := metav1.ObjectMeta{
		Name: m.Name, UID: m.UID, ResourceVersion: m.ResourceVersion, CreationTimestamp: m.CreationTimestamp,
		DeletionTimestamp: m.DeletionTimestamp, DeletionGracePeriodSeconds: m.DeletionGracePeriodSeconds,
		Annotations: m.Annotations,
	}
	c := &common{labels: slices.Sorted(maps.Keys(m.Labels)), pod: corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: m.Namespace, GenerateName: m.GenerateName, SelfLink: m.SelfLink, Generation: m.Generation,
			Labels: make(map[string]string, len(m.Labels)), ManagedFields: m.ManagedFields,
			// who appends to one Pod's shall not write into all
			OwnerReferences: slices.Clip(m.OwnerReferences), Finalizers: slices.Clip(m.Finalizers),
		},
		Spec: pod.Spec,
	}}
	for _, key := range c.labels {
		c.pod.Labels[key] = ""
		own.Finalizers = append(own.Finalizers, m.Labels[key])
	}
	own.Finalizers, c.pod.Spec.NodeName = append(own.Finalizers, pod.Spec.NodeName), ""
	p := &Pod{common: c, own: encode(&own)}
	if isCommon(&pod.Status) {
		c.pod.Status = pod.Status
	} else {
		p.status = encode(&pod.Status)
	}
	c.encoded = encode(&c.pod)
	return p
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
	p.show(pod)
	return pod
}

// unpack makes the Pod.
func (p *Pod) unpack() *corev1.Pod {
	pod, own := p.common.pod, metav1.ObjectMeta{}
	decode(p.own, &own)
	m := &pod.ObjectMeta
	m.Name, m.UID, m.ResourceVersion, m.CreationTimestamp = own.Name, own.UID, own.ResourceVersion, own.CreationTimestamp
	m.DeletionTimestamp, m.DeletionGracePeriodSeconds = own.DeletionTimestamp, own.DeletionGracePeriodSeconds
	m.Annotations, m.Labels = own.Annotations, nil
	if n := len(p.common.labels); n > 0 {
		m.Labels = make(map[string]string, n)
	}
	for i, key := range p.common.labels {
		m.Labels[key] = own.Finalizers[i]
	}
	pod.Spec.NodeName = own.Finalizers[len(p.common.labels)]
	if p.status != "" {
		decode(p.status, &pod.Status)
	}
	return &pod
}

// detectsChanges is set by the variable that turns on client-go's mutation detector, which cannot see whole Pods.
var detectsChanges, _ = strconv.ParseBool(os.Getenv("KUBE_CACHE_MUTATION_DETECTOR"))

// show has Whole return this Pod as long as anyone has it.
func (p *Pod) show(pod *corev1.Pod) {
	p.made = weak.Make(pod)
	if detectsChanges {
		runtime.SetFinalizer(pod, p.mustBeUnchanged)
	}
}

// mustBeUnchanged panics if a reader changed what Whole returned.
func (p *Pod) mustBeUnchanged(pod *corev1.Pod) {
	if now := pack(pod); now.own != p.own || now.status != p.status || now.common.encoded != p.common.encoded {
		panic(fmt.Sprintf("Pod %s/%s is the cache's, and was changed by a reader", pod.Namespace, pod.Name))
	}
}

// GetObjectMeta is part of metav1.ObjectMetaAccessor, by which the informer asks for name and version.
func (p *Pod) GetObjectMeta() metav1.Object { return &p.Whole().ObjectMeta }

// encode returns a part of a Pod in protobuf. An error would be one of the generated code, as with decode.
func encode(part interface{ Marshal() ([]byte, error) }) string {
	encoded, err := part.Marshal()
	if err != nil {
		panic(err)
	}
	return string(encoded)
}

func decode(encoded string, part interface{ Unmarshal([]byte) error }) {
	if err := part.Unmarshal([]byte(encoded)); err != nil {
		panic(err)
	}
}

// workloads are what Pods that are kept have in common, by its encoding.
type workloads struct {
	mu    sync.Mutex
	known map[string]weak.Pointer[common]
}

// pack returns a Pod as it is kept, with what it has in common with others in the same memory as theirs. Whole returns
// a shallow copy of the given one until that is collected.
func (w *workloads) pack(pod *corev1.Pod) *Pod {
	p := pack(pod)
	p.show(&corev1.Pod{ObjectMeta: pod.ObjectMeta, Spec: pod.Spec, Status: pod.Status})
	w.mu.Lock()
	defer w.mu.Unlock()
	if known := w.known[p.common.encoded].Value(); known != nil {
		p.common = known
		return p
	}
	if w.known == nil {
		w.known = map[string]weak.Pointer[common]{}
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

// Of are these Pods as a cache keeps them, for tests. What they point to must not be changed any more.
func Of(pods ...corev1.Pod) []*Pod {
	kept := make([]*Pod, len(pods))
	for i := range pods {
		kept[i] = pack(&pods[i])
	}
	return kept
}
