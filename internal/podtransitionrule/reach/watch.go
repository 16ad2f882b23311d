package reach

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	toolscache "k8s.io/client-go/tools/cache"
	ctrl "sigs.k8s.io/controller-runtime"
)

// listerWatcher lists and watches the Pods in reach.
type listerWatcher struct {
	reach *Reach
	all   toolscache.ListerWatcherWithContext
}

// List is part of toolscache.ListerWatcher; client-go calls ListWithContext.
func (l *listerWatcher) List(options metav1.ListOptions) (runtime.Object, error) {
	return l.ListWithContext(context.Background(), options) //nolint:forbidigo // the interface has none
}

// Watch is part of toolscache.ListerWatcher; client-go calls WatchWithContext.
func (l *listerWatcher) Watch(options metav1.ListOptions) (watch.Interface, error) {
	return l.WatchWithContext(context.Background(), options) //nolint:forbidigo // the interface has none
}

// IsWatchListSemanticsUnSupported is what client-go asks before it lists by a watch.
func (l *listerWatcher) IsWatchListSemanticsUnSupported() bool {
	asked, ok := l.all.(interface{ IsWatchListSemanticsUnSupported() bool })
	return ok && asked.IsWatchListSemanticsUnSupported()
}

// ListWithContext is part of toolscache.ListerWatcherWithContext. It lists all Pods, or a page of them; none while
// none are in reach.
func (l *listerWatcher) ListWithContext(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
	if err := l.reach.awaitRules(ctx); err != nil {
		return nil, err
	}
	if options.Continue == "" {
		at, _, idle, err := l.beginIdle(ctx)
		if err != nil {
			return nil, err
		}
		if idle {
			return &corev1.PodList{ListMeta: metav1.ListMeta{ResourceVersion: at}}, nil
		}
		options.ResourceVersion, _ = l.reach.begin(options.ResourceVersion)
	}
	answer, err := l.all.ListWithContext(ctx, options)
	if err != nil {
		return nil, err
	}
	list, ok := answer.(*corev1.PodList)
	if !ok {
		return answer, nil
	}
	var kept []corev1.Pod // not in the same memory, which is of all
	for i := range list.Items {
		if l.reach.passes(&list.Items[i], false) {
			kept = append(kept, list.Items[i])
		}
	}
	list.Items = kept
	l.reach.reached(list.ResourceVersion)
	return list, nil
}

// beginIdle reports whether a cache of no Pods is right, after a look at all of them, at which resourceVersion, and
// the number of the stream.
func (l *listerWatcher) beginIdle(ctx context.Context) (at string, stream int, idle bool, err error) {
	if !l.reach.idle() {
		return "", 0, false, nil
	}
	if at, err = l.reach.look(ctx); err != nil {
		return "", 0, false, err
	}
	stream, idle = l.reach.beginIdle(at)
	return at, stream, idle, nil
}

// WatchWithContext is part of toolscache.ListerWatcherWithContext. It goes on where the watch before has ended,
// whatever Pods were put in. While none are in reach nothing is watched: the stream waits.
func (l *listerWatcher) WatchWithContext(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
	if err := l.reach.awaitRules(ctx); err != nil {
		return nil, err
	}
	s := &stream{reach: l.reach, out: make(chan watch.Event)}
	idle, err := l.place(ctx, s, &options)
	if err != nil {
		return nil, err
	}
	if idle {
		options.SendInitialEvents, options.ResourceVersionMatch = nil, ""
		s.open = func(ctx context.Context) (watch.Interface, error) { return l.watchFromNow(ctx, options) }
	} else {
		all, err := l.all.WatchWithContext(ctx, options)
		if err != nil {
			return nil, err
		}
		s.all = all
	}
	ctx, s.cancel = context.WithCancel(ctx)
	go s.run(ctx)
	return s, nil
}

// place says where a stream goes on, or begins with all that is in reach, and whether that is nothing.
func (l *listerWatcher) place(ctx context.Context, s *stream, options *metav1.ListOptions) (idle bool, err error) {
	if options.SendInitialEvents == nil || !*options.SendInitialEvents {
		resourceVersion, number, ok := l.reach.resume()
		if !ok {
			return false, apierrors.NewResourceExpired("Pods of a namespace that got its first rule may be missing: all are listed anew")
		}
		options.ResourceVersion, s.number = resourceVersion, number
		return l.reach.idle(), nil
	}
	at, number, idle, err := l.beginIdle(ctx)
	switch {
	case err != nil:
		return false, err
	case idle:
		s.number = number
		s.first = &watch.Event{Type: watch.Bookmark, Object: &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
			ResourceVersion: at, Annotations: map[string]string{metav1.InitialEventsAnnotationKey: "true"},
		}}}
	default:
		options.ResourceVersion, s.number = l.reach.begin(options.ResourceVersion)
		s.initial = true
	}
	return idle, nil
}

