package plugin

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"kusionstack.io/kuperator/internal/insight"
)

// against runs a command against a server.
func against(t *testing.T, server http.Handler, command, in string) (out, problems string, code int) {
	t.Helper()
	listener := httptest.NewServer(server)
	defer listener.Close()
	t.Setenv("KUBECONFIG", "/dev/null")
	var stdout, stderr bytes.Buffer
	code = Run(t.Context(), append([]string{"--server", listener.URL, "-n", "shop"}, strings.Fields(command)...),
		genericiooptions.IOStreams{In: strings.NewReader(in), Out: &stdout, ErrOut: &stderr})
	return stdout.String(), stderr.String(), code
}

// bare answers as an API server does that has no CRD of the suite, and lacks the namespace too if it is so.
type bare struct{ withoutNamespace bool }

func (b bare) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	switch last := path.Base(r.URL.Path); {
	case strings.HasPrefix(r.URL.Path, "/apis/apps.kusionstack.io/"):
		w.Header().Set("Content-Type", "text/plain")
		http.Error(w, "404 page not found", http.StatusNotFound)
	case last == "pods", last == "leases":
		kind := map[string][2]string{"pods": {"v1", "PodList"}, "leases": {"coordination.k8s.io/v1", "LeaseList"}}[last]
		_ = json.NewEncoder(w).Encode(map[string]any{"apiVersion": kind[0], "kind": kind[1], "items": []any{}})
	case last == "shop" && !b.withoutNamespace:
		_ = json.NewEncoder(w).Encode(corev1.Namespace{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Namespace"},
			ObjectMeta: metav1.ObjectMeta{Name: last}})
	default:
		w.WriteHeader(http.StatusNotFound)
		_ = json.NewEncoder(w).Encode(metav1.Status{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"},
			Status: metav1.StatusFailure, Reason: metav1.StatusReasonNotFound, Code: http.StatusNotFound,
			Message: last + " not found"})
	}
}

// TestWithoutTheSuite: one sentence names what is missing and what to do, whatever the command.
func TestWithoutTheSuite(t *testing.T) {
	for _, command := range []string{"status", "why", "why pod/web-a", "status --watch"} {
		t.Run(command, func(t *testing.T) {
			_, problems, code := against(t, bare{}, command, "")
			require.Equal(t, codeError, code)
			require.Equal(t, "error: the API server serves none of the suite's kinds: "+notInstalled+"\n", problems)

			_, problems, code = against(t, bare{withoutNamespace: true}, command, "")
			require.Equal(t, codeError, code)
			require.Equal(t, "error: namespace \"shop\" does not exist: -n chooses another, and kubectl get namespaces lists "+
				"them\n", problems)
		})
	}
	out, _, code := against(t, bare{}, "doctor", "")
	require.Equal(t, codeFindings, code)
	require.Contains(t, out, "PROBLEM  CRDs: ")
	require.Contains(t, out, "leftovers: none on 0 Pods", "it looks at all else")
	for _, command := range []string{"pause web", "resume web", "promote web", "abort web", "undo web", "restart web",
		"set image web main=web:2", "history web", "status web --wait", "plan web", "diff -f -"} {
		t.Run(command, func(t *testing.T) {
			_, problems, code := against(t, bare{}, command, `{"apiVersion": "apps.kusionstack.io/v1alpha1",
				"kind": "CollaSet", "metadata": {"name": "web"}}`)
			require.NotZero(t, code)
			what := "collasets.apps.kusionstack.io"
			if command == "plan web" || command == "diff -f -" { // the dynamic client is not told
				what = "the suite's kinds"
			}
			require.Equal(t, "error: the API server does not serve "+what+": "+notInstalled+"\n", problems)
		})
	}
}

