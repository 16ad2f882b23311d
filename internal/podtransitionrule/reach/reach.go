// Package reach keeps Pods out of the cache that no rule can select: those of namespaces that have no rules. All Pods
// are watched by one watch, of which what is out of reach is left out as it comes; while no namespace is in reach
// there is none. When a namespace gets its first rule, its Pods are listed and put into the stream
// (docs/design/0014-reach.md).
package reach

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/internal/podcache"
)

const (
	pageSize = 500
	// mostMetadata is how many Pods are asked for at a time where only their metadata is read.
	mostMetadata = 1000
	// listPatience is how long listing a namespace may take. No event is handed on meanwhile.
	listPatience = time.Minute
	// listAgain is when a namespace is listed again after an error.
	listAgain = time.Second
)

// Reach knows the namespaces in reach: those that have had a rule, or a Pod with a note of one, since the process
// began. Make one with New, for one cache of all namespaces. A nil Reach reaches everything.
type Reach struct {
	// noted says, by its metadata, whether a rule has left a note on a Pod, which has to be found and removed.
	noted func(metav1.Object) bool
	// strip leaves of a Pod what the cache keeps.
	strip func(*corev1.Pod) *corev1.Pod
	clock clock.Clock
	// pageSize is how many Pods of a namespace are asked for at a time.
	pageSize int64

	// rulesMade is closed when rulesSynced is set.
	rulesMade chan struct{}
	// changed signals that a namespace came into reach.
	changed chan struct{}

	mu          sync.Mutex
	reader      client.Reader
	rulesSynced func() bool
	namespaces  map[string]*state
	// position is the resourceVersion that the watch has reached. Pods that were put in between are older or newer than
	// it.
	position string
	// newest is the latest resourceVersion at which a namespace was listed, "" for none.
	newest string
	// torn is true if a namespace's Pods are being put in: if the reader stops before their end, all must be listed again.
	torn bool
	// stream counts lists of all and watches. Only the last of them puts anything in.
	stream int
}

// state is a namespace in reach.
type state struct {
	// whole is true if its Pods are in the cache, or on their way into it.
	whole bool
	// since is the resourceVersion at which they were listed: what the watch tells up to there is of the past. "" if
	// they came with all others.
	since string
}

// New makes a Reach of no namespace.
func New(noted func(metav1.Object) bool, strip func(*corev1.Pod) *corev1.Pod) *Reach {
	return &Reach{
		noted: noted, strip: strip, clock: clock.RealClock{}, pageSize: pageSize,
		rulesMade: make(chan struct{}), changed: make(chan struct{}, 1), namespaces: map[string]*state{},
	}
}

// ReadFrom says who reads all namespaces past the cache: those that come into reach are listed there. To be called
// before any informer is made. The first reader stays: shards, each with its own, come and go.
func (r *Reach) ReadFrom(reader client.Reader) {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.reader == nil {
		r.reader = reader
	}
}

func (r *Reach) source() client.Reader {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.reader
}

// NewInformer is for cache.Options: that of PodTransitionRules tells which namespaces are in reach, that of Pods
// waits for it and holds Pods in reach. Others are client-go's own.
func (r *Reach) NewInformer(lw toolscache.ListerWatcher, example runtime.Object, resync time.Duration, indexers toolscache.Indexers) toolscache.SharedIndexInformer {
	switch example.(type) {
	case *corev1.Pod:
		return podcache.NewInformer(&listerWatcher{reach: r, all: toolscache.ToListerWatcherWithContext(lw)}, example, resync, indexers)
	case *appsv1alpha1.PodTransitionRule:
		rules := toolscache.NewSharedIndexInformer(lw, example, resync, indexers)
		registration, err := rules.AddEventHandler(toolscache.ResourceEventHandlerFuncs{AddFunc: func(o any) {
			if rule, ok := o.(*appsv1alpha1.PodTransitionRule); ok {
				r.want(rule.Namespace)
			}
		}})
		if err != nil {
			panic(err) // cannot be: it has not been stopped
		}
		r.readRules(registration.HasSynced)
		return rules
	}
	return toolscache.NewSharedIndexInformer(lw, example, resync, indexers)
}

// readRules takes down who knows whether all rules have been told of.
func (r *Reach) readRules(synced func() bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.rulesSynced == nil {
		close(r.rulesMade)
	}
	r.rulesSynced = synced
}

// awaitRules waits until the namespaces are known that have rules now, so that their Pods come with the first list.
func (r *Reach) awaitRules(ctx context.Context) error {
	select {
	case <-r.rulesMade:
	case <-ctx.Done():
		return ctx.Err()
	}
	r.mu.Lock()
	synced := r.rulesSynced
	r.mu.Unlock()
	if !toolscache.WaitForCacheSync(ctx.Done(), synced) {
		return errors.New("ended while the PodTransitionRules were being listed")
	}
	return nil
}

