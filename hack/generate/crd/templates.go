package main

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/utils/ptr"
)

// Patterns of JSON schema, as the API server has them for Pods.
const (
	dnsLabel     = `[a-z0-9]([-a-z0-9]*[a-z0-9])?`
	dnsSubdomain = dnsLabel + `(\.` + dnsLabel + `)*`

	labelPattern     = `^` + dnsLabel + `$`
	optionalLabel    = `^(` + dnsLabel + `)?$`
	optionalName     = `^(` + dnsSubdomain + `)?$`
	qualifiedName    = `^(` + dnsSubdomain + `/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$`
	portName         = `^(([a-z0-9]+-)*[a-z0-9]+)?$`
	variableName     = `^[ -<>-~]+$`
	noSpaceAround    = `^(\S([\s\S]*\S)?)?$`
	maxPortName      = 15
	maxPort          = 65535
	maxNameSubdomain = 253
)

// decodable keeps values out that are of the right type and still cannot be read by a program: one such object in a
// list and the list of all objects of its kind is lost to every controller that reads it.
func decodable(node *apiextensionsv1.JSONSchemaProps) error {
	if node.XIntOrString && node.Pattern == "" {
		node.Minimum, node.Maximum = ptr.To[float64](math.MinInt32), ptr.To[float64](math.MaxInt32)
	}
	// Where a format stands beside the type string, the API server (kube-openapi, as of 1.36) takes a list too.
	if node.Type == "string" && node.Format != "" {
		node.AllOf = append(node.AllOf, apiextensionsv1.JSONSchemaProps{Format: node.Format})
		node.Format = ""
	}
	return nil
}

// sign begins the pattern of quantities, as controller-gen writes it.
const sign = `^(\+|-)?`

// takeNumbers lets a quantity be any number, cpu: 0.5, as in a Pod. A schema knows numbers or strings by no other way
// than by refusing all else: an object, a list, true and false could not be decoded. Claims have whole bytes and stay
// as they are; a CEL rule reads them, which cannot read a value without a type.
func takeNumbers(node *apiextensionsv1.JSONSchemaProps) {
	if !node.XIntOrString || !strings.HasPrefix(node.Pattern, sign) {
		return
	}
	node.XIntOrString, node.AnyOf, node.XPreserveUnknownFields = false, nil, ptr.To(true)
	node.MinProperties, node.MaxProperties = ptr.To[int64](1), ptr.To[int64](0)
	node.MinItems, node.MaxItems = ptr.To[int64](1), ptr.To[int64](0)
	node.Not = &apiextensionsv1.JSONSchemaProps{Enum: []apiextensionsv1.JSON{{Raw: []byte("true")},
		{Raw: []byte("false")}}}
}

// describeMetadata completes the schema of metadata inside a template: controller-gen writes the part that makes
// sense there, and the rest, which is kept, would be kept whatever its type.
func describeMetadata(node *apiextensionsv1.JSONSchemaProps) error {
	metadata, ok := node.Properties["metadata"]
	if !ok || !ptr.Deref(metadata.XPreserveUnknownFields, false) {
		return nil
	}
	text := apiextensionsv1.JSONSchemaProps{Type: "string"}
	number := apiextensionsv1.JSONSchemaProps{Type: "integer", Format: "int64"}
	flag := apiextensionsv1.JSONSchemaProps{Type: "boolean"}
	moment := apiextensionsv1.JSONSchemaProps{Type: "string", Format: "date-time", Nullable: true}
	object := func(properties map[string]apiextensionsv1.JSONSchemaProps) *apiextensionsv1.JSONSchemaPropsOrArray {
		return &apiextensionsv1.JSONSchemaPropsOrArray{Schema: &apiextensionsv1.JSONSchemaProps{Type: "object",
			Properties: properties, XPreserveUnknownFields: ptr.To(true)}}
	}
	for name, schema := range map[string]apiextensionsv1.JSONSchemaProps{
		"creationTimestamp": moment, "deletionTimestamp": moment,
		"deletionGracePeriodSeconds": number, "generation": number,
		"generateName": text, "resourceVersion": text, "selfLink": text, "uid": text,
		"ownerReferences": {Type: "array", XListType: ptr.To("atomic"),
			Items: object(map[string]apiextensionsv1.JSONSchemaProps{
				"apiVersion": text, "kind": text, "name": text, "uid": text, "controller": flag, "blockOwnerDeletion": flag,
			})},
		"managedFields": {Type: "array", XListType: ptr.To("atomic"),
			Items: object(map[string]apiextensionsv1.JSONSchemaProps{
				"apiVersion": text, "fieldsType": text, "manager": text, "operation": text, "subresource": text, "time": moment,
				"fieldsV1": {Type: "object", XPreserveUnknownFields: ptr.To(true)},
			})},
	} {
		if _, there := metadata.Properties[name]; !there {
			metadata.Properties[name] = schema
		}
	}
	node.Properties["metadata"] = metadata
	return nil
}

