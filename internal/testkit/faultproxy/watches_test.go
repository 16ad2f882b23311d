package faultproxy_test

import (
	"context"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/tools/cache"

	"kusionstack.io/kuperator/internal/testkit/faultproxy"
	"kusionstack.io/kuperator/internal/testkit/localkube"
	"kusionstack.io/kuperator/internal/testkit/testcluster"
)

const (
	deadline = 2 * time.Minute
	poll     = 5 * time.Millisecond
)

func TestFaultsOfWatches(t *testing.T) {
	cluster := testcluster.Start(t, localkube.Config{})
	for name, test := range map[string]func(*testing.T, *world){
		"frozen until released":                    frozen,
		"a new watch is frozen too":                frozenFromTheStart,
		"only what a later event makes void drops": coalesced,
		"broken after some events":                 broken,
		"expired":                                  goneByExpiry,
		"twice":                                    twice,
		"one kind lags":                            lagging,
		"a list from the past":                     past,
		"only metadata":                            onlyMetadata,
		"closed with the client":                   closed,
	} {
		t.Run(name, func(t *testing.T) { test(t, newWorld(t, cluster)) })
	}
}

// change writes data into a ConfigMap, past the proxy, and returns the resourceVersion.
func (w *world) change(name, data string) string {
	w.t.Helper()
	maps := w.direct.CoreV1().ConfigMaps(w.space)
	if !w.exists(name) {
		made, err := maps.Create(w.t.Context(),
			&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: map[string]string{"is": data}},
			metav1.CreateOptions{})
		require.NoError(w.t, err)
		return made.ResourceVersion
	}
	changed, err := maps.Update(w.t.Context(),
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: map[string]string{"is": data}},
		metav1.UpdateOptions{})
	require.NoError(w.t, err)
	return changed.ResourceVersion
}

func (w *world) remove(name string) {
	w.t.Helper()
	require.NoError(w.t, w.direct.CoreV1().ConfigMaps(w.space).Delete(w.t.Context(), name, metav1.DeleteOptions{}))
}

// watchFrom watches the ConfigMaps through the proxy.
func (w *world) watchFrom(version string) watch.Interface {
	w.t.Helper()
	watching, err := w.client().CoreV1().ConfigMaps(w.space).Watch(w.t.Context(),
		metav1.ListOptions{ResourceVersion: version})
	require.NoError(w.t, err)
	w.t.Cleanup(watching.Stop)
	return watching
}

// next is the next event in words: "ADDED a=1".
func (w *world) next(watching watch.Interface) string {
	w.t.Helper()
	select {
	case e, open := <-watching.ResultChan():
		if !open {
			return "closed"
		}
		return describe(e)
	case <-time.After(deadline):
		w.t.Fatal("no event came")
		return ""
	}
}

func describe(e watch.Event) string {
	switch object := e.Object.(type) {
	case *corev1.ConfigMap:
		return string(e.Type) + " " + object.Name + "=" + object.Data["is"]
	case *metav1.Status:
		return string(e.Type) + " " + string(object.Reason)
	default:
		return string(e.Type)
	}
}

// informer is an informer on the ConfigMaps in a new client, as a controller has one.
func (w *world) informer() cache.SharedIndexInformer {
	w.t.Helper()
	factory := informers.NewSharedInformerFactoryWithOptions(w.client(), 0, informers.WithNamespace(w.space))
	informer := factory.Core().V1().ConfigMaps().Informer()
	ctx, cancel := context.WithCancel(context.Background())
	w.t.Cleanup(func() { cancel(); factory.Shutdown() })
	factory.Start(ctx.Done())
	return informer
}

// holds are the ConfigMaps in the informer's store, "a=1 b=2" as a list.
func holds(informer cache.SharedIndexInformer) []string {
	objects := []string{}
	for _, object := range informer.GetStore().List() {
		cm := object.(*corev1.ConfigMap)
		objects = append(objects, cm.Name+"="+cm.Data["is"])
	}
	slices.Sort(objects)
	return objects
}

func (w *world) eventually(condition func() bool, what string) {
	w.t.Helper()
	require.Eventually(w.t, condition, deadline, poll, what)
}

func (w *world) eventuallyHolds(informer cache.SharedIndexInformer, want ...string) {
	w.t.Helper()
	w.eventually(func() bool { return slices.Equal(holds(informer), want) }, "the informer's store")
}

