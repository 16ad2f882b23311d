package freeze

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"kusionstack.io/kuperator/api/podops"
)

const one, all = podops.FreezeAnnotation, podops.FreezeClusterAnnotation

func namespaceWith(name string, annotations ...string) *corev1.Namespace {
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{},
		Labels: map[string]string{podops.GracefulDeletionLabel: name}}}
	for i := 0; i < len(annotations); i += 2 {
		ns.Annotations[annotations[i]] = annotations[i+1]
	}
	return ns
}

func TestWhetherANamespaceIsFrozen(t *testing.T) {
	open := State{Known: true, GracefulDeletion: "web"}
	frozen := func(why string) State { return State{Known: true, Frozen: true, Why: why, GracefulDeletion: "web"} }
	tests := map[string]struct {
		namespaces []client.Object
		want       State
	}{
		"by nothing": {[]client.Object{namespaceWith("web"), namespaceWith("home")}, open},
		"by itself":  {[]client.Object{namespaceWith("web", one, "night"), namespaceWith("home")}, frozen("night")},
		"with the cluster": {[]client.Object{namespaceWith("web", one, "night"), namespaceWith("home", all, "incident")},
			State{Known: true, Frozen: true, Cluster: true, Why: "incident", GracefulDeletion: "web"}},
		"without a reason": {[]client.Object{namespaceWith("web", one, ""), namespaceWith("home")}, frozen("")},
		"not by another namespace": {[]client.Object{namespaceWith("web"), namespaceWith("home", one, "x"),
			namespaceWith("other", one, "x", all, "x")}, open},
		"not by the cluster's key on itself":     {[]client.Object{namespaceWith("web", all, "x")}, open},
		"where the suite's own namespace is not": {[]client.Object{namespaceWith("web", one, "night")}, frozen("night")},
		"the cache does not have it":             {[]client.Object{namespaceWith("home", all, "incident")}, State{}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			n := &Namespaces{Cached: fake.NewClientBuilder().WithObjects(tc.namespaces...).Build(), Suite: "home"}
			state, err := n.Of(t.Context(), "web")
			require.NoError(t, err)
			assert.Equal(t, tc.want, state)
		})
	}
	t.Run("an error leaves it unknown", func(t *testing.T) {
		broken := interceptor.Funcs{Get: func(context.Context, client.WithWatch, client.ObjectKey, client.Object,
			...client.GetOption) error {
			return errors.New("no cache")
		}}
		n := &Namespaces{Cached: fake.NewClientBuilder().WithInterceptorFuncs(broken).Build(), Suite: "home"}
		_, err := n.Of(t.Context(), "web")
		require.ErrorContains(t, err, "reading namespace home: no cache")
	})
}

func TestNamespacesThatAreNotSeenConcernNothing(t *testing.T) {
	n := &Namespaces{Suite: "home", Sees: func(namespace string) bool { return namespace == "web" }}
	var asked []string
	concerned := n.concerned(func(_ context.Context, namespace string) []reconcile.Request {
		asked = append(asked, namespace)
		return make([]reconcile.Request, 1)
	})
	assert.Len(t, concerned(t.Context(), namespaceWith("web")), 1)
	assert.Empty(t, concerned(t.Context(), namespaceWith("other")))
	assert.Len(t, concerned(t.Context(), namespaceWith("home")), 1)
	assert.Equal(t, []string{"web", ""}, asked, "what the suite's own namespace freezes is all that is seen")
}

func TestWhatIsReadOfANamespaceIsSeenToChange(t *testing.T) {
	frozen, without, labelled := namespaceWith("web", one, ""), namespaceWith("web"), namespaceWith("web", all, "x")
	assert.True(t, changed(frozen, without))
	assert.True(t, changed(without, frozen))
	assert.True(t, changed(without, labelled))
	assert.False(t, changed(frozen, namespaceWith("web", one, "", "other", "x")))
	labelled = namespaceWith("web")
	labelled.Labels[podops.GracefulDeletionLabel] = "false"
	assert.True(t, changed(without, labelled))
}
