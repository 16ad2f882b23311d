package plugin

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
	"kusionstack.io/kuperator/internal/collaset/setplan"
	"kusionstack.io/kuperator/internal/insight"
	"kusionstack.io/kuperator/internal/revision"
)

// way is how a Pod gets to the wanted revision.
type way string

const (
	wayInPlace  way = "inPlace"
	wayRecreate way = "recreate"
	wayReplace  way = "replace"
	// wayRefused: InPlaceOnly, and it is not possible.
	wayRefused way = "refused"
	// wayThere: the Pod is at the revision already.
	wayThere way = "updated"
	// wayHeld: the update strategy keeps the Pod where it is.
	wayHeld way = "held"
	// wayScaledIn: fewer Pods are wanted, and the CollaSet would choose this one now.
	wayScaledIn way = "scaledIn"
)

// outline is what the forecasts of all kinds have.
type outline struct {
	ObservedAt time.Time `json:"observedAt"`
	// New is true if there is no such object yet.
	New bool `json:"new,omitempty"`
	// TemplateChanges is true if the object's revision changes.
	TemplateChanges bool   `json:"templateChanges"`
	Policy          string `json:"policy"`
	// Strategy says in words which Pods are chosen.
	Strategy string `json:"strategy"`
	// Paused is true if nothing of it begins.
	Paused bool `json:"paused,omitempty"`
	// Ways count Pods by how they get there.
	Ways map[way]int `json:"ways"`
	// Fields force Pods to be re-created: those of all Pods that are.
	Fields []string `json:"fields,omitempty"`
	// Pods are in the order in which their updates begin; those that do not change follow.
	Pods []forecastPod `json:"pods"`
	// Budgets are the rules that decide how many go at a time.
	Budgets []insight.Budget `json:"budgets,omitempty"`
	// Warnings are those of admission.
	Warnings []string      `json:"warnings,omitempty"`
	Gaps     []insight.Gap `json:"gaps,omitempty"`
}

// forecast is what becomes of a CollaSet's Pods. It is one of the JSON forms of plan.
type forecast struct {
	outline
	CollaSet insight.Ref `json:"collaSet"`
	// ReplicasFrom and ReplicasTo are the wanted numbers of Pods.
	ReplicasFrom int32 `json:"replicasFrom"`
	ReplicasTo   int32 `json:"replicasTo"`
}

// forecastPod is one Pod of a forecast.
type forecastPod struct {
	Name     string `json:"name"`
	Revision string `json:"revision,omitempty"`
	Way      way    `json:"way"`
	// Order is its place among those whose update begins, from 1; 0 for the others.
	Order int `json:"order,omitempty"`
	// Fields force it to be re-created.
	Fields []string `json:"fields,omitempty"`
}

// material is what a forecast is made of.
type material struct {
	now      time.Time
	set      *appsv1alpha1.CollaSet // as it will be
	pods     []corev1.Pod
	wanted   *revision.Data
	contents map[string]*revision.Data
	can      revision.Capabilities
	wantedIs string // name of the revision that means the same as wanted, or newRevision
}

// newRevision stands for the name that the revision will get.
const newRevision = "(new)"

// sameRevision is the name of a revision that means what is wanted; newRevision if there is none.
func sameRevision(wanted *revision.Data, contents map[string]*revision.Data) string {
	found := newRevision
	for name, data := range contents {
		if data.Same(wanted) && (found == newRevision || name < found) {
			found = name
		}
	}
	return found
}

