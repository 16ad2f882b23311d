package podtransitionrule

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
	"kusionstack.io/kuperator/internal/shorten"
)

var namespaceKind = corev1.SchemeGroupVersion.WithKind("Namespace")

// longestReason is how many bytes of a freeze's reason are shown.
const longestReason = 256

// freeze reads from the cache whether a namespace is frozen.
type freeze struct {
	client client.Reader
	// home is the namespace of the suite itself, whose annotation freezes the cluster.
	home string
	// sees says in which namespaces Pods and rules are seen. Namespaces are seen all, for home may be another.
	sees func(namespace string) bool
}

// reason says why nothing may be taken out of service in the namespace, "" if it may. A Namespace that is not in the
// cache is an error: it may be frozen. That of the suite may be missing where it runs outside of the cluster.
func (f freeze) reason(ctx context.Context, namespace string) (string, error) {
	why, frozen, err := f.annotation(ctx, f.home, podops.FreezeClusterAnnotation)
	if client.IgnoreNotFound(err) != nil {
		return "", err
	}
	if !frozen {
		if why, frozen, err = f.annotation(ctx, namespace, podops.FreezeAnnotation); err != nil {
			return "", err
		}
	}
	switch {
	case !frozen:
		return "", nil
	case strings.TrimSpace(why) == "":
		return "no reason given", nil
	}
	return shorten.Bytes(why, longestReason), nil
}

func (f freeze) annotation(ctx context.Context, namespace, key string) (value string, has bool, err error) {
	o := partial(namespaceKind)
	if err := f.client.Get(ctx, client.ObjectKey{Name: namespace}, o); err != nil {
		if apierrors.IsNotFound(err) {
			return "", false, err
		}
		return "", false, fmt.Errorf("reading namespace %s: %w", namespace, err)
	}
	value, has = o.Annotations[key]
	return value, has, nil
}

// gracefulDeletion is the label of a namespace by which evictions of its Pods are held or not, "" without one.
func (f freeze) gracefulDeletion(ctx context.Context, namespace string) (string, error) {
	o := partial(namespaceKind)
	if err := f.client.Get(ctx, client.ObjectKey{Name: namespace}, o); err != nil {
		return "", fmt.Errorf("reading namespace %s: %w", namespace, err)
	}
	return o.Labels[podops.GracefulDeletionLabel], nil
}

// gone reports whether there is no such namespace any more.
func (f freeze) gone(ctx context.Context, namespace string) bool {
	return apierrors.IsNotFound(f.client.Get(ctx, client.ObjectKey{Name: namespace}, partial(namespaceKind)))
}

func partial(kind schema.GroupVersionKind) *metav1.PartialObjectMetadata {
	o := &metav1.PartialObjectMetadata{}
	o.SetGroupVersionKind(kind)
	return o
}

// concerned are the namespaces to decide about when a Namespace comes, goes or changes in this: itself, and all
// that have rules if it is the suite's own.
func (f freeze) concerned(ctx context.Context, o client.Object) []reconcile.Request {
	var requests []reconcile.Request
	if f.sees(o.GetName()) {
		requests = append(requests, request(o.GetName()))
	}
	if o.GetName() == f.home {
		requests = append(requests,
			namespacesWithRules(ctx, f.client, func(*appsv1alpha1.PodTransitionRule) bool { return true })...)
	}
	return requests
}

// source enqueues the namespaces that a change of a freeze, or of what evictions do, concerns.
func (f freeze) source(mgr ctrl.Manager) source.Source {
	return sourceOf(mgr, partial(namespaceKind), f.concerned, func(before, after client.Object) bool {
		b, a := before.GetAnnotations(), after.GetAnnotations()
		for _, key := range []string{podops.FreezeAnnotation, podops.FreezeClusterAnnotation} {
			was, had := b[key]
			is, has := a[key]
			if was != is || had != has {
				return true
			}
		}
		return before.GetLabels()[podops.GracefulDeletionLabel] != after.GetLabels()[podops.GracefulDeletionLabel]
	})
}

// namespacesWithRules are the namespaces that have such a rule.
func namespacesWithRules(
	ctx context.Context, c client.Reader, such func(*appsv1alpha1.PodTransitionRule) bool,
) []reconcile.Request {
	var list appsv1alpha1.PodTransitionRuleList
	if err := c.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "listing podtransitionrules: some namespaces are decided only at their next change")
		return nil
	}
	names := sets.New[string]()
	for i := range list.Items {
		if such(&list.Items[i]) {
			names.Insert(list.Items[i].Namespace)
		}
	}
	requests := make([]reconcile.Request, 0, len(names))
	for _, name := range sets.List(names) {
		requests = append(requests, request(name))
	}
	return requests
}
