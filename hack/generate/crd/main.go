// Command crd finishes the CustomResourceDefinitions that controller-gen wrote.
//
// Markers do not reach into types of other packages, so this program adds what the schemas of those still need:
//
//   - The Pod template and the volume claim templates keep fields that their schema does not know, so a Pod field newer
//     than the schema survives. They are described all the same, for explain and for server-side apply.
//   - Nothing in them is defaulted. The API server applies defaults to what it reads as well, so a default here would
//     change the template of a stored CollaSet, and with it the revision of its Pods. A list whose merge keys need a
//     default (container ports) is therefore merged as a whole.
//   - Lists of which Kubernetes accepts two items with one key in a Pod are lists here as well: see repeated.
//   - Quantities in them may be numbers with a fraction, as in Pods: see takeNumbers.
//   - Names, ports and quantities in them are as the API server wants them in Pods and claims; their metadata has the
//     types that it must have, also where controller-gen leaves it undescribed.
//   - A number or a string is no larger than the 32 bits that programs read it into: an object that cannot be decoded
//     makes lists of its kind unreadable to every controller.
//   - Label selectors are validated, and bounded so that CEL rules over them stay within the API server's budget.
//   - A value that is a number or a percentage is neither negative nor anything but "0%" to "100%".
//   - Conditions require their type and status only, as those that Kuperator stored have no message.
//   - Descriptions in the templates are cut to their first paragraph, and left out below the depth at which the CRD
//     would outgrow maxBytes.
//
// Usage: crd INPUT-DIRECTORY OUTPUT-DIRECTORY
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"
)

// maxBytes bounds one generated file. etcd takes objects of 1.5 MiB, and server-side apply adds its field ownership.
const maxBytes = 700_000

// Bounds of label selectors. They are generous; without any, the cost of a CEL rule is estimated without end.
const (
	maxSelectorLabels      = 64
	maxSelectorExpressions = 32
	maxSelectorValues      = 256
	maxLabelKeyLength      = 317 // prefix, slash, name
	maxLabelValueLength    = 63
)

// Bounds inside the Pod template, for the CEL rules of CollaSet that look into it.
const (
	maxContainers = 256
	maxVolumes    = 512
	maxNameLength = 63
)

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: crd INPUT-DIRECTORY OUTPUT-DIRECTORY")
		os.Exit(2)
	}
	if err := run(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, "crd:", err)
		os.Exit(1)
	}
}

func run(from, to string) error {
	paths, err := filepath.Glob(filepath.Join(from, "*.yaml"))
	if err != nil {
		return err
	}
	if len(paths) == 0 {
		return fmt.Errorf("no CustomResourceDefinition in %s", from)
	}
	names := make([]string, 0, len(paths))
	for _, path := range paths {
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		finished, err := finish(content)
		if err != nil {
			return fmt.Errorf("%s: %w", filepath.Base(path), err)
		}
		names = append(names, filepath.Base(path))
		if err := os.WriteFile(filepath.Join(to, filepath.Base(path)), finished, 0o644); err != nil {
			return err
		}
	}
	return os.WriteFile(filepath.Join(to, "kustomization.yaml"), kustomization(names), 0o644)
}

// finish returns a CustomResourceDefinition as it goes to deploy/crd.
func finish(content []byte) ([]byte, error) {
	crd := &apiextensionsv1.CustomResourceDefinition{}
	if err := yaml.UnmarshalStrict(content, crd); err != nil {
		return nil, err
	}
	for i := range crd.Spec.Versions {
		root := crd.Spec.Versions[i].Schema.OpenAPIV3Schema
		if spec, ok := root.Properties["spec"]; ok {
			if err := errors.Join(openTemplates(&spec), checkTemplates(&spec)); err != nil {
				return nil, err
			}
			root.Properties["spec"] = spec
		}
		if err := visit(root, checkSelectors); err != nil {
			return nil, err
		}
		for _, act := range []func(*apiextensionsv1.JSONSchemaProps) error{checkShares, describeMetadata, decodable} {
			if err := visit(root, act); err != nil {
				return nil, err
			}
		}
		relaxConditions(root)
	}
	return shrink(crd)
}

// templates are the properties of spec that hold objects of the core API.
var templates = []string{"template", "volumeClaimTemplates"}

