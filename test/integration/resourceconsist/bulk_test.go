package resourceconsist_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"kusionstack.io/kuperator/api/podops"
	api "kusionstack.io/kuperator/api/resourceconsist"
	"kusionstack.io/kuperator/api/resourceconsist/conformance/simulated"
	"kusionstack.io/kuperator/internal/resourceconsist/backend"
	"kusionstack.io/kuperator/internal/resourceconsist/bulk"
)

// pool is a bulk backend on a load balancer in memory. A member is a Pod's address.
type pool struct{ lb *simulated.LoadBalancer }

const poolOwner = "kuperator"

func poolOf(s client.Object) string { return s.GetNamespace() + "/" + s.GetName() }

func (p pool) Name() string                               { return "pool" }
func (p pool) Selector(s *corev1.Service) labels.Selector { return api.ServiceSelector(s) }

func (p pool) Members(_ *corev1.Service, pod *corev1.Pod, serve bool) (map[string]int32, error) {
	if !serve || pod.Status.PodIP == "" {
		return nil, nil
	}
	return map[string]int32{pod.Status.PodIP: 10}, nil
}

func (p pool) Read(ctx context.Context, s *corev1.Service, ids []string) ([]api.Held[int32], error) {
	members, err := p.lb.List(ctx, poolOf(s), ids...)
	var held []api.Held[int32]
	for _, m := range members {
		if m.Owner == poolOwner {
			held = append(held, api.Held[int32]{ID: m.ID, State: m.Weight, Serving: m.Weight > 0})
		}
	}
	return held, err
}

func (p pool) Apply(ctx context.Context, s *corev1.Service, changes []api.Change[int32]) error {
	var puts []simulated.Member
	var removes []string
	for _, c := range changes {
		if c.Remove {
			removes = append(removes, c.ID)
		} else {
			puts = append(puts, simulated.Member{ID: c.ID, Address: c.ID, Weight: c.State, Owner: poolOwner})
		}
	}
	failed := api.MemberErrors{}
	collect := func(refused map[string]error, err error) error {
		for id, why := range refused {
			failed[id] = why
		}
		return err
	}
	var errs []error
	if len(puts) > 0 {
		errs = append(errs, collect(p.lb.Put(ctx, poolOf(s), puts...)))
	}
	if len(removes) > 0 {
		errs = append(errs, collect(p.lb.Remove(ctx, poolOf(s), removes...)))
	}
	if err := errors.Join(errs...); err != nil || len(failed) == 0 {
		return err
	}
	return failed
}

func (p pool) adapter() backend.Backend {
	return bulk.New(p, api.CallOptions{Poll: 50 * time.Millisecond, MaxPoll: 500 * time.Millisecond,
		MaxBackoff: time.Second, QPS: 50}, nil)
}

// poolShop is a shop whose Services are in a pool.
type poolShop struct {
	shop
	lb *simulated.LoadBalancer
}

// sends reports whether the Service's pool sends requests to the Pod.
func (p poolShop) sends(service, address string) bool {
	return p.lb.Serves(p.namespace+"/"+service, address)
}

func (p poolShop) address(t *testing.T, pod string) string {
	t.Helper()
	ip := p.pod(t, pod).Status.PodIP
	require.NotEmpty(t, ip)
	return ip
}

func (p poolShop) begin(t *testing.T, pod string) {
	t.Helper()
	p.write(t, pod, func(v podops.View) podops.Change {
		c, err := podops.Begin(v, podops.Request{ID: "test", Type: podops.TypeUpdate}, time.Now())
		require.NoError(t, err)
		return c
	})
}

func (p poolShop) allowed(t *testing.T, pod string) bool {
	t.Helper()
	return podops.Allowed(podops.Read(p.pod(t, pod)), "test", podops.TypeUpdate)
}

func (p poolShop) finish(t *testing.T, pod string) {
	t.Helper()
	p.write(t, pod, func(v podops.View) podops.Change { return podops.Finish(v, "test", podops.TypeUpdate, time.Now()) })
}

func (p poolShop) createPods(t *testing.T, n int) (names []string) {
	t.Helper()
	for i := range n {
		names = append(names, fmt.Sprintf("web-%d", i))
		p.createPod(t, names[i])
	}
	return names
}

func TestBulk(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a control plane")
	}
	w := start(t)
	lb := simulated.NewLoadBalancer()
	lb.Delay(20 * time.Millisecond)
	startManager(t, w.config, pool{lb}.adapter())
	for name, story := range map[string]func(*testing.T, poolShop){
		"many Pods go out and in, with two writes each":       outAndIn,
		"a throttled provider costs calls and nothing else":   throttled,
		"a member that fails holds its Pod and no other":      oneFails,
		"a Pod that is deleted leaves, and so does a Service": deletedInBulk,
	} {
		t.Run(name, func(t *testing.T) { story(t, poolShop{w.shop(t), lb}) })
	}
}