func frozen(t *testing.T, w *world) {
	informer := w.informer()
	w.change("a", "1")
	w.eventuallyHolds(informer, "a=1")
	freeze := w.proxy.Arm(faultproxy.Fault{Match: faultproxy.Match{Resource: "configmaps"}, Action: faultproxy.Freeze})
	w.change("a", "2")
	w.change("b", "1")
	w.eventually(func() bool { return freeze.Fired() > 0 }, "an event that is held back")
	require.Equal(t, []string{"a=1"}, holds(informer))

	secrets, err := w.client().CoreV1().Secrets(w.space).Watch(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	defer secrets.Stop()
	_, err = w.direct.CoreV1().Secrets(w.space).Create(t.Context(),
		&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "s"}}, metav1.CreateOptions{})
	require.NoError(t, err)
	require.Equal(t, "ADDED", w.next(secrets), "another kind is not frozen")

	freeze.Disarm()
	w.eventuallyHolds(informer, "a=2", "b=1")
}

func frozenFromTheStart(t *testing.T, w *world) {
	version := w.change("a", "1")
	w.change("a", "2")
	freeze := w.proxy.Arm(faultproxy.Fault{Action: faultproxy.Freeze})
	watching := w.watchFrom(version)
	w.eventually(func() bool { return freeze.Fired() == 1 }, "the event is held back, and counted once")
	freeze.Disarm()
	require.Equal(t, "MODIFIED a=2", w.next(watching))
}

func coalesced(t *testing.T, w *world) {
	version := w.change("a", "0")
	coalesce := w.proxy.Arm(faultproxy.Fault{Action: faultproxy.Coalesce, Delay: time.Hour})
	watching := w.watchFrom(version)
	w.change("b", "1") // dropped: the next event is of b too
	w.change("b", "2") // not: who saw the change of a has seen this
	w.change("a", "1")
	w.change("b", "3")
	w.eventually(func() bool { return coalesce.Fired() == 1 }, "the first is dropped, the second waits")
	require.Never(t, func() bool { return coalesce.Fired() > 1 }, 20*poll, poll)
	coalesce.Disarm()
	version = w.change("d", "1")
	for _, want := range []string{"ADDED b=2", "MODIFIED a=1", "MODIFIED b=3"} {
		require.Equal(t, want, w.next(watching))
	}

	w.proxy.Arm(faultproxy.Fault{Action: faultproxy.Coalesce, Delay: 2 * time.Second})
	watching = w.watchFrom(version)
	w.change("d", "2")
	w.change("d", "3")
	w.remove("d")
	require.Equal(t, "DELETED d=3", w.next(watching))
}

func broken(t *testing.T, w *world) {
	reset := w.proxy.Arm(faultproxy.Fault{Action: faultproxy.Reset, Every: 2, Match: faultproxy.Match{Times: 2}})
	version := w.change("a", "0")
	watching, informer := w.watchFrom(version), w.informer()
	for _, name := range []string{"a", "b", "c", "d", "e"} {
		w.change(name, "1")
	}
	require.Equal(t, []string{"MODIFIED a=1", "ADDED b=1", "closed"},
		[]string{w.next(watching), w.next(watching), w.next(watching)})
	w.eventuallyHolds(informer, "a=1", "b=1", "c=1", "d=1", "e=1")
	require.Equal(t, 2, reset.Fired())
}

// goneByExpiry: the informer lists again, so that it never learns that there was another "a" in between.
func goneByExpiry(t *testing.T, w *world) {
	version := w.change("a", "0")
	informer := w.informer()
	w.eventuallyHolds(informer, "a=0")
	var updates, deletions atomic.Int32
	_, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		UpdateFunc: func(before, now any) {
			if before.(*corev1.ConfigMap).UID != now.(*corev1.ConfigMap).UID {
				updates.Add(1)
			}
		},
		DeleteFunc: func(any) { deletions.Add(1) },
	})
	require.NoError(t, err)
	gone := w.proxy.Arm(faultproxy.Fault{Action: faultproxy.Gone410, Delay: 2 * time.Second})
	watching := w.watchFrom(version)
	w.change("a", "1")
	w.eventuallyHolds(informer, "a=1")
	w.remove("a")
	w.change("a", "2")
	require.Equal(t, []string{"MODIFIED a=1", "ERROR Expired", "closed"},
		[]string{w.next(watching), w.next(watching), w.next(watching)})
	w.eventuallyHolds(informer, "a=2")
	require.GreaterOrEqual(t, gone.Fired(), 2)
	w.change("b", "1")
	w.eventuallyHolds(informer, "a=2", "b=1")
	w.eventually(func() bool { return updates.Load() == 1 }, "an update from one object to another")
	require.Zero(t, deletions.Load())
}

