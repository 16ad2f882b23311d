package bench

import (
	"fmt"
	"math"
	"os"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
	"kusionstack.io/kuperator/internal/testkit/benchresult"
	"kusionstack.io/kuperator/internal/testkit/fakekubelet"
	"kusionstack.io/kuperator/internal/testkit/suite"
)

// Who does something to all Pods, as plots name them.
const (
	controllerManager = "kube-controller-manager"

	bareLoop    = "bare loop" // the protocol's writes, without decisions
	pacedLoop   = "bare loop, as many at a time as Kuperator"
	barePatches = "bare patches" // one image patch for each Pod
	kuperator   = "Kuperator"
	clearing    = "Kuperator that clears managedFields"
	deployment  = "Deployment"
	statefulSet = "StatefulSet"
)

// peer is what others took on a machine of this size on another day: seconds for an update in place of so many Pods,
// without a budget and client limits (OpenKruise 1.9.0, Kuperator 0.7.4).
var peers = map[int]struct{ kruise, kuperator float64 }{
	500:  {32.8, 85.0},
	1000: {62.5, 176.3},
}

// unlimited are flags of a kube-controller-manager whose client has no limit that counts.
var unlimited = []string{
	"--kube-api-qps=1000", "--kube-api-burst=2000", "--concurrent-deployment-syncs=20", "--concurrent-replicaset-syncs=20",
	"--concurrent-statefulset-syncs=20",
}

// BenchmarkRollout has the same number of Pods created, updated and removed by Kuperator, by a loop that makes the same
// writes without deciding anything, by a Deployment and by a StatefulSet, one after the other, in rounds, each in the
// opposite order of the one before: a machine that becomes slower or faster on the way favours none of them twice. It
// fails on broken promises, never on time.
func BenchmarkRollout(b *testing.B) {
	sizes, rounds := numbers(b, "BENCH_SIZES", "500,1000"), numbers(b, "BENCH_ROUNDS", "2")
	const gates = "--feature-gates=MaxUnavailableStatefulSet=true" // else a StatefulSet updates one Pod at a time
	a := newArenaOf(b, suite.Config{APIServerArgs: []string{gates},
		ControllerManagerArgs: append([]string{gates}, unlimited...)}, fakekubelet.Options{})
	for _, pods := range sizes {
		for round := range rounds[0] {
			a.say("%d Pods, round %d of %d, load of the machine %s", pods, round+1, rounds[0], load())
			r := a.newRace(pods, round)
			r.observed(func() { // all contenders, so that it costs each of them the same
				r.inOrder(r.bare, r.patches, r.kuperator, r.deployment, r.statefulSet)
			})
			r.compare()
		}
	}
	require.NoError(b, a.suite.Died())
}

// untimed is a round whose figures are not kept.
const untimed = -1

// race is one round at one size.
type race struct {
	arena
	pods, round int
	of          map[string]float64
	times       map[string]spent // by contender and effect
}

func (a arena) newRace(pods, round int) *race {
	return &race{arena: a, pods: pods, round: round, times: map[string]spent{},
		of: map[string]float64{"pods": float64(pods)}}
}

// inOrder has contenders take their turns, in every second round in the opposite order.
func (r *race) inOrder(contenders ...func()) {
	if r.round%2 == 1 {
		slices.Reverse(contenders)
	}
	for _, race := range contenders {
		race()
	}
}

func (r *race) namespaceOf(name string) string {
	return r.arena.namespace(fmt.Sprintf("%s-%d-%d", name, r.pods, r.round))
}

// leg measures one effect until so many Pods meet the goal; none means that all Pods are gone.
func (r *race) leg(m *meter, namespace, who, effect string, goal func(*corev1.Pod) bool, do func()) spent {
	before, ours := m.seen(), who == kuperator || who == clearing
	var took float64
	s := r.measure(func() {
		m.lap(goal)
		do()
		if goal == nil {
			r.until(who+": no Pod is left", func() bool { return m.seen() == 0 })
			took = m.lastGone()
			return
		}
		require.Equal(r, r.pods, m.wait(r.Context(), r.pods, patience), "%s, %s: Pods", who, effect)
		took = m.figures().took.Seconds()
	}, namespace)
	s.took = seconds(took)
	r.times[who+"/"+effect] = s
	note := fmt.Sprintf("foreign cores %.1f, a piece of work %.2f ms", s.foreign(), s.piece)
	figure := func(name, unit string, value float64) {
		if r.round == untimed {
			return
		}
		r.result(benchresult.Figure{Name: name, Unit: unit, Series: who + ", " + effect, Params: r.of,
			Values: []float64{value}, Note: note})
	}
	figure("time", "s", took)
	figure("CPU of the API server", "ms/Pod", s.cpu[apiServer]*1e3/float64(r.pods))
	figure("CPU of etcd", "ms/Pod", s.cpu[etcd]*1e3/float64(r.pods))
	if ours {
		for _, name := range suite.Components() {
			figure("CPU of "+name, "s/1,000 operations", s.cpu[name]*1e3/float64(r.pods))
		}
	}
	if goal != nil && before == r.pods && effect != "create" {
		figure("out of service", "s/Pod", m.figures().missing)
	}
	r.say("   CPU ms/Pod: %s; a piece of work %.2f ms", s.perPod(r.pods), s.piece)
	if ours && goal != nil {
		r.say("   writes to a Pod, with the mean seconds since the one before: %s", s.steps())
	}
	return s
}

