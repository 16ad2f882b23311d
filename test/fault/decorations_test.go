package fault

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
	"kusionstack.io/kuperator/internal/decoration"
	"kusionstack.io/kuperator/internal/testkit/suite"
)

// decorationScenarios have a PodDecoration of the Pods of a workload, or of Pods without one, under a rule.
// poddecoration-controller is faulted alone: the others do nothing for it that they do not do in other scenarios.
func decorationScenarios() []scenario {
	list := []scenario{
		{name: "in-place", setup: all(ruled("budget", 1), bare(3)),
			steps: all(decorate(overridden(image2), nil), decorated(3), serving(3, image2),
				decorate(overridden(image3), nil), decorated(3), serving(3, image3), madePods(3))},
		{name: "another-pod", setup: all(ruled("budget", 1), running(3)),
			steps: all(decorate(proxied("proxy:1"), nil), decorated(3), serving(3, image1), madePods(6))},
		{name: "partition", setup: all(ruled("budget", 2), running(4), decorate(proxied("proxy:1"), nil), decorated(4)),
			steps: all(decorate(proxied("proxy:2"), ptr.To[int32](3)), decoratedAt("proxy:2", 1),
				decorate(proxied("proxy:2"), ptr.To[int32](0)), decorated(4), decoratedAt("proxy:2", 4), serving(4, image1))},
		{name: "deleted", setup: all(ruled("budget", 1), running(3), decorate(proxied("proxy:1"), nil), decorated(3)),
			steps: all(undecorated, decoratedAt("proxy:1", 0), serving(3, image1))},
	}
	for i := range list {
		list[i].name, list[i].components = "decoration-"+list[i].name, []string{suite.PodDecoration}
	}
	return list
}

// proxied adds a sidecar of an image, overridden has the workload's own container run another image.
func proxied(image string) appsv1alpha1.PodDecorationPodTemplate {
	return appsv1alpha1.PodDecorationPodTemplate{Containers: []*appsv1alpha1.ContainerPatch{{
		InjectPolicy: appsv1alpha1.AfterPrimaryContainer, Container: corev1.Container{Name: "proxy", Image: image}}}}
}

func overridden(image string) appsv1alpha1.PodDecorationPodTemplate {
	return appsv1alpha1.PodDecorationPodTemplate{
		PrimaryContainers: []*appsv1alpha1.PrimaryContainerPatch{{Image: &image}}}
}

// decorate creates the decoration, or gives it another template and partition.
func decorate(template appsv1alpha1.PodDecorationPodTemplate, partition *int32) func(*play) error {
	return func(p *play) error {
		d := &appsv1alpha1.PodDecoration{ObjectMeta: metav1.ObjectMeta{Name: p.name("proxy")}}
		d.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": p.name("web")}}
		d.Spec.Template = template
		if err := p.create(d); err != nil {
			return err
		}
		return p.patch(&appsv1alpha1.PodDecoration{}, "proxy", map[string]any{"spec": map[string]any{"template": template,
			"updateStrategy": map[string]any{"rollingUpdate": map[string]any{"partition": partition}}}})
	}
}

// decorated waits until so many Pods serve with the present template.
func decorated(n int) func(*play) error {
	return func(p *play) error {
		return p.await(fmt.Sprintf("%d Pods to be decorated", n), func(s *state) error {
			d, ok := get[*appsv1alpha1.PodDecoration](s, "proxy")
			if !ok || d.Status.ObservedGeneration != d.Generation || int(d.Status.UpdatedAvailablePods) != n ||
				d.Status.CurrentRevision != d.Status.UpdatedRevision {
				return fmt.Errorf("%+v", d)
			}
			for _, pod := range podsOf(s, "web") {
				if len(podops.Operations(podops.Read(pod))) > 0 {
					return fmt.Errorf("%s has an operation", pod.Name)
				}
			}
			return nil
		})
	}
}

// decoratedAt waits until so many Pods have the sidecar of an image, and nothing is under way.
func decoratedAt(image string, n int) func(*play) error {
	return func(p *play) error {
		return p.await(fmt.Sprintf("%d Pods to have %s", n, image), func(s *state) error {
			found := 0
			for _, pod := range podsOf(s, "web") {
				isProxy := func(c corev1.Container) bool { return c.Image == image }
				if slices.ContainsFunc(pod.Spec.Containers, isProxy) {
					found++
				}
				made, wanted := decoration.Keys(pod.Annotations)
				if v := podops.Read(pod); len(podops.Operations(v)) > 0 || !v.ServiceAvailable() || made != wanted {
					return fmt.Errorf("%s is on its way", pod.Name)
				}
			}
			if found != n {
				return fmt.Errorf("%d have", found)
			}
			return nil
		})
	}
}

// madePods waits until so many Pods have been created, those of the setup among them.
func madePods(n int) func(*play) error {
	return func(p *play) error {
		return p.await("no more Pods than needed", func(s *state) error {
			if s.created["Pod"] != n {
				return fmt.Errorf("%d were created", s.created["Pod"])
			}
			return nil
		})
	}
}

// undecorated deletes the decoration and waits until it is gone.
func undecorated(p *play) error {
	if err := p.delete(&appsv1alpha1.PodDecoration{}, "proxy"); err != nil {
		return err
	}
	return p.await("the decoration to be gone", func(s *state) error {
		if d, ok := get[*appsv1alpha1.PodDecoration](s, "proxy"); ok {
			return fmt.Errorf("it is there: %+v", d.Status)
		}
		return nil
	})
}

// bare creates managed Pods without a controller, and waits until they serve.
func bare(n int) func(*play) error {
	return func(p *play) error {
		template := p.set("web", 1).Spec.Template
		for i := range n {
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: p.name(fmt.Sprintf("web-%d", i)), Labels: template.Labels},
				Spec: *template.Spec.DeepCopy()}
			pod.Spec.ReadinessGates = []corev1.PodReadinessGate{{ConditionType: podops.ServiceReadyCondition}}
			if err := p.create(pod); err != nil {
				return err
			}
		}
		return p.serving("web", n, image1)
	}
}
