package decoration

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// Keys of Pods. All but DesiredAnnotation are Kuperator's.
const (
	// RevisionsAnnotation has the decorations of a Pod: a JSON list of Mark, in the order in which they were rendered.
	RevisionsAnnotation = domain + "revisions"
	// DesiredAnnotation has the decorations that a Pod is to have, as RevisionsAnnotation. Without it those are what the
	// Pod has.
	DesiredAnnotation = domain + "desired"
	// LabelPrefix, followed by the name of a decoration, is the label that has the decoration's revision.
	LabelPrefix = domain + "pd-"

	domain = "poddecoration.kusionstack.io/"
)

// Mark is a revision of a decoration that a Pod has.
type Mark struct {
	Name     string `json:"name"`
	Revision string `json:"revision"`
}

// MarksOf are the decorations that a Pod has by its annotations: nil without the annotation, or if it cannot be read.
func MarksOf(annotations map[string]string) []Mark { return marksIn(annotations[RevisionsAnnotation]) }

// DesiredOf are the decorations that a Pod is to have by its annotations, and whether they say so.
func DesiredOf(annotations map[string]string) (desired []Mark, is bool) {
	text, is := annotations[DesiredAnnotation]
	return marksIn(text), is
}

func marksIn(text string) []Mark {
	var marks []Mark
	if json.Unmarshal([]byte(text), &marks) != nil {
		return nil
	}
	return marks
}

// SameMarks reports whether two lists have the same decorations. Their order does not matter: Kuperator's has none.
func SameMarks(a, b []Mark) bool {
	byName := func(x, y Mark) int { return strings.Compare(x.Name+"/"+x.Revision, y.Name+"/"+y.Revision) }
	return slices.Equal(slices.SortedFunc(slices.Values(a), byName), slices.SortedFunc(slices.Values(b), byName))
}

// Text is marks as the annotations have them.
func Text(marks []Mark) (string, error) {
	if marks == nil {
		marks = []Mark{}
	}
	text, err := json.Marshal(marks)
	if err != nil {
		return "", fmt.Errorf("encoding the decorations: %w", err)
	}
	return string(text), nil
}

// mark writes on a Pod which decorations it has.
func mark(pod map[string]any, marks []Mark) error {
	text, err := Text(marks)
	if err != nil {
		return err
	}
	metadata := child(pod, "metadata")
	child(metadata, "annotations")[RevisionsAnnotation] = text
	for _, m := range marks {
		child(metadata, "labels")[LabelPrefix+m.Name] = m.Revision
	}
	return nil
}