// TestANamespaceThatDoesNotExist is said, where an object in it is not found.
func TestANamespaceThatDoesNotExist(t *testing.T) {
	s := &canaryServer{set: canary()}
	_, problems, code := s.runs(t, "pause other")
	require.Equal(t, codeError, code)
	require.Contains(t, problems, "reading collaset/other in namespace shop")
	_, problems, code = s.runs(t, "pause other -n nowhere")
	require.Equal(t, codeError, code)
	require.Equal(t, "error: namespace \"nowhere\" does not exist: -n chooses another, and kubectl get namespaces lists "+
		"them\n", problems)
}

// guarded lets read and refuses to write, as authorization or admission does.
type guarded struct {
	http.Handler
	says string
}

func (g guarded) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodGet {
		g.Handler.ServeHTTP(w, r)
		return
	}
	_, _ = io.Copy(io.Discard, r.Body)
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusForbidden)
	_ = json.NewEncoder(w).Encode(metav1.Status{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"},
		Status: metav1.StatusFailure, Reason: metav1.StatusReasonForbidden, Code: http.StatusForbidden, Message: g.says})
}

// TestAMissingRightIsNamed by its verb and resource, with the role that has it.
func TestAMissingRightIsNamed(t *testing.T) {
	cannot := func(verb, resource, group string) string {
		return fmt.Sprintf("%s is forbidden: User \"ann\" cannot %s resource %q in API group %q in the namespace \"shop\"",
			resource, verb, resource, group)
	}
	for _, tc := range []struct{ command, says, want string }{
		{"promote web", cannot("patch", "collasets", "apps.kusionstack.io"),
			"you may not patch collasets.apps.kusionstack.io in namespace shop; the role edit has that right, by " +
				"kuperator-edit; kuperator-operate has it to pause, resume, restart and promote"},
		{"restart web --in-place", cannot("create", "operationjobs", "apps.kusionstack.io"),
			"you may not create operationjobs.apps.kusionstack.io in namespace shop; the roles edit, by kuperator-edit, and " +
				"kuperator-operate have that right"},
		{"freeze shop --reason x", cannot("patch", "namespaces", ""),
			"you may not patch namespaces in namespace shop; the role kuperator-freeze has that right"},
		{"pause web", `collasets "web" is forbidden: ValidatingAdmissionPolicy 'kuperator-operate' with binding ` +
			`'kuperator-operate' denied request: of the spec`, "the role kuperator-operate does not cover that; the role edit does"},
		{"resume web", `collasets "web" is forbidden: not today`, `error: collasets "web" is forbidden: not today` + "\n"},
	} {
		t.Run(tc.command, func(t *testing.T) {
			set := canary()
			set.Spec.Paused = strings.HasPrefix(tc.command, "resume")
			_, problems, code := against(t, guarded{&canaryServer{set: set}, tc.says}, tc.command, "")
			require.Equal(t, codeError, code)
			require.Contains(t, problems, tc.want)
		})
	}
	require.Equal(t, "the role view has that right", roleFor("list pods in namespace shop"))
	require.Empty(t, roleFor("list leases.coordination.k8s.io in namespace kuperator-system"))
	require.Empty(t, roleFor(""))
}

// TestDiffEndsAsKubectlDiffDoes: a difference is told from an error.
func TestDiffEndsAsKubectlDiffDoes(t *testing.T) {
	for command, want := range map[string]int{"diff": 2, "diff -f /no/such/file": 2, "diff --no-such-flag": 2} {
		_, problems, code := against(t, bare{}, command, "")
		require.Equal(t, want, code, command)
		require.Contains(t, problems, "error: ")
	}
}

// TestFormats are the same as those of kubectl get.
func TestFormats(t *testing.T) {
	for command, want := range map[string]string{
		"pause web -o name":                          "collaset.apps.kusionstack.io/web\n",
		"pause web -o wide":                          "collaset/web paused\n",
		"pause web -o jsonpath={.action}":            "paused",
		"pause web -o jsonpath=object.name":          "web",
		"pause web -o jsonpath=.object.name":         "web",
		"history web -o name":                        "controllerrevision.apps/web-1\ncontrollerrevision.apps/web-2\n",
		"history web -o jsonpath={.collaSet.kind}":   "CollaSet",
		"history web --revision 2 -o name":           "controllerrevision.apps/web-2\n",
		"history web -o jsonpath={.nosuch}":          "",
		"version --client -o jsonpath=client":        buildVersion(),
		"history web -o jsonpath={.revisions[*].no}": "",
	} {
		t.Run(command, func(t *testing.T) {
			out, problems, code := (&canaryServer{set: canary()}).runs(t, command)
			require.Zero(t, code, problems)
			require.Equal(t, want, out)
		})
	}
	_, problems, code := (&canaryServer{set: canary()}).runs(t, "version --client -o name")
	require.Equal(t, codeError, code)
	require.Contains(t, problems, "-o name is for commands about objects")
}

