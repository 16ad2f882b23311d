package resourceconsist_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"kusionstack.io/kuperator/api/podops"
	api "kusionstack.io/kuperator/api/resourceconsist"
	"kusionstack.io/kuperator/internal/resourceconsist/backend"
	"kusionstack.io/kuperator/internal/resourceconsist/endpointslice"
	"kusionstack.io/kuperator/internal/testkit/testcluster"
)

// balancerLabel says which balancer a Service is for.
const balancerLabel = "example.org/balancer"

// balancer is a backend.Mover with a provider in memory, which can be told to fail.
type balancer struct {
	name string

	mu sync.Mutex
	// members are the Pods that get traffic, by Service.
	members map[client.ObjectKey]map[string]bool
	// calls are the changes made for each Service, in order.
	calls map[client.ObjectKey][]string
	// tries counts calls, failed ones too.
	tries map[client.ObjectKey]int
	// down holds the namespaces for which the provider fails.
	down map[string]bool
	// report takes in how it follows.
	report backend.Report
}

func newBalancer(name string) *balancer {
	return &balancer{
		name: name, members: map[client.ObjectKey]map[string]bool{}, calls: map[client.ObjectKey][]string{},
		tries: map[client.ObjectKey]int{}, down: map[string]bool{},
	}
}

func (b *balancer) Name() string { return b.name }

func (b *balancer) Selector(employer client.Object) labels.Selector {
	s := employer.(*corev1.Service)
	if !api.Controlled(s) || s.Labels[balancerLabel] != b.name {
		return nil
	}
	return labels.SelectorFromSet(s.Spec.Selector) // of an empty one the framework has to beware
}

func (b *balancer) Observe(s client.Object, pod *corev1.Pod) backend.Observation {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.down[s.GetNamespace()] {
		b.tell(s, nil)
	}
	return backend.Observation{Serving: b.members[client.ObjectKeyFromObject(s)][pod.Name], LookAgain: poll}
}

// tell reports how the provider follows.
func (b *balancer) tell(s client.Object, err error) {
	reason, message := api.ConditionReasonInSync, ""
	if err != nil {
		reason, message = api.ConditionReasonBackendFailed, err.Error()
	}
	b.report(client.ObjectKeyFromObject(s), reason, message)
}

func (b *balancer) Register(s client.Object, pod *corev1.Pod) {
	b.move(s, "register", pod, func(members map[string]bool) { members[pod.Name] = true })
}

func (b *balancer) Deregister(s client.Object, pod *corev1.Pod) {
	b.move(s, "deregister", pod, func(members map[string]bool) { delete(members, pod.Name) })
}

// move is change for a Pod, and reports what came of it.
func (b *balancer) move(s client.Object, verb string, pod *corev1.Pod, change func(map[string]bool)) {
	err := b.change(s, verb+" "+pod.Name, change)
	if err != nil {
		err = fmt.Errorf("%s: %w", verb, err)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.tell(s, err)
}

func (b *balancer) Forget(types.NamespacedName)        {}
func (b *balancer) Provisioner() backend.Provisioner   { return nil }
func (b *balancer) Clean(client.Object) bool           { return true }
func (b *balancer) Place(client.Object) string         { return "" }
func (b *balancer) CleanAt(client.Object, string) bool { return true }

func (b *balancer) Sources(_ manager.Manager, report backend.Report) ([]source.Source, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.report = report
	return nil, nil
}

func (b *balancer) change(s client.Object, call string, change func(map[string]bool)) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	key := client.ObjectKeyFromObject(s)
	b.tries[key]++
	if b.down[s.GetNamespace()] {
		return errors.New("the provider is down")
	}
	if b.members[key] == nil {
		b.members[key] = map[string]bool{}
	}
	change(b.members[key])
	b.calls[key] = append(b.calls[key], call)
	return nil
}

func (b *balancer) setDown(namespace string, down bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.down[namespace] = down
}

func (b *balancer) has(s *corev1.Service, pod string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.members[client.ObjectKeyFromObject(s)][pod]
}

func (b *balancer) tried(s *corev1.Service) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.tries[client.ObjectKeyFromObject(s)]
}

func (b *balancer) called(s *corev1.Service) []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.calls[client.ObjectKeyFromObject(s)])
}

// renting is a balancer with something of its own for each Service.
type renting struct{ *balancer }

func (r renting) Provisioner() backend.Provisioner { return r }

