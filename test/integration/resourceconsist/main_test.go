// Package resourceconsist_test runs the resourceconsist controllers against a real control plane with simulated nodes.
// The test itself plays lifecycle-controller and the operator.
package resourceconsist_test

import (
	"bufio"
	"context"
	"encoding/json"
	"maps"
	"os"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
	api "kusionstack.io/kuperator/api/resourceconsist"
	"kusionstack.io/kuperator/internal/resourceconsist"
	"kusionstack.io/kuperator/internal/resourceconsist/backend"
	"kusionstack.io/kuperator/internal/resourceconsist/builtin"
	"kusionstack.io/kuperator/internal/resourceconsist/endpointslice"
	"kusionstack.io/kuperator/internal/testkit/localkube"
	"kusionstack.io/kuperator/internal/testkit/testcluster"
)

const (
	component = "resourceconsist-controller"
	patience  = 3 * time.Minute // for what takes milliseconds, on a busy machine
	poll      = 25 * time.Millisecond
	drainTime = 300 * time.Millisecond
)

// world is a cluster to run the controllers in.
type world struct {
	cluster   *localkube.Cluster
	client    client.Client
	clientset *kubernetes.Clientset
	// config is the controllers' own.
	config *rest.Config
}

// start starts a control plane; change may ask for another one.
func start(t *testing.T, change ...func(*localkube.Config)) *world {
	t.Helper()
	config := localkube.Config{WithControllerManager: true, WithNodes: true, Audit: true}
	for _, c := range change {
		c(&config)
	}
	cluster := testcluster.Start(t, config)
	clientset, err := kubernetes.NewForConfig(cluster.RESTConfig())
	require.NoError(t, err)
	admin, err := client.New(cluster.RESTConfig(), client.Options{})
	require.NoError(t, err)
	w := &world{cluster: cluster, client: admin, clientset: clientset}
	w.config = w.restricted(t)
	return w
}

// restricted gives the controllers the rights that their markers ask for and no more.
func (w *world) restricted(t *testing.T) *rest.Config {
	t.Helper()
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: component}, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"pods", "services"}, Verbs: []string{"get", "list", "watch", "patch"}},
		{APIGroups: []string{""}, Resources: []string{"services/status"}, Verbs: []string{"patch"}},
		{APIGroups: []string{"discovery.k8s.io"}, Resources: []string{"endpointslices"},
			Verbs: []string{"get", "list", "watch"}},
		{APIGroups: []string{"events.k8s.io"}, Resources: []string{"events"}, Verbs: []string{"create", "patch"}},
	}}
	require.NoError(t, w.client.Create(t.Context(), role))
	require.NoError(t, w.client.Create(t.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: component},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: component},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: component}},
	}))
	cfg := rest.CopyConfig(w.cluster.RESTConfig())
	cfg.Impersonate = rest.ImpersonationConfig{UserName: component}
	cfg.UserAgent = component + "/test"
	cfg.QPS = -1
	return cfg
}

// startManager starts the controllers with these adapters, or else with that for EndpointSlices; stop ends them before
// the test does.
func startManager(t *testing.T, cfg *rest.Config, adapters ...backend.Backend) (stop func()) {
	t.Helper()
	if len(adapters) == 0 {
		adapters = append(adapters, endpointslice.New(nil))
	}
	skip := true
	mgr, err := ctrl.NewManager(cfg, ctrl.Options{
		Cache:      builtin.CacheOptions(),
		Metrics:    metricsserver.Options{BindAddress: "0"},
		Controller: config.Controller{SkipNameValidation: &skip, MaxConcurrentReconciles: 4},
	})
	require.NoError(t, err)
	require.NoError(t, resourceconsist.AddToManagerOnDemand(mgr, &corev1.Service{},
		api.Options{DrainTime: drainTime, MaxBackoff: time.Second}, adapters...))
	stop = run(t, func(ctx context.Context) {
		if err := mgr.Start(ctx); err != nil {
			t.Errorf("the manager ended: %v", err)
		}
	})
	require.True(t, mgr.GetCache().WaitForCacheSync(t.Context()))
	return stop
}

// run runs f until stop is called or the test ends, and waits for it.
func run(t *testing.T, f func(ctx context.Context)) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var group sync.WaitGroup
	group.Go(func() { f(ctx) })
	stop = func() { cancel(); group.Wait() }
	t.Cleanup(stop)
	return stop
}

