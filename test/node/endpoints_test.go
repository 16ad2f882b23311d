package node

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"
)

// endpoints sends requests to the Pods that a Service's EndpointSlices name as ready, in turn, as kube-proxy (new
// connections) and ingress controllers (connections that are kept) do. A Pod that is dropped gets no more of them.
type endpoints struct {
	mu    sync.Mutex
	lists map[string][]string // addresses by EndpointSlice

	ready atomic.Pointer[[]string]
	turn  atomic.Uint64
	pools sync.Map // of kept connections, by address
}

// follow follows the EndpointSlices of a Service until the test ends. It returns when they name n ready Pods.
func follow(t *testing.T, client kubernetes.Interface, namespace, service string, n int) *endpoints {
	t.Helper()
	e := &endpoints{lists: map[string][]string{}}
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	t.Cleanup(stop)
	factory := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithNamespace(namespace),
		informers.WithTweakListOptions(func(o *metav1.ListOptions) {
			o.LabelSelector = discoveryv1.LabelServiceName + "=" +
				service
		}))
	informer := factory.Discovery().V1().EndpointSlices().Informer()
	saw := func(object any, gone bool) {
		if slice, ok := object.(*discoveryv1.EndpointSlice); ok {
			e.put(slice, gone)
		}
	}
	if _, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { saw(o, false) },
		UpdateFunc: func(_, o any) { saw(o, false) },
		DeleteFunc: func(o any) { saw(o, true) },
	}); err != nil {
		t.Fatal(err)
	}
	factory.Start(ctx.Done())
	eventually(t.Context(), t, fmt.Sprintf("%d endpoints of %s", n, service), func() error {
		if ready := e.ready.Load(); ready == nil || len(*ready) != n {
			return errors.New("there are more or fewer")
		}
		return nil
	})
	return e
}

func (e *endpoints) put(slice *discoveryv1.EndpointSlice, gone bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.lists, slice.Name)
	if !gone {
		for i := range slice.Endpoints {
			if endpoint := &slice.Endpoints[i]; ptr.Deref(endpoint.Conditions.Ready, true) {
				for _, address := range endpoint.Addresses {
					e.lists[slice.Name] = append(e.lists[slice.Name], fmt.Sprintf("http://%s:%d", address, *slice.Ports[0].Port))
				}
			}
		}
	}
	ready := slices.Sorted(maps.Keys(e.all()))
	e.ready.Store(&ready)
	e.pools.Range(func(address, pool any) bool {
		if !slices.Contains(ready, address.(string)) {
			e.pools.Delete(address)
			pool.(*http.Transport).CloseIdleConnections()
		}
		return true
	})
}

func (e *endpoints) all() map[string]bool {
	all := map[string]bool{}
	for _, list := range e.lists {
		for _, address := range list {
			all[address] = true
		}
	}
	return all
}

// next is the Pod whose turn it is.
func (e *endpoints) next() (string, error) {
	ready := e.ready.Load()
	if ready == nil || len(*ready) == 0 {
		return "", errors.New("no endpoints")
	}
	return (*ready)[e.turn.Add(1)%uint64(len(*ready))], nil
}

// client is part of path.
func (e *endpoints) client(keepAlive bool) (func(string) http.RoundTripper, func() (string, error)) {
	fresh := &http.Transport{DisableKeepAlives: true}
	return func(address string) http.RoundTripper {
		if !keepAlive {
			return fresh
		}
		pool, _ := e.pools.LoadOrStore(address, &http.Transport{MaxIdleConnsPerHost: 100})
		return pool.(*http.Transport)
	}, e.next
}
