package faultproxy

import (
	"bytes"
	"encoding/json"
	"net/http"

	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/client-go/kubernetes/scheme"
)

// metadataOf is the metadata of an object, or of a patch of one, in JSON or protobuf; nil if there is none.
func metadataOf(body []byte) *metav1.ObjectMeta {
	if isJSON(body) {
		var object metav1.PartialObjectMetadata
		if json.Unmarshal(body, &object) != nil {
			return nil
		}
		return &object.ObjectMeta
	}
	object := decode(body)
	if object == nil {
		return nil
	}
	accessor, err := meta.Accessor(object)
	if err != nil {
		return nil
	}
	return &metav1.ObjectMeta{
		Name: accessor.GetName(), GenerateName: accessor.GetGenerateName(), Namespace: accessor.GetNamespace(),
		UID: accessor.GetUID(), ResourceVersion: accessor.GetResourceVersion(),
	}
}

// preconditionsOf are those of a deletion or an eviction; nil if the request is neither. A deletion without any has
// empty ones.
func preconditionsOf(info *request.RequestInfo, body []byte) *metav1.Preconditions {
	options, deletes := optionsOf(info, body)
	switch {
	case !deletes:
		return nil
	case options == nil || options.Preconditions == nil:
		return &metav1.Preconditions{}
	}
	return options.Preconditions
}

// optionsOf are the options of a request that deletes, nil if there are none or they cannot be read.
func optionsOf(info *request.RequestInfo, body []byte) (options *metav1.DeleteOptions, deletes bool) {
	switch {
	case info.Verb == "delete" || info.Verb == "deletecollection":
		return deleteOptions(body), true
	case info.Verb == "create" && info.Resource == "pods" && info.Subresource == "eviction":
		return evictionOptions(body), true
	}
	return nil, false
}

// isDryRun reports whether a request changes nothing: its query says so, or the options of a deletion.
func isDryRun(r *http.Request, info *request.RequestInfo, body []byte) bool {
	options, _ := optionsOf(info, body)
	return r.URL.Query().Has("dryRun") || options != nil && len(options.DryRun) > 0
}

func deleteOptions(body []byte) *metav1.DeleteOptions {
	options := &metav1.DeleteOptions{}
	if isJSON(body) {
		if json.Unmarshal(body, options) != nil {
			return nil
		}
		return options
	}
	var unknown runtime.Unknown
	if raw, ok := bytes.CutPrefix(body, protobufPrefix); !ok || unknown.Unmarshal(raw) != nil ||
		options.Unmarshal(unknown.Raw) != nil {
		return nil
	}
	return options
}

func evictionOptions(body []byte) *metav1.DeleteOptions {
	eviction := &policyv1.Eviction{}
	if isJSON(body) {
		if json.Unmarshal(body, eviction) != nil {
			return nil
		}
		return eviction.DeleteOptions
	}
	eviction, _ = decode(body).(*policyv1.Eviction)
	if eviction == nil {
		return nil
	}
	return eviction.DeleteOptions
}

// protobufPrefix begins every object in Kubernetes' protobuf encoding; a runtime.Unknown follows.
var protobufPrefix = []byte{'k', '8', 's', 0}

// decode decodes an object of a kind of Kubernetes itself; nil if it is none.
func decode(body []byte) runtime.Object {
	object, _, err := scheme.Codecs.UniversalDeserializer().Decode(body, nil, nil)
	if err != nil {
		return nil
	}
	return object
}

func isJSON(body []byte) bool {
	trimmed := bytes.TrimSpace(body)
	return len(trimmed) > 0 && trimmed[0] == '{'
}
