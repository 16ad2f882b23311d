package observer

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
)

// story is a sequence of events, a second apart unless it waits.
type story struct {
	checker *Checker
	version uint64
	now     time.Time
}

func begin(o Options) *story {
	s := &story{checker: NewChecker(o), now: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)}
	s.apply(collaSet(4))
	s.apply(revision("web-1", "web:1"))
	s.apply(revision("web-2", "web:2"))
	s.apply(contextOf(0, 1, 2, 3, 4, 5, 6))
	s.apply(maxUnavailable("1"))
	for i := range 4 {
		s.apply(aPod(i))
	}
	return s
}

func (s *story) apply(obj metav1.Object) { s.event(obj, false) }

func (s *story) event(obj metav1.Object, deleted bool) {
	s.version++
	s.now = s.now.Add(time.Second)
	s.checker.Apply(Event{ResourceVersion: s.version, Time: s.now, Deleted: deleted, Object: obj})
}

// blindly is apply for what happened while a watch was broken.
func (s *story) blindly(obj metav1.Object) {
	s.version++
	s.now = s.now.Add(time.Second)
	s.checker.Apply(Event{ResourceVersion: s.version, Time: s.now, Blind: true, Object: obj})
}

func (s *story) invariants() []Invariant {
	var found []Invariant
	for _, v := range s.checker.Report().Violations {
		found = append(found, v.Invariant)
	}
	return found
}

func collaSet(replicas int32) *appsv1alpha1.CollaSet {
	return &appsv1alpha1.CollaSet{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", UID: "set"},
		Spec: appsv1alpha1.CollaSetSpec{Replicas: ptr.To(replicas),
			Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}},
		Status: appsv1alpha1.CollaSetStatus{
			UpdatedRevision: "web-1", Replicas: replicas, ReadyReplicas: replicas, UpdatedReplicas: replicas,
			UpdatedReadyReplicas: replicas,
			Conditions:           []metav1.Condition{{Type: appsv1alpha1.CollaSetReady, Status: metav1.ConditionTrue}},
		},
	}
}

func replacedBy(id string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Labels[appsv1alpha1.ReplacePairNewIDLabel] = id }
}

func inPlaceOf(name string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Labels[appsv1alpha1.ReplacePairOriginNameLabel] = name }
}

func namespace(changes ...func(*corev1.Namespace)) *corev1.Namespace {
	n := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "default"}}
	for _, change := range changes {
		change(n)
	}
	return n
}

func leaving(n *corev1.Namespace) { n.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)} }

// deletedRevision has a revision deleted that is in use, after what happened to the namespace.
func deletedRevision(before ...*corev1.Namespace) func(*story) {
	return func(s *story) {
		for _, n := range before {
			s.apply(n)
		}
		s.event(revision("web-1", "web:1"), true)
	}
}

// ownedBySet are the owner references of what the CollaSet owns.
func ownedBySet() []metav1.OwnerReference {
	return []metav1.OwnerReference{{Kind: "CollaSet", Name: "web", UID: "set", Controller: ptr.To(true)}}
}

func revision(name, image string) *appsv1.ControllerRevision {
	return &appsv1.ControllerRevision{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(name), OwnerReferences: ownedBySet()},
		Data: runtime.RawExtension{Raw: fmt.Appendf(nil,
			`{"spec":{"template":{"metadata":{"labels":{"app":"web"}},"spec":{"containers":[{"name":"main","image":%q,"resources":{}}]}}}}`, image)},
	}
}

// contextOf has an entry of the CollaSet for each ID.
func contextOf(ids ...int) *appsv1alpha1.ResourceContext {
	c := &appsv1alpha1.ResourceContext{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", UID: "context"}}
	for _, id := range ids {
		c.Spec.Contexts = append(c.Spec.Contexts, appsv1alpha1.ContextDetail{ID: id, Data: map[string]string{
			appsv1alpha1.ContextOwner: "web", appsv1alpha1.ContextRevision: "web-1",
		}})
	}
	return c
}

func maxUnavailable(value string) *appsv1alpha1.PodTransitionRule {
	v := intstr.Parse(value)
	return &appsv1alpha1.PodTransitionRule{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "budget", UID: "rule"},
		Spec: appsv1alpha1.PodTransitionRuleSpec{
			Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}},
			Rules: []appsv1alpha1.TransitionRule{{Name: "available",
				TransitionRuleDefinition: appsv1alpha1.TransitionRuleDefinition{
					AvailablePolicy: &appsv1alpha1.AvailableRule{MaxUnavailableValue: &v},
				}}},
		},
		Status: appsv1alpha1.PodTransitionRuleStatus{Grants: grants("1", 0, 1, 2, 3), Available: 4},
	}
}

