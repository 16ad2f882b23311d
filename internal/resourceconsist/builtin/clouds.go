//go:build !nocloud

package builtin

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	ctrl "sigs.k8s.io/controller-runtime"

	api "kusionstack.io/kuperator/api/resourceconsist"
	"kusionstack.io/kuperator/internal/resourceconsist/alibabacloudslb"
	"kusionstack.io/kuperator/internal/resourceconsist/bulk"
)

// ofClouds are the adapters for which a cloud's SDK is linked into the binary. The build tag nocloud leaves them out.
func ofClouds() []builtIn {
	slb := alibabacloudslb.DefaultConfig()
	return []builtIn{{
		name:     alibabacloudslb.Name,
		addFlags: slb.AddFlags,
		validate: slb.Validate,
		make: func(context.Context, ctrl.Manager) ([]api.Adapter[*corev1.Service], error) {
			observing, owning, err := alibabacloudslb.New(slb)
			if err != nil {
				return nil, err
			}
			options := alibabacloudslb.Options()
			return []api.Adapter[*corev1.Service]{bulk.NewWatching(observing, options, nil), bulk.NewMoving(owning, options, nil)}, nil
		},
	}}
}
