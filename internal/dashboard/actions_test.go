package dashboard

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"kusionstack.io/kuperator/internal/insight"
)

// obedient is an Actor that does what it is told, and remembers it.
type obedient struct {
	mu     sync.Mutex
	offers []insight.Action
	orders []Order
	asked  []insight.Verb
	done   func(Order) // nil does nothing
	err    error
}

func (o *obedient) Offer(_ context.Context, _ insight.Ref, verb insight.Verb) (Offer, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.asked = append(o.asked, verb)
	offer := Offer{Version: "uid/2", Actions: []insight.Action{}}
	for _, a := range o.offers {
		if verb == "" || verb == a.Verb {
			offer.Actions = append(offer.Actions, a)
		}
	}
	return offer, nil
}

func (o *obedient) Act(_ context.Context, order Order) (Outcome, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.orders = append(o.orders, order)
	if o.err != nil {
		return Outcome{}, o.err
	}
	if o.done != nil {
		o.done(order)
	}
	return Outcome{Text: "collaset/" + order.Name + " " + string(order.Verb), Details: []string{"as ordered"}}, nil
}

func (o *obedient) set(change func()) {
	o.mu.Lock()
	defer o.mu.Unlock()
	change()
}

func (o *obedient) obeyed() []Order {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.orders
}

// acting is a server that acts, and its token.
func acting(t *testing.T, actor Actor) (url, token string) {
	t.Helper()
	s, err := New(&told{}, Scope{Text: "namespace shop"})
	require.NoError(t, err)
	token = s.Allow(actor)
	web := httptest.NewServer(s)
	t.Cleanup(web.Close)
	return web.URL, token
}

const pauseWeb = `{"kind":"CollaSet","namespace":"shop","name":"web","verb":"pause","version":"uid/2"}`

// order sends an order as the page does, but for a change.
func order(t *testing.T, url, token, body string, change ...func(*http.Request)) (status int, text string) {
	t.Helper()
	response := get(t, url+"/api/act", append([]func(*http.Request){func(r *http.Request) {
		r.Method, r.Body = http.MethodPost, io.NopCloser(strings.NewReader(body))
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("Origin", url)
		r.Header.Set("Kuperator-Token", token)
	}}, change...)...)
	answer, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	return response.StatusCode, string(answer)
}

func TestAnOrder(t *testing.T) {
	actor := &obedient{}
	url, token := acting(t, actor)
	status, text := order(t, url, token, pauseWeb)
	require.Equal(t, http.StatusOK, status, text)
	outcome := Outcome{}
	require.NoError(t, json.Unmarshal([]byte(text), &outcome))
	assert.Equal(t, Outcome{Text: "collaset/web pause", Details: []string{"as ordered"}}, outcome)
	assert.Equal(t, []Order{{Ref: insight.Ref{Kind: "CollaSet", Namespace: "shop", Name: "web"}, Verb: insight.VerbPause,
		Version: "uid/2"}}, actor.obeyed())
}