// now is a version between what has happened and what has not.
func (s shop) now(t *testing.T) int {
	t.Helper()
	patched, err := s.clientset.CoreV1().Namespaces().Patch(t.Context(), s.namespace, types.MergePatchType,
		[]byte(`{"metadata":{"annotations":{"test.example.com/now":"`+strconv.FormatInt(time.Now().UnixNano(), 10)+`"}}}`),
		metav1.PatchOptions{})
	require.NoError(t, err)
	version, err := strconv.Atoi(patched.ResourceVersion)
	require.NoError(t, err)
	return version
}

// shop is one namespace with lifecycle-controller's part played in it.
type shop struct {
	*world
	namespace string
}

func (w *world) shop(t *testing.T) shop {
	t.Helper()
	s := shop{world: w, namespace: testcluster.Namespace(t, w.cluster, nil)}
	run(t, s.playLifecycle)
	return s
}

// playLifecycle advances every Pod as lifecycle-controller does where there are no rules.
func (s shop) playLifecycle(ctx context.Context) {
	tick := time.NewTicker(poll)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		pods, err := s.clientset.CoreV1().Pods(s.namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			continue
		}
		for i := range pods.Items {
			view := podops.Read(&pods.Items[i])
			yes := podops.Verdicts{}
			for _, o := range podops.Operations(view) {
				yes[podops.Ask{ID: o.ID, Stage: appsv1alpha1.StagePreCheck}] = true
				yes[podops.Ask{ID: o.ID, Stage: appsv1alpha1.StagePostCheck}] = true
			}
			step := podops.Advance(view, yes, time.Now())
			if !view.Gate || step.IsZero() {
				continue
			}
			// A conflict is made good by the next round.
			_, _ = s.clientset.CoreV1().Pods(s.namespace).Patch(ctx, view.Name, types.StrategicMergePatchType,
				step.StatusPatch(view, metav1.Now()), metav1.PatchOptions{}, "status")
		}
	}
}

func (s shop) createService(t *testing.T, name string, change ...func(*corev1.Service)) *corev1.Service {
	t.Helper()
	service := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: name,
			Labels: map[string]string{appsv1alpha1.ControlLabel: "true"}},
		Spec: corev1.ServiceSpec{Selector: map[string]string{"app": "web"}, Ports: []corev1.ServicePort{{Port: 80}}},
	}
	for _, c := range change {
		c(service)
	}
	require.NoError(t, s.client.Create(t.Context(), service))
	return service
}

func (s shop) createPod(t *testing.T, name string, change ...func(*corev1.Pod)) {
	t.Helper()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: name, Labels: map[string]string{
			"app": "web", appsv1alpha1.ControlLabel: appsv1alpha1.ControlValue, podops.CreatingLabel: "true",
		}},
		Spec: corev1.PodSpec{
			NodeName:       "node-0",
			Containers:     []corev1.Container{{Name: "main", Image: "nginx:1"}},
			ReadinessGates: []corev1.PodReadinessGate{{ConditionType: podops.ServiceReadyCondition}},
		},
	}
	for _, c := range change {
		c(pod)
	}
	require.NoError(t, s.client.Create(t.Context(), pod))
}

// pod is the live Pod, nil if there is none.
func (s shop) pod(t require.TestingT, name string) *corev1.Pod {
	pod := &corev1.Pod{}
	err := s.client.Get(context.Background(), client.ObjectKey{Namespace: s.namespace, Name: name}, pod)
	if apierrors.IsNotFound(err) {
		return nil
	}
	require.NoError(t, err)
	return pod
}

func (s shop) patchPod(t *testing.T, name, patch string) {
	t.Helper()
	_, err := s.clientset.CoreV1().Pods(s.namespace).Patch(t.Context(), name, types.MergePatchType, []byte(patch),
		metav1.PatchOptions{})
	require.NoError(t, err)
}

func (s shop) patchService(t *testing.T, name, patch string) {
	t.Helper()
	_, err := s.clientset.CoreV1().Services(s.namespace).Patch(t.Context(), name, types.MergePatchType, []byte(patch),
		metav1.PatchOptions{})
	require.NoError(t, err)
}

