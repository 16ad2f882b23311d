package writes

import "encoding/json"

// noFields has the API server forget who wrote what of an object, and track it no longer until a client applies to it
// on the server side (https://kubernetes.io/docs/reference/using-api/server-side-apply/#clearing-managedfields).
var noFields = json.RawMessage(`[{}]`)

// ClearFields has a merge patch, strategic or not, clear metadata.managedFields too. A patch of a subresource cannot.
// It is an error if the patch, or its metadata, is no JSON object.
func ClearFields(data []byte) ([]byte, error) {
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
	metadata["managedFields"] = noFields
	var err error
	if patch["metadata"], err = json.Marshal(metadata); err != nil {
		return nil, err
	}
	return json.Marshal(patch)
}
