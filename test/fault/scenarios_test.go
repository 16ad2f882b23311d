package fault

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
	"kusionstack.io/kuperator/internal/testkit/suite"
	"kusionstack.io/kuperator/internal/testkit/workload"
)

const (
	image1 = "web:1"
	image2 = "web:2"
	image3 = "web:3"
)

// set is a workload of n Pods labelled app=<its name>.
func (p *play) set(plain string, n int32, with ...func(*appsv1alpha1.CollaSet)) *appsv1alpha1.CollaSet {
	set := workload.CollaSet("", p.name(plain), image1, n)
	set.Spec.Template.Spec.NodeName = node
	for _, w := range with {
		w(set)
	}
	return set
}

func policy(by appsv1alpha1.PodUpdatePolicy) func(*appsv1alpha1.CollaSet) {
	return func(s *appsv1alpha1.CollaSet) { s.Spec.UpdateStrategy.PodUpdatePolicy = by }
}

func named(s *appsv1alpha1.CollaSet) {
	s.Spec.NamingStrategy = &appsv1alpha1.NamingStrategy{PodNamingSuffixPolicy: appsv1alpha1.PodNamingSuffixPersistentSequence}
}

// volumes gives each Pod a claim that is kept or deleted.
func volumes(scaled, deleted appsv1alpha1.PersistentVolumeClaimRetentionPolicyType) func(*appsv1alpha1.CollaSet) {
	return func(s *appsv1alpha1.CollaSet) {
		s.Spec.VolumeClaimTemplates = []corev1.PersistentVolumeClaim{{
			ObjectMeta: metav1.ObjectMeta{Name: "data"},
			Spec: corev1.PersistentVolumeClaimSpec{
				AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
				Resources:   corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}},
			},
		}}
		s.Spec.Template.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "data", MountPath: "/data"}}
		s.Spec.ScaleStrategy.PersistentVolumeClaimRetentionPolicy = &appsv1alpha1.PersistentVolumeClaimRetentionPolicy{WhenScaled: scaled, WhenDeleted: deleted}
	}
}

// service gives the Pods of a workload traffic that the suite controls.
func (p *play) service(plain string) *corev1.Service {
	return workload.Service("", p.name(plain))
}

// rule allows so many Pods of a workload to be out of service.
func (p *play) rule(plain, workload string, maxUnavailable int) *appsv1alpha1.PodTransitionRule {
	return p.check(plain, workload,
		appsv1alpha1.TransitionRuleDefinition{AvailablePolicy: &appsv1alpha1.AvailableRule{MaxUnavailableValue: ptr.To(
			intstr.FromInt(maxUnavailable))}})
}

func (p *play) check(
	plain, workload string, what appsv1alpha1.TransitionRuleDefinition,
) *appsv1alpha1.PodTransitionRule {
	return &appsv1alpha1.PodTransitionRule{
		ObjectMeta: metav1.ObjectMeta{Name: p.name(plain)},
		Spec: appsv1alpha1.PodTransitionRuleSpec{
			Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": p.name(workload)}},
			Rules:    []appsv1alpha1.TransitionRule{{Name: "check", TransitionRuleDefinition: what}},
		},
	}
}

// running sets up a workload with n Pods in service.
func running(n int32, with ...func(*appsv1alpha1.CollaSet)) func(*play) error {
	return func(p *play) error {
		if err := p.create(p.set("web", n, with...)); err != nil {
			return err
		}
		return p.serving("web", int(n), image1)
	}
}

// surging has evicted Pods replaced.
func surging(s *appsv1alpha1.CollaSet) {
	s.Spec.Disruption = &appsv1alpha1.Disruption{OnEviction: appsv1alpha1.EvictionReplace}
}

// imaged changes the image and waits for nothing.
func imaged(image string) func(*play) error {
	return func(p *play) error { return p.image("web", image) }
}

// updated changes the image and waits for it.
func updated(n int) func(*play) error {
	return func(p *play) error {
		if err := p.image("web", image2); err != nil {
			return err
		}
		return p.serving("web", n, image2)
	}
}

// all does one thing after the other.
func all(steps ...func(*play) error) func(*play) error {
	return func(p *play) error {
		for _, step := range steps {
			if err := step(p); err != nil {
				return err
			}
		}
		return nil
	}
}

