package bootstrap

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"
)

func TestAWatchDoesNotGoOnFromATimeThatWasUndone(t *testing.T) {
	const pods = "/api/v1/pods"
	now := clocktesting.NewFakeClock(time.Unix(1e9, 0))
	newest, code := "100", http.StatusOK
	var asked []string
	transport := &turnbackTransport{turnback: newTurnback(now), next: roundTripper(func(r *http.Request) (*http.Response, error) {
		recorder := httptest.NewRecorder()
		if r.URL.Query().Get("watch") == "" {
			asked = append(asked, r.URL.RawQuery)
			fmt.Fprintf(recorder, `{"kind":"PartialObjectMetadataList","metadata":{"resourceVersion":%q}}`, newest)
		}
		recorder.Code = code
		return recorder.Result(), nil
	})}
	// watch lasts so long, and returns the code of the answer.
	watch := func(from string, lasts time.Duration) (int, string) {
		t.Helper()
		r := httptest.NewRequest(http.MethodGet, "https://server"+pods+"?watch=true&allowWatchBookmarks=true&timeoutSeconds=300&labelSelector=a%3Db&resourceVersion="+from, nil)
		response, err := transport.RoundTrip(r)
		if err != nil {
			return 0, err.Error()
		}
		now.Step(lasts)
		body, err := io.ReadAll(response.Body)
		require.NoError(t, err)
		require.NoError(t, response.Body.Close())
		return response.StatusCode, string(body)
	}
	ok := func(from string, lasts time.Duration) {
		t.Helper()
		status, body := watch(from, lasts)
		require.Equal(t, http.StatusOK, status, body)
	}

	ok("90", 300*time.Second)
	ok("110", 300*time.Second)
	require.Empty(t, asked, "nothing is asked about watches that ran their time")

	ok("90", time.Minute)
	ok("100", 300*time.Second)
	require.Equal(t, []string{"limit=1"}, asked, "it broke off")
	ok("100", time.Minute)
	require.Len(t, asked, 1)

	newest = "80"
	status, body := watch("100", 0)
	require.Equal(t, http.StatusGone, status)
	require.Contains(t, body, "gone back from resourceVersion 100 to 80")
	require.Contains(t, body, `"reason":"Expired"`)
	ok("80", 300*time.Second)
	require.Len(t, asked, 3, "it went back once more, for all that is known")

	code = http.StatusServiceUnavailable
	status, _ = watch("80", 0)
	require.Equal(t, code, status, "as the API server says")
	status, _ = watch("80", 0)
	require.Equal(t, code, status, "nor can this be told: the watch is tried again")
	require.Len(t, asked, 4)
	code = http.StatusForbidden
	status, _ = watch("80", 0)
	require.Equal(t, code, status, "as an API server says that knows no roles yet")
	require.Len(t, asked, 5)
	code = http.StatusOK
	status, _ = watch("90", 0)
	require.Equal(t, http.StatusGone, status)
	require.Len(t, asked, 6)
}

// restored is an API server that can be away and gone back, with a client that notices.
type restored struct {
	*turnbackTransport
	t       *testing.T
	newest  string
	away    atomic.Bool
	serves  bool
	written []string
	// events are those of a list in the form of a watch.
	events string
}

func newRestored(t *testing.T) *restored {
	r := &restored{t: t, newest: "100", serves: true}
	r.turnbackTransport = &turnbackTransport{turnback: newTurnback(clock.RealClock{}), next: roundTripper(func(request *http.Request) (*http.Response, error) {
		recorder := httptest.NewRecorder()
		switch watch := request.URL.Query().Get("watch") != ""; {
		case r.away.Load():
			return nil, syscall.ECONNREFUSED
		case watch && !r.serves:
			recorder.Code = http.StatusNotFound
		case watch && request.URL.Query().Get("sendInitialEvents") != "":
			recorder.Body = bytes.NewBufferString(r.events)
		case watch:
		case request.Method != http.MethodGet:
			r.written = append(r.written, request.URL.Path)
		default:
			fmt.Fprintf(recorder, `{"kind":"PartialObjectMetadataList","metadata":{"resourceVersion":%q}}`, r.newest)
		}
		return recorder.Result(), nil
	})}
	return r
}

// watch asks for a watch, which breaks off at once if it is to, and returns the code of the answer.
func (r *restored) watch(from string, breaks bool) int {
	r.t.Helper()
	response, err := r.RoundTrip(httptest.NewRequest(http.MethodGet, "https://server/api/v1/pods?watch=true&timeoutSeconds=300&resourceVersion="+from, nil))
	require.NoError(r.t, err)
	if breaks {
		_, err := io.ReadAll(response.Body)
		require.NoError(r.t, err)
	}
	return response.StatusCode
}

// writes sends a write, and returns how long it took.
func (r *restored) writes(path string) (time.Duration, error) {
	began := time.Now()
	_, err := r.RoundTrip(httptest.NewRequest(http.MethodPost, "https://server"+path, nil))
	return time.Since(began), err
}

const (
	aPod = "/api/v1/namespaces/default/pods"
	// listed is what is read of a list in the form of a watch until it is complete.
	listed = `{"type":"ADDED"}{"type":"BOOKMARK","object":{"metadata":{"annotations":{"k8s.io/initial-events-end`
	aLease = "/apis/coordination.k8s.io/v1/namespaces/default/leases/x"
)

