package traffic_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"kusionstack.io/kuperator/api/podops"
	"kusionstack.io/kuperator/internal/resourceconsist/traffic"
)

const (
	key       = "Service/shop/web"
	finalizer = "prot.podopslifecycle.kusionstack.io/2567a5ec9705eb7a"
	otherKey  = "Service/shop/admin"
	otherFin  = "prot.podopslifecycle.kusionstack.io/21232f297a57a5a7"
	drain     = 10 * time.Second
)

var now = time.Date(2026, 5, 4, 3, 2, 1, 0, time.UTC)

func view(changes ...func(*podops.View)) podops.View {
	v := podops.View{Namespace: "shop", Name: "web-0", UID: "u", ResourceVersion: "1", Gate: true,
		ServiceReady: corev1.ConditionTrue, Ready: true}
	for _, change := range changes {
		change(&v)
	}
	return v
}

func expecting(pairs ...string) func(*podops.View) {
	return func(v *podops.View) {
		for i := 0; i < len(pairs); i += 2 {
			c, err := podops.Expect(*v, pairs[i], pairs[i+1])
			if err != nil {
				panic(err)
			}
			*v = c.Apply(*v)
		}
	}
}

func held(v *podops.View)        { v.Finalizers = append(v.Finalizers, finalizer) }
func terminating(v *podops.View) { v.Terminating = true }
func terminal(v *podops.View)    { v.Terminal, v.Ready = true, false }
func notReady(v *podops.View)    { v.Ready = false }
func withoutGate(v *podops.View) { v.Gate, v.ServiceReady = false, "" }
func offline(v *podops.View)     { v.ServiceReady, v.Ready = corev1.ConditionFalse, false }
func stillReady(v *podops.View)  { v.ServiceReady, v.Ready = corev1.ConditionFalse, true }
func broken(v *podops.View) {
	v.Annotations = map[string]string{podops.AvailableConditionsAnnotation: "{"}
}
func announced(v *podops.View)      { expecting(key, finalizer)(v) }
func ago(d time.Duration) time.Time { return now.Add(-d) }

func watched(serving bool, idle time.Duration) traffic.Backend {
	return traffic.Backend{Adapter: "endpointslice", Employs: true, Serving: serving, NotServingSince: ago(idle)}
}

func moved(serving bool, idle time.Duration) traffic.Backend {
	b := watched(serving, idle)
	b.Adapter, b.Moves, b.LookAgain = "proxy", true, 3*time.Second
	return b
}

func web(backends ...traffic.Backend) traffic.Employer {
	return traffic.Employer{Key: key, Finalizer: finalizer, Drain: drain, Prepared: true, Backends: backends}
}

// sharing is another employer with the same finalizer.
func sharing(backends ...traffic.Backend) traffic.Employer {
	e := web(backends...)
	e.Key = otherKey
	return e
}

func written(p traffic.Plan) map[traffic.Verb]string {
	got := map[traffic.Verb]string{}
	for _, a := range p.Written {
		got[a.Verb] += a.Employer
	}
	return got
}

func reasons(p traffic.Plan) []traffic.Reason {
	var got []traffic.Reason
	for _, w := range p.Waits {
		got = append(got, w.Reason)
	}
	return got
}