func scaled(n int, image string) func(*play) error {
	return func(p *play) error {
		if err := p.scale("web", n); err != nil {
			return err
		}
		return p.serving("web", n, image)
	}
}

func scenarios() []scenario {
	retain, remove := appsv1alpha1.RetainPersistentVolumeClaim, appsv1alpha1.DeletePersistentVolumeClaim
	list := []scenario{
		{name: "create", steps: running(3)},
		{name: "in-place", setup: running(3), steps: updated(3)},
		{name: "metadata", setup: running(3), steps: metadataOnly},
		{name: "recreate", setup: running(3, policy(appsv1alpha1.PodUpdateRecreate)), steps: updated(3)},
		{name: "recreate-named", setup: running(3, policy(appsv1alpha1.PodUpdateRecreate), named), steps: updated(3)},
		{name: "replace", setup: running(3, policy(appsv1alpha1.PodUpdateReplace)), steps: updated(3), anyInstances: true},
		{name: "partition", setup: running(3), steps: all(partition(1), updatedButOne, partition(0), serving(3, image2))},
		{name: "by-label", setup: running(3, byLabel), steps: chosen},
		{name: "rollback", setup: running(3), steps: rollback, longest: lateRollback, anyRestarts: true},
		{name: "delete-set", setup: running(3), steps: all(deleteSet, gone)},
		{name: "one-rule", setup: all(ruled("budget", 1), running(4)), steps: updated(4)},
		{name: "two-rules", setup: all(ruled("budget", 1), ruled("other", 2), running(3)), steps: updated(3)},
		{name: "two-domains", setup: twoDomains(), steps: bothUpdated},
		{name: "rule-change", setup: all(ruled("budget", 0), running(3)),
			steps: all(imaged(image2), waitingForRule, allow(2), serving(3, image2))},
		{name: "rule-deleted", setup: all(ruled("budget", 0), running(3)),
			steps: all(imaged(image2), waitingForRule,
				func(p *play) error { return p.delete(&appsv1alpha1.PodTransitionRule{}, "budget") }, serving(3, image2))},
		{name: "service", setup: all(served, running(3)), steps: updated(3)},
		{name: "service-added", setup: running(3), steps: all(served, endpoints(3), updated(3))},
		{name: "service-deleted", setup: all(served, running(3)), steps: all(imaged(image2), unserved, serving(3, image2))},
		{name: "service-and-rule", setup: all(served, ruled("budget", 1), running(3)), steps: updated(3)},
		// Which Pods go depends on the second in which each became Ready.
		{name: "scale-with-service", setup: all(served, running(2)), steps: all(scaled(3, image1), scaled(1, image1)),
			anyInstances: true},
		{name: "service-at-provider", setup: all(pooledService, running(3), pooled(3)), steps: all(updated(3), pooled(3))},
		{name: "service-at-provider-recreate", setup: all(pooledService, running(2, policy(appsv1alpha1.PodUpdateRecreate)),
			pooled(2)), steps: all(updated(2), pooled(2))},
		{name: "service-at-provider-scale", setup: all(pooledService, running(2), pooled(2)),
			steps: all(scaled(3, image1), pooled(3), scaled(1, image1), pooled(1)), anyInstances: true},
		{name: "service-at-provider-deleted", setup: all(pooledService, running(3), pooled(3)),
			steps: all(imaged(image2), unserved, serving(3, image2), pooled(0))},
		{name: "pod-to-delete", setup: running(3), steps: podToDelete},
		{name: "replace-pod", setup: running(3), steps: replaceOne, anyInstances: true},
		{name: "scale-to-nothing", setup: all(ruled("budget", 1), running(3)),
			steps: all(scaled(0, image1), scaled(2, image1), counted(2))},
		{name: "stay-offline", setup: all(served, running(3)), steps: stayOffline},
		{name: "move-pod", setup: all(shared2, running(2, pool)), steps: movePod},
		{name: "two-operations", setup: running(2), steps: twoOperations},
		{name: "health", setup: running(8), steps: health},
		{name: "undo-waiting", setup: all(ruled("budget", 0), running(3)),
			steps: all(imaged(image2), waitingForRule, imaged(image1), serving(3, image1))},
		{name: "undo-preparing", setup: running(2), steps: undo(false)},
		{name: "undo-operating", setup: running(2), steps: undo(true)},
		{name: "webhook-rule", setup: all(hooked(false), running(2)), steps: updated(2)},
		{name: "webhook-rule-polled", setup: all(hooked(true), running(2)), steps: updated(2)},
		{name: "graceful-delete", setup: all(served, ruled("budget", 1), running(3)), steps: takeAway(byDelete),
			components: append(faulted(), suite.Webhook)},
		{name: "evict", setup: all(ruled("budget", 1), running(3)), steps: takeAway(byEviction),
			components: append(faulted(), suite.Webhook)},
		{name: "evict-replaced", setup: all(served, ruled("budget", 0), running(3, surging)), steps: takeAway(byEviction),
			anyInstances: true},
		{name: "drain", setup: all(served, ruled("budget", 1), running(3)), steps: drain},
		{name: "evict-in-update", setup: all(served, ruled("budget", 1), running(3)), steps: evictInUpdate,
			components: append(faulted(), suite.Webhook), anyRestarts: true},
		{name: "delete-set-with-service", setup: all(served, running(3)), steps: all(deleteSet, gone)},
	}
	for _, when := range []struct {
		name            string
		scaled, deleted appsv1alpha1.PersistentVolumeClaimRetentionPolicyType
	}{{"rr", retain, retain}, {"rd", retain, remove}, {"dr", remove, retain}, {"dd", remove, remove}} {
		with := volumes(when.scaled, when.deleted)
		list = append(list,
			scenario{name: "scale-volumes-" + when.name, setup: running(1, with),
				steps: all(scaled(3, image1), scaled(1, image1), claims(when.scaled))},
			scenario{name: "delete-volumes-" + when.name, setup: running(2, with), steps: all(deleteSet, gone)})
	}
	list = append(append(list, jobScenarios()...), decorationScenarios()...)
	return append(list, oneByOne()...) // last, because each cell starts another program for them
}

