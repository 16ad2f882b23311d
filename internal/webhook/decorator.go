package webhook

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"sync/atomic"

	"gomodules.xyz/jsonpatch/v2"
	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kjson "sigs.k8s.io/json"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/internal/bootstrap"
	"kusionstack.io/kuperator/internal/decoration"
	"kusionstack.io/kuperator/internal/poddecoration/decoplan"
)

// maxRevisions bounds how many revisions of PodDecorations are kept in memory; beyond that all are read again.
const maxRevisions = 256

// decorator decorates new Pods. The zero decorator decorates none.
type decorator struct {
	// cached reads PodDecorations. Nil: the API server does not serve them.
	cached atomic.Pointer[client.Reader]
	// live reads their revisions past the cache.
	live client.Reader

	mu    sync.Mutex
	known map[client.ObjectKey]decoration.Decoration // by revision: their contents do not change
}

// +kubebuilder:rbac:groups=apps.kusionstack.io,resources=poddecorations,verbs=list;watch
// +kubebuilder:rbac:groups=apps,resources=controllerrevisions,verbs=get

// watch has the decorator work as soon as the API server serves PodDecorations.
func (d *decorator) watch(ctx context.Context, mgr ctrl.Manager) error {
	d.live = mgr.GetAPIReader()
	kind := appsv1alpha1.SchemeGroupVersion.WithKind(appsv1alpha1.PodDecorationKind)
	return bootstrap.WhenServed(mgr, kind, func(mgr ctrl.Manager) error {
		_, err := mgr.GetCache().GetInformer(ctx, &appsv1alpha1.PodDecoration{}, cache.BlockUntilSynced(false))
		if err != nil {
			return fmt.Errorf("watching PodDecorations: %w", err)
		}
		var cached client.Reader = mgr.GetCache()
		d.cached.Store(&cached)
		return nil
	})
}

// decorate returns the Pod, as JSON, with the decorations that a new Pod with its labels is to have, and the patch that
// makes it so. A Pod is never refused: what it cannot have is left out, with a warning, and poddecoration-controller
// sees to it. One that was made with decorations is returned as it is.
func (d *decorator) decorate(
	ctx context.Context, namespace string, raw []byte,
) (decorated []byte, patch []jsonpatch.JsonPatchOperation, warnings []string) {
	cached := d.cached.Load()
	if cached == nil {
		return raw, nil, nil
	}
	pod := map[string]any{}
	if kjson.UnmarshalCaseSensitivePreserveInts(raw, &pod) != nil { // the caller tells of it
		return raw, nil, nil
	}
	object := unstructured.Unstructured{Object: pod}
	if _, made := object.GetAnnotations()[appsv1alpha1.PodDecorationRevisionsAnnotation]; made {
		return raw, nil, nil
	}
	left := func(what string, err error) (
		decorated []byte, patch []jsonpatch.JsonPatchOperation, warnings []string,
	) {
		return raw, nil, []string{fmt.Sprintf("the Pod is not decorated at once: %s: %v", what, err)}
	}
	var list appsv1alpha1.PodDecorationList
	err := (*cached).List(ctx, &list, client.InNamespace(namespace), client.UnsafeDisableDeepCopy)
	if err != nil {
		return left("listing PodDecorations", err)
	}
	marks, isSelected := decoplan.New(decorationsIn(&list), object.GetLabels())
	if !isSelected {
		return raw, nil, nil
	}
	var decorations []decoration.Decoration
	for _, m := range marks {
		of, err := d.revision(ctx, namespace, m)
		if err != nil {
			return left("PodDecoration "+m.Name, err)
		}
		decorations = append(decorations, of)
	}
	rendered, refused, err := decoration.Render(pod, decorations)
	if err != nil {
		return left("rendering it", err)
	}
	for _, r := range refused {
		warnings = append(warnings, fmt.Sprintf("the Pod goes without PodDecoration %s: %s", r.Name, r.Why))
	}
	if decorated, err = json.Marshal(rendered); err != nil {
		return left("encoding it", err)
	}
	return decorated, decoration.Patch(pod, rendered), warnings
}

// decorationsIn is what a decision reads of PodDecorations. The revision of a template that poddecoration-controller
// has not seen yet is not known; Pods get it later.
func decorationsIn(list *appsv1alpha1.PodDecorationList) []decoplan.Decoration {
	decorations := make([]decoplan.Decoration, 0, len(list.Items))
	for i := range list.Items {
		d := &list.Items[i]
		decorations = append(decorations, decoplan.Decoration{Name: d.Name, Generation: d.Generation, Spec: d.Spec,
			Status: d.Status, Deleting: d.DeletionTimestamp != nil, Updated: d.Status.UpdatedRevision})
	}
	return decorations
}

// revision reads a revision of a PodDecoration, once.
func (d *decorator) revision(ctx context.Context, namespace string, m decoration.Mark) (decoration.Decoration, error) {
	key := client.ObjectKey{Namespace: namespace, Name: m.Revision}
	d.mu.Lock()
	of, is := d.known[key]
	d.mu.Unlock()
	if is && of.Name == m.Name {
		return of, nil
	}
	cr := &appsv1.ControllerRevision{}
	if err := d.live.Get(ctx, key, cr); err != nil {
		return of, fmt.Errorf("reading its revision: %w", err)
	}
	of, isIts, err := decoration.Of(cr, m)
	switch {
	case !isIts:
		return of, fmt.Errorf("revision %s is not its own", m.Revision)
	case err != nil:
		return of, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.known == nil || len(d.known) >= maxRevisions {
		d.known = map[client.ObjectKey]decoration.Decoration{}
	}
	d.known[key] = of
	return of, nil
}
