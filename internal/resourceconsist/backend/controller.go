package backend

import (
	"fmt"

	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/source"
)

// AddController adds a controller with its watches. Its workers wait for the caches of them all, even if the manager
// runs already: what is added to that begins with the watches that it has by then.
func AddController(mgr manager.Manager, name string, options controller.Options, sources ...source.Source) error {
	options.DefaultFromConfig(mgr.GetControllerOptions())
	ctl, err := controller.NewUnmanaged(name, options)
	if err != nil {
		return fmt.Errorf("adding controller %s: %w", name, err)
	}
	for _, s := range sources {
		if err := ctl.Watch(s); err != nil {
			return fmt.Errorf("adding a watch to controller %s: %w", name, err)
		}
	}
	return mgr.Add(ctl)
}
