package writes

import "encoding/json"

// NoFields has the API server forget who wrote what of an object, and track it no longer until somebody applies to it
// on the server side (https://kubernetes.io/docs/reference/using-api/server-side-apply/#clearing-managedfields).
var NoFields = json.RawMessage(`[{}]`)

// FewFields has managedFields of one entry, about a label of this writer's: the API server goes on to track, and adds
// what is written from then on.
func FewFields(writer, label string) json.RawMessage {
	return json.RawMessage(`[{"manager":"` + writer + `","operation":"Update","apiVersion":"v1","fieldsType":"FieldsV1",` +
		`"fieldsV1":{"f:metadata":{"f:labels":{"f:` + label + `":{}}}}}]`)
}

// WithFields has a merge patch, strategic or not, replace metadata.managedFields too. A patch of a subresource
// cannot. It is an error if the patch, or its metadata, is no JSON object.
func WithFields(data []byte, fields json.RawMessage) ([]byte, error) {
	patch := map[string]json.RawMessage{}
	if err := json.Unmarshal(data, &patch); err != nil {
		return nil, err
	}
	metadata := map[string]json.RawMessage{}
	if raw, ok := patch["metadata"]; ok {
		if err := json.Unmarshal(raw, &metadata); err != nil {
			return nil, err
		}
	}
	metadata["managedFields"] = fields
	var err error
	if patch["metadata"], err = json.Marshal(metadata); err != nil {
		return nil, err
	}
	return json.Marshal(patch)
}
