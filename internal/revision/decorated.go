package revision

import (
	"fmt"
	"strings"

	"kusionstack.io/kuperator/internal/decoration"
)

// Decorated is the revision as PodDecorations make its Pods, and those that its Pods cannot have. So a Pod with another
// template and other decorations is compared once, with Explain.
func (d *Data) Decorated(decorations []decoration.Decoration) (*Data, []decoration.Refusal, error) {
	template, refused, err := decoration.Render(d.template, decorations)
	if err != nil {
		return nil, nil, fmt.Errorf("decorating the template: %w", err)
	}
	decorated, err := ofTemplate(template, d.claims)
	if err != nil {
		return nil, nil, err
	}
	decorated.claims, decorated.templates = d.claims, d.templates
	for path, value := range d.unknown {
		if strings.HasPrefix(path, claimTemplates) {
			decorated.unknown[path] = value
		}
	}
	return decorated, refused, nil
}
