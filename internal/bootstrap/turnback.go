package bootstrap

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
)

const (
	// metadataOnly asks for a list without what the objects hold.
	metadataOnly = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
	// early is by how much a watch may end before the time that it asked for and still have ended by itself.
	early = 2 * time.Second
	// patience is how long a write waits for a watch, and how long watches are waited for once the API server answers.
	patience = 10 * time.Second
	// undonePatience is how long one is waited for that showed what was undone.
	undonePatience = 2 * time.Minute
	// reading is how long an informer may take to read a list that it was just given.
	reading = 3 * time.Second
	// again is about how long the API server is left alone that takes no connections.
	again = 500 * time.Millisecond
	// ofLeases is in the path of whatever is about Leases.
	ofLeases = "/apis/coordination.k8s.io/"
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
//
// Nothing is written meanwhile: a write waits until every watch that was broken off has been continued, and is refused if one of
// them turned out to show what was undone, because it was decided on that. Leases and events are no decisions and do not wait.
type turnback struct {
	clock clock.WithDelayedExecution

	mu     sync.Mutex
	breaks map[string]*interruption // by watch
	// reachable is since when the API server has answered, zero while it does not.
	reachable time.Time
}

// interruption is a watch that has ended early, until it goes on.
type interruption struct {
	since time.Time
	// undone says that it showed what has been undone.
	undone bool
	// over is closed when it goes on, or is given up.
	over chan struct{}
	// abandoned says that nobody waits for it, or not any more. Its next continuation is still questioned.
	abandoned bool
}

// noticeTurnback makes all clients of the configuration notice. A write that has waited must heed the Lease afterwards, so that
// fenceOff comes first.
func noticeTurnback(cfg *rest.Config) *turnback {
	t := newTurnback(clock.RealClock{})
	t.notice(cfg)
	return t
}

// notice makes the clients of a further configuration notice, and wait for the watches of all.
func (t *turnback) notice(cfg *rest.Config) {
	cfg.Wrap(func(next http.RoundTripper) http.RoundTripper { return &turnbackTransport{turnback: t, next: next} })
}

func newTurnback(c clock.WithDelayedExecution) *turnback {
	return &turnback{clock: c, breaks: map[string]*interruption{}, reachable: c.Now()}
}

// broke takes down that a watch has ended early. No write waits for one of Leases, which a Role may not allow: nothing is decided on
// those but who asks for them.
func (t *turnback) broke(which string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.breaks[which] == nil {
		t.breaks[which] = &interruption{since: t.clock.Now(), over: make(chan struct{}), abandoned: strings.Contains(which, ofLeases)}
	}
}

func (t *turnback) isBroken(which string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.breaks[which] != nil
}

// wentBack takes down that a watch showed what has been undone.
func (t *turnback) wentBack(which string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if b := t.breaks[which]; b != nil {
		b.undone = true
	}
}

// continued takes down that a watch was accepted. One that showed what was undone is given time to be read.
func (t *turnback) continued(which string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	b := t.breaks[which]
	if b == nil {
		return
	}
	delete(t.breaks, which)
	switch {
	case b.abandoned:
	case b.undone:
		t.breaks[anew(which)] = b
		t.clock.AfterFunc(reading, func() {
			t.mu.Lock()
			defer t.mu.Unlock()
			if delete(t.breaks, anew(which)); !b.abandoned {
				close(b.over)
			}
		})
	default:
		close(b.over)
	}
}

// anew names a watch that has been listed anew and is being read.
func anew(which string) string { return which + " listed anew" }

// heard takes down whether the API server answers.
func (t *turnback) heard(r *http.Request, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case err == nil && t.reachable.IsZero():
		t.reachable = t.clock.Now()
	case err != nil && r.Context().Err() == nil:
		t.reachable = time.Time{}
	}
}

// pending are the watches that are broken off. One that does not come back although the API server answers, as when its CRD is
// gone, is given up.
func (t *turnback) pending() []*interruption {
	t.mu.Lock()
	defer t.mu.Unlock()
	var all []*interruption
	for _, b := range t.breaks {
		since := b.since
		if t.reachable.After(since) {
			since = t.reachable
		}
		limit := patience
		if b.undone {
			limit = undonePatience
		}
		if !b.abandoned && !t.reachable.IsZero() && t.clock.Since(since) >= limit {
			b.abandoned = true
			close(b.over)
		}
		if !b.abandoned {
			all = append(all, b)
		}
	}
	return all
}

