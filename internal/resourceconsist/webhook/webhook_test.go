package webhook

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/kube-openapi/pkg/validation/spec"
	"k8s.io/kube-openapi/pkg/validation/strfmt"
	"k8s.io/kube-openapi/pkg/validation/validate"
	testclock "k8s.io/utils/clock/testing"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	api "kusionstack.io/kuperator/api/resourceconsist"
	"kusionstack.io/kuperator/internal/testkit/await"
	"kusionstack.io/kuperator/internal/testkit/testca"
)

// peer is a server at https that answers what a test says, and keeps what it was asked.
type peer struct {
	*httptest.Server
	mu    sync.Mutex
	asked []request
	raw   [][]byte
}

func serve(t *testing.T, a testca.Authority, handler http.HandlerFunc) *peer {
	t.Helper()
	p := &peer{}
	p.Server = a.Serve(t, false, func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		var q request
		if err == nil {
			err = json.Unmarshal(body, &q)
		}
		if err != nil {
			t.Errorf("a request that cannot be read: %v", err)
		}
		p.mu.Lock()
		p.asked, p.raw = append(p.asked, q), append(p.raw, body)
		p.mu.Unlock()
		handler(w, r)
	})
	return p
}

func (p *peer) requests() []request {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.asked)
}

func says(text string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, strings.ReplaceAll(text, "VERSION", `"apiVersion":"`+Version+`"`))
	}
}

func write(t *testing.T, name, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
	return path
}

// configured is a backend whose endpoint "pools" is this URL.
func configured(t *testing.T, url string, a testca.Authority, more ...string) (*Backend, *testclock.FakePassiveClock) {
	t.Helper()
	file := fmt.Sprintf("endpoints:\n- name: pools\n  url: %s\n  namespaces: [shop]\n", url)
	if !slices.ContainsFunc(more, func(line string) bool { return strings.HasPrefix(line, "ca") }) {
		more = append(more, "caFile: "+write(t, "ca.crt", string(a.PEM())))
	}
	for _, line := range more {
		file += "  " + line + "\n"
	}
	clk := testclock.NewFakePassiveClock(time.Date(2026, 5, 4, 3, 2, 1, 0, time.UTC))
	b, err := New(Options{Endpoints: write(t, "endpoints.yaml", file), Allow: []string{"127.0.0.0/8"}, QPS: 1}, clk)
	require.NoError(t, err)
	return b, clk
}

func service(change ...func(*corev1.Service)) *corev1.Service {
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{
		Namespace: "shop", Name: "web", UID: "s-1",
		Labels:      map[string]string{appsv1alpha1.ControlLabel: appsv1alpha1.ControlValue},
		Annotations: map[string]string{EndpointAnnotation: "pools", ParametersAnnotation: `{"pool":"a"}`},
	}, Spec: corev1.ServiceSpec{Selector: map[string]string{"app": "web"}}}
	for _, c := range change {
		c(s)
	}
	return s
}

func pod(name string, addresses ...string) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, UID: types.UID("u-" + name)}}
	for _, a := range addresses {
		p.Status.PodIPs = append(p.Status.PodIPs, corev1.PodIP{IP: a})
	}
	return p
}

func TestSelector(t *testing.T) {
	b := &Backend{}
	require.NotNil(t, b.Selector(service()))
	require.Nil(t, b.Selector(service(func(s *corev1.Service) { delete(s.Annotations, EndpointAnnotation) })),
		"a Service that names no endpoint")
	require.Nil(t, b.Selector(service(func(s *corev1.Service) { s.Labels = nil })))
	require.Nil(t, b.Selector(service(func(s *corev1.Service) { s.Spec.Selector = nil })))
}

