//go:build !nocloud

package builtin

import (
	"context"

	ctrl "sigs.k8s.io/controller-runtime"

	"kusionstack.io/kuperator/internal/resourceconsist/alibabacloudslb"
	"kusionstack.io/kuperator/internal/resourceconsist/backend"
	"kusionstack.io/kuperator/internal/resourceconsist/bulk"
)

// ofClouds are the adapters for which a cloud's SDK is linked into the binary. The build tag nocloud leaves them out.
func ofClouds() []builtIn {
	slb := alibabacloudslb.DefaultConfig()
	return []builtIn{{
		name:     alibabacloudslb.Name,
		addFlags: slb.AddFlags,
		validate: slb.Validate,
		make: func(context.Context, ctrl.Manager) ([]backend.Backend, error) {
			observing, owning, err := alibabacloudslb.New(slb)
			if err != nil {
				return nil, err
			}
			options := alibabacloudslb.CallOptions()
			return []backend.Backend{bulk.New(observing, options, nil), bulk.New(owning, options, nil)}, nil
		},
	}}
}