func (r renting) Provision(_ context.Context, s client.Object) error {
	return r.change(s, "provision "+s.GetAnnotations()["size"], func(map[string]bool) {})
}

func (r renting) Deprovision(_ context.Context, s client.Object) error {
	return r.change(s, "deprovision", func(map[string]bool) {})
}

var (
	_ backend.Mover       = &balancer{}
	_ backend.Provisioner = renting{}
)

// market is a world with a controller that has three adapters.
type market struct {
	shop
	pool *balancer // rents
	edge *balancer
}

func (m market) balanced(t *testing.T, name, balancer string, change ...func(*corev1.Service)) *corev1.Service {
	t.Helper()
	return m.createService(t, name,
		append([]func(*corev1.Service){func(s *corev1.Service) { s.Labels[balancerLabel] = balancer }}, change...)...)
}

func (m market) service(t require.TestingT, name string) *corev1.Service {
	service := &corev1.Service{}
	err := m.client.Get(context.Background(), client.ObjectKey{Namespace: m.namespace, Name: name}, service)
	if apierrors.IsNotFound(err) {
		return nil
	}
	require.NoError(t, err)
	return service
}

func (m market) gone(t *testing.T, service string) {
	t.Helper()
	m.eventually(t, "Service "+service+" is gone", func() bool { return m.service(t, service) == nil })
}

// unheld waits until the Service is there and free to go.
func (m market) unheld(t *testing.T, service string) {
	t.Helper()
	m.eventually(t, "Service "+service+" is held no more",
		func() bool { return len(m.service(t, service).Finalizers) == 0 })
}

func (m market) begin(t *testing.T, pod string) {
	t.Helper()
	m.write(t, pod, func(v podops.View) podops.Change {
		c, err := podops.Begin(v, podops.Request{ID: "test", Type: podops.TypeUpdate}, time.Now())
		require.NoError(t, err)
		return c
	})
}

func (m market) finish(t *testing.T, pod string) {
	t.Helper()
	m.eventually(t, "the operation is allowed",
		func() bool { return podops.Allowed(podops.Read(m.pod(t, pod)), "test", podops.TypeUpdate) })
	m.write(t, pod, func(v podops.View) podops.Change { return podops.Finish(v, "test", podops.TypeUpdate, time.Now()) })
}

func (m market) inSync(t require.TestingT, service string) *metav1.Condition {
	if s := m.service(t, service); s != nil {
		return meta.FindStatusCondition(s.Status.Conditions, api.ConditionInSync)
	}
	return nil
}

// events are the notes of the events about a Service with this reason.
func (m market) events(t *testing.T, service, reason string) (notes []string, times int32) {
	t.Helper()
	list, err := m.clientset.EventsV1().Events(m.namespace).List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	for i := range list.Items {
		e := &list.Items[i]
		if e.Regarding.Name != service || e.Reason != reason {
			continue
		}
		notes = append(notes, e.Note)
		times++
		if e.Series != nil {
			times += e.Series.Count - 1
		}
	}
	return notes, times
}

func TestEmployers(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a control plane")
	}
	w := start(t)
	pool, edge := newBalancer("pool"), newBalancer("edge")
	startManager(t, w.config, endpointsOf(), renting{pool}, edge)
	for name, story := range map[string]func(*testing.T, market){
		"a resource is provisioned before the first Pod, after changes, and removed after the last": provisioned,
		"a Service that loses its label lets its Pods go through the same steps":                    unlabelledEmployer,
		"a Service whose selector becomes empty employs no Pod":                                     emptySelector,
		"two Services of different adapters on the same Pod":                                        differentAdapters,
		"several Services of one adapter on a Pod":                                                  severalServices,
		"a Service is deleted while a Pod is Preparing and its provider fails":                      deletedWhilePreparing,
		"a Service is deleted while a Pod is in Operate":                                            deletedWhileOperate,
		"a Service is deleted while a Pod is Completing":                                            deletedWhileCompleting,
		"a failing provider is said once, and its recovery":                                         providerFails,
		"a namespace can be deleted":                                                                namespaceDeleted,
		"a finalizer that another kind shares is reported":                                          sharedWithAnotherKind,
		"a Pod that is managed no more holds its Service until it is released":                      strayPod,
	} {
		t.Run(name, func(t *testing.T) { story(t, market{w.shop(t), pool, edge}) })
	}
}

