package shard

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
)

const (
	name  = "collaset-controller"
	lasts = 30 * time.Second
	// term10and15 is for how long a holder counts on its Lease after a renewal.
	term10and15 = 25 * time.Second
)

// server holds the Lease as the API server has it.
type server struct {
	resourcelock.Interface
	me     string
	record *resourcelock.LeaderElectionRecord
	reads  int
	fail   error
}

func (s *server) Get(context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	s.reads++
	if s.fail != nil {
		return nil, nil, s.fail
	}
	record := *s.record
	raw, err := json.Marshal(record)
	return &record, raw, err
}

func (s *server) Update(_ context.Context, record resourcelock.LeaderElectionRecord) error {
	if s.fail != nil {
		return s.fail
	}
	s.record = &record
	return nil
}

func (s *server) Identity() string { return s.me }
func (s *server) Describe() string { return "kuperator-system/" + name }

func record(holder string, renewed time.Time) resourcelock.LeaderElectionRecord {
	return resourcelock.LeaderElectionRecord{HolderIdentity: holder, LeaseDurationSeconds: int(lasts / time.Second),
		RenewTime: metav1.NewTime(renewed)}
}

func lease(r resourcelock.LeaderElectionRecord) *coordinationv1.Lease {
	return &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: resourcelock.LeaderElectionRecordToLeaseSpec(&r)}
}

func newTestLock(clk *clocktesting.FakeClock, holder string) (*lock, *server) {
	s := &server{me: "me", record: ptr.To(record(holder, clk.Now()))}
	l := &lock{Interface: s, name: name, view: newLeaseView(clk, ""), patient: true,
		lease: &leaseTerm{clock: clk, lasts: term10and15}}
	l.view.observe(lease(*s.record))
	return l, s
}

// getting has a candidate wait for the Lease. The channel tells whom it finds to hold it in the end, if nothing fails.
func getting(t *testing.T, clk *clocktesting.FakeClock, l *lock) <-chan string {
	t.Helper()
	got := make(chan string, 1)
	go func() {
		record, _, err := l.Get(t.Context())
		if err == nil {
			got <- record.HolderIdentity
		}
	}()
	require.Eventually(t, clk.HasWaiters, time.Minute, time.Millisecond)
	return got
}

// TestAHolderThatSleptHoldsNothing: whether or not another process has had the Lease meanwhile, and gave it back.
func TestAHolderThatSleptHoldsNothing(t *testing.T) {
	tests := map[string]struct {
		sleep time.Duration
		now   string // the holder after that
		lost  bool
	}{
		"not for long":                    {sleep: term10and15 - time.Second, now: "me"},
		"too long":                        {sleep: term10and15, now: "me", lost: true},
		"another held it, and is gone":    {sleep: time.Minute, lost: true},
		"another holds it":                {sleep: time.Minute, now: "other", lost: true},
		"somebody took it before its end": {sleep: time.Second, now: "other", lost: true},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			clk := clocktesting.NewFakeClock(time.Unix(1e9, 0))
			l, s := newTestLock(clk, "")
			require.NoError(t, l.Update(t.Context(), record("me", clk.Now())))
			fence := &LeaseFence{terms: []*leaseTerm{l.lease}}
			require.True(t, fence.open())

			clk.Step(tc.sleep)
			s.record.HolderIdentity = tc.now
			require.Equal(t, tc.sleep < term10and15, fence.open(), "before it has noticed anything")
			got, _, err := l.Get(t.Context())
			require.NoError(t, err)
			require.Equal(t, tc.now, got.HolderIdentity)
			err = l.Update(t.Context(), record("me", clk.Now()))
			require.Equal(t, !tc.lost, fence.open())
			if tc.lost {
				require.ErrorContains(t, err, "others may have acted since")
				require.Equal(t, tc.now, s.record.HolderIdentity, "it is left alone")
				return
			}
			require.NoError(t, err)
		})
	}
}

// TestARenewalThatTookTooLong does not open the fence again.
func TestARenewalThatTookTooLong(t *testing.T) {
	clk := clocktesting.NewFakeClock(time.Unix(1e9, 0))
	own := &leaseTerm{clock: clk, lasts: term10and15}
	own.renewed(clk.Now())
	asked := clk.Now().Add(term10and15 - time.Second)
	clk.Step(term10and15)
	own.renewed(asked)
	require.False(t, own.running())
}

