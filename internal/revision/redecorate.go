package revision

import (
	"fmt"
	"slices"
	"strings"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/internal/decoration"
)

// Redecorate is what lies between a Pod that was made with decorations, by whatever workload, and the same Pod with
// others; refused are those of the others that it cannot have. pod is its JSON, and from has none that were refused.
// Change.Patch makes the change with an empty revision.
func Redecorate(
	pod map[string]any, from, to []decoration.Decoration, can Capabilities,
) (change Change, refused []decoration.Refusal, err error) {
	metadata := object(pod["metadata"])
	template := map[string]any{"spec": pod["spec"], "metadata": map[string]any{
		"labels": metadata["labels"], "annotations": metadata["annotations"],
	}}
	before, after, refused, err := decoration.RenderBoth(template, from, to)
	if err != nil {
		return Change{}, nil, fmt.Errorf("decorating the Pod: %w", err)
	}
	dataBefore, err := ofTemplate(before, nil)
	if err != nil {
		return Change{}, nil, err
	}
	dataAfter, err := ofTemplate(after, nil)
	if err != nil {
		return Change{}, nil, err
	}
	change = Explain(dataBefore, dataAfter, can)
	for i, field := range change.Forcing {
		change.Forcing[i] = strings.TrimPrefix(field, "template.") // it is a Pod
	}
	// What the Pod could not have before is not in from.
	_, wasRefused := object(metadata["annotations"])[appsv1alpha1.PodDecorationRefusedAnnotation]
	if wasRefused && len(refused) == 0 {
		put(&change.Annotations, appsv1alpha1.PodDecorationRefusedAnnotation, nil)
	}
	if dropped := decoration.Dropped(template, from, to); len(dropped) > 0 {
		change.Forcing = slices.Concat(bounded(dropped), change.Forcing)
	}
	return change, refused, nil
}

// Forecast is what lies between Pods of any workload with some decorations and with others, as far as that does not
// depend on the workload. Fields are those of a PodDecoration's spec.
func Forecast(from, to []decoration.Decoration, can Capabilities) (Change, error) {
	containers := []any{map[string]any{"name": "app", "image": "app"}}
	for _, name := range decoration.Named(from, to) {
		containers = append(containers, map[string]any{"name": name, "image": "app"})
	}
	annotations := map[string]any{}
	for _, key := range decoration.Annotated(from) {
		annotations[key] = "{}" // what was there before is not known then
	}
	pod := map[string]any{"metadata": map[string]any{"annotations": annotations},
		"spec": map[string]any{"containers": containers}}
	before, _, err := decoration.Render(pod, from)
	if err != nil {
		return Change{}, fmt.Errorf("decorating a Pod: %w", err)
	}
	change, _, err := Redecorate(before, from, to, can)
	for i, field := range change.Forcing {
		if of, is := strings.CutPrefix(field, "spec."); is {
			change.Forcing[i] = "template." + of
		}
	}
	return change, err
}