// grants are those of a request for so many Pods.
func grants(request string, pods ...int) (all []appsv1alpha1.PodGrant) {
	for _, i := range pods {
		all = append(all, appsv1alpha1.PodGrant{
			PodName: fmt.Sprintf("web-%d", i), PodUID: types.UID(fmt.Sprintf("uid-%d", i)), Stage: appsv1alpha1.StagePreCheck,
			Operations: []appsv1alpha1.GrantedOperation{{ID: operatorID, Type: updateType, Request: request}},
		})
	}
	return all
}

// available is the same rule with other bounds.
func available(policy appsv1alpha1.AvailableRule) *appsv1alpha1.PodTransitionRule {
	r := maxUnavailable("0")
	r.Spec.Rules[0].AvailablePolicy = &policy
	return r
}

func minAvailable(value string) *appsv1alpha1.PodTransitionRule {
	v := intstr.Parse(value)
	return available(appsv1alpha1.AvailableRule{MinAvailableValue: &v})
}

func adaptive(coeff, pow string) *appsv1alpha1.AvailableAdaptivePolicy {
	return &appsv1alpha1.AvailableAdaptivePolicy{ExpFunc: &appsv1alpha1.ExpFunc{Coeff: coeff, Pow: pow}}
}

// outAfter takes Pods out of service until the wanted number is out, long after the rule and the number wanted changed.
func outAfter(r *appsv1alpha1.PodTransitionRule, replicas int32, out int) func(*story) {
	return func(s *story) {
		s.apply(r)
		s.apply(collaSet(replicas))
		s.now = s.now.Add(time.Minute)
		for i := range out {
			s.apply(aPod(i, offline))
		}
	}
}

// The rules of inZones: so many domains may be open at a time.
var (
	noZone = available(appsv1alpha1.AvailableRule{Topology: &appsv1alpha1.TopologyBudget{TopologyKey: "zone",
		MaxDisruptedDomains: ptr.To[int32](0)}})
	oneZone  = available(appsv1alpha1.AvailableRule{Topology: &appsv1alpha1.TopologyBudget{TopologyKey: "zone"}})
	twoZones = available(appsv1alpha1.AvailableRule{Topology: &appsv1alpha1.TopologyBudget{TopologyKey: "zone",
		MaxDisruptedDomains: ptr.To[int32](2)}})
)

// inZones takes Pods out of service, one as each of them says, long after the rule came, if there is one. There are
// nodes of zones a, b and c, two of each, and two without a zone.
func inZones(r *appsv1alpha1.PodTransitionRule, pods ...func(*corev1.Pod)) func(*story) {
	return func(s *story) {
		for _, zone := range []string{"a", "b", "c"} {
			s.apply(aNode(zone+"-1", zone))
			s.apply(aNode(zone+"-2", zone))
		}
		s.apply(aNode("bare-1", ""))
		s.apply(aNode("bare-2", ""))
		if r != nil {
			s.apply(r)
		}
		s.now = s.now.Add(time.Minute)
		for i, is := range pods {
			s.apply(aPod(i, on("a-1"), is, offline))
		}
	}
}

// Rules by which so many groups may be open at a time.
var (
	oneGroup  = available(appsv1alpha1.AvailableRule{Groups: &appsv1alpha1.GroupBudget{GroupKey: "group", SetKey: "set"}})
	twoGroups = available(appsv1alpha1.AvailableRule{Groups: &appsv1alpha1.GroupBudget{GroupKey: "group", SetKey: "set",
		MaxDisruptedGroups: ptr.To[int32](2)}})
)

// of puts a Pod into a group of a set.
func of(set, group string) func(*corev1.Pod) { return labelled("set", set, "group", group) }

// aNode is in a zone, or in none.
func aNode(name, zone string) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)}}
	if zone != "" {
		n.Labels = map[string]string{"zone": zone}
	}
	return n
}