// Ready reports whether what the cache shows of a namespace's Pods is all of them, which nothing may be decided
// without. One that has rules is in reach or about to be; of one that has none there is nothing to show unless it is.
func (r *Reach) Ready(namespace string, hasRules bool) bool {
	if r == nil {
		return true
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	s, inReach := r.namespaces[namespace]
	if !inReach {
		return !hasRules
	}
	return s.whole
}

// want brings a namespace into reach, for as long as the process runs, so that it need not be known how far a deleted
// rule is still in effect.
func (r *Reach) want(namespace string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.namespaces[namespace] != nil {
		return
	}
	r.namespaces[namespace] = &state{}
	select {
	case r.changed <- struct{}{}:
	default:
	}
}

// missing are the namespaces in reach whose Pods are not in the cache, sorted.
func (r *Reach) missing() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var names []string
	for name, s := range r.namespaces {
		if !s.whole {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// idle reports whether no namespace is in reach, so that nothing needs to be watched.
func (r *Reach) idle() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.namespaces) == 0
}

// beginIdle reports whether a cache of no Pods is to be shown, which is right at this resourceVersion. False means
// that a namespace is in reach.
func (r *Reach) beginIdle(resourceVersion string) (stream int, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.namespaces) > 0 {
		return 0, false
	}
	r.torn, r.position, r.newest = false, resourceVersion, ""
	r.stream++
	return r.stream, true
}

// begin records that all Pods in reach will come with a list of all. It returns the resourceVersion that the list must
// have reached, so that the cache does not go back, or what was asked for if that is any or the newest; and the number
// of the stream.
func (r *Reach) begin(asked string) (resourceVersion string, stream int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range r.namespaces {
		*s = state{whole: true}
	}
	r.torn = false
	r.stream++
	if asked == "" || asked == "0" {
		r.position, r.newest = "", "" // the API server may have gone back
		return asked, r.stream
	}
	return later(r.position, r.newest), r.stream
}

// resume says where a watch goes on, and the number of its stream. False means that all must be listed again.
func (r *Reach) resume() (resourceVersion string, stream int, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.stream++
	return r.position, r.stream, !r.torn
}

// reached takes down how far the watch is.
func (r *Reach) reached(resourceVersion string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.position = resourceVersion
}

// at is how far it is.
func (r *Reach) at() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.position
}

// listed takes down that a namespace's Pods have been listed, and are put in from here on. False means that another
// stream does so.
func (r *Reach) listed(stream int, namespace, resourceVersion string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.stream != stream {
		return false
	}
	*r.namespaces[namespace] = state{whole: true, since: resourceVersion}
	r.newest = later(r.newest, resourceVersion)
	r.torn = true
	return true
}

// put records that all of them have been read.
func (r *Reach) put(stream int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.torn = r.torn && r.stream != stream
}

// passes reports whether a state of a Pod belongs into the cache. One with a note of a rule brings its namespace into
// reach.
func (r *Reach) passes(pod *corev1.Pod, gone bool) bool {
	r.mu.Lock()
	s := r.namespaces[pod.Namespace]
	known := s != nil
	passes := known && s.whole && (s.since == "" || later(s.since, pod.ResourceVersion) != s.since)
	r.mu.Unlock()
	if !known && !gone && r.noted(pod) {
		r.want(pod.Namespace)
	}
	return passes
}

// later is the later of two resourceVersions, b if they cannot be compared, a if they are equal.
func later(a, b string) string {
	if order, err := resourceversion.CompareResourceVersion(a, b); err == nil && order >= 0 {
		return a
	}
	if b == "" {
		return a
	}
	return b
}

// podsOf lists the Pods of a namespace as they are now, stripped, and says at which resourceVersion. It must be one
// that the watch has not passed: what it told of the namespace has been left out. The list of all, which informers
// have, cannot be asked for one namespace in pages: with a selector of metadata.namespace the API server gives an
// empty second page (seen at 1.36.3).
func (r *Reach) podsOf(ctx context.Context, namespace string) ([]*corev1.Pod, string, error) {
	reader := r.source()
	if reader == nil {
		return nil, "", fmt.Errorf("listing the Pods of namespace %s: nobody has said how", namespace)
	}
	ctx, cancel := context.WithTimeout(ctx, listPatience)
	defer cancel()
	var pods []*corev1.Pod
	for next := ""; ; {
		var page corev1.PodList
		if err := reader.List(ctx, &page, client.InNamespace(namespace), client.Limit(r.pageSize), client.Continue(next)); err != nil {
			return nil, "", fmt.Errorf("listing the Pods of namespace %s, which has its first rule: %w", namespace, err)
		}
		for i := range page.Items {
			pods = append(pods, r.strip(&page.Items[i]))
		}
		if next = page.Continue; next != "" {
			continue
		}
		if order, err := resourceversion.CompareResourceVersion(page.ResourceVersion, r.at()); err != nil || order < 0 {
			return nil, "", fmt.Errorf("listing the Pods of namespace %s: the list is of resourceVersion %s, the watch has come to %s", namespace, page.ResourceVersion, r.at())
		}
		return pods, page.ResourceVersion, nil
	}
}

// look brings the namespaces of Pods with notes into reach, and says at which resourceVersion there were no others.
// The list is live.
func (r *Reach) look(ctx context.Context) (resourceVersion string, err error) {
	reader := r.source()
	if reader == nil {
		return "", errors.New("looking for Pods with notes of rules: nobody has said how")
	}
	ctx, cancel := context.WithTimeout(ctx, listPatience)
	defer cancel()
	page := &metav1.PartialObjectMetadataList{}
	page.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("PodList"))
	for next := ""; ; {
		page.Items = nil
		if err := reader.List(ctx, page, client.Limit(mostMetadata), client.Continue(next)); err != nil {
			return "", fmt.Errorf("looking for Pods with notes of rules: %w", err)
		}
		for i := range page.Items {
			if r.noted(&page.Items[i]) {
				r.want(page.Items[i].Namespace)
			}
		}
		if next = page.Continue; next == "" {
			return page.ResourceVersion, nil
		}
	}
}