func TestMembers(t *testing.T) {
	b := &Backend{}
	on, err := b.Members(service(), pod("a", "fd00::1", "10.0.0.1"), true)
	require.NoError(t, err)
	state := on["pools/a/u-a"]
	require.Equal(t, State{Addresses: "10.0.0.1,fd00::1", Revision: state.Revision, Serve: true}, state)
	require.NotEmpty(t, state.Revision)
	other, err := b.Members(service(func(s *corev1.Service) { s.Annotations[ParametersAnnotation] = `{"pool":"b"}` }),
		pod("a", "10.0.0.1"), true)
	require.NoError(t, err)
	require.NotEqual(t, state.Revision, other["pools/a/u-a"].Revision, "other parameters have to reach the server")

	for name, p := range map[string]*corev1.Pod{"without an address": pod("a")} {
		got, err := b.Members(service(), p, true)
		require.NoError(t, err, name)
		require.Empty(t, got, name)
	}
	off, err := b.Members(service(), pod("a", "10.0.0.1"), false)
	require.NoError(t, err)
	require.Empty(t, off, "who is not to serve is not kept")

	for name, raw := range map[string]string{
		"no JSON": "pool=a", "no object": "[]", "no strings": `{"a":1}`,
		"too long": `{"a":"` + strings.Repeat("x", maxParametersSize) + `"}`,
		"too many": "{" + strings.TrimSuffix(strings.Repeat(`"%d":"",`, maxParameters+1), ",") + "}",
	} {
		if name == "too many" {
			numbers := make([]any, maxParameters+1)
			for i := range numbers {
				numbers[i] = i
			}
			raw = fmt.Sprintf(raw, numbers...)
		}
		_, err := b.Members(service(func(s *corev1.Service) { s.Annotations[ParametersAnnotation] = raw }),
			pod("a", "10.0.0.1"), true)
		require.ErrorContains(t, err, "annotation "+ParametersAnnotation, name)
	}
}

func TestWhatIsSentAndHeard(t *testing.T) {
	ca := testca.New(t)
	p := serve(t, ca, says(`{VERSION,"members":[
		{"id":"a/u-a","addresses":["fd00::1","10.0.0.1"],"serve":true,"revision":"r","serving":true,"unknown":{}},
		{"id":"b/u-b","serve":false,"serving":true,"message":"3 sessions\nleft"},
		{"id":"c/u-c","serving":false},
		{"id":"d/u-d","addresses":["10.0.0.4"],"serve":true,"serving":false},
		{"id":"not-asked","serving":true}],"more":1}`))
	b, _ := configured(t, p.URL, ca)
	held, err := b.Read(t.Context(), service(), []string{"pools/a/u-a", "pools/b/u-b", "pools/c/u-c", "pools/d/u-d"})
	require.NoError(t, err)
	require.Empty(t, cmp.Diff([]api.Held[State]{
		{ID: "pools/a/u-a", State: State{Addresses: "10.0.0.1,fd00::1", Revision: "r", Serve: true}, Serving: true},
		{ID: "pools/b/u-b", Serving: true},
		{ID: "pools/d/u-d", State: State{Addresses: "10.0.0.4", Serve: true}},
	}, held), "one that is neither to serve nor serving is out; another's is not ours")

	require.NoError(t, b.Apply(t.Context(), service(), []api.Change[State]{
		{ID: "pools/a/u-a", State: State{Addresses: "10.0.0.1,fd00::1", Revision: "r", Serve: true}},
		{ID: "pools/b/u-b", Remove: true},
	}))
	yes, no := true, false
	to := employer{Kind: "Service", Namespace: "shop", Name: "web", UID: "s-1", Parameters: map[string]string{"pool": "a"}}
	ref := func(name string) podRef { return podRef{"shop", name, "u-" + name} }
	require.Empty(t, cmp.Diff([]request{
		{APIVersion: Version, Action: actionRead, Employer: to, Members: []requestMember{
			{ID: "a/u-a", Pod: ref("a")}, {ID: "b/u-b", Pod: ref("b")}, {ID: "c/u-c", Pod: ref("c")},
			{ID: "d/u-d", Pod: ref("d")},
		}},
		{APIVersion: Version, Action: actionApply, Employer: to, Members: []requestMember{
			{ID: "a/u-a", Pod: ref("a"), Serve: &yes, Addresses: []string{"10.0.0.1", "fd00::1"}, Revision: "r"},
			{ID: "b/u-b", Pod: ref("b"), Serve: &no},
		}},
	}, p.requests()))
}

