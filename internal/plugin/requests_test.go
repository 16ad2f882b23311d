package plugin

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"kusionstack.io/kuperator/api/podops"
	"kusionstack.io/kuperator/internal/insight"
)

// server answers as an API server does that has so many Pods, half of which wait for permission and are not Ready, on
// so many nodes. It counts what it is asked.
type server struct {
	pods, nodes int
	date        time.Time
	forbidden   []string

	mu    sync.Mutex
	asked map[string]int
	paths []string
}

func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	resource := strings.TrimPrefix(r.URL.Path[strings.LastIndex(r.URL.Path, "/"):], "/")
	if strings.Contains(r.URL.Path, "/nodes/") {
		resource = "node"
	}
	if strings.HasPrefix(r.URL.Path, "/api/v1/namespaces/") && strings.Count(r.URL.Path, "/") == 4 {
		resource = "namespace"
	}
	s.mu.Lock()
	s.asked[resource]++
	s.paths = append(s.paths, r.URL.String())
	s.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Date", s.date.UTC().Format(http.TimeFormat))
	for _, f := range s.forbidden {
		if strings.Contains(r.URL.Path, f) {
			w.WriteHeader(http.StatusForbidden)
			_ = json.NewEncoder(w).Encode(metav1.Status{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"},
				Status: metav1.StatusFailure, Reason: metav1.StatusReasonForbidden, Code: 403, Message: resource + " is forbidden"})
			return
		}
	}
	kinds := map[string][2]string{
		"collasets":          {"apps.kusionstack.io/v1alpha1", "CollaSetList"},
		"podtransitionrules": {"apps.kusionstack.io/v1alpha1", "PodTransitionRuleList"},
		"operationjobs":      {"apps.kusionstack.io/v1alpha1", "OperationJobList"},
		"poddecorations":     {"apps.kusionstack.io/v1alpha1", "PodDecorationList"},
		"leases":             {"coordination.k8s.io/v1", "LeaseList"}, "namespaces": {"v1", "NamespaceList"},
		"nodes":  {"v1", "NodeList"},
		"events": {"v1", "EventList"},
	}
	var answer any = map[string]any{"apiVersion": kinds[resource][0], "kind": kinds[resource][1],
		"metadata": map[string]any{}, "items": []any{}}
	switch resource {
	case "pods":
		answer = s.page(r)
	case "node", "namespace":
		answer = map[string]any{"apiVersion": "v1", "kind": strings.ToUpper(resource[:1]) + resource[1:],
			"metadata": map[string]any{"name": r.URL.Path[strings.LastIndex(r.URL.Path, "/")+1:]}}
	}
	_ = json.NewEncoder(w).Encode(answer)
}

func (s *server) page(r *http.Request) corev1.PodList {
	limit, _ := strconv.Atoi(r.URL.Query().Get("limit"))
	from, _ := strconv.Atoi(r.URL.Query().Get("continue"))
	list := corev1.PodList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "PodList"}}
	for i := from; i < min(from+limit, s.pods); i++ {
		pod := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: fmt.Sprintf("web-%d", i),
			Labels: map[string]string{"kusionstack.io/control": "true"}}}
		pod.Spec.NodeName = fmt.Sprintf("node-%d", i%s.nodes)
		if i%2 == 0 {
			pod.Labels[podops.OperatingPrefix+"/x"], pod.Labels[podops.OperationTypePrefix+"/x"] = "1", "update"
		}
		list.Items = append(list.Items, pod)
	}
	if from+limit < s.pods {
		list.Continue = strconv.Itoa(from + limit)
	}
	return list
}

// asks runs the plugin against the server and returns what it prints.
func (s *server) asks(t *testing.T, args ...string) string {
	t.Helper()
	s.asked = map[string]int{}
	listener := httptest.NewServer(s)
	defer listener.Close()
	var out, problems bytes.Buffer
	t.Setenv("KUBECONFIG", "/dev/null")
	code := Run(t.Context(), append([]string{"--server", listener.URL, "-n", "shop"}, args...),
		genericiooptions.IOStreams{In: strings.NewReader(""), Out: &out, ErrOut: &problems})
	require.Zero(t, code, problems.String())
	return out.String()
}