// TestOnlyThePageGivesOrders: each guard holds alone, with all others as they should be.
func TestOnlyThePageGivesOrders(t *testing.T) {
	actor := &obedient{}
	url, token := acting(t, actor)
	header := func(name, value string) func(*http.Request) {
		return func(r *http.Request) {
			r.Header.Del(name)
			if value != "" {
				r.Header.Set(name, value)
			}
		}
	}
	method := func(name string) func(*http.Request) { return func(r *http.Request) { r.Method = name } }
	const forbidden, mediaType = http.StatusForbidden, http.StatusUnsupportedMediaType
	port := url[strings.LastIndex(url, ":"):]
	for name, tc := range map[string]struct {
		change func(*http.Request)
		body   string
		want   int
	}{
		"not by GET": {change: method(http.MethodGet), want: http.StatusMethodNotAllowed},
		"not by PUT": {change: method(http.MethodPut), want: http.StatusMethodNotAllowed},
		"not for another host": {change: func(r *http.Request) { // which a site has point here
			r.Host = "evil.example.com" + port
			r.Header.Set("Origin", "http://"+r.Host)
		}, want: forbidden},
		"not from another site":  {change: header("Origin", "https://evil.example.com"), want: forbidden},
		"not from another port":  {change: header("Origin", "http://127.0.0.1:1"), want: forbidden},
		"not from another name":  {change: header("Origin", "http://localhost"+port), want: forbidden},
		"not from a sandbox":     {change: header("Origin", "null"), want: forbidden},
		"not from no page":       {change: header("Origin", ""), want: forbidden},
		"not without a token":    {change: header("Kuperator-Token", ""), want: forbidden},
		"not with another token": {change: header("Kuperator-Token", strings.Repeat("A", len(token))), want: forbidden},
		"not with a part of it":  {change: header("Kuperator-Token", token[:len(token)-1]), want: forbidden},
		"not as a form":          {change: header("Content-Type", "application/x-www-form-urlencoded"), want: mediaType},
		"not as text":            {change: header("Content-Type", "text/plain"), want: mediaType},
		"not as anything":        {change: header("Content-Type", ""), want: mediaType},
		"not without a version":  {body: strings.Replace(pauseWeb, "uid/2", "", 1), want: http.StatusBadRequest},
		"not without a verb":     {body: strings.Replace(pauseWeb, "pause", "", 1), want: http.StatusBadRequest},
		"not with other fields":  {body: strings.Replace(pauseWeb, "{", `{"force":true,`, 1), want: http.StatusBadRequest},
		"not by pages of text":   {body: strings.Repeat(" ", maxOrder) + pauseWeb, want: http.StatusBadRequest},
	} {
		t.Run(name, func(t *testing.T) {
			if tc.body == "" {
				tc.body = pauseWeb
			}
			if tc.change == nil {
				tc.change = func(*http.Request) {}
			}
			status, text := order(t, url, token, tc.body, tc.change)
			assert.Equal(t, tc.want, status, text)
			assert.Empty(t, actor.obeyed())
		})
	}
	t.Run("nor asks what is allowed without a token", func(t *testing.T) {
		const question = "/api/actions?kind=CollaSet&namespace=shop&name=web"
		assert.Equal(t, forbidden, get(t, url+question).StatusCode)
		assert.Empty(t, actor.asked)
		assert.Equal(t, http.StatusOK, get(t, url+question, header("Kuperator-Token", token)).StatusCode)
		assert.Equal(t, http.StatusOK, get(t, url+question+"&verb=undo", header("Kuperator-Token", token)).StatusCode)
		assert.Equal(t, []insight.Verb{"", "undo"}, actor.asked)
	})
	t.Run("nor learns the token", func(t *testing.T) {
		for _, path := range []string{"/", "/app.js", "/actions.js"} {
			text, err := io.ReadAll(get(t, url+path).Body)
			require.NoError(t, err)
			assert.NotContains(t, string(text), token, path)
		}
		other, another := acting(t, actor)
		assert.NotEqual(t, token, another, "each run has its own")
		status, _ := order(t, other, token, pauseWeb)
		assert.Equal(t, forbidden, status)
	})
	t.Run("and the rest of the page is as before", func(t *testing.T) {
		response := get(t, url+"/api/why", func(r *http.Request) { r.Method = http.MethodPost })
		assert.Equal(t, http.StatusMethodNotAllowed, response.StatusCode)
		assert.Contains(t, response.Header.Get("Content-Security-Policy"), "default-src 'none'")
	})
}

// TestItActsOnlyIfItIsAllowedTo: without Allow there is no such address, whatever the request has.
func TestItActsOnlyIfItIsAllowedTo(t *testing.T) {
	url := serve(t, &told{})
	status, text := order(t, url, "", pauseWeb)
	assert.Equal(t, http.StatusMethodNotAllowed, status)
	assert.Contains(t, text, "this page only reads")
	assert.Equal(t, http.StatusNotFound, get(t, url+"/api/actions?kind=CollaSet&namespace=shop&name=web").StatusCode)
	assert.Equal(t, http.StatusNotFound, get(t, url+"/api/act").StatusCode)
}

func TestARefusalIsTold(t *testing.T) {
	actor := &obedient{}
	url, token := acting(t, actor)
	for _, tc := range []struct {
		err    error
		status int
		text   string
	}{
		{&Refusal{Status: http.StatusConflict, Reason: "it has been changed"}, http.StatusConflict, "it has been changed\n"},
		{&Refusal{Status: http.StatusForbidden, Reason: "the role edit may", Answer: "cannot patch"}, http.StatusForbidden,
			"the role edit may\ncannot patch\n"},
		{errors.New("the API server is gone"), http.StatusBadGateway, "the API server is gone\n"},
	} {
		actor.set(func() { actor.err = tc.err })
		status, text := order(t, url, token, pauseWeb)
		assert.Equal(t, tc.status, status)
		assert.Equal(t, tc.text, text)
	}
}

// TestThePageKnowsWhetherItActs: the stream says so, and not by which token.
func TestThePageKnowsWhetherItActs(t *testing.T) {
	for _, actor := range []Actor{nil, &obedient{}} {
		source := &told{fleets: make(chan insight.Fleet)}
		url, token, acts := strings.Cut(serveFor(t, source, actor), "/#token=")
		next := events(t, url)
		source.fleets <- fleetOf()
		about := string(next().change(t).Set["about"])
		assert.Equal(t, acts, strings.Contains(about, `"actions":true`), about)
		if acts {
			require.NotEmpty(t, token)
			assert.NotContains(t, about, token)
		}
	}
}
