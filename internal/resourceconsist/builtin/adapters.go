package builtin

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"kusionstack.io/kuperator/internal/metric"
	"kusionstack.io/kuperator/internal/resourceconsist/backend"
	"kusionstack.io/kuperator/internal/resourceconsist/bulk"
	"kusionstack.io/kuperator/internal/resourceconsist/endpointslice"
	"kusionstack.io/kuperator/internal/resourceconsist/haproxy"
	"kusionstack.io/kuperator/internal/resourceconsist/webhook"
)

// builtIn is one adapter that the binary knows.
type builtIn struct {
	name string
	// addFlags adds the adapter's flags, which begin with its name; nil if it has none.
	addFlags func(*pflag.FlagSet)
	// validate says what is wrong with the flags, if the adapter is enabled; nil if nothing can be.
	validate func() error
	// make makes the adapter for a manager that has not started: one, or several that go together, each of a name of
	// its own.
	make func(context.Context, ctrl.Manager) ([]backend.Backend, error)
}

// builtIns are all adapters that the binary knows, each with flags of its own.
func builtIns() []builtIn {
	hook := webhook.DefaultOptions()
	return append(ofClouds(), []builtIn{
		{name: endpointslice.Name, make: func(context.Context, ctrl.Manager) ([]backend.Backend, error) {
			return []backend.Backend{endpointslice.New(nil)}, nil
		}},
		{
			name: webhook.Name, addFlags: hook.AddFlags, validate: hook.Validate,
			make: func(context.Context, ctrl.Manager) ([]backend.Backend, error) {
				adapter, err := webhook.New(hook, nil)
				if err != nil {
					return nil, err
				}
				return []backend.Backend{bulk.New(adapter, hook.Calls(), nil)}, nil
			},
		},
		haproxyAdapter(),
	}...)
}

func haproxyAdapter() builtIn {
	options := haproxy.DefaultOptions()
	return builtIn{
		name:     haproxy.Name,
		addFlags: options.AddFlags,
		validate: options.Validate,
		make: func(_ context.Context, mgr ctrl.Manager) ([]backend.Backend, error) {
			adapter, err := haproxy.New(options, nil)
			if err != nil {
				return nil, err
			}
			if err := metric.Register(metrics.Registry, adapter.Collector()); err != nil {
				return nil, err
			}
			if err := mgr.Add(adapter); err != nil {
				return nil, err
			}
			return []backend.Backend{bulk.New(adapter, haproxy.CallOptions(), nil)}, nil
		},
	}
}

func names(known []builtIn) []string {
	all := make([]string, 0, len(known))
	for _, b := range known {
		all = append(all, b.name)
	}
	slices.Sort(all)
	return all
}

// enabled are those of the known adapters that were chosen.
func enabled(known []builtIn, chosen []string) []builtIn {
	return slices.DeleteFunc(slices.Clone(known), func(b builtIn) bool { return !slices.Contains(chosen, b.name) })
}

func validate(known []builtIn, chosen []string, drainTime time.Duration) error {
	var errs []error
	if len(chosen) == 0 {
		errs = append(errs, fmt.Errorf("--adapters is empty: give at least one of %s", strings.Join(names(known), ", ")))
	}
	for i, name := range chosen {
		if !slices.Contains(names(known), name) {
			errs = append(errs, fmt.Errorf("--adapters has %q: give one of %s", name, strings.Join(names(known), ", ")))
		}
		if slices.Contains(chosen[:i], name) {
			errs = append(errs, fmt.Errorf("--adapters has %q twice: give it once", name))
		}
	}
	if drainTime < 0 {
		errs = append(errs, fmt.Errorf("--drain-time is %s: give 0s or more", drainTime))
	}
	for _, b := range enabled(known, chosen) {
		if b.validate != nil {
			errs = append(errs, b.validate())
		}
	}
	return errors.Join(errs...)
}
