package bootstrap

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
)

const (
	// metadataOnly asks for a list without what the objects hold.
	metadataOnly = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
	// early is by how much a watch may end before the time that it asked for and still have ended by itself.
	early = 2 * time.Second
	// largestCheck bounds what is read of the answer, one object's metadata.
	largestCheck = 4 << 20
)

// turnback notices that the API server's resourceVersions went back, as they do when etcd is restored from a snapshot. A watch
// that continues from a resourceVersion that is still to come is accepted, and says nothing until that is reached, which may take
// days: a cache would show a state that has been undone, and nobody would know.
//
// So before a watch is continued that had broken off, the newest resourceVersion is asked for. If that is older than what the
// watch is to continue from, the watch is answered with 410 Gone, which makes an informer list everything anew. A watch that ran
// for as long as it had asked for is continued without a question, so that nothing is asked while nothing happens.
type turnback struct {
	clock clock.PassiveClock
	// broken are the watches, by path and selectors, that have ended early.
	broken sync.Map
}

// noticeTurnback makes all informers of the configuration notice.
func noticeTurnback(cfg *rest.Config) {
	t := &turnback{clock: clock.RealClock{}}
	cfg.Wrap(func(next http.RoundTripper) http.RoundTripper { return &turnbackTransport{turnback: t, next: next} })
}

type turnbackTransport struct {
	turnback *turnback
	next     http.RoundTripper
}

// RoundTrip implements http.RoundTripper.
func (t *turnbackTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	query := r.URL.Query()
	from := query.Get("resourceVersion")
	if r.Method != http.MethodGet || !isTrue(query.Get("watch")) || from == "" || from == "0" || isTrue(query.Get("sendInitialEvents")) {
		return t.next.RoundTrip(r)
	}
	which := watchOf(r.URL.Path, query)
	if _, broken := t.turnback.broken.Load(which); broken {
		newest, refusal, err := t.newest(r)
		if err != nil || refusal != nil {
			return refusal, err // as the watch itself would have been
		}
		t.turnback.broken.Delete(which)
		if order, err := resourceversion.CompareResourceVersion(from, newest); err == nil && order > 0 {
			return gone(r, from, newest), nil
		}
	}
	began := t.turnback.clock.Now()
	response, err := t.next.RoundTrip(r)
	if err != nil || response.StatusCode != http.StatusOK {
		t.turnback.broken.Store(which, true) // nobody knows for how long
		return response, err
	}
	seconds, _ := strconv.ParseInt(query.Get("timeoutSeconds"), 10, 64) // without one any end is an early one
	due := began.Add(time.Duration(seconds)*time.Second - early)
	response.Body = &watched{ReadCloser: response.Body, ended: func() {
		if seconds == 0 || t.turnback.clock.Now().Before(due) {
			t.turnback.broken.Store(which, true)
		}
	}}
	return response, nil
}

// newest is the resourceVersion that a list would have now, asked of etcd and not of what the API server remembers; or the answer
// of an API server that does not tell.
func (t *turnbackTransport) newest(watch *http.Request) (version string, refusal *http.Response, err error) {
	r := watch.Clone(watch.Context())
	query := url.Values{"limit": {"1"}}
	if names := watch.URL.Query().Get("fieldSelector"); names != "" {
		query.Set("fieldSelector", names) // roles may be for one name alone
	}
	r.URL.RawQuery = query.Encode()
	r.Header.Set("Accept", metadataOnly)
	response, err := t.next.RoundTrip(r)
	if err != nil {
		return "", nil, fmt.Errorf("asking how far the API server is before a watch goes on: %w", err)
	}
	if response.StatusCode != http.StatusOK { // 403 among them: an API server that has just started knows no roles yet
		return "", response, nil
	}
	defer response.Body.Close()
	var list metav1.PartialObjectMetadataList
	if err := json.NewDecoder(io.LimitReader(response.Body, largestCheck)).Decode(&list); err != nil {
		return "", nil, fmt.Errorf("reading how far the API server is: %w", err)
	}
	return list.ResourceVersion, nil, nil
}

// gone is the answer to a watch from a time that has been undone.
func gone(r *http.Request, from, newest string) *http.Response {
	status := metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure,
		Code: http.StatusGone, Reason: metav1.StatusReasonExpired,
		Message: fmt.Sprintf("the API server has gone back from resourceVersion %s to %s: was etcd restored? Everything is listed anew", from, newest),
	}
	body, err := json.Marshal(status)
	if err != nil {
		panic(err) // strings and numbers
	}
	return &http.Response{
		Status: "410 Gone", StatusCode: http.StatusGone, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Request: r,
		Header: http.Header{"Content-Type": {"application/json"}}, ContentLength: int64(len(body)),
		Body: io.NopCloser(strings.NewReader(string(body))),
	}
}

// watchOf tells watches apart.
func watchOf(path string, query url.Values) string {
	return path + "?" + url.Values{"labelSelector": query["labelSelector"], "fieldSelector": query["fieldSelector"]}.Encode()
}

func isTrue(value string) bool { return value == "true" || value == "1" }

// watched is the body of a watch's answer.
type watched struct {
	io.ReadCloser
	once  sync.Once
	ended func()
}

// Read implements io.Reader.
func (w *watched) Read(p []byte) (int, error) {
	n, err := w.ReadCloser.Read(p)
	if err != nil {
		w.once.Do(w.ended)
	}
	return n, err
}

// CloseIdleConnections passes on what http.Client asks for.
func (t *turnbackTransport) CloseIdleConnections() {
	if closer, ok := t.next.(interface{ CloseIdleConnections() }); ok {
		closer.CloseIdleConnections()
	}
}

// WrappedRoundTripper lets client-go find the transport below.
func (t *turnbackTransport) WrappedRoundTripper() http.RoundTripper { return t.next }