// oneByOne are scenarios in which one Pod after the other begins, because the window has one place.
func oneByOne() []scenario {
	list := []scenario{
		{name: "in-place", setup: running(4), steps: updated(4)},
		{name: "recreate", setup: running(4, policy(appsv1alpha1.PodUpdateRecreate)), steps: updated(4)},
		{name: "partition", setup: running(4), steps: all(partition(2), imaged(image2), partition(0), serving(4, image2))},
		{name: "rollback", setup: running(3), steps: rollback, longest: lateRollback, anyRestarts: true},
		{name: "rule", setup: all(ruled("budget", 1), running(4)), steps: updated(4)},
		{name: "scale-in", setup: running(4), steps: all(imaged(image2), scaled(2, image2)), anyRestarts: true,
			anyInstances: true},
		{name: "crowd", setup: crowd, steps: crowdUpdated},
		{name: "service", setup: all(served, running(4)), steps: updated(4)},
		{name: "service-at-provider-deleted", setup: all(pooledService, running(4), pooled(4)),
			steps: all(imaged(image2), unserved, serving(4, image2), pooled(0))},
	}
	for i := range list {
		list[i].name, list[i].narrow = "one-by-one-"+list[i].name, true
	}
	return list
}

func serving(n int, image string) func(*play) error {
	return func(p *play) error { return p.serving("web", n, image) }
}

func metadataOnly(p *play) error {
	change := map[string]any{"template": map[string]any{"metadata": map[string]any{"labels": map[string]any{"version": "2"}}}}
	if err := p.spec("web", change); err != nil {
		return err
	}
	return p.await("the label on all Pods", func(s *state) error {
		for _, pod := range podsOf(s, "web") {
			if pod.Labels["version"] != "2" {
				return fmt.Errorf("%s has not", pod.Name)
			}
		}
		return serves(s, "web", 3, image1)
	})
}

func partition(n int) func(*play) error {
	return func(p *play) error {
		change := map[string]any{"updateStrategy": map[string]any{"rollingUpdate": map[string]any{"byPartition": map[string]any{"partition": n}}}}
		return p.spec("web", change)
	}
}