func TestDecide(t *testing.T) {
	type verbs = map[traffic.Verb]string
	for name, tc := range map[string]struct {
		pod       podops.View
		unmanaged bool
		employers []traffic.Employer
		outSince  time.Duration

		want     verbs
		waits    []traffic.Reason
		moves    []traffic.Verb
		nextLook time.Duration
	}{
		"a new Pod is announced before it is Ready": {
			pod: view(notReady), employers: []traffic.Employer{web(watched(false, 0))}, want: verbs{traffic.Expect: key},
		},
		"a Pod that can join at once is announced and joined in one write": {
			pod: view(), employers: []traffic.Employer{web(watched(true, 0))},
			want: verbs{traffic.Expect: key, traffic.Join: key},
		},
		"a Ready Pod joins only when it is listed": {
			pod: view(announced), employers: []traffic.Employer{web(watched(false, 0))},
			waits: []traffic.Reason{traffic.WaitNotServing},
		},
		"a listed Pod that is not Ready does not join": {
			pod: view(announced, notReady), employers: []traffic.Employer{web(watched(true, 0))},
		},
		"a Pod at rest is left alone": {
			pod: view(announced, held), employers: []traffic.Employer{web(watched(true, 0))},
		},
		"a Pod whose probes fail keeps its finalizer": {
			pod: view(announced, held, notReady), employers: []traffic.Employer{web(watched(false, time.Hour))},
			outSince: time.Hour,
		},
		"a finalizer whose announcement was removed is announced again": {
			pod: view(held), employers: []traffic.Employer{web(watched(true, 0))}, want: verbs{traffic.Expect: key},
		},
		"a Pod on its way out stays while it is listed": {
			pod: view(announced, held, offline), employers: []traffic.Employer{web(watched(true, 0))}, outSince: time.Hour,
			waits: []traffic.Reason{traffic.WaitStillServing},
		},
		"a Pod on its way out stays while it is Ready": {
			pod: view(announced, held, stillReady), employers: []traffic.Employer{web(watched(false, time.Hour))},
			waits: []traffic.Reason{traffic.WaitStillReady},
		},
		"the drain time counts from when it was dropped": {
			pod: view(announced, held, offline), employers: []traffic.Employer{web(watched(false, 4*time.Second))},
			outSince: time.Hour,
			waits:    []traffic.Reason{traffic.WaitDraining}, nextLook: 6 * time.Second,
		},
		"the drain time counts from when it went out of service if it was dropped before": {
			pod: view(announced, held, offline), employers: []traffic.Employer{web(watched(false, time.Hour))},
			outSince: 3 * time.Second,
			waits:    []traffic.Reason{traffic.WaitDraining}, nextLook: 7 * time.Second,
		},
		"a drained Pod leaves": {
			pod: view(announced, held, offline), employers: []traffic.Employer{web(watched(false, drain))}, outSince: drain,
			want: verbs{traffic.Leave: key},
		},
		"a Pod that has left waits without a write": {
			pod: view(announced, offline), employers: []traffic.Employer{web(watched(false, time.Hour))}, outSince: time.Hour,
		},
		"a Pod that is being deleted leaves when it is drained, Ready or not": {
			pod: view(announced, held, terminating), employers: []traffic.Employer{web(watched(false, drain))}, outSince: drain,
			want: verbs{traffic.Leave: key},
		},
		"a Pod that is being deleted is not announced": {
			pod: view(terminating), employers: []traffic.Employer{web(watched(true, 0))},
		},
		"a Pod that has run to its end leaves": {
			pod: view(announced, held, terminal), employers: []traffic.Employer{web(watched(false, drain))}, outSince: drain,
			want: verbs{traffic.Leave: key},
		},
		"a Pod without the gate has nothing to wait for": {
			pod: view(withoutGate), employers: []traffic.Employer{web(watched(true, 0))},
		},
		"a Pod without the gate is released of what it has": {
			pod: view(withoutGate, announced, held), employers: []traffic.Employer{web(watched(true, 0))},
			want: verbs{traffic.Forget: key},
		},
		"a backend that moves traffic needs no gate": {
			pod: view(withoutGate), employers: []traffic.Employer{web(moved(true, 0))},
			want: verbs{traffic.Expect: key, traffic.Join: key},
		},
		"a Pod that is not managed is ignored": {
			pod: view(), unmanaged: true, employers: []traffic.Employer{web(watched(true, 0))},
		},
		"a Pod that is not managed any more is released": {
			pod: view(announced, held), unmanaged: true, employers: []traffic.Employer{web(watched(true, 0))},
			want: verbs{traffic.Forget: key},
		},
		"an employer that does not select the Pod any more releases it": {
			pod: view(announced, held), employers: []traffic.Employer{web(traffic.Backend{Adapter: "endpointslice"})},
			want: verbs{traffic.Forget: key},
		},
		"an employer that is gone releases it": {
			pod: view(announced, held), want: verbs{traffic.Forget: key},
		},
		"an employer that is gone releases a Pod that is being deleted": {
			pod: view(announced, held, terminating), want: verbs{traffic.Forget: key},
		},
		"what a dying Pod merely announces is not worth a write": {
			pod: view(announced, terminating),
		},
		"an employer of upstream without a kind is a Service that is gone": {
			pod: view(expecting("/shop/web", finalizer), held), employers: []traffic.Employer{web(watched(true, 0))},
			want: verbs{traffic.Expect: key, traffic.Forget: "/shop/web"},
		},
		"employers of other kinds are not ours to forget": {
			pod: view(expecting("Gateway/shop/edge", "prot.podopslifecycle.kusionstack.io/0123456789abcdef")),
		},
		"one employer of two leaves and the other stays listed": {
			pod: func() podops.View {
				v := view(announced, held, offline, expecting(otherKey, otherFin))
				v.Finalizers = append(v.Finalizers, otherFin)
				return v
			}(),
			employers: []traffic.Employer{
				{Key: otherKey, Finalizer: otherFin, Drain: drain, Backends: []traffic.Backend{watched(true, 0)}},
				web(watched(false, drain)),
			},
			outSince: drain, want: verbs{traffic.Leave: key}, waits: []traffic.Reason{traffic.WaitStillServing},
		},
		"a finalizer that an employer of another kind shares is kept": {
			pod:       view(announced, held, offline, expecting("Gateway/shop/web", finalizer)),
			employers: []traffic.Employer{web(watched(false, drain))},
			outSince:  drain, waits: []traffic.Reason{traffic.WaitSharedFinalizer},
		},
		"a shared finalizer does not keep a Pod that is being deleted": {
			pod:       view(announced, held, terminating, expecting("Gateway/shop/web", finalizer)),
			employers: []traffic.Employer{web(watched(false, drain))}, outSince: drain, want: verbs{traffic.Leave: key},
		},
		"the finalizer of a key without a kind keeps a Pod that is being deleted while the Service serves": {
			pod:       view(announced, held, terminating, expecting("/shop/web", finalizer)),
			employers: []traffic.Employer{web(watched(true, 0))},
			want:      verbs{traffic.Forget: "/shop/web"}, waits: []traffic.Reason{traffic.WaitStillServing},
		},
		"a shared finalizer goes when both employers of the kind have let go": {
			pod:       view(announced, held, offline, expecting(otherKey, finalizer)),
			employers: []traffic.Employer{web(watched(false, drain)), sharing(watched(false, drain))},
			outSince:  drain, want: verbs{traffic.Leave: otherKey},
		},
		"a shared finalizer stays while the other employer serves": {
			pod:       view(announced, held, offline, expecting(otherKey, finalizer)),
			employers: []traffic.Employer{web(watched(false, drain)), sharing(watched(true, 0))},
			outSince:  drain, waits: []traffic.Reason{traffic.WaitStillServing, traffic.WaitSharedFinalizer},
		},
		"a shared finalizer keeps a Pod that is being deleted while the other employer serves": {
			pod:       view(announced, held, terminating, expecting(otherKey, finalizer)),
			employers: []traffic.Employer{web(watched(false, drain)), sharing(watched(true, 0))},
			outSince:  drain, waits: []traffic.Reason{traffic.WaitStillServing, traffic.WaitSharedFinalizer},
		},
		"a mover does not register a Pod that does not name its employer": {
			pod: view(), employers: []traffic.Employer{web(moved(false, 0))}, want: verbs{traffic.Expect: key},
			waits: []traffic.Reason{traffic.WaitNotServing},
		},
		"a Pod that a mover has taken out is forgotten after the drain time": {
			pod:       view(announced, held),
			employers: []traffic.Employer{web(traffic.Backend{Moves: true, NotServingSince: ago(4 * time.Second)})},
			waits:     []traffic.Reason{traffic.WaitDraining}, nextLook: 6 * time.Second,
		},
		"a Pod that a mover took out long ago is forgotten": {
			pod:       view(announced, held),
			employers: []traffic.Employer{web(traffic.Backend{Moves: true, NotServingSince: ago(drain)})},
			want:      verbs{traffic.Forget: key},
		},
		"a backend that cannot be asked keeps the Pod": {
			pod:       view(announced, held, offline),
			employers: []traffic.Employer{web(traffic.Backend{Employs: true, Unknown: true})}, outSince: time.Hour,
			waits: []traffic.Reason{traffic.WaitUnknown},
		},
		"a backend that cannot be asked does not let the Pod join": {
			pod:       view(announced),
			employers: []traffic.Employer{web(traffic.Backend{Employs: true, Unknown: true, Serving: true})},
			waits:     []traffic.Reason{traffic.WaitUnknown},
		},
		"a broken annotation keeps the Pod from joining": {
			pod: view(broken), employers: []traffic.Employer{web(watched(true, 0))},
			waits: []traffic.Reason{traffic.WaitAnnotation},
		},
		"a broken annotation does not keep the Pod from leaving": {
			pod: view(broken, held, offline), employers: []traffic.Employer{web(watched(false, drain))}, outSince: drain,
			want: verbs{traffic.Leave: key},
		},
		"a mover registers a Pod that may serve": {
			pod: view(announced), employers: []traffic.Employer{web(moved(false, 0))},
			waits: []traffic.Reason{traffic.WaitNotServing}, moves: []traffic.Verb{traffic.Register}, nextLook: 3 * time.Second,
		},
		"a mover does not register for an employer that could vanish": {
			pod: view(announced), employers: []traffic.Employer{{Key: key, Finalizer: finalizer,
				Backends: []traffic.Backend{moved(false, 0)}}},
			waits: []traffic.Reason{traffic.WaitEmployer},
		},
		"a mover registers again what its backend has lost": {
			pod: view(announced, held), employers: []traffic.Employer{web(moved(false, 0))},
			waits: []traffic.Reason{traffic.WaitNotServing}, moves: []traffic.Verb{traffic.Register}, nextLook: 3 * time.Second,
		},
		"a mover takes out a Pod on its way out": {
			pod: view(announced, held, offline), employers: []traffic.Employer{web(moved(true, 0))}, outSince: time.Hour,
			waits: []traffic.Reason{traffic.WaitStillServing}, moves: []traffic.Verb{traffic.Deregister},
			nextLook: 3 * time.Second,
		},
		"a mover takes a Pod out before it is forgotten": {
			pod:       view(announced, held),
			employers: []traffic.Employer{web(traffic.Backend{Adapter: "proxy", Moves: true, Serving: true})},
			waits:     []traffic.Reason{traffic.WaitStillServing}, moves: []traffic.Verb{traffic.Deregister},
			nextLook: time.Second,
		},
		"a Pod joins when every backend has it": {
			pod: view(announced), employers: []traffic.Employer{web(watched(true, 0), moved(false, 0))},
			waits: []traffic.Reason{traffic.WaitNotServing}, moves: []traffic.Verb{traffic.Register}, nextLook: 3 * time.Second,
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := traffic.Snapshot{
				Pod: tc.pod, Managed: !tc.unmanaged, Kind: "Service", Employers: tc.employers,
				OutOfServiceSince: ago(tc.outSince), Now: now,
			}
			plan := traffic.Decide(s)
			want := tc.want
			if want == nil {
				want = verbs{}
			}
			require.Empty(t, cmp.Diff(want, written(plan)))
			require.Equal(t, tc.waits, reasons(plan))
			require.Equal(t, tc.nextLook, plan.NextLook)
			require.Equal(t, len(plan.Written) == 0, plan.Change.IsZero(),
				"a change without an action, or an action without a change")
			var moves []traffic.Verb
			for _, m := range plan.Moves {
				moves = append(moves, m.Verb)
			}
			require.Equal(t, tc.moves, moves)
			s.Pod = plan.Change.Apply(s.Pod)
			require.True(t, traffic.Decide(s).Change.IsZero(), "the same again once it is written")
		})
	}
}

