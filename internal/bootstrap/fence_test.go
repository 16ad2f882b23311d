package bootstrap

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clocktesting "k8s.io/utils/clock/testing"
)

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func TestAnOldLeaderWritesNothing(t *testing.T) {
	const lease = "/apis/coordination.k8s.io/v1/namespaces/kuperator-system/leases/collaset-controller"
	const pods = "/api/v1/namespaces/default/pods"
	now := clocktesting.NewFakeClock(time.Unix(1e9, 0))
	refuse := false
	sent := 0
	transport := &fencedTransport{fence: &leaseFence{lease: lease, deadline: 10 * time.Second, clock: now},
		next: roundTripper(func(*http.Request) (*http.Response, error) {
			sent++
			recorder := httptest.NewRecorder()
			if refuse {
				recorder.WriteHeader(http.StatusConflict)
			}
			return recorder.Result(), nil
		})}
	ask := func(method, path string) error {
		response, err := transport.RoundTrip(httptest.NewRequest(method, "https://server"+path, strings.NewReader("{}")))
		if err == nil {
			require.NoError(t, response.Body.Close())
		}
		return err
	}

	now.Step(time.Hour)
	require.NoError(t, ask(http.MethodPost, pods),
		"whoever has never led may write: it waits for its Lease by other means")
	require.NoError(t, ask(http.MethodPut, lease))
	now.Step(10 * time.Second)
	require.NoError(t, ask(http.MethodPatch, pods))

	now.Step(time.Second)
	was := sent
	require.ErrorContains(t, ask(http.MethodPatch, pods), "last renewed 11s ago")
	require.ErrorContains(t, ask(http.MethodPost, pods), "another replica may lead")
	require.ErrorContains(t, ask(http.MethodDelete, pods+"/web"), "another replica may lead")
	require.Equal(t, was, sent, "nothing was sent")
	require.NoError(t, ask(http.MethodGet, pods))
	require.NoError(t, ask(http.MethodPost, "/apis/authentication.k8s.io/v1/tokenreviews"), "reading metrics goes on")

	refuse = true
	require.NoError(t, ask(http.MethodPut, lease), "the Lease itself may always be asked for")
	require.Error(t, ask(http.MethodPatch, pods), "it was not granted")
	refuse = false
	require.NoError(t, ask(http.MethodPut, lease))
	require.NoError(t, ask(http.MethodPatch, pods))
}
