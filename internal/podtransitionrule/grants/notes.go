package grants

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
)

// longestKey is the longest name that the part of an annotation's key after the "/" may have.
const longestKey = 63

// Note is what the annotations of one Pod should say about what it waits for.
type Note struct {
	PodName string
	PodUID  types.UID
	// PodVersion is the Pod's resourceVersion in the snapshot.
	PodVersion string
	// Blocked are the texts of rules that have something against the Pod and list it, by the annotation's key.
	Blocked map[string]string
	// Present are the annotations of rules that the Pod has, by key.
	Present map[string]string
	// Stale are the keys of those that are not removed when the Pod advances.
	Stale []string
}

// detail is the text of a note, as Kuperator writes it.
type detail struct {
	Stage      appsv1alpha1.TransitionRuleStage `json:"stage"`
	Passed     bool                             `json:"passed"`
	RejectInfo []appsv1alpha1.RejectInfo        `json:"rejectInfo,omitempty"`
}

// isLeaving reports whether the Pod is to be deleted. What becomes of an eviction depends on whether rules hold that.
func (v *verdict) isLeaving() bool { _, marked := v.labels[appsv1alpha1.ToDeleteLabel]; return marked }

// notes are those of Pods that are listed as blocked, or blocked and to be deleted, or have notes already, by the Pod's
// name.
func (d *decision) notes() []Note {
	notes := make([]Note, len(d.pods))
	waits := map[*pod]*waiter{} // who has notes already
	known := map[string]bool{}  // keys of rules that exist
	for i, p := range d.pods {
		notes[i] = Note{PodName: p.Name, PodUID: p.UID, PodVersion: p.ResourceVersion, Present: present(p.Annotations)}
		if notes[i].Present != nil {
			waits[p] = &waiter{blocked: map[string]bool{}}
		}
	}
	for i, r := range d.rules {
		if len(r.Name) > longestKey {
			continue // no annotation can have its name
		}
		key := podops.RuleDetailPrefix + "/" + r.Name
		known[key] = true
		for _, v := range d.verdicts[i] {
			if w := waits[v.pod]; w != nil {
				w.granted = w.granted || v.granted
				w.blocked[key] = w.blocked[key] || !v.granted
			}
			note := &notes[v.index]
			if _, has := note.Blocked[key]; !has && (v.listed || v.isLeaving()) && !v.granted {
				if note.Blocked == nil {
					note.Blocked = map[string]string{}
				}
				note.Blocked[key] = v.text()
			}
		}
	}
	for p, w := range waits {
		for key, text := range notes[p.index].Present {
			// Who is granted leaves the stage, and the note, by lifecycle-controller's write.
			if !w.blocked[key] && !w.granted && !p.Terminating && (!known[key] || !harmless(text)) {
				notes[p.index].Stale = append(notes[p.index].Stale, key)
			}
		}
		slices.Sort(notes[p.index].Stale)
	}
	return slices.DeleteFunc(notes, func(n Note) bool { return len(n.Blocked) == 0 && len(n.Stale) == 0 })
}

// harmless reports whether a note has nothing against its Pod. Kuperator leaves such notes on every Pod, here none is
// written: it is no reason for a write, and goes when the Pod next leaves a stage.
func harmless(text string) bool { return strings.Contains(text, `"passed":true`) }

// waiter is what rules say of a Pod that has notes.
type waiter struct {
	blocked map[string]bool // by key
	granted bool            // by any rule
}

// present are the notes that a Pod has, nil for none.
func present(annotations map[string]string) map[string]string {
	var notes map[string]string
	for key, text := range annotations {
		if strings.HasPrefix(key, podops.RuleDetailPrefix+"/") {
			if notes == nil {
				notes = map[string]string{}
			}
			notes[key] = text
		}
	}
	return notes
}

func (v *verdict) text() string {
	text, err := json.Marshal(detail{Stage: v.stage, RejectInfo: v.rejects})
	if err != nil {
		return "" // cannot be: there is nothing in it but texts
	}
	return string(text)
}

// Differences are the annotations that a Pod must be given, "" for those to be removed. ripe reports whether a text has
// been true for long enough.
func (n Note) Differences(ripe func(key, text string) bool) map[string]string {
	changes := map[string]string{}
	for _, key := range n.Stale {
		changes[key] = ""
	}
	for _, key := range slices.Sorted(maps.Keys(n.Blocked)) {
		text := n.Blocked[key]
		if text != "" && n.Present[key] != text && ripe(key, text) {
			changes[key] = text
		}
	}
	return changes
}