func on(node string) func(*corev1.Pod) { return func(p *corev1.Pod) { p.Spec.NodeName = node } }

// aPod is number i of the CollaSet, serving, changed by with.
func aPod(i int, with ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: fmt.Sprintf("web-%d", i), UID: types.UID(fmt.Sprintf("uid-%d", i)),
			Labels: map[string]string{"app": "web", controlLabel: "true", instanceIDLabel: fmt.Sprint(i),
				revisionLabel: "web-1", serviceAvailable: "1"},
			OwnerReferences: ownedBySet(),
		},
		Spec: corev1.PodSpec{
			ReadinessGates: []corev1.PodReadinessGate{{ConditionType: serviceReady}},
			Containers:     []corev1.Container{{Name: "main", Image: "web:1"}},
		},
	}
	setCondition(p, serviceReady, corev1.ConditionTrue)
	setCondition(p, corev1.PodReady, corev1.ConditionTrue)
	for _, w := range with {
		w(p)
	}
	return p
}

func setCondition(p *corev1.Pod, t corev1.PodConditionType, status corev1.ConditionStatus) {
	for i := range p.Status.Conditions {
		if p.Status.Conditions[i].Type == t {
			p.Status.Conditions[i].Status = status
			return
		}
	}
	p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: t, Status: status})
}

func gateClosed(p *corev1.Pod) { setCondition(p, serviceReady, corev1.ConditionFalse) }
func notReady(p *corev1.Pod)   { setCondition(p, corev1.PodReady, corev1.ConditionFalse) }
func offline(p *corev1.Pod)    { gateClosed(p); notReady(p) }
func asking(p *corev1.Pod) {
	labelled(operatingPrefix+operatorID, "1", operationTypePrefix+operatorID, updateType)(p)
}
func operating(p *corev1.Pod) {
	asking(p)
	labelled(preCheckedPrefix+operatorID, "1", permissionPrefix+updateType, "1", operatePrefix+operatorID, "1")(p)
}
func newImage(p *corev1.Pod) { p.Spec.Containers[0].Image = "web:2" }
func terminating(p *corev1.Pod) {
	p.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)}
}

// labelled sets labels: keys and values in turn. without takes labels off.
func labelled(pairs ...string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		for i := 0; i < len(pairs); i += 2 {
			p.Labels[pairs[i]] = pairs[i+1]
		}
	}
}

func without(keys ...string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		for _, k := range keys {
			delete(p.Labels, k)
		}
	}
}

func id(v string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Labels[instanceIDLabel] = v }
}

func uid(v types.UID) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.UID = v }
}

func controlledService(s *story, value string, with ...func(*corev1.Service)) {
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web",
		Labels: map[string]string{controlLabel: value}}}
	for _, w := range with {
		w(service)
	}
	s.apply(service)
}

func endpointSlice(ready ...string) *discoveryv1.EndpointSlice {
	slice := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{
		Namespace: "default", Name: "web-x", Labels: map[string]string{discoveryv1.LabelServiceName: "web"},
	}}
	for _, u := range ready {
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{
			Conditions: discoveryv1.EndpointConditions{Ready: ptr.To(true)},
			TargetRef:  &corev1.ObjectReference{Kind: "Pod", UID: types.UID(u)},
		})
	}
	return slice
}

