package observer

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
)

// rest judges the namespace at rest.
func (s *story) rest() { s.checker.AtRest("default", s.now, true) }

// changed is the CollaSet with changes.
func changed(with ...func(*appsv1alpha1.CollaSet)) *appsv1alpha1.CollaSet {
	set := collaSet(4)
	for _, w := range with {
		w(set)
	}
	return set
}

func whenScaled(policy appsv1alpha1.PersistentVolumeClaimRetentionPolicyType) func(*appsv1alpha1.CollaSet) {
	return func(set *appsv1alpha1.CollaSet) {
		set.Spec.ScaleStrategy.PersistentVolumeClaimRetentionPolicy = &appsv1alpha1.PersistentVolumeClaimRetentionPolicy{WhenScaled: policy}
	}
}

// claim is one of an instance ID of the CollaSet.
func claim(name string, id int) *corev1.PersistentVolumeClaim {
	return &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{
		Namespace: "default", Name: name, UID: types.UID(name), GenerateName: "web-data-",
		Labels: map[string]string{controlLabel: "true", instanceIDLabel: fmt.Sprint(id),
			appsv1alpha1.ClaimTemplateNameLabel: "data"},
	}}
}

func mounting(claim string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: "data", VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim},
		}})
	}
}

func written(manager, fields string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.ManagedFields = append(p.ManagedFields, entryOf(manager, fields)) }
}

func entryOf(manager, fields string) metav1.ManagedFieldsEntry {
	return metav1.ManagedFieldsEntry{Manager: manager, Operation: metav1.ManagedFieldsOperationUpdate,
		FieldsV1: metav1.NewFieldsV1(fields)}
}

func image(name string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Spec.Containers[0].Image = name }
}

// restarting has operationjob-controller hold the container's image.
var restarting = written(jobController, `{"f:spec":{"f:containers":{"k:{\"name\":\"main\"}":{"f:image":{}}}}}`)

func cpu(amount string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(amount)}
	}
}

// restartedFor has the container restart for other amounts of a resource.
func restartedFor(of corev1.ResourceName) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.Containers[0].ResizePolicy = []corev1.ContainerResizePolicy{{ResourceName: of,
			RestartPolicy: corev1.RestartContainer}}
	}
}

// replacement is number i, in the place of number origin, by an update.
func replacement(s *story, i, origin int) {
	s.apply(aPod(origin, labelled(appsv1alpha1.ReplacedByReplaceUpdateLabel, "web-2", appsv1alpha1.ToReplaceLabel, "1",
		appsv1alpha1.ReplacePairNewIDLabel, fmt.Sprint(i))))
	s.apply(aPod(i, labelled(appsv1alpha1.ReplacePairOriginNameLabel, fmt.Sprintf("web-%d", origin))))
}