// updatedButOne changes the image and waits until all but one Pod have it.
func updatedButOne(p *play) error {
	if err := p.image("web", image2); err != nil {
		return err
	}
	return p.await("all but one Pod to be updated", func(s *state) error {
		set, ok := get[*appsv1alpha1.CollaSet](s, "web")
		if !ok || set.Status.ObservedGeneration != set.Generation || set.Status.UpdatedAvailableReplicas != 2 ||
			set.Status.AvailableReplicas != 3 {
			return errors.New("they are not")
		}
		return nil
	})
}

func byLabel(s *appsv1alpha1.CollaSet) {
	s.Spec.UpdateStrategy.RollingUpdate = &appsv1alpha1.RollingUpdateStrategy{ByLabel: &appsv1alpha1.ByLabel{}}
}

// chosen updates the Pods of instances 0 and 2.
func chosen(p *play) error {
	if err := p.image("web", image2); err != nil {
		return err
	}
	now, _ := p.plane.view.state(p.prefix)
	for _, pod := range podsOf(now, "web") {
		if pod.Labels[appsv1alpha1.InstanceIDLabel] != "1" {
			if err := p.labelPod(pod, map[string]any{appsv1alpha1.UpdateIncludedLabel: "true"}); err != nil {
				return err
			}
		}
	}
	return p.await("two Pods to be updated", func(s *state) error {
		set, ok := get[*appsv1alpha1.CollaSet](s, "web")
		if !ok || set.Status.ObservedGeneration != set.Generation || set.Status.UpdatedAvailableReplicas != 2 ||
			set.Status.AvailableReplicas != 3 {
			return errors.New("they are not")
		}
		return nil
	})
}

// rollback takes an update back as soon as one Pod has it.
func rollback(p *play) error {
	if err := p.image("web", image2); err != nil {
		return err
	}
	err := p.await("one Pod to have the new image", func(s *state) error {
		for _, pod := range podsOf(s, "web") {
			if pod.Spec.Containers[0].Image == image2 {
				return nil
			}
		}
		return errors.New("none has")
	})
	if err != nil {
		return err
	}
	if err := p.image("web", image1); err != nil {
		return err
	}
	return p.serving("web", 3, image1)
}

// lateRollback takes an update back that all Pods have.
func lateRollback(p *play) error { return all(updated(3), imaged(image1), serving(3, image1))(p) }

func deleteSet(p *play) error { return p.delete(&appsv1alpha1.CollaSet{}, "web") }

// gone waits until neither the workload nor a Pod, revision or claim of it is left: these are the garbage
// collector's, which takes its time, most of all on a new cluster. Claims that are retained have no owner.
func gone(p *play) error {
	return p.await("the workload to be gone", func(s *state) error {
		_, set := get[*appsv1alpha1.CollaSet](s, "web")
		owned := func(c *corev1.PersistentVolumeClaim) bool { return len(c.OwnerReferences) > 0 }
		if set || len(podsOf(s, "web")) > 0 || len(these[*appsv1.ControllerRevision](s)) > 0 ||
			slices.ContainsFunc(these[*corev1.PersistentVolumeClaim](s), owned) {
			return errors.New("it is not")
		}
		return nil
	})
}

func ruled(plain string, maxUnavailable int) func(*play) error {
	return func(p *play) error { return p.create(p.rule(plain, "web", maxUnavailable)) }
}

// unapproved creates the rule budget, which lets no Pod go: they would need a label that none has. A bound of no Pods
// would let those go that are replaced by Pods that serve.
func unapproved(p *play) error {
	rule := p.rule("budget", "web", 0)
	rule.Spec.Rules[0].TransitionRuleDefinition = appsv1alpha1.TransitionRuleDefinition{
		LabelCheck: &appsv1alpha1.LabelCheckRule{
			Requires: &metav1.LabelSelector{MatchLabels: map[string]string{"approved": "true"}},
		},
	}
	return p.create(rule)
}