func outAndIn(t *testing.T, p poolShop) {
	service := p.createService(t, "web")
	foreign := simulated.Member{ID: "192.0.2.1", Address: "192.0.2.1", Weight: 3, Owner: "another owner"}
	p.lb.Set(poolOf(service), foreign)
	const pods, operated = 12, 6
	names := p.createPods(t, pods)
	born := map[string]int{}
	for _, name := range names {
		p.serving(t, name, "web")
		require.True(t, p.sends("web", p.address(t, name)), "%s counts as serving without traffic", name)
		born[name], _ = p.writes(t, name)
		require.LessOrEqual(t, born[name], 2, "a Pod's birth costs two writes at most")
	}
	calls := p.lb.Calls()
	for _, name := range names[:operated] {
		p.begin(t, name)
	}
	for _, name := range names[:operated] {
		p.eventually(t, "the operation is allowed", func() bool { return p.allowed(t, name) })
		require.False(t, p.sends("web", p.address(t, name)), "%s may be operated while it has traffic", name)
	}
	for _, name := range names[:operated] {
		p.finish(t, name)
	}
	for _, name := range names[:operated] {
		p.serving(t, name, "web")
		require.True(t, p.sends("web", p.address(t, name)))
		done, refused := p.writes(t, name)
		t.Logf("operation of %s: %d writes, %d refused", name, done-born[name], refused)
		require.Equal(t, 2, done-born[name], "an operation costs two writes")
	}
	t.Logf("%d operations: %d calls of the provider", operated, p.lb.Calls()-calls)
	for _, name := range names[operated:] {
		done, _ := p.writes(t, name)
		require.Equal(t, born[name], done, "a Pod at rest was written")
	}
	require.True(t, p.lb.Has(poolOf(service), foreign), "a member of another owner was touched")
}

func throttled(t *testing.T, p poolShop) {
	p.createService(t, "web")
	names := p.createPods(t, 3)
	for _, name := range names {
		p.serving(t, name, "web")
	}
	p.lb.Throttle(true)
	defer p.lb.Throttle(false)
	for _, name := range names {
		p.begin(t, name)
	}
	for _, name := range names {
		p.eventually(t, "the operation is allowed", func() bool { return p.allowed(t, name) })
		require.False(t, p.sends("web", p.address(t, name)), "%s may be operated while it has traffic", name)
		p.finish(t, name)
	}
	for _, name := range names {
		p.serving(t, name, "web")
		require.True(t, p.sends("web", p.address(t, name)))
	}
}

func oneFails(t *testing.T, p poolShop) {
	p.createService(t, "web")
	names := p.createPods(t, 3)
	for _, name := range names {
		p.serving(t, name, "web")
	}
	p.lb.FailFor(p.address(t, names[0]))
	defer p.lb.FailFor()
	for _, name := range names {
		p.begin(t, name)
	}
	for _, name := range names[1:] {
		p.eventually(t, "the operation of the others is allowed", func() bool { return p.allowed(t, name) })
	}
	require.False(t, p.allowed(t, names[0]))
	require.True(t, p.sends("web", p.address(t, names[0])))
	p.lb.FailFor()
	p.eventually(t, "the operation is allowed", func() bool { return p.allowed(t, names[0]) })
	for _, name := range names {
		require.False(t, p.sends("web", p.address(t, name)))
		p.finish(t, name)
		p.serving(t, name, "web")
	}
}

func deletedInBulk(t *testing.T, p poolShop) {
	service := p.createService(t, "web")
	names := p.createPods(t, 2)
	addresses := map[string]string{}
	for _, name := range names {
		p.serving(t, name, "web")
		addresses[name] = p.address(t, name)
	}
	require.NoError(t, p.clientset.CoreV1().Pods(p.namespace).Delete(t.Context(), names[0],
		metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)}))
	p.eventually(t, "the Pod is gone", func() bool { return p.pod(t, names[0]) == nil })
	require.False(t, p.sends("web", addresses[names[0]]), "the Pod went while it had traffic")
	require.NoError(t, p.client.Delete(t.Context(), service))
	p.serving(t, names[1])
	require.False(t, p.sends("web", addresses[names[1]]), "the Pod was released while it had traffic")
	p.eventually(t, "the Service is gone", func() bool {
		return client.IgnoreNotFound(p.client.Get(t.Context(), client.ObjectKeyFromObject(service), service)) == nil &&
			p.client.Get(t.Context(), client.ObjectKeyFromObject(service), service) != nil
	})
}

// TestBulkGoesOnAfterARestart: what was under way is finished, what happened meanwhile is made good, and members of
// Pods that are gone are removed.
func TestBulkGoesOnAfterARestart(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a control plane")
	}
	w := start(t)
	lb := simulated.NewLoadBalancer()
	lb.Delay(20 * time.Millisecond)
	stop := startManager(t, w.config, pool{lb}.adapter())
	p := poolShop{w.shop(t), lb}
	service := p.createService(t, "web")
	names := p.createPods(t, 4)
	addresses := map[string]string{}
	for _, name := range names {
		p.serving(t, name, "web")
		addresses[name] = p.address(t, name)
	}
	lb.Fail(true)
	p.begin(t, names[0])
	p.eventually(t, "the operation waits for the provider", func() bool {
		waits := podops.Explain(podops.Read(p.pod(t, names[0])), nil)
		return len(waits) == 1 && waits[0].Reason == podops.WaitFinalizer
	})
	stop()
	lb.Fail(false)
	p.begin(t, names[1])
	orphan := simulated.Member{ID: "192.0.2.9", Address: "192.0.2.9", Weight: 10, Owner: poolOwner}
	foreign := simulated.Member{ID: "192.0.2.1", Address: "192.0.2.1", Weight: 3, Owner: "another owner"}
	lb.Set(poolOf(service), orphan)
	lb.Set(poolOf(service), foreign)

	startManager(t, w.config, pool{lb}.adapter())
	for _, name := range names[:2] {
		p.eventually(t, "the operation is allowed", func() bool { return p.allowed(t, name) })
		require.False(t, p.sends("web", addresses[name]), "%s may be operated while it has traffic", name)
		p.finish(t, name)
		p.serving(t, name, "web")
	}
	p.eventually(t, "the member of a Pod that is gone is removed", func() bool { return !p.sends("web", orphan.Address) })
	for _, name := range names {
		require.True(t, p.sends("web", addresses[name]))
	}
	require.True(t, lb.Has(poolOf(service), foreign), "a member of another owner was touched")
}
