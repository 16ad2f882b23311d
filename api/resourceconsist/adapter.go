package resourceconsist

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/source"
)

// Adapter reads one kind of backend for employers of kind E, for example *corev1.Service. Its methods are called from
// many goroutines. Employers and Pods come from a cache: they are not to be changed, and a Pod may lack what the
// manager's cache drops (most of its spec).
type Adapter[E client.Object] interface {
	// Name tells adapters of one employer kind apart in logs and flags: a DNS label, always the same.
	Name() string
	// Selector says which Pods of its namespace the employer employs through this adapter. Nil or empty means none: the
	// employer takes no part. It is a function of the employer alone, does no input or output, and is called for each
	// event of the employer. An employer that is being deleted employs nobody, whatever Selector says.
	Selector(employer E) labels.Selector
	// Observe says what the backend does with the Pod now. An error means that this is not known: the Pod neither
	// leaves nor joins, and Observe is called again with growing delays.
	Observe(ctx context.Context, employer E, pod *corev1.Pod) (Observation, error)
}

// Mover is an Adapter that moves traffic itself. Both methods are called again until Observe confirms them, so they
// must be idempotent; neither needs to wait for its effect. An error is retried with growing delays.
//
// An employer with a Mover holds CleanFinalizer, so that it is there for Deregister until no Pod is left. The manager's
// cache may be limited to employers that take part: one that leaves it is read live, and Deregister is passed what was
// read. Selector must be nil for what the cache leaves out.
type Mover[E client.Object] interface {
	Adapter[E]
	// Register makes the backend send traffic to the Pod, which is Ready and in no operation.
	Register(ctx context.Context, employer E, pod *corev1.Pod) error
	// Deregister makes the backend send no more traffic to the Pod, which is on its way out of service, being deleted,
	// or no longer employed. It is called while Observe says Serving.
	Deregister(ctx context.Context, employer E, pod *corev1.Pod) error
}

// Watcher is an Adapter that learns of changes in its backend by itself, so that nobody has to ask again and again.
type Watcher interface {
	// Sources returns what to watch, once, when the adapter is added to mgr. Each source enqueues the namespaced names
	// of Pods whose Observation changed. A source.SyncingSource is waited for before the first Observe.
	Sources(mgr manager.Manager) ([]source.Source, error)
}

// Observation is what a backend does with one Pod at the time of the call.
type Observation struct {
	// Serving says that the backend sends traffic to the Pod, or might.
	Serving bool
	// Since is when the adapter itself saw Serving take its value, by the local clock. Zero means that the adapter does
	// not remember; the framework then counts from its own first look.
	Since time.Time
	// LookAgain is how long to wait before asking again while the Pod is on its way in or out. Zero is for a Watcher,
	// which will tell.
	LookAgain time.Duration
}

// Options are the choices for one employer kind.
type Options struct {
	// DrainTime is how long a backend must have stopped sending traffic before the Pod may be operated, for requests
	// in flight and for proxies that follow later. Zero means no wait. DrainSecondsAnnotation on an employer replaces it.
	DrainTime time.Duration
	// Concurrency is how many Pods are worked on at a time, and how many employers. Zero means the manager's default, or
	// 5 if it has none.
	Concurrency int
	// MaxBackoff bounds the delay between tries after failures, which starts at some ten milliseconds and doubles. Zero
	// means 30 s.
	MaxBackoff time.Duration
}
