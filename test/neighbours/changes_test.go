package neighbours

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
)

// write is what an update does to a Pod.
type write string

const (
	update write = "update"
	resize write = "resize"
	remove write = "remove"
	create write = "create" // of the successor of a Pod that is gone
	surge  write = "surge"  // of a Pod beside the one that it replaces
)

// change is one of the template.
type change struct {
	name string
	// makes makes it. The namespace is the run's.
	makes func(template *corev1.PodTemplateSpec, namespace string)
	// marker is an expression of CEL that is true of a Pod, %s, which has it.
	marker string
	// inPlace is how a running Pod takes it over; "" if none can.
	inPlace write
	// restarts is true if it restarts containers in place.
	restarts bool
	// oneWay is true if a running Pod cannot give it up again.
	oneWay bool
	// beside is the only neighbour with whom it is combined, who is combined with nothing else; "" for all others.
	beside string
}

// changes is the table of them.
var changes = []change{
	{
		name: "image", inPlace: update, restarts: true,
		marker: "%[1]s.spec.containers.exists(c, c.image.endsWith(':2'))",
		makes:  main(func(c *corev1.Container) { c.Image = "web:2" }),
	},
	{
		name: "cpu", inPlace: resize,
		marker: "%[1]s.spec.containers.exists(c, has(c.resources) && has(c.resources.requests) && " +
			"'cpu' in c.resources.requests && " +
			"quantity(c.resources.requests['cpu']).isGreaterThan(quantity('120m')))",
		makes: main(func(c *corev1.Container) {
			c.Resources.Requests[corev1.ResourceCPU] = resource.MustParse("150m")
		}),
	},
	{
		name: "label", inPlace: update,
		marker: "has(%[1]s.metadata.labels) && 'version' in %[1]s.metadata.labels && " +
			"%[1]s.metadata.labels['version'] == '2'",
		makes: func(t *corev1.PodTemplateSpec, _ string) { t.Labels["version"] = "2" },
	},
	{
		name: "toleration", inPlace: update, oneWay: true,
		marker: "has(%[1]s.spec.tolerations) && %[1]s.spec.tolerations.exists(t, has(t.key) && t.key == 'spot')",
		makes: func(t *corev1.PodTemplateSpec, _ string) {
			t.Spec.Tolerations = []corev1.Toleration{
				{Key: "spot", Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule},
			}
		},
	},
	{
		name:   "env",
		marker: "%[1]s.spec.containers.exists(c, has(c.env) && c.env.exists(e, has(e.value) && e.value == '2'))",
		makes:  main(func(c *corev1.Container) { c.Env[0].Value = "2" }),
	},
	{name: "account", beside: "no-account", makes: func(t *corev1.PodTemplateSpec, _ string) {
		t.Spec.ServiceAccountName = "shop-2"
	}},
	{name: "class", beside: "no-class", makes: func(t *corev1.PodTemplateSpec, namespace string) {
		t.Spec.PriorityClassName = "high-" + namespace
	}},
	{name: "host-pid", beside: "pod-security", makes: func(t *corev1.PodTemplateSpec, _ string) {
		t.Spec.HostPID = true
	}},
}

func main(how func(*corev1.Container)) func(*corev1.PodTemplateSpec, string) {
	return func(t *corev1.PodTemplateSpec, _ string) { how(&t.Spec.Containers[0]) }
}

var policies = []appsv1alpha1.PodUpdatePolicy{
	appsv1alpha1.PodUpdateInPlaceIfPossible, appsv1alpha1.PodUpdateInPlaceOnly, appsv1alpha1.PodUpdateRecreate,
	appsv1alpha1.PodUpdateReplace,
}

// writes are those by which a Pod gets the change, in their order; none if it cannot.
func (c change) writes(policy appsv1alpha1.PodUpdatePolicy) []write {
	switch {
	case policy == appsv1alpha1.PodUpdateReplace:
		return []write{surge, remove}
	case policy == appsv1alpha1.PodUpdateInPlaceOnly && c.inPlace == "":
		return nil
	case policy == appsv1alpha1.PodUpdateRecreate || c.inPlace == "":
		return []write{remove, create}
	default:
		return []write{c.inPlace}
	}
}
