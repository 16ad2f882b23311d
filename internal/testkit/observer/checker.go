package observer

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
)

// Invariant names a promise.
type Invariant string

// The promises that are checked. See the package's comment.
const (
	Budget     Invariant = "Budget"
	Traffic    Invariant = "Traffic"
	Backend    Invariant = "Backend"
	InstanceID Invariant = "InstanceID"
	Revision   Invariant = "Revision"
	Orphan     Invariant = "Orphan"
	Stuck      Invariant = "Stuck"
	Keys       Invariant = "Keys"
	Churn      Invariant = "Churn"
	Writers    Invariant = "Writers"
	Quiet      Invariant = "Quiet"
	Size       Invariant = "Size"
)

// Invariants are all promises, in the order of the package's comment.
func Invariants() []Invariant {
	return []Invariant{Budget, Traffic, Backend, InstanceID, Revision, Orphan, Stuck, Keys, Churn, Writers, Quiet, Size}
}

// Violation is one broken promise.
type Violation struct {
	// Invariant is the promise.
	Invariant Invariant
	// Time is when the observer received the event, by its own clock.
	Time time.Time
	// ResourceVersion is that of the event; 0 for what no event shows.
	ResourceVersion uint64
	// Object is "<kind> <namespace>/<name>".
	Object string
	// Message says what happened and what was promised.
	Message string
}

func (v Violation) String() string {
	return fmt.Sprintf("%s at %s (resourceVersion %d): %s: %s", v.Invariant, v.Time.Format("15:04:05.000"),
		v.ResourceVersion, v.Object, v.Message)
}

// Options adjust the checks. The zero value checks everything with its defaults.
type Options struct {
	// Namespace is the only one to observe. Empty means all. Only Observer heeds it.
	Namespace string
	// Direct is true if Pods are operated without the Pod protocol, so that they
	// may be changed while they serve: Traffic is not checked.
	Direct bool
	// Without are promises that are not judged, such as Revision and Churn where
	// a test makes the Pods of CollaSets itself.
	Without []Invariant
	// StuckAfter is how long a Pod may stay out of service, or wait without a stated reason, without any change of its
	// protocol state. 0 means a minute; negative means for ever.
	StuckAfter time.Duration
	// Settle is how long a new rule, or a smaller allowance of a rule, need not be known to every component: what is in
	// flight meanwhile is judged by what held before. Pods that came after the rule are judged by it from the beginning. 0
	// means 2 s.
	Settle time.Duration
	// Hold is how long an event waits for events of other kinds with a lower
	// resourceVersion before it is judged. Watches of one API server lag each
	// other by milliseconds, on a machine that is out of breath by seconds. 0
	// means 5 s. Only Observer heeds it.
	Hold time.Duration
	// Notice is how long a Pod that is deleted without an operation need not be known to be gone: Budget does not count it
	// meanwhile. 0 is for runs in which no client deletes Pods that way, so that every such deletion breaks the promise.
	Notice time.Duration
	// Graceful is true if no client deletes or evicts a Pod by force, so that no Pod that the protocol can take out of
	// service may be deleted while it is Ready, no matter which client asked for it.
	Graceful bool
	// Rest is how long AtRest waits for what is not as it should be at rest. 0
	// means 30 s. Only Observer heeds it.
	Rest time.Duration
}

const (
	defaultHold = 5 * time.Second
	defaultRest = 30 * time.Second
)

// Event is one change of one object.
type Event struct {
	// ResourceVersion orders events of all kinds.
	ResourceVersion uint64
	// Time is when it was received.
	Time time.Time
	// Deleted is true if Object is gone and Object its last state.
	Deleted bool
	// Initial is true if the object was there before: it is no news.
	Initial bool
	// Blind is true if a watch was broken when it happened, so that what led to it may
	// not have been seen: it is taken up, and no promise is judged that depends on
	// what was before.
	Blind bool
	// Object is of a kind that the package's comment names. Others are ignored.
	Object metav1.Object
}

// news is the resourceVersion of what has just come, 0 if that may have been there before.
func (e Event) news() uint64 {
	if e.Initial || e.Blind {
		return 0
	}
	return e.ResourceVersion
}

// Checker judges a sequence of events. It is not safe for concurrent use.
type Checker struct {
	options Options
	spaces  map[string]*space
	nodes   map[string]*node
}