// foretell has collaset-controller's own decisions choose and order the Pods.
func foretell(m material) (ways map[way]int, fields []string, pods []forecastPod) {
	ways = map[way]int{}
	at := map[string]*corev1.Pod{}
	for i := range m.pods {
		at[m.pods[i].Name] = &m.pods[i]
	}
	order, removed := m.order()
	add := func(pod *corev1.Pod, p forecastPod) {
		p.Name, p.Revision = pod.Name, pod.Labels[appsv1.ControllerRevisionHashLabelKey]
		ways[p.Way]++
		pods, fields = append(pods, p), append(fields, p.Fields...)
		delete(at, pod.Name)
	}
	place := 0
	for _, name := range order {
		pod := at[name]
		if pod == nil {
			continue
		}
		p := m.way(pod)
		if p.Way != wayRefused {
			place++
			p.Order = place
		}
		add(pod, p)
	}
	for i := range m.pods {
		pod := &m.pods[i]
		if at[pod.Name] == nil {
			continue
		}
		p := forecastPod{Way: wayHeld}
		switch {
		case slices.Contains(removed, pod.Name):
			p.Way = wayScaledIn
		case pod.Labels[appsv1.ControllerRevisionHashLabelKey] == m.wantedIs:
			p.Way = wayThere
		case m.way(pod).Way == wayRefused && !m.holds(pod):
			p = m.way(pod)
		}
		add(pod, p)
	}
	slices.Sort(fields)
	return ways, slices.Compact(fields), pods
}

// holds reports whether updates are by label and the Pod lacks it.
func (m *material) holds(pod *corev1.Pod) bool {
	rolling := m.set.Spec.UpdateStrategy.RollingUpdate
	_, included := pod.Labels[appsv1alpha1.UpdateIncludedLabel]
	return rolling != nil && (rolling.ByLabel != nil && !included || rolling.ByPartition != nil)
}

// way is how one Pod gets to the wanted revision.
func (m *material) way(pod *corev1.Pod) forecastPod {
	return wayBy(m.set.Spec.UpdateStrategy.PodUpdatePolicy,
		m.forcing(pod.Labels[appsv1.ControllerRevisionHashLabelKey]))
}

// wayBy is how a Pod is updated under a policy, given the fields that keep it from being changed in place.
func wayBy(policy appsv1alpha1.PodUpdatePolicy, forcing []string) forecastPod {
	switch {
	case policy == appsv1alpha1.PodUpdateReplace:
		return forecastPod{Way: wayReplace}
	case policy == appsv1alpha1.PodUpdateRecreate:
		return forecastPod{Way: wayRecreate}
	case len(forcing) == 0:
		return forecastPod{Way: wayInPlace}
	case policy == appsv1alpha1.PodUpdateInPlaceOnly:
		return forecastPod{Way: wayRefused, Fields: forcing}
	}
	return forecastPod{Way: wayRecreate, Fields: forcing}
}

// forcing are the fields that keep a Pod of this revision from being changed in place. A claim that differs from its
// template is kept unless the policy says otherwise.
func (m *material) forcing(from string) []string {
	data := m.contents[from]
	if data == nil {
		return []string{fmt.Sprintf("its revision %q is not known any more", from)}
	}
	change := revision.Explain(data, m.wanted, m.can)
	policy := m.set.Spec.ScaleStrategy.PersistentVolumeClaimRetentionPolicy
	if change.OnlyClaimsForce() &&
		(policy == nil || policy.WhenTemplateChanged != appsv1alpha1.DeletePersistentVolumeClaim) {
		return nil
	}
	return change.Forcing
}

// order are the Pods whose updates begin, in that order, and those that scale-in removes: the decision is asked, what
// it begins is taken as done, and it is asked again.
func (m *material) order() (updated, removed []string) {
	s := m.snapshot()
	for range len(m.pods) + 1 {
		plan := setplan.Decide(&s)
		var begun []string
		for _, b := range plan.Begins {
			switch b.Request.Type {
			case podops.TypeUpdate:
				begun = append(begun, b.Pod.Name())
			case podops.TypeScaleIn:
				if !slices.Contains(removed, b.Pod.Name()) {
					removed = append(removed, b.Pod.Name())
				}
			}
		}
		if len(begun) == 0 {
			return updated, removed
		}
		updated = append(updated, begun...)
		for i := range s.Pods {
			if slices.Contains(begun, s.Pods[i].Name()) {
				s.Pods[i].Revision, s.Pods[i].Available = s.UpdatedRevision, true
			}
		}
		for i := range s.Entries {
			if at := slices.IndexFunc(s.Pods, func(p setplan.Pod) bool { return p.ID == s.Entries[i].ID }); at >= 0 {
				s.Entries[i].Data = entryOf(m.set.Name, s.Pods[at].Revision)
			}
		}
	}
	return updated, removed
}