// TestRequestsDoNotGrowWithPods but by their pages: one list for each kind, whatever is wrong with how many Pods.
func TestRequestsDoNotGrowWithPods(t *testing.T) {
	s := &server{pods: 10_000, nodes: 50, date: time.Now()}
	var fleet insight.Fleet
	require.NoError(t, json.Unmarshal([]byte(s.asks(t, "status", "-o", "json")), &fleet))
	total := 0
	for _, n := range fleet.Counts {
		total += n
	}
	require.Equal(t, 10_000, total)
	require.Equal(t, map[string]int{"pods": 10_000 / pageSize, "collasets": 1, "podtransitionrules": 1, "operationjobs": 1,
		"poddecorations": 1,
		"namespace":      2,
		"leases":         1, "nodes": 1}, s.asked)

	s.asks(t, "status", "-A")
	require.Equal(t, map[string]int{"pods": 10_000 / pageSize, "collasets": 1, "podtransitionrules": 1, "operationjobs": 1,
		"poddecorations": 1,
		"namespaces":     1,
		"leases":         1, "nodes": 1}, s.asked)

	s.asks(t, "why", "pod/web-7")
	require.Equal(t, map[string]int{"pods": 10_000 / pageSize, "collasets": 1, "podtransitionrules": 1, "operationjobs": 1,
		"poddecorations": 1,
		"namespace":      2,
		"leases":         1, "nodes": 1, "events": 1}, s.asked)

	few := &server{pods: 10, nodes: 2, date: time.Now()}
	few.asks(t, "status")
	require.Equal(t, map[string]int{"pods": 1, "collasets": 1, "podtransitionrules": 1, "operationjobs": 1,
		"poddecorations": 1,
		"namespace":      2, "leases": 1,
		"node": 2}, few.asked, "a few nodes are read one by one")
}

// TestTextIsBounded: ten thousand Pods are a screen.
func TestTextIsBounded(t *testing.T) {
	s := &server{pods: 10_000, nodes: 50, date: time.Now()}
	out := s.asks(t, "why", "pod/web-8")
	require.Less(t, strings.Count(out, "\n"), 40)
}

// TestWhatMayNotBeReadIsSaid, and the rest is shown.
func TestWhatMayNotBeReadIsSaid(t *testing.T) {
	s := &server{pods: 3, nodes: 1, date: time.Now(),
		forbidden: []string{"leases", "nodes", "collasets", "podtransitionrules", "operationjobs",
			"poddecorations", "/namespaces/kuperator-system"}}
	out := s.asks(t, "status", "-o", "json")
	var fleet insight.Fleet
	require.NoError(t, json.Unmarshal([]byte(out), &fleet))
	require.Len(t, fleet.Workloads, 3)
	var missing []string
	for _, g := range fleet.Gaps {
		missing = append(missing, g.Missing)
		require.NotEmpty(t, g.Unsaid)
	}
	require.ElementsMatch(t, []string{
		"list collasets.apps.kusionstack.io in namespace shop",
		"list podtransitionrules.apps.kusionstack.io in namespace shop",
		"list operationjobs.apps.kusionstack.io in namespace shop",
		"list poddecorations.apps.kusionstack.io in namespace shop",
		"get namespaces/kuperator-system in the cluster", "list leases.coordination.k8s.io in namespace kuperator-system",
		"get nodes in the cluster",
	}, missing)
}

// TestTimesAreTheServers: a clock that is off on the user's machine changes no age.
func TestTimesAreTheServers(t *testing.T) {
	ahead := time.Now().Add(3 * time.Hour).Truncate(time.Second)
	s := &server{pods: 1, nodes: 1, date: ahead}
	var fleet insight.Fleet
	require.NoError(t, json.Unmarshal([]byte(s.asks(t, "status", "-o", "json")), &fleet))
	require.WithinDuration(t, ahead, fleet.ObservedAt, 2*time.Minute)
}