// twoDomains has a workload on each of two nodes, of which Pods of one alone may be out of service, and two rules
// over both.
func twoDomains(with ...func(*appsv1alpha1.CollaSet)) func(*play) error {
	return func(p *play) error {
		both := append([]func(*appsv1alpha1.CollaSet){func(
			s *appsv1alpha1.CollaSet) {
			s.Spec.Template.Labels["group"] = p.prefix
		}}, with...)
		elsewhere := func(s *appsv1alpha1.CollaSet) { s.Spec.Template.Spec.NodeName = otherNode }
		nodeByNode, number := p.rule("budget", "web", 3), p.rule("number", "web", 3)
		nodeByNode.Spec.Rules[0].AvailablePolicy.Topology = &appsv1alpha1.TopologyBudget{TopologyKey: corev1.LabelHostname}
		for _, rule := range []*appsv1alpha1.PodTransitionRule{nodeByNode, number} {
			rule.Spec.Selector.MatchLabels = map[string]string{"group": p.prefix}
		}
		if err := p.create(nodeByNode, number, p.set("web", 2, both...),
			p.set("other", 2, append(both, elsewhere)...)); err != nil {
			return err
		}
		return p.eachServes(image1, "web", "other")
	}
}

// bothUpdated changes the image of both workloads and waits for it.
func bothUpdated(p *play) error { return p.eachUpdated("web", "other") }

// eachUpdated changes the image of workloads of two Pods and waits for it.
func (p *play) eachUpdated(workloads ...string) error {
	for _, name := range workloads {
		if err := p.image(name, image2); err != nil {
			return err
		}
	}
	return p.eachServes(image2, workloads...)
}

// eachServes waits until the two Pods of each of the workloads serve the image.
func (p *play) eachServes(image string, workloads ...string) error {
	for _, name := range workloads {
		if err := p.serving(name, 2, image); err != nil {
			return err
		}
	}
	return nil
}

// crowdOf are three workloads of two Pods each, which wait for each other where only one or two Pods of all are on
// their way.
var crowdOf = []string{"web", "other", "third"}

func crowd(p *play) error {
	var sets []client.Object
	for _, name := range crowdOf {
		sets = append(sets, p.set(name, 2))
	}
	if err := p.create(sets...); err != nil {
		return err
	}
	return p.eachServes(image1, crowdOf...)
}

func crowdUpdated(p *play) error { return p.eachUpdated(crowdOf...) }

// waitingForRule waits until the rule's status reports all Pods as blocked.
func waitingForRule(p *play) error {
	return p.await("the rule to block", func(s *state) error {
		rule, ok := get[*appsv1alpha1.PodTransitionRule](s, "budget")
		if !ok || rule.Status.Blocked != 3 {
			return errors.New("it does not")
		}
		return nil
	})
}

// counted waits until the rule has counted n Pods: it tells of numbers that decide nothing later than of decisions.
func counted(n int32) func(*play) error {
	return func(p *play) error {
		return p.await("the rule to count the Pods", func(s *state) error {
			rule, ok := get[*appsv1alpha1.PodTransitionRule](s, "budget")
			if !ok || rule.Status.Desired != n || rule.Status.Available != n {
				return errors.New("it does not")
			}
			return nil
		})
	}
}

func allow(n int) func(*play) error {
	return func(p *play) error {
		fresh := p.rule("budget", "web", n)
		return p.patch(&appsv1alpha1.PodTransitionRule{}, "budget",
			map[string]any{"spec": map[string]any{"rules": fresh.Spec.Rules}})
	}
}

func served(p *play) error { return p.create(p.service("web")) }

func unserved(p *play) error { return p.delete(&corev1.Service{}, "web") }

// endpoints waits until resourceconsist-controller has all Pods of the Service.
func endpoints(n int) func(*play) error {
	return func(p *play) error {
		return p.await("the Pods to be protected", func(s *state) error {
			protected := 0
			for _, pod := range podsOf(s, "web") {
				if len(pod.Finalizers) > 0 {
					protected++
				}
			}
			if protected != n {
				return fmt.Errorf("%d are", protected)
			}
			return serves(s, "web", n, image1)
		})
	}
}

// claims waits until the claims of instances that are gone are too, if the policy says so.
func claims(policy appsv1alpha1.PersistentVolumeClaimRetentionPolicyType) func(*play) error {
	return func(p *play) error {
		want := 3
		if policy == appsv1alpha1.DeletePersistentVolumeClaim {
			want = 1
		}
		return p.await("the claims to be as the policy says", func(s *state) error {
			if n := len(these[*corev1.PersistentVolumeClaim](s)); n != want {
				return fmt.Errorf("there are %d", n)
			}
			return nil
		})
	}
}

