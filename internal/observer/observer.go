package observer

import (
	"cmp"
	"container/heap"
	"context"
	"fmt"
	"math"
	"strconv"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
)

const (
	pulse = 50 * time.Millisecond
	// lastWord bounds how long Stop waits for what has happened before it.
	lastWord = time.Minute

	// userAgent names the observer in the audit log.
	userAgent = "kuperator-observer"
)

// Observer judges a cluster while it runs. Its methods may be called concurrently.
type Observer struct {
	cancel context.CancelFunc
	// catchUp judges everything that has happened before the call.
	catchUp func(context.Context) error
	// lastWords is catchUp for Stop, as long as the observer runs.
	lastWords func() error
	hold      time.Duration
	done      sync.WaitGroup

	mu      sync.Mutex
	checker *Checker
	pending pending
	applied uint64 // resourceVersion
	gaps    int
	late    int
	err     error
}

// source is one kind of objects to watch.
type source struct {
	kind  string
	list  func(context.Context, metav1.ListOptions) (runtime.Object, error)
	watch func(context.Context, metav1.ListOptions) (watch.Interface, error)
	// typed turns what is received into what the Checker knows; nil: as it is.
	typed func(runtime.Object) (metav1.Object, error)
}

// progress is how far the watch of one kind has come. The observer's lock guards it.
type progress struct {
	// reached is a resourceVersion up to which everything of the kind has been received.
	reached uint64
	// known are the resourceVersions of the objects that are there, as far as was received.
	known map[types.UID]uint64
}

// Start begins to observe all namespaces and returns when every kind that the
// API server has was listed once. It needs the right to read Pods, Services,
// EndpointSlices, ReplicaSets, CollaSets and PodTransitionRules. The context
// bounds starting and observing; Stop ends it as well.
func Start(ctx context.Context, config *rest.Config, options Options) (*Observer, error) {
	config = rest.CopyConfig(config)
	config.UserAgent, config.QPS = userAgent, -1
	protobuf := rest.CopyConfig(config)
	protobuf.ContentType, protobuf.AcceptContentTypes = runtime.ContentTypeProtobuf, runtime.ContentTypeProtobuf+","+runtime.ContentTypeJSON
	clients, err := kubernetes.NewForConfig(protobuf)
	if err != nil {
		return nil, err
	}
	custom, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	return start(ctx, sources(clients, custom), options)
}