func TestNothingIsGivenBackThat(t *testing.T) {
	released := resourcelock.LeaderElectionRecord{LeaseDurationSeconds: 1}
	t.Run("another has taken", func(t *testing.T) {
		clk := clocktesting.NewFakeClock(time.Unix(1e9, 0))
		l, s := newTestLock(clk, "")
		require.NoError(t, l.Update(t.Context(), record("me", clk.Now())))
		s.record.HolderIdentity = "other"
		_, _, err := l.Get(t.Context()) // as client-go does before it releases
		require.NoError(t, err)
		require.ErrorContains(t, l.Update(t.Context(), released), `which "other" holds`)
		require.Equal(t, "other", s.record.HolderIdentity)
	})
	t.Run("is in use", func(t *testing.T) {
		clk := clocktesting.NewFakeClock(time.Unix(1e9, 0))
		l, s := newTestLock(clk, "")
		require.NoError(t, l.Update(t.Context(), record("me", clk.Now())))
		l.inUse.Store(true)
		require.ErrorContains(t, l.Update(t.Context(), released), "has not ended")
		require.Equal(t, "me", s.record.HolderIdentity)
		l.inUse.Store(false)
		require.NoError(t, l.Update(t.Context(), released))
		require.Empty(t, s.record.HolderIdentity)
		require.False(t, l.lease.running())
	})
}

// TestACandidateWaits for the Lease instead of asking for it again and again.
func TestACandidateWaits(t *testing.T) {
	tests := map[string]struct {
		end   func(*lock, *server, *clocktesting.FakeClock)
		shown string
	}{
		"until it is given back": {func(l *lock, s *server, clk *clocktesting.FakeClock) {
			*s.record = record("", clk.Now())
			l.view.observe(lease(*s.record))
		}, ""},
		"until it has run out": {func(_ *lock, _ *server, clk *clocktesting.FakeClock) { clk.Step(lasts) }, ""},
		"however often it is renewed": {func(l *lock, s *server, clk *clocktesting.FakeClock) {
			for range 5 {
				clk.Step(10 * time.Second)
				*s.record = record("other", clk.Now())
				l.view.observe(lease(*s.record))
			}
			clk.Step(lasts)
		}, ""},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			clk := clocktesting.NewFakeClock(time.Unix(1e9, 0))
			l, s := newTestLock(clk, "other")
			shown := make(chan string, 1)
			go func() {
				got, _, err := l.Get(t.Context())
				if err != nil {
					shown <- err.Error()
					return
				}
				shown <- got.HolderIdentity
			}()
			require.Eventually(t, clk.HasWaiters, time.Minute, time.Millisecond)
			require.Empty(t, shown)
			tc.end(l, s, clk)
			require.Equal(t, tc.shown, <-shown)
			require.LessOrEqual(t, s.reads, 2)
		})
	}

	t.Run("until it is asked to end", func(t *testing.T) {
		clk := clocktesting.NewFakeClock(time.Unix(1e9, 0))
		l, _ := newTestLock(clk, "other")
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		got, _, err := l.Get(ctx)
		require.NoError(t, err)
		require.Equal(t, "other", got.HolderIdentity)
	})
	t.Run("not without seeing it, as without a right to watch", func(t *testing.T) {
		clk := clocktesting.NewFakeClock(time.Unix(1e9, 0))
		l, s := newTestLock(clk, "other")
		l.view.forget(name)
		got := getting(t, clk, l)
		clk.Step(lookAgain)
		require.Equal(t, "other", <-got)
		require.Equal(t, 1, s.reads)
	})
	t.Run("though the watch is silent", func(t *testing.T) {
		clk := clocktesting.NewFakeClock(time.Unix(1e9, 0))
		l, s := newTestLock(clk, "other")
		clk.Step(lasts)
		*s.record = record("other", clk.Now())
		got := getting(t, clk, l)
		clk.Step(lasts - time.Second)
		require.Empty(t, got)
		require.Equal(t, 1, s.reads)
		clk.Step(time.Second)
		require.Empty(t, <-got, "nobody has renewed it for as long as it lasts")
		require.Equal(t, 2, s.reads)
	})
	t.Run("not for an answer that does not come", func(t *testing.T) {
		clk := clocktesting.NewFakeClock(time.Unix(1e9, 0))
		l, s := newTestLock(clk, "other")
		s.fail = errors.New("no answer")
		_, _, err := l.Get(t.Context())
		require.ErrorIs(t, err, s.fail)
	})
}

