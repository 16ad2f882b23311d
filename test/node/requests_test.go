package node

import (
	"errors"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/internal/testkit/suite"
)

const (
	replicas = 6
	// clients on each path.
	clients = 16
	// outage is how long a part is away.
	outage = 10 * time.Second
	// enough requests to believe in a zero.
	enough = 100_000
)

// TestNoRequestIsLost does to a CollaSet under load whatever its owner and the cluster's may do, and takes away in the
// midst of it what the traffic is steered by.
func TestNoRequestIsLost(t *testing.T) {
	needsRealNodes(t)
	front := startHAProxy(t)
	w := newWorld(t, 2, suite.Config{Args: map[string][]string{
		suite.ResourceConsist: {"--adapters=endpointslice,haproxy", "--haproxy-runtime=unix:" + front.control.path},
	}})
	kube, err := w.Clients()
	require.NoError(t, err)
	service := webService(true)
	service.Annotations = map[string]string{"haproxy.resourceconsist.kusionstack.io/backend": haproxyBackend}
	w.create(t, service, webRule(2), webSet(true))
	w.waitServing(t, replicas, "1")

	l := startLoad(t, clients, map[string]path{"EndpointSlices": follow(t, kube, namespace, name, replicas),
		"HAProxy": front})
	w.restart(t, l)
	w.operate(t, l)

	w.without(t, l, suite.ResourceConsist+" is killed", "2", outage, func() {
		require.NoError(t, w.Kill(suite.ResourceConsist))
	}, func() {
		require.NoError(t, w.Restart(t.Context(), suite.ResourceConsist))
	})
	w.without(t, l, "HAProxy's control socket is gone", "1", outage, func() { front.control.set(t, shut) },
		func() { front.control.set(t, open) })
	w.without(t, l, "HAProxy refuses every change", "2", refusal(t), func() { front.control.set(t, refusing) },
		func() { front.control.set(t, open) })

	for version := "1"; ; version = map[string]string{"1": "2", "2": "1"}[version] { // until the zero means something
		if requests, _ := l.sums(); requests >= enough {
			break
		}
		l.phase("update in place, again")
		w.update(t, appsv1alpha1.PodUpdateInPlaceOnly, version, 0)
		w.waitServing(t, replicas, version)
	}
	l.phase("after")
	l.end()

	requests, failed := l.sums()
	t.Logf("%d requests, %d failed\n%s", requests, failed, l.table())
	require.Zero(t, failed, "lost requests")
}

// without updates all Pods in place to a version, takes something away in the midst of it for so long, and brings it
// back.
func (w *world) without(t *testing.T, l *load, what, version string, d time.Duration, takeAway, bringBack func()) {
	t.Helper()
	l.phase(what)
	w.update(t, appsv1alpha1.PodUpdateInPlaceOnly, version, 0)
	w.waitUnderWay(t)
	takeAway()
	w.stuck(t, d, version)
	bringBack()
	w.waitServing(t, replicas, version)
}

// refusal is how long HAProxy refuses, two minutes unless KUPERATOR_NODE_REFUSAL says otherwise.
func refusal(t *testing.T) time.Duration {
	given := os.Getenv("KUPERATOR_NODE_REFUSAL")
	if given == "" {
		return 2 * time.Minute
	}
	d, err := time.ParseDuration(given)
	require.NoError(t, err, "KUPERATOR_NODE_REFUSAL")
	return d
}

// TestWithoutTheLifecycleRequestsAreLost is the control: it does the same to the same servers, operated on directly.
func TestWithoutTheLifecycleRequestsAreLost(t *testing.T) {
	needsRealNodes(t)
	w := newWorld(t, 2, suite.Config{
		Components: []string{suite.CollaSet}, Args: map[string][]string{suite.CollaSet: {"--pod-ops-lifecycle=false"}},
	})
	for _, kind := range []string{"mutatingwebhookconfiguration", "validatingwebhookconfiguration"} {
		_, err := w.Kubectl(t.Context(), "delete", kind, suite.Webhook)
		require.NoError(t, err)
	}
	kube, err := w.Clients()
	require.NoError(t, err)
	w.create(t, webService(false), webSet(false))
	w.waitServing(t, replicas, "1")
	l := startLoad(t, clients, map[string]path{"EndpointSlices": follow(t, kube, namespace, name, replicas)})
	w.operate(t, l)
	l.phase("after")
	l.end()

	requests, failed := l.sums()
	t.Logf("%d requests, %d failed\n%s", requests, failed, l.table())
	for _, phase := range l.phases {
		_, failed := phase.sums()
		switch phase.name {
		case "before", "scale out", "after":
			require.Zero(t, failed, "%s: nobody takes a Pod away, so what fails is the test's own machinery", phase.name)
		case "update in place", "recreate":
			require.Positive(t, failed, "%s: if nothing is lost here, then a zero elsewhere proves nothing", phase.name)
		}
	}
}

// operate does one operation after the other, each to its end, with Pods of version 1 before and after.
func (w *world) operate(t *testing.T, l *load) {
	t.Helper()
	l.phase("update in place")
	w.update(t, appsv1alpha1.PodUpdateInPlaceOnly, "2", 0)
	w.waitServing(t, replicas, "2")

	l.phase("recreate")
	w.update(t, appsv1alpha1.PodUpdateRecreate, "3", 0)
	w.waitServing(t, replicas, "3")

	l.phase("replace")
	w.update(t, appsv1alpha1.PodUpdateReplace, "1", 0)
	w.waitServing(t, replicas, "1")

	l.phase("scale in by half")
	w.update(t, "", "", replicas/2)
	w.waitServing(t, replicas/2, "1")

	l.phase("scale out")
	w.update(t, "", "", replicas)
	pods := w.waitServing(t, replicas, "1")

	l.phase("kubectl delete pod")
	for i := range 2 {
		_, err := w.Kubectl(t.Context(), "-n", namespace, "delete", "pod", pods[i].Name, "--wait=false")
		t.Logf("kubectl delete pod: %v", err)
		w.waitGone(t, &pods[i])
	}
	pods = w.waitServing(t, replicas, "1")

	l.phase("node drain")
	node := pods[0].Spec.NodeName
	begin := time.Now()
	out, err := w.Kubectl(t.Context(), "drain", node, "--ignore-daemonsets", "--timeout="+patience.String())
	require.NoError(t, err, out)
	t.Logf("the drain of %s took %s", node, time.Since(begin).Round(100*time.Millisecond))
	pods = w.waitServing(t, replicas, "1")
	require.False(t, slices.ContainsFunc(pods, func(p corev1.Pod) bool { return p.Spec.NodeName == node }),
		"Pods on the drained node")
	_, err = w.Kubectl(t.Context(), "uncordon", node)
	require.NoError(t, err)

	l.phase("rollback")
	w.update(t, appsv1alpha1.PodUpdateInPlaceOnly, "2", 0)
	eventually(t.Context(), t, "a rollout that runs", func() error {
		pods, err := w.pods(t.Context())
		if err != nil || slices.ContainsFunc(pods,
			func(p corev1.Pod) bool { return p.Spec.Containers[0].Image == images["2"] }) {
			return err
		}
		return errors.New("no Pod has the new image")
	})
	w.update(t, "", "1", 0)
	w.waitServing(t, replicas, "1")
}