// once has Pods created, updated in place and removed by one who has been made with them.
func (r *race) once(u *updater) {
	defer u.close()
	u.update(newImage)
	u.remove()
}

func (r *race) bare() { r.once(r.bareUpdater(bareLoop, node, inFlight)) }

func (r *race) patches() {
	r.once(r.patchUpdater(r.namespaceOf("patches"), templateOn(node, "web"), inFlight))
}

func imagePatch(image string) string {
	return fmt.Sprintf(`{"spec":{"containers":[{"name":"app","image":%q}]}}`, image)
}

// kuperator rolls a CollaSet.
func (r *race) kuperator() {
	namespace := r.namespaceOf("collaset")
	m := newMeter(r.B, r.arena.pods, namespace, nil)
	defer m.close()
	var set *appsv1alpha1.CollaSet
	r.leg(m, namespace, kuperator, "create", serving(oldImage), func() { set = r.createSet(namespace, "web", r.pods) })
	r.settled(m, set, r.pods)
	patch := func(policy appsv1alpha1.PodUpdatePolicy, image string) func() {
		return func() {
			r.merge(set, updatePatch(policy, image))
		}
	}
	for _, e := range []struct {
		effect, image string
		policy        appsv1alpha1.PodUpdatePolicy
	}{
		{"in place", "app:v2", appsv1alpha1.PodUpdateInPlaceOnly},
		{"in place, 20 %", "app:v3", appsv1alpha1.PodUpdateInPlaceOnly},
		{"recreate, 20 %", "app:v4", appsv1alpha1.PodUpdateRecreate},
	} {
		if e.image == "app:v3" {
			r.budget(namespace, "web", "20%", metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}})
		}
		s := r.leg(m, namespace, kuperator, e.effect, serving(e.image), patch(e.policy, e.image))
		r.settled(m, set, r.pods)
		if e.policy == appsv1alpha1.PodUpdateInPlaceOnly {
			r.inPlace(s, e.effect, m.figures())
		}
	}
	r.leg(m, namespace, kuperator, "scale to 0", nil, func() {
		r.merge(set, `{"spec":{"replicas":0}}`)
	})
}

// inPlace keeps what is asked of an update in place alone.
func (r *race) inPlace(s spent, effect string, f figures) {
	goal := func(id, name string, value float64) {
		r.result(benchresult.Figure{Goal: id, Name: name, Params: r.of, Series: kuperator + ", " + effect,
			Values: []float64{value}})
	}
	if effect == "in place" {
		latencies := s.latencies()
		goal("P10", "event to write, p50", quantile(latencies, .5))
		goal("P10", "event to write, p99", quantile(latencies, .99))
		goal("S1", "out of service per Pod, no budget, mean", f.mean())
	} else {
		goal("S2", "out of service per Pod, 20 % budget, mean", f.mean())
	}
	toPods := suite.Sum(suite.PodWrites(s.requests))
	if n := float64(toPods.Writes) / float64(r.pods); n > 5*mostAboveLeast {
		r.Errorf("%s takes %.2f writes to each Pod, and could do with 5", effect, n)
	}
}

func (r *race) deployment() {
	namespace := r.namespaceOf("deployment")
	m := newMeter(r.B, r.arena.pods, namespace, nil)
	defer m.close()
	deployments := r.arena.pods.AppsV1().Deployments(namespace)
	d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: appsv1.DeploymentSpec{
		Replicas: ptr.To(int32(r.pods)), Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}},
		Template: templateOn(node, "web"),
		Strategy: appsv1.DeploymentStrategy{Type: appsv1.RollingUpdateDeploymentStrategyType,
			RollingUpdate: &appsv1.RollingUpdateDeployment{
				MaxSurge: ptr.To(intstr.FromInt32(0)), MaxUnavailable: ptr.To(intstr.FromString("100%")),
			}},
	}}
	r.leg(m, namespace, deployment, "create", plainServing(oldImage), func() {
		_, err := deployments.Create(r.Context(), d, metav1.CreateOptions{})
		require.NoError(r, err)
	})
	patch := func(body string) func() {
		return func() {
			_, err := deployments.Patch(r.Context(), "web", types.StrategicMergePatchType, []byte(body), metav1.PatchOptions{})
			require.NoError(r, err)
		}
	}
	update := `{"spec":{"strategy":{"rollingUpdate":{"maxUnavailable":%q}},"template":{"spec":{"containers":[{"name":"app","image":%q}]}}}}`
	r.leg(m, namespace, deployment, "recreate", plainServing("app:v2"), patch(fmt.Sprintf(update, "100%", "app:v2")))
	r.leg(m, namespace, deployment, "recreate, 20 %", plainServing("app:v3"), patch(fmt.Sprintf(update, "20%", "app:v3")))
	r.leg(m, namespace, deployment, "scale to 0", nil, patch(`{"spec":{"replicas":0}}`))
}