// fleetOf is what insight found in one of its situations.
func fleetOf(t *testing.T, situation string) insight.Fleet {
	t.Helper()
	var fleet insight.Fleet
	read(t, filepath.Join("..", "insight", "testdata", situation, "fleet.json"), &fleet)
	return fleet
}

// TestNamesCanBeAskedAbout: what -o name prints is what why takes.
func TestNamesCanBeAskedAbout(t *testing.T) {
	for situation, want := range map[string]string{
		"job-rule":   "operationjob.apps.kusionstack.io/restart-web\ncollaset.apps.kusionstack.io/web\n",
		"decoration": "deployment.apps/guest\n", "decoration-pod": "job.batch/guest\n",
	} {
		var out bytes.Buffer
		p := &plugin{IOStreams: genericiooptions.IOStreams{Out: &out}, output: outputName}
		require.NoError(t, p.print(fleetOf(t, situation), nil))
		require.Equal(t, want, out.String())
		for name := range strings.Lines(want) {
			_, err := target([]string{strings.TrimSpace(name)}, "Pod", "CollaSet", "OperationJob", "Deployment", "Job")
			require.NoError(t, err)
		}
	}
}

func whatWaits(f insight.Fleet) string {
	return printed(func(w io.Writer) { writeWaiting(w, waitsIn(f), f) })
}

// TestWhatWaits: why without a name lists what one may ask about.
func TestWhatWaits(t *testing.T) {
	require.Equal(t, `These wait. why KIND/NAME tells of one of them what holds it up, and what to do:
  operationjob/restart-web  ContainerCrashing: web-b: container main ends again and again (3 restarts), last with exit code 1 (Error)
  pod/web-b  ContainerCrashing: container main ends again and again (3 restarts), last with exit code 1 (Error)
  pod/web-a  BudgetSpent: rule web, held by web-b
`, whatWaits(fleetOf(t, "job-rule")))
	require.Empty(t, waitsIn(fleetOf(t, "nothing")).Waits)
	s := &server{pods: 100, nodes: 1}
	require.Less(t, strings.Count(s.asks(t, "why"), "\n"), 30, "it is bounded")
	require.Equal(t, "Nothing waits in namespace shop. why KIND/NAME is about one object, and -n chooses another namespace.\n",
		(&server{nodes: 1}).asks(t, "why"))
}

// TestEqualWaitsAreOneLine, however many Pods have them, and each Pod is one.
func TestEqualWaitsAreOneLine(t *testing.T) {
	fleet := fleetOf(t, "rule")
	pods := fleet.Workloads[0].Pods
	for i := range 8 {
		waiting := pods[0]
		waiting.Name = fmt.Sprintf("web-d%d", i)
		waiting.Operations = append([]insight.Operation{}, waiting.Operations...)
		reasons := append([]insight.Reason{}, waiting.Operations[0].Reasons...)
		reasons[0].Message += "; status lists some of the 9 Pods that it blocks, of which this is not one"
		waiting.Operations[0].Reasons = reasons
		pods = append(pods, waiting)
	}
	fleet.Workloads[0].Pods = pods
	text := printed(func(w io.Writer) { writeFleet(w, fleet, statusOptions{pods: podsMoving, limit: 20}) })
	require.Contains(t, text, "\n  9 Pods wait: BudgetSpent: rule web, held by web-b\n")
	require.Equal(t, 1, strings.Count(text, "\n  web-d3 "), text)
	require.Equal(t, 15+2, strings.Count(text, "\n"), text)

	short := printed(func(w io.Writer) { writeFleet(w, fleet, statusOptions{pods: podsMoving, limit: 3}) })
	require.Contains(t, short, "\n  and 8 more Pods (--limit=0 shows them)\n")
	require.Contains(t, short, "9 Pods wait", "all are counted")
	none := printed(func(w io.Writer) { writeFleet(w, fleet, statusOptions{pods: podsNone}) })
	require.NotContains(t, none, "STATE")
	require.Contains(t, none, "9 Pods wait")
	require.Contains(t, whatWaits(fleet), "\n  pod/web-a and 8 more  BudgetSpent: rule web, held by web-b\n")
}

