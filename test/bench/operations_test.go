package bench

import (
	"cmp"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
	"kusionstack.io/kuperator/internal/testkit/benchresult"
	"kusionstack.io/kuperator/internal/testkit/suite"
)

// mostAboveLeast is how many writes to Pods the suite may make for each that must be made.
const mostAboveLeast = 1.10

// operation is something that a user asks of a CollaSet with all its Pods.
type operation struct {
	name string
	// least are the writes to each Pod that the lifecycle cannot do without, which are steps; leave are those
	// that a Service which resourceconsist-controller follows costs besides: the Pod's way out. On its way in, that
	// controller's write makes the Pod available; a new Pod is created as one that has joined.
	least, leave int
	// ask are those that rules cost: the step into PreCheck, where the operator does not write it with the mark.
	ask   int
	steps string
	// begin is what the user does.
	begin func(*scene)
	// image all Pods serve in the end, twice as many as in the beginning if double.
	image  string
	double bool
	// done is what else each Pod must have come to.
	done func(*scene, *corev1.Pod) bool
}

// operations are carried out one after the other.
func operations() []operation {
	inPlace, recreate, replace := appsv1alpha1.PodUpdateInPlaceOnly, appsv1alpha1.PodUpdateRecreate,
		appsv1alpha1.PodUpdateReplace
	const (
		update = "begin, gate off, image, gate on, available"
		again  = "begin, gate off, delete; create, gate on, available"
		marked = "mark, gate off, delete; create, gate on, available"
	)
	template := `{"spec":{"template":{"metadata":{"annotations":{"example.com/note":"new"}}}}}`
	return []operation{
		{name: "create", least: 3, steps: "create, gate on, available", image: oldImage, begin: (*scene).create},
		{name: "in place", least: 5, leave: 1, steps: update, image: "app:v2",
			begin: patched(updatePatch(inPlace, "app:v2"))},
		{
			name: "undo", least: 5, leave: 1, steps: update, image: oldImage, begin: patched(updatePatch(inPlace, oldImage)),
		},
		{
			name: "in place, metadata only", least: 5, leave: 1, steps: "begin, gate off, metadata, gate on, available",
			image: oldImage, begin: patched(template),
			done: func(_ *scene, p *corev1.Pod) bool { return p.Annotations["example.com/note"] == "new" },
		},
		{name: "recreate", least: 6, leave: 1, steps: again, image: "app:v3",
			begin: patched(updatePatch(recreate, "app:v3"))},
		{
			name: "replace", least: 8, leave: 1, ask: 1,
			steps: "label; create, gate on, available; mark, gate off, delete; unlabel",
			image: "app:v4", begin: patched(updatePatch(replace, "app:v4")),
		},
		{
			name: "delete", least: 6, leave: 1, ask: 1, steps: marked, image: "app:v4", begin: (*scene).deletePods,
			done: (*scene).isNew,
		},
		{
			name: "evict", least: 6, leave: 1, ask: 1, steps: marked, image: "app:v4", begin: (*scene).evictPods,
			done: (*scene).isNew,
		},
		{
			name: "scale out", least: 3, steps: "create, gate on, available", image: "app:v4", double: true,
			begin: func(s *scene) { patched(fmt.Sprintf(`{"spec":{"replicas":%d}}`, 2*s.pods))(s) },
		},
		{
			name: "scale in", least: 3, leave: 1, steps: "begin, gate off, delete", image: "app:v4",
			begin: func(s *scene) { patched(fmt.Sprintf(`{"spec":{"replicas":%d}}`, s.pods))(s) },
		},
	}
}

func patched(body string) func(*scene) {
	return func(s *scene) {
		require.NoError(s, s.Patch(s.Context(), s.set, client.RawPatch(types.MergePatchType, []byte(body))))
	}
}

// updatePatch asks for another image.
func updatePatch(policy appsv1alpha1.PodUpdatePolicy, image string) string {
	return fmt.Sprintf(
		`{"spec":{"updateStrategy":{"podUpgradePolicy":%q},"template":{"spec":{"containers":[{"name":"app","image":%q}]}}}}`,
		policy, image)
}