// await returns when every watch that is broken off now has been continued. The error says why nothing may be written.
func (t *turnback) await(r *http.Request) error {
	all := t.pending()
	if len(all) == 0 {
		return nil
	}
	limit := t.clock.After(patience)
	for _, b := range all {
		select {
		case <-b.over:
		case <-r.Context().Done():
			return fmt.Errorf("not written: waiting for a watch that broke off: %w", r.Context().Err())
		case <-limit:
			if len(t.pending()) > 0 {
				return errors.New("not written: watches have broken off and do not go on, so that what is known may be of the past")
			}
			return nil
		}
		if b.undone {
			return errors.New("not written: the API server has gone back to an earlier state, and this was decided on what was undone")
		}
	}
	return nil
}

type turnbackTransport struct {
	turnback *turnback
	next     http.RoundTripper
}

// RoundTrip implements http.RoundTripper.
func (t *turnbackTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	query := r.URL.Query()
	if r.Method == http.MethodGet && isTrue(query.Get("watch")) {
		return t.watch(r, query)
	}
	if isWrite(r) && isDecision(r) {
		if err := t.turnback.await(r); err != nil {
			return nil, err
		}
	}
	return t.send(r)
}

func (t *turnbackTransport) send(r *http.Request) (*http.Response, error) {
	response, err := t.next.RoundTrip(r)
	t.turnback.heard(r, err)
	return response, err
}

// isDecision says whether a write is of what caches show.
func isDecision(r *http.Request) bool {
	return !strings.Contains(r.URL.Path, ofLeases) && !strings.Contains(r.URL.Path, "/events")
}

func (t *turnbackTransport) watch(r *http.Request, query url.Values) (*http.Response, error) {
	which := watchOf(r, query)
	from := query.Get("resourceVersion")
	if from != "" && from != "0" && t.turnback.isBroken(which) {
		newest, refusal, err := t.newestSoon(r)
		if err != nil || refusal != nil {
			return refusal, err // as the watch itself would have been
		}
		if order, err := resourceversion.CompareResourceVersion(from, newest); err == nil && order > 0 {
			t.turnback.wentBack(which)
			return gone(r, from, newest), nil
		}
	}
	began := t.turnback.clock.Now()
	response, err := t.send(r)
	if err != nil || response.StatusCode != http.StatusOK {
		if r.Context().Err() == nil {
			t.turnback.broke(which) // nobody knows for how long
		}
		return response, err
	}
	body := &watched{ReadCloser: response.Body}
	if isTrue(query.Get("sendInitialEvents")) { // a list in the form of a watch
		body.listed = func() { t.turnback.continued(which) }
	} else {
		t.turnback.continued(which)
	}
	seconds, _ := strconv.ParseInt(query.Get("timeoutSeconds"), 10, 64) // without one any end is an early one
	due := began.Add(time.Duration(seconds)*time.Second - early)
	body.ended = func() {
		if r.Context().Err() == nil && (seconds == 0 || t.turnback.clock.Now().Before(due)) {
			t.turnback.broke(which)
		}
	}
	response.Body = body
	return response, nil
}

// newestSoon is newest as soon as the API server takes connections. An informer by itself would ask ever more rarely, up to every
// 30 s, and writes wait for it.
func (t *turnbackTransport) newestSoon(watch *http.Request) (version string, refusal *http.Response, err error) {
	for {
		version, refusal, err = t.newest(watch)
		if err == nil || !utilnet.IsConnectionRefused(err) {
			return version, refusal, err
		}
		select {
		case <-watch.Context().Done():
			return version, refusal, err
		case <-t.turnback.clock.After(again/2 + rand.N(again)):
		}
	}
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
	response, err := t.send(r)
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
func watchOf(r *http.Request, query url.Values) string {
	return r.URL.Path + "?" + url.Values{"labelSelector": query["labelSelector"], "fieldSelector": query["fieldSelector"]}.Encode() + " " + r.Header.Get("Accept")
}

func isTrue(value string) bool { return value == "true" || value == "1" }

// watched is the body of a watch's answer.
type watched struct {
	io.ReadCloser
	once  sync.Once
	ended func()
	// listed is called once everything that was there has been read; nil for a watch that does not begin with that.
	listed func()
	tail   []byte // what was read last and may be the beginning of the mark
}

// Read implements io.Reader.
func (w *watched) Read(p []byte) (int, error) {
	n, err := w.ReadCloser.Read(p)
	if w.listed != nil {
		w.tail = append(w.tail, p[:n]...)
		if bytes.Contains(w.tail, []byte(metav1.InitialEventsAnnotationKey)) {
			w.listed()
			w.listed, w.tail = nil, nil
		}
		w.tail = w.tail[max(0, len(w.tail)-len(metav1.InitialEventsAnnotationKey)):]
	}
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
