package decoration

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/runtime"
)

// Again renders two lists of decorations into a Pod that was rendered with the first: before is the Pod as it is, and
// after as it is to be; what the second does not set any more is in Dropped, and is left as it is. from are those that
// the Pod has, none that were refused. pod is left as it is.
func Again(pod map[string]any, from, to []Decoration) (before, after map[string]any, refused []Refusal, err error) {
	render := func(decorations []Decoration) (map[string]any, []Refusal, error) {
		return renderInto(base(pod, from, decorations), decorations)
	}
	if before, _, err = render(from); err != nil {
		return nil, nil, nil, err
	}
	after, refused, err = render(to)
	return before, after, refused, err
}

// base is a Pod that was rendered with decorations, as others can be rendered into it. A container that both bring
// stays, and is none of the workload's: it keeps its place. An init container is theirs if it has their image: one of
// the workload stays, and they bring none then. Labels and annotations that are kept where they are there go if they have
// the decorations' value.
func base(pod map[string]any, from, to []Decoration) *canvas {
	c := &canvas{pod: runtime.DeepCopyJSON(pod), added: map[string]string{}}
	Unmark(c.pod)
	brings := func(decorations []Decoration, list func(*Template) []map[string]any, name string) (of, image string, is bool) {
		for _, d := range decorations {
			for _, container := range list(d.Template) {
				if text(container, "name") == name {
					of, image, is = d.Name, text(container, "image"), true
				}
			}
		}
		return of, image, is
	}
	keep := func(field string, goes func(name, image string) bool) {
		if list := c.list(field); len(list) > 0 {
			c.setList(field, slices.DeleteFunc(list, func(item any) bool {
				o, is := item.(map[string]any)
				return is && goes(text(o, "name"), text(o, "image"))
			}))
		}
	}
	keep("containers", func(name, _ string) bool {
		of, _, is := brings(from, func(t *Template) []map[string]any { return t.Containers }, name)
		if is {
			c.added[name] = of
		}
		_, _, stays := brings(to, func(t *Template) []map[string]any { return t.Containers }, name)
		return is && !stays
	})
	keep("initContainers", func(name, image string) bool {
		_, theirs, is := brings(from, func(t *Template) []map[string]any { return t.InitContainers }, name)
		return is && theirs == image
	})
	for _, d := range from {
		for _, m := range d.Template.Metadata {
			if m.PatchPolicy == "" || m.PatchPolicy == Retain {
				c.forget("labels", m.Labels)
				c.forget("annotations", m.Annotations)
			}
		}
	}
	return c
}

// forget takes labels or annotations away that have these values.
func (c *canvas) forget(field string, values map[string]string) {
	present := child(child(c.pod, "metadata"), field)
	for key, value := range values {
		if present[key] == value {
			delete(present, key)
		}
	}
}

// Dropped are the fields that decorations set and others do not, sorted: what a Pod had there before is not known, so
// only another Pod gets rid of them. Each is named once, with a decoration that sets it.
func Dropped(from, to []Decoration) []string {
	before, after := settings(from), settings(to)
	var dropped []string
	for _, field := range slices.Sorted(maps.Keys(before)) {
		if _, is := after[field]; !is {
			dropped = append(dropped, fmt.Sprintf("%s of PodDecoration %s", field, before[field]))
		}
	}
	return dropped
}

// settings are the fields that decorations set, each with a decoration that sets it.
func settings(decorations []Decoration) map[string]string {
	set := map[string]string{}
	for _, d := range decorations {
		t := d.Template
		name := func(format string, of ...any) { set[fmt.Sprintf(format, of...)] = d.Name }
		for _, m := range t.Metadata {
			switch m.PatchPolicy {
			case Overwrite:
				for key := range m.Labels {
					name("labels[%s]", key)
				}
				for key := range m.Annotations {
					name("annotations[%s]", key)
				}
			case MergePatchJSON: // what another patch leaves of it is not known
				for key, patch := range m.Annotations {
					name("annotations[%s] with %s", key, patch)
				}
			}
		}
		each := func(field string, list []map[string]any, keys ...string) {
			for _, o := range list {
				var id []string
				for _, key := range keys {
					id = append(id, valueOf(o, key))
				}
				name("%s%v", field, id)
			}
		}
		each("initContainers", t.InitContainers, "name")
		each("containers", t.Containers, "name")
		each("volumes", t.Volumes, "name")
		each("tolerations", t.Tolerations, tolerationKeys...)
		for _, p := range t.PrimaryContainers {
			of := fmt.Sprintf("primaryContainers[%s %s]", cmp.Or(p.TargetPolicy, TargetAll), p.Name)
			if p.Image != "" {
				name("%s.image", of)
			}
			each(of+".env", p.Env, "name")
			each(of+".volumeMounts", p.VolumeMounts, "mountPath")
		}
		if t.RuntimeClassName != nil {
			name("runtimeClassName")
		}
		if t.Affinity != nil && t.Affinity.OverrideAffinity != nil {
			name("affinity")
		}
		if t.Affinity != nil && len(t.Affinity.NodeSelectorTerms) > 0 {
			name("affinity.nodeSelectorTerms")
		}
	}
	return set
}
