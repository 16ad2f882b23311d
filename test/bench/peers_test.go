package bench

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/internal/suite"
	"kusionstack.io/kuperator/internal/testkit/benchresult"
)

// peersInFlight is how many image patches were under way at a time where peers were measured.
const peersInFlight = 16

// kwokPlays marks figures of this benchmark: the kubelets are kwok's.
const kwokPlays = "kwok"

// BenchmarkPeers compares with a bare image patch for each Pod and with a Deployment as OpenKruise 1.9 and Kuperator 0.7.4 were compared with them: kwok plays
// the kubelets, in a process of its own and with CPU of its own; 16 patches are under way at a time; a Pod has two containers with two
// variables; kube-controller-manager runs beside the Deployment only, with its client's limits lifted; and nobody has a budget. Every second round is in the
// opposite order, and sums of all rounds are compared.
func BenchmarkPeers(b *testing.B) {
	sizes, rounds := numbers(b, "BENCH_SIZES", "500,1000"), numbers(b, "BENCH_ROUNDS", "3")
	a := startArena(b, suite.Config{Nodes: 3, ControllerManagerArgs: unlimited})
	for _, pods := range sizes {
		a.newRace(pods, 0).asPeersWere(rounds[0])
	}
	require.NoError(b, a.suite.Died())
}

// contender is one of those that are compared: what it took for each effect, in each round.
type contender struct {
	who   string
	run   func(round int) map[string]spent
	takes map[string][]spent
}

func (c *contender) sum(effect string) (total float64) {
	for _, s := range c.takes[effect] {
		total += s.took.Seconds()
	}
	return total
}

func (r *race) asPeersWere(rounds int) {
	contenders := []*contender{
		{who: barePatches, run: func(round int) map[string]spent { return r.patchesAsPeers("node-0", round) }},
		{who: kuperator, run: func(round int) map[string]spent { return r.kuperatorAsPeers("node-1", round) }},
		{who: deployment, run: func(round int) map[string]spent { return r.deploymentAsPeers("node-2", round) }},
	}
	patches, ours, peer := contenders[0], contenders[1], contenders[2]
	for round := range rounds {
		r.observed(func() {
			for _, c := range contenders {
				for effect, s := range c.run(round) {
					if c.takes == nil {
						c.takes = map[string][]spent{}
					}
					c.takes[effect] = append(c.takes[effect], s)
				}
			}
		})
		slices.Reverse(contenders)
	}
	note := func(a, b *contender, effect string) string {
		each := ""
		for i := range a.takes[effect] {
			each += fmt.Sprintf(" %.2f", a.takes[effect][i].took.Seconds()/b.takes[effect][i].took.Seconds())
		}
		return fmt.Sprintf("%s, sum of %d rounds, of each%s", kwokPlays, rounds, each)
	}
	goal := func(id, name string, a, b *contender, effect string) {
		r.result(benchresult.Figure{Goal: id, Name: name, Params: r.of, Values: []float64{a.sum(effect) / b.sum(effect)}, Note: note(a, b, effect)})
	}
	goal("S3", "in place, time / bare image patches, as peers were measured", ours, patches, "in place")
	if r.pods == 500 {
		goal("S4", "scale to 0 of 500, time / Deployment, as peers were measured", ours, peer, "scale to 0")
	}
}

// peersTemplate is the template of the Pods that peers were measured with.
func peersTemplate(node string) corev1.PodTemplateSpec {
	container := func(name string) corev1.Container {
		return corev1.Container{Name: name, Image: oldImage, Env: []corev1.EnvVar{{Name: "FIRST", Value: "one"}, {Name: "SECOND", Value: "two"}}}
	}
	return corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "web"}},
		Spec:       corev1.PodSpec{NodeName: node, Containers: []corev1.Container{container("app"), container("side")}},
	}
}

