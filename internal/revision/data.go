package revision

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	kjson "sigs.k8s.io/json"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/internal/decoration"
)

// Data is the parsed content of one revision. It is immutable.
type Data struct {
	template map[string]any   // as stored
	normal   map[string]any   // template in normal form
	claims   []map[string]any // volume claim templates in normal form, by name
	unknown  map[string]any   // what the Pod type does not know, by path

	templates []ClaimTemplate
}

// Parse reads a revision's data, as Render or Kuperator wrote it. Data without a template is an error.
func Parse(data []byte) (*Data, error) {
	var content struct {
		Spec struct {
			Template             map[string]any   `json:"template"`
			VolumeClaimTemplates []map[string]any `json:"volumeClaimTemplates"`
		} `json:"spec"`
	}
	if err := kjson.UnmarshalCaseSensitivePreserveInts(data, &content); err != nil {
		return nil, fmt.Errorf("the revision's data is not the JSON it should be: %w", err)
	}
	if content.Spec.Template == nil {
		return nil, errors.New("the revision's data has no spec.template")
	}
	template, claims := content.Spec.Template, content.Spec.VolumeClaimTemplates
	delete(template, "$patch")
	decoration.Unmark(template) // a template that was copied from a Pod
	d, err := ofTemplate(template, claims)
	if err != nil {
		return nil, err
	}
	for _, claim := range claims {
		path := fmt.Sprintf("%s[%s]", claimTemplates, nameOf(object(claim["metadata"])))
		normal, err := normalise(claim, &corev1.PersistentVolumeClaim{}, path, d.unknown)
		if err != nil {
			return nil, err
		}
		template, err := claimTemplate(claim, normal, d.unknownOf(path))
		if err != nil {
			return nil, err
		}
		d.claims, d.templates = append(d.claims, normal), append(d.templates, template)
	}
	slices.SortStableFunc(d.claims, func(a, b map[string]any) int {
		return strings.Compare(nameOf(object(a["metadata"])), nameOf(object(b["metadata"])))
	})
	return d, nil
}

// ofTemplate is a revision of a template, without the claims of its Pods.
func ofTemplate(template map[string]any, claims []map[string]any) (*Data, error) {
	d := &Data{template: template, unknown: map[string]any{}}
	var err error
	d.normal, err = normalise(withoutClaimed(template, claims), &corev1.PodTemplateSpec{}, "template", d.unknown)
	return d, err
}

// unknownOf is what the type of the object at a path does not know.
func (d *Data) unknownOf(path string) map[string]any {
	unknown := map[string]any{}
	for at, value := range d.unknown {
		if strings.HasPrefix(at, path+".") {
			unknown[at[len(path):]] = value
		}
	}
	return unknown
}

// Template is a copy of the Pod template as it was stored, with the fields that this version does not know.
func (d *Data) Template() map[string]any { return runtime.DeepCopyJSON(d.template) }

// Same reports whether the two revisions mean the same Pods and claims.
func (d *Data) Same(other *Data) bool {
	return reflect.DeepEqual(d.normal, other.normal) && reflect.DeepEqual(d.claims, other.claims) &&
		reflect.DeepEqual(d.unknown, other.unknown)
}

// SameTemplate is Same for revisions that may have been made for other content of the configuration that they follow.
func (d *Data) SameTemplate(other *Data) bool { return d.unconfigured().Same(other.unconfigured()) }

// unconfigured is the revision without ConfigurationAnnotation, in normal form only.
func (d *Data) unconfigured() *Data {
	annotations := object(object(d.normal["metadata"])["annotations"])
	if annotations[appsv1alpha1.ConfigurationAnnotation] == nil {
		return d
	}
	normal := runtime.DeepCopyJSON(d.normal)
	metadata := object(normal["metadata"])
	if delete(object(metadata["annotations"]), appsv1alpha1.ConfigurationAnnotation); len(annotations) == 1 {
		delete(metadata, "annotations")
	}
	prune(normal)
	return &Data{normal: normal, claims: d.claims, unknown: d.unknown}
}