// instance is the Pod with an instance ID.
func instance(s *state, id string) *corev1.Pod {
	for _, pod := range podsOf(s, "web") {
		if pod.Labels[appsv1alpha1.InstanceIDLabel] == id && pod.DeletionTimestamp == nil {
			return pod
		}
	}
	return nil
}

// podToDelete has one Pod deleted through the spec; it comes back.
func podToDelete(p *play) error {
	now, _ := p.plane.view.state(p.prefix)
	pod := instance(now, "1")
	if err := p.spec("web",
		map[string]any{"scaleStrategy": map[string]any{"podToDelete": []string{pod.Name}}}); err != nil {
		return err
	}
	return p.await("another Pod in its place", func(s *state) error {
		if next := instance(s, "1"); next == nil || next.UID == pod.UID {
			return errors.New("it is not there")
		}
		return serves(s, "web", 3, image1)
	})
}

// replaceOne has one Pod replaced by its label.
func replaceOne(p *play) error {
	now, _ := p.plane.view.state(p.prefix)
	pod := instance(now, "1")
	if err := p.labelPod(pod, map[string]any{appsv1alpha1.ToReplaceLabel: "true"}); err != nil {
		return err
	}
	return p.await("the Pod to be replaced", func(s *state) error {
		for _, other := range podsOf(s, "web") {
			if other.UID == pod.UID {
				return errors.New("it is there")
			}
		}
		return serves(s, "web", 3, image1)
	})
}

// stayOffline keeps one Pod out of service over an update, and lets it back.
func stayOffline(p *play) error {
	now, _ := p.plane.view.state(p.prefix)
	pod := instance(now, "1")
	if err := p.labelPod(pod, map[string]any{podops.StayOfflineLabel: "true"}); err != nil {
		return err
	}
	if err := p.image("web", image2); err != nil {
		return err
	}
	err := p.await("all but the Pod that stays offline to be in service", func(s *state) error {
		serving := 0
		for _, pod := range podsOf(s, "web") {
			v := podops.Read(pod)
			if pod.Spec.Containers[0].Image != image2 {
				return fmt.Errorf("%s has not the new image", pod.Name)
			}
			if v.Ready && v.ServiceAvailable() {
				serving++
			}
		}
		if serving != 2 {
			return fmt.Errorf("%d are", serving)
		}
		return nil
	})
	if err != nil {
		return err
	}
	if err := p.labelPod(pod, map[string]any{podops.StayOfflineLabel: nil}); err != nil {
		return err
	}
	return p.serving("web", 3, image2)
}

// pool takes instance IDs from one that another workload uses as well.
func pool(s *appsv1alpha1.CollaSet) {
	prefix := prefixOf(s.Name)
	s.Spec.ScaleStrategy.Context = prefix + "-pool"
	s.Spec.Selector.MatchLabels = map[string]string{"group": prefix}
	s.Spec.Template.Labels["group"] = prefix
}

// shared2 is the other workload of the pool, with the same Pods.
func shared2(p *play) error {
	if err := p.create(p.set("other", 1, pool)); err != nil {
		return err
	}
	return p.serving("other", 1, image1)
}

