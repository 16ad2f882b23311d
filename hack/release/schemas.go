package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"
)

// schemas writes a JSON Schema of each kind, for editors and for tools that check manifests without a cluster. They
// are called as those tools look for them, for example collaset_v1alpha1.json.
func (r release) schemas() error {
	paths, err := filepath.Glob(filepath.Join(r.root, "deploy", "crd", "apps.*.yaml"))
	if err != nil {
		return err
	}
	for _, path := range paths {
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		var crd apiextensionsv1.CustomResourceDefinition
		if err := yaml.Unmarshal(content, &crd); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		for _, version := range crd.Spec.Versions {
			schema, err := jsonSchema(crd.Spec.Group+"/"+version.Name, crd.Spec.Names.Kind, version.Schema.OpenAPIV3Schema)
			if err != nil {
				return fmt.Errorf("%s: %w", path, err)
			}
			name := strings.ToLower(crd.Spec.Names.Kind) + "_" + version.Name + ".json"
			if err := r.write(name, schema); err != nil {
				return err
			}
		}
	}
	return nil
}

// jsonSchema is a kind's schema with what the API server knows besides: its names, and that it refuses other fields.
func jsonSchema(apiVersion, kind string, props *apiextensionsv1.JSONSchemaProps) ([]byte, error) {
	content, err := json.Marshal(props)
	if err != nil {
		return nil, err
	}
	var schema map[string]any
	if err := json.Unmarshal(content, &schema); err != nil {
		return nil, err
	}
	convert(schema)
	schema["$schema"] = "http://json-schema.org/draft-07/schema#"
	properties := schema["properties"].(map[string]any)
	properties["apiVersion"] = map[string]any{"type": "string", "enum": []string{apiVersion}}
	properties["kind"] = map[string]any{"type": "string", "enum": []string{kind}}
	schema["required"] = []string{"apiVersion", "kind", "metadata"}
	content, err = json.MarshalIndent(schema, "", " ")
	return append(content, '\n'), err
}

// convert makes a schema of OpenAPI 3, as CRDs have it, one of JSON Schema. What a CRD has in allOf, anyOf, oneOf and
// not is the same in both: a structural schema has neither fields nor extensions of its own there.
func convert(schema map[string]any) {
	if kind, ok := schema["type"].(string); ok && schema["nullable"] == true {
		schema["type"] = []string{kind, "null"}
	}
	delete(schema, "nullable")
	properties, _ := schema["properties"].(map[string]any)
	if len(properties) > 0 && schema["x-kubernetes-preserve-unknown-fields"] != true {
		schema["additionalProperties"] = false
	}
	for key := range schema {
		if strings.HasPrefix(key, "x-kubernetes-") {
			delete(schema, key)
		}
	}
	for _, property := range properties {
		convert(property.(map[string]any))
	}
	for _, key := range []string{"items", "additionalProperties"} {
		if inner, ok := schema[key].(map[string]any); ok {
			convert(inner)
		}
	}
}