// endpointsOf is the adapter for EndpointSlices of Services that have no balancer.
func endpointsOf() backend.Backend { return plain{endpointslice.New(nil)} }

type plain struct{ *endpointslice.Adapter }

func (p plain) Selector(s client.Object) labels.Selector {
	if s.GetLabels()[balancerLabel] != "" {
		return nil
	}
	return p.Adapter.Selector(s)
}

func provisioned(t *testing.T, m market) {
	m.createPod(t, "web-0")
	service := m.balanced(t, "web", "pool", func(s *corev1.Service) {
		s.Annotations = map[string]string{"size": "small"}
		s.Finalizers = []string{api.LegacyCleanFinalizer("web"), "example.org/other"}
	})
	m.serving(t, "web-0", "web")
	require.Equal(t, []string{"provision small", "register web-0"}, m.pool.called(service))
	require.ElementsMatch(t, []string{"example.org/other", api.CleanFinalizer}, m.service(t, "web").Finalizers,
		"the old form is replaced")

	m.patchService(t, "web", `{"metadata":{"annotations":{"size":"large"}}}`)
	m.eventually(t, "the change is provisioned",
		func() bool { return slices.Contains(m.pool.called(service), "provision large") })
	_, err := m.clientset.CoreV1().Services(m.namespace).Patch(t.Context(), "web", types.MergePatchType,
		[]byte(
			`{"status":{"conditions":[{"type":"example.org/Seen","status":"True","reason":"Seen","message":"","lastTransitionTime":"2026-05-04T03:02:01Z"}]}}`),
		metav1.PatchOptions{}, "status")
	require.NoError(t, err)

	require.NoError(t, m.client.Delete(t.Context(), service))
	m.serving(t, "web-0")
	m.eventually(t, "only the finalizer of others is left",
		func() bool { return slices.Equal(m.service(t, "web").Finalizers, []string{"example.org/other"}) })
	require.Equal(t, []string{"provision small", "register web-0", "provision large", "deregister web-0", "deprovision"},
		m.pool.called(service))
	m.patchService(t, "web", `{"metadata":{"finalizers":null}}`)
	m.gone(t, "web")
}

func unlabelledEmployer(t *testing.T, m market) {
	service := m.balanced(t, "web", "pool")
	m.createPod(t, "web-0")
	m.serving(t, "web-0", "web")
	m.patchService(t, "web", `{"metadata":{"labels":{"kusionstack.io/control":null}}}`)
	m.serving(t, "web-0")
	m.unheld(t, "web")
	require.Equal(t, []string{"provision ", "register web-0", "deregister web-0", "deprovision"}, m.pool.called(service))
	m.patchService(t, "web", `{"metadata":{"labels":{"kusionstack.io/control":"true"}}}`)
	m.serving(t, "web-0", "web")
	require.True(t, m.pool.has(service, "web-0"))
}

func emptySelector(t *testing.T, m market) {
	service := m.balanced(t, "web", "pool")
	m.createPod(t, "web-0")
	m.serving(t, "web-0", "web")
	m.patchService(t, "web", `{"spec":{"selector":{"app":"other"}}}`)
	m.serving(t, "web-0")
	require.False(t, m.pool.has(service, "web-0"))
	m.patchService(t, "web", `{"spec":{"selector":{"app":"web"}}}`)
	m.serving(t, "web-0", "web")
	m.patchService(t, "web", `{"spec":{"selector":null}}`)
	m.serving(t, "web-0")
	require.False(t, m.pool.has(service, "web-0"))
	m.unheld(t, "web")
	require.NoError(t, m.client.Delete(t.Context(), service))
	m.gone(t, "web")
}

func differentAdapters(t *testing.T, m market) {
	pool, edge := m.balanced(t, "pool", "pool"), m.balanced(t, "edge", "edge")
	m.createService(t, "plain")
	m.createPod(t, "web-0")
	m.serving(t, "web-0", "edge", "plain", "pool")
	require.True(t, m.pool.has(pool, "web-0") && m.edge.has(edge, "web-0"))
	require.False(t, m.pool.has(edge, "web-0") || m.edge.has(pool, "web-0"))
	m.begin(t, "web-0")
	m.finish(t, "web-0")
	m.serving(t, "web-0", "edge", "plain", "pool")
	require.NoError(t, m.client.Delete(t.Context(), edge))
	m.gone(t, "edge")
	m.serving(t, "web-0", "plain", "pool")
}

