package resourceconsist

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Adapter reads one kind of backend. setup.BackendOf has the framework use it: it caches, batches, paces and repeats
// the calls. An adapter that moves traffic itself is a Mover too.
//
// E is the kind of the employers, *corev1.Service in most cases. S is what the adapter sets of one member, for example
// a port and a weight; two that are equal need no change. Methods are called from many goroutines. Employers and Pods
// come from a cache: they are not to be changed, and a Pod may lack what the manager's cache drops (most of its spec).
type Adapter[E client.Object, S comparable] interface {
	// Name tells adapters of one employer kind apart in logs and flags: a DNS label, always the same.
	Name() string
	// Selector selects the Pods of its namespace that the employer employs through this adapter. Nil or empty means
	// none: the employer takes no part. It is a function of the employer alone, does no input or output, and is called
	// for each event of the employer. An employer that is being deleted employs no Pod, whatever Selector returns.
	Selector(employer E) labels.Selector
	// Members is how the backend should hold a Pod, by member ID: taking traffic (serve), or taking none. One Pod may
	// have several members: an address each, a port each. A member that is there with serve and not without is one that
	// has to go from the backend; a member that stays without traffic has, for example, weight 0. An empty map is for a
	// Pod that cannot be held yet, because it has no address. An error is one that the owner of the employer or Pod has
	// to mend; it is reported, and counts as an empty map meanwhile.
	//
	// It is a function of its arguments alone and does no input or output. A member ID is unique in the backend of one
	// employer.
	Members(employer E, pod *corev1.Pod, serve bool) (map[string]S, error)
	// Read returns what the backend holds for the employer: at least the members named by ids, as far as they exist;
	// with no ids all members that the adapter may change. Members that others put there are not to be returned. An
	// error means that nothing is known; an adapter must never answer with an empty result instead.
	Read(ctx context.Context, employer E, ids []string) ([]Held[S], error)
}

// Mover is an Adapter that changes the backend itself.
//
// An employer with a Mover holds CleanFinalizer, so that it is there until no Pod is left. The manager's cache may be
// limited to employers that take part: one that leaves it is read live, and Apply is passed what was read. Selector
// must be nil for what the cache leaves out.
type Mover[E client.Object, S comparable] interface {
	Adapter[E, S]
	// Apply makes the changes, at most CallOptions.BatchSize at a time and each member at most once. It is called again
	// until Read confirms them, so it must be idempotent, and need not wait for their effect. MemberErrors are those of
	// members that failed, while all others did not; with any other error none is known to have succeeded. Failed
	// members are tried again alone, with growing delays.
	Apply(ctx context.Context, employer E, changes []Change[S]) error
}

// Held is a member as the backend holds it.
type Held[S comparable] struct {
	// ID names the member.
	ID string
	// State is what is set of it.
	State S
	// Serving is true if the backend sends traffic to the member, or might: a member that takes no new requests and
	// still has sessions is serving, if those are to be waited for.
	Serving bool
}

// Change is one change of a backend.
type Change[S comparable] struct {
	// ID names the member.
	ID string
	// State is the desired state of the member, whether it is there already or not. It means nothing with Remove.
	State S
	// Remove is true if the member is to go.
	Remove bool
}

// MemberErrors are the errors of the members of a call that succeeded in part, by member ID.
type MemberErrors map[string]error