// openTemplates lets the core objects in a spec keep what the schema does not know, and takes their defaults away.
func openTemplates(spec *apiextensionsv1.JSONSchemaProps) error {
	for _, name := range templates {
		template, ok := spec.Properties[name]
		if !ok {
			continue
		}
		err := visit(&template, func(node *apiextensionsv1.JSONSchemaProps) error {
			for _, field := range repeated {
				if list, ok := node.Properties[field]; ok && list.Items != nil {
					list.XListType, list.XListMapKeys = ptr.To("atomic"), nil
					node.Properties[field] = list
				}
			}
			if node.Type == "object" && len(node.Properties) > 0 {
				node.XPreserveUnknownFields = ptr.To(true)
			}
			node.Default = nil
			if name == "template" {
				takeNumbers(node)
			}
			if node.Items != nil && !keysRequired(node) {
				node.XListType = ptr.To("atomic")
				node.XListMapKeys = nil
			}
			return nil
		})
		if err != nil {
			return err
		}
		spec.Properties[name] = template
	}
	if _, ok := spec.Properties["template"]; !ok {
		return nil
	}
	pod := podIn(spec)
	return errors.Join(
		edit(spec, append(pod, "volumes"), bound(maxVolumes)),
		edit(spec, append(pod, "volumes", "[]", "name"), boundLength(maxNameLength)),
		edit(spec, append(pod, "containers"), bound(maxContainers)),
		edit(spec, append(pod, "containers", "[]"), requireImage),
		edit(spec, append(pod, "containers", "[]", "name"), boundLength(maxNameLength)),
		edit(spec, append(pod, "initContainers"), bound(maxContainers)),
		edit(spec, append(pod, "initContainers", "[]"), requireImage),
		edit(spec, append(pod, "initContainers", "[]", "name"), boundLength(maxNameLength)),
		boundClaims(spec),
	)
}

// podIn is the path to what a template has of the spec of a Pod: that of a PodDecoration has it without a level between.
func podIn(spec *apiextensionsv1.JSONSchemaProps) []string {
	if _, ok := spec.Properties["template"].Properties["spec"]; ok {
		return []string{"template", "spec"}
	}
	return []string{"template"}
}

func boundClaims(spec *apiextensionsv1.JSONSchemaProps) error {
	if _, ok := spec.Properties["volumeClaimTemplates"]; !ok {
		return nil
	}
	return edit(spec, []string{"volumeClaimTemplates", "[]", "metadata", "name"}, boundLength(maxNameLength))
}

// repeated are the lists of a Pod that may have two items of one key: of variables the last counts, the hosts of one
// address are added up. Charts make use of it. A list by key cannot hold that in a custom resource, so these are
// applied as a whole on the server side: two managers can no longer each own variables of one container, or one takes
// the list from the other. Containers, volumes and mounts, of which Kubernetes refuses two of a name, are still merged
// one by one.
var repeated = []string{"env", "hostAliases"}

// keysRequired reports whether every merge key of a list is required in its items; true for a list without merge keys.
func keysRequired(list *apiextensionsv1.JSONSchemaProps) bool {
	for _, key := range list.XListMapKeys {
		if !slices.Contains(list.Items.Schema.Required, key) {
			return false
		}
	}
	return true
}

func bound(items int64) func(*apiextensionsv1.JSONSchemaProps) {
	return func(node *apiextensionsv1.JSONSchemaProps) { node.MaxItems = ptr.To(items) }
}

func boundLength(length int64) func(*apiextensionsv1.JSONSchemaProps) {
	return func(node *apiextensionsv1.JSONSchemaProps) { node.MaxLength = ptr.To(length) }
}

// requireImage demands an image of a container, which the core schema leaves to the client that creates the Pod.
func requireImage(container *apiextensionsv1.JSONSchemaProps) {
	container.XValidations = apiextensionsv1.ValidationRules{{
		Rule:              `has(self.image) && size(self.image) > 0`,
		Message:           "image is required: set the container image",
		MessageExpression: `'image of container "' + self.name + '" is required: set it'`,
	}}
}

