package decoration

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"gomodules.xyz/jsonpatch/v2"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
)

// Decoration is a revision of a PodDecoration that a Pod is to have.
type Decoration struct {
	// Name is of the PodDecoration, Revision of its ControllerRevision.
	Name, Revision string
	// Weight is its place: decorations are rendered by ascending weight, and by name where that is equal.
	Weight int32
	// Template is as Parse returns it without an error.
	Template *Template
}

// ErrDecorated means that the Pod has other decorations already, which cannot be taken out.
var ErrDecorated = errors.New("the Pod has other decorations already")

// Render returns a Pod with decorations, and those that it cannot have: they are left out, and the others rendered. pod
// is a Pod, or a template of Pods, as its workload made it, and is left as it is. A Pod that has all of the decorations
// already is returned as it is, one that has others is ErrDecorated. The order of the list does not matter. A Pod that
// is to have none has an empty list of marks after that: it was seen.
func Render(pod map[string]any, decorations []Decoration) (decorated map[string]any, refused []Refusal, err error) {
	if made, _ := Keys((&unstructured.Unstructured{Object: pod}).GetAnnotations()); made != "" {
		wanted := make([]Mark, 0, len(decorations))
		for _, d := range decorations {
			wanted = append(wanted, Mark{d.Name, d.Revision})
		}
		if made != Key(wanted) {
			return nil, nil, ErrDecorated
		}
		return runtime.DeepCopyJSON(pod), nil, nil
	}
	return renderInto(newCanvas(pod), decorations)
}

// renderInto renders decorations into a Pod without marks.
func renderInto(c *canvas, decorations []Decoration) (decorated map[string]any, refused []Refusal, err error) {
	decorations = slices.SortedFunc(slices.Values(decorations), func(a, b Decoration) int {
		return Compare(a.Weight, b.Weight, a.Name, b.Name)
	})
	var marks []Mark
	for _, d := range decorations {
		next := &canvas{runtime.DeepCopyJSON(c.pod), maps.Clone(c.added), c.changes.clone()}
		if err := next.render(d); err != nil {
			refused = append(refused, Refusal{Mark{d.Name, d.Revision}, err.Error()})
			continue
		}
		c = next
		marks = append(marks, Mark{d.Name, d.Revision})
	}
	if err := mark(c.pod, marks, refused, c.changes); err != nil {
		return nil, nil, err
	}
	return c.pod, refused, nil
}

// Compare orders two decorations, given their weights and names, as they are rendered.
func Compare(weight, otherWeight int32, name, otherName string) int {
	return cmp.Or(cmp.Compare(weight, otherWeight), strings.Compare(name, otherName))
}

// canvas is a Pod that decorations are rendered into.
type canvas struct {
	pod map[string]any
	// added are the decorations that brought containers, by the containers' names. The others are primary.
	added   map[string]string
	changes *changes
}

// newCanvas is a canvas with a copy of a Pod.
func newCanvas(pod map[string]any) *canvas {
	return &canvas{runtime.DeepCopyJSON(pod), map[string]string{}, newChanges()}
}

func (c *canvas) render(d Decoration) error {
	t := d.Template
	if err := c.metadata(t); err != nil {
		return err
	}
	if err := c.initContainers(t, d.Name); err != nil {
		return err
	}
	c.primaryContainers(t)
	if err := c.containers(t, d.Name); err != nil {
		return err
	}
	mergeBy(child(c.pod, "spec"), "volumes", t.Volumes, "name")
	c.scheduling(t)
	return nil
}

func (c *canvas) metadata(t *Template) error {
	for _, m := range t.Metadata {
		isOverwritten := m.PatchPolicy == appsv1alpha1.OverwriteMetadata
		labels := child(child(c.pod, "metadata"), "labels")
		for key, value := range m.Labels {
			if old, is := labels[key].(string); !is || isOverwritten {
				labels[key] = value
				if _, isKnown := c.changes.Labels[key]; !isKnown {
					c.changes.Labels[key] = nil
					if is {
						c.changes.Labels[key] = &old
					}
				}
			}
		}
		annotations := child(child(c.pod, "metadata"), "annotations")
		for _, key := range slices.Sorted(maps.Keys(m.Annotations)) {
			before, is := annotations[key].(string)
			value := m.Annotations[key]
			if m.PatchPolicy == appsv1alpha1.MergePatchJsonMetadata {
				merged, err := mergePatch(cmp.Or(before, "{}"), value)
				if err != nil {
					return fmt.Errorf("annotation %s of the Pod is not JSON, so nothing can be merged into it", key)
				}
				value = merged
			} else if is && !isOverwritten {
				continue
			}
			annotations[key] = value
			if !is {
				c.changes.Annotations = append(c.changes.Annotations, key)
			}
		}
	}
	return nil
}

func (c *canvas) initContainers(t *Template, decoration string) error {
	for _, added := range t.InitContainers {
		name := text(added, "name")
		if indexOf(c.list("containers"), name) >= 0 {
			return fmt.Errorf("init container %q has the name of %s", name, c.owner(name))
		}
		if indexOf(c.list("initContainers"), name) < 0 {
			c.setList("initContainers", append(c.list("initContainers"), runtime.DeepCopyJSON(added)))
			c.added[name] = decoration
			c.changes.InitContainers = append(c.changes.InitContainers, name)
		}
	}
	return nil
}

// owner says whose a container is.
func (c *canvas) owner(container string) string {
	if by := c.added[container]; by != "" {
		return fmt.Sprintf("a container of PodDecoration %s", by)
	}
	return "a container of the workload"
}

