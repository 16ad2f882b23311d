package faultproxy

import (
	"net/http"
	"net/url"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/endpoints/request"
)

// list passes a list on, from the past if a fault wants that and the client leaves it to the API server how old the
// list may be.
func (e *exchange) list(r *http.Request, info *request.RequestInfo) (*http.Response, error) {
	query := r.URL.Query()
	if query.Get("resourceVersion") == "0" {
		if version := e.proxy.listAt(info); version != "" {
			query.Set("resourceVersion", version)
			query.Set("resourceVersionMatch", string(metav1.ResourceVersionMatchExact))
			r.URL.RawQuery = query.Encode()
		}
	}
	return e.next.RoundTrip(r)
}

// listAt is the resourceVersion of which the next list is to be, empty for that of the API server's choice.
func (p *Proxy) listAt(info *request.RequestInfo) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, a := range p.armed {
		if a.fault.Action == ListAt && a.fault.Match.includesWatch(info) {
			a.fired++
			return a.fault.ResourceVersion
		}
	}
	return ""
}

// refusesWatchList reports whether the watch asks for the objects that there are, while lists are to be from the
// past. An API server that streams lists (WatchList) streams the newest. So the proxy answers as one that does not,
// as those before Kubernetes 1.32 do, and the client lists.
func (p *Proxy) refusesWatchList(info *request.RequestInfo, query url.Values) bool {
	if query.Get("sendInitialEvents") != "true" || query.Get("resourceVersion") != "" &&
		query.Get("resourceVersion") != "0" {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, a := range p.armed {
		if a.fault.Action == ListAt && a.fault.Match.includesWatch(info) {
			return true
		}
	}
	return false
}

func watchListRefused() *metav1.Status {
	forbidden := field.Forbidden(field.NewPath("sendInitialEvents"),
		"sendInitialEvents is forbidden for watch unless the WatchList feature gate is enabled")
	return withKind(apierrors.NewInvalid(schema.GroupKind{Group: "meta.k8s.io", Kind: "ListOptions"}, "",
		field.ErrorList{forbidden}))
}