func TestManyMembers(t *testing.T) {
	ca := testca.New(t)
	var p *peer
	p = serve(t, ca, func(w http.ResponseWriter, _ *http.Request) {
		asked := p.requests()
		q := asked[len(asked)-1]
		said := map[string]any{"apiVersion": Version, "members": []any{}}
		var members []any
		for _, m := range q.Members {
			members = append(members, map[string]any{"id": m.ID, "serving": true})
		}
		if len(q.Members) == 0 { // pages of one
			members = []any{map[string]any{"id": "page" + q.Continue, "serving": true}}
			if len(q.Continue) < 3 {
				said["continue"] = q.Continue + "x"
			}
		}
		said["members"] = members
		_ = json.NewEncoder(w).Encode(said)
	})
	b, _ := configured(t, p.URL, ca)
	var ids []string
	for i := range 2*maxIDs + 1 {
		ids = append(ids, fmt.Sprintf("pools/p-%d/u", i))
	}
	held, err := b.Read(t.Context(), service(), ids)
	require.NoError(t, err)
	require.Len(t, held, len(ids))
	require.Len(t, p.requests(), 3, "so many are asked about at a time")
	held, err = b.Read(t.Context(), service(), nil)
	require.NoError(t, err)
	require.Len(t, held, 4, "from all pages")
}

func TestAnEndlessAnswerIsNotFollowed(t *testing.T) {
	ca := testca.New(t)
	p := serve(t, ca, says(`{VERSION,"members":[],"continue":"again"}`))
	b, _ := configured(t, p.URL, ca)
	_, err := b.Read(t.Context(), service(), nil)
	require.ErrorContains(t, err, "goes on for more than 200 pages")
}

func TestNotKnowingIsNeverOff(t *testing.T) {
	ca := testca.New(t)
	slow := func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }
	for name, tc := range map[string]struct {
		handler http.HandlerFunc
		want    string
	}{
		"an empty object":      {says(`{}`), `the answer's apiVersion is ""`},
		"another version":      {says(`{"apiVersion":"v2","members":[]}`), `the answer's apiVersion is "v2"`},
		"no members":           {says(`{VERSION}`), "the answer to a read has no members"},
		"null members":         {says(`{VERSION,"members":null}`), "the answer to a read has no members"},
		"a member is not told": {says(`{VERSION,"members":[]}`), "does not say anything about member a/u-a"},
		"a member without serving": {says(`{VERSION,"members":[{"id":"a/u-a"}]}`),
			"does not say whether member a/u-a is serving"},
		"a member without id": {says(`{VERSION,"members":[{"serving":false}]}`), "a member without id"},
		"a member twice": {says(
			`{VERSION,"members":[{"id":"a/u-a","serving":false},{"id":"a/u-a","serving":true}]}`), "member a/u-a twice"},
		"an error about a member": {says(
			`{VERSION,"members":[{"id":"a/u-a","serving":false}],"errors":[{"id":"a/u-a","message":"the\nregion is down"}]}`),
			"member a/u-a: the region is down"},
		"garbage":        {says(`<html>sign in</html>`), "the answer is not the JSON that it should be"},
		"half an answer": {says(`{VERSION,"members":[`), "the answer is not the JSON that it should be"},
		"another type":   {says(`{VERSION,"members":{}}`), "the answer is not the JSON that it should be"},
		"a huge answer": {says(`{VERSION,"members":[],"x":"` + strings.Repeat("x", maxAnswer) + `"}`),
			"has more than 1048576 bytes"},
		"a redirect": {func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "https://127.0.0.1:1/", http.StatusFound)
		}, "302 Found; redirects are not followed"},
		"a failure": {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusInternalServerError) },
			"500 Internal Server Error"},
		"a failure that looks right": {func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(http.StatusBadGateway)
			says(`{VERSION,"members":[{"id":"a/u-a","serving":false}]}`)(w, r)
		}, "502 Bad Gateway"},
		"an answer that comes late": {slow, "did not answer within 100ms"},
		"a connection that is closed": {func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
			"closed the connection"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := serve(t, ca, tc.handler)
			var more []string
			if strings.Contains(tc.want, "100ms") {
				more = append(more, "timeout: 100ms")
			} else {
				more = append(more, "timeout: 30s")
			}
			b, _ := configured(t, p.URL, ca, more...)
			for range 2 { // the same each time: it stands in a condition
				held, err := b.Read(t.Context(), service(), []string{"pools/a/u-a"})
				require.ErrorContains(t, err, tc.want)
				require.ErrorContains(t, err, "endpoint pools: ")
				require.Nil(t, held)
			}
		})
	}
}

