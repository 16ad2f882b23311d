package crdgen

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"
)

// Kind is a custom resource and what its schema says of the part that users write.
type Kind struct {
	// Name is the kind, such as CollaSet.
	Name string
	// Resource is where objects of the kind are.
	Resource schema.GroupVersionResource
	// Spec is the schema of spec.
	Spec *apiextensionsv1.JSONSchemaProps
}

// Load reads a CustomResourceDefinition with one version.
func Load(path string) (Kind, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return Kind{}, err
	}
	crd := &apiextensionsv1.CustomResourceDefinition{}
	if err := yaml.Unmarshal(content, crd); err != nil {
		return Kind{}, fmt.Errorf("reading %s: %w", path, err)
	}
	if len(crd.Spec.Versions) != 1 || crd.Spec.Versions[0].Schema == nil {
		return Kind{}, fmt.Errorf("%s: want one version with a schema", path)
	}
	version := crd.Spec.Versions[0]
	spec, ok := version.Schema.OpenAPIV3Schema.Properties["spec"]
	if !ok {
		return Kind{}, fmt.Errorf("%s: its objects have no spec", path)
	}
	return Kind{
		Name:     crd.Spec.Names.Kind,
		Resource: schema.GroupVersionResource{Group: crd.Spec.Group, Version: version.Name, Resource: crd.Spec.Names.Plural},
		Spec:     &spec,
	}, nil
}

// Field is one node of a schema.
type Field struct {
	// Path is a path of property names, such as spec.template.spec.containers[].image; [] stands for the items of a list,
	// {} for the values of a map.
	Path string
	// Leaf is true if there is no field below.
	Leaf bool

	steps  []step
	schema *apiextensionsv1.JSONSchemaProps
}

// step leads from a field to one below it.
type step struct {
	// property is the name of a property; list and values are true if it is the items of a list or the values of a map.
	property     string
	list, values bool
	schema       *apiextensionsv1.JSONSchemaProps
}

// Fields returns spec and all fields below it, parents first, properties in alphabetical order.
func (k Kind) Fields() []Field {
	var fields []Field
	var visit func(path string, steps []step)
	visit = func(path string, steps []step) {
		node := steps[len(steps)-1].schema
		below := children(node)
		fields = append(fields, Field{Path: path, Leaf: len(below) == 0, steps: steps, schema: node})
		for _, child := range below {
			visit(path+child.suffix(), append(slices.Clip(slices.Clone(steps)), child))
		}
	}
	visit("spec", []step{{property: "spec", schema: k.Spec}})
	return fields
}

func (s step) suffix() string {
	switch {
	case s.list:
		return "[]"
	case s.values:
		return "{}"
	default:
		return "." + s.property
	}
}

func children(node *apiextensionsv1.JSONSchemaProps) []step {
	var below []step
	for _, name := range slices.Sorted(maps.Keys(node.Properties)) {
		child := node.Properties[name]
		below = append(below, step{property: name, schema: &child})
	}
	if node.Items != nil && node.Items.Schema != nil {
		below = append(below, step{list: true, schema: node.Items.Schema})
	}
	if node.AdditionalProperties != nil && node.AdditionalProperties.Schema != nil {
		below = append(below, step{values: true, schema: node.AdditionalProperties.Schema})
	}
	return below
}

// Embedded reports whether the field belongs to an object of the core API that is part of the spec, such as a Pod
// template: its schema is Kubernetes' and keeps what it does not know.
func (f Field) Embedded() bool {
	for _, s := range f.steps[1:] {
		if ptr.Deref(s.schema.XPreserveUnknownFields, false) {
			return true
		}
	}
	return false
}

// typeOf is the type of a field as its values need it: "int-or-string", "quantity", "time" or a type of JSON.
func typeOf(node *apiextensionsv1.JSONSchemaProps) string {
	switch {
	case strings.Contains(node.Pattern, "numkMG"):
		return "quantity"
	case node.XIntOrString:
		return "int-or-string"
	case node.Type == "string" && slices.ContainsFunc(append([]apiextensionsv1.JSONSchemaProps{*node},
		node.AllOf...), isTime):
		return "time"
	default:
		return node.Type
	}
}

func isTime(node apiextensionsv1.JSONSchemaProps) bool { return node.Format == "date-time" }
