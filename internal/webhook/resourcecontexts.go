package webhook

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
)

// maxReported bounds the errors of one kind in one answer.
const maxReported = 10

// validateResourceContext refuses a pool that has an instance ID twice. Whose the entries are does not matter: a pool
// may be shared by several CollaSets, under any name.
func validateResourceContext(_ context.Context, request admission.Request) admission.Response {
	pool := appsv1alpha1.ResourceContext{}
	if answer := changed(request, "resourcecontexts", appsv1alpha1.ResourceContextKind, &pool); answer != nil {
		return *answer
	}
	return verdict(appsv1alpha1.Kind(appsv1alpha1.ResourceContextKind), nameOf(pool.ObjectMeta),
		duplicateIDs(pool.Spec.Contexts), nil)
}

func duplicateIDs(entries []appsv1alpha1.ContextDetail) field.ErrorList {
	var errs field.ErrorList
	first := make(map[int]int, len(entries))
	for i, entry := range entries {
		if j, taken := first[entry.ID]; !taken {
			first[entry.ID] = i
		} else if len(errs) < maxReported {
			path := field.NewPath("spec", "contexts").Index(i).Child("id")
			errs = append(errs, field.Invalid(path, entry.ID,
				fmt.Sprintf("item %d has this instance ID already: give it another one, or remove one of the two", j)))
		}
	}
	return errs
}