func TestApplyTellsFailuresApart(t *testing.T) {
	ca := testca.New(t)
	changes := []api.Change[State]{{ID: "pools/a/u-a", Remove: true}, {ID: "pools/b/u-b", Remove: true}}
	for name, tc := range map[string]struct {
		answer  string
		members map[string]string // failed, with their words; nil for another error, or none
		want    string            // the other error; "" for none
	}{
		"all done": {`{VERSION}`, nil, ""},
		"one failed": {`{VERSION,"errors":[{"id":"b/u-b","message":"no such pool"}]}`,
			map[string]string{"pools/b/u-b": "no such pool"}, ""},
		"one failed for nothing": {`{VERSION,"errors":[{"id":"b/u-b"}]}`,
			map[string]string{"pools/b/u-b": "the server gives no reason"}, ""},
		"one says much": {`{VERSION,"errors":[{"id":"a/u-a","message":"` + strings.Repeat("x", 9999) + `"}]}`,
			map[string]string{"pools/a/u-a": strings.Repeat("x", 256) + "…"}, ""},
		"another one failed": {`{VERSION,"errors":[{"id":"z","message":"what?"}]}`, nil,
			`an error about member "z", which was not asked about: what?`},
		"nothing is said":         {`{}`, nil, "the answer's apiVersion"},
		"something else answered": {`ok`, nil, "is not the JSON that it should be"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := serve(t, ca, says(tc.answer))
			b, _ := configured(t, p.URL, ca)
			err := b.Apply(t.Context(), service(), changes)
			var partial api.MemberErrors
			switch {
			case tc.members != nil:
				require.True(t, errors.As(err, &partial))
				got := map[string]string{}
				for id, e := range partial {
					got[id] = e.Error()
				}
				require.Equal(t, tc.members, got)
			case tc.want != "":
				require.ErrorContains(t, err, tc.want)
				require.False(t, errors.As(err, &partial), "none is known to have succeeded")
			default:
				require.NoError(t, err)
			}
		})
	}
}

func TestAServerThatAsksForAPauseIsLeftAlone(t *testing.T) {
	ca := testca.New(t)
	for name, tc := range map[string]struct {
		status int
		header string
		pause  time.Duration // zero for none
	}{
		"too many, in seconds":           {http.StatusTooManyRequests, "7", 7 * time.Second},
		"not now, at a time":             {http.StatusServiceUnavailable, "Mon, 04 May 2026 03:02:11 GMT", 10 * time.Second},
		"for ever is not for ever":       {http.StatusTooManyRequests, "999999999", mostPause},
		"without a word":                 {http.StatusTooManyRequests, "", 0},
		"in unknown words":               {http.StatusTooManyRequests, "soon", 0},
		"a failure of another kind":      {http.StatusInternalServerError, "7", 0},
		"a time that has already passed": {http.StatusServiceUnavailable, "Mon, 04 May 2026 03:02:00 GMT", 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := serve(t, ca, func(w http.ResponseWriter, _ *http.Request) {
				if tc.header != "" {
					w.Header().Set("Retry-After", tc.header)
				}
				w.WriteHeader(tc.status)
			})
			b, clk := configured(t, p.URL, ca)
			ask := func() int {
				_, err := b.Read(t.Context(), service(), nil)
				require.ErrorContains(t, err, fmt.Sprint(tc.status), "the same words, whether it was called or not")
				return len(p.requests())
			}
			require.Equal(t, 1, ask())
			if tc.pause == 0 {
				require.Equal(t, 2, ask())
				return
			}
			require.Equal(t, 1, ask())
			clk.SetTime(clk.Now().Add(tc.pause - time.Millisecond))
			require.Equal(t, 1, ask())
			clk.SetTime(clk.Now().Add(time.Millisecond + 1))
			require.Equal(t, 2, ask())
		})
	}
}

