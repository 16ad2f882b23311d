// Package freeze reads from Namespaces what they tell of taking Pods out of service: the emergency stop, of a namespace
// or of the cluster, and what evictions do. Only the metadata of Namespaces is read, from the cache.
package freeze

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"kusionstack.io/kuperator/api/podops"
)

// Namespaces reads what holds in namespaces.
type Namespaces struct {
	Cached client.Reader
	// Suite is the namespace that the suite runs in, whose annotation freezes the cluster. It may be missing where the
	// suite runs outside of the cluster.
	Suite string
	// Sees reports whether Pods of a namespace are seen. Namespaces are seen all, for Suite may be another.
	Sees func(namespace string) bool
}

// State is what holds in a namespace.
type State struct {
	// Known is false if the cache does not have the Namespace. It may be frozen then, and nothing else is set.
	Known bool
	// Frozen is true if nothing may be taken out of service, Cluster if that is so everywhere.
	Frozen, Cluster bool
	// Why is the reason as the annotation has it.
	Why string
	// GracefulDeletion is the label by which evictions of Pods are held or not, "" without one.
	GracefulDeletion string
}

// Of reads what holds in a namespace. An error leaves it unknown: no Pod passes a freeze because it could not be read.
func (n *Namespaces) Of(ctx context.Context, namespace string) (State, error) {
	suite, _, err := n.read(ctx, n.Suite)
	if err != nil {
		return State{}, err
	}
	own, known, err := n.read(ctx, namespace)
	if err != nil || !known {
		return State{}, err
	}
	s := State{Known: true, GracefulDeletion: own.Labels[podops.GracefulDeletionLabel]}
	if s.Why, s.Cluster = suite.Annotations[podops.FreezeClusterAnnotation]; s.Cluster {
		s.Frozen = true
	} else {
		s.Why, s.Frozen = own.Annotations[podops.FreezeAnnotation]
	}
	return s, nil
}

func (n *Namespaces) read(ctx context.Context, name string) (*metav1.PartialObjectMetadata, bool, error) {
	m := metadata()
	err := n.Cached.Get(ctx, client.ObjectKey{Name: name}, m)
	if client.IgnoreNotFound(err) != nil {
		return nil, false, fmt.Errorf("reading namespace %s: %w", name, err)
	}
	return m, !apierrors.IsNotFound(err), nil
}

func metadata() *metav1.PartialObjectMetadata {
	m := &metav1.PartialObjectMetadata{}
	m.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Namespace"))
	return m
}

// Source enqueues what is concerned when a Namespace comes, goes, or changes in what is read of it. A change of Suite
// concerns namespace "", which stands for all. Those that are there from the start concern nothing: a controller that
// starts looks at everything.
func (n *Namespaces) Source(
	mgr ctrl.Manager, concerned func(ctx context.Context, namespace string) []reconcile.Request,
) source.Source {
	return source.Kind(mgr.GetCache(), client.Object(metadata()),
		handler.EnqueueRequestsFromMapFunc(n.concerned(concerned)), predicate.Funcs{
			CreateFunc: func(e event.CreateEvent) bool { return !e.IsInInitialList },
			UpdateFunc: func(e event.UpdateEvent) bool { return changed(e.ObjectOld, e.ObjectNew) },
		})
}

func (n *Namespaces) concerned(in func(context.Context, string) []reconcile.Request) handler.MapFunc {
	return func(ctx context.Context, o client.Object) []reconcile.Request {
		switch name := o.GetName(); {
		case name == n.Suite:
			return in(ctx, "")
		case n.Sees(name):
			return in(ctx, name)
		}
		return nil
	}
}

// changed reports whether a Namespace changed in what is read of it.
func changed(before, after client.Object) bool {
	b, a := before.GetAnnotations(), after.GetAnnotations()
	for _, key := range []string{podops.FreezeAnnotation, podops.FreezeClusterAnnotation} {
		was, had := b[key]
		is, has := a[key]
		if was != is || had != has {
			return true
		}
	}
	return before.GetLabels()[podops.GracefulDeletionLabel] != after.GetLabels()[podops.GracefulDeletionLabel]
}
