package observer

import (
	"cmp"
	"container/heap"
	"context"
	"fmt"
	"math"
	"slices"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
)

const (
	pulse = 50 * time.Millisecond
	// lastWord bounds how long Stop waits for what has happened before it.
	lastWord = time.Minute
	// acceptance is how long a watch that continues may take to be refused, as the API server does with an event of its
	// own.
	acceptance = time.Second

	// userAgent names the observer in the audit log.
	userAgent = "kuperator-observer"
)

// Observer judges a cluster while it runs. Its methods may be called concurrently.
type Observer struct {
	cancel context.CancelFunc
	// catchUp judges everything that has happened in a namespace, or all, before the call.
	catchUp func(ctx context.Context, namespace string) error
	// lastWords is catchUp for Stop, as long as the observer runs.
	lastWords func() error
	// podNow reads a Pod; nil if there is none.
	podNow     func(ctx context.Context, namespace, name string) (*corev1.Pod, error)
	hold, rest time.Duration
	done       sync.WaitGroup

	mu      sync.Mutex
	checker *Checker
	queues  map[string]*queue // by namespace
	// blind are the spans of resourceVersions in which changes of a kind may have been missed.
	blind []span
	// broken is the number of kinds that are not being watched just now. Nothing is judged meanwhile: what was missed of
	// them is known when they are listed again.
	broken int
	late   int
	err    error
}

// span is from a resourceVersion to another. The first is not part of it.
type span struct{ from, to uint64 }

// queue are the events of one namespace that are not judged yet. The observer's lock guards it.
type queue struct {
	pending pending
	applied uint64 // resourceVersion
}

// source is one kind of objects to watch.
type source struct {
	kind  string
	list  func(ctx context.Context, namespace string, o metav1.ListOptions) (runtime.Object, error)
	watch func(context.Context, metav1.ListOptions) (watch.Interface, error)
	// typed turns what is received into what the Checker knows; nil: as it is.
	typed func(runtime.Object) (metav1.Object, error)
}

// progress is how far the watch of one kind has come. The observer's lock guards it.
type progress struct {
	// reached is a resourceVersion up to which everything of the kind has been received.
	reached uint64
	// known are the resourceVersions of the objects that are there, by namespace, as far as was received.
	known map[string]map[types.UID]uint64
	// broken is true if the kind is not being watched, after it was.
	broken bool
}

// Start begins to observe all namespaces, or the one of the options, and returns when every kind that the
// API server has was listed once. It needs the right to read the kinds that the
// package's comment names. The context bounds starting and observing; Stop ends
// it as well.
func Start(ctx context.Context, config *rest.Config, options Options) (*Observer, error) {
	config = rest.CopyConfig(config)
	config.UserAgent, config.QPS = userAgent, -1
	protobuf := rest.CopyConfig(config)
	protobuf.ContentType, protobuf.AcceptContentTypes = runtime.ContentTypeProtobuf,
		runtime.ContentTypeProtobuf+","+runtime.ContentTypeJSON
	clients, err := kubernetes.NewForConfig(protobuf)
	if err != nil {
		return nil, err
	}
	custom, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	o, err := start(ctx, sources(clients, custom, options.Namespace), options)
	if err != nil {
		return nil, err
	}
	o.podNow = func(ctx context.Context, namespace, name string) (*corev1.Pod, error) {
		obj, err := clients.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil, nil
		}
		return obj, err
	}
	return o, nil
}

func start(ctx context.Context, all []source, options Options) (*Observer, error) {
	ctx, cancel := context.WithCancel(ctx)
	o := &Observer{
		cancel: cancel, checker: NewChecker(options), queues: map[string]*queue{},
		hold: cmp.Or(options.Hold, defaultHold), rest: cmp.Or(options.Rest, defaultRest),
	}
	far := make([]*progress, len(all))
	listed := make(chan error, len(all)) // no goroutine is left waiting when one fails
	for i, s := range all {
		far[i] = &progress{known: map[string]map[types.UID]uint64{}}
		o.done.Go(func() { o.follow(ctx, s, far[i], listed) })
	}
	o.catchUp = func(ctx context.Context, namespace string) error { return o.judgeAll(ctx, namespace, all, far) }
	o.lastWords = func() error {
		ctx, cancel := context.WithTimeout(ctx, lastWord)
		defer cancel()
		return o.judgeAll(ctx, metav1.NamespaceAll, all, far)
	}
	for range all {
		if err := <-listed; err != nil {
			cancel()
			o.done.Wait()
			return nil, err
		}
	}
	o.done.Go(func() { o.judge(ctx) })
	return o, nil
}