func TestWhoMayUseAnEndpoint(t *testing.T) {
	ca := testca.New(t)
	p := serve(t, ca, says(`{VERSION,"members":[]}`))
	b, _ := configured(t, p.URL, ca)
	_, err := b.Read(t.Context(), service(func(s *corev1.Service) { s.Namespace = "other" }), nil)
	require.ErrorContains(t, err, "Services of namespace other may not use endpoint \"pools\"")
	_, err = b.Read(t.Context(), service(func(s *corev1.Service) { s.Annotations[EndpointAnnotation] = p.URL }), nil)
	require.ErrorContains(t, err, "there is no endpoint")
	require.Empty(t, p.requests())
	require.NoError(t, os.WriteFile(b.endpoints.path,
		[]byte("endpoints: [{name: pools, url: '"+p.URL+"', namespaces: ['*'], caBundle: "+fmt.Sprintf("%q", ca.PEM())+"}]"),
		0o600))
	_, err = b.Read(t.Context(), service(func(s *corev1.Service) { s.Namespace = "other" }), nil)
	require.NoError(t, err, "the file is read again")
	require.NoError(t, os.WriteFile(b.endpoints.path, []byte("endpoints: ["), 0o600))
	_, err = b.Read(t.Context(), service(), nil)
	require.NoError(t, err, "a file that cannot be used changes nothing")
	require.NoError(t, os.Remove(b.endpoints.path))
	_, err = b.Read(t.Context(), service(), nil)
	require.NoError(t, err, "nor does one that is not there")
	require.Len(t, p.requests(), 3)
}

// TestAServiceThatNamesAnotherEndpoint: its members are looked for where they may be, by what the Service itself says.
func TestAServiceThatNamesAnotherEndpoint(t *testing.T) {
	ca := testca.New(t)
	p := serve(t, ca, says(`{VERSION,"members":[{"id":"a/u-a","serving":true}]}`))
	b, _ := configured(t, p.URL, ca)
	silent := service(func(s *corev1.Service) { delete(s.Annotations, EndpointAnnotation) })
	held, err := b.Read(t.Context(), silent, nil)
	require.NoError(t, err, "no Pod may wait for a backend that a Service does not have")
	require.Empty(t, held)
	require.Empty(t, p.requests())

	silent.Annotations[api.AdaptersAnnotation] = "other,webhook.pools"
	held, err = b.Read(t.Context(), silent, nil)
	require.NoError(t, err)
	require.Len(t, held, 1, "one that names it no more still has members there")
	require.Equal(t, "pools/a/u-a", held[0].ID)
	held, err = b.Read(t.Context(), silent, []string{"pools/a/u-a"})
	require.NoError(t, err)
	require.Len(t, held, 1)
	require.NoError(t, b.Apply(t.Context(), silent, []api.Change[State]{{ID: "pools/a/u-a", Remove: true}}))
	require.Equal(t, "a/u-a", p.requests()[2].Members[0].ID, "the endpoint has its own names")

	moved := service(func(s *corev1.Service) {
		s.Annotations[EndpointAnnotation] = "elsewhere"
		s.Annotations[api.AdaptersAnnotation] = "webhook.elsewhere,webhook.pools"
	})
	_, err = b.Read(t.Context(), moved, nil)
	require.ErrorContains(t, err, `there is no endpoint "elsewhere"`, "nothing is known of where it is")
	err = b.Apply(t.Context(), moved, []api.Change[State]{{ID: "pools/a/u-a", Remove: true},
		{ID: "elsewhere/a/u-a", State: State{Serve: true}}})
	require.ErrorContains(t, err, "elsewhere/a/u-a: annotation", "one endpoint does not fail the other")
	require.NotContains(t, err.Error(), "pools/a/u-a")

	back := service(func(s *corev1.Service) { s.Annotations[api.AdaptersAnnotation] = "webhook.elsewhere,webhook.pools" })
	held, err = b.Read(t.Context(), back, nil)
	require.NoError(t, err, "an endpoint that it has left and that is not offered any more is asked nothing")
	require.Len(t, held, 1)
	require.NoError(t, b.Apply(t.Context(), back, []api.Change[State]{{ID: "elsewhere/a/u-a", Remove: true}}))
}