// checkTemplates refuses in the Pod template and in claim templates what the API server would refuse in every Pod and
// claim, as far as a schema can tell: names, ports, quantities. What it cannot (keys of maps, references between
// lists) is refused by webhook-server, and reported by collaset-controller where that is not asked.
func checkTemplates(spec *apiextensionsv1.JSONSchemaProps) error {
	if _, ok := spec.Properties["template"]; !ok {
		return nil
	}
	pod := func(path ...string) []string { return append(slices.Clone(podIn(spec)), path...) }
	errs := []error{edit(spec, pod("volumes", "[]", "name"), pattern(labelPattern, maxNameLength))}
	if len(podIn(spec)) > 1 {
		errs = append(errs, checkWorkload(spec, pod))
	} else {
		errs = append(errs,
			edit(spec, []string{"template", "metadata", "[]", "labels"}, labelValues),
			edit(spec, []string{"template", "primaryContainers"}, bound(maxContainers)),
			edit(spec, pod("primaryContainers", "[]", "image"), pattern(noSpaceAround, 0)),
			edit(spec, pod("primaryContainers", "[]", "env", "[]", "name"), pattern(variableName, 0)),
			edit(spec, pod("runtimeClassName"), pattern(optionalName, maxNameSubdomain)),
		)
	}
	for _, list := range []string{"containers", "initContainers"} {
		in := func(path ...string) []string { return pod(append([]string{list, "[]"}, path...)...) }
		errs = append(errs,
			edit(spec, in("name"), pattern(labelPattern, maxNameLength)),
			edit(spec, in("image"), pattern(noSpaceAround, 0)),
			edit(spec, in("ports", "[]", "containerPort"), between(1, maxPort)),
			edit(spec, in("ports", "[]", "name"), func(node *apiextensionsv1.JSONSchemaProps) {
				pattern(portName, maxPortName)(node)
				node.AllOf = []apiextensionsv1.JSONSchemaProps{{Pattern: `^$|[a-z]`}} // one letter at least
			}),
			edit(spec, in("env", "[]", "name"), pattern(variableName, 0)),
			edit(spec, in("volumeMounts", "[]", "mountPath"),
				func(node *apiextensionsv1.JSONSchemaProps) { node.MinLength = ptr.To[int64](1) }),
			edit(spec, in("resources", "limits"), amounts),
			edit(spec, in("resources", "requests"), amounts),
		)
	}
	return errors.Join(append(errs, checkClaims(spec))...)
}