// watchFromNow watches all Pods from the newest resourceVersion on: what was before is of no namespace in reach, or
// will be listed.
func (l *listerWatcher) watchFromNow(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
	soon, cancel := context.WithTimeout(ctx, listPatience)
	defer cancel()
	answer, err := l.all.ListWithContext(soon, metav1.ListOptions{Limit: 1})
	if err != nil {
		return nil, fmt.Errorf("asking for the newest resourceVersion of Pods: %w", err)
	}
	list, err := meta.ListAccessor(answer)
	if err != nil {
		return nil, err
	}
	options.ResourceVersion = list.GetResourceVersion()
	l.reach.reached(options.ResourceVersion)
	return l.all.WatchWithContext(ctx, options)
}

// stream is a watch of the Pods in reach.
type stream struct {
	reach  *Reach
	number int
	// all is the watch of all Pods. While it is nil nothing is in reach, and open begins it.
	all    watch.Interface
	open   func(context.Context) (watch.Interface, error)
	out    chan watch.Event
	cancel context.CancelFunc
	// first is sent before all else, if there is one.
	first *watch.Event
	// initial is true if the stream still lists what there was when it began. Its resourceVersions are in no order.
	initial bool
}

var _ watch.Interface = &stream{}

// ResultChan is part of watch.Interface.
func (s *stream) ResultChan() <-chan watch.Event { return s.out }

// Stop is part of watch.Interface.
func (s *stream) Stop() { s.cancel() }

// run hands events on, one at a time, and Pods of namespaces that have come into reach between two of them.
func (s *stream) run(ctx context.Context) {
	defer close(s.out)
	defer func() {
		s.cancel()
		if s.all != nil {
			s.all.Stop()
		}
	}()
	if s.first != nil && !s.send(ctx, *s.first) {
		return
	}
	if s.all == nil && !s.begin(ctx) {
		return
	}
	var again <-chan time.Time
	due := true // something may have come into reach while there was no stream
	for {
		changed := s.reach.changed
		switch {
		case s.initial:
			changed = nil
		case due:
			due, again = false, nil
			if !s.addMissing(ctx) {
				again = s.reach.clock.After(listAgain)
			}
		}
		select {
		case event, more := <-s.all.ResultChan():
			if !more || !s.hand(ctx, event) {
				return
			}
		case <-changed:
			due = true
		case <-again:
			due = true
		case <-ctx.Done():
			return
		}
	}
}

// begin waits until a namespace is in reach and begins the watch then. False means that the stream is not read any
// more.
func (s *stream) begin(ctx context.Context) bool {
	for s.reach.idle() {
		select {
		case <-s.reach.changed:
		case <-ctx.Done():
			return false
		}
	}
	for {
		all, err := s.open(ctx)
		if err == nil {
			s.all = all
			return true
		}
		if ctx.Err() == nil {
			ctrl.Log.WithName("reach").Error(err, "trying again; nothing is decided until Pods are watched", "after", listAgain)
		}
		select {
		case <-s.reach.clock.After(listAgain):
		case <-ctx.Done():
			return false
		}
	}
}

// hand hands an event on if it concerns a Pod in reach, and reports whether the stream is still read.
func (s *stream) hand(ctx context.Context, event watch.Event) bool {
	pod, ok := event.Object.(*corev1.Pod)
	if !ok || event.Type == watch.Error {
		return s.send(ctx, event)
	}
	if event.Type == watch.Bookmark {
		if s.initial && pod.Annotations[metav1.InitialEventsAnnotationKey] == "true" {
			s.initial = false
		}
		if !s.initial {
			s.reach.reached(pod.ResourceVersion)
		}
		return s.send(ctx, event)
	}
	passes := s.reach.passes(pod, event.Type == watch.Deleted)
	if !s.initial {
		s.reach.reached(pod.ResourceVersion)
	}
	return !passes || s.send(ctx, event)
}

func (s *stream) send(ctx context.Context, event watch.Event) bool {
	select {
	case s.out <- event:
		return true
	case <-ctx.Done():
		return false
	}
}

// addMissing puts in the Pods of namespaces that have come into reach, and reports whether all are in.
func (s *stream) addMissing(ctx context.Context) bool {
	all := true
	for _, namespace := range s.reach.missing() {
		pods, resourceVersion, err := s.reach.podsOf(ctx, namespace)
		if err != nil {
			if ctx.Err() == nil {
				ctrl.Log.WithName("reach").Error(err, "trying again; nothing is decided in the namespace until then", "namespace", namespace, "after", listAgain)
			}
			all = false
			continue
		}
		if !s.reach.listed(s.number, namespace, resourceVersion) || !s.put(ctx, pods) {
			return false
		}
	}
	return all
}

// put hands on Pods that were listed, and reports whether they were read to the end.
func (s *stream) put(ctx context.Context, pods []*corev1.Pod) bool {
	for _, pod := range pods {
		if !s.send(ctx, watch.Event{Type: watch.Added, Object: pod}) {
			return false
		}
	}
	s.reach.put(s.number)
	// They are of other resourceVersions than the one that the watch is at.
	at := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{ResourceVersion: s.reach.at()}}
	return s.send(ctx, watch.Event{Type: watch.Bookmark, Object: at})
}
