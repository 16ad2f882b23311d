package reach

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// server lists and watches Pods as an API server does: one resourceVersion for all, watches that go on from any,
// lists by a watch.
type server struct {
	mu      sync.Mutex
	more    *sync.Cond
	version int
	pods    map[string]*corev1.Pod
	history []watch.Event
	watches map[*serverWatch]bool
	// failing is how many lists of namespaces fail from here on.
	failing int
	// listed are the namespaces that were listed alone.
	listed map[string]bool
	// pages are what is left of lists that have not been read to the end, by their token.
	pages map[string]corev1.PodList
	// onlyLists is true if there are no lists by a watch.
	onlyLists bool
	// lists of all, looks at the metadata of all, and watches are counted.
	lists, looks, watched int
}

// IsWatchListSemanticsUnSupported is what client-go asks.
func (s *server) IsWatchListSemanticsUnSupported() bool { return s.onlyLists }

func newServer() *server {
	s := &server{pods: map[string]*corev1.Pod{}, watches: map[*serverWatch]bool{}, listed: map[string]bool{}, pages: map[string]corev1.PodList{}, version: 100}
	s.more = sync.NewCond(&s.mu)
	return s
}

// put creates or changes a Pod, or takes it away.
func (s *server) put(namespace, name string, annotations map[string]string, gone bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	key := namespace + "/" + name
	before := s.pods[key]
	if gone && before == nil {
		return
	}
	s.version++
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Annotations: annotations, ResourceVersion: strconv.Itoa(s.version)}}
	kind := watch.Modified
	switch {
	case gone:
		kind = watch.Deleted
		delete(s.pods, key)
	case before == nil:
		kind = watch.Added
	}
	if !gone {
		s.pods[key] = pod
	}
	s.history = append(s.history, watch.Event{Type: kind, Object: pod})
	s.more.Broadcast()
}

// breakOff ends all watches.
func (s *server) breakOff() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for w := range s.watches {
		w.over = true
	}
	s.more.Broadcast()
}

// versions are those of a namespace's Pods.
func (s *server) versions(namespace string) map[string]string {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := map[string]string{}
	for _, pod := range s.pods {
		if pod.Namespace == namespace {
			all[pod.Name] = pod.ResourceVersion
		}
	}
	return all
}

func (s *server) List(options metav1.ListOptions) (runtime.Object, error) {
	return s.ListWithContext(context.Background(), options)
}

func (s *server) Watch(options metav1.ListOptions) (watch.Interface, error) {
	return s.WatchWithContext(context.Background(), options)
}

func (s *server) ListWithContext(_ context.Context, options metav1.ListOptions) (runtime.Object, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := &corev1.PodList{ListMeta: metav1.ListMeta{ResourceVersion: strconv.Itoa(s.version)}}
	if options.Limit == 1 { // only its resourceVersion is asked for
		return list, s.fail()
	}
	s.lists++
	for _, pod := range s.pods {
		list.Items = append(list.Items, *pod.DeepCopy())
	}
	return list, nil
}

// fail is an error as long as lists are to fail.
func (s *server) fail() error {
	if s.failing == 0 {
		return nil
	}
	s.failing--
	return errors.New("no answer")
}

// reader reads one namespace, in pages, or the metadata of all.
type reader struct {
	*server
	client.Reader
}

// List is part of client.Reader. All pages are of the moment of the first.
func (r reader) List(_ context.Context, into client.ObjectList, options ...client.ListOption) error {
	var o client.ListOptions
	o.ApplyOptions(options)
	if all, ok := into.(*metav1.PartialObjectMetadataList); ok && o.Namespace == "" && o.Limit > 0 {
		return r.metadata(all)
	}
	list, ok := into.(*corev1.PodList)
	if !ok || o.Namespace == "" || o.Limit <= 0 {
		return fmt.Errorf("a list of %T of namespace %q, at most %d", into, o.Namespace, o.Limit)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.listed[o.Namespace] = true
	if err := r.fail(); err != nil {
		return err
	}
	whole, begun := r.pages[o.Continue]
	delete(r.pages, o.Continue)
	switch {
	case begun:
	case o.Continue != "":
		return apierrors.NewResourceExpired("no such page")
	default:
		whole.ResourceVersion = strconv.Itoa(r.version)
		for _, pod := range r.pods {
			if pod.Namespace == o.Namespace {
				whole.Items = append(whole.Items, *pod.DeepCopy())
			}
		}
	}
	n := min(len(whole.Items), int(o.Limit))
	list.ResourceVersion, list.Items, list.Continue = whole.ResourceVersion, whole.Items[:n], ""
	if n < len(whole.Items) {
		list.Continue = fmt.Sprintf("%s after %s", whole.ResourceVersion, whole.Items[n-1].Name)
		r.pages[list.Continue] = corev1.PodList{ListMeta: metav1.ListMeta{ResourceVersion: whole.ResourceVersion}, Items: whole.Items[n:]}
	}
	return nil
}

func (r reader) metadata(all *metav1.PartialObjectMetadataList) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.fail(); err != nil {
		return err
	}
	r.looks++
	all.ResourceVersion = strconv.Itoa(r.version)
	for _, pod := range r.pods {
		all.Items = append(all.Items, metav1.PartialObjectMetadata{ObjectMeta: *pod.ObjectMeta.DeepCopy()})
	}
	return nil
}

func (s *server) WatchWithContext(_ context.Context, options metav1.ListOptions) (watch.Interface, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	w := &serverWatch{server: s, out: make(chan watch.Event), done: make(chan struct{})}
	if options.SendInitialEvents != nil && *options.SendInitialEvents {
		for _, pod := range s.pods {
			w.first = append(w.first, watch.Event{Type: watch.Added, Object: pod.DeepCopy()})
		}
		w.first = append(w.first, watch.Event{Type: watch.Bookmark, Object: &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
			ResourceVersion: strconv.Itoa(s.version), Annotations: map[string]string{metav1.InitialEventsAnnotationKey: "true"},
		}}})
		w.at = len(s.history)
	} else {
		from, err := strconv.Atoi(options.ResourceVersion)
		if err != nil || from < 100 || from > s.version {
			return nil, fmt.Errorf("a watch from resourceVersion %q", options.ResourceVersion)
		}
		w.at = from - 100 // each version has one event
	}
	s.watches[w] = true
	s.watched++
	go w.run()
	return w, nil
}

type serverWatch struct {
	server *server
	first  []watch.Event
	at     int
	over   bool
	out    chan watch.Event
	done   chan struct{}
	once   sync.Once
}

func (w *serverWatch) ResultChan() <-chan watch.Event { return w.out }

func (w *serverWatch) Stop() {
	w.once.Do(func() { close(w.done) })
	w.server.mu.Lock()
	defer w.server.mu.Unlock()
	w.over = true
	w.server.more.Broadcast()
}

func (w *serverWatch) run() {
	defer close(w.out)
	for {
		event, ok := w.next()
		if !ok {
			return
		}
		select {
		case w.out <- event:
		case <-w.done:
			return
		}
	}
}

func (w *serverWatch) next() (watch.Event, bool) {
	w.server.mu.Lock()
	defer w.server.mu.Unlock()
	if len(w.first) > 0 {
		event := w.first[0]
		w.first = w.first[1:]
		return event, !w.over
	}
	for w.at == len(w.server.history) && !w.over {
		w.server.more.Wait()
	}
	if w.over {
		delete(w.server.watches, w)
		return watch.Event{}, false
	}
	event := w.server.history[w.at]
	w.at++
	return watch.Event{Type: event.Type, Object: event.Object.DeepCopyObject()}, true
}
