package decoration

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"

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

// RefusedOf are the decorations that a Pod cannot have by its annotations: nil without the annotation, or if it cannot
// be read.
func RefusedOf(annotations map[string]string) []Refusal {
	return listIn(annotations[appsv1alpha1.PodDecorationRefusedAnnotation], func(r Refusal) Mark { return r.Mark })
}

// MarksIn reads a list of marks: nil for what is none. Each has names of objects, and no two are of one decoration.
func MarksIn(text string) []Mark { return listIn(text, func(m Mark) Mark { return m }) }

func listIn[T any](text string, mark func(T) Mark) []T {
	var list []T
	if text == "" || json.Unmarshal([]byte(text), &list) != nil {
		return nil
	}
	names := map[string]bool{}
	for _, item := range list {
		m := mark(item)
		isName := len(validation.IsDNS1123Subdomain(m.Name))+len(validation.IsDNS1123Subdomain(m.Revision)) == 0
		if !isName || names[m.Name] {
			return nil
		}
		names[m.Name] = true
	}
	return list
}

// Unmark takes what tells of decorations off a Pod, or off a template of Pods.
func Unmark(pod map[string]any) {
	metadata, is := pod["metadata"].(map[string]any)
	if !is {
		return
	}
	if annotations, is := metadata["annotations"].(map[string]any); is {
		for _, key := range []string{appsv1alpha1.PodDecorationRevisionsAnnotation,
			appsv1alpha1.PodDecorationRefusedAnnotation, appsv1alpha1.PodDecorationDesiredAnnotation,
			appsv1alpha1.PodDecorationLabelsAnnotation} {
			delete(annotations, key)
		}
	}
	if labels, is := metadata["labels"].(map[string]any); is {
		maps.DeleteFunc(labels, func(key string, _ any) bool {
			return strings.HasPrefix(key, appsv1alpha1.PodDecorationLabelPrefix)
		})
	}
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

// Made are the decorations that a Pod was made with: those that it has, and those that it cannot have.
func Made(has []Mark, refused []Refusal) []Mark {
	made := slices.Clone(has)
	for _, r := range refused {
		if !slices.ContainsFunc(has, func(m Mark) bool { return m.Name == r.Name }) {
			made = append(made, r.Mark)
		}
	}
	return made
}

// Keys are two keys of a Pod by its annotations: of the decorations that it was made with, those among them that it
// cannot have, and of those that it is to have. A list that cannot be read asks for nothing.
func Keys(annotations map[string]string) (made, desired string) {
	made = Key(Made(MarksOf(annotations), RefusedOf(annotations)))
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

// OwnLabels are a Pod's labels without those that decorations set: by them it is selected, before it is decorated and
// after that. Of a Pod that Kuperator v0.7 decorated it is not known what it had, so they are all but the marks.
func OwnLabels(labels, annotations map[string]string) map[string]string {
	before := labelsBefore(annotations)
	own := make(map[string]string, len(labels))
	for key, value := range labels {
		if _, is := before[key]; !is && !strings.HasPrefix(key, appsv1alpha1.PodDecorationLabelPrefix) {
			own[key] = value
		}
	}
	for key, value := range before {
		if value != nil {
			own[key] = *value
		}
	}
	return own
}

// labelsBefore are labels as they were before decorations set them, nil for one that was not there.
func labelsBefore(annotations map[string]string) map[string]*string {
	var before map[string]*string
	text, is := annotations[appsv1alpha1.PodDecorationLabelsAnnotation]
	if !is || json.Unmarshal([]byte(text), &before) != nil {
		return nil
	}
	return before
}

// mark writes on a Pod which decorations it has, which it cannot have, and what labels it had before.
func mark(pod map[string]any, marks []Mark, refused []Refusal, before map[string]*string) error {
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
	if before != nil {
		text, err := json.Marshal(before)
		if err != nil {
			return fmt.Errorf("encoding the labels: %w", err)
		}
		annotations[appsv1alpha1.PodDecorationLabelsAnnotation] = string(text)
	}
	for _, m := range marks {
		child(metadata, "labels")[appsv1alpha1.PodDecorationLabelPrefix+m.Name] = m.Revision
	}
	return nil
}