// write writes a Change that is decided on the live Pod, again when another writer was quicker.
func (s shop) write(t *testing.T, name string, decide func(podops.View) podops.Change) {
	t.Helper()
	require.Eventually(t, func() bool {
		view := podops.Read(s.pod(t, name))
		_, err := s.clientset.CoreV1().Pods(s.namespace).Patch(t.Context(), name, types.MergePatchType,
			decide(view).MergePatch(view), metav1.PatchOptions{})
		return err == nil
	}, patience, poll)
}

// begin asks for an operation of the Pod; finish ends it.
func (s shop) begin(t *testing.T, name string) {
	t.Helper()
	s.write(t, name, func(v podops.View) podops.Change {
		c, err := podops.Begin(v, podops.Request{ID: "test", Type: podops.TypeUpdate}, time.Now())
		require.NoError(t, err)
		return c
	})
}

func (s shop) finish(t *testing.T, name string) {
	t.Helper()
	s.write(t, name, func(v podops.View) podops.Change { return podops.Finish(v, "test", podops.TypeUpdate, time.Now()) })
}

// allowed waits until the operation may be carried out, which takes the Pod out of everything.
func (s shop) allowed(t *testing.T, name string) {
	t.Helper()
	s.eventually(t, "the operation of Pod "+name+" is allowed", func() bool {
		return podops.Allowed(podops.Read(s.pod(t, name)), "test", podops.TypeUpdate)
	})
	require.Empty(t, podops.ProtectionFinalizers(s.pod(t, name).Finalizers))
}

func (s shop) eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	require.Eventually(t, holds, patience, poll, what)
}

// serving waits until the Pod is available with exactly these Services.
func (s shop) serving(t *testing.T, name string, services ...string) {
	t.Helper()
	s.eventually(t, "Pod "+name+" serves", func() bool {
		pod := s.pod(t, name)
		return pod != nil && podops.Read(pod).ServiceAvailable() && s.bound(t, pod, services...)
	})
}

// bound reports whether the Pod names exactly these Services and has exactly their finalizers.
func (s shop) bound(t *testing.T, pod *corev1.Pod, services ...string) bool {
	t.Helper()
	expected, err := podops.ExpectedFinalizers(pod.Annotations)
	require.NoError(t, err)
	if len(expected) != len(services) || len(podops.ProtectionFinalizers(pod.Finalizers)) != len(services) {
		return false
	}
	for _, service := range services {
		if expected["Service/"+s.namespace+"/"+service] != api.Finalizer(service) ||
			!slices.Contains(pod.Finalizers, api.Finalizer(service)) {
			return false
		}
	}
	return true
}

// costs waits until the controllers have made so many writes to the Pod that the API server received since a moment,
// and demands that there are no more. What a write did is seen before its line is in the log, so that two counts of all
// writes do not tell what was written between them.
func (s shop) costs(t *testing.T, pod string, since time.Time, want int, why string) {
	t.Helper()
	s.eventually(t, why, func() bool { done, _ := s.writes(t, pod, since); return done >= want })
	done, refused := s.writes(t, pod, since)
	t.Logf("%s: %d writes, %d refused", pod, done, refused)
	require.Equal(t, want, done, why)
}

// writes counts the Pod's writes by the controllers since a moment, or all, and says how many of their requests were
// refused.
func (s shop) writes(t *testing.T, pod string, since ...time.Time) (done, refused int) {
	t.Helper()
	file, err := os.Open(s.cluster.AuditLog())
	require.NoError(t, err)
	defer file.Close()
	for lines := bufio.NewScanner(file); lines.Scan(); {
		var event struct {
			UserAgent      string
			ObjectRef      struct{ Resource, Namespace, Name string }
			ResponseStatus struct{ Code int }
			Received       metav1.MicroTime `json:"requestReceivedTimestamp"`
		}
		if json.Unmarshal(lines.Bytes(), &event) != nil || len(since) > 0 && event.Received.Time.Before(since[0]) ||
			event.UserAgent != component+"/test" ||
			event.ObjectRef.Resource != "pods" || event.ObjectRef.Namespace != s.namespace || event.ObjectRef.Name != pod {
			continue
		}
		if event.ResponseStatus.Code < 300 {
			done++
		} else {
			refused++
		}
	}
	return done, refused
}

// history is what happened to a Pod and its endpoints, in the order of the API server's resource versions.
type history struct {
	service string
	mu      sync.Mutex
	events  []moment
}

type moment struct {
	version int
	// slice names the EndpointSlice whose listing of the Pod this is about; it is about the Pod's finalizer without.
	slice string
	on    bool
}

