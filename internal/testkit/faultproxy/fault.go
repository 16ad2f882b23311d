package faultproxy

import (
	"path"
	"strings"
	"time"

	"k8s.io/apiserver/pkg/endpoints/request"
)

// Action is what a fault does.
type Action string

// What may be done to a request.
const (
	// Observe does nothing but call Fault.Call and count.
	Observe Action = "Observe"
	// KillBefore cuts off and kills the client when the request arrives; the API server never sees it.
	KillBefore Action = "KillBefore"
	// KillAfterCommit cuts off and kills the client when the API server has answered the request.
	KillAfterCommit Action = "KillAfterCommit"
	// FailBefore answers Fault.Code instead of passing the request on: 403, 409, 429 (with Retry-After: 1), 500 or 503,
	// with the Status object that an API server gives with it.
	FailBefore Action = "FailBefore"
	// DropReply breaks the connection when the API server has answered the request.
	DropReply Action = "DropReply"
	// TimeoutAfterCommit answers 504 with reason Timeout when the API server has answered, Fault.Delay later: what an
	// API server says when it did not come to its end in time, whatever became of the request.
	TimeoutAfterCommit Action = "TimeoutAfterCommit"
	// Slow passes the request on Fault.Delay later.
	Slow Action = "Slow"
)

// What may be done to watches and lists. Of Match, only Resource counts for these (empty means all), and for Reset and
// Gone410 Times: how many watches are broken.
const (
	// Freeze holds back all events until Disarm. A watch that begins meanwhile shows nothing either.
	Freeze Action = "Freeze"
	// Lag delivers each event Fault.Delay late. With one kind lagging, kinds are seen in another order than they changed.
	Lag Action = "Lag"
	// Coalesce holds each event back for Fault.Delay and drops it if the next one of the watch is of the same object.
	Coalesce Action = "Coalesce"
	// Reset breaks each watch after Fault.Every events, as a network does. The client goes on where it was.
	Reset Action = "Reset"
	// Gone410 ends each watch after Fault.Every events, Fault.Delay after the next one came, with the error that the
	// resourceVersion is too old. The client lists again, and never sees what was superseded meanwhile.
	Gone410 Action = "Gone410"
	// Duplicate delivers additions and modifications twice.
	Duplicate Action = "Duplicate"
	// ListAt answers lists whose age is the API server's choice (resourceVersion "0": the first of each informer) as of
	// Fault.ResourceVersion, as a replica of the API server does that lags. The watches that follow go on from there.
	ListAt Action = "ListAt"
)

// ofWatches reports whether the fault is about watches and lists rather than writes.
func (f Fault) ofWatches() bool {
	switch f.Action {
	case Freeze, Lag, Coalesce, Reset, Gone410, Duplicate, ListAt:
		return true
	default:
		return false
	}
}

// Fault is what is done to requests that match, or to watches and lists.
type Fault struct {
	// Match says to which. The zero value means every write.
	Match Match
	Action
	// Code is the HTTP status of FailBefore. Zero means 500.
	Code int
	// Delay is for Slow, TimeoutAfterCommit, Lag, Coalesce and Gone410. Zero means none.
	Delay time.Duration
	// Every is for Reset and Gone410, in events. Less than 1 means 1.
	Every int
	// ResourceVersion is for ListAt.
	ResourceVersion string
	// Call is called with each write that the fault is done to, when that arrives and before anything is done to it: the
	// client waits meanwhile. Nil calls nothing. It may arm and disarm.
	Call func(Write)
}

// Match says which requests a fault is about. Empty fields match all.
type Match struct {
	// Verb is create, update, patch, delete or deletecollection. An eviction is a create of pods/eviction.
	Verb string
	// Resource is the plural, with the group only where that is needed to tell two apart: "pods", "collasets".
	Resource string
	// Subresource is for example "status". Empty means the object itself, if Resource is set. "*" matches both.
	Subresource string
	// Name is a pattern as of path.Match for the object's name, or the name's generated part and "*" if it has none yet.
	Name string
	// Key is a Write's Key. It stands for verb, resource and subresource together.
	Key string
	// Where is a further condition. It must not call the Proxy.
	Where func(Write) bool
	// Ordinal is which of the matching requests since Arm the fault is done to, from 1. Zero means from the first on,
	// each one up to Times.
	Ordinal int
	// Times is how many requests, from Ordinal on, the fault is done to. Zero means one if Ordinal is set, else all.
	Times int
}

func (m Match) matches(w Write) bool {
	if m.Key != "" && m.Key != w.Key() || m.Verb != "" && m.Verb != w.Verb || m.Resource != "" &&
		!m.matchesResource(w.Group, w.Resource) {
		return false
	}
	if m.Resource != "" && m.Subresource != "*" && m.Subresource != w.Subresource {
		return false
	}
	if m.Resource == "" && m.Subresource != "" && m.Subresource != "*" && m.Subresource != w.Subresource {
		return false
	}
	if m.Name != "" {
		if matched, err := path.Match(m.Name, w.Name); err != nil || !matched {
			return false
		}
	}
	return m.Where == nil || m.Where(w)
}

// matchesResource takes "pods" as well as "collasets.apps.kusionstack.io".
func (m Match) matchesResource(group, resource string) bool {
	name, wanted, qualified := strings.Cut(m.Resource, ".")
	return name == resource && (!qualified || wanted == group)
}

func (m Match) includesWatch(info *request.RequestInfo) bool {
	return m.Resource == "" || m.matchesResource(info.APIGroup, info.Resource)
}

// includes reports whether the fault is done to the n-th match.
func (m Match) includes(n int) bool {
	first, times := max(m.Ordinal, 1), m.Times
	if times == 0 && m.Ordinal > 0 {
		times = 1
	}
	return n >= first && (times == 0 || n < first+times)
}

// Armed is a fault that is waiting for its requests.
type Armed struct {
	proxy *Proxy
	fault Fault

	// guarded by proxy.mu
	matched, fired int
	over           bool
}

// Fired is how often the fault was done: to writes, to events (held back, dropped, doubled), watches (broken) or lists.
func (a *Armed) Fired() int {
	a.proxy.mu.Lock()
	defer a.proxy.mu.Unlock()
	return a.fired
}

// Matched is how many writes matched, whether or not the fault was done to them.
func (a *Armed) Matched() int {
	a.proxy.mu.Lock()
	defer a.proxy.mu.Unlock()
	return a.matched
}

// Disarm ends the fault. What it held back comes through.
func (a *Armed) Disarm() { a.proxy.disarm(a) }