// Error names the first ten members in order.
func (e MemberErrors) Error() string {
	const most = 10
	ids := slices.Sorted(maps.Keys(e))
	texts := make([]string, 0, most)
	for _, id := range ids[:min(most, len(ids))] {
		texts = append(texts, fmt.Sprintf("%s: %v", id, e[id]))
	}
	if more := len(ids) - most; more > 0 {
		texts = append(texts, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(texts, "; ")
}

// Provisioner is an optional part of an Adapter that owns a resource for the employer itself, for example a listener or
// a virtual address. Both methods must be idempotent; errors are reported and retried with growing delays. An employer
// with a Provisioner holds CleanFinalizer.
type Provisioner[E client.Object] interface {
	// Provision makes the resource as the employer wants it now. It is called before the employer's first member is
	// registered, after each change of the employer other than of its status, and once after a restart.
	Provision(ctx context.Context, employer E) error
	// Deprovision removes it, if it is there. It is called when the employer is being deleted or takes no part any
	// more, after its last Pod has been released. The employer may be as it was last read before it left the cache.
	Deprovision(ctx context.Context, employer E) error
}

// Placer is an optional part of a Mover whose employers choose between several places, each of which holds members of
// its own, for example servers. An employer that chooses another place leaves the earlier one: its members are taken
// out there, and until none is left the place is one of PlacesOf, also after a restart. Read with no ids has to read
// all of PlacesOf.
type Placer[E client.Object] interface {
	// Place is where the employer's members belong, "" for nowhere: a DNS label that together with the adapter's name
	// has at most 62 characters. It is a function of the employer alone.
	Place(employer E) string
	// PlaceOf is the place of a member. It is a function of the ID alone.
	PlaceOf(id string) string
}

// Options are the choices for one employer kind.
type Options struct {
	// DrainTime is how long a backend must have stopped sending traffic before the Pod may be operated, for requests in
	// flight and for proxies that follow later. Zero means no wait. DrainSecondsAnnotation on an employer replaces it.
	DrainTime time.Duration
	// Concurrency is how many Pods are worked on at a time, and how many employers. Zero means the manager's default,
	// or 5 if it has none.
	Concurrency int
	// MaxBackoff bounds the delay between tries after failures, which starts at some ten milliseconds and doubles. Zero
	// means 30 s.
	MaxBackoff time.Duration
}

// CallOptions are the choices for the calls of one Adapter. The zero value is a working default.
type CallOptions struct {
	// BatchSize is the most changes in one Apply. Zero means 100.
	BatchSize int
	// BatchWindow is how long a change waits for others of its employer. Zero means 50 ms.
	BatchWindow time.Duration
	// QPS and Burst bound the calls to the provider, those of all employers together. Zero means 10 and 20. A negative
	// QPS means no bound.
	QPS   float32
	Burst int
	// Concurrency is how many employers are worked on at a time. Zero means 5. Employers whose calls take longer than a
	// second have as many places of their own, so that they hold up no others.
	Concurrency int
	// Timeout bounds one call. Zero means 10 s.
	Timeout time.Duration
	// Poll is how soon a backend is read again while a Pod waits for it; the delay doubles up to MaxPoll. Zero means
	// 200 ms and 5 s.
	Poll    time.Duration
	MaxPoll time.Duration
	// MaxBackoff bounds the delay after failures, which starts at Poll and doubles. Zero means 1 min.
	MaxBackoff time.Duration
	// Resync is how old a reading of a backend at rest may become, with jitter. Zero means 10 min.
	Resync time.Duration
}

// ConditionInSync is the type of the condition of an employer that reports whether its backends follow. It is True with
// reason ConditionReasonInSync; an employer that never had a failure has none. An employer that has status.conditions,
// as a Service has, gets it there, one for all its adapters: the message names those that fail. A change is also an
// event.
const ConditionInSync = "resource-consist.kusionstack.io/InSync"

// Reasons of ConditionInSync.
const (
	// ConditionReasonInSync: the last calls succeeded.
	ConditionReasonInSync = "InSync"
	// ConditionReasonBackendFailed: calls to the backend fail; the message has the last error.
	ConditionReasonBackendFailed = "BackendFailed"
	// ConditionReasonInvalid: the employer asks for what an adapter cannot do; the message tells what to change.
	ConditionReasonInvalid = "Invalid"
	// ConditionReasonFinalizerShared: another employer has the same finalizer, so Pods of both wait; the message tells
	// which one to rename.
	ConditionReasonFinalizerShared = "FinalizerShared"
)
