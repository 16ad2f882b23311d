package exchange

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
)

// maxParameter is how many bytes one value may have.
const maxParameter = 32 << 10

// Pod is what is known of a Pod without reading it.
type Pod struct {
	Namespace, Name, UID string
}

// NeedPod reports whether a parameter takes something of the Pod that must be read first.
func NeedPod(parameters []appsv1alpha1.Parameter) bool {
	return slices.ContainsFunc(parameters, func(p appsv1alpha1.Parameter) bool {
		path := pathOf(p)
		return path != "" && path != "metadata.name" && path != "metadata.namespace" && path != "metadata.uid"
	})
}

// Parameters are the values to send with a Pod. full is the Pod as JSON; nil if NeedPod is false. The error says which
// parameter to correct, and how. Never nil without an error.
func Parameters(parameters []appsv1alpha1.Parameter, pod Pod, full map[string]any) (map[string]string, error) {
	values := make(map[string]string, len(parameters))
	for _, p := range parameters {
		value, err := valueOf(p, pod, full)
		if err != nil {
			return nil, fmt.Errorf("webhook parameter %q: %w", p.Key, err)
		}
		if len(value) > maxParameter {
			return nil, fmt.Errorf("webhook parameter %q: the Pod's value has more than %d bytes: choose a smaller field",
				p.Key, maxParameter)
		}
		values[p.Key] = value
	}
	return values, nil
}

// pathOf is the field that the parameter takes its value from; "" for none.
func pathOf(p appsv1alpha1.Parameter) string {
	if p.Value != "" || p.ValueFrom == nil || p.ValueFrom.FieldRef == nil {
		return ""
	}
	return p.ValueFrom.FieldRef.FieldPath
}

func valueOf(p appsv1alpha1.Parameter, pod Pod, full map[string]any) (string, error) {
	if p.Value == "" && p.ValueFrom != nil && p.ValueFrom.FieldRef != nil && p.ValueFrom.FieldRef.FieldPath == "" {
		return "", fmt.Errorf("fieldPath is empty: set it, for example to status.podIP")
	}
	switch path := pathOf(p); path {
	case "":
		return p.Value, nil
	case "metadata.name":
		return pod.Name, nil
	case "metadata.namespace":
		return pod.Namespace, nil
	case "metadata.uid":
		return pod.UID, nil
	case "metadata.labels", "metadata.annotations":
		entries, err := walk(full, path)
		if err != nil {
			return "", err
		}
		return lines(entries), nil
	default:
		return fieldOf(full, path)
	}
}

func fieldOf(full map[string]any, path string) (string, error) {
	if of, key, subscripted := subscript(path); subscripted {
		if of != "metadata.labels" && of != "metadata.annotations" {
			return "", fmt.Errorf(
				"fieldPath is %q: only metadata.labels['key'] and metadata.annotations['key'] may have a key in brackets", path)
		}
		entries, err := walk(full, of)
		if err != nil {
			return "", err
		}
		all, _ := entries.(map[string]any)
		return text(all[key])
	}
	value, err := walk(full, path)
	if err != nil {
		return "", err
	}
	return text(value)
}

// subscript splits path['key'].
func subscript(path string) (of, key string, ok bool) {
	rest, closed := strings.CutSuffix(path, "']")
	if !closed {
		return "", "", false
	}
	return strings.Cut(rest, "['")
}

// walk is the value at a dotted path; nil if its last name is missing, as fields without a value are.
func walk(full map[string]any, path string) (any, error) {
	names := strings.Split(path, ".")
	at := full
	for i, name := range names {
		if name == "" {
			return nil, fmt.Errorf("fieldPath is %q: it must be names with dots between, such as status.podIP", path)
		}
		value := at[name]
		if i == len(names)-1 {
			return value, nil
		}
		next, isObject := value.(map[string]any)
		if !isObject {
			return nil, fmt.Errorf("fieldPath is %q, but the Pod has nothing below %s: correct it", path,
				strings.Join(names[:i+1], "."))
		}
		at = next
	}
	return nil, nil
}

// text is a string as it is, nothing as "", and everything else as JSON.
func text(value any) (string, error) {
	switch v := value.(type) {
	case nil:
		return "", nil
	case string:
		return v, nil
	}
	encoded, err := json.Marshal(value)
	if err != nil {
		return "", fmt.Errorf("writing the value as JSON: %w", err)
	}
	return string(encoded), nil
}

// lines writes labels or annotations as sorted lines of key="value".
func lines(entries any) string {
	all, _ := entries.(map[string]any)
	written := make([]string, 0, len(all))
	for key, value := range all {
		written = append(written, fmt.Sprintf("%s=%q", key, value))
	}
	slices.Sort(written)
	return strings.Join(written, "\n")
}