func severalServices(t *testing.T, m market) {
	var names []string
	for i := range 4 {
		names = append(names, fmt.Sprintf("web-%d", i))
		m.balanced(t, names[i], "edge")
	}
	m.createPod(t, "pod")
	m.serving(t, "pod", names...)
	born, _ := m.writes(t, "pod")
	m.begin(t, "pod")
	m.finish(t, "pod")
	m.serving(t, "pod", names...)
	done, refused := m.writes(t, "pod")
	t.Logf("birth: %d writes, operation: %d, refused: %d", born, done-born, refused)
	require.LessOrEqual(t, done-born, 2*len(names),
		"no more than one write an employer and direction, fewer where they meet")
	for _, name := range names {
		require.Equal(t, []string{"register pod", "deregister pod", "register pod"}, m.edge.called(m.service(t, name)))
	}
}

func deletedWhilePreparing(t *testing.T, m market) {
	service := m.balanced(t, "web", "pool")
	m.createPod(t, "web-0")
	m.serving(t, "web-0", "web")
	m.pool.setDown(m.namespace, true)
	m.begin(t, "web-0")
	m.eventually(t, "the Pod waits in Preparing",
		func() bool { return podops.PhaseOf(podops.Read(m.pod(t, "web-0")), "test") == podops.PhasePreparing })
	require.NoError(t, m.client.Delete(t.Context(), service))
	before := m.pool.tried(service)
	m.eventually(t, "it is tried again", func() bool { return m.pool.tried(service) > before+2 })
	require.Contains(t, m.pod(t, "web-0").Finalizers, api.Finalizer("web"), "the backend still serves it")
	m.eventually(t, "the owner is told", func() bool {
		c := m.inSync(t, "web")
		return c != nil &&
			c.Status == metav1.ConditionFalse
	})
	require.Contains(t, m.inSync(t, "web").Message, "pool: deregister: the provider is down")
	m.pool.setDown(m.namespace, false)
	m.finish(t, "web-0")
	m.gone(t, "web")
	m.serving(t, "web-0")
}

func deletedWhileOperate(t *testing.T, m market) {
	service := m.balanced(t, "web", "pool")
	m.createPod(t, "web-0")
	m.serving(t, "web-0", "web")
	m.begin(t, "web-0")
	m.eventually(t, "the operation is allowed",
		func() bool { return podops.Allowed(podops.Read(m.pod(t, "web-0")), "test", podops.TypeUpdate) })
	require.NoError(t, m.client.Delete(t.Context(), service))
	m.gone(t, "web")
	m.finish(t, "web-0")
	m.serving(t, "web-0")
}

func deletedWhileCompleting(t *testing.T, m market) {
	service := m.balanced(t, "web", "pool")
	m.createPod(t, "web-0")
	m.serving(t, "web-0", "web")
	m.begin(t, "web-0")
	m.eventually(t, "the operation is allowed",
		func() bool { return podops.Allowed(podops.Read(m.pod(t, "web-0")), "test", podops.TypeUpdate) })
	m.pool.setDown(m.namespace, true)
	m.finish(t, "web-0")
	m.eventually(t, "the Pod waits in Completing", func() bool {
		return podops.PhaseOf(podops.Read(m.pod(t, "web-0")), "test") == podops.PhaseCompleting
	})
	require.NoError(t, m.client.Delete(t.Context(), service))
	m.serving(t, "web-0") // it is in no backend, so nothing has to be undone first
	m.pool.setDown(m.namespace, false)
	m.gone(t, "web")
}