func (r *race) statefulSet() {
	namespace := r.namespaceOf("statefulset")
	m := newMeter(r.B, r.arena.pods, namespace, nil)
	defer m.close()
	sets := r.arena.pods.AppsV1().StatefulSets(namespace)
	set := &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: appsv1.StatefulSetSpec{
		Replicas: ptr.To(int32(r.pods)), Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}},
		Template:    templateOn(node, "web"),
		ServiceName: "web", PodManagementPolicy: appsv1.ParallelPodManagement,
		UpdateStrategy: appsv1.StatefulSetUpdateStrategy{Type: appsv1.RollingUpdateStatefulSetStrategyType,
			RollingUpdate: &appsv1.RollingUpdateStatefulSetStrategy{
				MaxUnavailable: ptr.To(intstr.FromString("20%")),
			}},
	}}
	r.leg(m, namespace, statefulSet, "create", plainServing(oldImage), func() {
		created, err := sets.Create(r.Context(), set, metav1.CreateOptions{})
		require.NoError(r, err)
		set = created
	})
	patch := func(body string) func() {
		return func() {
			_, err := sets.Patch(r.Context(), "web", types.StrategicMergePatchType, []byte(body), metav1.PatchOptions{})
			require.NoError(r, err)
		}
	}
	require.NotNil(r, set.Spec.UpdateStrategy.RollingUpdate.MaxUnavailable,
		"the API server has the feature MaxUnavailableStatefulSet")
	r.leg(m, namespace, statefulSet, "recreate, 20 %", plainServing(newImage), patch(imageOfTemplate(newImage)))
	r.leg(m, namespace, statefulSet, "scale to 0", nil, patch(`{"spec":{"replicas":0}}`))
}

func imageOfTemplate(image string) string {
	return fmt.Sprintf(`{"spec":{"template":{"spec":{"containers":[{"name":"app","image":%q}]}}}}`, image)
}

func plainServing(image string) func(*corev1.Pod) bool {
	return func(p *corev1.Pod) bool {
		return p.DeletionTimestamp == nil && p.Spec.Containers[0].Image == image && podops.Read(p).Ready
	}
}

// compare keeps the ratios between those that ran in this round.
func (r *race) compare() {
	took := func(who, effect string) float64 {
		if s, ok := r.times[who+"/"+effect]; ok {
			return s.took.Seconds()
		}
		return math.NaN()
	}
	writes := func(who, effect string) float64 {
		n := 0
		for _, q := range r.times[who+"/"+effect].requests {
			byWorkload := q.Component() != "" || q.User == "system:serviceaccount:kube-system:replicaset-controller" ||
				q.User == "system:serviceaccount:kube-system:deployment-controller"
			if q.Write() && q.OK() && byWorkload {
				n++
			}
		}
		return float64(n)
	}
	goal := func(id, name string, value float64, note string) {
		if math.IsNaN(value) || math.IsInf(value, 0) {
			r.Errorf("%s %s could not be compared", id, name)
			return
		}
		r.result(benchresult.Figure{Goal: id, Name: name, Params: r.of, Values: []float64{value}, Note: note})
	}
	inPlace, budget := took(kuperator, "in place"), took(kuperator, "in place, 20 %")
	goal("P6", "in place with a rule, time / without", budget/inPlace, "")
	goal("P15", "scale out from 0, time / bare loop with the same writes",
		took(kuperator, "create")/took(bareLoop, "create"), "")
	goal("P16", "recreate under 20 %, time / Deployment",
		took(kuperator, "recreate, 20 %")/took(deployment, "recreate, 20 %"), "")
	goal("P16", "recreate under 20 %, writes / Deployment",
		writes(kuperator, "recreate, 20 %")/writes(deployment, "recreate, 20 %"), "")
	if r.pods == 500 {
		goal("S4", "scale to 0 of 500, time / Deployment", took(kuperator, "scale to 0")/took(deployment, "scale to 0"), "")
		goal("", "scale to 0 of 500, bare loop's time / Deployment",
			took(bareLoop, "scale to 0")/took(deployment, "scale to 0"), "")
	}
	if p, ok := peers[r.pods]; ok {
		goal("P2", "faster than Kuperator 0.7.4 without client limits", p.kuperator/inPlace, "peer of another day")
		goal("P17", "in place, time / OpenKruise 1.9 CloneSet", inPlace/p.kruise, "peer of another day")
	}
	fmt.Fprintln(os.Stdout)
}