// movePod takes a Pod out of one workload and into the other.
func movePod(p *play) error {
	now, _ := p.plane.view.state(p.prefix)
	pods := podsOf(now, "web")
	pod := pods[0]
	for _, other := range pods { // the one that was made last, by its ID, so that every run moves the same
		if other.Labels[appsv1alpha1.InstanceIDLabel] > pod.Labels[appsv1alpha1.InstanceIDLabel] {
			pod = other
		}
	}
	if err := p.spec("web", map[string]any{"replicas": 1,
		"scaleStrategy": map[string]any{"podToExclude": []string{pod.Name}}}); err != nil {
		return err
	}
	err := p.await("the Pod to be nobody's, and its instance ID as well", func(s *state) error {
		if pool, ok := get[*appsv1alpha1.ResourceContext](s, "pool"); !ok ||
			slices.ContainsFunc(pool.Spec.Contexts, func(c appsv1alpha1.ContextDetail) bool {
				return strconv.Itoa(c.ID) == pod.Labels[appsv1alpha1.InstanceIDLabel]
			}) {
			return errors.New("its instance ID is taken")
		}
		for _, now := range podsOf(s, "web") {
			if now.UID == pod.UID && len(now.OwnerReferences) == 0 {
				return nil
			}
		}
		return errors.New("it has an owner")
	})
	if err != nil {
		return err
	}
	if err := p.spec("web", map[string]any{"scaleStrategy": map[string]any{"podToExclude": nil}}); err != nil {
		return err
	}
	if err := p.spec("other", map[string]any{"replicas": 2,
		"scaleStrategy": map[string]any{"podToInclude": []string{pod.Name}}}); err != nil {
		return err
	}
	return p.await("the Pod to be the other's, with its labels", func(s *state) error {
		set, ok := get[*appsv1alpha1.CollaSet](s, "other")
		if !ok || set.Status.ObservedGeneration != set.Generation || set.Status.UpdatedAvailableReplicas != 2 {
			return errors.New("the other has not two")
		}
		for _, now := range these[*corev1.Pod](s) {
			if now.UID == pod.UID && len(now.OwnerReferences) == 1 && now.OwnerReferences[0].Name == p.name("other") {
				return nil
			}
		}
		return errors.New("it is not")
	})
}

// operator is a program that knows nothing but the published labels.
const operator = "by-hand"

func ask(p *play, pod *corev1.Pod) error {
	return p.labelPod(pod, map[string]any{
		podops.OperatingPrefix + "/" + operator:     strconv.FormatInt(time.Now().UnixNano(), 10),
		podops.OperationTypePrefix + "/" + operator: "restart",
	})
}

func permitted(p *play, pod *corev1.Pod) error {
	return p.await("the operator to be permitted", func(s *state) error {
		for _, now := range podsOf(s, "web") {
			if now.UID == pod.UID && podops.Allowed(podops.Read(now), operator, "restart") {
				return nil
			}
		}
		return errors.New("it is not")
	})
}

// twoOperations operates on a Pod by labels while it is updated.
func twoOperations(p *play) error {
	now, _ := p.plane.view.state(p.prefix)
	pod := instance(now, "1")
	if err := ask(p, pod); err != nil {
		return err
	}
	if err := p.image("web", image2); err != nil {
		return err
	}
	if err := permitted(p, pod); err != nil {
		return err
	}
	if err := p.labelPod(pod, map[string]any{podops.OperatingPrefix + "/" + operator: nil}); err != nil {
		return err
	}
	return p.serving("web", 2, image2)
}

// health has an operator act on one Pod of a workload at rest after the other, of which nothing but the workload's
// status tells: enough Pods, so that collaset-controller follows that one alone.
func health(p *play) error {
	for _, id := range []string{"1", "4"} {
		now, _ := p.plane.view.state(p.prefix)
		pod := instance(now, id)
		steps := all(
			func(p *play) error { return ask(p, pod) }, func(p *play) error { return permitted(p, pod) }, available(7),
			func(p *play) error {
				return p.labelPod(pod, map[string]any{podops.OperatingPrefix + "/" + operator: nil})
			}, available(8),
		)
		if err := steps(p); err != nil {
			return err
		}
	}
	return p.serving("web", 8, image1)
}

// available waits until the workload's status reports so many Pods as available.
func available(n int32) func(*play) error {
	return func(p *play) error {
		return p.await("the workload to count its Pods", func(s *state) error {
			set, ok := get[*appsv1alpha1.CollaSet](s, "web")
			if !ok || set.Status.AvailableReplicas != n || set.Status.ReadyReplicas != n {
				return errors.New("it does not")
			}
			return nil
		})
	}
}

// undo takes an operation back, before or after it was permitted.
func undo(operating bool) func(*play) error {
	return func(p *play) error {
		now, _ := p.plane.view.state(p.prefix)
		pod := instance(now, "1")
		if err := ask(p, pod); err != nil {
			return err
		}
		if operating {
			if err := permitted(p, pod); err != nil {
				return err
			}
		}
		if err := p.labelPod(pod, map[string]any{podops.UndoOperationTypePrefix + "/" + operator: "restart"}); err != nil {
			return err
		}
		return p.serving("web", 2, image1)
	}
}

