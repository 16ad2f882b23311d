package setplan

import (
	"cmp"
	"slices"
	"strconv"
	"strings"

	appsv1 "k8s.io/api/apps/v1"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
)

// members are the Pods of the set, by what they really are.
type members struct {
	items   []*item       // all, by ID
	live    []*item       // live, not twins; by ID
	holder  map[int]*item // the live Pod of an ID
	leaving map[int]*item // a terminating or terminal Pod of an ID
	freed   map[int]bool  // IDs of Pods that are excluded in this plan
	named   map[string]bool
	pairs   []*pair // by the origin's ID
	// repairs are due to members whose labels do not say what they are.
	repairs []Repair
}

func newMembers(s *Snapshot, claims *claimIndex) *members {
	m := &members{
		items: make([]*item, len(s.Pods)), live: make([]*item, 0, len(s.Pods)), holder: make(map[int]*item, len(s.Pods)),
		leaving: map[int]*item{}, freed: map[int]bool{}, named: setOf(s.ToDelete),
	}
	excluded := setOf(s.ToExclude)
	pods := make([]item, len(s.Pods))
	for i := range s.Pods {
		pod, it := &s.Pods[i], &pods[i]
		*it = item{Pod: pod, Facts: pod.facts(), pairing: pairingOf(pod), named: m.named[pod.Name()]}
		m.identify(it, &s.Identity, &s.History, claims)
		if !it.Selected || it.Excluded || excluded[it.Name()] {
			it.excluding, it.staying = toExclude(s, it)
			it.putOff = it.staying != "" && !s.Sequential
		}
		m.items[i] = it
	}
	// Of several live Pods with one ID the oldest comes first and keeps it.
	slices.SortFunc(m.items, func(a, b *item) int {
		if a.ID != b.ID {
			return cmp.Compare(a.ID, b.ID)
		}
		return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.Name(), b.Name()))
	})
	for _, it := range m.items {
		switch {
		case it.excluding:
			m.freed[it.ID] = true
		case !it.Live():
			// Of several with one ID one that is being deleted counts: it is the one to wait for.
			if m.leaving[it.ID] == nil || it.View.Terminating {
				m.leaving[it.ID] = it
			}
		case it.ID == NoID:
			m.live = append(m.live, it)
		case m.holder[it.ID] != nil:
			it.twin, it.condemned = true, it.staying == ""
		default:
			m.holder[it.ID] = it
			m.live = append(m.live, it)
		}
	}
	return m
}

func setOf(names []string) map[string]bool {
	set := make(map[string]bool, len(names))
	for _, name := range names {
		set[name] = true
	}
	return set
}

// replicas is the number of live replicas: pairs count as one.
func (m *members) replicas() int {
	n := len(m.live)
	for _, p := range m.pairs {
		if p.replacement != nil {
			n--
		}
	}
	return n
}

// identify finds out which instance ID and revision a member really has. For the decision it has those; the labels
// follow.
func (m *members) identify(it *item, identity *Identity, history *History, claims *claimIndex) {
	id, revision := trueID(it.Pod, identity, claims), it.Revision
	if k := it.Known; revision == "" && k != nil && history.known(k.Revision) {
		revision = k.Revision
	}
	m.assume(it, id, revision)
}

// assume has a member be of an instance ID and a revision, whatever its labels say.
func (m *members) assume(it *item, id int, revision string) {
	if id == it.ID && revision == it.Revision {
		return
	}
	labels := map[string]string{}
	if id != it.ID {
		labels[appsv1alpha1.InstanceIDLabel] = strconv.Itoa(id)
	}
	if revision != it.Revision {
		labels[appsv1.ControllerRevisionHashLabelKey] = revision
	}
	m.repairs = append(m.repairs, Repair{Pod: it.Pod, Labels: labels})
	pod := *it.Pod // the snapshot's is not changed
	pod.ID, pod.Revision = id, revision
	it.Pod = &pod
}

// manage gives a Pod of the set back the label that it is managed.
func (m *members) manage(p *Pod) {
	labels := map[string]string{appsv1alpha1.ControlLabel: appsv1alpha1.ControlValue}
	m.repairs = append(m.repairs, Repair{Pod: p, Unmanaged: true, Labels: labels})
}

