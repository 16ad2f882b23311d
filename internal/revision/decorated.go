package revision

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"kusionstack.io/kuperator/internal/decoration"
)

// Decorated is the revision as PodDecorations make its Pods, and those that its Pods cannot have. So a Pod with another
// template and other decorations is compared once, with Explain.
func (d *Data) Decorated(decorations []decoration.Decoration) (*Data, []decoration.Refusal, error) {
	template, refused, err := decoration.Render(d.template, decorations)
	if err != nil {
		return nil, nil, fmt.Errorf("decorating the template: %w", err)
	}
	decorated := *d
	decorated.template, decorated.unknown = template, map[string]any{}
	for path, value := range d.unknown {
		if strings.HasPrefix(path, claimTemplates) {
			decorated.unknown[path] = value
		}
	}
	decorated.normal, err = normalise(withoutClaimed(template, d.claims), &corev1.PodTemplateSpec{}, "template",
		decorated.unknown)
	if err != nil {
		return nil, nil, err
	}
	return &decorated, refused, nil
}

// ofTemplate is a revision of a template alone, as it is.
func ofTemplate(template map[string]any) (*Data, error) {
	d := &Data{template: template, unknown: map[string]any{}}
	var err error
	d.normal, err = normalise(template, &corev1.PodTemplateSpec{}, "template", d.unknown)
	return d, err
}