type sent int

func (s *sent) RoundTrip(*http.Request) (*http.Response, error) {
	*s++
	return httptest.NewRecorder().Result(), nil
}

func TestAFenceHoldsWritesBack(t *testing.T) {
	clk := clocktesting.NewFakeClock(time.Unix(1e9, 0))
	own, gate := &leaseTerm{clock: clk, lasts: term10and15}, &leaseTerm{clock: clk, lasts: term10and15}
	tests := map[string]struct {
		fence *LeaseFence
		open  bool
	}{
		"of nothing":                 {&LeaseFence{}, false},
		"before a renewal":           {&LeaseFence{terms: []*leaseTerm{own}}, false},
		"without the component's":    {&LeaseFence{terms: []*leaseTerm{gate, own}}, false},
		"while both Leases are held": {&LeaseFence{terms: []*leaseTerm{gate, gate}}, true},
		"of whoever has never led":   {&LeaseFence{terms: []*leaseTerm{own}, candidate: true}, true},
	}
	gate.renewed(clk.Now())
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			var count sent
			transport := tc.fence.Wrap(&count)
			ask := func(method string) error {
				response, err := transport.RoundTrip(httptest.NewRequest(method, "https://server/api/v1/pods",
					strings.NewReader("{}")))
				if err == nil {
					return response.Body.Close()
				}
				return err
			}
			require.NoError(t, ask(http.MethodGet))
			for _, method := range []string{http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete} {
				require.Equal(t, tc.open, ask(method) == nil, method)
			}
			require.Equal(t, map[bool]sent{false: 1, true: 5}[tc.open], count)
		})
	}
}

func TestAnOldLeaderWritesNothing(t *testing.T) {
	clk := clocktesting.NewFakeClock(time.Unix(1e9, 0))
	term := &leaseTerm{clock: clk, lasts: term10and15}
	var count sent
	transport := (&LeaseFence{terms: []*leaseTerm{term}, candidate: true}).Wrap(&count)
	ask := func(method, path string) error {
		response, err := transport.RoundTrip(httptest.NewRequest(method, "https://server"+path, strings.NewReader("{}")))
		if err == nil {
			return response.Body.Close()
		}
		return err
	}
	const pods = "/api/v1/namespaces/default/pods"

	clk.Step(time.Hour)
	require.NoError(t, ask(http.MethodPost, pods),
		"whoever has never led may write: it waits for its Lease by other means")
	term.renewed(clk.Now())
	clk.Step(term10and15 - time.Millisecond)
	require.NoError(t, ask(http.MethodPatch, pods))

	clk.Step(time.Millisecond)
	was := count
	for _, method := range []string{http.MethodPatch, http.MethodPost, http.MethodDelete} {
		require.ErrorContains(t, ask(method, pods), "another replica may lead")
	}
	require.Equal(t, was, count, "nothing was sent")
	require.NoError(t, ask(http.MethodGet, pods))
	for _, review := range []string{"authentication.k8s.io/v1/tokenreviews",
		"authorization.k8s.io/v1/subjectaccessreviews"} {
		require.NoError(t, ask(http.MethodPost, "/apis/"+review), "reading metrics goes on")
	}
}

func TestALeaderThatGaveItsLeaseBackSendsWhatIsLeft(t *testing.T) {
	clk := clocktesting.NewFakeClock(time.Unix(1e9, 0))
	term := &leaseTerm{clock: clk, lasts: term10and15}
	fence := &LeaseFence{terms: []*leaseTerm{term}, candidate: true}
	term.renewed(clk.Now())
	term.end()
	require.True(t, fence.open(), "its last events")
	clk.Step(term10and15)
	require.False(t, fence.open())
	term.renewed(clk.Now())
	require.False(t, fence.open(), "what was lost is lost")
}
