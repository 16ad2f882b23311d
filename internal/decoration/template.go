package decoration

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"

	kjson "sigs.k8s.io/json"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
)

// Template is what a decoration adds. Containers, volumes and so on are JSON objects, as they were stored.
type Template struct {
	Metadata          []Metadata       `json:"metadata"`
	InitContainers    []map[string]any `json:"initContainers"`
	Containers        []map[string]any `json:"containers"` // with injectPolicy
	PrimaryContainers []Primary        `json:"primaryContainers"`
	Volumes           []map[string]any `json:"volumes"`
	Tolerations       []map[string]any `json:"tolerations"`
	Affinity          *Affinity        `json:"affinity"`
	RuntimeClassName  *string          `json:"runtimeClassName"`
}

// Metadata is labels and annotations, and what becomes of those that are there.
type Metadata struct {
	PatchPolicy appsv1alpha1.PodMetadataPatchPolicy `json:"patchPolicy"`
	Labels      map[string]string                   `json:"labels"`
	Annotations map[string]string                   `json:"annotations"`
}

// Primary is a change to containers of the workload. An empty Image changes none.
type Primary struct {
	TargetPolicy appsv1alpha1.PrimaryContainerInjectTargetPolicy `json:"targetPolicy"`
	Name         string                                          `json:"name"`
	Image        string                                          `json:"image"`
	Env          []map[string]any                                `json:"env"`
	VolumeMounts []map[string]any                                `json:"volumeMounts"`
}

// Affinity replaces a Pod's affinity, and adds terms to the node affinity that is required. Terms are alternatives, as
// in Kubernetes: one more lets a Pod go to more nodes, unless there were none.
type Affinity struct {
	OverrideAffinity  map[string]any   `json:"overrideAffinity"`
	NodeSelectorTerms []map[string]any `json:"nodeSelectorTerms"`
}

// Parse reads the data of a decoration's ControllerRevision: its template and its weight, 0 if it has none. A template
// that cannot be rendered is an error.
func Parse(data []byte) (template *Template, weight int32, err error) {
	var content struct {
		Spec struct {
			Template *Template `json:"template"`
			Weight   int32     `json:"weight"`
		} `json:"spec"`
	}
	if err := kjson.UnmarshalCaseSensitivePreserveInts(data, &content); err != nil {
		return nil, 0, fmt.Errorf("reading the template: %w", err)
	}
	if content.Spec.Template == nil {
		return nil, 0, errors.New("the template is missing")
	}
	return content.Spec.Template, content.Spec.Weight, content.Spec.Template.Validate()
}

// Validate returns what keeps the template from being rendered into any Pod, nil for nothing.
func (t *Template) Validate() error {
	var all []error
	wrong := func(format string, of ...any) { all = append(all, fmt.Errorf(format, of...)) }
	for i, m := range t.Metadata {
		path := fmt.Sprintf("metadata[%d]", i)
		switch m.PatchPolicy {
		case "", appsv1alpha1.RetainMetadata, appsv1alpha1.OverwriteMetadata:
		case appsv1alpha1.MergePatchJsonMetadata:
			if len(m.Labels) > 0 {
				wrong("%s.labels: %s merges annotations only; set labels in an entry of their own", path,
					appsv1alpha1.MergePatchJsonMetadata)
			}
			for key, value := range m.Annotations {
				if !json.Valid([]byte(value)) {
					wrong("%s.annotations[%s]: %s needs JSON", path, key, appsv1alpha1.MergePatchJsonMetadata)
				}
			}
		default:
			wrong("%s.patchPolicy: %q is none of %s, %s and %s", path, m.PatchPolicy, appsv1alpha1.RetainMetadata,
				appsv1alpha1.OverwriteMetadata, appsv1alpha1.MergePatchJsonMetadata)
		}
	}
	for i, p := range t.PrimaryContainers {
		path := fmt.Sprintf("primaryContainers[%d]", i)
		switch p.TargetPolicy {
		case "", appsv1alpha1.InjectAllContainers, appsv1alpha1.InjectFirstContainer, appsv1alpha1.InjectLastContainer:
		case appsv1alpha1.InjectByName:
			if p.Name == "" {
				wrong("%s.name: %s needs the name of a container", path, appsv1alpha1.InjectByName)
			}
		default:
			wrong("%s.targetPolicy: %q is none of %s, %s, %s and %s", path, p.TargetPolicy,
				appsv1alpha1.InjectAllContainers, appsv1alpha1.InjectByName, appsv1alpha1.InjectFirstContainer,
				appsv1alpha1.InjectLastContainer)
		}
		eachKeyed(p.Env, path+".env", "name", wrong)
		eachKeyed(p.VolumeMounts, path+".volumeMounts", "mountPath", wrong)
	}
	names := map[string]bool{}
	for _, list := range []struct {
		field string
		of    []map[string]any
	}{{"initContainers", t.InitContainers}, {"containers", t.Containers}} {
		eachKeyed(list.of, list.field, "name", wrong)
		for i, c := range list.of {
			name := text(c, "name")
			if names[name] && name != "" {
				wrong("%s[%d].name: there are two containers %q", list.field, i, name)
			}
			names[name] = true
		}
	}
	for i, c := range t.Containers {
		switch policy := appsv1alpha1.ContainerInjectPolicy(text(c, "injectPolicy")); policy {
		case "", appsv1alpha1.BeforePrimaryContainer, appsv1alpha1.AfterPrimaryContainer:
		default:
			wrong("containers[%d].injectPolicy: %q is none of %s and %s", i, policy, appsv1alpha1.BeforePrimaryContainer,
				appsv1alpha1.AfterPrimaryContainer)
		}
	}
	eachKeyed(t.Volumes, "volumes", "name", wrong)
	return errors.Join(all...)
}

// eachKeyed checks that each object of a list has the field that tells it apart.
func eachKeyed(list []map[string]any, path, key string, wrong func(string, ...any)) {
	for i, o := range list {
		if text(o, key) == "" {
			wrong("%s[%d].%s is missing", path, i, key)
		}
	}
}

// mergePatch is a JSON merged into another (RFC 7396). Both are valid JSON.
func mergePatch(into, patch string) (string, error) {
	var before, change any
	if err := errors.Join(kjson.UnmarshalCaseSensitivePreserveInts([]byte(into), &before),
		kjson.UnmarshalCaseSensitivePreserveInts([]byte(patch), &change)); err != nil {
		return "", err
	}
	var merged bytes.Buffer
	out := json.NewEncoder(&merged)
	out.SetEscapeHTML(false)
	if err := out.Encode(merge(before, change)); err != nil {
		return "", err
	}
	return string(bytes.TrimRight(merged.Bytes(), "\n")), nil
}

func merge(before, change any) any {
	changes, is := change.(map[string]any)
	if !is {
		return change
	}
	merged := map[string]any{}
	if old, is := before.(map[string]any); is {
		merged = old
	}
	for key, value := range changes {
		if value == nil {
			delete(merged, key)
		} else {
			merged[key] = merge(merged[key], value)
		}
	}
	return merged
}

// text is a field of a JSON object that is a string, "" without it.
func text(o map[string]any, field string) string {
	value, _ := o[field].(string)
	return value
}