// space is what is known of one namespace. No promise reaches beyond one.
type space struct {
	options *Options
	name    string
	nodes   map[string]*node // the Checker's

	pods map[string]*pod // by name
	// newOf are the Pods that say that they take a Pod's place, by the name of that one and their own.
	newOf map[string]map[string]*pod
	// holders are the live Pods that have an instance ID of a pool.
	holders map[poolID]map[string]*pod
	// waiting are the Pods whose time runs: see Tick.
	waiting  map[string]*pod
	rules    map[string]*rule
	owners   map[types.UID]*owner
	services map[string]*corev1.Service
	slices   map[string]slice

	sets      map[string]*set
	setsByUID map[types.UID]*set
	contexts  map[string]*pool
	claims    map[string]*corev1.PersistentVolumeClaim
	revisions map[string]*appsv1.ControllerRevision

	*record
	uids     map[string]map[types.UID]bool
	outTotal map[string]time.Duration
	versions map[types.UID]int
	churn    map[string]*churn // by workload
	largest  map[string]Largest
	// weights are what providers of traffic were told, by UID of the Pod.
	weights map[string][]weight
	// quiet is true if nothing may happen.
	quiet bool
	// leaving is true if the namespace is being deleted, or was.
	leaving bool
}

// owner is a workload that owns Pods.
type owner struct {
	// wanted is the number of its Pods, if known. One that is being deleted wants none.
	wanted int
	known  bool
	// all is the number of its Pods that have not run to their end, live of those that are not being deleted either.
	all, live int
}

type pod struct {
	obj    *corev1.Pod
	owner  types.UID // of the controller, "" for none
	born   uint64    // the resourceVersion at which it came, 0 if that was not seen
	served bool      // was Ready once
	out    bool
	// surplus is true if it is out and another Pod has served in its place meanwhile.
	surplus bool
	// outSince is when it went out, stateSince when its protocol state last changed.
	outSince, stateSince time.Time
	explained            time.Time // when a reason for its waiting was last stated
	stuck                bool      // reported
}

// NewChecker returns a Checker that has seen nothing.
func NewChecker(o Options) *Checker {
	o.StuckAfter = cmp.Or(o.StuckAfter, time.Minute)
	o.Settle = cmp.Or(o.Settle, 2*time.Second)
	return &Checker{options: o, spaces: map[string]*space{}, nodes: map[string]*node{}}
}

func (c *Checker) space(namespace string) *space {
	s := c.spaces[namespace]
	if s == nil {
		s = &space{
			options: &c.options, name: namespace, nodes: c.nodes,
			pods: map[string]*pod{}, newOf: map[string]map[string]*pod{},
			holders: map[poolID]map[string]*pod{}, waiting: map[string]*pod{},
			rules: map[string]*rule{}, owners: map[types.UID]*owner{},
			services: map[string]*corev1.Service{}, slices: map[string]slice{},
			sets: map[string]*set{}, setsByUID: map[types.UID]*set{}, contexts: map[string]*pool{},
			weights: map[string][]weight{},
			claims:  map[string]*corev1.PersistentVolumeClaim{}, revisions: map[string]*appsv1.ControllerRevision{},
		}
		s.clear()
		c.spaces[namespace] = s
	}
	return s
}

// clear forgets what was found and counted.
func (s *space) clear() {
	s.record, s.churn, s.largest = newRecord(s.options), map[string]*churn{}, map[string]Largest{}
	s.uids, s.outTotal, s.versions = map[string]map[types.UID]bool{}, map[string]time.Duration{}, map[types.UID]int{}
}

// Apply takes the next event. Events of one namespace must come in the order of their
// resourceVersions; those of nodes, which are in none, among themselves.
func (c *Checker) Apply(e Event) {
	if node, is := e.Object.(*corev1.Node); is {
		c.applyNode(node, e)
		return
	}
	s := c.space(namespaceOf(e.Object))
	if namespace, is := e.Object.(*corev1.Namespace); is {
		s.leaving = e.Deleted || namespace.DeletionTimestamp != nil
		return
	}
	if !s.leaving {
		s.checkQuiet(e)
		s.checkSize(e)
	}
	if e.Blind || s.leaving {
		found := s.record
		s.record = newRecord(s.options) // discarded
		defer func() { s.record = found }()
	}
	switch obj := e.Object.(type) {
	case *corev1.Pod:
		s.applyPod(obj, e)
	case *appsv1alpha1.PodTransitionRule:
		s.applyRule(obj, e)
	case *appsv1alpha1.CollaSet:
		s.setReplicas(obj, obj.Spec.Replicas, e.Deleted)
		s.applySet(obj, e)
	case *appsv1.ReplicaSet:
		s.setReplicas(obj, obj.Spec.Replicas, e.Deleted)
	case *corev1.Service:
		keep(s.services, obj, e)
	case *discoveryv1.EndpointSlice:
		s.applySlice(obj, e)
	case *appsv1alpha1.ResourceContext:
		s.applyContext(obj, e)
	case *corev1.PersistentVolumeClaim:
		keep(s.claims, obj, e)
	case *appsv1.ControllerRevision:
		s.applyRevision(obj, e)
	}
	for _, r := range s.rules {
		s.allow(r, e.Time)
	}
}

