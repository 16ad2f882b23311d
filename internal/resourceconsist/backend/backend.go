// Package backend is what the controllers of resourceconsist see of an adapter: one Backend, asked about one Pod at a
// time. Package bulk makes one of every api.Adapter; package endpointslice is one of its own, because EndpointSlices
// are watched and need no calls.
package backend

import (
	"reflect"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/source"

	api "kusionstack.io/kuperator/api/resourceconsist"
)

// Backend knows what one kind of backend does with each Pod of its employers. Its methods are called from many
// goroutines, and do no input or output. Employers and Pods are not to be changed.
type Backend interface {
	// Name and Selector are those of api.Adapter.
	Name() string
	Selector(employer client.Object) labels.Selector
	// Observe is what is known of the Pod now.
	Observe(employer client.Object, pod *corev1.Pod) Observation
	// Sources returns what to watch, and adds to mgr what has to run. It is called once. Each source enqueues the Pods
	// whose Observation changed. A Backend that makes calls reports how the backend of an employer follows whenever that
	// changes; the first report in a process may be that it does.
	Sources(mgr manager.Manager, report Report) ([]source.Source, error)
	// Provisioner makes the employers' own resources; nil if there are none.
	Provisioner() Provisioner
}

// Report takes in how an employer's backend follows, as reason and message of api.ConditionInSync, which is true for
// api.ConditionReasonInSync alone. It may be called from many goroutines.
type Report func(employer client.ObjectKey, reason, message string)

// Caller is a Backend that asks by calls, which may fail, and remembers Pods.
type Caller interface {
	Backend
	// Forget is called when there is no such Pod any more, and not while another method is called for one of this name.
	Forget(pod types.NamespacedName)
}

// Mover is a Caller that moves traffic itself.
type Mover interface {
	Caller
	// Register has traffic sent to the Pod, Deregister has it sent no more. Both return at once and are called again
	// until Observe confirms them.
	Register(employer client.Object, pod *corev1.Pod)
	Deregister(employer client.Object, pod *corev1.Pod)
	// Clean reports whether no member of the employer is left. False also means that this is not known yet.
	Clean(employer client.Object) bool
	// Place is where the employer's members belong, "" if there is but one place; see api.Placer. CleanAt is Clean for
	// one place.
	Place(employer client.Object) string
	CleanAt(employer client.Object, place string) bool
}

// Provisioner is api.Provisioner for any kind of employer.
type Provisioner = api.Provisioner[client.Object]

// Observation is what a backend does with one Pod. The zero value is a Pod that is sent no traffic.
type Observation struct {
	// Unknown is true if that is not known: the Pod neither joins nor leaves. It is enqueued when it is known.
	Unknown bool
	// Serving is true if the backend sends traffic to the Pod, or might.
	Serving bool
	// Since is when the backend stopped to serve, by the local clock. Zero counts from the controller's own first look.
	// It says nothing while Serving.
	Since time.Time
	// LookAgain is how long to wait before asking again while the Pod is on its way in or out. Zero means that a source
	// will tell.
	LookAgain time.Duration
}

// New is an empty object of the type of the example, which may be a nil pointer.
func New(example client.Object) client.Object {
	return reflect.New(reflect.TypeOf(example).Elem()).Interface().(client.Object) //nolint:forcetypeassert // it has the example's type
}

// Differ reports whether two states of an object differ in anything but status and book-keeping.
func Differ(before, after client.Object) bool {
	return !equality.Semantic.DeepEqual(essence(before), essence(after))
}

func essence(o client.Object) client.Object {
	o, ok := o.DeepCopyObject().(client.Object)
	if !ok {
		return nil // cannot be: a copy has the same type
	}
	o.SetResourceVersion("")
	o.SetManagedFields(nil)
	o.SetFinalizers(nil)
	if v := reflect.ValueOf(o); v.Kind() == reflect.Pointer && v.Elem().Kind() == reflect.Struct {
		if status := v.Elem().FieldByName("Status"); status.IsValid() && status.CanSet() {
			status.SetZero()
		}
	}
	return o
}