func TestChecker(t *testing.T) {
	cases := map[string]struct {
		options Options
		events  func(*story)
		want    []Invariant
	}{
		"a rollout that takes one Pod after the other is fine": {events: func(s *story) {
			for i := range 4 {
				s.apply(aPod(i, offline))
				s.apply(aPod(i, offline, operating))
				s.apply(aPod(i, offline, operating, newImage))
				s.apply(aPod(i, notReady, newImage))
				s.apply(aPod(i, newImage))
			}
		}},
		"a second Pod out of service where one is allowed breaks the budget": {want: []Invariant{Budget},
			events: func(s *story) {
				s.apply(aPod(0, offline))
				s.apply(aPod(1, offline))
			}},
		"a Pod in whose place another one serves takes no room": {events: func(s *story) {
			s.apply(aPod(0, replacedBy("4")))
			s.apply(aPod(4, inPlaceOf("web-0")))
			s.apply(aPod(1, offline))
			s.apply(aPod(0, replacedBy("4"), offline))
			s.event(aPod(0, replacedBy("4"), offline, terminating), true)
		}},
		"a Pod that is out takes no room from when another one serves in its place": {events: func(s *story) {
			s.apply(aPod(0, replacedBy("4"), offline))
			s.apply(aPod(4, inPlaceOf("web-0"), notReady))
			s.apply(aPod(4, inPlaceOf("web-0")))
			s.apply(aPod(1, offline))
		}},
		"a Pod in whose place another one serves takes no room of a rule that has changed, either": {events: func(s *story) {
			s.apply(aPod(0, replacedBy("4")))
			s.apply(aPod(4, inPlaceOf("web-0")))
			s.apply(aPod(0, replacedBy("4"), offline))
			changed := maxUnavailable("2")
			changed.Generation = 2
			s.apply(changed)
			s.event(aPod(0, replacedBy("4"), offline, terminating), true)
			s.now = s.now.Add(time.Minute)
			s.apply(aPod(1, offline))
			s.apply(aPod(2, offline))
		}},
		"a Pod and its replacement that both serve are one, also where more are wanted than have served": {
			events: func(s *story) {
				s.apply(collaSet(5))
				s.apply(aPod(4, inPlaceOf("web-0")))
				s.apply(aPod(1, offline))
				s.apply(aPod(1))
				s.apply(aPod(0, replacedBy("4"), offline))
				s.apply(aPod(2, offline))
			}},
		"a Pod and its replacement that are both out take the room of one": {want: []Invariant{Budget},
			events: func(s *story) {
				s.apply(aPod(0, replacedBy("4"), offline))
				s.apply(aPod(4, inPlaceOf("web-0")))
				s.apply(aPod(4, inPlaceOf("web-0"), offline))
				s.apply(aPod(1, offline))
			}},
		"the replacement alone says so": {events: func(s *story) {
			s.apply(aPod(0, replacedBy("4")))
			s.apply(aPod(4, inPlaceOf("web-0")))
			s.apply(aPod(0))
			s.apply(aPod(0, offline))
			s.apply(aPod(1, offline))
		}},
		"a Pod that is back serves for its replacement": {events: func(s *story) {
			s.apply(aPod(0, replacedBy("4"), offline))
			s.apply(aPod(4, inPlaceOf("web-0")))
			s.apply(aPod(4, inPlaceOf("web-0"), offline))
			s.apply(aPod(0, replacedBy("4")))
			s.apply(aPod(1, offline))
		}},
		"a Pod whose replacement does not serve takes room": {want: []Invariant{Budget}, events: func(s *story) {
			s.apply(aPod(0, replacedBy("4")))
			s.apply(aPod(4, inPlaceOf("web-0"), notReady))
			s.apply(aPod(1, offline))
			s.apply(aPod(0, replacedBy("4"), offline))
		}},
		"a Pod is out until it is Ready again, not only until its gate is open": {want: []Invariant{Budget},
			events: func(s *story) {
				s.apply(aPod(0, offline))
				s.apply(aPod(0, notReady))
				s.apply(aPod(1, offline))
			}},
		"a Pod that is deleted while it serves, where nobody does so by force": {want: []Invariant{Traffic},
			options: Options{Graceful: true}, events: func(s *story) {
				s.apply(aPod(0, terminating))
			}},
		"a Pod that is gone at once": {want: []Invariant{Traffic}, options: Options{Graceful: true}, events: func(s *story) {
			s.event(aPod(0), true)
		}},
		"a Pod that is taken out of service, then deleted": {options: Options{Graceful: true}, events: func(s *story) {
			s.apply(aPod(0, offline))
			s.apply(aPod(0, offline, operating))
			s.apply(aPod(0, offline, operating, terminating))
			s.event(aPod(0, offline, operating, terminating), true)
		}},
		"a Pod that is deleted while it is down anyway": {options: Options{Graceful: true}, events: func(s *story) {
			s.apply(aPod(0, notReady))
			s.apply(aPod(0, notReady, terminating))
		}},
		"a terminating Pod is out of service": {want: []Invariant{Budget}, events: func(s *story) {
			s.apply(aPod(0, terminating))
			s.apply(aPod(1, offline))
		}},
		"a Pod that is gone and still wanted counts": {want: []Invariant{Budget}, events: func(s *story) {
			s.apply(aPod(0, terminating))
			s.event(aPod(0, terminating), true)
			s.apply(aPod(1, offline))
		}},
		"a Pod that is gone and no longer wanted does not count": {events: func(s *story) {
			s.apply(collaSet(3))
			s.apply(aPod(0, offline))
			s.apply(aPod(0, offline, terminating))
			s.event(aPod(0, offline, terminating), true)
			s.apply(aPod(1, offline))
		}},
		"a Pod that never served is not out of service by our doing": {events: func(s *story) {
			s.apply(collaSet(5))
			s.apply(aPod(4, offline))
			s.apply(aPod(0, offline))
		}},
		"a Pod that fails by itself is not out of service by our doing": {events: func(s *story) {
			s.apply(aPod(0, notReady))
			s.apply(aPod(1, offline))
		}},
		"a percentage is of the wanted Pods and rounds up": {want: []Invariant{Budget}, events: func(s *story) {
			s.apply(maxUnavailable("30%")) // 2 of 4
			s.apply(aPod(0, offline))
			s.apply(aPod(1, offline))
			s.apply(aPod(2, offline))
		}},
		"Pods beyond the wanted ones may go under minAvailable": {events: outAfter(minAvailable("2"), 2, 2)},
		"but no more than those": {want: []Invariant{Budget},
			events: outAfter(minAvailable("2"), 2, 3)},
		"maxUnavailable gives no such credit": {want: []Invariant{Budget},
			events: outAfter(maxUnavailable("1"), 2, 2)},
		"a maximum computed from the wanted Pods is rounded up": {events: outAfter(
			available(appsv1alpha1.AvailableRule{MaxUnavailablePolicy: adaptive("0.3", "")}), 4, 2)},
		"and holds": {want: []Invariant{Budget},
			events: outAfter(available(appsv1alpha1.AvailableRule{MaxUnavailablePolicy: adaptive("", "0.5")}), 4, 3)},
		"a minimum computed from the wanted Pods is rounded down": {events: outAfter(
			available(appsv1alpha1.AvailableRule{MinAvailablePolicy: adaptive("0.9", "")}), 4, 1)},
		"and holds beside the others": {want: []Invariant{Budget},
			events: outAfter(available(appsv1alpha1.AvailableRule{MaxUnavailablePolicy: adaptive("", ""),
				MinAvailablePolicy: adaptive("0.9", "")}), 4, 2)},
		"what is computed is whole when it is whole in decimal": {want: []Invariant{Budget},
			events: outAfter(available(appsv1alpha1.AvailableRule{MaxUnavailablePolicy: adaptive("0.25", "1")}), 4, 2)},
		"a topology budget alone bounds no number that is judged": {events: outAfter(oneZone, 4, 4)},
		"a second topology domain where one is allowed breaks the budget": {want: []Invariant{Budget},
			events: inZones(oneZone, on("a-1"), on("b-1"))},
		"a second Pod in the domain that is open does not": {events: inZones(oneZone, on("a-1"), on("a-2"))},
		"nor does a second domain where two are allowed":   {events: inZones(twoZones, on("a-1"), on("b-1"))},
		"but a third": {want: []Invariant{Budget}, events: inZones(twoZones, on("a-1"), on("b-1"), on("c-1"))},
		"no domain at all, where none is allowed": {want: []Invariant{Budget, Budget},
			events: inZones(noZone, on("a-1"), on("a-2"))},
		"nodes without the label are one domain": {events: inZones(oneZone, on("bare-1"), on("bare-2"))},
		"and it is one like any other": {want: []Invariant{Budget},
			events: inZones(oneZone, on("bare-1"), on("a-1"))},
		"a node that is not known is not judged": {events: inZones(oneZone, on("a-1"), on("x-1"))},
		"a Pod without a node is in no domain":   {events: inZones(oneZone, on("a-1"), on(""))},
		"a Pod that is down already is in a domain that is down already": {events: func(s *story) {
			inZones(oneZone, on("a-1"))(s)
			s.apply(aPod(1, on("b-1"), notReady))
			s.apply(aPod(1, on("b-1"), offline))
		}},
		"a Pod that waits opens no domain": {events: func(s *story) {
			inZones(oneZone)(s)
			s.apply(aPod(0, on("a-1"), asking))
			s.apply(aPod(1, on("b-1"), offline))
		}},
		"a Pod that is back has its domain closed": {events: func(s *story) {
			inZones(oneZone, on("a-1"))(s)
			s.apply(aPod(0, on("a-1")))
			s.apply(aPod(1, on("b-1"), offline))
		}},
		"a Pod that somebody deletes opens no domain of the rule's": {events: func(s *story) {
			inZones(oneZone)(s)
			s.apply(aPod(0, on("a-1"), terminating))
			s.apply(aPod(1, on("b-1"), offline))
		}},
		"but one that an operation deletes does": {want: []Invariant{Budget}, events: func(s *story) {
			inZones(oneZone, on("a-1"))(s)
			s.apply(aPod(0, on("a-1"), offline, operating, terminating))
			s.apply(aPod(1, on("b-1"), offline))
		}},
		"a Pod that its owner has freed from the rule opens none either": {events: func(s *story) {
			free := func(p *corev1.Pod) { p.Annotations = map[string]string{skipRules: `{"skipRules":["available"]}`} }
			inZones(oneZone, free)(s)
			s.apply(aPod(1, on("b-1"), offline))
		}},
		"a node that has just come to another domain is not judged": {events: func(s *story) {
			inZones(oneZone, on("a-1"))(s)
			s.apply(aNode("a-2", "b"))
			s.apply(aPod(1, on("a-2"), offline))
		}},
		"but one that came to it before is": {want: []Invariant{Budget}, events: func(s *story) {
			inZones(oneZone, on("a-1"))(s)
			s.apply(aNode("a-2", "b"))
			s.now = s.now.Add(time.Minute)
			s.apply(aPod(1, on("a-2"), offline))
		}},
		"a second group where one is allowed breaks the budget": {want: []Invariant{Budget},
			events: inZones(oneGroup, of("shop", "0"), of("shop", "1"))},
		"a second Pod of the group that is open does not": {
			events: inZones(oneGroup, of("shop", "0"), of("shop", "0"))},
		"a group of another set is another": {want: []Invariant{Budget},
			events: inZones(oneGroup, of("shop", "0"), of("mail", "0"))},
		"Pods without the set's label are of one set": {
			events: inZones(oneGroup, labelled("group", "0"), labelled("group", "0"))},
		"nor does a second group where two are allowed": {
			events: inZones(twoGroups, of("shop", "0"), of("shop", "1"))},
		"but a third group": {want: []Invariant{Budget},
			events: inZones(twoGroups, of("shop", "0"), of("shop", "1"), of("shop", "2"))},
		"a Pod without the label is a group of its own": {want: []Invariant{Budget},
			events: inZones(oneGroup, labelled("set", "shop"), labelled("set", "shop"))},
		"a group whose Pod is back is closed": {events: func(s *story) {
			inZones(oneGroup, of("shop", "0"))(s)
			s.apply(aPod(0, on("a-1"), of("shop", "0")))
			s.apply(aPod(1, on("a-1"), of("shop", "1"), offline))
		}},
		"what was out when the budget came is not the budget's": {events: func(s *story) {
			s.apply(maxUnavailable("4"))
			inZones(nil, on("a-1"))(s)
			s.apply(oneZone)
			s.now = s.now.Add(time.Minute)
			s.apply(aPod(1, on("b-1"), offline))
		}},
		"what was under way when the allowance shrank is judged by what held before": {events: func(s *story) {
			s.apply(maxUnavailable("2"))
			s.apply(aPod(0, offline))
			s.apply(maxUnavailable("1"))
			s.apply(aPod(1, offline))
		}},
		"a smaller allowance holds for what comes later": {want: []Invariant{Budget}, events: func(s *story) {
			s.apply(maxUnavailable("2"))
			s.apply(aPod(0, offline))
			s.apply(maxUnavailable("1"))
			s.now = s.now.Add(10 * time.Second)
			s.apply(aPod(1, offline))
		}},
		"Pods of a CollaSet that wants none count themselves, or no percentage of them could ever go": {events: func(
			s *story) {
			s.apply(maxUnavailable("20%"))
			s.apply(collaSet(0))
			s.now = s.now.Add(time.Minute)
			for i := range 4 {
				s.apply(aPod(i, offline))
				s.event(aPod(i, offline, terminating), true)
			}
		}},
		"but one after the other": {want: []Invariant{Budget}, events: func(s *story) {
			s.apply(maxUnavailable("20%"))
			s.apply(collaSet(0))
			s.now = s.now.Add(time.Minute)
			s.apply(aPod(0, offline))
			s.apply(aPod(1, offline))
		}},
		"nor is any of them missing when it is gone, whoever never served": {events: func(s *story) {
			s.apply(collaSet(5))
			s.apply(aPod(4, notReady))
			s.apply(collaSet(0))
			s.now = s.now.Add(time.Minute)
			for i := range 4 {
				s.apply(aPod(i, offline))
				s.event(aPod(i, offline, terminating), true)
			}
		}},
		"a CollaSet that is being deleted wants none": {want: []Invariant{Budget}, events: func(s *story) {
			s.apply(maxUnavailable("50%"))
			for i := range 2 {
				s.event(aPod(i), true)
			}
			s.apply(changed(func(set *appsv1alpha1.CollaSet) { set.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)} }))
			s.now = s.now.Add(time.Minute)
			s.apply(aPod(2, offline)) // 1 of 2
			s.apply(aPod(3, offline))
		}},
		"a namespace that is being deleted promises nothing": {events: func(s *story) {
			s.apply(namespace(leaving))
			s.event(revision("web-1", "web:1"), true)
			for i := range 4 {
				s.apply(aPod(i, terminating))
			}
		}},
		"one that is there does": {want: []Invariant{Revision}, events: deletedRevision(namespace())},
		"so does the next one of the same name": {want: []Invariant{Revision},
			events: deletedRevision(namespace(leaving), namespace())},
		"a CollaSet has not lost what one of the same name had before it": {options: Options{Without: []Invariant{InstanceID,
			Revision}}, events: func(s *story) {
			second := func(p *corev1.Pod) { p.UID += "-2"; p.Name += "-2"; p.OwnerReferences[0].UID = "set-2" }
			s.apply(maxUnavailable("2"))
			s.event(collaSet(4), true)
			s.apply(changed(func(set *appsv1alpha1.CollaSet) { set.UID = "set-2" }))
			for i := range 4 {
				s.event(aPod(i), true)
				if i < 3 { // the fourth has yet to become Ready for the first time
					s.apply(aPod(i, second))
				}
			}
			s.now = s.now.Add(time.Minute)
			s.apply(aPod(0, second, offline))
			s.apply(aPod(1, second, offline))
		}},
		"but what itself had": {want: []Invariant{Budget}, events: func(s *story) {
			s.apply(maxUnavailable("2"))
			s.now = s.now.Add(time.Minute)
			s.event(aPod(3), true)
			s.apply(aPod(4, notReady))
			s.apply(aPod(0, offline))
			s.apply(aPod(1, offline))
		}},
		"a Pod that somebody takes from its CollaSet is not missing": {events: func(s *story) {
			s.apply(aPod(3, func(p *corev1.Pod) { p.OwnerReferences = nil }))
			s.apply(aPod(0, offline))
		}},
		"a Pod that its owner has freed from the rule may go": {events: func(s *story) {
			s.apply(aPod(0, offline))
			s.apply(aPod(1, offline,
				func(p *corev1.Pod) { p.Annotations = map[string]string{skipRules: `{"skipRules":["available"]}`} }))
		}},
		"two live Pods with one instance ID": {want: []Invariant{InstanceID}, events: func(s *story) {
			s.apply(collaSet(5))
			s.apply(aPod(4, id("1")))
		}},
		"an instance ID goes on to the next Pod once its Pod is terminating": {events: func(s *story) {
			s.apply(aPod(1, terminating))
			s.apply(aPod(4, id("1")))
		}},
		"a new image on a Ready Pod": {want: []Invariant{Traffic}, events: func(s *story) {
			s.apply(aPod(0, newImage))
		}},
		"a new image on a Pod whose gate is closed and that is still Ready": {want: []Invariant{Traffic},
			events: func(s *story) {
				s.apply(aPod(0, gateClosed))
				s.apply(aPod(0, gateClosed, newImage))
			}},
		"a new image on a Ready Pod without the protocol": {options: Options{Direct: true}, events: func(s *story) {
			s.apply(aPod(0, newImage))
		}},
		"a new image on a Pod that still gets traffic": {want: []Invariant{Traffic}, events: func(s *story) {
			controlledService(s, "true")
			s.apply(endpointSlice("uid-0", "uid-1"))
			s.apply(aPod(0, offline))
			s.apply(aPod(0, offline, newImage))
		}},
		"a Service that is being deleted promises nothing any more": {events: func(s *story) {
			controlledService(s, "true", func(service *corev1.Service) { service.DeletionTimestamp = &metav1.Time{Time: s.now} })
			s.apply(endpointSlice("uid-0"))
			s.apply(aPod(0, offline))
			s.apply(aPod(0, offline, newImage))
		}},
		"a new image on a Pod that gets no traffic any more": {events: func(s *story) {
			controlledService(s, "true")
			s.apply(endpointSlice("uid-0", "uid-1"))
			s.apply(aPod(0, offline))
			s.apply(endpointSlice("uid-1"))
			s.apply(aPod(0, offline, newImage))
		}},
		"a Service that is not under control promises nothing": {events: func(s *story) {
			controlledService(s, "false")
			s.apply(endpointSlice("uid-0"))
			s.apply(aPod(0, offline))
			s.apply(aPod(0, offline, newImage))
		}},
		"an operation deletes a Pod that is still Ready": {want: []Invariant{Traffic, Traffic}, events: func(s *story) {
			s.apply(aPod(0, operating))
			s.event(aPod(0, operating), true)
		}},
		"somebody without an operation deletes a Ready Pod": {events: func(s *story) {
			s.event(aPod(0), true)
		}},
		"a Pod that is out of service and does not move": {want: []Invariant{Stuck}, events: func(s *story) {
			s.apply(aPod(0, offline, operating))
			s.checker.Tick(s.now.Add(59 * time.Second))
			require.Empty(t, s.checker.Report().Violations)
			s.checker.Tick(s.now.Add(61 * time.Second))
			s.checker.Tick(s.now.Add(62 * time.Second)) // said once
		}},
		"a Pod that is out of service and moves": {events: func(s *story) {
			s.apply(aPod(0, offline))
			s.now = s.now.Add(50 * time.Second)
			s.apply(aPod(0, offline, operating))
			s.checker.Tick(s.now.Add(50 * time.Second))
		}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			s := begin(tc.options)
			s.now = s.now.Add(time.Minute)
			tc.events(s)
			if diff := cmp.Diff(tc.want, s.invariants()); diff != "" {
				t.Errorf("violations (-want +got):\n%s\n%v", diff, s.checker.Report().Err())
			}
		})
	}
}