// namespaceOf is the namespace that an object is in, or is.
func namespaceOf(obj metav1.Object) string {
	if namespace, is := obj.(*corev1.Namespace); is {
		return namespace.Name
	}
	return obj.GetNamespace()
}

// keep keeps an object as it is now, or no more.
func keep[O metav1.Object](all map[string]O, obj O, e Event) {
	if e.Deleted {
		delete(all, obj.GetName())
		return
	}
	all[obj.GetName()] = obj
}

// Forget drops what was found and counted in a namespace, and what is known of objects that are gone. What exists
// stays known.
func (c *Checker) Forget(namespace string) {
	if s := c.spaces[namespace]; s != nil {
		s.clear()
	}
}

func (s *space) ownerOf(uid types.UID) *owner {
	o := s.owners[uid]
	if o == nil {
		o = &owner{}
		s.owners[uid] = o
	}
	return o
}

func (s *space) setReplicas(obj metav1.Object, replicas *int32, gone bool) {
	o := s.ownerOf(obj.GetUID())
	o.known, o.wanted = !gone, 1
	if replicas != nil {
		o.wanted = int(*replicas)
	}
	if obj.GetDeletionTimestamp() != nil {
		o.wanted = 0
	}
	s.dropOwner(obj.GetUID())
}

// dropOwner forgets an owner of whom nothing is left.
func (s *space) dropOwner(uid types.UID) {
	if o := s.owners[uid]; o != nil && !o.known && o.all == 0 {
		delete(s.owners, uid)
	}
}

func (s *space) applyPod(obj *corev1.Pod, e Event) {
	s.versions[obj.UID]++
	before := s.pods[obj.Name]
	if before != nil && before.obj.UID != obj.UID {
		s.forget(before, e.Time) // its deletion was missed
		before = nil
	}
	if e.Deleted {
		if before != nil {
			s.checkTraffic(before, obj, e)
			s.countChurn(before, 0, 1)
			s.lose(before, e)
			s.forget(before, e.Time)
		}
		return
	}
	now := s.next(before, obj, e)
	s.enter(now)
	s.serveFor(now)
	s.rememberUID(obj)
	s.checkInstanceID(before, now, e)
	if joins(before, now) {
		s.checkSurge(now, e)
	}
	if before == nil {
		s.checkCreation(now, e)
		s.checkRevision(now, e)
		return
	}
	s.checkTraffic(before, obj, e)
	if obj.DeletionTimestamp != nil {
		s.lose(before, e)
	}
	s.checkKeys(before, now, e)
	s.checkWriters(before.obj, obj, e)
	s.checkRecentlyReady(before, now, e)
	if before.obj.Labels[revisionLabel] != obj.Labels[revisionLabel] || before.owner != now.owner {
		s.checkRevision(now, e)
	}
	if now.out && !before.out && !now.surplus {
		s.checkBudget(now, e)
		s.checkDomains(before, now, e)
	}
}

// next is what is known of a Pod with its new state. What was known before is replaced.
func (s *space) next(before *pod, obj *corev1.Pod, e Event) *pod {
	now := &pod{obj: obj, stateSince: e.Time, born: e.news()}
	if before != nil {
		*now = *before
		now.obj = obj
		s.leave(before)
	}
	if ref := metav1.GetControllerOfNoCopy(obj); ref != nil {
		now.owner = ref.UID
	} else {
		now.owner = ""
	}
	if before != nil && before.owner != now.owner {
		for _, r := range s.rules {
			r.part(before)
		}
	}
	ready := isReady(obj)
	now.served = now.served || ready
	away := isAway(obj)
	switch {
	case now.served && away && !now.out:
		now.out, now.outSince, now.stateSince, now.stuck = true, e.Time, e.Time, false
		now.surplus = s.isServedFor(now)
	case now.out && ready && !away, now.out && isTerminal(obj) && obj.DeletionTimestamp == nil:
		s.back(now, e.Time)
	case before != nil && (now.out || asks(obj)) && protocolState(before.obj) != protocolState(obj):
		now.stateSince, now.stuck = e.Time, false
	}
	return now
}

// enter takes a Pod into every index and count, leave takes it out.
func (s *space) enter(p *pod) {
	s.pods[p.obj.Name] = p
	if origin, isNew := p.obj.Labels[appsv1alpha1.ReplacePairOriginNameLabel]; isNew {
		if s.newOf[origin] == nil {
			s.newOf[origin] = map[string]*pod{}
		}
		s.newOf[origin][p.obj.Name] = p
	}
	if p.out || asks(p.obj) {
		s.waiting[p.obj.Name] = p
	}
	s.hold(p)
	s.countPod(p, 1)
}

