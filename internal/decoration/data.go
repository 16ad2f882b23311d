package decoration

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
)

// Data returns the data of the ControllerRevision of a stored spec of a PodDecoration, as Kuperator v0.7 has it: its
// template and its weight. A spec without a template is one with an empty template.
func Data(spec map[string]any) ([]byte, error) {
	template := map[string]any{}
	if stored, is := spec["template"].(map[string]any); is {
		template = runtime.DeepCopyJSON(stored)
	}
	template["$patch"] = "replace"
	content := map[string]any{"template": template}
	if weight, is := spec["weight"]; is {
		content["weight"] = weight
	}
	data, err := json.Marshal(map[string]any{"spec": content})
	if err != nil {
		return nil, fmt.Errorf("encoding the template: %w", err)
	}
	return data, nil
}

// Of reads a ControllerRevision as the revision of a decoration. isIts is whether a PodDecoration of that name controls
// it: others may write revisions as well, of a workload, or to have a Pod made that they may not make. Nothing is read
// then. A template that cannot be rendered is an error.
func Of(cr *appsv1.ControllerRevision, m Mark) (d Decoration, isIts bool, err error) {
	owner := metav1.GetControllerOfNoCopy(cr)
	if owner == nil || owner.APIVersion != appsv1alpha1.SchemeGroupVersion.String() ||
		owner.Kind != appsv1alpha1.PodDecorationKind || owner.Name != m.Name {
		return d, false, nil
	}
	template, weight, err := Parse(cr.Data.Raw)
	return Decoration{Name: m.Name, Revision: m.Revision, Weight: weight, Template: template}, true, err
}

// Same reports whether the data of two ControllerRevisions mean the same. Data that cannot be read is an error.
func Same(a, b []byte) (bool, error) {
	first, weight, err := content(a)
	other, otherWeight, otherErr := content(b)
	return reflect.DeepEqual(first, other) && weight == otherWeight, errors.Join(err, otherErr)
}

// content is what the data of a ControllerRevision means, in a form that is the same for what means the same.
func content(data []byte) (template map[string]any, weight int32, err error) {
	var stored struct {
		Spec struct {
			Template map[string]any `json:"template"`
			Weight   int32          `json:"weight"`
		} `json:"spec"`
	}
	if err := json.Unmarshal(data, &stored); err != nil {
		return nil, 0, fmt.Errorf("reading the template: %w", err)
	}
	delete(stored.Spec.Template, "$patch")
	settle(stored.Spec.Template)
	return stored.Spec.Template, stored.Spec.Weight, nil
}

// nothing are the fields that mean the same if they are empty as if they are not there. Kuperator writes some of them.
var nothing = map[string]bool{"resources": true, "patchPolicy": true, "injectPolicy": true, "targetPolicy": true}

// settle takes away what means nothing: null, and empty values of the fields of nothing.
func settle(value any) {
	switch v := value.(type) {
	case map[string]any:
		for key, field := range v {
			settle(field)
			o, isObject := field.(map[string]any)
			if field == nil || nothing[key] && (isObject && len(o) == 0 || field == "") {
				delete(v, key)
			}
		}
	case []any:
		for _, item := range v {
			settle(item)
		}
	}
}
