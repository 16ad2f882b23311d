// Package setup adds resourceconsist adapters to a controller-runtime manager. It is apart from the interfaces so that
// an adapter does not depend on the controller that runs it.
package setup

import (
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	api "kusionstack.io/kuperator/api/resourceconsist"
	"kusionstack.io/kuperator/internal/resourceconsist"
)

// AddToManager makes mgr look after the employees of all employers of kind E. All adapters for one kind belong in one
// call, because they share the employer's finalizer: a Pod leaves when the last backend has dropped it, and joins when
// every backend has it. A second call for the same kind, no adapter, or two adapters of one name is an error, as is a
// kind that the manager's scheme does not know.
//
// The manager's user may get, list, watch and patch Pods, get, list, watch and patch employers, patch their status if
// that has conditions, and create and patch events (events.k8s.io). Its cache may be limited to Pods and employers
// labelled kusionstack.io/control=true.
func AddToManager[E client.Object](mgr manager.Manager, options api.Options, adapters ...api.Adapter[E]) error {
	return resourceconsist.AddToManager(mgr, options, adapters...)
}