func TestForgetRemovesBothInOneWrite(t *testing.T) {
	pod := view(announced, held)
	after := traffic.Decide(traffic.Snapshot{Pod: pod, Managed: true, Kind: "Service", Now: now}).Change.Apply(pod)
	require.Empty(t, after.Finalizers)
	expected, err := podops.ExpectedFinalizers(after.Annotations)
	require.NoError(t, err)
	require.Empty(t, expected)
}

func TestTheLastToLeaveLetsTheOperatorAct(t *testing.T) {
	pod := view(announced, held)
	begin, err := podops.Begin(pod, podops.Request{ID: "op", Type: podops.TypeUpdate}, now)
	require.NoError(t, err)
	pod = begin.Apply(pod)
	verdicts := podops.Verdicts{{ID: "op", Stage: "PreCheck"}: true}
	pod = podops.Advance(pod, verdicts, now).Apply(pod)
	require.Equal(t, podops.PhasePreparing, podops.PhaseOf(pod, "op"))
	plan := traffic.Decide(traffic.Snapshot{
		Pod: pod, Managed: true, Kind: "Service", Employers: []traffic.Employer{web(watched(false, drain))},
		OutOfServiceSince: ago(drain), Now: now,
	})
	require.Equal(t, podops.PhaseOperate, podops.PhaseOf(plan.Change.Apply(pod), "op"))
}

func TestFinalizerConflicts(t *testing.T) {
	conflicts := func(managed bool, pairs ...string) []traffic.FinalizerConflict {
		other := web(watched(true, 0))
		other.Key, other.Finalizer = otherKey, otherFin
		return traffic.Decide(traffic.Snapshot{
			Pod: view(announced, expecting(pairs...)), Managed: managed, Kind: "Service", Now: now,
			Employers: []traffic.Employer{web(watched(true, 0)), other},
		}).FinalizerConflicts
	}
	ingress, gateway, admin := "Ingress/shop/web", "Gateway/shop/web", "Gateway/shop/admin"
	require.Equal(t, []traffic.FinalizerConflict{{otherKey, admin}, {key, gateway}, {key, ingress}},
		conflicts(true, ingress, finalizer, gateway, finalizer, admin, otherFin))
	require.Empty(t, conflicts(true, otherKey, otherFin, "/shop/web", finalizer), "a key without a kind is a Service's")
	require.Empty(t, conflicts(false, gateway, finalizer), "the Pod is released")
}