// edit changes the node at a path of property names, "[]" standing for the items of a list.
func edit(node *apiextensionsv1.JSONSchemaProps, path []string, change func(*apiextensionsv1.JSONSchemaProps)) error {
	if len(path) == 0 {
		change(node)
		return nil
	}
	if path[0] == "[]" {
		if node.Items == nil || node.Items.Schema == nil {
			return errors.New("the schema has no items where a list is expected")
		}
		return edit(node.Items.Schema, path[1:], change)
	}
	child, ok := node.Properties[path[0]]
	if !ok {
		return fmt.Errorf("the schema has no property %q", path[0])
	}
	if err := edit(&child, path[1:], change); err != nil {
		return fmt.Errorf("%s: %w", path[0], err)
	}
	node.Properties[path[0]] = child
	return nil
}

// checkSelectors adds validation to a label selector outside the templates; those inside are the Pod's own and are
// validated with the Pod.
func checkSelectors(node *apiextensionsv1.JSONSchemaProps) error {
	labels, hasLabels := node.Properties["matchLabels"]
	expressions, hasExpressions := node.Properties["matchExpressions"]
	if !hasLabels || !hasExpressions || ptr.Deref(node.XPreserveUnknownFields, false) {
		return nil
	}
	labels.MaxProperties = ptr.To[int64](maxSelectorLabels)
	labels.AdditionalProperties.Schema.MaxLength = ptr.To[int64](maxLabelValueLength)
	labels.XValidations = apiextensionsv1.ValidationRules{{
		Rule:    `self.all(k, k != '')`,
		Message: "matchLabels has an empty key: give it a label key such as app.kubernetes.io/name",
	}}
	labels.AdditionalProperties.Schema.XValidations = apiextensionsv1.ValidationRules{{
		Rule:              `self.matches('` + labelValue + `')`,
		Message:           "not a label value: use letters, digits, '-', '_' and '.', first and last a letter or digit",
		MessageExpression: `'"' + self + '" is not a label value: use letters, digits, "-", "_" and ".", first and last a letter or digit'`,
	}}

	item := expressions.Items.Schema
	expressions.MaxItems = ptr.To[int64](maxSelectorExpressions)
	key, operator, values := item.Properties["key"], item.Properties["operator"], item.Properties["values"]
	key.MaxLength = ptr.To[int64](maxLabelKeyLength)
	values.MaxItems = ptr.To[int64](maxSelectorValues)
	values.Items.Schema.MaxLength, values.Items.Schema.Pattern = ptr.To[int64](maxLabelValueLength), labelValue
	operator.Enum = nil
	for _, known := range []string{"In", "NotIn", "Exists", "DoesNotExist"} {
		operator.Enum = append(operator.Enum, apiextensionsv1.JSON{Raw: []byte(`"` + known + `"`)})
	}
	item.Properties["key"], item.Properties["operator"], item.Properties["values"] = key, operator, values
	item.XValidations = apiextensionsv1.ValidationRules{{
		Rule:              `self.key.matches('` + labelKey + `')`,
		Message:           "key is not a label key: use one such as app.kubernetes.io/name",
		MessageExpression: `'key "' + self.key + '" is not a label key: use one such as app.kubernetes.io/name'`,
		FieldPath:         ".key",
	}, {
		Rule:              `!(self.operator in ['In', 'NotIn']) || (has(self.values) && size(self.values) > 0)`,
		Message:           "values must not be empty for the operators In and NotIn: list values, or use Exists or DoesNotExist",
		MessageExpression: `'values is empty, which operator ' + self.operator + ' does not allow: list values, or use Exists or DoesNotExist'`,
		FieldPath:         ".values",
	}, {
		Rule:              `!(self.operator in ['Exists', 'DoesNotExist']) || !has(self.values) || size(self.values) == 0`,
		Message:           "values must be empty for the operators Exists and DoesNotExist: remove them, or use In or NotIn",
		MessageExpression: `'values [' + self.values.join(', ') + '] must be empty for operator ' + self.operator + ': remove them, or use In or NotIn'`,
		FieldPath:         ".values",
	}}
	node.Properties["matchLabels"], node.Properties["matchExpressions"] = labels, expressions
	return nil
}

