package faultproxy

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/endpoints/request"
)

// Write is one request that changes something.
type Write struct {
	// At is when it arrived, Answered when the API server had answered; zero if it did not.
	At, Answered time.Time
	// Life counts how often the client had been cut off and let in again before. What a process knows ends with it.
	Life int
	// Verb is create, update, patch, delete or deletecollection.
	Verb string
	// Group is "" for the core group.
	Group, Resource, Subresource string
	// Namespace is "" for objects that are in none.
	Namespace string
	// Name is the object's; of a creation with generateName, what was generated, and until the API server has answered
	// the generateName.
	Name string
	// UID and ResourceVersion are the preconditions: the write is to fail if the object is another one, or was changed.
	// Empty if there is none.
	UID, ResourceVersion string
	// ContentType and Body are the request's.
	ContentType string
	Body        []byte
	// Code is the API server's answer, 0 if it never got the request or did not answer.
	Code int
	// Result is the object's resourceVersion in the answer, empty if the answer is no object.
	Result string
	// Fault is what was done to the request, empty for nothing.
	Fault Action
}

// Key is verb and resource, "patch pods/status": the same in every run, as names are not.
func (w Write) Key() string {
	if w.Subresource != "" {
		return w.Verb + " " + w.Resource + "/" + w.Subresource
	}
	return w.Verb + " " + w.Resource
}

// Committed reports whether the API server did what the request asks for.
func (w Write) Committed() bool { return w.Code >= 200 && w.Code < 300 }

func (w Write) String() string {
	text := fmt.Sprintf("%s %s/%s uid=%q resourceVersion=%q: %d", w.Key(), w.Namespace, w.Name, w.UID,
		w.ResourceVersion, w.Code)
	if w.Fault != "" {
		text += " " + string(w.Fault)
	}
	return text
}

// recorded is how many writes are kept.
const recorded = 10_000

// isWrite reports whether a request changes an object that matters: no events, Leases, dry runs and reviews.
func isWrite(info *request.RequestInfo) bool {
	switch info.Verb {
	case "create", "update", "patch", "delete", "deletecollection":
	default:
		return false
	}
	return info.Resource != "events" && info.Resource != "leases" && info.APIGroup != "authentication.k8s.io" &&
		info.APIGroup != "authorization.k8s.io"
}

// serveWrite passes a write on, or does to it what the armed faults ask for.
func (p *Proxy) serveWrite(w http.ResponseWriter, r *http.Request, info *request.RequestInfo) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	r = r.WithContext(request.WithRequestInfo(r.Context(), info))
	if isDryRun(r, info, body) {
		p.reverse.ServeHTTP(w, r)
		return
	}
	l, _ := r.Context().Value(lifeKey{}).(*life)
	write := newWrite(r, info, body)
	write.Life = l.number
	fault, call := p.begin(write)
	if call != nil {
		call(*write)
	}
	switch fault.Action {
	case KillBefore:
		p.killClient(l)
		panic(http.ErrAbortHandler)
	case FailBefore:
		answer(w, fault.Code, info)
		return
	case Slow:
		wait(r.Context(), fault.Delay)
	default: // after the API server's answer
	}
	l, alive := p.enter(r.Context())
	if !alive {
		panic(http.ErrAbortHandler)
	}
	defer l.pending.Done()
	sent := &sentWrite{write: write, fault: fault, life: l, info: info}
	p.reverse.ServeHTTP(w, r.WithContext(withSent(r.Context(), sent)))
}

// begin records a write and finds the fault that is done to it: the first that was armed, if several are.
func (p *Proxy) begin(write *Write) (Fault, func(Write)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.record) >= 2*recorded {
		p.record = slices.Clone(p.record[recorded:])
	}
	p.record = append(p.record, write)
	var chosen Fault
	var calls []func(Write)
	for _, a := range p.armed {
		if a.fault.ofWatches() || !a.fault.Match.matches(*write) {
			continue
		}
		a.matched++
		if !a.fault.Match.includes(a.matched) {
			continue
		}
		if a.fault.Action != Observe && a.fault.Action != "" {
			if chosen.Action != "" {
				continue
			}
			chosen = a.fault
		}
		a.fired++
		if a.fault.Call != nil {
			calls = append(calls, a.fault.Call)
		}
	}
	write.Fault = chosen.Action
	if len(calls) == 0 {
		return chosen, nil
	}
	return chosen, func(w Write) {
		for _, call := range calls {
			call(w)
		}
	}
}

// answered notes the API server's answer.
func (p *Proxy) answered(write *Write, code int, body []byte) {
	var object metav1.PartialObjectMetadata
	if meta := metadataOf(body); meta != nil {
		object.ObjectMeta = *meta
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	write.Code, write.Answered = code, time.Now()
	if !write.Committed() {
		return
	}
	if write.Verb == "create" && object.Name != "" {
		write.Name = object.Name
	}
	write.Result = object.ResourceVersion
	p.show(object.ResourceVersion)
}

func newWrite(r *http.Request, info *request.RequestInfo, body []byte) *Write {
	write := &Write{
		At: time.Now(), Verb: info.Verb, Group: info.APIGroup, Resource: info.Resource, Subresource: info.Subresource,
		Namespace: info.Namespace, Name: info.Name, ContentType: r.Header.Get("Content-Type"), Body: body,
	}
	if strings.HasPrefix(write.ContentType, "application/json-patch") {
		write.UID, write.ResourceVersion = tests(body)
		return write
	}
	if conditions := preconditionsOf(info, body); conditions != nil {
		if conditions.UID != nil {
			write.UID = string(*conditions.UID)
		}
		if conditions.ResourceVersion != nil {
			write.ResourceVersion = *conditions.ResourceVersion
		}
		return write
	}
	if meta := metadataOf(body); meta != nil {
		write.UID, write.ResourceVersion = string(meta.UID), meta.ResourceVersion
		if write.Name == "" {
			write.Name = meta.Name
		}
		if write.Name == "" {
			write.Name = meta.GenerateName
		}
	}
	return write
}

// tests are the preconditions in a JSON patch.
func tests(body []byte) (uid, resourceVersion string) {
	var operations []struct {
		Op, Path string
		Value    any
	}
	if json.Unmarshal(body, &operations) != nil {
		return "", ""
	}
	for _, o := range operations {
		value, _ := o.Value.(string)
		switch {
		case o.Op == "test" && o.Path == "/metadata/uid":
			uid = value
		case slices.Contains([]string{"test", "add", "replace"}, o.Op) && o.Path == "/metadata/resourceVersion":
			resourceVersion = value
		}
	}
	return uid, resourceVersion
}
