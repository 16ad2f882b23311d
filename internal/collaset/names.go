package collaset

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"kusionstack.io/kuperator/internal/collaset/setplan"
	"kusionstack.io/kuperator/internal/freshness"
)

// removeNames removes names that have taken effect from the spec as it was read: the API server refuses that if the
// CollaSet has been written since. A list that becomes empty is removed as a whole, so that no field manager owns the
// field then.
func (s *server) removeNames(ctx context.Context, o *observation, names setplan.Names) error {
	strategy := &o.set.Spec.ScaleStrategy
	patch := map[string]any{}
	for _, list := range []struct {
		key        string
		said, done []string
		left       func(pod *metav1.PartialObjectMetadata) bool
	}{
		{"podToDelete", strategy.PodToDelete, names.ToDelete,
			func(pod *metav1.PartialObjectMetadata) bool { return pod.DeletionTimestamp == nil }},
		{"podToExclude", strategy.PodToExclude, names.ToExclude, func(*metav1.PartialObjectMetadata) bool { return true }},
		{"podToInclude", strategy.PodToInclude, names.ToInclude, nil},
	} {
		done, err := s.unusedNames(ctx, o, list.done, list.left)
		if err != nil {
			return err
		}
		if len(done) == 0 {
			continue
		}
		patch[list.key] = nil
		if rest := slices.DeleteFunc(slices.Clone(list.said),
			func(name string) bool { return slices.Contains(done, name) }); len(rest) > 0 {
			patch[list.key] = rest
		}
	}
	if len(patch) == 0 {
		return errStale
	}
	data, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": o.set.UID, "resourceVersion": o.set.ResourceVersion},
		"spec":     map[string]any{"scaleStrategy": patch},
	})
	if err != nil {
		return err
	}
	written := o.set.DeepCopy()
	if err := s.client.Patch(ctx, written, client.RawPatch(types.MergePatchType, data)); err != nil {
		return fmt.Errorf("removing names that have taken effect from spec.scaleStrategy: %w", err)
	}
	s.writes.Wrote(client.ObjectKeyFromObject(o.set), written)
	o.set.ResourceVersion = written.ResourceVersion // for the status that follows
	return nil
}

// unusedNames are those names of which the API server has no Pod of the CollaSet that is left as it is asked not to be.
// The cache may lack one: the user who names it has seen it.
func (s *server) unusedNames(
	ctx context.Context, o *observation, names []string, left func(*metav1.PartialObjectMetadata) bool,
) ([]string, error) {
	if left == nil {
		return names, nil
	}
	var done []string
	for _, name := range names {
		pod := freshness.PodTarget(o.set.Namespace, name)
		err := s.live.Get(ctx, client.ObjectKeyFromObject(pod), pod)
		if client.IgnoreNotFound(err) != nil {
			return nil, fmt.Errorf("reading Pod %s, whose name is to be removed from spec.scaleStrategy: %w", name, err)
		}
		if err != nil || !metav1.IsControlledBy(pod, o.set) || !left(pod) {
			done = append(done, name)
		}
	}
	return done, nil
}
