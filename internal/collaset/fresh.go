package collaset

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/internal/freshness"
)

// readAgain is the age at which a baseline that the cache does not show is read again: what it has may be gone since.
const readAgain = time.Second

// view is whether what the cache shows of a CollaSet was compared with the API server.
type view struct {
	// unverified is true if the cache may lack a Pod that was created. baseline is what it has to show before that is
	// ruled out, nil before it was read.
	unverified atomic.Bool
	baseline   *baseline
}

// baseline is a CollaSet with its entries and Pods as the API server had them.
type baseline struct {
	at         time.Time
	generation int64
	entries    string // resourceVersion of the ResourceContext, "" for none
	pods       map[types.UID]string
	// strays are those that leftBehind reports, and unmanaged those that the CollaSet controls and the cache does not
	// have.
	strays    map[types.UID]string
	unmanaged []*corev1.Pod
	// listed is the resourceVersion of the list of Pods, and labels are those that it was of.
	listed string
	labels labels.Selector
}

// ensureFresh compares the view that was decided on with the API server, when it may be one of the past and anything is
// to be done or status to be written: once in the life of this process, whose lists may have come from an API server
// that lags, and after a creation whose answer is not known. Most writes name the resourceVersion that they were
// decided on, and would be refused as long as the view is old; but a creation cannot, and an entry is given up because
// of a Pod that is not there. Without it Pods are made twice, and instance IDs given away that are in use.
func (s *server) ensureFresh(ctx context.Context, o *observation) error {
	m := &o.memory.view
	if !m.unverified.Load() {
		return nil
	}
	if m.baseline == nil || s.clock.Since(m.baseline.at) > readAgain {
		var err error
		if m.baseline, err = s.readBaseline(ctx, o); err != nil {
			return err
		}
		strays := &o.memory.strays
		strays.unmanaged = append(strays.unmanaged, slices.DeleteFunc(slices.Clone(m.baseline.unmanaged), func(pod *corev1.Pod) bool {
			return slices.ContainsFunc(strays.unmanaged, func(known *corev1.Pod) bool { return known.UID == pod.UID })
		})...)
	}
	if !m.baseline.shownBy(o) {
		return errStale
	}
	m.baseline = nil
	m.unverified.Store(false)
	return nil
}

func (s *server) readBaseline(ctx context.Context, o *observation) (*baseline, error) {
	of := o.set
	b := &baseline{at: s.clock.Now(), pods: map[types.UID]string{}, strays: map[types.UID]string{}, labels: o.selector}
	set := &metav1.PartialObjectMetadata{}
	set.SetGroupVersionKind(appsv1alpha1.SchemeGroupVersion.WithKind(appsv1alpha1.CollaSetKind))
	if err := s.live.Get(ctx, client.ObjectKeyFromObject(of), set); apierrors.IsNotFound(err) || err == nil && set.UID != of.UID {
		return nil, errStale
	} else if err != nil {
		return nil, fmt.Errorf("reading the CollaSet afresh: %w", err)
	}
	b.generation = set.Generation
	entries, err := s.newestEntries(ctx, client.ObjectKey{Namespace: of.Namespace, Name: contextName(of)})
	if err != nil {
		return nil, err
	}
	b.entries = entries
	pods := &metav1.PartialObjectMetadataList{}
	pods.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("PodList"))
	if err := s.live.List(ctx, pods, client.InNamespace(of.Namespace), client.MatchingLabelsSelector{Selector: b.labels}); err != nil {
		return nil, fmt.Errorf("reading the Pods afresh: %w", err)
	}
	b.listed = pods.ResourceVersion
	for i := range pods.Items {
		pod := &pods.Items[i]
		managed := pod.Labels[appsv1alpha1.ControlLabel] == appsv1alpha1.ControlValue
		switch {
		case metav1.IsControlledBy(pod, of) && managed:
			b.pods[pod.UID] = pod.ResourceVersion
		case metav1.IsControlledBy(pod, of):
			b.unmanaged = append(b.unmanaged, &corev1.Pod{ObjectMeta: pod.ObjectMeta})
		case managed && leftBehind(pod, of) && !o.snapshot.Deleting:
			b.strays[pod.UID] = pod.ResourceVersion
			if hasDangling(pod, of) {
				o.memory.strays.identities.dangles(pod.Name)
			}
		}
	}
	return b, nil
}

// shownBy reports whether the view is at least as new.
func (b *baseline) shownBy(o *observation) bool {
	if o.set.Generation < b.generation {
		return false
	}
	switch {
	case b.entries == "" && o.context != nil && freshness.Newer(b.listed, o.context.ResourceVersion):
		return false // it is gone since, with a CollaSet of the same name
	case b.entries != "" && (o.context == nil || freshness.Newer(b.entries, o.context.ResourceVersion)):
		return false
	}
	found := 0
	for i := range o.snapshot.Pods {
		pod := &o.snapshot.Pods[i].View
		version, listed := b.pods[pod.UID]
		switch {
		case listed && freshness.Newer(version, pod.ResourceVersion):
			return false
		case listed:
			found++
		case freshness.Newer(b.listed, pod.ResourceVersion) && b.labels.Matches(labels.Set(pod.Labels)):
			return false // it is gone since, or is not as it was
		}
	}
	return found == len(b.pods) && b.showsStrays(o)
}

// showsStrays reports whether the view has all Pods that are to be members again; some may be by now.
func (b *baseline) showsStrays(o *observation) bool {
	if len(b.strays)+len(b.unmanaged) == 0 || o.snapshot.Orphaning {
		return true
	}
	shown := map[types.UID]string{}
	for i := range o.snapshot.Pods {
		shown[o.snapshot.Pods[i].UID()] = o.snapshot.Pods[i].View.ResourceVersion
	}
	for i := range o.snapshot.Strays {
		shown[o.snapshot.Strays[i].Pod.UID()] = o.snapshot.Strays[i].Pod.View.ResourceVersion
	}
	for uid, version := range b.strays {
		if now, there := shown[uid]; !there || freshness.Newer(version, now) {
			return false
		}
	}
	return !slices.ContainsFunc(b.unmanaged, func(pod *corev1.Pod) bool { return shown[pod.UID] == "" })
}
