package plugin

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/clock"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/client/clientset/versioned/fake"
	"kusionstack.io/kuperator/internal/revision"
)

func TestUndoTarget(t *testing.T) {
	var list []appsv1.ControllerRevision
	for i, name := range []string{"web-a", "web-b", "web-c"} {
		list = append(list, appsv1.ControllerRevision{ObjectMeta: metav1.ObjectMeta{Name: name}, Revision: int64(i + 1)})
	}
	for name, tc := range map[string]struct {
		updated  string
		observed int64
		to       int64
		want     string
		says     string
	}{
		"the one before the present":                        {updated: "web-c", observed: 4, want: "web-b"},
		"the one before, where the present one is an older": {updated: "web-b", observed: 4, want: "web-c"},
		"the one that is named":                             {updated: "web-c", observed: 4, to: 1, want: "web-a"},
		"the one before a change that is not seen yet":      {updated: "web-c", observed: 3, says: "try again in a moment"},
		"the one that is named, before a change is seen":    {updated: "web-c", observed: 3, to: 2, want: "web-b"},
		"one that does not exist":                           {updated: "web-c", observed: 4, to: 9, says: "no revision 9"},
	} {
		t.Run(name, func(t *testing.T) {
			set := &appsv1alpha1.CollaSet{ObjectMeta: metav1.ObjectMeta{Name: "web", Generation: 4}}
			set.Status.UpdatedRevision, set.Status.ObservedGeneration = tc.updated, tc.observed
			got, err := undoTarget(set, list, nil, tc.to)
			if tc.says != "" {
				require.ErrorContains(t, err, tc.says)
				return
			}
			require.NoError(t, err)
			assert.Equal(t, tc.want, got.Name)
		})
	}
}

// TestUndoDependsOnTheSpec: a status that changes all the time, as in a rollout, is no obstacle.
func TestUndoDependsOnTheSpec(t *testing.T) {
	set := &appsv1alpha1.CollaSet{ObjectMeta: metav1.ObjectMeta{Name: "web", UID: "u", Generation: 4,
		ResourceVersion: "77"}}
	patch := undoPatch(set, &revision.Data{})
	assert.Equal(t, patchOperation{"test", "/metadata/uid", set.UID}, patch[0])
	assert.Equal(t, patchOperation{"test", "/metadata/generation", int64(4)}, patch[1])
	for _, o := range patch {
		assert.NotEqual(t, "/metadata/resourceVersion", o.Path)
	}
}

// TestUndoWaitsForTheController: who undoes what they have just applied is quicker than it is.
func TestUndoWaitsForTheController(t *testing.T) {
	for name, tc := range map[string]struct {
		after    time.Duration // until the controller has seen the change, 0 for never
		changed  time.Duration // until a user changes it again, 0 for never
		observed int64
		took     time.Duration
	}{
		"it has seen it":              {observed: 4, after: time.Nanosecond},
		"it takes a moment":           {observed: 4, after: time.Second, took: time.Second},
		"it is away":                  {observed: 3, took: seenWithin},
		"somebody changes it as well": {observed: 3, changed: time.Second, took: time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				begin := time.Now()
				read := func() *appsv1alpha1.CollaSet {
					set := &appsv1alpha1.CollaSet{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web", UID: "u", Generation: 4}}
					set.Status.ObservedGeneration = 3
					if since := time.Since(begin); tc.after != 0 && since >= tc.after-time.Nanosecond {
						set.Status.ObservedGeneration = 4
					} else if tc.changed != 0 && since >= tc.changed {
						set.Generation = 5
					}
					return set
				}
				suite := fake.NewClientset()
				suite.PrependReactor("get", "collasets", func(clienttesting.Action) (bool, runtime.Object, error) {
					return true,
						read(), nil
				})
				s := &session{suite: suite, clock: clock.RealClock{}}
				set, err := s.whenSeen(t.Context(), read())
				require.NoError(t, err)
				assert.Equal(t, tc.observed, set.Status.ObservedGeneration)
				assert.Equal(t, int64(4), set.Generation)
				assert.Equal(t, tc.took, time.Since(begin).Truncate(seenPace))
			})
		})
	}
}
