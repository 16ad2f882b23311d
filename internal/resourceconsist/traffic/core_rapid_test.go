package traffic_test

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"pgregory.net/rapid"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
	"kusionstack.io/kuperator/internal/resourceconsist/traffic"
)

// snapshots generates Pods in any state with employers that say anything.
func snapshots() *rapid.Generator[traffic.Snapshot] {
	return rapid.Custom(func(t *rapid.T) traffic.Snapshot {
		yes := rapid.Bool()
		age := rapid.Custom(func(t *rapid.T) time.Time {
			return ago(time.Duration(rapid.IntRange(0, 20).Draw(t, "seconds")) * time.Second)
		})
		pod := view()
		pod.Gate, pod.Ready = rapid.IntRange(0, 4).Draw(t, "gate") > 0, yes.Draw(t, "ready")
		pod.ServiceReady = rapid.SampledFrom([]corev1.ConditionStatus{"", "True", "False"}).Draw(t, "serviceReady")
		pod.Terminating, pod.Terminal = rapid.IntRange(0, 4).Draw(t, "dying") == 0, rapid.IntRange(0, 4).Draw(t, "ended") == 0
		if yes.Draw(t, "operating") {
			begin, err := podops.Begin(pod, podops.Request{ID: "op", Type: "update"}, now)
			require.NoError(t, err)
			pod = begin.Apply(pod)
			if yes.Draw(t, "granted") {
				granted := podops.Advance(pod, podops.Verdicts{{ID: "op", Stage: appsv1alpha1.StagePreCheck}: true}, now)
				pod = granted.Change.Apply(pod)
			}
		}
		s := traffic.Snapshot{Managed: rapid.IntRange(0, 9).Draw(t, "managed") > 0, Kind: "Service", Now: now,
			OutOfServiceSince: age.Draw(t, "out")}
		other := traffic.Employer{Key: otherKey, Finalizer: rapid.SampledFrom([]string{otherFin, finalizer}).Draw(t,
			"otherFinalizer")}
		for _, e := range []traffic.Employer{{Key: key, Finalizer: finalizer, Drain: drain}, other} {
			if yes.Draw(t, "announced") {
				expecting(e.Key, e.Finalizer)(&pod)
			}
			if yes.Draw(t, "held") && !slices.Contains(pod.Finalizers, e.Finalizer) {
				pod.Finalizers = append(slices.Clone(pod.Finalizers), e.Finalizer)
			}
			for range rapid.IntRange(0, 2).Draw(t, "backends") {
				e.Backends = append(e.Backends, traffic.Backend{
					Adapter: rapid.SampledFrom([]string{"a", "b"}).Draw(t, "adapter"), Employs: yes.Draw(t, "employs"),
					Moves:   yes.Draw(t, "moves"),
					Unknown: rapid.IntRange(0, 4).Draw(t, "unknown") == 0, Serving: yes.Draw(t, "serving"),
					NotServingSince: age.Draw(t, "idle"),
				})
			}
			e.Prepared = yes.Draw(t, "prepared")
			if len(e.Backends) > 0 {
				s.Employers = append(s.Employers, e)
			}
		}
		s.Pod = pod
		return s
	})
}

func TestDecideProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := snapshots().Draw(t, "snapshot")
		plan := traffic.Decide(s)
		after := plan.Change.Apply(s.Pod)

		shared := len(s.Employers) == 2 && s.Employers[0].Finalizer == s.Employers[1].Finalizer // either may join first
		for _, e := range s.Employers {
			wanted := s.Managed && slices.ContainsFunc(e.Backends,
				func(b traffic.Backend) bool { return b.Employs && (b.Moves || s.Pod.Gate) })
			serving := slices.ContainsFunc(e.Backends, func(b traffic.Backend) bool {
				return b.Employs && (b.Moves || s.Pod.Gate) && (b.Serving || b.Unknown)
			})
			removed := slices.Contains(s.Pod.Finalizers, e.Finalizer) && !slices.Contains(after.Finalizers, e.Finalizer)
			if movers := slices.ContainsFunc(e.Backends,
				func(b traffic.Backend) bool { return b.Moves && (b.Serving || b.Unknown) }); removed && movers {
				before, _ := podops.ExpectedFinalizers(s.Pod.Annotations)
				_, named := before[e.Key]
				require.False(t, named, "released while a backend that can be told to drop it serves it")
			}
			if removed && wanted {
				require.False(t, serving, "left while a backend serves it")
				require.True(t, traffic.OutOfService(s.Pod), "left while in service")
				require.False(t, podops.MayJoin(s.Pod))
			}
			for _, m := range plan.Moves {
				if m.Verb == traffic.Register && m.Employer == e.Key {
					before, _ := podops.ExpectedFinalizers(s.Pod.Annotations)
					require.True(t, before[e.Key] == e.Finalizer && e.Prepared, "registered without a trace")
				}
			}
			if added := !slices.Contains(s.Pod.Finalizers, e.Finalizer) &&
				slices.Contains(after.Finalizers, e.Finalizer); added {
				require.True(t, podops.MayJoin(s.Pod), "joined what may not serve")
				expected, err := podops.ExpectedFinalizers(after.Annotations)
				require.NoError(t, err)
				if wanted {
					require.Equal(t, e.Finalizer, expected[e.Key], "joined without an announcement")
				}
				for _, b := range e.Backends {
					takesPart := b.Employs && (b.Moves || s.Pod.Gate) && s.Managed
					require.False(t, takesPart && !shared && (!b.Serving || b.Unknown), "joined before every backend has it")
				}
			}
		}

		require.Empty(t, cmp.Diff(plan, traffic.Decide(s)), "two decisions differ")
		reversed := s
		reversed.Employers = slices.Clone(s.Employers)
		slices.Reverse(reversed.Employers)
		require.Empty(t, cmp.Diff(plan, traffic.Decide(reversed)), "the order of employers matters")

		again := s
		again.Pod = after
		require.True(t, traffic.Decide(again).Change.IsZero(), "a second write follows the first")
	})
}

// TestAnOperationCostsTwoWrites plays Pods through operations with every order of the three that follow each other: the
// kubelet, the EndpointSlice controller and the lifecycle, each acting when rapid says so.
func TestAnOperationCostsTwoWrites(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		pod := view(func(v *podops.View) { v.Ready, v.ServiceReady = false, "" })
		listed, clock, writes := false, now, 0
		var idleSince, outSince time.Time
		began, finished, operations := false, false, 0

		actors := []func(){
			func() { // the kubelet: Ready follows the gate
				pod.ContainersReady = true
				pod.Ready = pod.ServiceReady == corev1.ConditionTrue
			},
			func() { // the EndpointSlice controller
				if listed != pod.Ready {
					listed, idleSince = pod.Ready, clock
				}
			},
			func() { // the lifecycle, without rules
				verdicts := podops.Verdicts{{ID: "op", Stage: appsv1alpha1.StagePreCheck}: true,
					{ID: "op", Stage: appsv1alpha1.StagePostCheck}: true}
				pod = podops.Advance(pod, verdicts, clock).Apply(pod)
			},
			func() { // the operator
				switch {
				case !began && pod.ServiceAvailable() && slices.Contains(pod.Finalizers, finalizer) && operations < 2:
					begin, err := podops.Begin(pod, podops.Request{ID: "op", Type: "update"}, clock)
					require.NoError(t, err)
					pod, began, finished = begin.Apply(pod), true, false
				case began && !finished && podops.Allowed(pod, "op", "update"):
					require.False(t, listed, "operated on while it is listed")
					pod, finished = podops.Finish(pod, "op", "update", clock).Apply(pod), true
				case began && finished && podops.PhaseOf(pod, "op") == podops.PhaseNone:
					began = false
					operations++
				}
			},
			func() { // this controller
				if out := traffic.OutOfService(pod); !out {
					outSince = time.Time{}
				} else if outSince.IsZero() {
					outSince = clock
				}
				b := traffic.Backend{Adapter: "endpointslice", Employs: true, Serving: listed, NotServingSince: idleSince}
				e := traffic.Employer{Key: key, Finalizer: finalizer, Drain: drain, Backends: []traffic.Backend{b}}
				plan := traffic.Decide(traffic.Snapshot{
					Pod: pod, Managed: true, Kind: "Service", Employers: []traffic.Employer{e}, OutOfServiceSince: outSince,
					Now: clock,
				})
				if !plan.Change.IsZero() {
					writes++
					pod = plan.Change.Apply(pod)
				}
			},
			func() { clock = clock.Add(3 * time.Second) },
		}
		for range 120 {
			actors[rapid.IntRange(0, len(actors)-1).Draw(t, "actor")]()
		}
		for range 60 { // and now each actor in turn, until all is done
			for _, act := range actors {
				act()
			}
		}
		require.Equal(t, 2, operations, "the Pod is stuck: %v", podops.Explain(pod, nil))
		require.LessOrEqual(t, writes, 2+2*operations)
		require.GreaterOrEqual(t, writes, 1+2*operations)
		require.Contains(t, pod.Finalizers, finalizer)
	})
}