// TestEveryPromiseCanBreak has a history for each way in which a promise breaks, and beside it one in which it is kept.
func TestEveryPromiseCanBreak(t *testing.T) {
	cases := map[string]struct {
		events func(*story)
		want   []Invariant
	}{
		"an operation that no rule has granted": {want: []Invariant{Budget}, events: func(s *story) {
			r := maxUnavailable("1")
			r.Status.Grants = grants("1", 1)
			s.apply(r)
			s.now = s.now.Add(time.Minute)
			s.apply(aPod(0, asking))
			s.apply(aPod(0, offline, operating))
		}},
		"an operation whose grant is for an earlier request": {want: []Invariant{Budget}, events: func(s *story) {
			s.apply(aPod(0, asking))
			s.apply(aPod(0, asking, labelled(operatingPrefix+operatorID, "2", preCheckedPrefix+operatorID, "2",
				permissionPrefix+updateType, "2", preparingPrefix+operatorID, "2"), gateClosed))
		}},
		"an operation while a watch was broken, whose grant may have come and gone": {events: func(s *story) {
			r := maxUnavailable("1")
			r.Status.Grants = nil
			s.blindly(r)
			s.blindly(aPod(0, asking))
			s.blindly(aPod(0, offline, operating))
		}},
		"an operation without a grant after a watch was broken": {want: []Invariant{Budget}, events: func(s *story) {
			r := maxUnavailable("1")
			r.Status.Grants = nil
			s.blindly(r)
			s.now = s.now.Add(10 * time.Second)
			s.apply(aPod(0, asking))
			s.apply(aPod(0, asking, labelled(preCheckedPrefix+operatorID, "1", permissionPrefix+updateType, "1",
				preparingPrefix+operatorID, "1"), gateClosed))
		}},
		"a second Pod out of service after the first went while a watch was broken": {want: []Invariant{Budget},
			events: func(s *story) {
				s.blindly(aPod(0, offline))
				s.apply(aPod(1, offline))
			}},
		"more replacements at a time than maxSurge": {want: []Invariant{Budget}, events: func(s *story) {
			s.apply(changed(func(set *appsv1alpha1.CollaSet) { set.Spec.UpdateStrategy.MaxSurge = ptr.To(intstr.FromInt32(1)) }))
			replacement(s, 4, 0)
			replacement(s, 5, 1)
		}},
		"as many replacements as maxSurge": {events: func(s *story) {
			s.apply(changed(func(set *appsv1alpha1.CollaSet) { set.Spec.UpdateStrategy.MaxSurge = ptr.To(intstr.FromInt32(2)) }))
			replacement(s, 4, 0)
			replacement(s, 5, 1)
		}},
		"more replacements at a time than disruption.maxSurge": {want: []Invariant{Budget}, events: func(s *story) {
			s.apply(changed(func(set *appsv1alpha1.CollaSet) {
				set.Spec.Disruption = &appsv1alpha1.Disruption{MaxSurge: ptr.To(intstr.FromInt32(1))}
			}))
			for i := range 2 {
				s.apply(aPod(i, replacedBy(fmt.Sprint(4+i))))
				s.apply(aPod(4+i, inPlaceOf(fmt.Sprintf("web-%d", i))))
			}
		}},
		"as many replacements as disruption.maxSurge": {events: func(s *story) {
			s.apply(changed(func(set *appsv1alpha1.CollaSet) {
				set.Spec.Disruption = &appsv1alpha1.Disruption{MaxSurge: ptr.To(intstr.FromInt32(2))}
			}))
			for i := range 2 {
				s.apply(aPod(i, replacedBy(fmt.Sprint(4+i))))
				s.apply(aPod(4+i, inPlaceOf(fmt.Sprintf("web-%d", i))))
			}
		}},
		"a second update while the first is not available long enough": {want: []Invariant{Budget}, events: func(s *story) {
			s.apply(changed(func(set *appsv1alpha1.CollaSet) {
				set.Spec.MinReadySeconds, set.Status.UpdatedRevision = 60,
					"web-2"
			}))
			s.apply(aPod(0, offline))
			s.apply(aPod(0, newImage, offline, labelled(revisionLabel, "web-2")))
			s.apply(aPod(0, newImage, labelled(revisionLabel, "web-2"), func(p *corev1.Pod) {
				for i := range p.Status.Conditions {
					p.Status.Conditions[i].LastTransitionTime = metav1.NewTime(s.now)
				}
			}))
			s.apply(aPod(1, asking))
		}},
		"permission to operate on a Pod that is Ready": {want: []Invariant{Traffic}, events: func(s *story) {
			s.apply(aPod(0, gateClosed, operating))
		}},
		"permission to operate on a Pod that a cooperator holds": {want: []Invariant{Traffic}, events: func(s *story) {
			s.apply(aPod(0, offline, operating, func(p *corev1.Pod) { p.Finalizers = []string{protection + "/x"} }))
		}},
		"other resources on a Ready Pod, which restart a container": {want: []Invariant{Traffic}, events: func(s *story) {
			s.apply(aPod(0, cpu("2"), restartedFor(corev1.ResourceCPU)))
		}},
		"other resources on a Ready Pod": {events: func(s *story) {
			s.apply(aPod(0, cpu("2")))
		}},
		"other resources on a Ready Pod, where others restart a container": {events: func(s *story) {
			s.apply(aPod(0, cpu("2"), restartedFor(corev1.ResourceMemory)))
		}},
		"other resources by an autoscaler": {events: func(s *story) {
			s.apply(aPod(0, cpu("2"), restartedFor(corev1.ResourceCPU),
				written("vpa-updater", `{"f:spec":{"f:containers":{"k:{\"name\":\"main\"}":{"f:resources":{}}}}}`)))
		}},
		"the same resources in other words": {events: func(s *story) {
			s.apply(aPod(0, offline))
			s.apply(aPod(0, offline, cpu("1")))
			s.apply(aPod(0, cpu("1")))
			s.apply(aPod(0, cpu("1000m")))
		}},
		"a weight for a Pod that is operated on": {want: []Invariant{Backend}, events: func(s *story) {
			s.apply(aPod(0, offline, operating))
			s.checker.Weigh(Weighing{Pod: versioned(fmt.Sprint(s.version), aPod(0, offline, operating)), Weight: 1, Time: s.now})
		}},
		"an operation on a Pod with a weight": {want: []Invariant{Backend}, events: func(s *story) {
			s.checker.Weigh(Weighing{Pod: versioned("1", aPod(0)), Weight: 1, Time: s.now})
			s.apply(aPod(0, offline, operating))
		}},
		"an operation on a Pod without a weight any more": {events: func(s *story) {
			s.checker.Weigh(Weighing{Pod: versioned("1", aPod(0)), Weight: 1, Time: s.now})
			s.checker.Weigh(Weighing{Pod: versioned("2", aPod(0, offline)), Weight: 0, Time: s.now})
			// told before the watch tells what came before
			s.checker.Weigh(Weighing{Pod: versioned("99", aPod(0)), Weight: 1, Time: s.now})
			s.apply(aPod(0, offline, operating))
		}},
		"an instance ID that another CollaSet of the pool has": {want: []Invariant{InstanceID, InstanceID},
			events: func(s *story) {
				other := collaSet(1)
				other.Name, other.UID, other.Spec.ScaleStrategy.Context = "api", "other", "web"
				s.apply(other)
				s.apply(aPod(7, id("1"), func(p *corev1.Pod) {
					p.OwnerReferences[0].Name, p.OwnerReferences[0].UID = "api",
						"other"
				}))
				s.ignore(Revision) // it has none of its own
			}},
		"an instance ID that the ResourceContext does not give": {want: []Invariant{InstanceID}, events: func(s *story) {
			s.apply(collaSet(5))
			s.apply(aPod(9))
		}},
		"a ResourceContext with an ID twice": {want: []Invariant{InstanceID}, events: func(s *story) {
			s.apply(contextOf(0, 1, 2, 3, 3))
		}},
		"an instance ID given up while its Pod is there": {want: []Invariant{InstanceID}, events: func(s *story) {
			s.apply(aPod(3, terminating))
			s.apply(contextOf(0, 1, 2))
		}},
		"a ResourceContext deleted while Pods have its IDs": {want: []Invariant{InstanceID}, events: func(s *story) {
			for i := range 3 {
				s.event(aPod(i, terminating), true)
			}
			s.event(contextOf(0, 1, 2, 3), true)
		}},
		"an instance ID given up when its Pod is gone": {events: func(s *story) {
			s.event(aPod(3, terminating), true)
			s.apply(contextOf(0, 1, 2))
		}},
		"an instance ID given up while its claim is there and should go": {want: []Invariant{InstanceID},
			events: func(s *story) {
				s.apply(changed(whenScaled(appsv1alpha1.DeletePersistentVolumeClaim)))
				s.apply(claim("data-3", 3))
				s.event(aPod(3, terminating), true)
				s.apply(contextOf(0, 1, 2))
			}},
		"an instance ID given up while its claim is there and stays": {events: func(s *story) {
			s.apply(claim("data-3", 3))
			s.event(aPod(3, terminating), true)
			s.apply(contextOf(0, 1, 2))
		}},
		"a Pod of a revision that does not exist": {want: []Invariant{Revision}, events: func(s *story) {
			s.apply(aPod(0, labelled(revisionLabel, "web-9")))
		}},
		"a revision deleted that a Pod has": {want: []Invariant{Revision}, events: func(s *story) {
			s.apply(aPod(0, labelled(revisionLabel, "web-2")))
			s.event(revision("web-2", "web:2"), true)
		}},
		"a revision deleted that nobody has": {events: func(s *story) {
			s.event(revision("web-2", "web:2"), true)
		}},
		"one Pod too many": {want: []Invariant{Churn}, events: func(s *story) {
			s.apply(aPod(4))
		}},
		"one Pod more than was wanted until just now": {events: func(s *story) {
			s.apply(collaSet(5))
			s.apply(collaSet(4))
			s.apply(aPod(4))
		}},
		"a Pod for one that is terminating": {events: func(s *story) {
			s.apply(aPod(3, terminating))
			s.apply(aPod(4))
		}},
		"a replacement while another Pod has yet to be scaled in": {events: func(s *story) {
			s.apply(collaSet(3))
			s.now = s.now.Add(time.Minute)
			replacement(s, 4, 0)
		}},
		"a second replacement of one Pod": {want: []Invariant{Churn}, events: func(s *story) {
			replacing := contextOf(0, 1, 2, 3, 4, 5)
			for _, i := range []int{4, 5} {
				replacing.Spec.Contexts[i].Data[appsv1alpha1.ContextReplaceOriginPodID] = "0"
			}
			s.apply(replacing)
			s.apply(collaSet(3))
			s.now = s.now.Add(time.Minute)
			for _, i := range []int{4, 5} {
				s.apply(aPod(i, labelled(appsv1alpha1.ReplacePairOriginNameLabel, "web-0")))
			}
		}},
		"a Pod that replaces none while another has yet to be scaled in": {want: []Invariant{Churn}, events: func(s *story) {
			s.apply(collaSet(3))
			s.now = s.now.Add(time.Minute)
			s.apply(aPod(4))
		}},
		"permission without a request": {want: []Invariant{Keys, Keys}, events: func(s *story) {
			s.apply(aPod(0, offline))
			s.apply(aPod(0, offline, operating, without(operatingPrefix+operatorID)))
			s.ignore(Budget)
		}},
		"a Pod that counts as in service and is not Ready": {want: []Invariant{Keys}, events: func(s *story) {
			s.apply(aPod(0, notReady, without(serviceAvailable)))
			s.apply(aPod(0, notReady))
		}},
		"a Pod that counts as in service and is operated on": {want: []Invariant{Keys}, events: func(s *story) {
			s.apply(aPod(0, without(serviceAvailable)))
			s.apply(aPod(0, labelled(operatedPrefix+"x", "1", doneTypePrefix+"x", "t", postCheckPrefix+"x", "1")))
		}},
		"the lifecycle changes an image": {want: []Invariant{Writers}, events: func(s *story) {
			s.apply(aPod(0, written(lifecycleController,
				`{"f:spec":{"f:containers":{"k:{\"name\":\"main\"}":{"f:image":{}}}}}`)))
		}},
		"the lifecycle writes a user's label": {want: []Invariant{Writers}, events: func(s *story) {
			s.apply(aPod(0, written(lifecycleController, `{"f:metadata":{"f:labels":{"f:app":{}}}}`)))
		}},
		"the lifecycle writes what is its own": {events: func(s *story) {
			s.apply(aPod(0, written(lifecycleController,
				`{"f:metadata":{"f:labels":{"f:`+operatePrefix+`x":{}}},"f:status":{"f:conditions":{"k:{\"type\":\"`+serviceReady+
					`\"}":{".":{},"f:status":{}}}}}`)))
		}},
		"the job controller changes an environment": {want: []Invariant{Writers}, events: func(s *story) {
			s.apply(aPod(0, written(jobController,
				`{"f:spec":{"f:containers":{"k:{\"name\":\"main\"}":{"f:env":{}}}}}`)))
		}},
		"the job controller writes a user's annotation": {want: []Invariant{Writers}, events: func(s *story) {
			s.apply(aPod(0, written(jobController, `{"f:metadata":{"f:annotations":{"f:team":{}}}}`)))
		}},
		"the job controller writes a user's label": {want: []Invariant{Writers}, events: func(s *story) {
			s.apply(aPod(0, written(jobController, `{"f:metadata":{"f:labels":{"f:app":{}}}}`)))
		}},
		"the job controller writes what is its own": {events: func(s *story) {
			s.apply(aPod(0, written(jobController,
				`{"f:metadata":{"f:annotations":{"f:`+jobTasks+`":{}},"f:labels":{"f:collaset.kusionstack.io/to-replace":{}}},`+
					`"f:spec":{"f:containers":{"k:{\"name\":\"main\"}":{"f:image":{}}}}}`)))
		}},
		"an annotation of the job controller that another has written since": {events: func(s *story) {
			s.apply(aPod(0, written(jobController, `{"f:metadata":{"f:annotations":{}}}`)))
		}},
		"the CollaSet controller changes a spec": {want: []Invariant{Writers}, events: func(s *story) {
			s.apply(changed(func(set *appsv1alpha1.CollaSet) {
				set.ManagedFields = append(set.ManagedFields, entryOf(collasetController, `{"f:spec":{"f:replicas":{}}}`))
			}))
		}},
		"an object that is too large": {want: []Invariant{Size}, events: func(s *story) {
			s.apply(changed(func(set *appsv1alpha1.CollaSet) { set.Status.Selector = strings.Repeat("x", mostBytes) }))
		}},
		"a write at rest": {want: []Invariant{Quiet}, events: func(s *story) {
			s.checker.Hush("default")
			s.apply(collaSet(4))
			s.checker.Unhush("default")
			s.apply(collaSet(4))
		}},
		"a Pod that waits in a stage and nobody says why": {want: []Invariant{Stuck}, events: func(s *story) {
			s.apply(aPod(0, asking))
			s.checker.Tick(s.now.Add(2 * time.Minute))
		}},
		"a Pod that waits in a stage and a rule says why": {events: func(s *story) {
			s.apply(aPod(0, asking))
			r := maxUnavailable("1")
			r.Status.Details = []appsv1alpha1.TransitionDetail{{Name: "web-0", Stage: appsv1alpha1.StagePreCheck}}
			s.apply(r)
			s.checker.Tick(s.now.Add(2 * time.Minute))
		}},
		"a Pod that was let go a moment ago, after it has waited": {events: letGo(30 * time.Second)},
		"a Pod that was let go and does not move": {want: []Invariant{Stuck},
			events: letGo(90 * time.Second)},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			s := begin(Options{})
			s.now = s.now.Add(time.Minute)
			tc.events(s)
			requireInvariants(t, s, tc.want)
		})
	}
}