func TestCertificatesAndTokensAreReadAgain(t *testing.T) {
	ours, others := testca.New(t), testca.New(t)
	var token sync.Map
	token.Store("", "one")
	server := ours.Serve(t, true, func(w http.ResponseWriter, r *http.Request) {
		if want, _ := token.Load(""); r.Header.Get("Authorization") != fmt.Sprint("Bearer ", want) {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		says(`{VERSION,"members":[]}`)(w, r)
	})
	dir := t.TempDir()
	put := func(name string, content []byte) {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), content, 0o600))
	}
	issue := func(a testca.Authority) {
		certificate, key := a.Issue(t)
		put("tls.crt", certificate)
		put("tls.key", key)
	}
	put("token", []byte("one\n"))
	put("ca.crt", ours.PEM())
	issue(ours)
	b, _ := configured(t, server.URL, ours, "caFile: "+filepath.Join(dir, "ca.crt"),
		"tokenFile: "+filepath.Join(dir, "token"),
		"certificateFile: "+filepath.Join(dir, "tls.crt"), "keyFile: "+filepath.Join(dir, "tls.key"))
	read := func() error {
		_, err := b.Read(t.Context(), service(), nil)
		return err
	}
	require.NoError(t, read())

	token.Store("", "two")
	require.ErrorContains(t, read(), "401 Unauthorized")
	put("token", []byte("two"))
	require.NoError(t, read(), "a token that was renewed")
	put("token", []byte(" "))
	require.ErrorContains(t, read(), "a token is one line of text")
	put("token", []byte("two"))

	issue(others)
	await.Nil(t, "the server's refusal of the certificate, where it is read before the connection ends", func() error {
		err := read()
		require.Error(t, err)
		if !strings.Contains(err.Error(), "certificate") {
			return err
		}
		return nil
	})
	issue(ours)
	require.NoError(t, read(), "a certificate that was renewed")
	put("tls.key", []byte("x"))
	require.ErrorContains(t, read(), "cannot be used")
	issue(ours)

	put("ca.crt", others.PEM())
	require.ErrorContains(t, read(), "its certificate cannot be trusted")
	put("ca.crt", nil)
	require.ErrorContains(t, read(), "the caBundle has no certificate", "an empty file does not mean the system's")
	put("ca.crt", ours.PEM())
	require.NoError(t, read())
}

func TestHTTP2(t *testing.T) {
	ca := testca.New(t)
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ProtoMajor != 2 {
			t.Errorf("asked by %s", r.Proto)
		}
		says(`{VERSION,"members":[]}`)(w, r)
	}))
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.EnableHTTP2, server.TLS = true, ca.Config(t, false)
	server.StartTLS()
	t.Cleanup(server.Close)
	b, _ := configured(t, server.URL, ca)
	_, err := b.Read(t.Context(), service(), nil)
	require.NoError(t, err)
}

func TestACallEndsWithItsContext(t *testing.T) {
	ca := testca.New(t)
	arrived := make(chan struct{})
	p := serve(t, ca, func(_ http.ResponseWriter, r *http.Request) { close(arrived); <-r.Context().Done() })
	b, _ := configured(t, p.URL, ca, "timeout: 30s")
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-arrived; cancel() }()
	_, err := b.Read(ctx, service(), nil)
	require.ErrorIs(t, err, context.Canceled)
}

func TestLoopbackNeedsAFlag(t *testing.T) {
	ca := testca.New(t)
	p := serve(t, ca, says(`{VERSION,"members":[]}`))
	b, _ := configured(t, p.URL, ca)
	closed, err := New(Options{Endpoints: b.endpoints.path, QPS: 1}, nil)
	require.NoError(t, err)
	_, err = closed.Read(t.Context(), service(), nil)
	require.ErrorContains(t, err, "127.0.0.1 is a loopback address, which webhook endpoints may not ask")
	require.ErrorContains(t, err, "--webhook-allow of resourceconsist-controller")
	require.Empty(t, p.requests())
}

