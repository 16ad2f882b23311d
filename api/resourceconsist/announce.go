package resourceconsist

import (
	"strings"

	"gomodules.xyz/jsonpatch/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"kusionstack.io/kuperator/api/podops"
)

// Announce returns the operations that announce employers of a kind on a Pod that is being created with these
// annotations, nil if all are announced already; see podops.Expect. Other announcements are kept. It returns an error
// if the annotation is not valid.
func Announce(
	annotations map[string]string, kind string, employers ...client.ObjectKey,
) ([]jsonpatch.JsonPatchOperation, error) {
	view := podops.View{Annotations: annotations}
	for _, employer := range employers {
		change, err := podops.Expect(view, EmployerKey(kind, employer), Finalizer(employer.Name))
		if err != nil {
			return nil, err
		}
		view = change.Apply(view)
	}
	key := podops.AvailableConditionsAnnotation
	expected := view.Annotations[key]
	switch {
	case expected == annotations[key]:
		return nil, nil
	case len(annotations) == 0: // absent, null or empty
		return []jsonpatch.JsonPatchOperation{jsonpatch.NewOperation("add", "/metadata/annotations",
			map[string]string{key: expected})}, nil
	}
	return []jsonpatch.JsonPatchOperation{jsonpatch.NewOperation("add",
		"/metadata/annotations/"+strings.ReplaceAll(key, "/", "~1"), expected)}, nil
}
