package dashboard

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"kusionstack.io/kuperator/internal/insight"
)

// told is a source that shows what it is told to.
type told struct {
	fleets  chan insight.Fleet // closed: the source fails
	answer  insight.Answer
	details insight.Details
	err     error
}

func (s *told) Watch(ctx context.Context, seen func(insight.Fleet)) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case fleet, ok := <-s.fleets:
			if !ok {
				return errors.New("the API server is gone")
			}
			seen(fleet)
		}
	}
}

func (s *told) Why(_ context.Context, subject insight.Ref) (insight.Answer, error) {
	answer := s.answer
	answer.Subject = subject
	return answer, s.err
}

func (s *told) Details(_ context.Context, workload insight.Ref) (insight.Details, error) {
	details := s.details
	details.Subject = workload
	return details, s.err
}

// serve runs a server on a free port of this machine.
func serve(t *testing.T, source *told) string {
	t.Helper()
	return serveFor(t, source, nil)
}

// serveFor is serve of a page that acts, unless actor is nil. The address has the token then, as the terminal shows it.
func serveFor(t *testing.T, source *told, actor Actor) string {
	t.Helper()
	s, err := New(source, Scope{Text: "namespace shop", Context: "kind-prod", Flags: "--context=kind-prod"})
	require.NoError(t, err)
	fragment := ""
	if actor != nil {
		fragment = "/#token=" + s.Allow(actor)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = s.Run(t.Context()) // tests look at what the page is told
	}()
	web := httptest.NewServer(s)
	t.Cleanup(func() {
		web.CloseClientConnections()
		web.Close()
		<-done
	})
	return web.URL + fragment
}

func get(t *testing.T, url string, change ...func(*http.Request)) *http.Response {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	require.NoError(t, err)
	for _, c := range change {
		c(request)
	}
	response, err := http.DefaultClient.Do(request)
	require.NoError(t, err)
	t.Cleanup(func() { _ = response.Body.Close() })
	return response
}

func TestThePageIsServedWhole(t *testing.T) {
	url := serve(t, &told{})
	for path, kind := range map[string]string{"/": "text/html", "/app.js": "text/javascript",
		"/actions.js": "text/javascript", "/cards.js": "text/javascript", "/overview.js": "text/javascript",
		"/parts.js": "text/javascript", "/state.js": "text/javascript", "/why.js": "text/javascript",
		"/workload.js": "text/javascript",
		"/cells.js":    "text/javascript", "/dom.js": "text/javascript", "/theme.js": "text/javascript",
		"/style.css": "text/css",
		"/icon.svg":  "image/svg+xml"} {
		response := get(t, url+path)
		assert.Equal(t, http.StatusOK, response.StatusCode, path)
		assert.Contains(t, response.Header.Get("Content-Type"), kind, path)
		assert.Contains(t, response.Header.Get("Content-Security-Policy"), "default-src 'none'", path)
	}
	assert.Equal(t, http.StatusNotFound, get(t, url+"/server.go").StatusCode)
}

func TestItReadsOnlyAndForThisMachineOnly(t *testing.T) {
	url := serve(t, &told{})
	for _, method := range []string{http.MethodPost, http.MethodPut, http.MethodDelete, http.MethodPatch} {
		assert.Equal(t, http.StatusMethodNotAllowed,
			get(t, url+"/api/why", func(r *http.Request) { r.Method = method }).StatusCode, method)
	}
	for host, want := range map[string]int{
		"localhost": http.StatusOK, "localhost:8080": http.StatusOK, "127.0.0.1:1": http.StatusOK, "[::1]:1": http.StatusOK,
		"evil.example.com": http.StatusForbidden, "evil.example.com:80": http.StatusForbidden,
		"10.0.0.1": http.StatusForbidden, "localhost.evil.example.com": http.StatusForbidden,
	} {
		assert.Equal(t, want, get(t, url+"/", func(r *http.Request) { r.Host = host }).StatusCode, host)
	}
}

// event is one event of the stream.
type event struct{ kind, data string }

func events(t *testing.T, url string) func() event {
	t.Helper()
	lines := bufio.NewScanner(get(t, url+"/api/fleet").Body)
	lines.Buffer(nil, 1<<24)
	return func() event {
		t.Helper()
		e := event{}
		for lines.Scan() {
			switch name, value, _ := strings.Cut(lines.Text(), ": "); name {
			case "event":
				e.kind = value
			case "data":
				e.data = value
			case "":
				return e
			}
		}
		t.Fatalf("the stream ended: %v", lines.Err())
		return e
	}
}

func (e event) change(t *testing.T) Change {
	t.Helper()
	require.Equal(t, "message", e.kind, e.data)
	c := Change{}
	require.NoError(t, json.Unmarshal([]byte(e.data), &c))
	return c
}

func TestTheStream(t *testing.T) {
	source := &told{fleets: make(chan insight.Fleet)}
	url := serve(t, source)
	first := events(t, url)
	source.fleets <- fleetOf(workload("web", pod("a", insight.StateServing)))
	change := first().change(t)
	assert.True(t, change.Begin)
	assert.ElementsMatch(t, []string{"about", "workload/CollaSet/shop/web", "pod/shop/a"}, keysOf(change.Set))

	t.Run("whoever comes later gets everything at once", func(t *testing.T) {
		assert.Equal(t, change, events(t, url)().change(t))
	})

	source.fleets <- fleetOf(workload("web", pod("a", insight.StateDown)), workload("db"))
	change = first().change(t)
	assert.False(t, change.Begin)
	assert.ElementsMatch(t, []string{"about", "workload/CollaSet/shop/web", "pod/shop/a", "workload/CollaSet/shop/db"},
		keysOf(change.Set))
	source.fleets <- fleetOf()
	assert.ElementsMatch(t, []string{"workload/CollaSet/shop/web", "workload/CollaSet/shop/db", "pod/shop/a"},
		first().change(t).Gone)

	close(source.fleets)
	failed := first()
	assert.Equal(t, event{"problem", `"the API server is gone"`}, failed)
}

func TestWhy(t *testing.T) {
	source := &told{answer: insight.Answer{Summary: "the budget is spent"}}
	url := serve(t, source)
	response := get(t, url+"/api/why?kind=Pod&namespace=shop&name=web-1")
	answer := insight.Answer{}
	require.NoError(t, json.NewDecoder(response.Body).Decode(&answer))
	assert.Equal(t, insight.Ref{Kind: "Pod", Namespace: "shop", Name: "web-1"}, answer.Subject)
	assert.Equal(t, "the budget is spent", answer.Summary)
	assert.Equal(t, http.StatusBadRequest, get(t, url+"/api/why?kind=Pod").StatusCode)

	source.details.Jobs = []string{"restart-web"}
	response = get(t, url+"/api/details?kind=CollaSet&namespace=shop&name=web")
	details := insight.Details{}
	require.NoError(t, json.NewDecoder(response.Body).Decode(&details))
	assert.Equal(t, insight.Ref{Kind: "CollaSet", Namespace: "shop", Name: "web"}, details.Subject)
	assert.Equal(t, []string{"restart-web"}, details.Jobs)
	assert.Equal(t, http.StatusBadRequest, get(t, url+"/api/details?kind=CollaSet").StatusCode)

	source.err = errors.New("pods is forbidden")
	response = get(t, url+"/api/why?kind=Pod&namespace=shop&name=web-1")
	assert.Equal(t, http.StatusBadGateway, response.StatusCode)
}
