package setplan

import "kusionstack.io/kuperator/api/podops"

// item is a Pod with what the decision finds out about it.
type item struct {
	*Pod
	op podops.Operation
	// during is the type of our operation while it is asked for or carried out, "" otherwise.
	during string
	// inService is true if the Pod has the label service-available.
	inService bool
	// twin is true if an older live Pod carries the same ID.
	twin      bool
	condemned bool
	inScope   bool
	// excluding is true if the Pod is to be excluded now: it does not count. staying says why it is not, although it should
	// be: it counts as gone for scale-in, and nothing that would delete it is done to it.
	excluding bool
	staying   string
	// putOff is true if a Pod that stays is to be excluded as soon as something else is over: until then it stays as it is.
	// With names in sequence that never comes: such a Pod is updated, and comes again when it has ended, like any other.
	putOff bool
	// ranks are the numbers of Pods of the same domain that scale-in would remove later, by constraint.
	ranks []int
	// pairing is what the labels say of a replacement, and wish whether there is to be one. pair is the pair of which this
	// is the origin, newOf the one of which it is the new Pod.
	pairing pairing
	wish    replaceReason
	pair    *pair
	newOf   *pair
	// named is true if podToDelete names the Pod.
	named bool
	// spared is true if the Pod is named, and is not deleted for that before it has another Pod's place.
	spared bool
	// handed is true if the Pod is on its way out by this plan; labels and told are for Plan.Labels.
	handed bool
	labels map[string]*string
	told   ReplacementEvent
}

// isNamed reports whether podToDelete names the Pod, or the other side of its pair.
func (it *item) isNamed() bool {
	p := it.pair
	if it.newOf != nil {
		p = it.newOf
	}
	named := func(half *item) bool { return half != nil && half.staying == "" && half.named }
	return named(it) || p != nil && (named(p.origin) || named(p.fresh))
}

// label sets a label and says whether that changes it.
func (it *item) label(key, value string) bool {
	if before, ok := it.View.Labels[key]; ok && before == value {
		return false
	}
	it.relabel(key, &value)
	return true
}

// unlabel removes a label and says whether it was there.
func (it *item) unlabel(key string) bool {
	if _, ok := it.View.Labels[key]; !ok {
		return false
	}
	it.relabel(key, nil)
	return true
}

func (it *item) relabel(key string, value *string) {
	if it.labels == nil {
		it.labels = map[string]*string{}
	}
	it.labels[key] = value
}

// survivor is the Pod of a replica that scale-in judges it by: the one that stays.
func (it *item) survivor() *item {
	if it.pair != nil && it.pair.committed {
		return it.pair.fresh
	}
	return it
}

// arriving reports whether the Pod is being replaced by one of this revision; for good says that nothing can stop that.
func (it *item) arriving(revision string) (comes, forGood bool) {
	if it.pair == nil || it.pair.revision() != revision {
		return false, false
	}
	return true, it.pair.committed
}