// normalise puts an object of the core API into normal form, in which all that means the same is the same: through its
// Go type, which settles nulls, with what the API server fills in, and with lists in one order where they have none.
// What the type does not know is noted in unknown, by its path in the normal form.
func normalise(object map[string]any, typed any, path string, unknown map[string]any) (map[string]any, error) {
	raw, err := json.Marshal(object)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	strict, err := kjson.UnmarshalStrict(raw, typed)
	if err != nil {
		return nil, fmt.Errorf("%s does not fit its type, correct it: %w", path, err)
	}
	fill(typed)
	settled, err := json.Marshal(typed)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	var normal map[string]any
	if err := json.Unmarshal(settled, &normal); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	delete(normal, "status")
	// The fields that the type does not know go where they belong until lists have their order.
	for _, problem := range strict {
		at, ok := strings.CutPrefix(problem.Error(), `unknown field "`)
		if !ok {
			continue
		}
		at = strings.TrimSuffix(at, `"`)
		if value := lookUp(object, at); !empty(value) && !place(normal, at, unknownField{value}) {
			unknown[path+"."+at] = value
		}
	}
	prune(normal)
	settle(normal)
	takeUnknown(normal, path, unknown)
	prune(normal)
	return normal, nil
}

// nothing are the objects that stand for nothing where they are empty. Others mean something (emptyDir, podSelector).
var nothing = []string{
	"metadata", "resources", "securityContext", "capabilities", "lifecycle", "dnsConfig",
	"affinity", "nodeAffinity", "podAffinity", "podAntiAffinity",
}

// prune removes what stands for nothing in templates: timestamps, the kind of a claim, and empty objects of some
// fields.
func prune(value any) {
	switch v := value.(type) {
	case map[string]any:
		if v["apiVersion"] == "v1" && v["kind"] == "PersistentVolumeClaim" {
			delete(v, "apiVersion")
			delete(v, "kind")
		}
		for key, child := range v {
			if key == "labels" || key == "annotations" {
				continue
			}
			m, _ := child.(map[string]any)
			if key == "metadata" {
				delete(m, "creationTimestamp")
			}
			prune(child)
			if m != nil && len(m) == 0 && slices.Contains(nothing, key) {
				delete(v, key)
			}
		}
	case []any:
		for _, child := range v {
			prune(child)
		}
	}
}

// unknownField is the value of a field that the type does not know, among those that it knows.
type unknownField struct{ value any }

// MarshalJSON writes the value.
func (u unknownField) MarshalJSON() ([]byte, error) { return json.Marshal(u.value) }

// takeUnknown moves all unknownField below a value into unknown, by path.
func takeUnknown(value any, path string, unknown map[string]any) {
	switch v := value.(type) {
	case map[string]any:
		for key, child := range v {
			at := path + "." + key
			if u, ok := child.(unknownField); ok {
				unknown[at] = u.value
				delete(v, key)
				continue
			}
			takeUnknown(child, at, unknown)
		}
	case []any:
		for i, child := range v {
			takeUnknown(child, fmt.Sprintf("%s[%d]", path, i), unknown)
		}
	}
}

// step is the first field of a path such as spec.containers[0].x, with the indexes behind it, and the rest.
func step(path string) (field string, indexes []int, rest string) {
	field, rest, _ = strings.Cut(path, ".")
	field, list, indexed := strings.Cut(field, "[")
	for _, text := range strings.Split(strings.TrimSuffix(list, "]"), "][") {
		if i, err := strconv.Atoi(text); indexed && err == nil {
			indexes = append(indexes, i)
		}
	}
	return field, indexes, rest
}

// place sets the value at a path, with the objects on the way to it; false if a list on the way is too short.
func place(root map[string]any, path string, value any) bool {
	field, indexes, rest := step(path)
	switch {
	case rest == "" && len(indexes) == 0:
		root[field] = value
		return true
	case rest == "":
		return false
	}
	next := root[field]
	if next == nil && len(indexes) == 0 {
		next = map[string]any{}
		root[field] = next
	}
	for _, i := range indexes {
		items, _ := next.([]any)
		if i < 0 || i >= len(items) {
			return false
		}
		next = items[i]
	}
	m, ok := next.(map[string]any)
	return ok && place(m, rest, value)
}

// lookUp finds the value at a path such as spec.containers[0].x; nil if it is not there.
func lookUp(root map[string]any, path string) any {
	field, indexes, rest := step(path)
	value := root[field]
	for _, i := range indexes {
		items, _ := value.([]any)
		if i < 0 || i >= len(items) {
			return nil
		}
		value = items[i]
	}
	if rest == "" {
		return value
	}
	m, _ := value.(map[string]any)
	return lookUp(m, rest)
}

// nameOf is the name in an object, "" if it has none.
func nameOf(m map[string]any) string {
	name, _ := m["name"].(string)
	return name
}

// empty reports whether a value of an unknown field stands for nothing: null.
func empty(value any) bool { return value == nil }
