package setup

import (
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	api "kusionstack.io/kuperator/api/resourceconsist"
	"kusionstack.io/kuperator/internal/resourceconsist/bulk"
)

// Polled makes an Adapter of a Reader, for one call of AddToManager: its Observe answers from what was read for all
// waiting Pods together. It is an api.Watcher, and an api.Provisioner or api.StatusRecorder if the reader is.
// AddToManager says what is wrong with the options.
func Polled[E client.Object, S comparable](reader api.Reader[E, *corev1.Pod, S], options api.BulkOptions) api.Adapter[E] {
	watching := bulk.NewWatching(reader, options, nil)
	provisioner, provisions := reader.(api.Provisioner[E])
	recorder, records := reader.(api.StatusRecorder[E])
	switch {
	case provisions && records:
		return struct {
			*bulk.Watching[E, S]
			api.Provisioner[E]
			api.StatusRecorder[E]
		}{watching, provisioner, recorder}
	case provisions:
		return struct {
			*bulk.Watching[E, S]
			api.Provisioner[E]
		}{watching, provisioner}
	case records:
		return struct {
			*bulk.Watching[E, S]
			api.StatusRecorder[E]
		}{watching, recorder}
	default:
		return watching
	}
}

// Bulk makes a Mover of a Backend, for one call of AddToManager: what Pods need is changed in batches, and their Observe
// answers from what was read for all waiting Pods together. It is an api.Watcher, and an api.Provisioner or
// api.StatusRecorder if the backend is. AddToManager says what is wrong with the options.
func Bulk[E client.Object, S comparable](backend api.Backend[E, *corev1.Pod, S], options api.BulkOptions) api.Mover[E] {
	moving := bulk.NewMoving(backend, options, nil)
	provisioner, provisions := backend.(api.Provisioner[E])
	recorder, records := backend.(api.StatusRecorder[E])
	switch {
	case provisions && records:
		return struct {
			*bulk.Moving[E, S]
			api.Provisioner[E]
			api.StatusRecorder[E]
		}{moving, provisioner, recorder}
	case provisions:
		return struct {
			*bulk.Moving[E, S]
			api.Provisioner[E]
		}{moving, provisioner}
	case records:
		return struct {
			*bulk.Moving[E, S]
			api.StatusRecorder[E]
		}{moving, recorder}
	default:
		return moving
	}
}

// AddBackendToManager makes mgr keep the members of the backend equal to what the employees should be, with traffic, for
// employees of any kind P of the employer's namespace: those that the employer selects and that are not being deleted.
// It is for employees that have no lifecycle; those of Pods belong to AddToManager. An employer holds CleanFinalizer
// until none of its members is left. A Warning event on the employer tells once that the backend fails;
// api.StatusRecorder and api.Provisioner are used if the backend is one. Options that cannot be, and kinds that the
// manager's scheme does not know, are errors.
//
// The manager's user may get, list, watch and patch employers, get, list and watch employees, and create and patch events.
func AddBackendToManager[E, P client.Object, S comparable](mgr manager.Manager, options api.BulkOptions, backend api.Backend[E, P, S]) error {
	return bulk.AddBackendToManager(mgr, options, backend)
}
