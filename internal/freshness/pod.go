package freshness

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Pod is a Pod of the given metadata, as far as it is recorded: writes are tracked under the type that is cached.
func Pod(object metav1.Object) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: object.GetNamespace(), Name: object.GetName(), UID: object.GetUID(),
		ResourceVersion:   object.GetResourceVersion(),
		DeletionTimestamp: object.GetDeletionTimestamp(), DeletionGracePeriodSeconds: object.GetDeletionGracePeriodSeconds(),
		Finalizers: object.GetFinalizers(),
	}}
}

// Refused records that a write of a Pod, its own owner, was refused because the Pod is newer than the cache shows:
// until the cache has come as far as the Pod is now, it is unobserved, as if that were an own write. Without it a
// controller whose watch is seconds behind sends the same write again and again. A Pod that cannot be read, or is
// gone, records nothing.
func (t *Tracker) Refused(ctx context.Context, live client.Reader, pod types.NamespacedName) {
	now := &metav1.PartialObjectMetadata{}
	now.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Pod"))
	if err := live.Get(ctx, pod, now); err == nil {
		t.Wrote(pod, Pod(now))
	}
}
