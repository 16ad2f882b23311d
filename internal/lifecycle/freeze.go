package lifecycle

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"kusionstack.io/kuperator/api/podops"
)

// freeze reads the emergency stop from Namespaces, of which only metadata is cached.
type freeze struct {
	client client.Reader
	// own is the namespace that the suite runs in.
	own string
	// sees says in which namespaces Pods are seen. Namespaces are seen all, for own may be another.
	sees func(namespace string) bool
}

func namespaceMetadata() *metav1.PartialObjectMetadata {
	m := &metav1.PartialObjectMetadata{}
	m.APIVersion, m.Kind = "v1", "Namespace"
	return m
}

// why says why nothing in the namespace may be taken out of service; "" if it may. Any doubt is an error: no Pod passes
// a freeze because it could not be read.
func (f *freeze) why(ctx context.Context, namespace string) (string, error) {
	annotations, known, err := f.annotations(ctx, namespace)
	if err != nil {
		return "", err
	}
	if !known { // its event wakes the Pods that wait
		return fmt.Sprintf("namespace %s is not known yet", namespace), nil
	}
	if why, frozen := annotations[podops.FreezeAnnotation]; frozen {
		return fmt.Sprintf("namespace %s is frozen by annotation %s: %q", namespace, podops.FreezeAnnotation, why), nil
	}
	annotations, _, err = f.annotations(ctx, f.own)
	if err != nil {
		return "", err
	}
	if why, frozen := annotations[podops.FreezeClusterAnnotation]; frozen {
		return fmt.Sprintf("the cluster is frozen by annotation %s of namespace %s: %q", podops.FreezeClusterAnnotation,
			f.own, why), nil
	}
	return "", nil
}

func (f *freeze) annotations(
	ctx context.Context, namespace string,
) (annotations map[string]string, known bool, err error) {
	m := namespaceMetadata()
	err = f.client.Get(ctx, types.NamespacedName{Name: namespace}, m)
	if apierrors.IsNotFound(err) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, fmt.Errorf("looking whether namespace %s is frozen: %w", namespace, err)
	}
	return m.Annotations, true, nil
}

// source wakes the Pods that wait when a freeze ends: those of the namespace, or
// all of them.
func (f *freeze) source(mgr ctrl.Manager, wake func(ctx context.Context, namespace string, q queue)) source.Source {
	return source.Kind(mgr.GetCache(), client.Object(namespaceMetadata()), f.handler(wake))
}

func (f *freeze) handler(wake func(ctx context.Context, namespace string, q queue)) handler.Funcs {
	one := func(ctx context.Context, namespace string, q queue) {
		if f.sees(namespace) {
			wake(ctx, namespace, q)
		}
	}
	return handler.Funcs{
		CreateFunc: func(ctx context.Context, e event.CreateEvent, q queue) {
			if !e.IsInInitialList { // then the Pods are enqueued anyway
				one(ctx, e.Object.GetName(), q)
			}
		},
		UpdateFunc: func(ctx context.Context, e event.UpdateEvent, q queue) {
			if ended(e, podops.FreezeClusterAnnotation) && e.ObjectNew.GetName() == f.own {
				wake(ctx, "", q)
			} else if ended(e, podops.FreezeAnnotation) {
				one(ctx, e.ObjectNew.GetName(), q)
			}
		},
		DeleteFunc: func(ctx context.Context, e event.DeleteEvent, q queue) {
			if e.Object.GetName() == f.own {
				wake(ctx, "", q)
			}
		},
	}
}

// ended reports whether an update took the annotation away.
func ended(e event.UpdateEvent, annotation string) bool {
	_, before := e.ObjectOld.GetAnnotations()[annotation]
	_, after := e.ObjectNew.GetAnnotations()[annotation]
	return before && !after
}
