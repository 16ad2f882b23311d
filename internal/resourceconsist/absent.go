package resourceconsist

import (
	"context"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"kusionstack.io/kuperator/internal/livelist"
	"kusionstack.io/kuperator/internal/resourceconsist/backend"
)

const (
	// absentFor is how long it counts that a live read did not find an employer. One that comes back is in the cache, and
	// is not asked about.
	absentFor = 30 * time.Second
	// mostAbsent bounds the memory.
	mostAbsent = 10_000
)

// find returns an employer that a Pod names and the cache does not have: nil if it does not exist. One that exists has
// lost its label while no process looked; it stays in the index as uncached until its Pods are released.
func (c *podController) find(ctx context.Context, key client.ObjectKey) (*employer, error) {
	if !c.holdsEmployers() {
		return nil, nil
	}
	if _, absent := c.absent.Get(key); absent {
		return nil, nil
	}
	object := backend.New(c.example)
	err := c.live.Get(ctx, key, object)
	if apierrors.IsNotFound(err) {
		c.absent.Add(key, true, absentFor)
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading %s %s, which is not in the cache: %w", c.kind, key, err)
	}
	return c.indexUncached(key, object), nil
}

// indexUncached puts an employer that is not in the cache into the index, if it is not there yet, and has it looked
// after.
func (c *podController) indexUncached(key client.ObjectKey, object client.Object) *employer {
	e := c.employer(object)
	e.uncached = true
	if !c.employers.replace(key, nil, e) {
		return c.employers.get(key)
	}
	c.employerQueue.Add(key)
	return e
}

// findLeftBehind finds, once after the start, employers that hold the clean-up finalizer, take no part any more and are
// not in the cache: they lost their label, or their last Pod, while no process looked.
func (r *employerController) findLeftBehind(ctx context.Context) error {
	look := func(ctx context.Context) (bool, error) {
		err := r.leftBehind(ctx)
		if apierrors.IsForbidden(err) {
			log.FromContext(ctx).Info(
				"employers that lost their label before the start are found only by the Pods that name them: "+
					"they may not be listed in all namespaces", "kind", r.kind, "answer", err.Error())
			return true, nil
		}
		if err != nil {
			log.FromContext(ctx).Error(err, "looking for employers that were left behind, trying again", "kind", r.kind)
		}
		return err == nil, nil
	}
	if err := wait.PollUntilContextCancel(ctx, 10*time.Second, true, look); err != nil && ctx.Err() == nil {
		return err
	}
	return nil
}

func (r *employerController) leftBehind(ctx context.Context) error {
	var held []client.ObjectKey
	_, err := livelist.Each(ctx, r.live, r.pods.gvk, pageSize, func(o *metav1.PartialObjectMetadata) (more bool) {
		if len(cleanFinalizers(o)) > 0 {
			held = append(held, client.ObjectKeyFromObject(o))
		}
		return true
	})
	if err != nil {
		return err
	}
	for _, key := range held {
		object := backend.New(r.pods.example)
		if err := r.client.Get(ctx, key, object); !apierrors.IsNotFound(err) {
			continue // it is in the cache, or in a namespace that is none of ours
		}
		if err := r.live.Get(ctx, key, object); err != nil {
			if apierrors.IsNotFound(err) {
				continue
			}
			return fmt.Errorf("reading %s %s: %w", r.kind, key, err)
		}
		r.pods.indexUncached(key, object)
	}
	return nil
}
