package revision

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	kjson "sigs.k8s.io/json"
)

// Data is the parsed content of one revision. It is immutable.
type Data struct {
	template map[string]any   // as stored
	normal   map[string]any   // template in normal form
	claims   []map[string]any // volume claim templates in normal form
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
	d := &Data{template: content.Spec.Template, unknown: map[string]any{}}
	delete(d.template, "$patch")
	var err error
	if d.normal, err = normalise(d.template, &corev1.PodTemplateSpec{}, "template", d.unknown); err != nil {
		return nil, err
	}
	for i, claim := range content.Spec.VolumeClaimTemplates {
		path := fmt.Sprintf("volumeClaimTemplates[%d]", i)
		typed := &corev1.PersistentVolumeClaim{}
		normal, err := normalise(claim, typed, path, d.unknown)
		if err != nil {
			return nil, err
		}
		template, err := claimTemplate(claim, typed, normal, d.unknownOf(path))
		if err != nil {
			return nil, err
		}
		d.claims, d.templates = append(d.claims, normal), append(d.templates, template)
	}
	return d, nil
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

// HasClaims says whether the revision has volume claim templates.
func (d *Data) HasClaims() bool { return len(d.claims) > 0 }

// Same says whether the two revisions mean the same Pods and claims.
func (d *Data) Same(other *Data) bool {
	return reflect.DeepEqual(d.normal, other.normal) && reflect.DeepEqual(d.claims, other.claims) &&
		reflect.DeepEqual(d.unknown, other.unknown)
}

// normalise puts an object through its Go type, which settles quantities, empty fields and nulls, and notes what the
// type does not know in unknown.
func normalise(object map[string]any, typed any, path string, unknown map[string]any) (map[string]any, error) {
	raw, err := json.Marshal(object)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	strict, err := kjson.UnmarshalStrict(raw, typed)
	if err != nil {
		return nil, fmt.Errorf("%s does not fit its type, correct it: %w", path, err)
	}
	for _, problem := range strict {
		at, ok := strings.CutPrefix(problem.Error(), `unknown field "`)
		if !ok {
			continue
		}
		at = strings.TrimSuffix(at, `"`)
		if value := lookUp(object, at); !empty(value) {
			unknown[path+"."+at] = value
		}
	}
	settled, err := json.Marshal(typed)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	var normal map[string]any
	if err := json.Unmarshal(settled, &normal); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	delete(normal, "status")
	prune(normal)
	return normal, nil
}

// prune removes what stands for nothing in templates: timestamps, empty resources, empty metadata and the protocol
// that is the default. Other empty objects (emptyDir) mean something and stay.
func prune(value any) {
	switch v := value.(type) {
	case map[string]any:
		delete(v, "creationTimestamp")
		for _, key := range []string{"resources", "metadata"} {
			if m, ok := v[key].(map[string]any); ok && key == "metadata" {
				delete(m, "creationTimestamp")
			}
			if m, ok := v[key].(map[string]any); ok && len(m) == 0 {
				delete(v, key)
			}
		}
		for _, port := range objects(v["ports"]) {
			if port["protocol"] == string(corev1.ProtocolTCP) {
				delete(port, "protocol")
			}
		}
		for key, child := range v {
			if key != "labels" && key != "annotations" {
				prune(child)
			}
		}
	case []any:
		for _, child := range v {
			prune(child)
		}
	}
}

// lookUp finds the value at a path such as spec.containers[0].x; nil if it is not there.
func lookUp(value any, path string) any {
	for path != "" {
		if strings.HasPrefix(path, "[") {
			end := strings.IndexByte(path, ']')
			items, ok := value.([]any)
			if end < 0 || !ok {
				return nil
			}
			i, err := strconv.Atoi(path[1:end])
			if err != nil || i < 0 || i >= len(items) {
				return nil
			}
			value, path = items[i], strings.TrimPrefix(path[end+1:], ".")
			continue
		}
		m, ok := value.(map[string]any)
		if !ok {
			return nil
		}
		end := strings.IndexAny(path, ".[")
		if end < 0 {
			return m[path]
		}
		value, path = m[path[:end]], strings.TrimPrefix(path[end:], ".")
	}
	return value
}

// empty says whether a value of an unknown field stands for nothing: null.
func empty(value any) bool { return value == nil }
