package resourceconsist

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
	api "kusionstack.io/kuperator/api/resourceconsist"
	"kusionstack.io/kuperator/internal/ondemand"
	"kusionstack.io/kuperator/internal/resourceconsist/backend"
)

// AddToManagerOnDemand is AddToManager, once there is something to do: an employer in the cache, a Pod that may have to
// be let go, or an employer that has to be. Until then only employers are watched (docs/design/0015-on-demand.md). The
// manager's user may read all namespaces.
func AddToManagerOnDemand(
	mgr manager.Manager, example client.Object, options api.Options, adapters ...backend.Backend,
) error {
	gvk, err := kindOf(mgr, example, adapters)
	if err != nil {
		return err
	}
	l := leftovers{gvk: gvk, live: mgr.GetAPIReader(), held: slices.ContainsFunc(adapters, holds)}
	return ondemand.AddToManager(mgr, nil, ondemand.Controller{
		Kind:     backend.New(example),
		Leftover: l.find,
		Add:      func() error { return AddToManager(mgr, example, options, adapters...) },
	})
}

// leftovers is what an employer that takes no part any more may have left behind.
type leftovers struct {
	gvk  schema.GroupVersionKind
	live client.Reader
	// held is true if employers of this kind may be held by the clean-up finalizer.
	held bool
}

// find names a leftover, "" if there is none. Employers themselves are looked at once: those that lose their label
// later are in the cache before.
func (l leftovers) find(ctx context.Context, first bool) (string, error) {
	managed := client.MatchingLabels{appsv1alpha1.ControlLabel: appsv1alpha1.ControlValue}
	found, err := ondemand.FirstLive(ctx, l.live, corev1.SchemeGroupVersion.WithKind("Pod"), mayNeedRelease, managed)
	if err != nil {
		return "", fmt.Errorf("looking for Pods that wait for a %s that takes no part: %w", l.gvk.Kind, err)
	}
	if found != "" || !first || !l.held {
		return found, nil
	}
	found, err = ondemand.FirstLive(ctx, l.live, l.gvk, func(o metav1.Object) bool { return len(cleanFinalizers(o)) > 0 })
	if err != nil {
		return "", fmt.Errorf("looking for %ss that take no part any more: %w", l.gvk.Kind, err)
	}
	return found, nil
}

// mayNeedRelease reports whether a Pod may wait to be let go, or to serve.
func mayNeedRelease(pod metav1.Object) bool {
	return pod.GetAnnotations()[podops.AvailableConditionsAnnotation] != "" ||
		(podops.View{Finalizers: pod.GetFinalizers()}).Protected()
}