func entryOf(set, at string) map[string]string {
	return map[string]string{appsv1alpha1.ContextOwner: set, appsv1alpha1.ContextRevision: at}
}

// snapshot is what collaset-controller would decide on if the change were made now, with nothing else under way.
// Replace has its Pods in the order of Recreate.
func (m *material) snapshot() setplan.Snapshot {
	spec := &m.set.Spec
	replicas := int(ptr.Deref(spec.Replicas, 0))
	s := setplan.Snapshot{
		Generation: m.set.Generation + 1,
		Mode:       setplan.Mode{Now: m.now, Protocol: true, Limits: setplan.DefaultLimits()},
		Identity:   setplan.Identity{Name: m.set.Name},
		Scale:      setplan.Scale{Replicas: replicas},
		Strategy:   setplan.Strategy{MaxSurge: 1, Policy: appsv1alpha1.PodUpdateRecreate},
		History: setplan.History{
			UpdatedRevision: m.wantedIs, SpecRevision: m.wantedIs,
			CurrentRevision: m.set.Status.CurrentRevision, Returned: m.set.Status.CurrentRevision == m.wantedIs,
			Revisions: map[string]setplan.Difference{m.wantedIs: {}},
		},
	}
	for name := range m.contents {
		s.Revisions[name] = setplan.Difference{Forcing: m.forcing(name)}
	}
	if spec.UpdateStrategy.PodUpdatePolicy == appsv1alpha1.PodUpdateInPlaceOnly {
		s.Policy = appsv1alpha1.PodUpdateInPlaceOnly
	}
	if rolling := spec.UpdateStrategy.RollingUpdate; rolling != nil {
		s.ByLabel = rolling.ByLabel != nil
		if rolling.ByPartition != nil && rolling.ByPartition.Partition != nil {
			if n, err := intstr.GetScaledValueFromIntOrPercent(rolling.ByPartition.Partition, replicas, true); err == nil {
				s.Partition = n
			}
		}
	}
	for i := range m.pods {
		p := m.pod(&m.pods[i])
		s.Pods = append(s.Pods, p)
		if p.ID != setplan.NoID && p.Live() {
			s.Entries = append(s.Entries, setplan.Entry{ID: p.ID, Data: entryOf(m.set.Name, p.Revision)})
		}
	}
	return s
}

// pod is what the order of updates depends on.
func (m *material) pod(pod *corev1.Pod) setplan.Pod {
	p := setplan.Pod{
		View: withoutUpdate(podops.Read(pod)), ID: setplan.NoID,
		Revision: pod.Labels[appsv1.ControllerRevisionHashLabelKey], Created: pod.CreationTimestamp.Time,
		Service: setplan.Service{Phase: pod.Status.Phase},
		Marks:   setplan.Marks{Selected: true},
	}
	if id, err := strconv.Atoi(pod.Labels[appsv1alpha1.InstanceIDLabel]); err == nil && id >= 0 {
		p.ID = id
	}
	_, p.Included = pod.Labels[appsv1alpha1.UpdateIncludedLabel]
	p.Available = p.View.ServiceAvailable()
	for _, c := range pod.Status.Conditions {
		switch {
		case c.Status != corev1.ConditionTrue:
		case c.Type == corev1.PodReady:
			p.ReadySince = c.LastTransitionTime.Time
		case c.Type == corev1.PodScheduled:
			p.Scheduled = true
		}
	}
	return p
}

// withoutUpdate is the Pod without a present update of its CollaSet: that goes on to the new revision, and begins first
// because the Pod is out of service or not.
func withoutUpdate(v podops.View) podops.View {
	if v.Labels[podops.OperationTypePrefix+"/"+setplan.OperatorID] != podops.TypeUpdate {
		return v
	}
	kept := map[string]string{}
	for key, value := range v.Labels {
		if !strings.HasSuffix(key, "/"+setplan.OperatorID) {
			kept[key] = value
		}
	}
	v.Labels = kept
	return v
}

// strategyText says which Pods the update strategy chooses.
func strategyText(set *appsv1alpha1.CollaSet) string {
	if texts := chosen(set); len(texts) > 0 {
		return texts[0]
	}
	return "all Pods"
}
