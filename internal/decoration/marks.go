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

// RevisionIn is the revision of a decoration among marks, "" if it is not among them.
func RevisionIn(marks []Mark, name string) string {
	for _, m := range marks {
		if m.Name == name {
			return m.Revision
		}
	}
	return ""
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
	if text == "" { // most Pods: nothing is allocated for them
		return nil
	}
	var list []T
	if json.Unmarshal([]byte(text), &list) != nil {
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
			appsv1alpha1.PodDecorationChangesAnnotation} {
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

// changes are what decorations did to a Pod, as far as that is not seen on it.
type changes struct {
	// Labels are what labels were that decorations set, nil for one that was not there. It comes first: a policy reads it.
	Labels map[string]*string `json:"labels"`
	// Annotations and InitContainers are the names of those that were not there.
	Annotations    []string `json:"annotations,omitempty"`
	InitContainers []string `json:"initContainers,omitempty"`
}

func newChanges() *changes { return &changes{Labels: map[string]*string{}} }

func (c *changes) clone() *changes {
	return &changes{maps.Clone(c.Labels), slices.Clone(c.Annotations), slices.Clone(c.InitContainers)}
}

// changesOf is what decorations did to a Pod by its annotations: nil if that is not known, as of a Pod that Kuperator
// v0.7 decorated, or if it has none, however the annotation got there.
func changesOf(annotations map[string]string) *changes {
	if len(MarksOf(annotations)) == 0 {
		return nil
	}
	return changesIn(annotations[appsv1alpha1.PodDecorationChangesAnnotation])
}

// changesIn reads the annotation: nil without a text, or if it cannot be read.
func changesIn(text string) *changes {
	c := newChanges()
	if text == "" || json.Unmarshal([]byte(text), c) != nil || c.Labels == nil {
		return nil
	}
	return c
}

// KeepChanges is the annotation of a Pod that is changed while it has decorations that are not known any more: next is
// the annotation without what those did, which is kept as now has it.
func KeepChanges(now, next string) (string, error) {
	kept := changesIn(now)
	if kept == nil {
		return next, nil
	}
	if added := changesIn(next); added != nil {
		for key, value := range added.Labels {
			if _, is := kept.Labels[key]; !is {
				kept.Labels[key] = value
			}
		}
		kept.Annotations = union(kept.Annotations, added.Annotations)
		kept.InitContainers = union(kept.InitContainers, added.InitContainers)
	}
	text, err := json.Marshal(kept)
	if err != nil {
		return "", fmt.Errorf("encoding what decorations change: %w", err)
	}
	return string(text), nil
}

func union(a, b []string) []string {
	for _, name := range b {
		if !slices.Contains(a, name) {
			a = append(a, name)
		}
	}
	return a
}

// OwnLabels are a Pod's labels without those that decorations set: by them it is selected, before it is decorated and
// after that. Of a Pod that Kuperator v0.7 decorated it is not known what it had, so they are all but the marks.
func OwnLabels(labels, annotations map[string]string) map[string]string {
	var before map[string]*string
	if c := changesOf(annotations); c != nil {
		before = c.Labels
	}
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

// mark writes on a Pod which decorations it has, which it cannot have, and what they did.
func mark(pod map[string]any, marks []Mark, refused []Refusal, done *changes) error {
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
	if len(marks) == 0 {
		return nil
	}
	changed, err := json.Marshal(done)
	if err != nil {
		return fmt.Errorf("encoding what decorations change: %w", err)
	}
	annotations[appsv1alpha1.PodDecorationChangesAnnotation] = string(changed)
	for _, m := range marks {
		child(metadata, "labels")[appsv1alpha1.PodDecorationLabelPrefix+m.Name] = m.Revision
	}
	return nil
}
