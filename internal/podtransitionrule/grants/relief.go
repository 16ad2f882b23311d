package grants

import (
	"slices"
	"strings"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
	"kusionstack.io/kuperator/internal/drain"
)

// observeRelief finds the Pods in whose place another Pod of their owner serves: of a Pod and its replacement, one is
// too many while the other serves, and when it leaves, as many serve as before. collaset-controller labels the
// replacement. The Pod that was there first is the one too many once its replacement serves, unless that is to leave
// again. A Pod that may be on its way out relieves none, nor does one that is itself one too many.
func (d *decision) observeRelief() {
	for _, fresh := range d.pods {
		origin := d.originOf(fresh)
		if origin == nil || fresh.relief != nil || origin.relief != nil {
			continue
		}
		if first := d.originOf(origin); first != nil && !first.Terminating && !first.Terminal {
			continue // it is to take another one's place itself
		}
		leaves := func(p *pod) bool { return len(p.ops) > 0 }
		stays := func(p *pod) bool { return p.inService && !p.held }
		switch {
		case stays(fresh) && (!leaves(fresh) || leaves(origin) || !stays(origin)):
			origin.relief = fresh
		case stays(origin):
			fresh.relief = origin
		}
	}
	var chained []*pod // those whose relief is one too many as well
	for _, p := range d.pods {
		if p.relief != nil && p.relief.relief != nil {
			chained = append(chained, p)
		}
	}
	for _, p := range chained {
		p.relief = nil
	}
}

// originOf is the Pod of the same owner that this one is to take the place of, nil if there is none.
func (d *decision) originOf(p *pod) *pod {
	name, isNew := p.labels[appsv1alpha1.ReplacePairOriginNameLabel]
	if !isNew || p.Owner == "" {
		return nil
	}
	i, found := slices.BinarySearchFunc(d.pods, name, func(p *pod, name string) int {
		return strings.Compare(p.Name, name)
	})
	if !found || d.pods[i].Owner != p.Owner {
		return nil
	}
	return d.pods[i]
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

// surges reports whether each of the Pods for which in is true is replaced before an eviction takes it.
func (d *decision) surges(in []bool) bool {
	found := false
	for i, p := range d.pods {
		if !in[i] {
			continue
		}
		if p.owner < 0 || !d.owners[p.owner].Surges || !p.managed ||
			drain.IsDisabled(p.labels[podops.GracefulDeletionLabel], d.GracefulDeletion) {
			return false
		}
		found = true
	}
	return found
}
