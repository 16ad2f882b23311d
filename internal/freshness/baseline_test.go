package freshness_test

import (
	"context"
	"errors"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"kusionstack.io/kuperator/internal/freshness"
)

func TestWhetherACacheShowsABaseline(t *testing.T) {
	base := freshness.Baseline{Listed: "100", Versions: map[types.UID]string{"a": "10", "b": "20"}}
	for name, tc := range map[string]struct {
		cached map[types.UID]string
		want   bool
	}{
		"the same versions": {map[types.UID]string{"a": "10", "b": "20"}, true},
		"later versions":    {map[types.UID]string{"a": "101", "b": "20"}, true},
		"an older version, which as text would be later": {map[types.UID]string{"a": "9", "b": "20"}, false},
		"one is missing: not yet seen, or deleted since": {map[types.UID]string{"a": "10"}, false},
		"another one instead":                            {map[types.UID]string{"a": "10", "c": "101"}, false},
		"one that was deleted before is still there":     {map[types.UID]string{"a": "10", "b": "20", "old": "50"}, false},
		"one that was created since":                     {map[types.UID]string{"a": "10", "b": "20", "new": "101"}, true},
		"versions that cannot be compared do not pass":   {map[types.UID]string{"a": "10", "b": "x"}, false},
		"an empty cache":                                 {nil, false},
	} {
		t.Run(name, func(t *testing.T) { assert.Equal(t, tc.want, base.ShownBy(tc.cached)) })
	}
	none := freshness.Baseline{Listed: "100"}
	assert.True(t, none.ShownBy(nil), "there was nothing")
}

// pages answers lists of metadata with one object a page, and fails after some pages.
type pages struct {
	client.Reader
	objects []metav1.PartialObjectMetadata
	failsAt int
	limit   int64
}

func (p *pages) List(_ context.Context, list client.ObjectList, options ...client.ListOption) error {
	asked := (&client.ListOptions{}).ApplyOptions(options)
	p.limit = asked.Limit
	at, _ := strconv.Atoi(asked.Continue)
	if at == p.failsAt {
		return errors.New("away")
	}
	page := list.(*metav1.PartialObjectMetadataList) //nolint:forcetypeassert // a test
	page.ResourceVersion = "100"
	page.Items = p.objects[at : at+1]
	if at+1 < len(p.objects) {
		page.Continue = strconv.Itoa(at + 1)
	}
	return nil
}

func TestABaselineIsReadInPages(t *testing.T) {
	objects := make([]metav1.PartialObjectMetadata, 3)
	for i := range objects {
		objects[i].UID, objects[i].ResourceVersion = types.UID(strconv.Itoa(i)), strconv.Itoa(10+i)
	}
	live := &pages{objects: objects, failsAt: -1}
	gvk := corev1.SchemeGroupVersion.WithKind("Pod")
	versionOf := func(o *metav1.PartialObjectMetadata) string {
		if o.UID == "1" {
			return "" // it need not be shown
		}
		return o.ResourceVersion
	}
	base, err := freshness.ReadBaseline(t.Context(), live, gvk, versionOf)
	require.NoError(t, err)
	assert.Equal(t, freshness.Baseline{Listed: "100", Versions: map[types.UID]string{"0": "10", "2": "12"}}, base)
	assert.Positive(t, live.limit)

	live.failsAt = 2
	_, err = freshness.ReadBaseline(t.Context(), live, gvk, versionOf)
	require.ErrorContains(t, err, "reading the PodList afresh: away", "a part of it would let too much pass")
}

func TestACheckComparesUntilItHasPassedOnce(t *testing.T) {
	var check freshness.Check[int]
	now, reads, failure := time.Unix(1_000_000, 0), 0, error(nil)
	pass := func(shown int) bool {
		t.Helper()
		wait, err := check.Pass(now, func() (*int, error) { reads++; return new(int), failure },
			func(*int) bool { return shown > 0 })
		require.ErrorIs(t, err, failure)
		return wait == 0 && err == nil
	}
	require.False(t, check.Pending())
	require.False(t, pass(0), "a new process has compared nothing")
	require.True(t, check.Pending())
	now = now.Add(freshness.ReadAgain)
	require.False(t, pass(0))
	require.Equal(t, 1, reads, "what was read is good for a while")
	now = now.Add(time.Millisecond)
	require.False(t, pass(0))
	require.Equal(t, 2, reads, "what it has may be gone since")
	require.True(t, pass(1))
	require.False(t, check.Pending())
	require.True(t, pass(0), "once is enough")
	require.Equal(t, 2, reads)

	check.Repeat()
	failure = errors.New("away")
	require.False(t, pass(1), "nothing passes without an answer")
	require.False(t, check.Pending())
	failure = nil
	require.True(t, pass(1))
	require.Equal(t, 4, reads, "a baseline from before does not do")
}
