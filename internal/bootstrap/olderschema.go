package bootstrap

import (
	"context"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	apidiscovery "k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
)

// crdSchema is the part of an OpenAPI schema that is read: which fields there are.
type crdSchema struct {
	Properties map[string]*crdSchema `json:"properties"`
	Items      *crdSchema            `json:"items"`
}

// fieldsNotServed are the fields that this program's type has and the API server's CRD does not: the CRD is older
// than the program, and the API server drops them from what is written. Paths are like spec.updateStrategy.pauseAt.
// It is nil, without an error, where the API server publishes no schema of the kind, which it does a moment after a
// CRD was made.
func fieldsNotServed(
	ctx context.Context, cfg *rest.Config, scheme *runtime.Scheme, gvk schema.GroupVersionKind,
) ([]string, error) {
	object, err := scheme.New(gvk)
	if err != nil {
		return nil, err
	}
	client, err := apidiscovery.NewDiscoveryClientForConfig(cfg)
	if err != nil {
		return nil, err
	}
	content, err := client.RESTClient().Get().AbsPath("/openapi/v3/apis/"+gvk.Group+"/"+gvk.Version).
		SetHeader("Accept", "application/json").Do(ctx).Raw()
	if err != nil {
		return nil, fmt.Errorf("reading the schema of %s: %w", gvk.Kind, err)
	}
	served, err := schemaOf(content, gvk)
	if err != nil || served == nil {
		return nil, err
	}
	return missingFields(reflect.TypeOf(object).Elem(), served), nil
}

// schemaOf finds the schema of a kind in an OpenAPI v3 document, nil if it is not there.
func schemaOf(document []byte, gvk schema.GroupVersionKind) (*crdSchema, error) {
	var parsed struct {
		Components struct {
			Schemas map[string]json.RawMessage `json:"schemas"`
		} `json:"components"`
	}
	if err := json.Unmarshal(document, &parsed); err != nil {
		return nil, fmt.Errorf("reading the schema of %s: %w", gvk.Kind, err)
	}
	for name, raw := range parsed.Components.Schemas {
		if !strings.HasSuffix(name, "."+gvk.Version+"."+gvk.Kind) {
			continue
		}
		served := &crdSchema{}
		if err := json.Unmarshal(raw, served); err != nil {
			return nil, fmt.Errorf("reading the schema of %s: %w", gvk.Kind, err)
		}
		return served, nil
	}
	return nil, nil
}

// missingFields are the paths of fields of t, below spec and status, that the schema lacks, sorted. Types of other
// packages than t's are not looked into: their schema is not ours to extend.
func missingFields(t reflect.Type, served *crdSchema) []string {
	var missing []string
	walkFields(t, served, "", t.PkgPath(), &missing)
	slices.Sort(missing)
	return missing
}

func walkFields(t reflect.Type, served *crdSchema, path, ours string, missing *[]string) {
	for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice {
		if t.Kind() == reflect.Slice {
			if served = served.Items; served == nil {
				return
			}
		}
		t = t.Elem()
	}
	if t.Kind() != reflect.Struct || t.PkgPath() != ours || len(served.Properties) == 0 {
		return
	}
	for i := range t.NumField() {
		field := t.Field(i)
		name, options, _ := strings.Cut(field.Tag.Get("json"), ",")
		if name == "" && (field.Anonymous || strings.Contains(options, "inline")) {
			walkFields(field.Type, served, path, ours, missing)
			continue
		}
		if name == "" || name == "-" || (path == "" && name == "metadata") {
			continue
		}
		child, ok := served.Properties[name]
		at := strings.TrimPrefix(path+"."+name, ".")
		if !ok {
			*missing = append(*missing, at)
			continue
		}
		walkFields(field.Type, child, at, ours, missing)
	}
}