func TestReportTellsOutagesUIDsAndVersions(t *testing.T) {
	s := begin(Options{})
	s.apply(aPod(0, offline))
	s.apply(aPod(0, offline, newImage))
	s.apply(aPod(0, newImage))
	s.event(aPod(1, offline, terminating), true)
	s.apply(aPod(5, id("1"), uid("uid-5")))

	report := s.checker.Report()

	require.NoError(t, report.Err())
	require.Equal(t, 2*time.Second, report.OutOfService["default/web[0]"])
	require.Equal(t, map[string]int{"default/web[0]": 1, "default/web[1]": 2, "default/web[2]": 1, "default/web[3]": 1},
		report.UIDs)
	require.Equal(t, 4, report.PodVersions["uid-0"])
	rule, ok := report.Rule("default", "budget")
	require.True(t, ok)
	require.Equal(t, 1, rule.MaxOut)
	require.Equal(t, 1, rule.Allowed)
	require.Equal(t, 4, rule.Desired)
}

func TestWhatIsLeftOutIsNotJudged(t *testing.T) {
	r := newRecord(&Options{Without: []Invariant{Churn}})
	e := Event{Object: &corev1.Pod{}}
	for _, i := range []Invariant{Churn, Revision} {
		r.check(i, e, false, "broken")
		r.report(i, e, "broken")
	}
	require.Len(t, r.violations, 2)
	require.Equal(t, map[Invariant]int{Revision: 1}, r.checks)
	for _, v := range r.violations {
		require.Equal(t, Revision, v.Invariant)
	}
}
