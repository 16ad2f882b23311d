package freshness

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"kusionstack.io/kuperator/internal/livelist"
)

const (
	// ReadAgain is the age at which what a view is compared with is read again: an object that was deleted since would
	// never come.
	ReadAgain = time.Second
	// LookAgain is how long to wait for a cache that is behind.
	LookAgain = 50 * time.Millisecond
	// pageSize is how many objects are asked for at a time: few enough for memory, enough for a new leader not to wait
	// for requests.
	pageSize = 2000
)

// Baseline is what the API server had at one moment of the objects of a kind that a list selects.
type Baseline struct {
	// Listed is the resourceVersion of the list.
	Listed string
	// Versions are the resourceVersions that a cache has to show, by UID.
	Versions map[types.UID]string
}

// ReadBaseline reads metadata past the cache. It lists in pages, which are of one moment: the whole of a large
// namespace would be many times what is kept of it. versionOf answers which version of an object a cache has to show,
// "" if it need not show the object.
func ReadBaseline(
	ctx context.Context, live client.Reader, gvk schema.GroupVersionKind,
	versionOf func(*metav1.PartialObjectMetadata) string, options ...client.ListOption,
) (b Baseline, err error) {
	b.Versions = map[types.UID]string{}
	b.Listed, err = livelist.Each(ctx, live, gvk, pageSize, func(o *metav1.PartialObjectMetadata) (more bool) {
		if version := versionOf(o); version != "" {
			b.Versions[o.UID] = version
		}
		return true
	}, options...)
	if err != nil {
		return b, fmt.Errorf("reading the %sList afresh: %w", gvk.Kind, err)
	}
	return b, nil
}

// ShownBy reports whether a cache has come at least as far that shows objects with these resourceVersions, by UID. Only
// an object that was created since is not in the list; an older one is gone since. What cannot be compared does not
// pass.
func (b *Baseline) ShownBy(cached map[types.UID]string) bool {
	found := 0
	for uid, version := range cached {
		least, listed := b.Versions[uid]
		if listed {
			found++
		} else {
			least = b.Listed
		}
		if order, err := resourceversion.CompareResourceVersion(version, least); err != nil || order < 0 {
			return false
		}
	}
	return found == len(b.Versions)
}

// Namespace is a namespace as the API server had it, one Baseline for each kind.
type Namespace []Baseline

// ReadNamespace reads all objects of some kinds.
func ReadNamespace(
	ctx context.Context, live client.Reader, namespace string, kinds ...schema.GroupVersionKind,
) (*Namespace, error) {
	all := make(Namespace, len(kinds))
	for i, kind := range kinds {
		var err error
		if all[i], err = ReadBaseline(ctx, live, kind, (*metav1.PartialObjectMetadata).GetResourceVersion,
			client.InNamespace(namespace)); err != nil {
			return nil, err
		}
	}
	return &all, nil
}

// ShownBy is Baseline.ShownBy of each kind, in the order in which they were read.
func (n Namespace) ShownBy(cached ...map[types.UID]string) bool {
	for i := range n {
		if !n[i].ShownBy(cached[i]) {
			return false
		}
	}
	return true
}

// Check compares what a cache shows with what the API server had at one moment, a B, before anything is decided on it
// that no precondition of a write protects. It does so until the cache has come that far, and again after Repeat.
// Nothing has passed the zero value: a cache is started before its process leads, and its first list may be from an API
// server that lags. Only Repeat is for concurrent use.
type Check[B any] struct {
	passed   atomic.Bool
	baseline *B // what is to be shown, nil before it is read and after it was shown
	readAt   time.Time
}

// Repeat has the next Pass compare again, for example after a write whose answer was lost, which may have been made. It
// changes nothing while a baseline is pending: no write is made then.
func (c *Check[B]) Repeat() { c.passed.Store(false) }

// Pending reports whether a baseline was read that the cache has not shown yet.
func (c *Check[B]) Pending() bool { return c.baseline != nil }

// Pass returns zero if the view may be decided on: what was read is shown by it; else when to look again. The error is
// that of read.
func (c *Check[B]) Pass(now time.Time, read func() (*B, error), shown func(*B) bool) (wait time.Duration, err error) {
	if c.passed.Load() {
		return 0, nil
	}
	if c.baseline == nil || now.Sub(c.readAt) > ReadAgain {
		if c.baseline, err = read(); err != nil {
			c.baseline = nil
			return 0, err
		}
		c.readAt = now
	}
	if !shown(c.baseline) {
		return LookAgain, nil
	}
	c.baseline = nil
	c.passed.Store(true)
	return 0, nil
}
