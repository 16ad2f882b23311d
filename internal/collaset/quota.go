package collaset

import (
	"regexp"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	resourcehelper "k8s.io/component-helpers/resource"
)

// exceeded is how the API server's quota admission words a refusal
// (k8s.io/apiserver/pkg/admission/plugin/resourcequota, Kubernetes 1.36): the resources that would exceed the quota,
// and their figures.
var exceeded = regexp.MustCompile(`exceeded quota: [^,]+, requested: (\S+), used: (\S+), limited: (\S+)`)

// fitsAfter reports whether the Pod that a quota has no room for would fit once another is gone. A Pod that is created
// again comes after that one, but a dry run of its creation counts both. False if the answer cannot be read.
func fitsAfter(message string, gone *corev1.Pod) bool {
	figures := figuresOf(message)
	for name, f := range figures {
		f.used.Add(f.requested)
		f.used.Sub(usageOf(gone, name))
		if f.used.Cmp(f.limit) > 0 {
			return false
		}
	}
	return len(figures) > 0
}

// isFullFor reports whether a quota that refuses one Pod has no room for the other either. False if the answer cannot
// be read.
func isFullFor(message string, other *corev1.Pod) bool {
	for name, f := range figuresOf(message) {
		f.used.Add(usageOf(other, name))
		if f.used.Cmp(f.limit) > 0 {
			return true
		}
	}
	return false
}

// quotaFigures are those of one resource.
type quotaFigures struct{ requested, used, limit resource.Quantity }

// figuresOf reads a refusal, by resource. It is empty if something in it cannot be read.
func figuresOf(message string) map[string]quotaFigures {
	m := exceeded.FindStringSubmatch(message)
	if m == nil {
		return nil
	}
	requested, used, limited := quantities(m[1]), quantities(m[2]), quantities(m[3])
	out := map[string]quotaFigures{}
	for name, q := range requested {
		limit, limits := limited[name]
		sum, counts := used[name]
		if !limits || !counts {
			return nil
		}
		out[name] = quotaFigures{q, sum, limit}
	}
	return out
}

// quantities reads a list such as "pods=1,requests.cpu=150m". It is empty if something in it cannot be read.
func quantities(list string) map[string]resource.Quantity {
	out := map[string]resource.Quantity{}
	for _, part := range strings.Split(list, ",") {
		name, value, ok := strings.Cut(part, "=")
		q, err := resource.ParseQuantity(value)
		if !ok || err != nil {
			return nil
		}
		out[name] = q
	}
	return out
}

// usageOf is what a Pod counts for one resource of a quota: see "Compute Resource Quota" in Kubernetes' documentation.
func usageOf(pod *corev1.Pod, name string) resource.Quantity {
	if name == "pods" || name == "count/pods" {
		return *resource.NewQuantity(1, resource.DecimalSI)
	}
	if limit, ok := strings.CutPrefix(name, "limits."); ok {
		return resourcehelper.PodLimits(pod, resourcehelper.PodResourcesOptions{})[corev1.ResourceName(limit)]
	}
	return resourcehelper.PodRequests(pod, resourcehelper.PodResourcesOptions{})[corev1.ResourceName(
		strings.TrimPrefix(name, "requests."))]
}
