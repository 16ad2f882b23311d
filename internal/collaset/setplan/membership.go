package setplan

import (
	"cmp"
	"fmt"
	"slices"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
)

// Reasons of blockers.
const (
	excludeNotAllowed = "ExcludeNotAllowed"
	includeNotAllowed = "IncludeNotAllowed"
)

// membership lets Pods go that are to be excluded, and takes Pods in.
type membership struct {
	*Mode
	*Identity
	*Scale
	*History
	*findings

	exclusions []*Pod
	inclusions []Inclusion
}

// plan lets Pods go and takes Pods in. In such a plan nothing is created or removed: the next one counts what
// came of it.
func (m *membership) plan() ([]*Pod, []Inclusion) {
	for _, it := range m.pods.items {
		switch {
		case it.excluding:
			m.exclude(it)
		case it.staying != "" && !it.Selected:
			m.notes.block(it, excludeNotAllowed, "spec.selector does not match it any more, so it should be released: "+
				it.staying)
		case it.staying != "":
			m.notes.block(it, excludeNotAllowed, it.staying)
		}
	}
	if len(m.exclusions) > 0 {
		return m.exclusions, nil // what they leave behind is free for others next time
	}
	if len(m.Candidates) == 0 {
		return nil, nil
	}
	candidates := slices.SortedFunc(slices.Values(m.Candidates),
		func(a, b Candidate) int { return cmp.Compare(a.Name, b.Name) })
	taken := m.ledger.takenIDs()
	for id, e := range m.ledger.entries { // an entry that no Pod ever had is for the next that comes
		if e.active() && e.marked(appsv1alpha1.ContextPodJustCreate) && m.pods.holder[id] == nil &&
			m.pods.leaving[id] == nil {
			delete(taken, id)
		}
	}
	for i := range candidates {
		c := &candidates[i]
		if refusal := m.refusal(c); refusal != "" {
			m.notes.blockName(c.Name, includeNotAllowed, refusal)
			continue
		}
		m.include(c.Pod, taken)
	}
	return nil, m.inclusions
}

// exclude lets a Pod go and gives its ID up.
func (m *membership) exclude(it *item) {
	m.notes.more = true
	m.exclusions = append(m.exclusions, it.Pod)
	if e := m.ledger.entries[it.ID]; e != nil && !e.dropped && m.pods.holder[it.ID] == nil &&
		m.pods.leaving[it.ID] == nil {
		m.ledger.drop(e)
	}
}

// refusal says why a Pod is not included, "" if it is.
func (m *membership) refusal(c *Candidate) string {
	switch p := c.Pod; {
	case m.Sequential:
		return "no Pod can be included with names in persistent sequence, because its name is none of them: empty podToInclude"
	case p == nil:
		return fmt.Sprintf(
			"there is no Pod of this name with label %s=%s: set the label on it, or take the name off podToInclude",
			appsv1alpha1.ControlLabel, appsv1alpha1.ControlValue)
	case c.Owner != "":
		return "it belongs to " + c.Owner + ": exclude it there first"
	case p.Excluded || slices.Contains(m.ToExclude, c.Name):
		return fmt.Sprintf("it is to be excluded as well: remove its label %s and its name from podToExclude",
			appsv1alpha1.ToExcludeLabel)
	case !p.Selected:
		return "spec.selector does not match its labels: set those labels on it"
	case !p.Live():
		return "it is not alive: take its name off podToInclude"
	case p.ToDelete || m.pods.named[c.Name]:
		return "it is to be deleted as well: take back one of the two"
	case p.Replacing:
		return "it has labels of a replacement: remove them"
	case c.Refusal != "":
		return c.Refusal
	case m.Paused:
		return "the CollaSet is paused"
	default:
		return ""
	}
}

// include takes a Pod in: under its own ID if that is free, else under the lowest one. The entry is stored first; if
// the Pod then does not follow, the next plan finds its own entry, vacant and never used, and takes that. taken are the
// IDs that it cannot have.
func (m *membership) include(pod *Pod, taken map[int]bool) {
	id := pod.ID
	used := func() bool { return taken[id] || m.claims.hasOtherClaims(id, pod) }
	if id == NoID || used() {
		for id = 0; used(); id++ {
			continue
		}
	}
	taken[id] = true
	revision := pod.Revision
	if !m.known(revision) {
		revision = m.UpdatedRevision
	}
	if e := m.ledger.entries[id]; e == nil || e.dropped {
		m.ledger.add(id, revision).set(appsv1alpha1.ContextPodJustCreate, appsv1alpha1.ContextTrue)
	} else {
		m.ledger.must(e, appsv1alpha1.ContextRevision, revision)
	}
	m.notes.more = true
	m.inclusions = append(m.inclusions, Inclusion{Pod: pod, ID: id})
}