func providerFails(t *testing.T, m market) {
	well := m.balanced(t, "well", "edge")
	m.createPod(t, "web-0")
	m.serving(t, "web-0", "well")
	m.pool.setDown(m.namespace, true)
	service := m.balanced(t, "web", "pool")
	m.eventually(t, "the owner is told", func() bool {
		c := m.inSync(t, "web")
		return c != nil &&
			c.Status == metav1.ConditionFalse
	})
	require.Equal(t, api.ConditionReasonBackendFailed, m.inSync(t, "web").Reason)
	require.Contains(t, m.inSync(t, "web").Message, "pool: provisioning: the provider is down")
	before := m.pool.tried(service)
	m.eventually(t, "it is tried again and again", func() bool { return m.pool.tried(service) > before+3 })
	m.pool.setDown(m.namespace, false)
	m.serving(t, "web-0", "web", "well")
	m.eventually(t, "the owner is told that all is well",
		func() bool { c := m.inSync(t, "web"); return c != nil && c.Status == metav1.ConditionTrue })
	m.eventually(t, "and by an event", func() bool {
		_, times := m.events(t, "web", api.ConditionReasonInSync)
		return times == 1
	})
	notes, times := m.events(t, "web", api.ConditionReasonBackendFailed)
	require.EqualValues(t, 1, times, "told once, not once a try: %v", notes)
	require.Equal(t, 3, m.audited(t, func(e auditEvent) bool {
		return e.ObjectRef.Resource == "services" && e.ObjectRef.Subresource == "status" && e.ObjectRef.Name == "web"
	}), "one write that says who may hold something for it, one for the failure, one for its end")
	require.Nil(t, m.inSync(t, well.Name), "nothing is written of an employer that never was bad")
	require.Equal(t, 1, m.audited(t, func(e auditEvent) bool {
		return e.ObjectRef.Subresource == "status" &&
			e.ObjectRef.Name == "well"
	}),
		"one write that says who may hold something for it")
}

func namespaceDeleted(t *testing.T, m market) {
	m.balanced(t, "web", "pool")
	m.balanced(t, "edge", "edge")
	for i := range 3 {
		m.createPod(t, fmt.Sprintf("web-%d", i))
	}
	m.serving(t, "web-0", "edge", "web")
	require.NoError(t, m.clientset.CoreV1().Namespaces().Delete(t.Context(), m.namespace, metav1.DeleteOptions{}))
	m.gone(t, "web")
	m.gone(t, "edge")
	m.eventually(t, "the Pods are gone", func() bool {
		pods, err := m.clientset.CoreV1().Pods(m.namespace).List(t.Context(), metav1.ListOptions{})
		return err == nil && len(pods.Items) == 0
	})
}

func sharedWithAnotherKind(t *testing.T, m market) {
	gateway := "Gateway/" + m.namespace + "/web"
	m.createPod(t, "web-0", func(pod *corev1.Pod) {
		pod.Annotations = map[string]string{podops.AvailableConditionsAnnotation: fmt.Sprintf(
			`{"expectedFinalizers":{%q:%q}}`, gateway, api.Finalizer("web"))}
	})
	m.balanced(t, "web", "edge")
	m.eventually(t, "the owner is told", func() bool {
		c := m.inSync(t, "web")
		return c != nil && c.Reason == api.ConditionReasonFinalizerShared && strings.Contains(c.Message, gateway)
	})
	m.eventually(t, "and by an event", func() bool {
		_, times := m.events(t, "web", api.ConditionReasonFinalizerShared)
		return times == 1
	})
	m.write(t, "web-0", func(v podops.View) podops.Change {
		c, err := podops.Forget(v, gateway, time.Now())
		require.NoError(t, err)
		return c
	})
	m.eventually(t, "the clash is over", func() bool {
		c := m.inSync(t, "web")
		return c != nil &&
			c.Status == metav1.ConditionTrue
	})
}

func strayPod(t *testing.T, m market) {
	service := m.balanced(t, "web", "pool")
	m.createPod(t, "web-0")
	m.serving(t, "web-0", "web")
	m.pool.setDown(m.namespace, true)
	m.patchPod(t, "web-0", `{"metadata":{"labels":{"kusionstack.io/control":null}}}`)
	require.NoError(t, m.client.Delete(t.Context(), service))
	before := m.pool.tried(service)
	m.eventually(t, "it is tried", func() bool { return m.pool.tried(service) > before+2 })
	require.NotNil(t, m.service(t, "web"), "the Service went while its backend had the Pod")
	m.pool.setDown(m.namespace, false)
	m.gone(t, "web")
	require.False(t, m.pool.has(service, "web-0"))
	m.eventually(t, "the Pod is released", func() bool { return m.bound(t, m.pod(t, "web-0")) })
}

