package decoration

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
)

// RenderBoth renders two lists of decorations into a Pod that was rendered with the first: before is the Pod as it is,
// and after as it is to be. What the second does not set any more is in Dropped, and is left as it is. from are the
// decorations that the Pod has, without refused ones. pod is left as it is.
func RenderBoth(
	pod map[string]any, from, to []Decoration,
) (before, after map[string]any, refused []Refusal, err error) {
	if before, _, err = renderInto(base(pod, from, from), from); err != nil {
		return nil, nil, nil, err
	}
	after, refused, err = renderInto(base(pod, from, to), to)
	return before, after, refused, err
}

// base is a Pod that was rendered with decorations, as others can be rendered into it.
//
// A container that both bring stays in its place, and is none of the workload's. What was changed besides is undone as
// far as the Pod tells what it had before. On a Pod that Kuperator v0.7 decorated, an init container or a label or
// annotation of policy Retain that is as a decoration has it is one that the decoration brought.
func base(pod map[string]any, from, to []Decoration) *canvas {
	c := newCanvas(pod)
	object := &unstructured.Unstructured{Object: c.pod}
	done := changesOf(object.GetAnnotations())
	if done != nil {
		object.SetLabels(OwnLabels(object.GetLabels(), object.GetAnnotations()))
		annotations := child(child(c.pod, "metadata"), "annotations")
		maps.DeleteFunc(annotations, func(key string, _ any) bool { return slices.Contains(done.Annotations, key) })
		c.remove("initContainers", func(o map[string]any) bool {
			return slices.Contains(done.InitContainers, text(o, "name"))
		})
	}
	Unmark(c.pod)
	brings := map[string]bool{}
	for _, d := range to {
		for _, container := range d.Template.Containers {
			brings[text(container, "name")] = true
		}
	}
	for _, d := range from {
		for _, container := range d.Template.Containers {
			name := text(container, "name")
			if c.added[name] = d.Name; !brings[name] {
				c.remove("containers", func(o map[string]any) bool { return text(o, "name") == name })
			}
		}
		if done == nil {
			c.takeOut(d.Template)
		}
	}
	return c
}

// takeOut undoes what a template did to a Pod that does not tell what it had before.
func (c *canvas) takeOut(t *Template) {
	for _, container := range t.InitContainers {
		c.remove("initContainers", func(o map[string]any) bool {
			return text(o, "name") == text(container, "name") && text(o, "image") == text(container, "image")
		})
	}
	for _, m := range t.Metadata {
		if m.PatchPolicy == "" || m.PatchPolicy == appsv1alpha1.RetainMetadata {
			c.forget("labels", m.Labels)
			c.forget("annotations", m.Annotations)
		}
	}
}

// remove takes objects out of a list of the Pod's spec.
func (c *canvas) remove(field string, is func(map[string]any) bool) {
	if list := c.list(field); len(list) > 0 {
		c.setList(field, slices.DeleteFunc(list, func(item any) bool {
			o, isObject := item.(map[string]any)
			return isObject && is(o)
		}))
	}
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

// Dropped are the fields of a Pod that decorations set and others do not, sorted: what it had there before is not
// known, so only another Pod gets rid of them. Each is named once, with a decoration that sets it.
func Dropped(pod map[string]any, from, to []Decoration) []string {
	done := changesOf((&unstructured.Unstructured{Object: pod}).GetAnnotations())
	before, after := settings(from, done), settings(to, done)
	var dropped []string
	for _, field := range slices.Sorted(maps.Keys(before)) {
		if _, is := after[field]; !is {
			dropped = append(dropped, fmt.Sprintf("%s of PodDecoration %s", field, before[field]))
		}
	}
	return dropped
}

// settings are the fields that decorations set and nothing undoes, each with a decoration that sets it. done is
// what the Pod tells of that, nil without it.
func settings(decorations []Decoration, done *changes) map[string]string {
	set := map[string]string{}
	for _, d := range decorations {
		t := d.Template
		name := func(format string, arguments ...any) { set[fmt.Sprintf(format, arguments...)] = d.Name }
		for _, m := range t.Metadata {
			if m.PatchPolicy == "" || m.PatchPolicy == appsv1alpha1.RetainMetadata {
				continue // base takes it away
			}
			for key := range m.Labels {
				if done == nil {
					name("labels[%s]", key)
				}
			}
			for key, value := range m.Annotations {
				switch {
				case done != nil && slices.Contains(done.Annotations, key): // base takes it away
				case m.PatchPolicy == appsv1alpha1.MergePatchJsonMetadata: // what another patch leaves of it is not known
					name("annotations[%s] with %s", key, value)
				default:
					name("annotations[%s]", key)
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
			path := fmt.Sprintf("primaryContainers[%s %s]", cmp.Or(p.TargetPolicy, appsv1alpha1.InjectAllContainers), p.Name)
			if p.Image != "" {
				name("%s.image", path)
			}
			each(path+".env", p.Env, "name")
			each(path+".volumeMounts", p.VolumeMounts, "mountPath")
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

// Annotated are the annotations of workloads that decorations change if they are there, sorted.
func Annotated(decorations []Decoration) []string {
	keys := map[string]bool{}
	for _, d := range decorations {
		for _, m := range d.Template.Metadata {
			if m.PatchPolicy != "" && m.PatchPolicy != appsv1alpha1.RetainMetadata {
				for key := range m.Annotations {
					keys[key] = true
				}
			}
		}
	}
	return slices.Sorted(maps.Keys(keys))
}

// Named are the names of containers of workloads that decorations change, sorted.
func Named(lists ...[]Decoration) []string {
	names := map[string]bool{}
	for _, d := range slices.Concat(lists...) {
		for _, p := range d.Template.PrimaryContainers {
			if p.TargetPolicy == appsv1alpha1.InjectByName {
				names[p.Name] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(names))
}