// TestTheBudgetIsShownAtRest: what may happen next depends on it.
func TestTheBudgetIsShownAtRest(t *testing.T) {
	require.Equal(t, "rule shop/web  available: at most 1 unavailable  3 desired, 3 available\n",
		printed(func(w io.Writer) {
			writeBudget(w, insight.Budget{Namespace: "shop", Name: "web", Bounds: []string{"available: at most 1 unavailable"},
				Desired: 3, Available: 3}, insight.Fleet{})
		}))
	many := insight.Budget{Holders: []insight.Holder{{Pod: "a"}, {Pod: "b"}, {Pod: "c"}, {Pod: "d"}}}
	require.Equal(t, "held by a, b, c, d", heldBy(many))
	many.Holders = append(many.Holders, insight.Holder{Pod: "e"})
	require.Equal(t, "held by a, b, c and 2 more", heldBy(many))
}

// TestAWorkloadThatIsNamed is shown with all its Pods and with the rules that select them.
func TestAWorkloadThatIsNamed(t *testing.T) {
	fleet := fleetOf(t, "rule")
	fleet.Budgets = append(fleet.Budgets, insight.Budget{Namespace: "shop", Name: "other"})
	o := statusOptions{}
	require.NoError(t, o.read([]string{"collaset/web"}))
	require.Equal(t, podsAll, o.pods)
	fleet, err := o.pick(fleet)
	require.NoError(t, err)
	require.Len(t, fleet.Budgets, 1)
	require.Equal(t, "web", fleet.Budgets[0].Name)
	o = statusOptions{}
	require.NoError(t, o.read(nil))
	require.Equal(t, podsMoving, o.pods)
}

// TestWideAndColour: what a terminal gets besides.
func TestWideAndColour(t *testing.T) {
	fleet := fleetOf(t, "rule")
	fleet.Workloads[0].Pods[0].Images = []string{"registry.example.com:5000/team/web:1", "proxy@sha256:0123456789abcdef"}
	wide := printed(func(w io.Writer) { writeFleet(w, fleet, statusOptions{pods: podsAll, wide: true}) })
	require.Contains(t, wide, "AGE    PHASE      OPERATOR   NODE\n")
	require.Contains(t, wide, "registry.example.com:5000/team/web:1,proxy@sha256:0123456789abcdef   web-1")
	require.Contains(t, wide, "120m   PreCheck   collaset   n1\n")
	plainText := printed(func(w io.Writer) { writeFleet(w, fleet, statusOptions{pods: podsAll}) })
	require.Contains(t, plainText, " web:1,proxy@0123456789ab   web-1")
	coloured := printed(func(w io.Writer) { writeFleet(w, fleet, statusOptions{pods: podsAll, colour: true}) })
	require.Contains(t, coloured, yellow+"Waiting"+plain+"     update")
	require.Contains(t, coloured, green+"Serving"+plain)
	for _, sequence := range []string{green, yellow, red, plain} {
		coloured = strings.ReplaceAll(coloured, sequence, "")
	}
	require.Equal(t, plainText, coloured, "columns are as wide")
	require.False(t, (&plugin{IOStreams: genericiooptions.IOStreams{Out: &bytes.Buffer{}}}).coloured(), "not in a pipe")
}