// checkShares validates a number of Pods that may be given as a percentage. The percentages are listed because the API
// server takes such a value to be as long as a whole request, for which a regular expression is beyond its budget.
func checkShares(node *apiextensionsv1.JSONSchemaProps) error {
	if _, ok := node.Properties["availablePolicy"]; !ok {
		return nil
	}
	percentages := make([]string, 0, 101)
	for share := range 101 {
		percentages = append(percentages, fmt.Sprintf("'%d%%'", share))
	}
	for _, name := range []string{"maxUnavailableValue", "minAvailableValue"} {
		err := edit(node, []string{"availablePolicy", name}, func(value *apiextensionsv1.JSONSchemaProps) {
			value.XValidations = apiextensionsv1.ValidationRules{{
				Rule:    `type(self) == int ? self >= 0 : self in [` + strings.Join(percentages, ", ") + `]`,
				Message: `must be a number that is not negative, or a percentage from "0%" to "100%"`,
				MessageExpression: `(type(self) == int ? string(self) : '"' + string(self) + '"') + ' is no number of Pods: ` +
					`give a number that is not negative, or a percentage from "0%" to "100%"'`,
			}}
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// Patterns of RE2 in CEL strings. The length of a name is left to the bounds above.
const (
	labelValue = `^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$`
	labelKey   = `^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$`
)

// relaxConditions makes status.conditions accept what Kuperator stored: without observedGeneration, and without a
// message when there was nothing to say.
func relaxConditions(root *apiextensionsv1.JSONSchemaProps) {
	status, ok := root.Properties["status"]
	if !ok {
		return
	}
	if conditions, ok := status.Properties["conditions"]; ok {
		conditions.Items.Schema.Required = []string{"status", "type"}
	}
}

// visit calls act on a node and on every node below it, parents first.
func visit(node *apiextensionsv1.JSONSchemaProps, act func(*apiextensionsv1.JSONSchemaProps) error) error {
	return visitTo(node, 0, func(node *apiextensionsv1.JSONSchemaProps, _ int) error { return act(node) })
}

// visitTo is visit that also tells the number of fields between the first node and this one.
func visitTo(
	node *apiextensionsv1.JSONSchemaProps, depth int, act func(*apiextensionsv1.JSONSchemaProps, int) error,
) error {
	if err := act(node, depth); err != nil {
		return err
	}
	for name, child := range node.Properties {
		if err := visitTo(&child, depth+1, act); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		node.Properties[name] = child
	}
	if node.Items != nil && node.Items.Schema != nil {
		if err := visitTo(node.Items.Schema, depth, act); err != nil {
			return err
		}
	}
	if node.AdditionalProperties != nil && node.AdditionalProperties.Schema != nil {
		return visitTo(node.AdditionalProperties.Schema, depth, act)
	}
	return nil
}

// shrink renders a definition, with as many descriptions of the templates as fit into maxBytes.
func shrink(crd *apiextensionsv1.CustomResourceDefinition) ([]byte, error) {
	const unlimited = 64
	for deepest := unlimited; deepest >= 0; deepest-- {
		for i := range crd.Spec.Versions {
			spec, ok := crd.Spec.Versions[i].Schema.OpenAPIV3Schema.Properties["spec"]
			if !ok {
				continue
			}
			for _, name := range templates {
				template, ok := spec.Properties[name]
				if !ok {
					continue
				}
				err := visitTo(&template, 0, func(node *apiextensionsv1.JSONSchemaProps, depth int) error {
					node.Description, _, _ = strings.Cut(node.Description, "\n\n")
					if depth > deepest {
						node.Description = ""
					}
					return nil
				})
				if err != nil {
					return nil, err
				}
				spec.Properties[name] = template
			}
		}
		content, err := render(crd)
		if err != nil || len(content) <= maxBytes {
			return content, err
		}
	}
	return nil, fmt.Errorf("larger than %d bytes even without descriptions", maxBytes)
}

// render is the YAML of a definition without the fields that only the API server writes.
func render(crd *apiextensionsv1.CustomResourceDefinition) ([]byte, error) {
	content, err := json.Marshal(crd)
	if err != nil {
		return nil, err
	}
	object := map[string]any{}
	if err := json.Unmarshal(content, &object); err != nil {
		return nil, err
	}
	delete(object, "status")
	delete(object["metadata"].(map[string]any), "creationTimestamp")
	rendered, err := yaml.Marshal(object)
	if err != nil {
		return nil, err
	}
	return append([]byte("# Generated by `make generate`; do not edit.\n"), rendered...), nil
}

func kustomization(names []string) []byte {
	var b strings.Builder
	b.WriteString("# Generated by `make generate`; do not edit.\n")
	b.WriteString("apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nresources:\n")
	for _, name := range names {
		fmt.Fprintf(&b, "- %s\n", name)
	}
	return []byte(b.String())
}
