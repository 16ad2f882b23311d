package faultproxy

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/endpoints/request"
)

var errReset = errors.New("the watch is broken off")

// event is one frame of a watch.
type event struct {
	kind     watch.EventType
	object   json.RawMessage
	meta     metav1.ObjectMeta
	arrived  time.Time
	held     map[*Armed]bool // the faults that count it as held back
	endsList bool            // the bookmark after the objects that there were
}

func (e *event) sameObject(other *event) bool {
	return other != nil && e.meta.Name == other.meta.Name && e.meta.Namespace == other.meta.Namespace &&
		e.meta.UID == other.meta.UID
}

// supersededBy reports whether no client that sees next misses the event: it is the following one of the watch, of the
// same object. With an event of another object in between it would be missed: a client that sees that one must have
// seen this one too.
func (e *event) supersededBy(next *event) bool {
	if !e.sameObject(next) || e.kind != watch.Added && e.kind != watch.Modified {
		return false
	}
	return next.kind == watch.Modified || next.kind == watch.Deleted && e.kind == watch.Modified
}

func (e *event) frame() ([]byte, error) {
	frame, err := json.Marshal(struct {
		Type   watch.EventType `json:"type"`
		Object json.RawMessage `json:"object"`
	}{e.kind, e.object})
	return append(frame, '\n'), err
}

// stream is one watch of the client: what the API server sent and the client has not got yet.
type stream struct {
	proxy    *Proxy
	info     *request.RequestInfo
	upstream io.ReadCloser
	out      *io.PipeWriter
	arrived  chan struct{} // has something if the queue, or end, may have changed

	mu    sync.Mutex
	queue []*event
	end   error // what ended the upstream

	// listing is true as long as the objects that there were are sent. Of deliver alone.
	listing bool
	// passed counts the events since the watch began. Of deliver alone.
	passed int
}

// watch opens a watch in JSON and puts a stream between it and the client.
func (e *exchange) watch(r *http.Request, info *request.RequestInfo) (*http.Response, error) {
	r.Header.Set("Accept", inJSON(r.Header.Get("Accept")))
	r.Header.Del("Accept-Encoding")
	response, err := e.next.RoundTrip(r)
	if err != nil || response.StatusCode != http.StatusOK {
		return response, err
	}
	reader, writer := io.Pipe()
	s := &stream{
		proxy: e.proxy, info: info, upstream: response.Body, out: writer, arrived: make(chan struct{}, 1),
		listing: r.URL.Query().Get("sendInitialEvents") == "true",
	}
	ctx, cancel := context.WithCancel(r.Context())
	response.Body = &streamBody{PipeReader: reader, stream: s, cancel: cancel}
	response.Header.Del("Content-Length")
	s.proxy.watches(info.Resource, 1)
	go s.receive()
	go func() {
		s.deliver(ctx)
		s.proxy.watches(info.Resource, -1)
	}()
	return response, nil
}

// streamBody is a stream as the body of an answer.
type streamBody struct {
	*io.PipeReader
	stream *stream
	cancel context.CancelFunc
}

func (b *streamBody) Close() error {
	b.cancel()
	return errors.Join(b.PipeReader.Close(), b.stream.upstream.Close())
}

// inJSON asks for the same representations (objects, tables, metadata only) in JSON.
func inJSON(accept string) string {
	var wanted []string
	for _, one := range strings.Split(accept, ",") {
		_, parameters, _ := strings.Cut(strings.TrimSpace(one), ";")
		in := []string{"application/json"}
		for _, parameter := range strings.Split(parameters, ";") {
			if name, _, _ := strings.Cut(strings.TrimSpace(parameter), "="); name == "as" || name == "g" || name == "v" {
				in = append(in, strings.TrimSpace(parameter))
			}
		}
		wanted = append(wanted, strings.Join(in, ";"))
	}
	return strings.Join(wanted, ",")
}

// receive reads what the API server sends, however long that waits for the client.
func (s *stream) receive() {
	decoder := json.NewDecoder(s.upstream)
	for {
		var frame struct {
			Type   watch.EventType
			Object json.RawMessage
		}
		err := decoder.Decode(&frame)
		s.mu.Lock()
		if err != nil {
			s.end = err
		} else {
			e := &event{kind: frame.Type, object: frame.Object, arrived: time.Now(), held: map[*Armed]bool{}}
			if meta := metadataOf(frame.Object); meta != nil {
				e.meta = *meta
			}
			e.endsList = e.kind == watch.Bookmark && e.meta.Annotations[metav1.InitialEventsAnnotationKey] == "true"
			s.queue = append(s.queue, e)
		}
		s.mu.Unlock()
		select {
		case s.arrived <- struct{}{}:
		default:
		}
		if err != nil {
			return
		}
	}
}

// deliver passes on to the client what the armed faults let through.
func (s *stream) deliver(ctx context.Context) {
	for {
		changed := s.proxy.onChange()
		head, next, end := s.peek()
		if head == nil && end != nil {
			_ = s.out.CloseWithError(end)
			return
		}
		v := verdict{wait: forever}
		if head != nil {
			v = s.proxy.judge(s, head, next)
		}
		switch {
		case v.wait != 0:
			if !s.idle(ctx, changed, v.wait) {
				_ = s.out.CloseWithError(ctx.Err())
				return
			}
		case v.drop:
			if head.kind == watch.Added {
				next.kind = watch.Added
			}
			s.pop()
		case v.reset:
			_ = s.out.CloseWithError(errReset)
			return
		case v.gone:
			_ = s.send(expired())
			_ = s.out.Close()
			return
		default:
			if s.pass(head, v.twice) != nil {
				return
			}
		}
	}
}

