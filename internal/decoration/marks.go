package decoration

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
)

// Mark is a revision of a decoration that a Pod has.
type Mark struct {
	Name     string `json:"name"`
	Revision string `json:"revision"`
}

// Refusal is a revision of a decoration that a Pod cannot have.
type Refusal struct {
	Mark
	// Why names the field and who else has it.
	Why string `json:"why"`
}

// MarksOf are the decorations that a Pod has by its annotations: nil without the annotation, or if it cannot be read.
func MarksOf(annotations map[string]string) []Mark {
	return MarksIn(annotations[appsv1alpha1.PodDecorationRevisionsAnnotation])
}

// RefusedOf are the decorations that a Pod cannot have by its annotations.
func RefusedOf(annotations map[string]string) []Refusal {
	return listIn[Refusal](annotations[appsv1alpha1.PodDecorationRefusedAnnotation])
}

// MarksIn reads a list of marks: nil for what is none. Each has both fields, and no two have the same name.
func MarksIn(text string) []Mark {
	marks := listIn[Mark](text)
	names := map[string]bool{}
	for _, m := range marks {
		if m.Name == "" || m.Revision == "" || names[m.Name] {
			return nil
		}
		names[m.Name] = true
	}
	return marks
}

func listIn[T any](text string) []T {
	var list []T
	if text == "" || json.Unmarshal([]byte(text), &list) != nil {
		return nil
	}
	return list
}

// Key is the same text for the same decorations, whatever their order, and "" for none. MarksIn reads it.
func Key(marks []Mark) string {
	if len(marks) == 0 {
		return ""
	}
	text, err := Text(slices.SortedFunc(slices.Values(marks), byName))
	if err != nil {
		return "" // strings can be encoded
	}
	return text
}

// Keys are two keys of a Pod by its annotations: of the decorations that it was made with, those among them that it
// cannot have, and of those that it is to have. A list that cannot be read asks for nothing.
func Keys(annotations map[string]string) (made, desired string) {
	marks := slices.Clone(MarksOf(annotations))
	for _, r := range RefusedOf(annotations) {
		marks = append(marks, r.Mark)
	}
	made = Key(marks)
	if wanted := MarksIn(annotations[appsv1alpha1.PodDecorationDesiredAnnotation]); wanted != nil {
		return made, Key(wanted)
	}
	return made, made
}

func byName(a, b Mark) int {
	return cmp.Or(strings.Compare(a.Name, b.Name), strings.Compare(a.Revision, b.Revision))
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

// mark writes on a Pod which decorations it has, and which it cannot have.
func mark(pod map[string]any, marks []Mark, refused []Refusal) error {
	text, err := Text(marks)
	if err != nil {
		return err
	}
	metadata := child(pod, "metadata")
	annotations := child(metadata, "annotations")
	annotations[appsv1alpha1.PodDecorationRevisionsAnnotation] = text
	if len(refused) > 0 {
		why, err := json.Marshal(refused)
		if err != nil {
			return fmt.Errorf("encoding the refused decorations: %w", err)
		}
		annotations[appsv1alpha1.PodDecorationRefusedAnnotation] = string(why)
	}
	for _, m := range marks {
		child(metadata, "labels")[appsv1alpha1.PodDecorationLabelPrefix+m.Name] = m.Revision
	}
	return nil
}
