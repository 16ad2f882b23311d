package resourceconsist

import (
	"context"
	"fmt"
	"strings"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	authorization "k8s.io/client-go/kubernetes/typed/authorization/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
)

// syncTimeout is how long a cache may take to fill before the reason is looked for.
const syncTimeout = 10 * time.Second

// explainSync says what right is missing if the cache of a kind does not fill. The manager ends by itself some minutes
// later, and then says only that it has waited too long.
func explainSync(mgr manager.Manager, gvk schema.GroupVersionKind, example client.Object) manager.RunnableFunc {
	return func(ctx context.Context) error {
		waiting, cancel := context.WithTimeout(ctx, syncTimeout)
		defer cancel()
		if _, err := mgr.GetCache().GetInformer(waiting, example); err == nil || ctx.Err() != nil {
			return nil
		}
		logger := mgr.GetLogger().WithValues("kind", gvk.Kind)
		missing, resource, err := missingVerbs(ctx, mgr, gvk)
		switch {
		case err != nil:
			logger.Error(err, "the cache of employers does not fill; asking why failed")
		case len(missing) > 0:
			logger.Error(fmt.Errorf("the manager's user may not %s %s", strings.Join(missing, " or "), resource),
				"the cache of employers does not fill: give the user get, list, watch and patch by a ClusterRole, "+
					"or limit the manager's cache to namespaces where it has them")
		default:
			logger.Info("the cache of employers has not filled yet, although the manager's user may list and watch them")
		}
		return nil
	}
}

// missingVerbs are those of list and watch that the manager's user does not have for a kind in all namespaces.
func missingVerbs(
	ctx context.Context, mgr manager.Manager, gvk schema.GroupVersionKind,
) (missing []string, resource string, err error) {
	mapping, err := mgr.GetRESTMapper().RESTMapping(gvk.GroupKind(), gvk.Version)
	if err != nil {
		return nil, "", err
	}
	reviews, err := authorization.NewForConfig(mgr.GetConfig())
	if err != nil {
		return nil, "", err
	}
	for _, verb := range []string{"list", "watch"} {
		review, err := reviews.SelfSubjectAccessReviews().Create(ctx, &authorizationv1.SelfSubjectAccessReview{
			Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &authorizationv1.ResourceAttributes{
				Verb: verb, Group: gvk.Group, Version: gvk.Version, Resource: mapping.Resource.Resource,
			}},
		}, metav1.CreateOptions{})
		if err != nil {
			return nil, "", err
		}
		if !review.Status.Allowed {
			missing = append(missing, verb)
		}
	}
	return missing, mapping.Resource.GroupResource().String(), nil
}