// withoutControllers has something done while kube-controller-manager is away, once the namespace has what it makes there.
func (r *race) withoutControllers(namespace string, do func()) {
	r.until("the namespace has its ServiceAccount", func() bool {
		_, err := r.arena.pods.CoreV1().ServiceAccounts(namespace).Get(r.Context(), "default", metav1.GetOptions{})
		return err == nil
	})
	require.NoError(r, r.suite.Cluster.StopComponent(controllerManager))
	do()
	require.NoError(r, r.suite.Cluster.StartComponent(r.Context(), controllerManager))
}

func (r *race) patchesAsPeers(node string, round int) (took map[string]spent) {
	namespace := r.namespaceOf(fmt.Sprintf("patches-r%d", round))
	m := newMeter(r.B, r.arena.pods, namespace, nil)
	defer m.close()
	pods, names, template := r.arena.pods.CoreV1().Pods(namespace), numbered("web-", r.pods), peersTemplate(node)
	r.withoutControllers(namespace, func() {
		r.leg(m, namespace, barePatches, "create", plainServing(oldImage), func() {
			r.atATime(peersInFlight, names, func(name string) error {
				_, err := pods.Create(r.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: template.Labels}, Spec: template.Spec}, metav1.CreateOptions{})
				return err
			})
		})
		took = map[string]spent{"in place": r.leg(m, namespace, barePatches, "in place", restarted(newImage), func() {
			r.atATime(peersInFlight, names, func(name string) error { return r.write(namespace, name, imagePatch(newImage)) })
		})}
		r.leg(m, namespace, barePatches, "scale to 0", nil, func() {
			r.atATime(peersInFlight, names, func(name string) error { return pods.Delete(r.Context(), name, metav1.DeleteOptions{}) })
		})
	})
	return took
}

func (r *race) kuperatorAsPeers(node string, round int) (took map[string]spent) {
	namespace := r.namespaceOf(fmt.Sprintf("collaset-r%d", round))
	m := newMeter(r.B, r.arena.pods, namespace, nil)
	defer m.close()
	set := &appsv1alpha1.CollaSet{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "web"}}
	set.Spec.Replicas = ptr.To(int32(r.pods))
	set.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}
	set.Spec.Template = peersTemplate(node)
	r.withoutControllers(namespace, func() {
		r.leg(m, namespace, kuperator, "create", serving(oldImage), func() { require.NoError(r, r.Create(r.Context(), set)) })
		r.settled(m, set, r.pods)
		before := set.DeepCopy()
		set.Spec.UpdateStrategy.PodUpdatePolicy = appsv1alpha1.PodUpdateInPlaceOnly
		set.Spec.Template.Spec.Containers[0].Image = newImage
		took = map[string]spent{"in place": r.leg(m, namespace, kuperator, "in place", serving(newImage), func() {
			require.NoError(r, r.Patch(r.Context(), set, client.MergeFrom(before)))
		})}
		r.settled(m, set, r.pods)
		took["scale to 0"] = r.leg(m, namespace, kuperator, "scale to 0", nil, func() { r.merge(set, `{"spec":{"replicas":0}}`) })
	})
	return took
}

func (r *race) deploymentAsPeers(node string, round int) map[string]spent {
	namespace := r.namespaceOf(fmt.Sprintf("deployment-r%d", round))
	m := newMeter(r.B, r.arena.pods, namespace, nil)
	defer m.close()
	deployments := r.arena.pods.AppsV1().Deployments(namespace)
	r.leg(m, namespace, deployment, "create", plainServing(oldImage), func() {
		_, err := deployments.Create(r.Context(), &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: appsv1.DeploymentSpec{
			Replicas: ptr.To(int32(r.pods)), Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}, Template: peersTemplate(node),
		}}, metav1.CreateOptions{})
		require.NoError(r, err)
	})
	return map[string]spent{"scale to 0": r.leg(m, namespace, deployment, "scale to 0", nil, func() {
		_, err := deployments.Patch(r.Context(), "web", types.StrategicMergePatchType, []byte(`{"spec":{"replicas":0}}`), metav1.PatchOptions{})
		require.NoError(r, err)
	})}
}