// sources are the kinds to watch, in one namespace or in all (""). A list of all is one of that namespace, too.
func sources(clients kubernetes.Interface, custom dynamic.Interface, scope string) []source {
	core, apps := clients.CoreV1(), clients.AppsV1()
	list := []source{
		builtIn("pods", core.Pods, scope),
		builtIn("services", core.Services, scope),
		builtIn("persistentvolumeclaims", core.PersistentVolumeClaims, scope),
		builtIn("endpointslices", clients.DiscoveryV1().EndpointSlices, scope),
		builtIn("replicasets", apps.ReplicaSets, scope),
		builtIn("controllerrevisions", apps.ControllerRevisions, scope),
		{
			kind: "namespaces",
			watch: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
				return core.Namespaces().Watch(ctx, named(scope, o))
			},
			list: func(ctx context.Context, namespace string, o metav1.ListOptions) (runtime.Object, error) {
				return core.Namespaces().List(ctx, named(cmp.Or(namespace, scope), o))
			},
		},
		builtIn("nodes", func(string) corev1client.NodeInterface { return core.Nodes() }, scope),
	}
	for resource, empty := range map[string]func() metav1.Object{
		"collasets":          func() metav1.Object { return &appsv1alpha1.CollaSet{} },
		"podtransitionrules": func() metav1.Object { return &appsv1alpha1.PodTransitionRule{} },
		"resourcecontexts":   func() metav1.Object { return &appsv1alpha1.ResourceContext{} },
	} {
		at := custom.Resource(appsv1alpha1.SchemeGroupVersion.WithResource(resource))
		list = append(list, source{
			kind: resource, watch: at.Namespace(scope).Watch,
			list: func(ctx context.Context, namespace string, o metav1.ListOptions) (runtime.Object, error) {
				return at.Namespace(cmp.Or(namespace, scope)).List(ctx, o)
			},
			typed: func(obj runtime.Object) (metav1.Object, error) {
				u, ok := obj.(*unstructured.Unstructured)
				if !ok {
					return nil, fmt.Errorf("unexpected %T", obj)
				}
				typed := empty()
				return typed, runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, typed)
			},
		})
	}
	return list
}

// reader is what a typed client of one kind can do that is needed here.
type reader[L runtime.Object] interface {
	List(ctx context.Context, o metav1.ListOptions) (L, error)
	Watch(ctx context.Context, o metav1.ListOptions) (watch.Interface, error)
}

// named asks for the one object of a name; for all if that is empty.
func named(name string, o metav1.ListOptions) metav1.ListOptions {
	if name != "" {
		o.FieldSelector = metav1.ObjectNameField + "=" + name
	}
	return o
}

// builtIn is a source of a kind that has a typed client, in one namespace or in all.
func builtIn[L runtime.Object, C reader[L]](kind string, of func(namespace string) C, scope string) source {
	return source{
		kind: kind, watch: of(scope).Watch,
		list: func(ctx context.Context, namespace string, o metav1.ListOptions) (runtime.Object, error) {
			return of(cmp.Or(namespace, scope)).List(ctx, o)
		},
	}
}

// follow lists and watches one kind until ctx ends. It sends once to listed.
func (o *Observer) follow(ctx context.Context, s source, far *progress, listed chan<- error) {
	known := map[types.UID]metav1.Object{}
	version := ""
	first, listedOnce := true, false
	for ctx.Err() == nil {
		if version == "" {
			next, err := o.relist(ctx, s, far, known, !listedOnce)
			if apierrors.IsNotFound(err) {
				err = nil // the kind is not served yet, or no more
				o.whole(far)
			}
			if first {
				listed <- err
				first = false
			}
			listedOnce = listedOnce || next != ""
			version = next
		}
		if version != "" {
			version = o.watchFrom(ctx, s, far, version, known)
		}
		if version == "" {
			pause(ctx, time.Second)
		}
	}
	if first {
		listed <- ctx.Err()
	}
}

// lost records that a kind is not being watched any more, and whole that nothing of it is missing, or can be known to
// be.
func (o *Observer) lost(far *progress) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !far.broken {
		far.broken = true
		o.broken++
	}
}

func (o *Observer) whole(far *progress) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if far.broken {
		far.broken = false
		o.broken--
	}
}