// checkWorkload checks what only the template of a workload has.
func checkWorkload(spec *apiextensionsv1.JSONSchemaProps, pod func(...string) []string) error {
	return errors.Join(
		edit(spec, []string{"template", "metadata", "labels"}, labelValues),
		edit(spec, pod("nodeSelector"), labelValues),
		edit(spec, pod("serviceAccountName"), pattern(optionalName, maxNameSubdomain)),
		edit(spec, pod("priorityClassName"), pattern(optionalName, maxNameSubdomain)),
		edit(spec, pod("hostname"), pattern(optionalLabel, maxNameLength)),
		edit(spec, pod("subdomain"), pattern(optionalLabel, maxNameLength)),
		edit(spec, pod("readinessGates", "[]", "conditionType"), pattern(qualifiedName, maxLabelKeyLength)),
		edit(spec, pod("terminationGracePeriodSeconds"), atLeast(0)),
		edit(spec, pod("restartPolicy"), func(node *apiextensionsv1.JSONSchemaProps) {
			for _, known := range []string{"", "Always", "OnFailure", "Never"} {
				node.Enum = append(node.Enum, apiextensionsv1.JSON{Raw: []byte(`"` + known + `"`)})
			}
		}),
		edit(spec, pod("ephemeralContainers"), func(node *apiextensionsv1.JSONSchemaProps) {
			node.XValidations = apiextensionsv1.ValidationRules{{
				Rule:    `size(self) == 0`,
				Message: "ephemeralContainers cannot be part of a template: add them to a running Pod with kubectl debug",
			}}
		}),
	)
}

func checkClaims(spec *apiextensionsv1.JSONSchemaProps) error {
	if _, ok := spec.Properties["volumeClaimTemplates"]; !ok {
		return nil
	}
	item := []string{"volumeClaimTemplates", "[]"}
	return errors.Join(
		edit(spec, append(slices.Clone(item), "spec", "resources", "requests"), amounts),
		edit(spec, append(slices.Clone(item), "spec", "resources", "limits"), amounts),
		// that it is needed is said better elsewhere
		edit(spec, append(slices.Clone(item), "metadata", "name"), pattern(optionalLabel, maxNameLength)),
		edit(spec, item, func(node *apiextensionsv1.JSONSchemaProps) {
			node.XValidations = append(node.XValidations,
				apiextensionsv1.ValidationRule{
					Rule:    `has(self.spec) && has(self.spec.accessModes) && size(self.spec.accessModes) > 0`,
					Message: "spec.accessModes is required in every item of volumeClaimTemplates: set at least one, for example ReadWriteOnce",
				},
				apiextensionsv1.ValidationRule{
					Rule:    `has(self.spec) && has(self.spec.resources) && has(self.spec.resources.requests) && 'storage' in self.spec.resources.requests`,
					Message: "spec.resources.requests.storage is required in every item of volumeClaimTemplates: set the size of the volume, for example 1Gi",
				})
		}),
	)
}

// pattern demands a pattern and, unless it is 0, bounds the length.
func pattern(expression string, length int64) func(*apiextensionsv1.JSONSchemaProps) {
	return func(node *apiextensionsv1.JSONSchemaProps) {
		node.Pattern = expression
		if length > 0 {
			node.MaxLength = ptr.To(length)
		}
	}
}

func atLeast(minimum float64) func(*apiextensionsv1.JSONSchemaProps) {
	return func(node *apiextensionsv1.JSONSchemaProps) { node.Minimum = ptr.To(minimum) }
}

func between(minimum, maximum float64) func(*apiextensionsv1.JSONSchemaProps) {
	return func(node *apiextensionsv1.JSONSchemaProps) {
		node.Minimum, node.Maximum = ptr.To(minimum), ptr.To(maximum)
	}
}

// labelValues checks the values of a map of labels. Its keys are out of reach of a schema, and beyond the budget of
// CEL.
func labelValues(node *apiextensionsv1.JSONSchemaProps) {
	node.AdditionalProperties.Schema.Pattern = labelValue
	node.AdditionalProperties.Schema.MaxLength = ptr.To[int64](maxLabelValueLength)
}

// amounts refuses negative quantities, which may be numbers or strings.
func amounts(node *apiextensionsv1.JSONSchemaProps) {
	quantity := node.AdditionalProperties.Schema
	if !strings.HasPrefix(quantity.Pattern, sign) {
		panic(fmt.Sprintf("a quantity with the pattern %q", quantity.Pattern)) // of another controller-gen
	}
	quantity.Pattern = `^\+?` + strings.TrimPrefix(quantity.Pattern, sign)
	quantity.Minimum = ptr.To[float64](0)
}
