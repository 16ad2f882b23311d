package insight

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
)

// SystemNamespace is where the suite is installed if Facts.System does not say otherwise.
const SystemNamespace = "kuperator-system"

// The components that elect a leader, by the names of their Leases.
const (
	CollaSetController        = "collaset-controller"
	PodTransitionController   = "podtransitionrule-controller"
	LifecycleController       = "lifecycle-controller"
	ResourceConsistController = "resourceconsist-controller"
	OperationJobController    = "operationjob-controller"
	PodDecorationController   = "poddecoration-controller"
)

// Controllers are the components that elect a leader.
func Controllers() []string {
	return []string{CollaSetController, PodTransitionController, LifecycleController, ResourceConsistController,
		OperationJobController, PodDecorationController}
}

// Facts are API objects as they were read. They are shared, not copied: nothing in this package changes them.
type Facts struct {
	// Now is the API server's time.
	Now time.Time
	// System is the namespace that the suite is installed in. Empty means SystemNamespace.
	System string
	// Pods are those with the label kusionstack.io/control=true.
	Pods []corev1.Pod
	// CollaSets and Rules are those of the same namespaces.
	CollaSets []appsv1alpha1.CollaSet
	Rules     []appsv1alpha1.PodTransitionRule
	// Jobs are the OperationJobs of the same namespaces.
	Jobs []appsv1alpha1.OperationJob
	// Decorations are the PodDecorations of the same namespaces.
	Decorations []appsv1alpha1.PodDecoration
	// Namespaces are the annotations of the Namespaces that could be read, the suite's own among them, by name.
	Namespaces map[string]map[string]string
	// NamespaceLabels are the labels of the same Namespaces.
	NamespaceLabels map[string]map[string]string
	// Nodes are those that could be read, by name. A nil value is a node that does not exist; no entry means not known.
	Nodes map[string]*corev1.Node
	// Leases are those of the suite's namespace; LeasesKnown is true if they could be listed.
	Leases      []coordinationv1.Lease
	LeasesKnown bool
	// Gaps are what could not be read.
	Gaps []Gap
}

// system is the namespace that the suite is installed in.
func (f *Facts) system() string { return cmp.Or(f.System, SystemNamespace) }

// index is the facts, prepared for questions about many Pods.
type index struct {
	*Facts
	pods       map[types.NamespacedName]*corev1.Pod
	rules      map[string][]podops.Rule // by namespace; in the order of byRule
	sources    map[string][]*appsv1alpha1.PodTransitionRule
	sets       map[types.NamespacedName]*appsv1alpha1.CollaSet
	jobsByID   map[types.NamespacedName]*appsv1alpha1.OperationJob // by namespace and the ID of their operations
	jobsByUID  map[types.UID]*appsv1alpha1.OperationJob
	byName     map[types.NamespacedName]*appsv1alpha1.PodDecoration
	components map[string]Component
	freezes    map[string]*Freeze // by namespace
	cluster    *Freeze
}

func newIndex(f *Facts) *index {
	x := &index{
		Facts: f, pods: make(map[types.NamespacedName]*corev1.Pod, len(f.Pods)),
		rules: map[string][]podops.Rule{}, sources: map[string][]*appsv1alpha1.PodTransitionRule{},
		sets:       make(map[types.NamespacedName]*appsv1alpha1.CollaSet, len(f.CollaSets)),
		jobsByID:   make(map[types.NamespacedName]*appsv1alpha1.OperationJob, len(f.Jobs)),
		jobsByUID:  make(map[types.UID]*appsv1alpha1.OperationJob, len(f.Jobs)),
		byName:     make(map[types.NamespacedName]*appsv1alpha1.PodDecoration, len(f.Decorations)),
		components: map[string]Component{}, freezes: map[string]*Freeze{},
	}
	for i := range f.Pods {
		x.pods[types.NamespacedName{Namespace: f.Pods[i].Namespace, Name: f.Pods[i].Name}] = &f.Pods[i]
	}
	for i := range f.Rules {
		r := &f.Rules[i]
		x.rules[r.Namespace] = append(x.rules[r.Namespace], podops.CompileRule(r))
		x.sources[r.Namespace] = append(x.sources[r.Namespace], r)
	}
	for i := range f.CollaSets {
		x.sets[types.NamespacedName{Namespace: f.CollaSets[i].Namespace, Name: f.CollaSets[i].Name}] = &f.CollaSets[i]
	}
	for i := range f.Jobs {
		job := &f.Jobs[i]
		x.jobsByID[types.NamespacedName{Namespace: job.Namespace, Name: podops.JobOperationID(job.Name)}] = job
		x.jobsByUID[job.UID] = job
	}
	for i := range f.Decorations {
		d := &f.Decorations[i]
		x.byName[types.NamespacedName{Namespace: d.Namespace, Name: d.Name}] = d
	}
	for _, c := range componentsOf(f) {
		x.components[c.Name] = c
	}
	for name, annotations := range f.Namespaces {
		if why, frozen := annotations[podops.FreezeAnnotation]; frozen {
			freeze := ParseFreeze(why)
			freeze.Namespace = name
			x.freezes[name] = &freeze
		}
		if why, frozen := annotations[podops.FreezeClusterAnnotation]; frozen && name == f.system() {
			freeze := ParseFreeze(why)
			freeze.Cluster, freeze.on = true, name
			x.cluster = &freeze
		}
	}
	return x
}

