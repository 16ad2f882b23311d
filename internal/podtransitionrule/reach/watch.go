package reach

import (
	"context"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
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

// ListWithContext is part of toolscache.ListerWatcherWithContext. It lists all Pods, or a page of them.
func (l *listerWatcher) ListWithContext(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
	if err := l.reach.awaitRules(ctx); err != nil {
		return nil, err
	}
	if options.Continue == "" {
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

// WatchWithContext is part of toolscache.ListerWatcherWithContext. It goes on where the watch before has ended, whatever Pods were put in.
func (l *listerWatcher) WatchWithContext(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
	if err := l.reach.awaitRules(ctx); err != nil {
		return nil, err
	}
	initial := options.SendInitialEvents != nil && *options.SendInitialEvents
	number, ok := 0, true
	if initial {
		options.ResourceVersion, number = l.reach.begin(options.ResourceVersion)
	} else {
		options.ResourceVersion, number, ok = l.reach.resume()
	}
	if !ok {
		return nil, apierrors.NewResourceExpired("Pods of a namespace that got its first rule may be missing: all are listed anew")
	}
	all, err := l.all.WatchWithContext(ctx, options)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	s := &stream{reach: l.reach, number: number, all: all, out: make(chan watch.Event), cancel: cancel, initial: initial}
	go s.run(ctx)
	return s, nil
}

// stream is a watch of the Pods in reach.
type stream struct {
	reach  *Reach
	number int
	all    watch.Interface
	out    chan watch.Event
	cancel context.CancelFunc
	once   sync.Once
	// initial says that the stream still lists what there was when it began. Its resourceVersions are in no order.
	initial bool
}

var _ watch.Interface = &stream{}

// ResultChan is part of watch.Interface.
func (s *stream) ResultChan() <-chan watch.Event { return s.out }

// Stop is part of watch.Interface.
func (s *stream) Stop() {
	s.once.Do(func() {
		s.cancel()
		s.all.Stop()
	})
}

// run hands events on, one at a time, and Pods of namespaces that have come into reach between two of them.
func (s *stream) run(ctx context.Context) {
	defer close(s.out)
	defer s.Stop()
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

// hand hands an event on if it concerns a Pod in reach, and says whether somebody still reads.
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

// addMissing puts in the Pods of namespaces that have come into reach, and says whether all are in.
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

// put hands on Pods that were listed, and says whether they were read to the end.
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
