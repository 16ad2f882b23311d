package revision

import (
	"fmt"
	"slices"

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
	if dropped := decoration.Dropped(from, to); len(dropped) > 0 {
		change.Forcing = slices.Concat(bounded(dropped), change.Forcing)
	}
	return change, refused, nil
}