// letGo has a Pod wait for two minutes for a rule that reports it, and then for some time without a reason.
func letGo(since time.Duration) func(*story) {
	return func(s *story) {
		s.apply(aPod(0, asking))
		r := maxUnavailable("1")
		r.Status.Details = []appsv1alpha1.TransitionDetail{{Name: "web-0", Stage: appsv1alpha1.StagePreCheck}}
		s.apply(r)
		s.checker.Tick(s.now.Add(2 * time.Minute))
		s.apply(maxUnavailable("1"))
		s.checker.Tick(s.now.Add(2*time.Minute + since))
	}
}

// ignore drops what a history breaks besides.
func (s *story) ignore(unwanted Invariant) {
	r := s.checker.spaces["default"].record
	r.violations = slices.DeleteFunc(r.violations, func(v Violation) bool { return v.Invariant == unwanted })
}

func requireInvariants(t *testing.T, s *story, want []Invariant) {
	t.Helper()
	if diff := cmp.Diff(want, s.invariants()); diff != "" {
		t.Errorf("violations (-want +got):\n%s\n%v", diff, s.checker.Report().Err())
	}
}

// TestEveryPromiseCanBreakAtRest begins with a CollaSet at rest.
func TestEveryPromiseCanBreakAtRest(t *testing.T) {
	cases := map[string]struct {
		events func(*story)
		want   []Invariant
	}{
		"nothing is wrong": {events: func(*story) {}},
		"status counts a Pod too many": {want: []Invariant{Revision}, events: func(s *story) {
			s.apply(changed(func(set *appsv1alpha1.CollaSet) { set.Status.UpdatedReplicas = 3 }))
		}},
		"a Pod is not what its revision says": {want: []Invariant{Revision}, events: func(s *story) {
			s.apply(aPod(0, offline))
			s.apply(aPod(0, offline, newImage))
			s.apply(aPod(0, newImage))
		}},
		"a container restarted by another name of its image": {events: func(s *story) {
			s.apply(aPod(0, offline))
			s.apply(aPod(0, offline, image("web:1@sha256:0"), restarting))
			s.apply(aPod(0, image("web:1@sha256:0"), restarting))
		}},
		"a container restarted by the name of another image": {want: []Invariant{Revision}, events: func(s *story) {
			s.apply(aPod(0, offline))
			s.apply(aPod(0, offline, image("other:1@sha256:0"), restarting))
			s.apply(aPod(0, image("other:1@sha256:0"), restarting))
		}},
		"what others added to a Pod is no difference": {events: func(s *story) {
			s.event(aPod(0, terminating, offline), true)
			s.apply(aPod(0, uid("again"), labelled("mesh", "on"), func(p *corev1.Pod) {
				p.Spec.Containers = append([]corev1.Container{{Name: "proxy", Image: "mesh:1"}}, p.Spec.Containers...)
				p.Spec.Containers[1].TerminationMessagePath = "/dev/termination-log"
			}))
		}},
		"an entry of another revision than its Pod": {want: []Invariant{Revision}, events: func(s *story) {
			c := contextOf(0, 1, 2, 3)
			c.Spec.Contexts[2].Data[appsv1alpha1.ContextRevision] = "web-2"
			s.apply(c)
		}},
		"an entry without a Pod": {want: []Invariant{Orphan}, events: func(s *story) {
			s.apply(contextOf(0, 1, 2, 3, 4))
		}},
		"a Pod without an entry": {want: []Invariant{InstanceID, InstanceID}, events: func(s *story) {
			s.apply(contextOf(0, 1, 2))
		}},
		"a mark that has served": {want: []Invariant{Orphan}, events: func(s *story) {
			c := contextOf(0, 1, 2, 3)
			c.Spec.Contexts[2].Data[appsv1alpha1.ContextPodJustCreate] = "true"
			s.apply(c)
		}},
		"an empty ResourceContext": {want: []Invariant{Orphan}, events: func(s *story) {
			c := contextOf()
			c.Name = "nobody"
			s.apply(c)
		}},
		"an entry of a CollaSet that is gone": {want: []Invariant{Orphan}, events: func(s *story) {
			c := contextOf(0, 1, 2, 3, 4)
			c.Spec.Contexts[4].Data[appsv1alpha1.ContextOwner] = "gone"
			s.apply(c)
		}},
		"a second claim of one ID": {want: []Invariant{Orphan}, events: func(s *story) {
			s.apply(claim("data-0", 0))
			s.apply(claim("data-0-again", 0))
			s.apply(aPod(0, mounting("data-0")))
		}},
		"a claim of an ID that was given up": {want: []Invariant{Orphan}, events: func(s *story) {
			s.apply(changed(whenScaled(appsv1alpha1.DeletePersistentVolumeClaim)))
			s.apply(claim("data-9", 9))
		}},
		"a claim that is kept": {events: func(s *story) {
			s.apply(claim("data-9", 9))
		}},
		"too many revisions": {want: []Invariant{Orphan}, events: func(s *story) {
			s.apply(changed(func(set *appsv1alpha1.CollaSet) { set.Spec.HistoryLimit = ptr.To[int32](1) }))
			s.apply(revision("web-3", "web:3"))
		}},
		"a key of an operation that is over": {want: []Invariant{Keys}, events: func(s *story) {
			s.apply(aPod(0, labelled(undoPrefix+"x", "1")))
		}},
		"a permission of an operation that is over": {want: []Invariant{Keys, Keys}, events: func(s *story) {
			s.apply(aPod(0, labelled(permissionPrefix+"x", "1")))
		}},
		"a Pod in service that still counts as new": {want: []Invariant{Keys}, events: func(s *story) {
			s.apply(aPod(0, labelled(creatingMark, "1")))
		}},
		"half a replacement": {want: []Invariant{Keys}, events: func(s *story) {
			s.apply(aPod(0, labelled(appsv1alpha1.ReplacePairOriginNameLabel, "web-9")))
		}},
		"a replacement that nobody asks for": {want: []Invariant{Keys}, events: func(s *story) {
			s.apply(aPod(0, labelled(appsv1alpha1.ReplacePairNewIDLabel, "9")))
		}},
		"a CollaSet that is not Ready for no reason": {want: []Invariant{Stuck}, events: func(s *story) {
			s.apply(changed(notReadySet))
		}},
		"a CollaSet that says what holds it back": {events: func(s *story) {
			s.apply(changed(notReadySet, func(set *appsv1alpha1.CollaSet) {
				set.Status.Blockers = []appsv1alpha1.Blocker{{Reason: "Partition", Count: 1}}
			}))
		}},
		"status of an old generation": {want: []Invariant{Stuck}, events: func(s *story) {
			s.apply(changed(func(set *appsv1alpha1.CollaSet) { set.Generation = 2 }))
		}},
		"a grant of an operation that is over": {want: []Invariant{Orphan}, events: func(s *story) {
			r := restingRule()
			r.Status.Grants, r.Status.Available = grants("1", 2), 3
			s.apply(r)
		}},
		"a rule that counts wrongly": {want: []Invariant{Revision}, events: func(s *story) {
			r := restingRule()
			r.Status.Available = 3
			s.apply(r)
		}},
		"a rule whose status is old": {want: []Invariant{Stuck}, events: func(s *story) {
			r := restingRule()
			r.Generation = 2
			s.apply(r)
		}},
		"a Pod that waits in a stage": {want: []Invariant{Stuck}, events: func(s *story) {
			s.apply(aPod(0, asking))
		}},
		"more Pods created than are needed": {want: []Invariant{Churn}, events: func(s *story) {
			s.checker.Expect("default", "web", Churns{Created: 1, Deleted: 1})
			for _, u := range []types.UID{"again", "and again"} {
				s.event(aPod(0, terminating, offline), true)
				s.apply(aPod(0, uid(u)))
			}
		}},
		"as many Pods as are needed": {events: func(s *story) {
			s.checker.Expect("default", "web", Churns{Created: 1, Deleted: 1})
			s.event(aPod(0, terminating, offline), true)
			s.apply(aPod(0, uid("again")))
		}},
		"status that grows with the Pods": {want: []Invariant{Size}, events: func(s *story) {
			s.rest()
			set := collaSet(4 + growthFrom)
			set.Status.Selector = strings.Repeat("x", 40*growthFrom)
			s.apply(set)
			ids := []int{0, 1, 2, 3}
			for i := 4; i < 4+growthFrom; i++ {
				ids = append(ids, i)
			}
			s.apply(contextOf(ids...))
			r := restingRule()
			r.Status.Available = 4 + growthFrom
			s.apply(r)
			for _, i := range ids[4:] {
				s.apply(aPod(i))
			}
		}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			s := begin(Options{})
			s.now = s.now.Add(time.Minute)
			s.apply(contextOf(0, 1, 2, 3))
			s.apply(restingRule())
			tc.events(s)
			s.rest()
			requireInvariants(t, s, tc.want)
		})
	}
}