// componentsOf says which controllers lead; nil if Leases are not known.
func componentsOf(f *Facts) []Component {
	if !f.LeasesKnown {
		return nil
	}
	var found []Component
	for _, name := range Controllers() {
		c := Component{Name: name, State: ComponentAbsent}
		for i := range f.Leases {
			if l := &f.Leases[i]; l.Name == name && l.Namespace == f.system() {
				c = componentOf(l, f.Now)
			}
		}
		found = append(found, c)
	}
	return found
}

// leaseSlack is what a Lease may be late beyond its duration before it counts as stale: clocks differ a little.
const leaseSlack = 5 * time.Second

func componentOf(l *coordinationv1.Lease, now time.Time) Component {
	c := Component{Name: l.Name, State: ComponentAbsent}
	if l.Spec.HolderIdentity == nil || *l.Spec.HolderIdentity == "" || l.Spec.RenewTime == nil {
		return c
	}
	c.Holder, _, _ = strings.Cut(*l.Spec.HolderIdentity, "_")
	c.Renewed = timeOf(l.Spec.RenewTime.Time)
	lasts := 15 * time.Second
	if l.Spec.LeaseDurationSeconds != nil {
		lasts = time.Duration(*l.Spec.LeaseDurationSeconds) * time.Second
	}
	c.State = ComponentRunning
	if now.Sub(l.Spec.RenewTime.Time) > lasts+leaseSlack {
		c.State = ComponentStale
	}
	return c
}

// missing is the reason that a component does not run; nil if it runs or nothing is known.
func (x *index) missing(name string) *Reason {
	c, known := x.components[name]
	if !known || c.State == ComponentRunning {
		return nil
	}
	r := &Reason{
		Code: CodeControllerMissing, On: &Ref{Kind: "Lease", Namespace: x.system(), Name: name}, Since: c.Renewed,
		Message: name + " is not running: it has no Lease in " + x.system(),
		Next: "start it, or install it: kubectl -n " + x.system() +
			" get deployment,pods -l app.kubernetes.io/name=" + name,
	}
	if c.State == ComponentStale {
		r.Message = name + " is not running: " + c.Holder + " has stopped renewing its Lease in " + x.system()
	}
	return r
}

// MissingController is the reason that a component does not run; nil if it runs or nothing is known.
func MissingController(f Facts, name string) *Reason { return newIndex(&f).missing(name) }

// surroundings are what the protocol needs beside the Pod.
func (x *index) surroundings(namespace string) podops.Surroundings {
	// What rules say comes from their statuses, with more than the protocol's text has.
	s := podops.Surroundings{Rules: x.rules[namespace], Brief: true}
	if f := x.freezeOf(namespace); f != nil {
		s.Frozen = f.text()
	}
	return s
}

// freezeOf is the freeze that bears on a namespace; nil for none.
func (x *index) freezeOf(namespace string) *Freeze {
	if f := x.freezes[namespace]; f != nil {
		return f
	}
	return x.cluster
}

// ownerOf names the workload of a Pod.
func ownerOf(pod *corev1.Pod) Ref {
	owner := metav1.GetControllerOf(pod)
	if owner == nil {
		return Ref{Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name}
	}
	ref := Ref{Kind: owner.Kind, Namespace: pod.Namespace, Name: owner.Name}
	// A Deployment names its ReplicaSets <deployment>-<hash>, and labels their Pods with the hash.
	if hash := pod.Labels["pod-template-hash"]; owner.Kind == "ReplicaSet" && hash != "" {
		if name, ok := strings.CutSuffix(owner.Name, "-"+hash); ok {
			ref.Kind, ref.Name = "Deployment", name
		}
	}
	return ref
}

// setOf is the CollaSet of a Pod; nil if it has none, or it was not read.
func (x *index) setOf(pod *corev1.Pod) *appsv1alpha1.CollaSet {
	owner := ownerOf(pod)
	if owner.Kind != appsv1alpha1.CollaSetKind {
		return nil
	}
	return x.sets[types.NamespacedName{Namespace: owner.Namespace, Name: owner.Name}]
}

// timeOf is a time for the model: whole seconds, UTC; nil for the zero time.
func timeOf(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	t = t.UTC().Truncate(time.Second)
	return &t
}

// NodesInQuestion are the nodes that may explain why a Pod does not move, sorted: those of Pods that are not Ready or
// are being deleted, and of Pods that should not be Ready any more.
func NodesInQuestion(pods []corev1.Pod) []string {
	names := map[string]bool{}
	for i := range pods {
		pod := &pods[i]
		v := podops.Read(pod)
		if pod.Spec.NodeName != "" && !v.Terminal && (!v.Ready || v.Terminating || podops.Offline(v)) {
			names[pod.Spec.NodeName] = true
		}
	}
	return slices.Sorted(maps.Keys(names))
}

func condition(pod *corev1.Pod, of corev1.PodConditionType) *corev1.PodCondition {
	for i := range pod.Status.Conditions {
		if pod.Status.Conditions[i].Type == of {
			return &pod.Status.Conditions[i]
		}
	}
	return nil
}

func compareRefs(a, b Ref) int {
	return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Kind, b.Kind),
		strings.Compare(a.Name, b.Name))
}

// once leaves out reasons that are there already.
func once(reasons []Reason) []Reason {
	var kept []Reason
	for _, r := range reasons {
		if !slices.ContainsFunc(kept, func(k Reason) bool { return k.Code == r.Code && k.Message == r.Message }) {
			kept = append(kept, r)
		}
	}
	return kept
}