// gap records that up to a resourceVersion, of what happened to a kind only the last states were received.
func (o *Observer) gap(far *progress, version string) {
	to, err := strconv.ParseUint(version, 10, 64)
	if err != nil {
		return // receive reports it
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.blind = append(o.blind, span{from: far.reached, to: to})
}

// relist takes up every object and drops those that are gone. What is there the first time is no news.
func (o *Observer) relist(
	ctx context.Context, s source, far *progress, known map[types.UID]metav1.Object, first bool,
) (string, error) {
	list, err := s.list(ctx, metav1.NamespaceAll, metav1.ListOptions{})
	if err != nil {
		return "", err
	}
	accessor, err := meta.ListAccessor(list)
	if err != nil {
		return "", err
	}
	if !first {
		o.gap(far, accessor.GetResourceVersion())
	}
	seen := map[types.UID]bool{}
	err = meta.EachListItem(list, func(item runtime.Object) error {
		obj, err := s.object(item)
		if err != nil {
			return err
		}
		seen[obj.GetUID()] = true
		before := known[obj.GetUID()]
		known[obj.GetUID()] = obj
		if before == nil || before.GetResourceVersion() != obj.GetResourceVersion() {
			o.receive(far, obj, obj.GetResourceVersion(), Event{Initial: first})
		}
		return nil
	})
	for uid, obj := range known {
		if !seen[uid] {
			delete(known, uid)
			o.receive(far, obj, accessor.GetResourceVersion(), Event{Deleted: true})
		}
	}
	o.reach(far, accessor.GetResourceVersion())
	o.whole(far)
	return accessor.GetResourceVersion(), err
}

func (s source) object(item runtime.Object) (metav1.Object, error) {
	if s.typed != nil {
		return s.typed(item)
	}
	return meta.Accessor(item)
}

// watchFrom follows one watch to its end and returns where the next one continues, "" if objects must be listed again.
func (o *Observer) watchFrom(
	ctx context.Context, s source, far *progress, version string, known map[types.UID]metav1.Object,
) string {
	w, err := s.watch(ctx, metav1.ListOptions{ResourceVersion: version, AllowWatchBookmarks: true})
	if err != nil {
		o.lost(far)
		if apierrors.IsNotFound(err) || apierrors.IsGone(err) || apierrors.IsResourceExpired(err) {
			return ""
		}
		pause(ctx, 100*time.Millisecond) // the API server is away: continue where we were
		return version
	}
	defer w.Stop()
	accepted := time.NewTimer(acceptance)
	defer accepted.Stop()
	for {
		select {
		case <-accepted.C:
			o.whole(far)
		case event, more := <-w.ResultChan():
			if !more {
				o.lost(far)
				return version
			}
			if version = o.take(s, far, event, known); version == "" {
				o.lost(far)
				return ""
			}
			o.whole(far)
		}
	}
}

// take takes one event of a watch, and returns where the watch has come to; "" if objects must be listed again.
func (o *Observer) take(s source, far *progress, event watch.Event, known map[types.UID]metav1.Object) string {
	if event.Type == watch.Error {
		return "" // too old, as a rule
	}
	accessor, err := meta.Accessor(event.Object)
	if err != nil {
		o.fail(fmt.Errorf("watching %s: %w", s.kind, err))
		return ""
	}
	version := accessor.GetResourceVersion()
	if event.Type == watch.Bookmark {
		o.reach(far, version)
		return version
	}
	obj, err := s.object(event.Object)
	if err != nil {
		o.fail(fmt.Errorf("reading %s %s: %w", s.kind, accessor.GetName(), err))
		return version
	}
	if event.Type == watch.Deleted {
		delete(known, obj.GetUID())
	} else {
		known[obj.GetUID()] = obj
	}
	o.receive(far, obj, version, Event{Deleted: event.Type == watch.Deleted})
	o.reach(far, version)
	return version
}

func (o *Observer) fail(err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.err = cmp.Or(o.err, err)
}

func (o *Observer) receive(far *progress, obj metav1.Object, version string, e Event) {
	number, err := strconv.ParseUint(version, 10, 64)
	if err != nil {
		o.fail(fmt.Errorf("resourceVersion %q of %s is no number: events cannot be put in order", version, obj.GetName()))
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	namespace := namespaceOf(obj)
	q := o.queues[namespace]
	if q == nil {
		q = &queue{}
		o.queues[namespace] = q
	}
	e.ResourceVersion, e.Time, e.Object = number, time.Now(), obj
	heap.Push(&q.pending, e)
	if far.known[namespace] == nil {
		far.known[namespace] = map[types.UID]uint64{}
	}
	if e.Deleted {
		delete(far.known[namespace], obj.GetUID())
	} else {
		far.known[namespace][obj.GetUID()] = number
	}
}

// reach records that everything of a kind up to a resourceVersion has been received.
func (o *Observer) reach(far *progress, version string) {
	number, err := strconv.ParseUint(version, 10, 64)
	if err != nil {
		return // receive reports it
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	far.reached = max(far.reached, number)
}

// judge hands events on in order, each after it has waited for its elders.
func (o *Observer) judge(ctx context.Context) {
	ticker := time.NewTicker(pulse)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-ticker.C:
			o.mu.Lock()
			if o.broken == 0 {
				for _, q := range o.queues {
					o.apply(q, func(e Event) bool { return now.Sub(e.Time) >= o.hold })
				}
				o.checker.Tick(now.Add(-o.hold)) // what came since is not judged yet
			}
			o.mu.Unlock()
		}
	}
}

// apply judges pending events of a namespace in their order, up to the first that is not due. The caller holds the
// lock.
func (o *Observer) apply(q *queue, due func(Event) bool) {
	for len(q.pending) > 0 && due(q.pending[0]) {
		event, _ := heap.Pop(&q.pending).(Event)
		// The first list of one kind may come after the first events of another, but what has been judged was received hold
		// ago: this is for stalls.
		if event.ResourceVersion < q.applied {
			o.late++
		}
		q.applied = max(q.applied, event.ResourceVersion)
		event.Blind = slices.ContainsFunc(o.blind,
			func(s span) bool { return event.ResourceVersion > s.from && event.ResourceVersion <= s.to })
		o.checker.Apply(event)
	}
}

// judgeAll asks the API server what there is of every kind, waits until the watches have told all of it, and judges it:
// nothing older is still to come from any of them.
func (o *Observer) judgeAll(ctx context.Context, namespace string, all []source, far []*progress) error {
	complete := uint64(math.MaxUint64)
	for i, s := range all {
		there, version, err := present(ctx, s, namespace)
		for err != nil {
			if pause(ctx, 100*time.Millisecond); ctx.Err() != nil {
				return fmt.Errorf("asking what there is of %s: %w", s.kind, err)
			}
			there, version, err = present(ctx, s, namespace)
		}
		for wait := time.Millisecond; !o.has(far[i], namespace, there, version); wait = min(2*wait, pulse) {
			if pause(ctx, wait); ctx.Err() != nil {
				return fmt.Errorf("waiting for the watch of %s to come to resourceVersion %d: %w", s.kind, version, ctx.Err())
			}
		}
		if version > 0 {
			complete = min(complete, version)
		}
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	for name, q := range o.queues {
		if namespace == metav1.NamespaceAll || namespace == name || name == metav1.NamespaceAll { // that of nodes
			o.apply(q, func(e Event) bool { return e.ResourceVersion <= complete })
		}
	}
	return nil
}

// objects are the resourceVersions of objects by namespace.
type objects map[string]map[types.UID]uint64

// present is what there is of a kind in a namespace, or all, and the resourceVersion of that, which is 0 if the kind is
// not served.
func present(ctx context.Context, s source, namespace string) (there objects, version uint64, err error) {
	list, err := s.list(ctx, namespace, metav1.ListOptions{})
	if apierrors.IsNotFound(err) {
		return nil, 0, nil
	}
	if err != nil {
		return nil, 0, err
	}
	accessor, err := meta.ListAccessor(list)
	if err != nil {
		return nil, 0, err
	}
	if version, err = strconv.ParseUint(accessor.GetResourceVersion(), 10, 64); err != nil {
		return nil, 0, err
	}
	there = objects{}
	err = meta.EachListItem(list, func(item runtime.Object) error {
		obj, err := meta.Accessor(item)
		if err != nil {
			return err
		}
		namespace := namespaceOf(obj)
		in := there[namespace]
		if in == nil {
			in = map[types.UID]uint64{}
			there[namespace] = in
		}
		in[obj.GetUID()], err = strconv.ParseUint(obj.GetResourceVersion(), 10, 64)
		return err
	})
	return there, version, err
}

// has reports whether what was there at a resourceVersion, and that nothing else was, has been received.
func (o *Observer) has(far *progress, namespace string, there objects, version uint64) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if far.reached >= version {
		return true
	}
	for name, in := range there {
		for uid, v := range in {
			if far.known[name][uid] < v {
				return false
			}
		}
	}
	for name, known := range far.known {
		if namespace != metav1.NamespaceAll && namespace != name {
			continue
		}
		for uid, v := range known {
			if _, still := there[name][uid]; !still && v <= version {
				return false
			}
		}
	}
	return true
}

// Report returns what was judged so far, which lags what happened by Options.Hold.
func (o *Observer) Report() Report { return o.reportOn(o.checker.Report) }

func (o *Observer) reportOn(read func() Report) Report {
	o.mu.Lock()
	defer o.mu.Unlock()
	report := read()
	report.Gaps, report.Late = len(o.blind), o.late
	return report
}

// Settled returns the report as soon as everything that has happened before the
// call is in it, however far the watches lag; or as it is when ctx ends.
func (o *Observer) Settled(ctx context.Context) Report {
	o.settle(ctx, metav1.NamespaceAll)
	return o.Report()
}

// SettledIn is Settled for one namespace alone.
func (o *Observer) SettledIn(ctx context.Context, namespace string) Report {
	o.settle(ctx, namespace)
	return o.reportOn(func() Report { return o.checker.ReportIn(namespace) })
}

func (o *Observer) settle(ctx context.Context, namespace string) {
	if err := o.catchUp(ctx, namespace); err != nil && ctx.Err() == nil {
		o.fail(err)
	}
}

// AtRest judges what has to hold in a namespace when nothing is to be done any
// more, and returns the namespace's report. What is not as it should be is given
// Options.Rest, or as long as ctx lasts if that is shorter, to become so: status
// and bookkeeping follow the Pods.
func (o *Observer) AtRest(ctx context.Context, namespace string) Report {
	limit, cancel := context.WithTimeout(ctx, o.rest)
	defer cancel()
	for {
		o.settle(ctx, namespace)
		last := limit.Err() != nil
		o.mu.Lock()
		atRest := o.checker.AtRest(namespace, time.Now(), last)
		o.mu.Unlock()
		if atRest || last {
			return o.reportOn(func() Report { return o.checker.ReportIn(namespace) })
		}
		pause(limit, 100*time.Millisecond)
	}
}

// Quiet has nothing to find in a namespace for a while: every change of an object
// meanwhile breaks that promise. It returns the namespace's report.
func (o *Observer) Quiet(ctx context.Context, namespace string, d time.Duration) Report {
	o.settle(ctx, namespace)
	o.mu.Lock()
	o.checker.Hush(namespace)
	o.mu.Unlock()
	pause(ctx, d)
	o.settle(ctx, namespace)
	o.mu.Lock()
	o.checker.Unhush(namespace)
	o.mu.Unlock()
	return o.reportOn(func() Report { return o.checker.ReportIn(namespace) })
}

// Expect settles a namespace and says how many Pods of a workload are created and deleted from now on; see
// Checker.Expect.
func (o *Observer) Expect(ctx context.Context, namespace, workload string, want Churns) {
	o.settle(ctx, namespace)
	o.mu.Lock()
	defer o.mu.Unlock()
	o.checker.Expect(namespace, workload, want)
}

// Forget settles a namespace, returns its report, and begins a new one: what exists
// stays known, what was found and counted does not.
func (o *Observer) Forget(ctx context.Context, namespace string) Report {
	report := o.SettledIn(ctx, namespace)
	o.mu.Lock()
	defer o.mu.Unlock()
	o.checker.Forget(namespace)
	return report
}

// Lap starts new maxima for every rule; see Checker.Lap. Call it after Settled.
func (o *Observer) Lap() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.checker.Lap(time.Now())
}

// Stop judges everything that has happened before the call, ends observing and
// returns the last report. The error says why the report is not complete, nil if it
// is. Without an API server that answers it gives up after a minute.
func (o *Observer) Stop() (Report, error) {
	if err := o.lastWords(); err != nil {
		o.fail(err)
	}
	o.cancel()
	o.done.Wait()
	o.mu.Lock()
	err := o.err
	o.mu.Unlock()
	return o.Report(), err
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// pending is a heap of events by resourceVersion.
type pending []Event

func (p pending) Len() int           { return len(p) }
func (p pending) Less(i, j int) bool { return p[i].ResourceVersion < p[j].ResourceVersion }
func (p pending) Swap(i, j int)      { p[i], p[j] = p[j], p[i] }

// Push is for package heap.
func (p *pending) Push(x any) {
	if e, ok := x.(Event); ok {
		*p = append(*p, e)
	}
}

// Pop is for package heap.
func (p *pending) Pop() any {
	last := len(*p) - 1
	e := (*p)[last]
	*p = (*p)[:last]
	return e
}