// restingRule is the rule with nothing under way.
func restingRule() *appsv1alpha1.PodTransitionRule {
	r := maxUnavailable("1")
	r.Status.Grants = nil
	return r
}

func notReadySet(set *appsv1alpha1.CollaSet) { set.Status.Conditions[0].Status = metav1.ConditionFalse }

// TestLossesAreExcusedForAWhile has a Pod deleted by a user while another goes out of service by an operation.
func TestLossesAreExcusedForAWhile(t *testing.T) {
	for name, tc := range map[string]struct {
		notice, later time.Duration
		want          []Invariant
	}{
		"nobody is to delete Pods": {want: []Invariant{Budget}},
		"just now":                 {notice: 10 * time.Second},
		"long ago":                 {notice: 10 * time.Second, later: time.Minute, want: []Invariant{Budget}},
	} {
		t.Run(name, func(t *testing.T) {
			s := begin(Options{Notice: tc.notice})
			s.now = s.now.Add(time.Minute)
			s.event(aPod(0), true)
			s.now = s.now.Add(tc.later)
			s.apply(aPod(1, offline))
			requireInvariants(t, s, tc.want)
		})
	}
}

// TestEveryPromiseIsJudged has one history in which every promise is judged at least once: a promise that is never
// judged is not kept either.
func TestEveryPromiseIsJudged(t *testing.T) {
	s := begin(Options{})
	s.now = s.now.Add(time.Minute)
	s.checker.Expect("default", "web", Churns{})
	s.apply(aPod(0, asking))
	s.apply(aPod(0, offline, operating, written(lifecycleController,
		`{"f:metadata":{"f:labels":{"f:`+operatePrefix+`x":{}}}}`)))
	s.checker.Weigh(Weighing{Pod: aPod(1), Weight: 1, Time: s.now})
	s.apply(aPod(0))
	s.apply(contextOf(0, 1, 2, 3))
	s.apply(restingRule())
	s.rest()
	s.checker.Hush("default")
	s.checker.Unhush("default")
	report := s.checker.Report()
	require.NoError(t, report.Err())
	for _, i := range Invariants() {
		require.Positive(t, report.Checks[i], i)
	}
	require.Positive(t, report.Largest["Pod"].Bytes)

	s.checker.Forget("default")
	require.Empty(t, s.checker.Report().Checks)
	s.rest()
	require.NoError(t, s.checker.Report().Err(), "what exists stays known")
}