func TestFilesThatCannotBeUsed(t *testing.T) {
	good := "name: a, namespaces: [x], url: 'https://h'"
	for name, tc := range map[string]struct{ entry, want string }{
		"http":              {"name: a, namespaces: [x], url: 'http://h'", "it has to be https"},
		"http for loopback": {"name: a, namespaces: [x], url: 'http://127.0.0.1:80'", ""},
		"http with a token": {"name: a, namespaces: [x], url: 'http://localhost', tokenFile: t",
			"credentials are sent over https only"},
		"no url":                     {"name: a, namespaces: [x]", "url"},
		"a password":                 {"name: a, namespaces: [x], url: 'https://me:secret@h'", "user name or password"},
		"no name":                    {"namespaces: [x], url: 'https://h'", "name"},
		"no namespaces":              {"name: a, url: 'https://h'", "namespaces: give at least one"},
		"all and some":               {"name: a, namespaces: ['*', x], url: 'https://h'", "give it alone"},
		"a namespace that cannot be": {"name: a, namespaces: [X], url: 'https://h'", "no name of a namespace"},
		"half a certificate":         {good + ", certificateFile: x", "give both or none"},
		"two authorities":            {good + ", caFile: x, caBundle: y", "give one of them"},
		"a bundle of nothing":        {good + ", caBundle: y", "the caBundle has no certificate"},
		"too patient":                {good + ", timeout: 1h", "at most 30s"},
		"an unknown field":           {good + ", URL2: x", "unknown field"},
		"good":                       {good, ""},
		"twice":                      {good + "}, {" + good, "two of this name"},
	} {
		t.Run(name, func(t *testing.T) {
			o := Options{Endpoints: write(t, "endpoints.yaml", "endpoints: [{"+tc.entry+"}]"), QPS: 1}
			if err := o.Validate(); tc.want == "" {
				require.NoError(t, err)
			} else {
				require.ErrorContains(t, err, tc.want)
				require.NotContains(t, err.Error(), "me:secret")
			}
		})
	}
	o := Options{Allow: []string{"*"}}
	require.ErrorContains(t, o.Validate(), "--webhook-endpoints is empty")
	require.ErrorContains(t, o.Validate(), "--webhook-allow")
	require.ErrorContains(t, o.Validate(), "--webhook-qps")
	o.Endpoints = "/does/not/exist"
	require.ErrorContains(t, o.Validate(), "no such file")
}

// TestTheSchemaIsTrue holds what is sent and what is understood against docs/adapters/webhook.schema.json.
func TestTheSchemaIsTrue(t *testing.T) {
	text, err := os.ReadFile("../../../docs/adapters/webhook.schema.json")
	require.NoError(t, err)
	var file struct{ Definitions map[string]*spec.Schema }
	require.NoError(t, json.Unmarshal(text, &file))
	check := func(definition string, document []byte) error {
		var value any
		require.NoError(t, json.Unmarshal(document, &value))
		return validate.NewSchemaValidator(file.Definitions[definition], nil, "", strfmt.Default).Validate(value).AsError()
	}
	const full = `{VERSION,"members":[{"id":"a/u-a","addresses":["10.0.0.1"],"serve":true,"revision":"r","serving":true,"message":"m"}],"errors":[],"continue":"","extra":1}`
	ca := testca.New(t)
	p := serve(t, ca, says(full))
	b, _ := configured(t, p.URL, ca)
	on, err := b.Members(service(), pod("a", "10.0.0.1"), true)
	require.NoError(t, err)
	require.NoError(t, b.Apply(t.Context(), service(), []api.Change[State]{{ID: "pools/a/u-a", State: on["pools/a/u-a"]},
		{ID: "pools/b/u-b", Remove: true}}))
	_, err = b.Read(t.Context(), service(), []string{"pools/a/u-a"})
	require.NoError(t, err)
	_, err = b.Read(t.Context(), service(), nil)
	require.NoError(t, err)
	require.Len(t, p.raw, 3)
	for _, sent := range p.raw {
		require.NoError(t, check("request", sent), string(sent))
	}
	version := func(s string) []byte { return []byte(strings.ReplaceAll(s, "VERSION", `"apiVersion":"`+Version+`"`)) }
	require.NoError(t, check("answer", version(full)))
	for _, bad := range []string{`{}`, `{"apiVersion":"v2"}`, `{VERSION,"members":[{"id":"a"}]}`,
		`{VERSION,"members":[{"serving":true}]}`, `{VERSION,"members":{}}`} {
		require.Error(t, check("answer", version(bad)), bad)
		_, err := readAnswer(version(bad), actionRead)
		require.Error(t, err, bad)
	}
}