// TestTwoEmployersOfOneFinalizerNeverFreeEachOthersPods plays two employers whose finalizers are equal, each with a
// backend that follows when rapid says so, through operations and deletion of the Pod and of either employer.
func TestTwoEmployersOfOneFinalizerNeverFreeEachOthersPods(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		pod := view(func(v *podops.View) { v.Ready, v.ServiceReady = true, corev1.ConditionTrue })
		serving, there := map[string]bool{}, map[string]bool{key: true, otherKey: true}
		moves := map[string]bool{key: rapid.Bool().Draw(t, "moves"), otherKey: rapid.Bool().Draw(t, "otherMoves")}
		pending := map[string]traffic.Verb{}
		decide := func() {
			s := traffic.Snapshot{Pod: pod, Managed: true, Kind: "Service", OutOfServiceSince: ago(time.Minute), Now: now}
			for _, k := range []string{key, otherKey} {
				if there[k] || moves[k] { // one with a Mover stays until its Pods are released
					s.Employers = append(s.Employers, traffic.Employer{Key: k, Finalizer: finalizer, Prepared: true,
						Backends: []traffic.Backend{
							{Adapter: "a", Employs: there[k], Moves: moves[k], Serving: serving[k], NotServingSince: ago(time.Minute)},
						}})
				}
			}
			plan := traffic.Decide(s)
			for _, m := range plan.Moves {
				pending[m.Employer] = m.Verb
			}
			after := plan.Change.Apply(pod)
			if slices.Contains(pod.Finalizers, finalizer) && !slices.Contains(after.Finalizers, finalizer) {
				for _, k := range []string{key, otherKey} {
					require.False(t, serving[k] && (there[k] || moves[k]), "freed while %s serves it", k)
				}
			}
			pod = after
		}
		follow := func(k string) {
			switch {
			case moves[k] && pending[k] != "":
				serving[k] = pending[k] == traffic.Register
				delete(pending, k)
			case !moves[k]:
				serving[k] = there[k] && pod.Ready
			}
		}
		actors := []func(){
			decide,
			func() { follow(key) },
			func() { follow(otherKey) },
			func() { pod.Ready, pod.ServiceReady = false, corev1.ConditionFalse },
			func() {
				if !pod.Terminating {
					pod.Ready, pod.ServiceReady = true, corev1.ConditionTrue
				}
			},
			func() { there[otherKey] = rapid.Bool().Draw(t, "there") },
			func() {
				if rapid.IntRange(0, 9).Draw(t, "dies") == 0 {
					pod.Terminating, pod.Ready = true, false
				}
			},
		}
		for range 60 {
			actors[rapid.IntRange(0, len(actors)-1).Draw(t, "actor")]()
		}
		pod.Ready, pod.ServiceReady = false, corev1.ConditionFalse
		for range 10 {
			decide()
			follow(key)
			follow(otherKey)
		}
		require.NotContains(t, pod.Finalizers, finalizer, "the Pod is stuck")
	})
}