func TestErrorsSayWhatToChange(t *testing.T) {
	for arguments, want := range map[string]string{
		"why pod web a":                        `"a" is too much: kubectl kuperator why [KIND/NAME]`,
		"why service/web":                      "give it as pod/NAME",
		"status -o xml":                        "use json, yaml, name, wide or jsonpath=TEMPLATE",
		"status -o jsonpath={.a":               "unclosed action",
		"status -o jsonpath=":                  "lacks a template",
		"status --pods=some":                   "use moving, all or none",
		"status -A collaset/web":               "-n instead of -A",
		"freeze shop":                          "--reason is missing",
		"freeze shop --reason= --for 1h":       "--reason is missing",
		"freeze shop --reason x --for -1h":     "--for is -1h0m0s",
		"freeze pod/shop --reason x":           "is no namespace",
		"undo":                                 "a name is missing: kubectl kuperator undo collaset/NAME",
		"set img web main=web:2":               `unknown command "img"`,
		"completion fsh":                       `unknown command "fsh"`,
		"freeze --reason x":                    "or --cluster",
		"freeze shop --cluster --reason x":     "or --cluster",
		"pause web --dry-run=maybe":            "use none, client or server",
		"plan":                                 "-f FILE",
		"plan -f /no/such/file":                "no such file",
		"pause pod/web":                        "collaset/NAME",
		"replace deployment/web":               "pod/NAME",
		"replace pod/a collaset/web":           "of two kinds",
		"replace pod/a pod/a":                  "named twice",
		"replace collaset/web --cancel":        "--cancel is for pod/NAME",
		"restart collaset/web -c main":         "add --in-place",
		"restart collaset/web --detach":        "add --in-place",
		"restart pod/a --dry-run=maybe":        "use none, client or server",
		"why pod/web --kubeconfig /no/such/kc": "no such file",
	} {
		t.Run(arguments, func(t *testing.T) {
			var out, problems bytes.Buffer
			t.Setenv("KUBECONFIG", "/dev/null")
			code := Run(t.Context(), strings.Fields(arguments),
				genericiooptions.IOStreams{In: strings.NewReader(""), Out: &out, ErrOut: &problems})
			require.Equal(t, codeError, code, out.String())
			require.Contains(t, problems.String(), want)
		})
	}
}

// TestTheSuiteMayBeElsewhere: Leases and the freeze of the cluster are looked for where the suite is.
func TestTheSuiteMayBeElsewhere(t *testing.T) {
	s := &server{pods: 1, nodes: 1, date: time.Now()}
	s.asks(t, "status", "--suite-namespace=platform")
	asked := strings.Join(s.paths, "\n")
	require.Contains(t, asked, "/namespaces/platform/leases")
	require.Contains(t, asked, "/api/v1/namespaces/platform")
	require.NotContains(t, asked, insight.SystemNamespace)
}

// TestManifestsOfAFolder: as kubectl takes it, those of its files and of no other folder.
func TestManifestsOfAFolder(t *testing.T) {
	folder := t.TempDir()
	write := func(name, text string) {
		require.NoError(t, os.WriteFile(filepath.Join(folder, name), []byte(text), 0o600))
	}
	_, err := (&plugin{}).manifests(folder, "shop")
	require.ErrorContains(t, err, "has no CollaSet")
	write("web.yaml", "{apiVersion: apps.kusionstack.io/v1alpha1, kind: CollaSet, metadata: {name: web}}")
	write("db.json", `{"apiVersion":"apps.kusionstack.io/v1alpha1","kind":"CollaSet","metadata":{"name":"db"}}`)
	write("service.yml", "{apiVersion: v1, kind: Service, metadata: {name: web}}")
	write("README.md", "# no manifest: ][")
	found, err := (&plugin{}).manifests(folder, "shop")
	require.NoError(t, err)
	require.Len(t, found, 2)
}

func TestCompletionListsOneKind(t *testing.T) {
	const core, suite = "/api/v1/", "/apis/apps.kusionstack.io/v1alpha1/namespaces/shop/"
	const pods = core + "namespaces/shop/pods?labelSelector=kusionstack.io%2Fcontrol%3Dtrue&limit=500"
	for words, want := range map[string]struct{ out, path string }{
		"why pod/w":                 {"pod/web-0\npod/web-1\n:6\n", pods},
		"why po":                    {"pod/\npoddecoration/\n:6\n", ""},
		"replace pod/web-1 pod/web": {"pod/web-0\n:6\n", pods},
		"pause ":                    {":4\n", suite + "collasets?limit=500"},
		"status operationjob/":      {":6\n", suite + "operationjobs?limit=500"},
		"plan poddecoration/":       {":6\n", suite + "poddecorations?limit=500"},
		"drain-check ":              {":4\n", core + "nodes?limit=500"},
	} {
		t.Run(words, func(t *testing.T) {
			s := &server{pods: 2, nodes: 1, date: time.Now()}
			require.Equal(t, want.out, s.asks(t, append([]string{"__complete"}, strings.Split(words, " ")...)...))
			require.Equal(t, want.path, strings.Join(s.paths, " "))
		})
	}
}