// BenchmarkOperations prints how many writes every operation takes, for each Pod, without rules and with one and
// three, without adapters and with one and two, beside the least that does it. It fails on more than a tenth above
// that.
func BenchmarkOperations(b *testing.B) {
	provider := startProvider(b)
	endpoints := filepath.Join(b.TempDir(), "endpoints.yaml")
	require.NoError(b, os.WriteFile(endpoints,
		fmt.Appendf(nil, "endpoints: [{name: bench, url: '%s', namespaces: ['*'], timeout: 30s}]", provider.URL), 0o600))
	a := newArena(b, map[string][]string{suite.ResourceConsist: {
		"--drain-time=0s", "--adapters=endpointslice,webhook", "--webhook-endpoints=" + endpoints,
		"--webhook-allow=127.0.0.0/8",
	}})
	pods := numbers(b, "BENCH_SIZES", "50")[0]
	for _, rules := range numbersFromZero(b, "BENCH_RULES", "0,1,3") {
		for _, adapters := range numbersFromZero(b, "BENCH_ADAPTERS", "0,1,2") {
			a.operations(pods, rules, adapters)
		}
	}
	require.NoError(b, a.suite.Died())
}

// scene is one CollaSet with what is around it.
type scene struct {
	arena
	meter           *meter
	namespace       string
	pods            int
	rules, adapters int
	set             *appsv1alpha1.CollaSet

	mu     sync.Mutex
	before map[string]bool // Pods that there were when the operation began
}

// operations has them carried out on so many Pods, under the eyes of the observer.
func (a arena) operations(pods, rules, adapters int) {
	a.say("%d Pods, %d rules, %d adapters, load of the machine %s", pods, rules, adapters, load())
	s := &scene{arena: a, namespace: a.namespace(fmt.Sprintf("operations-%d-%d", rules, adapters)), pods: pods,
		rules: rules, adapters: adapters}
	a.observed(s.play)
}

// play carries out one operation after the other.
func (s *scene) play() {
	s.meter = newMeter(s.B, s.arena.pods, s.namespace, nil)
	defer s.meter.close()
	for i := range s.rules {
		s.budget(s.namespace, fmt.Sprintf("rule-%d", i), fmt.Sprintf("%d%%", 50-10*i),
			metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}})
	}
	if s.adapters > 0 {
		s.service(s.namespace, s.adapters)
	}
	for _, o := range operations() {
		s.carryOut(o)
	}
}

// carryOut has one operation done, until nothing of it is left to do.
func (s *scene) carryOut(o operation) {
	s.mu.Lock()
	s.before = s.meter.names()
	s.mu.Unlock()
	want := s.pods
	if o.double {
		want = 2 * s.pods
	}
	used := s.measure(func() {
		s.meter.lap(func(p *corev1.Pod) bool {
			return serving(o.image)(p) && (s.adapters == 0 || inService(p)) && (o.done == nil || o.done(s, p))
		})
		o.begin(s)
		require.GreaterOrEqual(s, s.meter.wait(s.Context(), want, patience), want, "%s: Pods", o.name)
		s.settled(s.meter, s.set, want)
	}, s.namespace)

	touched := float64(s.pods)
	least := o.least
	if s.adapters > 0 {
		least += o.leave
	}
	if s.rules > 0 {
		least += o.ask
	}
	s.say("   writes to a Pod, with the mean seconds since the one before: %s", used.steps())
	toPods, all := suite.Sum(suite.PodWrites(used.requests)), suite.Sum(suite.Writes(used.requests))
	writes, requests, conflicts := float64(toPods.Writes)/touched, float64(all.Total())/touched,
		float64(all.Conflicts)/touched
	at := map[string]float64{"pods": float64(s.pods), "rules": float64(s.rules), "adapters": float64(s.adapters)}
	figure := func(name, unit string, value float64, note string) {
		s.result(benchresult.Figure{Name: name, Unit: unit, Series: o.name, Params: at, Values: []float64{value}, Note: note})
	}
	figure("writes to Pods", "writes/Pod", writes, fmt.Sprintf("least %d: %s", least, o.steps))
	figure("all write requests", "requests/Pod", requests, perPod(all.Kinds, s.pods))
	figure("trials", "requests", float64(all.Trials),
		"dry runs before Pods are touched; their number follows from time, not from Pods")
	if writes > float64(least)*mostAboveLeast {
		s.Errorf("%s with %d rules and %d adapters takes %.2f writes to each Pod, and could do with %d", o.name, s.rules,
			s.adapters, writes, least)
	}
	goal := func(id, name string, value float64) {
		s.result(benchresult.Figure{Goal: id, Name: name, Params: at, Values: []float64{value}})
	}
	if o.name == "in place" {
		if name, ok := inPlaceGoals[[2]int{s.rules, s.adapters}]; ok {
			goal("P3", "writes to Pods, in place, "+name, writes)
		}
		if s.adapters == 0 && s.rules < 2 {
			goal("P4", "all write requests, in place, "+inPlaceGoals[[2]int{s.rules, 0}], requests)
		}
		goal("P5", "conflicts, in place", conflicts)
	}
	goal("P5", "writes that change nothing", float64(toPods.NoOps))
}

