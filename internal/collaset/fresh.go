package collaset

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/internal/freshness"
)

// baseline is a CollaSet with its entries and Pods as the API server had them. Of the Pods it has those that the
// CollaSet controls and those that leftBehind reports.
type baseline struct {
	generation int64
	entries    string // resourceVersion of the ResourceContext, "" for none
	pods       freshness.Baseline
	labels     labels.Selector // of the list of Pods
}

// anyVersion is the resourceVersion that every other is as late as.
const anyVersion = "1"

// ensureFresh compares the view that was decided on with the API server, when it may be one of the past and anything is
// to be done or status to be written: once in the life of this process, whose lists may have come from an API server
// that lags, and after a creation whose answer is not known. Most writes name the resourceVersion that they were
// decided on, and would be refused as long as the view is old; but a creation cannot, and an entry is given up because
// of a Pod that is not there. Without it Pods are made twice, and instance IDs given away that are in use.
func (s *server) ensureFresh(ctx context.Context, o *observation) error {
	wait, err := o.memory.view.Pass(s.clock.Now(), func() (*baseline, error) { return s.readBaseline(ctx, o) }, o.shows)
	if err == nil && wait > 0 {
		return errStale
	}
	return err
}

// readBaseline also takes note of Pods that the CollaSet is to have back.
func (s *server) readBaseline(ctx context.Context, o *observation) (*baseline, error) {
	of, strays := o.set, &o.memory.strays
	set, err := s.newestSet(ctx, of)
	if err != nil {
		return nil, err
	}
	b := &baseline{generation: set.Generation, labels: o.selector}
	if b.entries, err = s.newestEntries(ctx,
		client.ObjectKey{Namespace: of.Namespace, Name: contextName(of)}); err != nil {
		return nil, err
	}
	versionOf := func(pod *metav1.PartialObjectMetadata) string {
		managed := pod.Labels[appsv1alpha1.ControlLabel] == appsv1alpha1.ControlValue
		switch {
		case metav1.IsControlledBy(pod, of) && managed:
			return pod.ResourceVersion
		case metav1.IsControlledBy(pod, of): // the cache does not have it
			if !slices.ContainsFunc(strays.unmanaged, func(known *corev1.Pod) bool { return known.UID == pod.UID }) {
				strays.unmanaged = append(strays.unmanaged, &corev1.Pod{ObjectMeta: pod.ObjectMeta})
			}
			if o.snapshot.Orphaning {
				return ""
			}
			return anyVersion
		case managed && leftBehind(pod, of) && !o.snapshot.Deleting:
			if hasDangling(pod, of) {
				strays.identities.dangles(pod.Name)
			}
			return pod.ResourceVersion
		}
		return ""
	}
	b.pods, err = freshness.ReadBaseline(ctx, s.live, corev1.SchemeGroupVersion.WithKind("Pod"), versionOf,
		client.InNamespace(of.Namespace), client.MatchingLabelsSelector{Selector: b.labels})
	return b, err
}

// newestSet is a CollaSet's metadata at the API server; errStale if it is gone, or another has its name.
func (s *server) newestSet(ctx context.Context, set *appsv1alpha1.CollaSet) (*metav1.PartialObjectMetadata, error) {
	now := &metav1.PartialObjectMetadata{}
	now.SetGroupVersionKind(appsv1alpha1.SchemeGroupVersion.WithKind(appsv1alpha1.CollaSetKind))
	err := s.live.Get(ctx, client.ObjectKeyFromObject(set), now)
	switch {
	case apierrors.IsNotFound(err), err == nil && now.UID != set.UID:
		return nil, errStale
	case err != nil:
		return nil, fmt.Errorf("reading the CollaSet afresh: %w", err)
	}
	return now, nil
}

// shows reports whether the view is at least as new.
func (o *observation) shows(b *baseline) bool {
	switch {
	case o.set.Generation < b.generation:
		return false
	case b.entries == "" && o.context != nil && freshness.Newer(b.pods.Listed, o.context.ResourceVersion):
		return false // it is gone since, with a CollaSet of the same name
	case b.entries != "" && (o.context == nil || freshness.Newer(b.entries, o.context.ResourceVersion)):
		return false
	}
	shown := make(map[types.UID]string, len(o.snapshot.Pods))
	for i := range o.snapshot.Strays { // some may be members by now, and others were not listed
		pod := &o.snapshot.Strays[i].Pod.View
		if _, known := b.pods.Versions[pod.UID]; known {
			shown[pod.UID] = pod.ResourceVersion
		}
	}
	for i := range o.snapshot.Pods {
		pod := &o.snapshot.Pods[i].View
		if _, known := b.pods.Versions[pod.UID]; known || b.labels.Matches(labels.Set(pod.Labels)) {
			shown[pod.UID] = pod.ResourceVersion
		}
	}
	return b.pods.ShownBy(shown)
}
