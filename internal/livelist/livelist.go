// Package livelist lists the metadata of objects past the cache, in pages.
package livelist

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Each calls f with each object of a kind until f returns false. It asks for so many objects at a time as size says, all
// of one moment, and returns the resourceVersion of that moment.
func Each(
	ctx context.Context, live client.Reader, gvk schema.GroupVersionKind, size int64,
	f func(*metav1.PartialObjectMetadata) (more bool), options ...client.ListOption,
) (resourceVersion string, err error) {
	for next := ""; ; {
		var page metav1.PartialObjectMetadataList
		page.SetGroupVersionKind(gvk.GroupVersion().WithKind(gvk.Kind + "List"))
		asked := append([]client.ListOption{client.Limit(size), client.Continue(next)}, options...)
		if err := live.List(ctx, &page, asked...); err != nil {
			return "", err
		}
		for i := range page.Items {
			if !f(&page.Items[i]) {
				return page.ResourceVersion, nil
			}
		}
		if next = page.Continue; next == "" {
			return page.ResourceVersion, nil
		}
	}
}