func (c *canvas) primaryContainers(t *Template) {
	for _, change := range t.PrimaryContainers {
		list := c.list("containers")
		var primary []map[string]any
		for _, item := range list {
			if o, is := item.(map[string]any); is && c.added[text(o, "name")] == "" {
				primary = append(primary, o)
			}
		}
		if len(primary) == 0 {
			continue
		}
		switch change.TargetPolicy {
		case "", appsv1alpha1.InjectAllContainers:
		case appsv1alpha1.InjectFirstContainer:
			primary = primary[:1]
		case appsv1alpha1.InjectLastContainer:
			primary = primary[len(primary)-1:]
		case appsv1alpha1.InjectByName:
			isOther := func(o map[string]any) bool { return text(o, "name") != change.Name }
			primary = slices.DeleteFunc(primary, isOther)
		}
		for _, container := range primary {
			if change.Image != "" {
				container["image"] = change.Image
			}
			mergeBy(container, "env", change.Env, "name")
			mergeBy(container, "volumeMounts", change.VolumeMounts, "mountPath")
		}
	}
}

func (c *canvas) containers(t *Template, decoration string) error {
	var before, after []any
	list := c.list("containers")
	for _, container := range t.Containers {
		added := runtime.DeepCopyJSON(container)
		name, policy := text(added, "name"), appsv1alpha1.ContainerInjectPolicy(text(added, "injectPolicy"))
		delete(added, "injectPolicy")
		if indexOf(c.list("initContainers"), name) >= 0 {
			return fmt.Errorf("container %q has the name of an init container, %s", name, c.owner(name))
		}
		switch i := indexOf(list, name); {
		case i >= 0:
			list[i] = added
		case policy == appsv1alpha1.AfterPrimaryContainer:
			after = append(after, added)
		default:
			before = append(before, added)
		}
		c.added[name] = decoration
	}
	if len(t.Containers) > 0 {
		c.setList("containers", slices.Concat(before, list, after))
	}
	return nil
}

// tolerationKeys are the fields that tell tolerations apart.
var tolerationKeys = []string{"key", "effect", "operator"}

func (c *canvas) scheduling(t *Template) {
	spec := child(c.pod, "spec")
	mergeBy(spec, "tolerations", t.Tolerations, tolerationKeys...)
	if t.RuntimeClassName != nil {
		spec["runtimeClassName"] = *t.RuntimeClassName
	}
	if t.Affinity == nil {
		return
	}
	if t.Affinity.OverrideAffinity != nil {
		spec["affinity"] = runtime.DeepCopyJSON(t.Affinity.OverrideAffinity)
	}
	if len(t.Affinity.NodeSelectorTerms) > 0 {
		required := child(child(child(spec, "affinity"), "nodeAffinity"), "requiredDuringSchedulingIgnoredDuringExecution")
		terms, _ := required["nodeSelectorTerms"].([]any)
		for _, term := range t.Affinity.NodeSelectorTerms {
			terms = append(terms, runtime.DeepCopyJSON(term))
		}
		required["nodeSelectorTerms"] = terms
	}
}

// list is a list of the Pod's spec.
func (c *canvas) list(field string) []any {
	list, _ := child(c.pod, "spec")[field].([]any)
	return list
}

func (c *canvas) setList(field string, list []any) { child(c.pod, "spec")[field] = list }

// mergeBy adds objects to a list of an object. One that is there with the same values of the keys is replaced.
func mergeBy(in map[string]any, field string, added []map[string]any, keys ...string) {
	if len(added) == 0 {
		return
	}
	list, _ := in[field].([]any)
	for _, addition := range added {
		o := runtime.DeepCopyJSON(addition)
		isSame := func(item any) bool {
			other, is := item.(map[string]any)
			return is && !slices.ContainsFunc(keys, func(key string) bool { return valueOf(other, key) != valueOf(o, key) })
		}
		if i := slices.IndexFunc(list, isSame); i >= 0 {
			list[i] = o
		} else {
			list = append(list, o)
		}
	}
	in[field] = list
}

// valueOf is a field that tells an object apart. A toleration without an operator has Equal.
func valueOf(o map[string]any, key string) string {
	value := text(o, key)
	if key == "operator" && value == "" {
		return "Equal"
	}
	return value
}

// indexOf is the place of the object of that name in a list, -1 without one.
func indexOf(list []any, name string) int {
	return slices.IndexFunc(list, func(item any) bool {
		o, is := item.(map[string]any)
		return is && text(o, "name") == name
	})
}

// child is an object in an object. It is made if it is not there.
func child(o map[string]any, field string) map[string]any {
	inner, is := o[field].(map[string]any)
	if !is {
		inner = map[string]any{}
		o[field] = inner
	}
	return inner
}

// Patch is the JSON patch that makes a Pod a decorated one. Decorations take nothing away, so each operation sets a
// field of metadata or spec. Both have spec.
func Patch(pod, decorated map[string]any) []jsonpatch.JsonPatchOperation {
	var patch []jsonpatch.JsonPatchOperation
	for _, part := range []string{"metadata", "spec"} {
		before, isThere := pod[part].(map[string]any)
		after, _ := decorated[part].(map[string]any)
		if !isThere && after != nil {
			patch = append(patch, jsonpatch.NewOperation("add", "/"+part, after))
			continue
		}
		for _, field := range slices.Sorted(maps.Keys(after)) {
			if !reflect.DeepEqual(before[field], after[field]) {
				patch = append(patch, jsonpatch.NewOperation("add", "/"+part+"/"+field, after[field]))
			}
		}
	}
	return patch
}