// TestNobodyIsAtRestUntilEndpointSlicesFollow has kube-controller-manager behind the Pods, which is no breach of
// anything.
func TestNobodyIsAtRestUntilEndpointSlicesFollow(t *testing.T) {
	withIP := func(p *corev1.Pod) { p.Status.PodIP = "10.0.0.1" }
	all := endpointSlice("uid-0", "uid-1", "uid-2", "uid-3")
	notReadyThere := endpointSlice("uid-0", "uid-1", "uid-2", "uid-3")
	notReadyThere.Endpoints[3].Conditions.Ready = ptr.To(false)
	for name, tc := range map[string]struct {
		events []metav1.Object
		rests  bool
	}{
		"all are listed":                   {[]metav1.Object{all}, true},
		"none are listed yet":              {nil, false},
		"one is not listed yet":            {[]metav1.Object{endpointSlice("uid-0", "uid-1", "uid-2")}, false},
		"one is still listed as not ready": {[]metav1.Object{notReadyThere}, false},
		"one is still listed that is gone": {[]metav1.Object{endpointSlice("uid-0", "uid-1", "uid-2", "uid-3",
			"uid-9")}, false},
		"one is still listed as ready":           {[]metav1.Object{all, aPod(3, withIP, notReady)}, false},
		"one is still listed that left":          {[]metav1.Object{all, aPod(3, withIP, labelled("app", "api"))}, false},
		"one is not ready, and listed so":        {[]metav1.Object{notReadyThere, aPod(3, withIP, notReady)}, true},
		"one without an address is never listed": {[]metav1.Object{endpointSlice("uid-0", "uid-1", "uid-2"), aPod(3)}, true},
	} {
		t.Run(name, func(t *testing.T) {
			s := begin(Options{Without: []Invariant{Revision, Keys}}) // status and labels stay as they are
			s.now = s.now.Add(time.Minute)
			s.apply(contextOf(0, 1, 2, 3))
			s.apply(restingRule())
			controlledService(s, "true",
				func(service *corev1.Service) { service.Spec.Selector = map[string]string{"app": "web"} })
			for i := range 4 {
				s.apply(aPod(i, withIP))
			}
			for _, object := range tc.events {
				s.apply(object)
			}
			require.Equal(t, tc.rests, s.checker.AtRest("default", s.now, false))
			require.True(t, s.checker.AtRest("default", s.now, true), "nothing is broken: %v", s.checker.Report().Violations)
			require.NoError(t, s.checker.Report().Err())
		})
	}
}

