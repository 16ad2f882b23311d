// Package shard_test has replicas divide shards among them by the Leases of a real API server.
package shard_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"path"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	"kusionstack.io/kuperator/internal/shard"
	"kusionstack.io/kuperator/internal/testkit/await"
	"kusionstack.io/kuperator/internal/testkit/faultproxy"
	"kusionstack.io/kuperator/internal/testkit/localkube"
	"kusionstack.io/kuperator/internal/testkit/testcluster"
)

const (
	component = "collaset-controller"
	namespace = "kuperator-system"
	shards    = 12
	// A Lease is renewed each second, and lost within eight of the last time.
	retryPeriod, renewDeadline, leaseDuration = time.Second, 7 * time.Second, 9 * time.Second
)

// world has the replicas of a component.
type world struct {
	*testing.T
	cluster  *localkube.Cluster
	client   *kubernetes.Clientset
	replicas []*replica
}

// replica is one Coordinator, with its own way to the API server.
type replica struct {
	identity string
	proxy    *faultproxy.Proxy
	way      *slowWay
	stop     context.CancelFunc
	ended    chan struct{}
	err      error // why it ended
}

// slowWay has writes of the component's Lease arrive later.
type slowWay struct {
	next  http.RoundTripper
	delay atomic.Int64 // a time.Duration
	// succeeded is how many had a delay and succeeded.
	succeeded atomic.Int64
}

func (s *slowWay) RoundTrip(r *http.Request) (*http.Response, error) {
	delay := time.Duration(s.delay.Load())
	if delay == 0 || r.Method == http.MethodGet || path.Base(r.URL.Path) != component {
		return s.next.RoundTrip(r)
	}
	select {
	case <-time.After(delay):
	case <-r.Context().Done():
		return nil, r.Context().Err()
	}
	response, err := s.next.RoundTrip(r)
	if err == nil && response.StatusCode == http.StatusOK {
		s.succeeded.Add(1)
	}
	return response, err
}

func newWorld(t *testing.T) *world {
	t.Helper()
	if testing.Short() {
		t.Skip("starts an API server")
	}
	w := &world{T: t, cluster: testcluster.Start(t, localkube.Config{})}
	config := w.cluster.RESTConfig()
	config.QPS = -1
	var err error
	w.client, err = kubernetes.NewForConfig(config)
	require.NoError(t, err)
	_, err = w.client.CoreV1().Namespaces().Create(t.Context(),
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, metav1.CreateOptions{})
	require.NoError(t, err)
	return w
}

// start starts a replica, which is asked to end with the test.
func (w *world) start(identity string) *replica {
	w.Helper()
	proxy, err := faultproxy.Start(w.cluster.RESTConfig(), faultproxy.Options{Name: identity})
	require.NoError(w, err)
	w.Cleanup(func() { _ = proxy.Close() })
	watching, err := kubernetes.NewForConfig(proxy.Config())
	require.NoError(w, err)
	asking := rest.CopyConfig(proxy.Config())
	asking.Timeout = renewDeadline / 2
	way := &slowWay{}
	asking.Wrap(func(next http.RoundTripper) http.RoundTripper { way.next = next; return way })
	client, err := kubernetes.NewForConfig(asking)
	require.NoError(w, err)
	ready := make(chan struct{})
	close(ready)
	coordinator := shard.New(shard.Options{
		Component: component, Shards: shards, Namespace: namespace, Identity: identity,
		Client: client.CoordinationV1(), Watcher: watching.CoordinationV1(),
		LeaseDuration: leaseDuration, RenewDeadline: renewDeadline, RetryPeriod: retryPeriod, Ready: ready,
		Run:    func(ctx context.Context, _ int, _ *shard.LeaseFence) error { <-ctx.Done(); return nil },
		Logger: logr.Discard(), Clock: clock.RealClock{},
	})
	ctx, stop := context.WithCancel(w.Context())
	r := &replica{identity: identity, proxy: proxy, way: way, stop: stop, ended: make(chan struct{})}
	go func() {
		defer close(r.ended)
		r.err = coordinator.Start(ctx)
	}()
	w.Cleanup(func() { stop(); <-r.ended })
	w.replicas = append(w.replicas, r)
	return r
}

