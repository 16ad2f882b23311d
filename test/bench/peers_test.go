package bench

import (
	"fmt"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/internal/testkit/benchresult"
	"kusionstack.io/kuperator/internal/testkit/suite"
)

// peersInFlight is how many image patches were under way at a time where peers were measured.
const peersInFlight = 16

// BenchmarkPeers compares with a bare image patch for each Pod and with a Deployment as OpenKruise 1.9 and Kuperator
// 0.7.4 were compared with them: kwok plays the kubelets, in its own process and with CPU of its own; 16 patches are
// under way at a time; a Pod has two containers with two variables, and no volume; kube-controller-manager runs beside
// the Deployment only, with its client's limits lifted; the audit log has no answers; there are no budgets; and no
// observer watches. One watches a round before, which is not timed. Kuperator has two turns, in one of which it clears
// managedFields of Pods. Every second round is in the opposite order, and sums of all rounds are compared.
func BenchmarkPeers(b *testing.B) {
	sizes, rounds := numbers(b, "BENCH_SIZES", "500,1000"), numbers(b, "BENCH_ROUNDS", "4")
	a := startArena(b, suite.Config{Nodes: 3, ControllerManagerArgs: unlimited, AuditWithoutAnswers: true})
	a.observed(a.newRace(sizes[0], untimed).asPeers)
	for _, pods := range sizes {
		var all []*race
		for round := range rounds[0] {
			r := a.newRace(pods, round)
			r.asPeers()
			all = append(all, r)
		}
		a.comparePeers(all)
	}
	require.NoError(b, a.suite.Died())
}

// asPeers has all contenders take their turns.
func (r *race) asPeers() {
	r.inOrder(r.patchesAsPeers, func() { r.kuperatorAsPeers(kuperator) }, func() { r.kuperatorAsPeers(clearing) },
		r.deploymentAsPeers)
}

// comparePeers keeps the ratios of the sums of all rounds at one size.
func (a arena) comparePeers(rounds []*race) {
	goal := func(id, name, who, peer, effect string) {
		ours, theirs, each := 0.0, 0.0, ""
		for _, r := range rounds {
			mine, other := r.times[who+"/"+effect].took.Seconds(), r.times[peer+"/"+effect].took.Seconds()
			ours, theirs, each = ours+mine, theirs+other, each+fmt.Sprintf(" %.2f", mine/other)
		}
		note := fmt.Sprintf("kwok, sum of %d rounds, of each%s", len(rounds), each)
		a.result(benchresult.Figure{Goal: id, Name: name, Params: rounds[0].of, Values: []float64{ours / theirs}, Note: note})
	}
	for _, who := range []string{kuperator, clearing} {
		how := ", as peers were measured"
		if who == clearing {
			how += ", managedFields of Pods cleared"
		}
		goal("S3", "in place, time / bare image patches"+how, who, barePatches, "in place")
		if rounds[0].pods == 500 {
			goal("S4", "scale to 0 of 500, time / Deployment"+how, who, deployment, "scale to 0")
		}
	}
}

// peersTemplate is the template of the Pods that peers were measured with.
func peersTemplate(node string) corev1.PodTemplateSpec {
	container := func(name string) corev1.Container {
		return corev1.Container{Name: name, Image: oldImage,
			Env: []corev1.EnvVar{{Name: "FIRST", Value: "one"}, {Name: "SECOND", Value: "two"}}}
	}
	template := templateOn(node, "web")
	template.Spec.AutomountServiceAccountToken = ptr.To(false) // it would be a volume
	template.Spec.Containers = []corev1.Container{container("app"), container("side")}
	return template
}

// withoutControllers has something done while kube-controller-manager is away, once the namespace has what it makes
// there.
func (r *race) withoutControllers(namespace string, do func()) {
	r.until("the namespace has its ServiceAccount", func() bool {
		_, err := r.arena.pods.CoreV1().ServiceAccounts(namespace).Get(r.Context(), "default", metav1.GetOptions{})
		return err == nil
	})
	require.NoError(r, r.suite.Cluster.StopComponent(controllerManager))
	do()
	require.NoError(r, r.suite.Cluster.StartComponent(r.Context(), controllerManager))
}

func (r *race) patchesAsPeers() {
	namespace := r.namespaceOf("patches")
	r.withoutControllers(namespace, func() { r.once(r.patchUpdater(namespace, peersTemplate("node-0"), peersInFlight)) })
}

// kuperatorAsPeers is a turn of kuperator or clearing.
func (r *race) kuperatorAsPeers(who string) {
	clears := strconv.FormatBool(who == clearing)
	r.restartCollaSets("--clear-pod-managed-fields=" + clears)
	namespace := r.namespaceOf("collaset-" + clears)
	m := newMeter(r.B, r.arena.pods, namespace, nil)
	defer m.close()
	r.withoutControllers(namespace, func() {
		var set *appsv1alpha1.CollaSet
		r.leg(m, namespace, who, "create", serving(oldImage),
			func() { set = r.createSetOf(peersTemplate("node-1"), namespace, "web", r.pods) })
		r.settled(m, set, r.pods)
		before := set.DeepCopy()
		set.Spec.UpdateStrategy.PodUpdatePolicy = appsv1alpha1.PodUpdateInPlaceOnly
		set.Spec.Template.Spec.Containers[0].Image = newImage
		r.leg(m, namespace, who, "in place", serving(newImage), func() {
			require.NoError(r, r.Patch(r.Context(), set, client.MergeFrom(before)))
		})
		r.settled(m, set, r.pods)
		r.leg(m, namespace, who, "scale to 0", nil, func() { r.merge(set, `{"spec":{"replicas":0}}`) })
	})
}

func (r *race) deploymentAsPeers() {
	namespace := r.namespaceOf("deployment")
	m := newMeter(r.B, r.arena.pods, namespace, nil)
	defer m.close()
	deployments := r.arena.pods.AppsV1().Deployments(namespace)
	r.leg(m, namespace, deployment, "create", plainServing(oldImage), func() {
		_, err := deployments.Create(r.Context(),
			&appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: appsv1.DeploymentSpec{
				Replicas: ptr.To(int32(r.pods)), Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}},
				Template: peersTemplate("node-2"),
			}}, metav1.CreateOptions{})
		require.NoError(r, err)
	})
	r.leg(m, namespace, deployment, "scale to 0", nil, func() {
		_, err := deployments.Patch(r.Context(), "web", types.StrategicMergePatchType, []byte(`{"spec":{"replicas":0}}`),
			metav1.PatchOptions{})
		require.NoError(r, err)
	})
}