// watches notes that a watch has begun or ended.
func (p *Proxy) watches(resource string, n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.watching[resource] += n; p.watching[resource] == 0 {
		delete(p.watching, resource)
	}
}

// peek is the first event in the queue and the one after it, nil if there is none, and what ended the upstream.
func (s *stream) peek() (head, next *event, end error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.queue) > 0 {
		head = s.queue[0]
	}
	if len(s.queue) > 1 {
		next = s.queue[1]
	}
	return head, next, s.end
}

func (s *stream) pop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.queue = s.queue[1:]
}

// idle waits until something may have changed: false if the client has gone.
func (s *stream) idle(ctx context.Context, changed <-chan struct{}, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-changed:
	case <-s.arrived:
	case <-timer.C:
	}
	return true
}

// pass sends the first event to the client.
func (s *stream) pass(head *event, twice bool) error {
	s.pop()
	s.proxy.shown(head)
	if err := s.send(head); err != nil {
		return err
	}
	if twice {
		if err := s.send(head); err != nil {
			return err
		}
	}
	if head.endsList {
		s.listing = false
	} else if !s.listing && head.kind != watch.Bookmark {
		s.passed++
	}
	return nil
}

func (s *stream) send(e *event) error {
	frame, err := e.frame()
	if err != nil {
		return err
	}
	_, err = io.Copy(s.out, bytes.NewReader(frame))
	return err
}

// expired is how an API server ends a watch that it cannot continue; the client has to list again.
func expired() *event {
	// cannot fail: strings and numbers
	object, _ := json.Marshal(withKind(apierrors.NewResourceExpired("too old resource version (made by the fault proxy)")))
	return &event{kind: watch.Error, object: object}
}

const forever = 1000 * time.Hour

// verdict is what is done to an event. The zero value lets it through.
type verdict struct {
	wait                     time.Duration // ask again then, or when something changed
	drop, reset, gone, twice bool
}

// judge asks the armed faults about the first event of a stream.
func (p *Proxy) judge(s *stream, head, next *event) verdict {
	p.mu.Lock()
	defer p.mu.Unlock()
	var v verdict
	for _, a := range p.armed {
		if a.fault.ofWatches() && a.fault.Match.includesWatch(s.info) && a.goesOn() {
			a.judge(s, head, next, &v)
		}
	}
	if v.wait != 0 {
		return verdict{wait: v.wait} // whatever else is wanted is done when it has waited
	}
	for _, a := range p.armed {
		if a.fault.ofWatches() && a.fault.Match.includesWatch(s.info) && a.goesOn() {
			a.count(v)
		}
	}
	return v
}

// goesOn reports whether watches are still to be broken. It needs proxy.mu.
func (a *Armed) goesOn() bool {
	breaks := a.fault.Action == Reset || a.fault.Action == Gone410
	return !breaks || a.fault.Match.Times == 0 || a.fired < a.fault.Match.Times
}

// judge adds to the verdict. It needs proxy.mu.
func (a *Armed) judge(s *stream, head, next *event, v *verdict) {
	age := time.Since(head.arrived)
	change := !s.listing && head.kind != watch.Bookmark && head.kind != watch.Error
	hold := func(d time.Duration) {
		if d > 0 {
			v.wait = max(v.wait, d)
		}
	}
	switch a.fault.Action {
	case Freeze:
		hold(forever)
		a.hold(head)
	case Lag:
		if age < a.fault.Delay {
			hold(a.fault.Delay - age)
			a.hold(head)
		}
	case Coalesce:
		if change && head.supersededBy(next) {
			v.drop = true
		} else if change {
			hold(a.fault.Delay - age)
		}
	case Reset:
		v.reset = v.reset || change && s.passed >= max(a.fault.Every, 1)
	case Gone410:
		if change && s.passed >= max(a.fault.Every, 1) {
			v.gone = true
			hold(a.fault.Delay - age)
		}
	case Duplicate:
		v.twice = v.twice || change && head.kind != watch.Deleted
	default:
	}
}

// hold counts an event that is held back, once.
func (a *Armed) hold(e *event) {
	if !e.held[a] {
		e.held[a] = true
		a.fired++
	}
}

// count counts what is done to an event. It needs proxy.mu.
func (a *Armed) count(v verdict) {
	switch {
	case a.fault.Action == Coalesce && v.drop,
		a.fault.Action == Reset && v.reset && !v.drop,
		a.fault.Action == Gone410 && v.gone && !v.drop && !v.reset,
		a.fault.Action == Duplicate && v.twice && !v.drop && !v.reset && !v.gone:
		a.fired++
	}
}

// onChange is closed when what is armed changes.
func (p *Proxy) onChange() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.changed
}

// ResourceVersion is the newest that the client was shown in an event or in the answer to a write; empty if none was. A
// list at this version holds no more than the client may know.
func (p *Proxy) ResourceVersion() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.seen
}

// shown notes an event that the client is sent.
func (p *Proxy) shown(e *event) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.show(e.meta.ResourceVersion)
}