func twice(t *testing.T, w *world) {
	version := w.change("a", "0")
	w.proxy.Arm(faultproxy.Fault{Action: faultproxy.Duplicate})
	watching, informer := w.watchFrom(version), w.informer()
	w.change("a", "1")
	w.change("b", "1")
	w.remove("a")
	for _, want := range []string{"MODIFIED a=1", "MODIFIED a=1", "ADDED b=1", "ADDED b=1", "DELETED a=1"} {
		require.Equal(t, want, w.next(watching))
	}
	w.eventuallyHolds(informer, "b=1")
}

func lagging(t *testing.T, w *world) {
	version := w.change("a", "0")
	secrets, err := w.client().CoreV1().Secrets(w.space).Watch(t.Context(), metav1.ListOptions{ResourceVersion: version})
	require.NoError(t, err)
	defer secrets.Stop()
	lag := w.proxy.Arm(faultproxy.Fault{Match: faultproxy.Match{Resource: "configmaps"}, Action: faultproxy.Lag,
		Delay: time.Hour})
	watching := w.watchFrom(version)
	w.change("a", "1")
	w.eventually(func() bool { return lag.Fired() == 1 }, "it lags")
	_, err = w.direct.CoreV1().Secrets(w.space).Create(t.Context(),
		&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "s"}}, metav1.CreateOptions{})
	require.NoError(t, err)
	require.Equal(t, "ADDED", w.next(secrets))
	require.Empty(t, watching.ResultChan())
	lag.Disarm()
	require.Equal(t, "MODIFIED a=1", w.next(watching))
}

// past: what a restarted controller sees of an API server that lags, until that has caught up.
func past(t *testing.T, w *world) {
	version := w.change("a", "1")
	w.change("a", "2")
	w.change("b", "1")
	list := w.proxy.Arm(faultproxy.Fault{Match: faultproxy.Match{Resource: "configmaps"}, Action: faultproxy.ListAt,
		ResourceVersion: version})
	freeze := w.proxy.Arm(faultproxy.Fault{Action: faultproxy.Freeze})
	informer := w.informer()
	w.eventuallyHolds(informer, "a=1")
	w.eventually(func() bool { return freeze.Fired() > 0 }, "what came later is held back")
	require.Equal(t, 1, list.Fired())
	newest, err := w.client().CoreV1().ConfigMaps(w.space).List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	require.Len(t, newest.Items, 2, "who asks for the newest gets it")
	list.Disarm()
	freeze.Disarm()
	w.eventuallyHolds(informer, "a=2", "b=1")
}

func onlyMetadata(t *testing.T, w *world) {
	client, err := metadata.NewForConfig(w.config())
	require.NoError(t, err)
	resource := corev1.SchemeGroupVersion.WithResource("configmaps")
	informer := metadatainformer.NewFilteredMetadataInformer(client, resource, w.space, 0, cache.Indexers{},
		nil).Informer()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go informer.RunWithContext(ctx)
	w.change("a", "1")
	w.eventually(func() bool { return len(informer.GetStore().List()) == 1 }, "the object")
	version := w.change("a", "2")
	w.eventually(func() bool {
		object := informer.GetStore().List()[0].(*metav1.PartialObjectMetadata)
		return object.ResourceVersion == version
	}, "its change")
	require.Equal(t, version, w.proxy.ResourceVersion())
}

// closed: a client that goes, and one that is cut off, leave no watch behind.
func closed(t *testing.T, w *world) {
	version := w.change("a", "0")
	watching := w.watchFrom(version)
	w.change("a", "1")
	require.Equal(t, "MODIFIED a=1", w.next(watching))
	require.Equal(t, []string{"configmaps"}, w.proxy.Watches())
	w.proxy.Kill()
	require.Equal(t, "closed", w.next(watching))
	w.proxy.Mend()
	require.EqualValues(t, 1, w.kills.Load())
	w.eventually(func() bool { return len(w.proxy.Watches()) == 0 }, "the watch is over")
	watching = w.watchFrom(version)
	require.Equal(t, "MODIFIED a=1", w.next(watching))
	watching.Stop()
	w.eventually(func() bool { return len(w.proxy.Watches()) == 0 }, "the watch is over")
}
