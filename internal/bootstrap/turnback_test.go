package bootstrap

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clocktesting "k8s.io/utils/clock/testing"
)

func TestAWatchDoesNotGoOnFromATimeThatWasUndone(t *testing.T) {
	const pods = "/api/v1/pods"
	now := clocktesting.NewFakeClock(time.Unix(1e9, 0))
	newest, code := "100", http.StatusOK
	var asked []string
	transport := &turnbackTransport{turnback: &turnback{clock: now}, next: roundTripper(func(r *http.Request) (*http.Response, error) {
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
	require.Len(t, asked, 2)

	code = http.StatusServiceUnavailable
	status, _ = watch("80", 0)
	require.Equal(t, code, status, "as the API server says")
	status, _ = watch("80", 0)
	require.Equal(t, code, status, "nor can this be told: the watch is tried again")
	require.Len(t, asked, 3)
	code = http.StatusForbidden
	status, _ = watch("80", 0)
	require.Equal(t, code, status, "as an API server says that knows no roles yet")
	require.Len(t, asked, 4)
	code = http.StatusOK
	status, _ = watch("90", 0)
	require.Equal(t, http.StatusGone, status)
	require.Len(t, asked, 5)
}
