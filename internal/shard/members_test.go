package shard

import (
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
)

const system = "kuperator-system"

// renewed are replicas that renew one Lease, which all of them see at once.
type renewed struct {
	*testing.T
	clock    *clocktesting.FakeClock
	client   *fake.Clientset
	replicas []*announcer
}

func newRenewed(t *testing.T) *renewed {
	clk := clocktesting.NewFakeClock(time.Unix(1e9, 0))
	first := lease(record("", clk.Now()))
	first.Namespace = system
	r := &renewed{T: t, clock: clk, client: fake.NewClientset(first)}
	patch := clienttesting.ObjectReaction(r.client.Tracker())
	r.client.PrependReactor("patch", "leases", func(action clienttesting.Action) (bool, runtime.Object, error) {
		handled, object, err := patch(action)
		if err != nil && apierrors.ReasonForError(err) == metav1.StatusReasonUnknown { // as the API server has it
			err = apierrors.NewGenericServerResponse(http.StatusUnprocessableEntity, "patch", coordinationv1.Resource("leases"),
				name, err.Error(), 0, false)
		}
		return handled, object, err
	})
	return r
}

func (r *renewed) replica(shards int, identity string) *announcer {
	a := &announcer{
		LeasesGetter: r.client.CoordinationV1(), view: newLeaseView(r.clock, name),
		identity: identity, shared: Identity(shards), key: memberKey(shards, identity),
	}
	r.replicas = append(r.replicas, a)
	r.show()
	return a
}

func (r *renewed) lease() *coordinationv1.Lease {
	r.Helper()
	l, err := r.client.CoordinationV1().Leases(system).Get(r.Context(), name, metav1.GetOptions{})
	require.NoError(r, err)
	return l
}

// show has all replicas see the Lease.
func (r *renewed) show() {
	r.Helper()
	for _, a := range r.replicas {
		a.view.observe(r.lease())
	}
}

// renews has a replica renew the Lease. It returns with which verbs.
func (r *renewed) renews(a *announcer) []string {
	r.Helper()
	next := r.next(a, lasts)
	r.client.ClearActions()
	_, err := a.Leases(system).Update(r.Context(), next, metav1.UpdateOptions{})
	require.NoError(r, err)
	verbs := r.verbs()
	r.show()
	return verbs
}

func (r *renewed) verbs() []string {
	var verbs []string
	for _, action := range r.client.Actions() {
		verbs = append(verbs, action.GetVerb())
	}
	return verbs
}

// next is what an elector has a replica write.
func (r *renewed) next(a *announcer, duration time.Duration) *coordinationv1.Lease {
	r.Helper()
	next := record(a.shared, r.clock.Now())
	next.LeaseDurationSeconds = int(duration / time.Second)
	l := r.lease()
	l.Spec = resourcelock.LeaderElectionRecordToLeaseSpec(&next)
	return l
}

func TestMembers(t *testing.T) {
	r := newRenewed(t)
	a, b, other := r.replica(4, "a"), r.replica(4, "b"), r.replica(3, "c")

	require.Equal(t, []string{"update"}, r.renews(a), "it was nobody's")
	require.Equal(t, []string{"a"}, b.view.membersOf(4))
	require.Equal(t, []string{"patch"}, r.renews(b))
	require.ElementsMatch(t, []string{"a", "b"}, a.view.membersOf(4))
	require.Empty(t, other.view.membersOf(4-1), "those of another number are others")

	r.clock.Step(10 * time.Second)
	r.renews(b)
	r.clock.Step(lasts - 10*time.Second)
	require.Equal(t, []string{"b"}, b.view.membersOf(4), "a has written nothing for as long as a Lease lasts")
	gone := b.view.silent()
	require.Len(t, gone, 1)
	require.Contains(t, gone, a.key)
	r.renews(a)
	b.removeStale(t.Context(), system, name, gone)
	r.show()
	require.ElementsMatch(t, []string{"a", "b"}, b.view.membersOf(4), "it is there again, which b did not know")

	r.clock.Step(lasts - time.Second)
	r.renews(b)
	r.clock.Step(time.Second)
	b.removeStale(t.Context(), system, name, b.view.silent())
	require.Len(t, r.lease().Annotations, 1, "a is wiped out")
	r.renews(a)

	require.NoError(t, b.leave(t.Context(), system, name))
	require.NoError(t, b.leave(t.Context(), system, name), "a second time changes nothing")
	r.renews(b)
	require.Equal(t, []string{"a"}, a.view.membersOf(4), "who leaves announces itself no more, though it renews")
	a.view.forget(name)
	require.Empty(t, a.view.membersOf(4), "the Lease was deleted")
}

// TestRenewing the Lease together, when what is on the server is not what this replica has seen.
func TestRenewing(t *testing.T) {
	held := func(holder string) func(*coordinationv1.Lease) {
		return func(l *coordinationv1.Lease) { l.Spec.HolderIdentity = ptr.To(holder) }
	}
	tests := map[string]struct {
		meanwhile    func(*coordinationv1.Lease)
		duration     time.Duration
		wantVerbs    []string
		wantDuration time.Duration
		wantErr      bool
	}{
		"as it was seen":     {duration: lasts, wantVerbs: []string{"patch"}, wantDuration: lasts},
		"a shorter duration": {duration: lasts / 2, wantVerbs: []string{"patch"}, wantDuration: lasts},
		"a longer duration":  {duration: 2 * lasts, wantVerbs: []string{"get", "update"}, wantDuration: 2 * lasts},
		"without annotations": {duration: lasts, meanwhile: func(l *coordinationv1.Lease) { l.Annotations = nil },
			wantVerbs: []string{"patch", "get", "update"}, wantDuration: lasts},
		"lengthened by another": {duration: lasts,
			meanwhile: func(l *coordinationv1.Lease) { l.Spec.LeaseDurationSeconds = ptr.To[int32](60) },
			wantVerbs: []string{"patch", "get", "update"}, wantDuration: time.Minute},
		"held by another number": {duration: lasts, meanwhile: held(Identity(3)), wantVerbs: []string{"patch", "get"},
			wantErr: true},
		"given back": {duration: lasts, meanwhile: held(""), wantVerbs: []string{"patch", "get"}, wantErr: true},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			r := newRenewed(t)
			a := r.replica(4, "a")
			r.renews(a)
			r.clock.Step(time.Second)
			before := r.lease()
			if tc.meanwhile != nil {
				tc.meanwhile(before)
				_, err := r.client.CoordinationV1().Leases(system).Update(t.Context(), before, metav1.UpdateOptions{})
				require.NoError(t, err)
			}
			next := r.next(a, tc.duration)
			r.client.ClearActions()
			got, err := a.Leases(system).Update(t.Context(), next, metav1.UpdateOptions{})
			require.Equal(t, tc.wantVerbs, r.verbs())
			if tc.wantErr {
				require.True(t, apierrors.IsConflict(err), err)
				require.Equal(t, before.Spec, r.lease().Spec, "it is left alone")
				return
			}
			require.NoError(t, err)
			require.Equal(t, got, r.lease())
			require.Equal(t, next.Spec.RenewTime, got.Spec.RenewTime)
			require.Equal(t, tc.wantDuration, time.Duration(*got.Spec.LeaseDurationSeconds)*time.Second)
			require.Equal(t, map[string]string{a.key: announce("a", r.clock.Now())}, got.Annotations)
		})
	}
}