func start(ctx context.Context, all []source, options Options) (*Observer, error) {
	ctx, cancel := context.WithCancel(ctx)
	o := &Observer{cancel: cancel, checker: NewChecker(options), hold: cmp.Or(options.Hold, defaultHold)}
	far := make([]*progress, len(all))
	listed := make(chan error, len(all)) // nobody is left waiting when one fails
	for i, s := range all {
		far[i] = &progress{known: map[types.UID]uint64{}}
		o.done.Go(func() { o.follow(ctx, s, far[i], listed) })
	}
	o.catchUp = func(ctx context.Context) error { return o.judgeAll(ctx, all, far) }
	o.lastWords = func() error {
		ctx, cancel := context.WithTimeout(ctx, lastWord)
		defer cancel()
		return o.judgeAll(ctx, all, far)
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

func sources(clients kubernetes.Interface, custom dynamic.Interface) []source {
	all := metav1.NamespaceAll
	pods, services := clients.CoreV1().Pods(all), clients.CoreV1().Services(all)
	slices, sets := clients.DiscoveryV1().EndpointSlices(all), clients.AppsV1().ReplicaSets(all)
	list := []source{
		{kind: "pods", watch: pods.Watch, list: lister(pods.List)},
		{kind: "services", watch: services.Watch, list: lister(services.List)},
		{kind: "endpointslices", watch: slices.Watch, list: lister(slices.List)},
		{kind: "replicasets", watch: sets.Watch, list: lister(sets.List)},
	}
	for resource, empty := range map[string]func() metav1.Object{
		"collasets":          func() metav1.Object { return &appsv1alpha1.CollaSet{} },
		"podtransitionrules": func() metav1.Object { return &appsv1alpha1.PodTransitionRule{} },
	} {
		at := custom.Resource(appsv1alpha1.SchemeGroupVersion.WithResource(resource))
		list = append(list, source{
			kind: resource, watch: at.Watch, list: lister(at.List),
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

// lister forgets the type of a list.
func lister[L runtime.Object](list func(context.Context, metav1.ListOptions) (L, error)) func(context.Context, metav1.ListOptions) (runtime.Object, error) {
	return func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return list(ctx, o) }
}

// follow lists and watches one kind until ctx ends. It sends once to listed.
func (o *Observer) follow(ctx context.Context, s source, far *progress, listed chan<- error) {
	known := map[types.UID]metav1.Object{}
	version := ""
	first, listedOnce := true, false
	for ctx.Err() == nil {
		if version == "" {
			next, err := o.relist(ctx, s, far, known)
			if apierrors.IsNotFound(err) {
				err = nil // the kind is not served yet, or no more
			}
			if first {
				listed <- err
				first = false
			}
			if listedOnce && next != "" {
				o.gap()
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

func (o *Observer) gap() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.gaps++
}

// relist takes up every object and drops those that are gone.
func (o *Observer) relist(ctx context.Context, s source, far *progress, known map[types.UID]metav1.Object) (string, error) {
	list, err := s.list(ctx, metav1.ListOptions{})
	if err != nil {
		return "", err
	}
	accessor, err := meta.ListAccessor(list)
	if err != nil {
		return "", err
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
			o.receive(far, obj, obj.GetResourceVersion(), false)
		}
		return nil
	})
	for uid, obj := range known {
		if !seen[uid] {
			delete(known, uid)
			o.receive(far, obj, accessor.GetResourceVersion(), true)
		}
	}
	o.reach(far, accessor.GetResourceVersion())
	return accessor.GetResourceVersion(), err
}

func (s source) object(item runtime.Object) (metav1.Object, error) {
	if s.typed != nil {
		return s.typed(item)
	}
	return meta.Accessor(item)
}

// watchFrom follows one watch to its end and returns where the next one
// continues, "" if objects must be listed anew.
func (o *Observer) watchFrom(ctx context.Context, s source, far *progress, version string, known map[types.UID]metav1.Object) string {
	w, err := s.watch(ctx, metav1.ListOptions{ResourceVersion: version, AllowWatchBookmarks: true})
	if err != nil {
		if apierrors.IsNotFound(err) || apierrors.IsGone(err) || apierrors.IsResourceExpired(err) {
			return ""
		}
		pause(ctx, 100*time.Millisecond) // the API server is away: continue where we were
		return version
	}
	defer w.Stop()
	for event := range w.ResultChan() {
		if event.Type == watch.Error {
			return "" // too old, as a rule
		}
		accessor, err := meta.Accessor(event.Object)
		if err != nil {
			o.fail(fmt.Errorf("watching %s: %w", s.kind, err))
			return ""
		}
		version = accessor.GetResourceVersion()
		if event.Type == watch.Bookmark {
			o.reach(far, version)
			continue
		}
		obj, err := s.object(event.Object)
		if err != nil {
			o.fail(fmt.Errorf("reading %s %s: %w", s.kind, accessor.GetName(), err))
			continue
		}
		if event.Type == watch.Deleted {
			delete(known, obj.GetUID())
		} else {
			known[obj.GetUID()] = obj
		}
		o.receive(far, obj, version, event.Type == watch.Deleted)
		o.reach(far, version)
	}
	return version
}

func (o *Observer) fail(err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.err = cmp.Or(o.err, err)
}

func (o *Observer) receive(far *progress, obj metav1.Object, version string, deleted bool) {
	number, err := strconv.ParseUint(version, 10, 64)
	if err != nil {
		o.fail(fmt.Errorf("resourceVersion %q of %s is no number: events cannot be put in order", version, obj.GetName()))
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	heap.Push(&o.pending, Event{ResourceVersion: number, Time: time.Now(), Deleted: deleted, Object: obj})
	if deleted {
		delete(far.known, obj.GetUID())
	} else {
		far.known[obj.GetUID()] = number
	}
}

// reach says that everything of a kind up to a resourceVersion has been received.
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
			o.apply(func(e Event) bool { return now.Sub(e.Time) >= o.hold })
			o.checker.Tick(now.Add(-o.hold)) // what came since is not judged yet
			o.mu.Unlock()
		}
	}
}

// apply judges pending events in their order, up to the first that is not due. The caller holds the lock.
func (o *Observer) apply(due func(Event) bool) {
	for len(o.pending) > 0 && due(o.pending[0]) {
		event, _ := heap.Pop(&o.pending).(Event)
		// The first list of one kind may come after the first events of another,
		// but whoever has been judged was received hold ago: this is for stalls.
		if event.ResourceVersion < o.applied {
			o.late++
		}
		o.applied = max(o.applied, event.ResourceVersion)
		o.checker.Apply(event)
	}
}

// judgeAll asks the API server what there is of every kind, waits until the watches have told all of it, and judges it:
// nothing older is still to come from any of them.
func (o *Observer) judgeAll(ctx context.Context, all []source, far []*progress) error {
	complete := uint64(math.MaxUint64)
	for i, s := range all {
		there, version, err := present(ctx, s)
		for err != nil {
			if pause(ctx, 100*time.Millisecond); ctx.Err() != nil {
				return fmt.Errorf("asking what there is of %s: %w", s.kind, err)
			}
			there, version, err = present(ctx, s)
		}
		for !o.has(far[i], there, version) {
			if pause(ctx, pulse); ctx.Err() != nil {
				return fmt.Errorf("waiting for the watch of %s to come to resourceVersion %d: %w", s.kind, version, ctx.Err())
			}
		}
		if version > 0 {
			complete = min(complete, version)
		}
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.apply(func(e Event) bool { return e.ResourceVersion <= complete })
	return nil
}

// present are the resourceVersions of all objects of a kind, and of the list. The version is 0 if the kind is not served.
func present(ctx context.Context, s source) (there map[types.UID]uint64, version uint64, err error) {
	list, err := s.list(ctx, metav1.ListOptions{})
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
	there = map[types.UID]uint64{}
	err = meta.EachListItem(list, func(item runtime.Object) error {
		obj, err := meta.Accessor(item)
		if err != nil {
			return err
		}
		there[obj.GetUID()], err = strconv.ParseUint(obj.GetResourceVersion(), 10, 64)
		return err
	})
	return there, version, err
}

// has says whether what was there at a resourceVersion, and that nothing else was, has been received.
func (o *Observer) has(far *progress, there map[types.UID]uint64, version uint64) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	for uid, v := range there {
		if far.known[uid] < v && far.reached < v {
			return false
		}
	}
	for uid, v := range far.known {
		if _, still := there[uid]; !still && v <= version {
			return false
		}
	}
	return true
}

// Report returns what was judged so far, which lags what happened by Options.Hold.
func (o *Observer) Report() Report {
	o.mu.Lock()
	defer o.mu.Unlock()
	report := o.checker.Report()
	report.Gaps, report.Late = o.gaps, o.late
	return report
}

// Settled returns the report as soon as everything that has happened before the
// call is in it, however far the watches lag; or as it is when ctx ends.
func (o *Observer) Settled(ctx context.Context) Report {
	if err := o.catchUp(ctx); err != nil && ctx.Err() == nil {
		o.fail(err)
	}
	return o.Report()
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
