package grants

import (
	"slices"
	"strings"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
)

// observeRelief finds the Pods in whose place another Pod of their owner serves, by the label that collaset-controller
// gives that one. Such a Pod is one too many: when it leaves, as many serve as before it was replaced. So no check that
// both belong to counts it, and none holds it. A Pod that is on its way out, or that another one relieves, relieves
// none.
func (d *decision) observeRelief() {
	for _, p := range d.pods {
		origin, isNew := p.labels[appsv1alpha1.ReplacePairOriginNameLabel]
		if !isNew || !p.inService || p.held || p.Owner == "" {
			continue
		}
		i, found := slices.BinarySearchFunc(d.pods, origin, func(p *pod, name string) int {
			return strings.Compare(p.Name, name)
		})
		if !found || d.pods[i].Owner != p.Owner {
			continue
		}
		if _, replaces := d.pods[i].labels[appsv1alpha1.ReplacePairOriginNameLabel]; !replaces {
			d.pods[i].relief = p
		}
	}
}

// isRelieved reports whether the Pod is left out of the check, because another Pod of the check serves in its place.
func (p *policy) isRelieved(pod *pod) bool { return pod.relief != nil && p.in[pod.relief.index] }

// surplus are the Pods of each owner that are left out of the check.
func (p *policy) surplus(d *decision) []int {
	surplus := make([]int, len(d.owners))
	for _, pod := range d.pods {
		if pod.owner >= 0 && !pod.Terminal && p.isRelieved(pod) {
			surplus[pod.owner]++
		}
	}
	return surplus
}

// surges reports whether each of the Pods for which in is true can be replaced before it goes.
func (d *decision) surges(in []bool) bool {
	found := false
	for i, p := range d.pods {
		if !in[i] {
			continue
		}
		if p.owner < 0 || !d.owners[p.owner].Surges {
			return false
		}
		found = true
	}
	return found
}
