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

// Adapter reads one kind of backend. setup.BackendOf makes the framework use it: the framework caches, batches, limits
// and retries the calls. An adapter that moves traffic itself is also a Mover.
//
// E is the kind of the employers, *corev1.Service in most cases. S is what the adapter configures for one member, for
// example a port and a weight; two equal values need no change. Methods are called concurrently. Employers and Pods
// come from a cache: they must not be changed, and a Pod may lack what the manager's cache drops (most of its spec).
type Adapter[E client.Object, S comparable] interface {
	// Name identifies the adapter among those of one employer kind, in logs and flags: a constant DNS label.
	Name() string
	// Selector matches the Pods of the employer's namespace that it employs through this adapter. Nil or empty means
	// none: the employer does not take part. It is a function of the employer alone, does no input or output, and is
	// called for each event of the employer. An employer that is being deleted employs no Pod, whatever Selector
	// returns.
	Selector(employer E) labels.Selector
	// Members is the desired state of a Pod in the backend, by member ID, with traffic (serve) or without. One Pod may
	// have several members, for example one per address or port. A member that is returned only with serve is removed
	// from the backend; a member that stays without traffic has, for example, weight 0. An empty map is for a Pod that
	// cannot be registered yet because it has no address. An error is one that the owner of the employer or Pod must
	// fix; it is reported, and counts as an empty map meanwhile.
	//
	// It is a function of its arguments alone and does no input or output. A member ID is unique in the backend of one
	// employer.
	Members(employer E, pod *corev1.Pod, serve bool) (map[string]S, error)
	// Read returns what the backend has for the employer: at least the members named by ids that exist, or without ids
	// all members that the adapter may change. Members of other systems must not be returned. If the state is unknown,
	// it must return an error, and never an empty result.
	Read(ctx context.Context, employer E, ids []string) ([]Held[S], error)
}

// Mover is an Adapter that changes the backend itself.
//
// An employer with a Mover has CleanFinalizer, so that it exists until no Pod is left. The manager's cache may be
// limited to employers that take part: an employer that leaves it is read live, and Apply is passed what was read.
// Selector must be nil for employers that the cache omits.
type Mover[E client.Object, S comparable] interface {
	Adapter[E, S]
	// Apply makes the changes, at most CallOptions.BatchSize at a time and each member at most once. It is called again
	// until Read confirms them, so it must be idempotent, and need not wait for their effect. MemberErrors are the
	// errors of members that failed, while all others succeeded; with any other error no member is known to have
	// succeeded. Failed members are retried separately, with increasing delays.
	Apply(ctx context.Context, employer E, changes []Change[S]) error
}

// Held is a member in the backend.
type Held[S comparable] struct {
	// ID is the member ID.
	ID string
	// State is what is configured for it.
	State S
	// Serving is whether the backend sends, or may send, traffic to the member: a member that receives no new requests
	// and still has sessions is serving, if those must be waited for.
	Serving bool
}

// Change is one change of a backend.
type Change[S comparable] struct {
	// ID is the member ID.
	ID string
	// State is the desired state of the member, which may exist already. It has no meaning with Remove.
	State S
	// Remove is whether to remove the member.
	Remove bool
}

// MemberErrors are the errors, by member ID, of a call that succeeded for some members only.
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
// a virtual address. Both methods must be idempotent. Errors are reported and retried with increasing delays. An
// employer with a Provisioner has CleanFinalizer.
type Provisioner[E client.Object] interface {
	// Provision creates or updates the resource to the desired state of the employer. It is called before the
	// employer's first member is registered, after each change of the employer other than of its status, and once after
	// a restart.
	Provision(ctx context.Context, employer E) error
	// Deprovision removes the resource, if it exists. It is called when the employer is being deleted or no longer
	// takes part, after its last Pod has been released. The employer may be as last read before it left the cache.
	Deprovision(ctx context.Context, employer E) error
}

// Placer is an optional part of a Mover whose employers select one of several places, for example servers, each with
// its own members. When an employer selects another place, its members at the earlier place are removed. Until none is
// left there, the place is one of PlacesOf, also after a restart. Read without ids must read all of PlacesOf.
type Placer[E client.Object] interface {
	// Place is where the employer's members belong, "" for nowhere: a DNS label that together with the adapter's name
	// has at most 62 characters. It is a function of the employer alone.
	Place(employer E) string
	// PlaceOf is the place of a member. It is a function of the ID alone.
	PlaceOf(id string) string
}

// Options are the settings for one employer kind.
type Options struct {
	// DrainTime is the minimum time between the end of a backend's traffic to the Pod and the operation, for requests
	// in flight and for proxies that follow later. Zero means none. DrainSecondsAnnotation on an employer overrides it.
	DrainTime time.Duration
	// Concurrency is the maximum number of Pods that are reconciled at the same time, and of employers. Zero means the
	// manager's default, or 5 if it has none.
	Concurrency int
	// MaxBackoff is the maximum delay between retries, which starts at about ten milliseconds and doubles. Zero means
	// 30 s.
	MaxBackoff time.Duration
}

// CallOptions are the settings for the calls of one Adapter. The zero value is a working default.
type CallOptions struct {
	// BatchSize is the maximum number of changes in one Apply. Zero means 100.
	BatchSize int
	// BatchWindow is how long a change waits for others of its employer. Zero means 50 ms.
	BatchWindow time.Duration
	// QPS and Burst limit the calls to the provider, for all employers together. Zero means 10 and 20. A negative QPS
	// means no limit.
	QPS   float32
	Burst int
	// Concurrency is the maximum number of employers that are reconciled at the same time. Zero means 5. Employers
	// whose calls take longer than a second have as many places of their own, so that they do not delay others.
	Concurrency int
	// Timeout is the maximum time of one call. Zero means 10 s.
	Timeout time.Duration
	// Poll is the delay before a backend is read again while a Pod waits for it; the delay doubles up to MaxPoll. Zero
	// means 200 ms and 5 s.
	Poll    time.Duration
	MaxPoll time.Duration
	// MaxBackoff is the maximum delay after failures, which starts at Poll and doubles. Zero means 1 min.
	MaxBackoff time.Duration
	// Resync is the maximum age of the last read of an idle backend, with jitter. Zero means 10 min.
	Resync time.Duration
}

// ConditionInSync is the type of the condition that reports whether an employer's backends are up to date. It is True
// with reason ConditionReasonInSync; an employer that never had a failure does not have it. It is set in
// status.conditions of an employer kind that has them, as Services do, once for all adapters: the message names those
// that fail. Each change is also an event.
const ConditionInSync = "resource-consist.kusionstack.io/InSync"

// Reasons of ConditionInSync.
const (
	// ConditionReasonInSync: the last calls succeeded.
	ConditionReasonInSync = "InSync"
	// ConditionReasonBackendFailed: calls to the backend fail; the message has the last error.
	ConditionReasonBackendFailed = "BackendFailed"
	// ConditionReasonInvalid: the employer requests what an adapter cannot do; the message has the remedy.
	ConditionReasonInvalid = "Invalid"
	// ConditionReasonFinalizerShared: an employer of another kind has the same finalizer, so Pods of both wait; the
	// message names it. One of the two needs another name.
	ConditionReasonFinalizerShared = "FinalizerShared"
)
