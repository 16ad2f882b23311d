package webhook

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	"github.com/go-logr/logr"
	"gomodules.xyz/jsonpatch/v2"
	admissionv1 "k8s.io/api/admission/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"
)

// requestLogger puts what identifies a request into its log lines, and nothing that a user wrote besides names.
func requestLogger(base logr.Logger, request *admission.Request) logr.Logger {
	if request == nil {
		return base
	}
	return base.WithValues("operation", request.Operation, "resource", request.Resource.Resource,
		"namespace", request.Namespace, "name", request.Name, "requestID", request.UID)
}

// concerns reports whether the request is one of operations on the resource itself. A webhook configuration that
// sends more than it should is no reason to refuse anything.
func concerns(request admission.Request, resource string, operations ...admissionv1.Operation) bool {
	if request.Resource.Resource != resource || request.SubResource != "" {
		return false
	}
	for _, operation := range operations {
		if request.Operation == operation {
			return true
		}
	}
	return false
}

// envelope is what every object has.
type envelope struct {
	Metadata struct {
		DeletionTimestamp *metav1.Time `json:"deletionTimestamp"`
	} `json:"metadata"`
	Spec json.RawMessage `json:"spec"`
}

// leavesSpec reports whether an update leaves the spec as it is, or concerns an object that is being deleted. Both are
// always admitted.
func leavesSpec(request admission.Request) (bool, error) {
	if request.Operation != admissionv1.Update {
		return false, nil
	}
	var was, is envelope
	if err := errors.Join(json.Unmarshal(request.OldObject.Raw, &was),
		json.Unmarshal(request.Object.Raw, &is)); err != nil {
		return false, err
	}
	if is.Metadata.DeletionTimestamp != nil || was.Metadata.DeletionTimestamp != nil {
		return true, nil
	}
	// The API server writes both with sorted keys; should it not, an equal spec is checked once more, nothing worse.
	return bytes.Equal(was.Spec, is.Spec), nil
}

// changed reads the object of a request that creates one, or changes the spec of one. It returns the answer to any other
// request, and to one that cannot be read; nil if the object has to be validated.
func changed(request admission.Request, resource, kind string, object any) *admission.Response {
	answer := admission.Allowed("")
	if !concerns(request, resource, admissionv1.Create, admissionv1.Update) {
		return &answer
	}
	isSame, err := leavesSpec(request)
	if err == nil && !isSame {
		err = json.Unmarshal(request.Object.Raw, object)
	}
	switch {
	case err != nil:
		answer = undecodable(kind, err)
	case !isSame:
		return nil
	}
	return &answer
}

// undecodable is the answer to an object that does not fit its type.
func undecodable(kind string, err error) admission.Response {
	return admission.Errored(http.StatusBadRequest,
		fmt.Errorf("this is no %s: %w: compare it with kubectl explain", kind, err))
}

// verdict refuses with all errors at once (422, as the API server does for its own objects), or allows. Warnings go
// with either.
func verdict(kind schema.GroupKind, name string, errs field.ErrorList, warnings []string) admission.Response {
	if len(errs) == 0 {
		return admission.Allowed("").WithWarnings(warnings...)
	}
	status := apierrors.NewInvalid(kind, name, errs).ErrStatus
	return admission.Response{AdmissionResponse: admissionv1.AdmissionResponse{
		Allowed:  false,
		Result:   &status,
		Warnings: warnings,
	}}
}

// nameOf is the object's name, or what it is generated from.
func nameOf(meta metav1.ObjectMeta) string {
	if meta.Name == "" {
		return meta.GenerateName
	}
	return meta.Name
}

// add is the JSON patch operation that sets what is at path, whether or not something is there. Its parent must exist.
func add(path string, value any) jsonpatch.JsonPatchOperation {
	return jsonpatch.NewOperation("add", path, value)
}