func (s *space) leave(p *pod) {
	delete(s.pods, p.obj.Name)
	if origin, isNew := p.obj.Labels[appsv1alpha1.ReplacePairOriginNameLabel]; isNew {
		if delete(s.newOf[origin], p.obj.Name); len(s.newOf[origin]) == 0 {
			delete(s.newOf, origin)
		}
	}
	delete(s.waiting, p.obj.Name)
	s.release(p)
	s.countPod(p, -1)
	s.dropOwner(p.owner)
}

func (s *space) forget(p *pod, when time.Time) {
	s.leave(p)
	delete(s.weights, string(p.obj.UID))
	if p.out {
		s.back(p, when)
	}
}

func (s *space) back(p *pod, when time.Time) {
	s.outTotal[slot(p.obj)] += when.Sub(p.outSince)
	p.out, p.surplus = false, false
}

// isServedFor reports whether the other one of a Pod and its replacement is in service.
func (s *space) isServedFor(p *pod) bool { return slices.ContainsFunc(s.pairOf(p), (*pod).serves) }

// serveFor has a Pod that is in service take the place of the other one of its pair, if that is out.
func (s *space) serveFor(p *pod) {
	if !p.serves() {
		return
	}
	for _, other := range s.pairOf(p) {
		if other.out && !other.surplus {
			s.leave(other)
			other.surplus = true
			s.enter(other)
		}
	}
}

// serves reports whether the Pod is in service, and stays there.
func (p *pod) serves() bool {
	return p.served && !p.out && isReady(p.obj) && p.obj.DeletionTimestamp == nil
}

// pairOf are the Pod that this one takes the place of, and those that take its own, by what the new one says: after a
// crash it may be the only one that does.
func (s *space) pairOf(p *pod) []*pod {
	if p.owner == "" {
		return nil
	}
	var pair []*pod
	origin, isNew := p.obj.Labels[appsv1alpha1.ReplacePairOriginNameLabel]
	if other := s.pods[origin]; isNew && other != nil && other.owner == p.owner {
		pair = append(pair, other)
	}
	for _, other := range s.newOf[p.obj.Name] {
		if other.owner == p.owner {
			pair = append(pair, other)
		}
	}
	return pair
}

// rememberUID counts the Pods that have filled one place of a workload.
func (s *space) rememberUID(obj *corev1.Pod) {
	at := slot(obj)
	if s.uids[at] == nil {
		s.uids[at] = map[types.UID]bool{}
	}
	s.uids[at][obj.UID] = true
}

// slot names a Pod's place: its instance ID in its workload, else its name.
func slot(obj *corev1.Pod) string {
	if id, owner := obj.Labels[instanceIDLabel], metav1.GetControllerOfNoCopy(obj); id != "" && owner != nil {
		return fmt.Sprintf("%s/%s[%s]", obj.Namespace, owner.Name, id)
	}
	return obj.Namespace + "/" + obj.Name
}

// Tick tells the Checker the time, for what no event shows.
func (c *Checker) Tick(now time.Time) {
	if c.options.StuckAfter < 0 {
		return
	}
	for _, s := range c.spaces {
		if !s.leaving {
			s.tick(now)
		}
	}
}

func (s *space) tick(now time.Time) {
	for _, p := range s.waiting {
		if p.stuck {
			continue
		}
		if !p.out && s.explained(p.obj) {
			p.explained = now
			continue
		}
		if now.Sub(p.stateSince) <= s.options.StuckAfter || now.Sub(p.explained) <= s.options.StuckAfter {
			continue
		}
		p.stuck = true
		what := "waits in a stage, which no rule explains, and"
		if p.out {
			what = "is out of service and"
		}
		s.report(Stuck, Event{Time: now, Object: p.obj}, fmt.Sprintf("%s has not moved for %s: %s",
			what, now.Sub(p.stateSince).Round(time.Second), protocolState(p.obj)))
	}
}

// kindOf is the kind of an object that the Checker knows.
func kindOf(obj metav1.Object) string {
	switch obj.(type) {
	case *corev1.Pod:
		return "Pod"
	case *corev1.PersistentVolumeClaim:
		return "PersistentVolumeClaim"
	case *appsv1.ControllerRevision:
		return "ControllerRevision"
	case *appsv1alpha1.CollaSet:
		return "CollaSet"
	case *appsv1alpha1.PodTransitionRule:
		return "PodTransitionRule"
	case *appsv1alpha1.ResourceContext:
		return "ResourceContext"
	default:
		return fmt.Sprintf("%T", obj)
	}
}

func sortedKeys[K cmp.Ordered, V any](m map[K]V) []K { return slices.Sorted(maps.Keys(m)) }