func TestAWriteWaitsForWatchesThatBrokeOff(t *testing.T) {
	for name, tc := range map[string]struct {
		// meanwhile happens a second after the write was sent.
		meanwhile func(*restored)
		away      bool
		path      string
		wantAfter time.Duration
		wantErr   string
	}{
		"the watch goes on where it was": {
			path: aPod, wantAfter: time.Second,
			meanwhile: func(r *restored) { require.Equal(t, http.StatusOK, r.watch("100", false)) },
		},
		"the watch showed what was undone": {
			path: aPod, wantAfter: 4 * time.Second, wantErr: "gone back to an earlier state",
			meanwhile: func(r *restored) {
				r.newest = "80"
				require.Equal(t, http.StatusGone, r.watch("100", false))
				require.Equal(t, http.StatusOK, r.watch("80", false))
			},
		},
		"all is listed as a watch": {
			path: aPod, wantAfter: time.Second + time.Duration(len(listed))*10*time.Millisecond,
			meanwhile: func(r *restored) {
				r.events = listed
				response, err := r.RoundTrip(httptest.NewRequest(http.MethodGet, "https://server/api/v1/pods?watch=true&timeoutSeconds=300&sendInitialEvents=true&resourceVersion=90", nil))
				require.NoError(t, err)
				for range r.events {
					time.Sleep(10 * time.Millisecond)
					_, err := response.Body.Read(make([]byte, 1))
					require.NoError(t, err)
				}
			},
		},
		"what is to be listed was undone": {
			path: aPod, wantAfter: 10 * time.Second, wantErr: "watches have broken off",
			meanwhile: func(r *restored) {
				r.newest = "80"
				response, err := r.RoundTrip(httptest.NewRequest(http.MethodGet, "https://server/api/v1/pods?watch=true&sendInitialEvents=true&resourceVersion=90", nil))
				require.NoError(t, err)
				require.Equal(t, http.StatusGone, response.StatusCode)
			},
		},
		"the API server stays away": {
			path: aPod, away: true, wantAfter: 10 * time.Second, wantErr: "watches have broken off and do not go on",
			meanwhile: func(r *restored) { _, _ = r.writes(aLease) },
		},
		"nobody serves what is watched any more": {
			path: aPod, wantAfter: 10 * time.Second,
			meanwhile: func(r *restored) {
				r.serves = false
				require.Equal(t, http.StatusNotFound, r.watch("0", false))
			},
		},
		"a Lease does not wait":   {path: aLease},
		"an event does not wait":  {path: "/api/v1/namespaces/default/events"},
		"nor does a new one wait": {path: "/apis/events.k8s.io/v1/namespaces/default/events"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRestored(t)
				require.Equal(t, http.StatusOK, r.watch("90", true))
				r.away.Store(tc.away)
				if tc.meanwhile != nil {
					time.AfterFunc(time.Second, func() { tc.meanwhile(r) })
				}
				took, err := r.writes(tc.path)
				require.Equal(t, tc.wantAfter, took)
				if tc.wantErr != "" {
					require.ErrorContains(t, err, tc.wantErr)
					require.Empty(t, r.written)
				} else {
					require.NoError(t, err)
					require.Equal(t, []string{tc.path}, r.written)
				}
				r.away.Store(false)
				if tc.wantErr != "" {
					require.Equal(t, http.StatusOK, r.watch(r.newest, false))
					time.Sleep(reading + time.Second)
				}
				took, err = r.writes(aPod)
				require.NoError(t, err)
				if tc.path == aPod {
					require.Zero(t, took, "the next one does not wait")
				}
			})
		})
	}
}

// TestNoWriteWaitsForAWatchOfLeases, which an older Role does not allow. It is asked for how far the API server is nevertheless.
func TestNoWriteWaitsForAWatchOfLeases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRestored(t)
		watch := func() int {
			response, err := r.RoundTrip(httptest.NewRequest(http.MethodGet, "https://server"+aLease+"?watch=true&timeoutSeconds=300&resourceVersion=90", nil))
			require.NoError(t, err)
			return response.StatusCode
		}
		r.serves = false
		require.NotEqual(t, http.StatusOK, watch())
		took, err := r.writes(aPod)
		require.NoError(t, err)
		require.Zero(t, took)

		r.serves, r.newest = true, "80"
		require.Equal(t, http.StatusGone, watch())
		took, err = r.writes(aPod)
		require.NoError(t, err)
		require.Zero(t, took)
	})
}

func TestAWatchGoesOnSoonAfterTheAPIServerIsBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRestored(t)
		require.Equal(t, http.StatusOK, r.watch("90", true))
		r.away.Store(true)
		time.AfterFunc(5*time.Minute, func() { r.away.Store(false) })
		began := time.Now()
		require.Equal(t, http.StatusOK, r.watch("90", false))
		require.Less(t, time.Since(began), 5*time.Minute+time.Second)
	})
}

func TestAWatchThatItsClientEndsIsNotWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRestored(t)
		ctx, cancel := context.WithCancel(t.Context())
		response, err := r.RoundTrip(httptest.NewRequest(http.MethodGet, "https://server/api/v1/pods?watch=true", nil).WithContext(ctx))
		require.NoError(t, err)
		cancel()
		_, err = io.ReadAll(response.Body)
		require.NoError(t, err)
		took, err := r.writes(aPod)
		require.NoError(t, err)
		require.Zero(t, took)
	})
}