// TestEmployersThatChangeWhileTheControllerIsDown: no process saw what an employer was meanwhile.
func TestEmployersThatChangeWhileTheControllerIsDown(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a control plane")
	}
	w := start(t)
	pool := newBalancer("pool")
	stop := startManager(t, w.config, renting{pool})
	m := market{w.shop(t), pool, nil}
	unlabelled, deleted, idle := m.balanced(t, "unlabelled", "pool"), m.balanced(t, "deleted", "pool"),
		m.balanced(t, "idle", "pool", func(s *corev1.Service) {
			s.Spec.Selector = map[string]string{"app": "none"}
		})
	m.createPod(t, "web-0")
	m.createPod(t, "web-1")
	for _, pod := range []string{"web-0", "web-1"} {
		m.serving(t, pod, "deleted", "unlabelled")
	}
	m.eventually(t, "all are held", func() bool { return len(pool.called(idle)) == 1 })
	stop()

	for _, name := range []string{"unlabelled", "idle"} {
		m.patchService(t, name, `{"metadata":{"labels":{"kusionstack.io/control":null}}}`)
	}
	require.NoError(t, m.client.Delete(t.Context(), deleted))
	m.begin(t, "web-1")
	startManager(t, w.config, renting{pool})
	m.serving(t, "web-0")
	m.gone(t, "deleted")
	m.unheld(t, "unlabelled")
	m.unheld(t, "idle") // no Pod names it
	m.finish(t, "web-1")
	m.serving(t, "web-1")
	for _, service := range []*corev1.Service{unlabelled, deleted} {
		require.False(t, pool.has(service, "web-0") || pool.has(service, "web-1"), "%s", service.Name)
	}
	require.Equal(t, "deprovision", pool.called(idle)[len(pool.called(idle))-1])
}

// TestAnEmployerOfAThousandPods costs one write a Pod when it comes and one when it goes, and no more.
func TestAnEmployerOfAThousandPods(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a control plane")
	}
	const count = 1000
	w := start(t)
	pool := newBalancer("pool")
	startManager(t, w.config, renting{pool})
	m := market{shop{world: w, namespace: testcluster.Namespace(t, w.cluster, nil)}, pool, nil}
	var group sync.WaitGroup
	for worker := range 8 {
		group.Go(func() {
			for i := worker; i < count; i += 8 {
				m.createPod(t, fmt.Sprintf("web-%d", i), func(pod *corev1.Pod) { // no kubelet runs it
					pod.Spec.NodeName = ""
					pod.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "example.org/never"}}
				})
			}
		})
	}
	group.Wait()
	service := m.balanced(t, "web", "pool")
	named := func() (count int) {
		pods, err := m.clientset.CoreV1().Pods(m.namespace).List(t.Context(), metav1.ListOptions{})
		require.NoError(t, err)
		for i := range pods.Items {
			expected, err := podops.ExpectedFinalizers(pods.Items[i].Annotations)
			require.NoError(t, err)
			count += len(expected)
		}
		return count
	}
	writes := func() int {
		return m.audited(t, func(e auditEvent) bool {
			return e.ObjectRef.Resource == "pods" && e.ObjectRef.Namespace == m.namespace && e.Verb == "patch"
		})
	}
	require.Eventually(t, func() bool { return named() == count }, 4*patience, 10*poll, "every Pod names the Service")
	require.Equal(t, count, writes())
	require.NoError(t, m.client.Delete(t.Context(), service))
	require.Eventually(t, func() bool { return m.service(t, "web") == nil }, 4*patience, 10*poll, "the Service is gone")
	require.Zero(t, named())
	require.Equal(t, 2*count, writes())
	t.Logf("%d Pods: %d writes of Pods; calls of the provider: %v", count, writes(), pool.called(service))
	require.Equal(t, []string{"provision ", "deprovision"}, pool.called(service))
	require.NoError(t, m.clientset.CoreV1().Pods(m.namespace).DeleteCollection(t.Context(),
		metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)}, metav1.ListOptions{}))
}

// auditEvent is what is read of a line of the API server's audit log.
type auditEvent struct {
	Verb, UserAgent string
	ObjectRef       struct{ Resource, Subresource, Namespace, Name string }
	ResponseStatus  struct{ Code int }
}

// audited counts the requests of the controllers in this namespace that succeeded and are of this kind.
func (s shop) audited(t *testing.T, which func(auditEvent) bool) int {
	t.Helper()
	file, err := os.Open(s.cluster.AuditLog())
	require.NoError(t, err)
	defer file.Close()
	count := 0
	for lines := bufio.NewScanner(file); lines.Scan(); {
		var event auditEvent
		if json.Unmarshal(lines.Bytes(), &event) == nil && event.UserAgent == component+"/test" &&
			event.ObjectRef.Namespace == s.namespace && event.ResponseStatus.Code < 300 && which(event) {
			count++
		}
	}
	return count
}