// runs returns an error if the replica has ended by itself.
func (r *replica) runs() error {
	select {
	case <-r.ended:
		return fmt.Errorf("%s has ended: %w", r.identity, r.err)
	default:
		return nil
	}
}

func (w *world) allRun() error {
	var errs []error
	for _, r := range w.replicas {
		errs = append(errs, r.runs())
	}
	return errors.Join(errs...)
}

// announced are who announces itself on the component's Lease.
func (w *world) announced() ([]string, error) {
	lease, err := w.client.CoordinationV1().Leases(namespace).Get(w.Context(), component, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	var all []string
	for _, value := range lease.Annotations {
		identity, _, _ := strings.Cut(value, " ")
		all = append(all, identity)
	}
	return all, nil
}

// waitSpread waits until these hold as many shards each and no other member is announced.
func (w *world) waitSpread(replicas ...*replica) {
	w.Helper()
	want := map[string]int{}
	for _, r := range replicas {
		want[r.identity] = shards / len(replicas)
	}
	await.Nil(w, fmt.Sprintf("%v", want), func() error {
		held := map[string]int{}
		for i := range shards {
			lease, err := w.client.CoordinationV1().Leases(namespace).Get(w.Context(), shard.LeaseName(component, i),
				metav1.GetOptions{})
			if err != nil {
				return err
			}
			held[ptr.Deref(lease.Spec.HolderIdentity, "")]++
		}
		announced, err := w.announced()
		if err != nil {
			return err
		}
		for identity := range held {
			if held[identity] != want[identity] || len(held) != len(want) || len(announced) != len(want) {
				return fmt.Errorf("%v hold %v", announced, held)
			}
		}
		return nil
	})
}

// TestReplicasDoNotKeepEachOtherFromRenewing the Lease that they hold together, though each write takes longer than
// they wait between two.
func TestReplicasDoNotKeepEachOtherFromRenewing(t *testing.T) {
	w := newWorld(t)
	for i := range 6 {
		w.start(fmt.Sprintf("replica-%d", i))
	}
	w.waitSpread(w.replicas...)
	for _, r := range w.replicas {
		r.way.delay.Store(int64(retryPeriod * 5 / 4))
	}
	await.Always(t, 2*leaseDuration, "replicas that renew slowly", w.allRun)
	for _, r := range w.replicas {
		require.GreaterOrEqual(t, r.way.succeeded.Load(), int64(2), "renewals of %s", r.identity)
		r.way.delay.Store(0)
	}
	w.waitSpread(w.replicas...)
}

// TestMembers come, die and leave. A user takes the annotations away meanwhile.
func TestMembers(t *testing.T) {
	w := newWorld(t)
	a, b := w.start("a"), w.start("b")
	w.waitSpread(a, b)
	c := w.start("c")
	w.waitSpread(a, b, c)

	_, err := w.client.CoordinationV1().Leases(namespace).Patch(t.Context(), component, types.MergePatchType,
		[]byte(`{"metadata":{"annotations":null}}`), metav1.PatchOptions{})
	require.NoError(t, err)
	await.Nil(t, "three members", func() error {
		if all, err := w.announced(); err != nil || len(all) != 3 {
			return fmt.Errorf("%v, %w", all, err)
		}
		return nil
	})
	w.waitSpread(a, b, c)
	require.NoError(t, w.allRun())

	b.proxy.Cut() // as if it had died
	w.waitSpread(a, c)
	<-b.ended
	require.ErrorContains(t, b.err, "lost the Lease")

	c.stop()
	<-c.ended
	require.NoError(t, c.err)
	all, err := w.announced()
	require.NoError(t, err)
	require.Equal(t, []string{"a"}, all, "who leaves says so")
	w.waitSpread(a)
	require.NoError(t, a.runs())
}
