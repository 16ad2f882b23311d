package security

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
	"kusionstack.io/kuperator/internal/testkit/workload"
)

const (
	image1 = "web:1"
	image2 = "web:2"
)

// tenant is a user with roles in namespaces.
type tenant struct {
	client.Client
	name string
}

// tenant gives a new user the ClusterRoles in a namespace and nothing else, and waits until the API server knows.
func (w *world) tenant(t *testing.T, namespace string, roles ...string) tenant {
	t.Helper()
	user := namespace + "-user"
	for _, role := range roles {
		user += "-" + role
	}
	for _, role := range roles {
		_, err := w.clients.RbacV1().RoleBindings(namespace).Create(t.Context(), &rbacv1.RoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: user + "-" + role},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
			Subjects:   []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: user}},
		}, metav1.CreateOptions{})
		require.NoError(t, err)
	}
	config := w.RESTConfig()
	config.Impersonate = rest.ImpersonationConfig{UserName: user, Groups: []string{"system:authenticated"}}
	c, err := client.New(config, client.Options{Scheme: w.admin.Scheme()})
	require.NoError(t, err)
	eventually(t, func(c *assert.CollectT) {
		answer, err := w.clients.AuthorizationV1().SubjectAccessReviews().Create(t.Context(),
			&authorizationv1.SubjectAccessReview{
				Spec: authorizationv1.SubjectAccessReviewSpec{User: user, ResourceAttributes: &authorizationv1.ResourceAttributes{
					Namespace: namespace, Verb: "get", Group: appsv1alpha1.GroupName, Resource: "collasets",
				}},
			}, metav1.CreateOptions{})
		require.NoError(c, err)
		require.True(c, answer.Status.Allowed)
	}, "the roles are in force")
	return tenant{Client: c, name: user}
}

// asks is a rule for the Pods labelled app=name that asks a server.
func asks(namespace, name, url, secret string) *appsv1alpha1.PodTransitionRule {
	r := workload.Rule(namespace, name, "0")
	r.Spec.Rules[0].AvailablePolicy = nil
	r.Spec.Rules[0].Webhook = &appsv1alpha1.TransitionRuleWebhook{
		ClientConfig:  appsv1alpha1.WebhookClientConfig{URL: url, SecretName: secret},
		FailurePolicy: ptr.To(appsv1alpha1.FailurePolicyIgnore),
	}
	return r
}

// pods returns the Pods labelled app=name.
func (w *world) pods(t require.TestingT, test *testing.T, namespace, name string) []corev1.Pod {
	var list corev1.PodList
	require.NoError(t, w.admin.List(test.Context(), &list, client.InNamespace(namespace),
		client.MatchingLabels{"app": name}))
	return list.Items
}

// serving waits until n Pods of the image are in service with no operation left.
func (w *world) serving(t *testing.T, namespace, name string, n int, image string) {
	t.Helper()
	eventually(t, func(c *assert.CollectT) {
		pods := w.pods(c, t, namespace, name)
		require.Len(c, pods, n)
		for i := range pods {
			v := podops.Read(&pods[i])
			require.Equal(c, image, pods[i].Spec.Containers[0].Image)
			require.True(c, v.ServiceAvailable(), "%s: %v", pods[i].Name, podops.Explain(v, nil))
			require.Empty(c, podops.Operations(v))
		}
	}, "Pods in service")
}

// mayDo asks the API server what a user may do in the whole cluster.
func (w *world) mayDo(ctx context.Context, user, verb, resource string) (bool, error) {
	answer, err := w.clients.AuthorizationV1().SubjectAccessReviews().Create(ctx, &authorizationv1.SubjectAccessReview{
		Spec: authorizationv1.SubjectAccessReviewSpec{User: user,
			ResourceAttributes: &authorizationv1.ResourceAttributes{Verb: verb, Resource: resource}},
	}, metav1.CreateOptions{})
	if err != nil {
		return false, err
	}
	return answer.Status.Allowed, nil
}
