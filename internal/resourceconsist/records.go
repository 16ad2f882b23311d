package resourceconsist

import (
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"kusionstack.io/kuperator/api/podops"
	"kusionstack.io/kuperator/internal/resourceconsist/traffic"
)

// records holds what this process has seen of each Pod over time: delays are counted from one's own observation. It is
// safe for concurrent use. A record goes with its Pod, or when nothing is left in it; losing it all, at a restart, only
// lengthens delays.
type records struct {
	mu   sync.Mutex
	pods map[types.NamespacedName]*record
}

type record struct {
	uid types.UID
	// outSince is when the Pod was first seen out of service, zero while it is in service.
	outSince time.Time
	// idleSince is when a backend was first seen not to serve the Pod, by employer and adapter.
	idleSince map[string]time.Time
	waits     []traffic.Wait
	// toldBroken is the value of the annotation that was already reported as broken.
	toldBroken string
}

func newRecords() *records {
	return &records{pods: map[types.NamespacedName]*record{}}
}

// saw takes in the newest state of a Pod and returns since when it is out of service, zero if it is in service.
func (r *records) saw(pod *corev1.Pod, view podops.View, now time.Time) time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !traffic.OutOfService(view) {
		r.change(pod, func(rec *record) { rec.outSince = time.Time{} })
		return time.Time{}
	}
	rec := r.of(pod)
	if rec.outSince.IsZero() {
		rec.outSince = now
	}
	return rec.outSince
}

// idle takes in whether a backend serves the Pod and returns since when it does not, zero if it does.
func (r *records) idle(pod *corev1.Pod, backend string, serving bool, now time.Time) time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	if serving {
		r.change(pod, func(rec *record) { delete(rec.idleSince, backend) })
		return time.Time{}
	}
	rec := r.of(pod)
	since, ok := rec.idleSince[backend]
	if !ok {
		since = now
		if rec.idleSince == nil {
			rec.idleSince = map[string]time.Time{}
		}
		rec.idleSince[backend] = since
	}
	return since
}

// waits takes in what a Pod waits for now.
func (r *records) waits(pod *corev1.Pod, waits []traffic.Wait) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(waits) == 0 {
		r.change(pod, func(rec *record) { rec.waits = nil })
		return
	}
	r.of(pod).waits = waits
}

// tellBroken reports whether this value of the annotation has not been reported yet, and takes it as reported.
func (r *records) tellBroken(pod *corev1.Pod, value string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	rec := r.of(pod)
	told := rec.toldBroken == value
	rec.toldBroken = value
	return !told
}

// forget drops the record of a Pod.
func (r *records) forget(key types.NamespacedName) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.pods, key)
}

// waiting counts the waits of all Pods by reason.
func (r *records) waiting() map[traffic.Reason]int {
	r.mu.Lock()
	defer r.mu.Unlock()
	count := map[traffic.Reason]int{}
	for _, rec := range r.pods {
		for _, w := range rec.waits {
			count[w.Reason]++
		}
	}
	return count
}

// has reports whether there is a record of a Pod.
func (r *records) has(key types.NamespacedName) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.pods[key] != nil
}

// change takes something off the record of a Pod, if there is one, and drops a record with nothing left in it: most
// Pods serve, and need none.
func (r *records) change(pod *corev1.Pod, by func(*record)) {
	key := types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}
	if r.pods[key] == nil {
		return
	}
	rec := r.of(pod)
	if by(rec); rec.outSince.IsZero() && len(rec.idleSince) == 0 && len(rec.waits) == 0 && rec.toldBroken == "" {
		delete(r.pods, key)
	}
}

// of is the record of a Pod, made if there is none of it.
func (r *records) of(pod *corev1.Pod) *record {
	key := types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}
	rec, ok := r.pods[key]
	if ok && rec.uid == pod.UID {
		return rec
	}
	rec = &record{uid: pod.UID}
	r.pods[key] = rec
	return rec
}
