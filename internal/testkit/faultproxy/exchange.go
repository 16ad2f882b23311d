package faultproxy

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/apiserver/pkg/endpoints/request"
)

// sentWrite goes with a write through the reverse proxy.
type sentWrite struct {
	write *Write
	fault Fault
	life  *life
	info  *request.RequestInfo
}

type sentKey struct{}

func withSent(ctx context.Context, s *sentWrite) context.Context {
	return context.WithValue(ctx, sentKey{}, s)
}

// exchange is one request to the API server and its answer.
type exchange struct {
	proxy *Proxy
	next  http.RoundTripper
}

func (e *exchange) RoundTrip(r *http.Request) (*http.Response, error) {
	if sent, ok := r.Context().Value(sentKey{}).(*sentWrite); ok {
		return e.write(r, sent)
	}
	info, ok := request.RequestInfoFrom(r.Context())
	switch {
	case ok && info.Verb == "watch" && e.proxy.refusesWatchList(info, r.URL.Query()):
		return statusResponse(r, watchListRefused())
	case ok && info.Verb == "watch":
		return e.watch(r, info)
	case ok && info.Verb == "list":
		return e.list(r, info)
	default:
		return e.next.RoundTrip(r)
	}
}

// write sends a write, which the end of the client no longer stops, and lets the fault decide about the answer.
func (e *exchange) write(r *http.Request, sent *sentWrite) (*http.Response, error) {
	r.Header.Del("Accept-Encoding") // the answer is read here
	response, err := e.next.RoundTrip(r.WithContext(context.WithoutCancel(r.Context())))
	if err != nil {
		return nil, err
	}
	body, err := io.ReadAll(response.Body)
	if err := errors.Join(err, response.Body.Close()); err != nil {
		return nil, err
	}
	response.Body = io.NopCloser(bytes.NewReader(body))
	e.proxy.answered(sent.write, response.StatusCode, body)
	switch sent.fault.Action {
	case KillAfterCommit:
		e.proxy.killClient(sent.life)
		return nil, errDropped
	case DropReply:
		return nil, errDropped
	case TimeoutAfterCommit:
		wait(r.Context(), sent.fault.Delay)
		return statusResponse(r, timedOut(sent.info))
	default:
	}
	return response, nil
}

// show notes what the client is shown. It needs p.mu.
func (p *Proxy) show(resourceVersion string) {
	if resourceVersion == "" {
		return
	}
	if order, err := resourceversion.CompareResourceVersion(resourceVersion, p.seen); p.seen == "" || err == nil &&
		order > 0 {
		p.seen = resourceVersion
	}
}

// answer writes the error of an API server.
func answer(w http.ResponseWriter, code int, info *request.RequestInfo) {
	status := failure(code, info)
	w.Header().Set("Content-Type", "application/json")
	if status.Code == http.StatusTooManyRequests {
		w.Header().Set("Retry-After", "1")
	}
	w.WriteHeader(int(status.Code))
	_ = json.NewEncoder(w).Encode(status)
}

// failure is what an API server says with the code.
func failure(code int, info *request.RequestInfo) *metav1.Status {
	resource := schema.GroupResource{Group: info.APIGroup, Resource: info.Resource}
	reason := errors.New("made by the fault proxy")
	var err *apierrors.StatusError
	switch code {
	case http.StatusForbidden:
		err = apierrors.NewForbidden(resource, info.Name, reason)
	case http.StatusConflict:
		err = apierrors.NewConflict(resource, info.Name, reason)
	case http.StatusTooManyRequests:
		err = apierrors.NewTooManyRequests(reason.Error(), 1)
	case http.StatusServiceUnavailable:
		err = apierrors.NewServiceUnavailable(reason.Error())
	default:
		err = apierrors.NewInternalError(reason)
		if code != 0 {
			err.ErrStatus.Code = int32(code) //nolint:gosec // an HTTP status
		}
	}
	return withKind(err)
}

func timedOut(info *request.RequestInfo) *metav1.Status {
	return withKind(apierrors.NewTimeoutError(
		fmt.Sprintf("request to %s %s did not complete within the allotted timeout (made by the fault proxy)", info.Verb,
			info.Resource), 0))
}

func withKind(err *apierrors.StatusError) *metav1.Status {
	status := err.Status()
	status.APIVersion, status.Kind = "v1", "Status"
	return &status
}

// statusResponse answers a request with a Status instead of the API server's answer.
func statusResponse(r *http.Request, status *metav1.Status) (*http.Response, error) {
	body, err := json.Marshal(status)
	if err != nil {
		return nil, err
	}
	return &http.Response{
		StatusCode: int(status.Code), Status: fmt.Sprintf("%d %s", status.Code, http.StatusText(int(status.Code))),
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Request: r, ContentLength: int64(len(body)),
		Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(bytes.NewReader(body)),
	}, nil
}

// wait ends after d or with the client.
func wait(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}
