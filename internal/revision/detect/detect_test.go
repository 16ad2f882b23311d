package detect

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/version"
	"k8s.io/client-go/rest"
	testingclock "k8s.io/utils/clock/testing"

	"kusionstack.io/kuperator/internal/revision"
)

// server answers discovery as an API server of that version does.
type server struct {
	minor    string
	resizes  bool
	away     bool
	requests int
}

func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.requests++
	var answer any = version.Info{Major: "1", Minor: s.minor}
	if r.URL.Path == "/api/v1" {
		list := metav1.APIResourceList{GroupVersion: "v1",
			APIResources: []metav1.APIResource{{Name: "pods", Verbs: metav1.Verbs{"patch"}}}}
		if s.resizes {
			list.APIResources = append(list.APIResources,
				metav1.APIResource{Name: "pods/resize", Verbs: metav1.Verbs{"get", "patch", "update"}})
		}
		answer = list
	}
	if s.away {
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(answer)
}

// own is what no server tells.
var own = revision.Capabilities{Restart: "checksum/*", ImagesOnly: true}

func (s *server) detector(t *testing.T) (*Detector, *testingclock.FakePassiveClock) {
	t.Helper()
	listener := httptest.NewServer(s)
	t.Cleanup(listener.Close)
	clock := testingclock.NewFakePassiveClock(time.Unix(1_700_000_000, 0))
	d, err := New(&rest.Config{Host: listener.URL}, clock, own)
	require.NoError(t, err)
	return d, clock
}

func TestWhatServersCan(t *testing.T) {
	for name, tc := range map[string]struct {
		server server
		want   revision.Capabilities
	}{
		"a server without pods/resize": {server{minor: "36"}, revision.Capabilities{}},
		"1.33":                         {server{minor: "33", resizes: true}, revision.Capabilities{Resize: true}},
		"1.36": {server{minor: "36", resizes: true},
			revision.Capabilities{Resize: true, ResizeInit: true, ResizePod: true}},
		"1.36+, as some vendors write it": {server{minor: "36+", resizes: true},
			revision.Capabilities{Resize: true, ResizeInit: true, ResizePod: true}},
		"a version that nobody can compare": {server{minor: "new", resizes: true}, revision.Capabilities{Resize: true}},
	} {
		t.Run(name, func(t *testing.T) {
			d, _ := tc.server.detector(t)
			got, err := d.Capabilities(t.Context())
			require.NoError(t, err)
			tc.want.Restart, tc.want.ImagesOnly = own.Restart, own.ImagesOnly
			assert.Equal(t, tc.want, got)
		})
	}
}

func TestAnAnswerIsUsedForMinutes(t *testing.T) {
	s := &server{minor: "36", resizes: true}
	d, clock := s.detector(t)
	first, err := d.Capabilities(t.Context())
	require.NoError(t, err)
	asked := s.requests
	for range 100 {
		_, err := d.Capabilities(t.Context())
		require.NoError(t, err)
	}
	assert.Equal(t, asked, s.requests)

	s.away = true
	clock.SetTime(clock.Now().Add(refreshAfter))
	got, err := d.Capabilities(t.Context())
	require.NoError(t, err, "an old answer is better than none")
	assert.Equal(t, first, got)
	asked = s.requests
	_, err = d.Capabilities(t.Context())
	require.NoError(t, err)
	assert.Equal(t, asked, s.requests, "and is not asked for at once again")

	s.away, s.resizes = false, false
	clock.SetTime(clock.Now().Add(retryAfter))
	got, err = d.Capabilities(t.Context())
	require.NoError(t, err)
	assert.Equal(t, own, got)
}

func TestNothingIsAssumedOfAServerThatNeverAnswered(t *testing.T) {
	s := &server{minor: "36", resizes: true, away: true}
	d, _ := s.detector(t)
	_, err := d.Capabilities(t.Context())
	require.Error(t, err)
	s.away = false
	got, err := d.Capabilities(t.Context())
	require.NoError(t, err)
	assert.True(t, got.Resize)
}