// BenchmarkPodEvent is one event of a Pod in a CollaSet of 10,000 with a rule.
func BenchmarkPodEvent(b *testing.B) {
	s := begin(Options{})
	s.apply(collaSet(10_000))
	ids := make([]int, 10_000)
	for i := range ids {
		ids[i] = i
	}
	s.apply(contextOf(ids...))
	for i := range ids {
		s.apply(aPod(i))
	}
	events := []*corev1.Pod{aPod(7, asking), aPod(7, offline, operating), aPod(7, offline, operating, newImage),
		aPod(7, newImage)}
	for i := 0; b.Loop(); i++ {
		s.apply(events[i%len(events)])
	}
}

// TestRuleBindsPodsThatCameAfterIt from the beginning. Those that were there before it are judged by it once it has
// settled.
func TestRuleBindsPodsThatCameAfterIt(t *testing.T) {
	let := labelled(preCheckedPrefix+operatorID, "1", permissionPrefix+updateType, "1", preparingPrefix+operatorID, "1")
	bothOut := []metav1.Object{aPod(0, offline), aPod(1, offline)}
	ungranted := []metav1.Object{aPod(0, asking), aPod(0, asking, let, gateClosed)}
	granting, silent := maxUnavailable("1"), maxUnavailable("1")
	silent.Status.Grants = nil
	pods := []metav1.Object{aPod(0), aPod(1)}
	for name, tc := range map[string]struct {
		rule   *appsv1alpha1.PodTransitionRule
		events []metav1.Object
	}{
		"two out of service where one may be": {granting, bothOut},
		"let go without a grant":              {silent, ungranted},
	} {
		for older, want := range map[bool][]Invariant{true: {Budget}, false: nil} {
			t.Run(fmt.Sprintf("%s, by an older rule: %t", name, older), func(t *testing.T) {
				s := &story{checker: NewChecker(Options{Without: []Invariant{Revision, InstanceID}}),
					now: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)}
				objects := slices.Concat([]metav1.Object{collaSet(2)}, pods, []metav1.Object{tc.rule}, tc.events)
				if older {
					objects = slices.Concat([]metav1.Object{collaSet(2), tc.rule}, pods, tc.events)
				}
				for _, object := range objects { // at one moment
					s.version++
					s.checker.Apply(Event{ResourceVersion: s.version, Time: s.now, Object: object})
				}
				require.Equal(t, want, s.invariants())
			})
		}
	}
}