// hooked has a server agree to every operation: at once, or when it is asked for the result of a task.
func hooked(polled bool) func(*play) error {
	return func(p *play) error {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			switch {
			case !polled:
				_, _ = io.WriteString(w, `{"success":true}`)
			case r.Method == http.MethodPost:
				_ = json.NewEncoder(w).Encode(map[string]any{"success": true, "poll": true,
					"taskId": fmt.Sprint(time.Now().UnixNano()), "message": "begun"})
			default:
				_, _ = io.WriteString(w, `{"success":true,"finished":true}`)
			}
		}))
		p.after = append(p.after, server.Close)
		hook := &appsv1alpha1.TransitionRuleWebhook{
			ClientConfig:  appsv1alpha1.WebhookClientConfig{URL: server.URL},
			FailurePolicy: ptr.To(appsv1alpha1.FailurePolicyFail),
		}
		if polled {
			hook.ClientConfig.Poll = &appsv1alpha1.WebhookPoll{URL: server.URL, IntervalSeconds: ptr.To[int64](1),
				TimeoutSeconds: ptr.To[int64](60)}
		}
		return p.create(p.check("budget", "web", appsv1alpha1.TransitionRuleDefinition{Webhook: hook}))
	}
}

// takeAway takes one Pod away as users do, again and again until it is gone, and waits for its successor.
func takeAway(how func(*play, *corev1.Pod) error) func(*play) error {
	return func(p *play) error {
		now, _ := p.plane.view.state(p.prefix)
		if err := takeAwayPod(p, instance(now, "1"), how); err != nil {
			return err
		}
		return p.serving("web", 3, image1)
	}
}

func takeAwayPod(p *play, pod *corev1.Pod, how func(*play, *corev1.Pod) error) error {
	return p.await("the Pod to be gone", func(s *state) error {
		for _, now := range podsOf(s, "web") {
			if now.UID == pod.UID && now.DeletionTimestamp == nil {
				return how(p, now)
			}
		}
		return nil
	})
}

// takeAwayPods takes Pods away, one after the other.
func takeAwayPods(p *play, pods []*corev1.Pod, how func(*play, *corev1.Pod) error) error {
	for _, pod := range pods {
		if err := takeAwayPod(p, pod, how); err != nil {
			return err
		}
	}
	return nil
}

// byDelete asks once for deletion, and again while the Pod is not marked.
func byDelete(p *play, pod *corev1.Pod) error {
	if _, marked := pod.Labels[appsv1alpha1.ToDeleteLabel]; marked {
		return errors.New("it is marked")
	}
	err := p.plane.client.Delete(p.ctx, pod, client.Preconditions{UID: &pod.UID})
	if err == nil || apierrors.IsNotFound(err) {
		return fmt.Errorf("asked for its deletion, at once: %w", err)
	}
	return err
}

// byEviction asks for eviction until the Pod is gone.
func byEviction(p *play, pod *corev1.Pod) error {
	eviction := &policyv1.Eviction{
		ObjectMeta:    metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name},
		DeleteOptions: &metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &pod.UID}},
	}
	return errors.Join(errors.New("evicted"), p.plane.client.SubResource("eviction").Create(p.ctx, pod, eviction))
}

// evictInUpdate evicts each Pod as soon as its update may act, which may be over by the time the eviction is carried
// out.
func evictInUpdate(p *play) error {
	now, _ := p.plane.view.state(p.prefix)
	if err := p.image("web", image2); err != nil {
		return err
	}
	err := takeAwayPods(p, podsOf(now, "web"), func(p *play, pod *corev1.Pod) error {
		_, acts := pod.Labels[podops.OperatePrefix+"/collaset"]
		if !acts && pod.Spec.Containers[0].Image == image1 {
			return errors.New("its update may not act yet")
		}
		return byEviction(p, pod)
	})
	if err != nil {
		return err
	}
	return p.serving("web", 3, image2)
}

// drain evicts all Pods at once.
func drain(p *play) error {
	now, _ := p.plane.view.state(p.prefix)
	for _, pod := range podsOf(now, "web") {
		_ = byEviction(p, pod) // it is refused, and marks the Pod
	}
	if err := takeAwayPods(p, podsOf(now, "web"), byEviction); err != nil {
		return err
	}
	return p.serving("web", 3, image1)
}