// trueID is the instance ID that a member has by its claims, which are never another one's, by what it said before, or
// else by its label.
func trueID(pod *Pod, identity *Identity, claims *claimIndex) int {
	if id := claims.claimedID(pod); id != NoID {
		return id
	}
	if pod.Known != nil && pod.Known.ID != NoID {
		return pod.Known.ID
	}
	if pod.ID == NoID && identity.Sequential {
		if suffix, ok := strings.CutPrefix(pod.Name(), identity.Name+"-"); ok {
			return parseID(suffix)
		}
	}
	return pod.ID
}

// toExclude reports whether a Pod that should be excluded is, now, and if not, why. A Pod that the selector does not
// match any more is excluded like one that is named.
func toExclude(s *Snapshot, it *item) (now bool, staying string) {
	switch {
	case it.View.Terminating, s.Deleting:
		return false, ""
	case s.Sequential:
		return false, "a Pod cannot be excluded with names in persistent sequence, because its successor would need its name"
	case it.named || it.ToDelete && !markedForNew(s.Pods, it):
		return false, "it is to be deleted as well: take back one of the two"
	case s.Paused:
		return false, "the CollaSet is paused"
	default:
		return true, ""
	}
}

// markedForNew reports whether a Pod has the mark for deletion because its replacement serves. Such a mark goes when
// the Pod is excluded: it is the replacement that wanted it, and that has its place then.
func markedForNew(pods []Pod, it *item) bool {
	id := it.pairing.newID
	return id != NoID && slices.ContainsFunc(pods, func(p Pod) bool { return p.ID == id && p.Live() && p.Available })
}

// item is a Pod with what the questions find out about it, in the order in which they are asked.
type item struct {
	*Pod
	*Facts
	// Identity. named is true if podToDelete names the Pod, twin if an older live Pod carries the same ID. pairing is what
	// the labels say of a replacement; pair is the pair of which this is the origin, newOf the one of which it is the new
	// Pod.
	named, twin bool
	pairing     pairing
	pair, newOf *pair
	// Membership. excluding is true if the Pod is to be excluded now: it does not count. staying is why it is not,
	// although it should be: it counts as gone for scale-in, and nothing that would delete it is done to it.
	excluding bool
	staying   string
	// putOff is true if a Pod that stays is to be excluded as soon as something else is over: until then it stays as it
	// is. With names in sequence that never comes: such a Pod is updated, and comes again when it has ended.
	putOff bool
	// Scale. condemned is true if the Pod is too many, as a twin, as one of the surplus, or as a new Pod that is taken
	// back. ranks are the numbers of Pods of the same domain that scale-in would remove later, by constraint. spared is
	// true if the Pod is named, and is not deleted for that before it has another Pod's place.
	condemned, spared bool
	ranks             []int
	// Rollout. inScope is true if the update strategy wants the Pod at the updated revision. goal is what it is to be made
	// of; undecorated is the reason if that is not what it was told, "" otherwise, and why says it to people. method is
	// how it gets to its goal, once that is known to be due, and trials are what the API server has to accept first.
	inScope          bool
	goal             Form
	undecorated, why string
	method           updateMethod
	trials           []Trial
	// Replacement. replaceFor is why there is to be one. handed is true if the Pod is on its way out because its replacement
	// serves; change and event are for Plan.Labels.
	replaceFor replaceReason
	handed     bool
	change     podops.Change
	event      ReplacementEvent
}

// isNamed reports whether podToDelete names the Pod, or the other side of its pair.
func (it *item) isNamed() bool {
	p := cmp.Or(it.newOf, it.pair)
	named := func(half *item) bool { return half != nil && half.staying == "" && half.named }
	return named(it) || p != nil && (named(p.origin) || named(p.replacement))
}

// label sets a label, and reports whether that changes it.
func (it *item) label(key, value string) bool {
	if before, ok := it.View.Labels[key]; ok && before == value {
		return false
	}
	it.relabel(key, &value)
	return true
}

// unlabel removes a label, and reports whether it was there.
func (it *item) unlabel(key string) bool {
	if _, ok := it.View.Labels[key]; !ok {
		return false
	}
	it.relabel(key, nil)
	return true
}

func (it *item) relabel(key string, value *string) {
	if it.change.Labels == nil {
		it.change.Labels = map[string]*string{}
	}
	it.change.Labels[key] = value
}

// withdraw takes the mark away that an update has set, unless others ask for it, too.
func (it *item) withdraw(mark string) {
	c := podops.Withdraw(it.View, mark, podops.AskerOther)
	for key, value := range c.Labels {
		it.relabel(key, value)
	}
	it.change.Annotations = c.Annotations
}
