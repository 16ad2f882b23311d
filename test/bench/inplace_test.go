package bench

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
	"kusionstack.io/kuperator/internal/collaset/setplan"
	"kusionstack.io/kuperator/internal/testkit/benchresult"
	"kusionstack.io/kuperator/internal/testkit/fakekubelet"
	"kusionstack.io/kuperator/internal/testkit/suite"
)

// BenchmarkInPlace has as many Pods of four owners updated in place again and again, in turn: by Kuperator, by a loop
// that makes the same writes without deciding anything, to as many Pods at a time as Kuperator and to 64, and by one
// image patch each. Every second round is in the opposite order, and what is compared are the sums of all rounds: a
// machine that becomes slower or faster meanwhile, as shared ones do, does so for all of them. Each has its own node,
// because kube-scheduler goes through all Pods of a node when one of them changes, and finds those that came first
// sooner.
func BenchmarkInPlace(b *testing.B) {
	sizes, rounds := numbers(b, "BENCH_SIZES", "500,1000"), numbers(b, "BENCH_ROUNDS", "4")
	a := newArenaOf(b, suite.Config{Nodes: 4}, fakekubelet.Options{})
	for _, pods := range sizes {
		r := a.newRace(pods, 0)
		r.observedBetween(func(judge func()) { r.inTurn(rounds[0], judge) })
	}
	require.NoError(b, a.suite.Died())
}

// updater has Pods, which it updates in place to an image and may remove, and says how long that took.
type updater struct {
	*meter
	update func(image string) spent
	remove func()
	legs   []spent
}

// sum adds up what its legs took.
func (u *updater) sum(of func(spent) float64) (total float64) {
	for _, leg := range u.legs {
		total += of(leg)
	}
	return total
}

// inTurn has so many rounds, each judged while no clock runs.
func (r *race) inTurn(rounds int, judge func()) {
	updaters := []*updater{
		r.bareUpdater(bareLoop, "node-0", inFlight),
		r.patchUpdater(r.namespaceOf("patches"), templateOn("node-1", "web"), inFlight),
		r.kuperatorUpdater("node-2"), r.bareUpdater(pacedLoop, "node-3", setplan.DefaultLimits().InFlight),
	}
	bare, patches, ours, paced := updaters[0], updaters[1], updaters[2], updaters[3]
	for _, u := range updaters {
		defer u.close()
	}
	judge()
	for round := range rounds {
		for _, u := range updaters {
			u.legs = append(u.legs, u.update(fmt.Sprintf("app:v%d", round+2)))
			judge()
		}
		slices.Reverse(updaters)
	}
	seconds := func(s spent) float64 { return s.took.Seconds() }
	ratios := func(a, b *updater) string {
		var each []string
		for i := range a.legs {
			each = append(each, fmt.Sprintf("%.2f", seconds(a.legs[i])/seconds(b.legs[i])))
		}
		return fmt.Sprintf("sum of %d rounds, of each %s", rounds, strings.Join(each, ", "))
	}
	goal := func(id, name string, value float64, note string) {
		r.result(benchresult.Figure{Goal: id, Name: name, Params: r.of, Values: []float64{value}, Note: note})
	}
	goal("P1", "in place, time / bare loop with the same writes", ours.sum(seconds)/paced.sum(seconds),
		ratios(ours, paced))
	goal("P1", "in place, time / bare loop with the same writes, 64 at a time", ours.sum(seconds)/bare.sum(seconds),
		ratios(ours, bare))
	goal("S3", "in place, time / bare image patches", ours.sum(seconds)/patches.sum(seconds), ratios(ours, patches))
	goal("", "in place, bare loop's time / bare image patches", bare.sum(seconds)/patches.sum(seconds),
		ratios(bare, patches))
	server := func(s spent) float64 { return s.cpu[apiServer] }
	goal("P8", "API server's CPU, in place / bare loop", ours.sum(server)/bare.sum(server),
		fmt.Sprintf("sum of %d rounds", rounds))
	goal("P7", "CPU of all binaries, in place", ours.sum(spent.ours)*1e3/float64(r.pods*rounds),
		fmt.Sprintf("mean of %d rounds", rounds))
}

// bareUpdater is a loop without decisions, with so many Pods at a time.
func (r *race) bareUpdater(who, node string, most int) *updater {
	namespace := r.namespaceOf(fmt.Sprintf("bare-%d", most))
	m := newMeter(r.B, r.arena.pods, namespace, nil)
	l := r.newLoop(m, namespace, node)
	names := numbered("web-", r.pods)
	r.leg(m, namespace, who, "create", serving(oldImage), func() { r.atATime(most, names, l.create) })
	return &updater{
		meter: m,
		update: func(image string) spent {
			return r.leg(m, namespace, who, "in place", serving(image), func() {
				r.atATime(most, names, func(name string) error { return l.update(name, image) })
			})
		},
		remove: func() { r.leg(m, namespace, who, "scale to 0", nil, func() { r.atATime(most, names, l.remove) }) },
	}
}

// patchUpdater makes one write to each of as many Pods that are not taken out of service, so many at a time.
func (r *race) patchUpdater(namespace string, template corev1.PodTemplateSpec, most int) *updater {
	m := newMeter(r.B, r.arena.pods, namespace, nil)
	pods := r.arena.pods.CoreV1().Pods(namespace)
	names := numbered("web-", r.pods)
	r.leg(m, namespace, barePatches, "create", plainServing(oldImage), func() {
		r.atATime(most, names, func(name string) error {
			_, err := pods.Create(r.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: template.Labels},
				Spec: template.Spec}, metav1.CreateOptions{})
			return err
		})
	})
	return &updater{
		meter: m,
		update: func(image string) spent {
			return r.leg(m, namespace, barePatches, "in place", restarted(image), func() {
				r.atATime(most, names, func(name string) error { return r.write(namespace, name, imagePatch(image)) })
			})
		},
		remove: func() {
			r.leg(m, namespace, barePatches, "scale to 0", nil, func() {
				r.atATime(most, names, func(name string) error { return pods.Delete(r.Context(), name, metav1.DeleteOptions{}) })
			})
		},
	}
}

// restarted reports whether a Pod that is not taken out of service runs an image.
func restarted(image string) func(*corev1.Pod) bool {
	return func(p *corev1.Pod) bool {
		return podops.Read(p).Ready && len(p.Status.ContainerStatuses) > 0 && p.Status.ContainerStatuses[0].Image == image
	}
}

func (r *race) kuperatorUpdater(node string) *updater {
	namespace := r.namespaceOf("collaset")
	m := newMeter(r.B, r.arena.pods, namespace, nil)
	var set *appsv1alpha1.CollaSet
	r.leg(m, namespace, kuperator, "create", serving(oldImage),
		func() { set = r.createSetOf(templateOn(node, "web"), namespace, "web", r.pods) })
	r.settled(m, set, r.pods)
	return &updater{meter: m, update: func(image string) spent {
		s := r.leg(m, namespace, kuperator, "in place", serving(image),
			func() { r.merge(set, updatePatch(appsv1alpha1.PodUpdateInPlaceOnly, image)) })
		r.settled(m, set, r.pods)
		return s
	}}
}
