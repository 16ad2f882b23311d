package main

import (
	"testing"

	"github.com/stretchr/testify/require"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"
)

const definition = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: things.example.com}
spec:
  group: example.com
  names: {kind: Thing, plural: things}
  scope: Namespaced
  versions:
  - name: v1
    served: true
    storage: true
    schema:
      openAPIV3Schema:
        type: object
        properties:
          spec:
            type: object
            properties:
              selector:
                type: object
                properties:
                  matchLabels: {type: object, additionalProperties: {type: string}}
                  matchExpressions:
                    type: array
                    items:
                      type: object
                      properties:
                        key: {type: string}
                        operator: {type: string}
                        values: {type: array, items: {type: string}}
              volumeClaimTemplates:
                type: array
                items:
                  type: object
                  description: "first\n\nsecond"
                  properties:
                    keyed:
                      type: array
                      x-kubernetes-list-type: map
                      x-kubernetes-list-map-keys: [name]
                      items: {type: object, required: [name], properties: {name: {type: string}}}
                    env:
                      type: array
                      x-kubernetes-list-type: map
                      x-kubernetes-list-map-keys: [name]
                      items: {type: object, required: [name], properties: {name: {type: string}}}
                    defaulted:
                      type: array
                      x-kubernetes-list-type: map
                      x-kubernetes-list-map-keys: [protocol]
                      items: {type: object, properties: {protocol: {type: string, default: TCP}}}
          status:
            type: object
            properties:
              conditions:
                type: array
                items: {type: object, required: [type, status, message], properties: {type: {type: string}}}
`

func TestFinish(t *testing.T) {
	content, err := finish([]byte(definition))
	require.NoError(t, err)
	crd := &apiextensionsv1.CustomResourceDefinition{}
	require.NoError(t, yaml.UnmarshalStrict(content, crd))
	root := crd.Spec.Versions[0].Schema.OpenAPIV3Schema
	claim := root.Properties["spec"].Properties["volumeClaimTemplates"].Items.Schema
	keyed, defaulted := claim.Properties["keyed"], claim.Properties["defaulted"]
	selector := root.Properties["spec"].Properties["selector"]
	tests := map[string]struct{ got, want any }{
		"an object of the core API keeps unknown fields":   {*claim.XPreserveUnknownFields, true},
		"an object inside it does, too":                    {*keyed.Items.Schema.XPreserveUnknownFields, true},
		"an object outside does not":                       {selector.XPreserveUnknownFields, (*bool)(nil)},
		"a list whose keys are required stays a map":       {*keyed.XListType, "map"},
		"a list that may have a key twice is atomic":       {*claim.Properties["env"].XListType, "atomic"},
		"a list whose keys would need a default is atomic": {*defaulted.XListType, "atomic"},
		"nothing in an object of the core API has a default": {defaulted.Items.Schema.Properties["protocol"].Default,
			(*apiextensionsv1.JSON)(nil)},
		"a description ends with its first paragraph": {claim.Description, "first"},
		"a condition needs no message":                {root.Properties["status"].Properties["conditions"].Items.Schema.Required, []string{"status", "type"}},
		"a selector is bounded": {*selector.Properties["matchLabels"].MaxProperties,
			int64(maxSelectorLabels)},
		"a selector's operator is one of four": {len(
			selector.Properties["matchExpressions"].Items.Schema.Properties["operator"].Enum), 4},
		"the definition holds nothing that the server writes": {crd.CreationTimestamp.IsZero(), true},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) { require.Equal(t, tc.want, tc.got) })
	}
	again, err := finish(content)
	require.NoError(t, err)
	require.Equal(t, string(content), string(again), "finishing twice changes nothing")
}

func TestFinishRefusesWhatItDoesNotKnow(t *testing.T) {
	_, err := finish([]byte("kind: CustomResourceDefinition\nspecs: {}\n"))
	require.ErrorContains(t, err, `unknown field "specs"`)
}
