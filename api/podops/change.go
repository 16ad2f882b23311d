package podops

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Change is a difference of Pod metadata, to be written as one patch. The zero Change changes nothing.
type Change struct {
	// Labels to set (value) or remove (nil).
	Labels map[string]*string
	// Annotations to set (value) or remove (nil).
	Annotations map[string]*string
	// Finalizers is the complete new list if FinalizersChanged.
	Finalizers        []string
	FinalizersChanged bool
}

// IsZero reports whether there is nothing to write.
func (c Change) IsZero() bool {
	return len(c.Labels) == 0 && len(c.Annotations) == 0 && !c.FinalizersChanged
}

// Apply returns the view as it will be once the change is written; v and its
// maps stay as they are.
func (c Change) Apply(v View) View {
	v.Labels = applied(v.Labels, c.Labels)
	v.Annotations = applied(v.Annotations, c.Annotations)
	if c.FinalizersChanged {
		v.Finalizers = c.Finalizers
	}
	return v
}

// Apply returns the view as it will be once the step is written with the status
// that goes with it.
func (s Step) Apply(v View) View {
	v = s.Change.Apply(v)
	if s.ServiceReady != "" {
		v.ServiceReady = s.ServiceReady
		if s.ServiceReady == corev1.ConditionFalse && v.Gate {
			v.Ready = false
		}
	}
	return v
}

// Then returns the change together with next, which was computed from the changed Pod.
func (c Change) Then(v View, next Change) Change {
	after := next.Apply(c.Apply(v))
	merged := diffLabels(v.Labels, after.Labels)
	merged.Annotations = diff(v.Annotations, after.Annotations)
	if c.FinalizersChanged || next.FinalizersChanged {
		merged.Finalizers, merged.FinalizersChanged = after.Finalizers, true
	}
	return merged
}

func applied(m map[string]string, d map[string]*string) map[string]string {
	if len(d) == 0 {
		return m
	}
	out := maps.Clone(m)
	if out == nil {
		out = map[string]string{}
	}
	for k, val := range d {
		if val == nil {
			delete(out, k)
		} else {
			out[k] = *val
		}
	}
	return out
}

func diffLabels(before, after map[string]string) Change {
	return Change{Labels: diff(before, after)}
}

func diff(before, after map[string]string) map[string]*string {
	var d map[string]*string
	put := func(k string, val *string) {
		if d == nil {
			d = map[string]*string{}
		}
		d[k] = val
	}
	for k, val := range after {
		if old, ok := before[k]; !ok || old != val {
			put(k, &val)
		}
	}
	for k := range before {
		if _, ok := after[k]; !ok {
			put(k, nil)
		}
	}
	return d
}

type metadataPatch struct {
	UID             string             `json:"uid,omitempty"`
	ResourceVersion string             `json:"resourceVersion,omitempty"`
	Labels          map[string]*string `json:"labels,omitempty"`
	Annotations     map[string]*string `json:"annotations,omitempty"`
	Finalizers      *[]string          `json:"finalizers,omitempty"`
}

func (c Change) metadata(v View) metadataPatch {
	m := metadataPatch{UID: string(v.UID), ResourceVersion: v.ResourceVersion, Labels: c.Labels,
		Annotations: c.Annotations}
	if c.FinalizersChanged {
		list := slices.Clone(c.Finalizers)
		if list == nil {
			list = []string{}
		}
		m.Finalizers = &list
	}
	return m
}

// MergePatch returns the change as a JSON merge patch (RFC 7386) of the Pod from which v was read, with its UID and
// resourceVersion as preconditions.
func (c Change) MergePatch(v View) []byte {
	return mustMarshal(map[string]any{"metadata": c.metadata(v)})
}

type conditionPatch struct {
	Type               string       `json:"type"`
	Status             string       `json:"status"`
	LastTransitionTime *metav1.Time `json:"lastTransitionTime,omitempty"`
	Reason             string       `json:"reason"`
	Message            string       `json:"message"`
}

// StatusPatch returns the step as a strategic merge patch for the Pod's status subresource. The API server keeps
// changes of metadata made there, so labels and readiness change in one write, and no client observes one without the
// other. A step that takes the Pod offline also writes Ready=False, which the kubelet would only do later.
//
// more are further conditions to write. One with a zero LastTransitionTime keeps its time.
func (s Step) StatusPatch(v View, now metav1.Time, more ...corev1.PodCondition) []byte {
	patch := map[string]any{"metadata": s.metadata(v)}
	var conditions []conditionPatch
	if s.ServiceReady != "" {
		reason, message := "Online", "the Pod may serve"
		if s.ServiceReady == corev1.ConditionFalse {
			reason, message = "Offline", s.outOfService(v)
		}
		conditions = append(conditions, conditionPatch{ServiceReadyCondition, string(s.ServiceReady), &now, reason, message})
		if s.ServiceReady == corev1.ConditionFalse && v.Gate && v.Ready {
			conditions = append(conditions, conditionPatch{string(corev1.PodReady), string(corev1.ConditionFalse), &now,
				"ReadinessGatesNotReady", "the readiness gate " + ServiceReadyCondition + " is False"})
		}
	}
	for _, c := range more {
		written := conditionPatch{string(c.Type), string(c.Status), nil, c.Reason, c.Message}
		if !c.LastTransitionTime.IsZero() {
			written.LastTransitionTime = &c.LastTransitionTime
		}
		conditions = append(conditions, written)
	}
	if len(conditions) > 0 {
		patch["status"] = map[string]any{"conditions": conditions}
	}
	return mustMarshal(patch)
}

// outOfService says which operation needs the Pod out of service.
func (s Step) outOfService(v View) string {
	if o, needed := OfflineFor(s.Apply(v)); needed {
		return fmt.Sprintf("operation %q of %q needs the Pod out of service", o.Type, o.ID)
	}
	return "an operation needs the Pod out of service"
}

// mustMarshal encodes what this package built itself of strings and maps, which cannot fail.
func mustMarshal(val any) []byte {
	b, err := json.Marshal(val)
	if err != nil {
		panic(err)
	}
	return b
}