// record watches the Pod's finalizer and its listing by the Service.
func (s shop) record(t *testing.T, pod, service string) *history {
	t.Helper()
	h := &history{service: service}
	pods, err := s.clientset.CoreV1().Pods(s.namespace).Watch(t.Context(),
		metav1.ListOptions{FieldSelector: "metadata.name=" + pod})
	require.NoError(t, err)
	endpoints, err := s.clientset.DiscoveryV1().EndpointSlices(s.namespace).Watch(t.Context(),
		metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=" + service})
	require.NoError(t, err)
	address := s.pod(t, pod).Status.PodIP
	run(t, func(ctx context.Context) { h.follow(ctx, pods, pod, address, service) })
	run(t, func(ctx context.Context) { h.follow(ctx, endpoints, pod, address, service) })
	return h
}

// lists reports whether the EndpointSlice has the Pod as one to send traffic to.
func lists(s *discoveryv1.EndpointSlice, pod, address string) bool {
	return slices.ContainsFunc(s.Endpoints, func(e discoveryv1.Endpoint) bool {
		if e.TargetRef == nil {
			return slices.Contains(e.Addresses, address) && endpointslice.Listed(e.Conditions)
		}
		return e.TargetRef.Name == pod && endpointslice.Listed(e.Conditions)
	})
}

func (h *history) follow(ctx context.Context, w watch.Interface, pod, address, service string) {
	defer w.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case event, open := <-w.ResultChan():
			if !open {
				return
			}
			m := moment{}
			switch o := event.Object.(type) {
			case *corev1.Pod:
				m.version, _ = strconv.Atoi(o.ResourceVersion)
				m.on = slices.Contains(o.Finalizers, api.Finalizer(service))
			case *discoveryv1.EndpointSlice:
				m.version, _ = strconv.Atoi(o.ResourceVersion)
				m.slice = o.Name
				m.on = event.Type != watch.Deleted && lists(o, pod, address)
			default:
				continue
			}
			h.mu.Lock()
			h.events = append(h.events, m)
			h.mu.Unlock()
		}
	}
}

// removedAt is the version at which the finalizer first went, zero if it did not.
func (h *history) removedAt() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	events := slices.DeleteFunc(slices.Clone(h.events), func(m moment) bool { return m.slice != "" })
	slices.SortStableFunc(events, func(a, b moment) int { return a.version - b.version })
	held := false
	for _, m := range events {
		if held && !m.on {
			return m.version
		}
		held = m.on
	}
	return 0
}

// removals waits until the finalizer has gone, and the record has every EndpointSlice as it is: the two watches are not
// in step, and what was listed before may be told later. It returns what the record then says.
func (s shop) removals(t *testing.T, seen *history) (listed []bool) {
	t.Helper()
	s.eventually(t, "the finalizer goes", func() bool { return len(seen.removals()) > 0 })
	var all discoveryv1.EndpointSliceList
	require.NoError(t, s.client.List(t.Context(), &all, client.InNamespace(s.namespace),
		client.MatchingLabels{discoveryv1.LabelServiceName: seen.service}))
	s.eventually(t, "the record is complete", func() bool { return seen.has(all.Items) })
	return seen.removals()
}

// has reports whether the EndpointSlices were seen as they are, or later, and the others go.
func (h *history) has(there []discoveryv1.EndpointSlice) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	last := map[string]moment{}
	for _, m := range h.events {
		if m.slice != "" {
			last[m.slice] = m
		}
	}
	for i := range there {
		version, err := strconv.Atoi(there[i].ResourceVersion)
		if err != nil || last[there[i].Name].version < version {
			return false
		}
		delete(last, there[i].Name)
	}
	for _, gone := range last {
		if gone.on {
			return false
		}
	}
	return true
}

// removals returns, for each time that the finalizer went, whether some EndpointSlice listed the Pod then.
func (h *history) removals() (listed []bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	events := slices.Clone(h.events)
	slices.SortStableFunc(events, func(a, b moment) int { return a.version - b.version })
	held, listing := false, map[string]bool{}
	for _, m := range events {
		if m.slice != "" {
			listing[m.slice] = m.on
			continue
		}
		if held && !m.on {
			listed = append(listed, slices.Contains(slices.Collect(maps.Values(listing)), true))
		}
		held = m.on
	}
	return listed
}