// inPlaceGoals are the goals of P3 by rules and adapters.
var inPlaceGoals = map[[2]int]string{{0, 0}: "no rule", {1, 0}: "1 rule", {3, 0}: "3 rules",
	{1, 1}: "1 rule, 1 adapter"}

func (s *scene) create() { s.set = s.createSet(s.namespace, "web", s.pods) }

func (s *scene) isNew(p *corev1.Pod) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.before[p.Name]
}

// deletePods deletes each Pod as kubectl does; the refusal is the beginning. The API server may ask again because the
// Pod has changed meanwhile, and delete it then if it is out of service already, or find that lifecycle-controller
// has deleted it.
func (s *scene) deletePods() {
	s.inFlight(slices.Collect(maps.Keys(s.before)), func(name string) error {
		pod := &corev1.Pod{}
		err := s.arena.pods.CoreV1().RESTClient().Delete().Namespace(s.namespace).Resource("pods").Name(name).Do(
			s.Context()).Into(pod)
		if apierrors.IsConflict(err) || apierrors.IsNotFound(err) || err == nil &&
			podops.Read(pod).ServiceReady == corev1.ConditionFalse {
			return nil
		}
		return fmt.Errorf("deleting a Pod that serves was not refused with 409, but: %v",
			err) //nolint:errorlint // it may be nil
	})
}

// evictPods evicts each Pod once; the refusal is the beginning.
func (s *scene) evictPods() {
	s.inFlight(slices.Collect(maps.Keys(s.before)), func(name string) error {
		eviction := &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: s.namespace}}
		err := s.arena.pods.CoreV1().RESTClient().Post().Namespace(s.namespace).Resource("pods").Name(name).SubResource(
			"eviction").
			Body(eviction).MaxRetries(0).Do(s.Context()).Error() // by itself the client would try again after Retry-After
		if !apierrors.IsTooManyRequests(err) {
			return fmt.Errorf("evicting a Pod that serves was not refused with 429, but: %v",
				err) //nolint:errorlint // it may be nil
		}
		return nil
	})
}

// settled waits until the CollaSet's status has just these Pods, and there are no others.
func (a arena) settled(m *meter, set *appsv1alpha1.CollaSet, pods int) {
	a.until("the CollaSet is at its goal", func() bool {
		if a.Get(a.Context(), client.ObjectKeyFromObject(set), set) != nil {
			return false
		}
		s := &set.Status
		return s.ObservedGeneration == set.Generation && s.Replicas == int32(pods) &&
			s.UpdatedAvailableReplicas == int32(pods) && m.seen() == pods
	})
}

// seen is the number of Pods that there are.
func (m *meter) seen() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.pods)
}

// names are those of the Pods that there are.
func (m *meter) names() map[string]bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	names := map[string]bool{}
	for name := range m.pods {
		names[name] = true
	}
	return names
}

// perPod are counts by kind, the largest first.
func perPod(kinds map[string]int, pods int) string {
	names := slices.SortedFunc(maps.Keys(kinds), func(x, y string) int {
		return cmp.Or(cmp.Compare(kinds[y], kinds[x]), strings.Compare(x, y))
	})
	parts := make([]string, 0, len(names))
	for _, name := range names {
		parts = append(parts, fmt.Sprintf("%s %.3f", name, float64(kinds[name])/float64(pods)))
	}
	return strings.Join(parts, ", ")
}
