package archtest_test

import (
	"bytes"
	"encoding/json"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"

	"kusionstack.io/kuperator/internal/testkit/archtest"
)

func TestTheSuiteKeepsItsImportRules(t *testing.T) {
	list := exec.CommandContext(t.Context(), "go", "list", "-e",
		"-json=ImportPath,Imports,TestImports,XTestImports", "./...")
	list.Dir = "../../.."
	out, err := list.Output()
	require.NoError(t, err)

	var packages []archtest.Package
	for decoder := json.NewDecoder(bytes.NewReader(out)); decoder.More(); {
		var p archtest.Package
		require.NoError(t, decoder.Decode(&p))
		packages = append(packages, p)
	}
	require.Contains(t, string(out), archtest.Module+"/api/podops", "go list must see the suite")
	require.Empty(t, archtest.Broken(packages))
}

func TestBrokenNamesEveryBreach(t *testing.T) {
	const m = archtest.Module
	commands := []archtest.Package{
		{ImportPath: m + "/cmd/collaset-controller", Imports: []string{m + "/internal/bootstrap", m + "/internal/collaset"}},
		{ImportPath: m + "/cmd/resourceconsist-controller",
			Imports: []string{m + "/internal/bootstrap", m + "/internal/resourceconsist"}},
		{ImportPath: m + "/cmd/webhook-server", Imports: []string{m + "/internal/bootstrap", m + "/internal/webhook"}},
		{ImportPath: m + "/cmd/poddecoration-controller",
			Imports: []string{m + "/internal/bootstrap", m + "/internal/poddecoration"}},
		{ImportPath: m + "/cmd/sixth-controller", Imports: []string{m + "/internal/bootstrap", m + "/internal/sixth"}},
		{ImportPath: m + "/cmd/kubectl-kuperator", Imports: []string{m + "/internal/plugin"}},
	}
	tests := map[string]struct {
		given archtest.Package
		want  string // part of the one breach; empty means none
	}{
		"a component uses its decisions, the shared packages and the API": {
			given: archtest.Package{ImportPath: m + "/internal/collaset",
				Imports: []string{"context", m + "/internal/collaset/setplan", m + "/internal/freshness", m + "/internal/bootstrap",
					m + "/api/podops", "sigs.k8s.io/controller-runtime"}},
		},
		"a component imports another": {
			given: archtest.Package{ImportPath: m + "/internal/collaset", Imports: []string{m + "/internal/sixth"}},
			want:  "components meet only",
		},
		"a component imports a part of another": {
			given: archtest.Package{ImportPath: m + "/internal/sixth/part", Imports: []string{m + "/internal/collaset/setplan"}},
			want:  "components meet only",
		},
		"admission decides on decorations": {
			given: archtest.Package{ImportPath: m + "/internal/webhook",
				Imports: []string{m + "/internal/poddecoration/decoplan"}},
		},
		"admission imports the controller of decorations": {
			given: archtest.Package{ImportPath: m + "/internal/webhook", Imports: []string{m + "/internal/poddecoration"}},
			want:  "components meet only",
		},
		"another component decides on decorations": {
			given: archtest.Package{ImportPath: m + "/internal/collaset",
				Imports: []string{m + "/internal/poddecoration/decoplan"}},
			want: "components meet only",
		},
		"a test of a component imports another": {
			given: archtest.Package{ImportPath: m + "/internal/collaset", TestImports: []string{m + "/internal/sixth/part"}},
			want:  "a test of " + m + "/internal/collaset imports",
		},
		"an external test of a component imports another": {
			given: archtest.Package{ImportPath: m + "/internal/collaset", XTestImports: []string{m + "/internal/sixth"}},
			want:  "components meet only",
		},
		"a test of a component uses the test kit and a cluster": {
			given: archtest.Package{ImportPath: m + "/internal/collaset",
				XTestImports: []string{m + "/internal/testkit", m + "/internal/testkit/localkube"}},
		},
		"a component's code uses the test kit": {
			given: archtest.Package{ImportPath: m + "/internal/collaset", Imports: []string{m + "/internal/testkit"}},
			want:  "of internal, itself and bootstrap, callout, decoration, drain, failures, freeze, freshness, imagename, livelist, metric, ondemand, podcache, remembered, revision",
		},
		"the plugin uses a core and the picture": {
			given: archtest.Package{ImportPath: m + "/internal/plugin",
				Imports: []string{"context", m + "/internal/collaset/setplan", m + "/internal/insight", m + "/internal/revision"}},
		},
		"the plugin uses a component": {
			given: archtest.Package{ImportPath: m + "/internal/plugin", Imports: []string{m + "/internal/collaset"}},
			want:  "only its decisions",
		},
		"a component uses the plugin": {
			given: archtest.Package{ImportPath: m + "/internal/sixth", Imports: []string{m + "/internal/plugin"}},
			want:  "of internal, itself and",
		},
		"a component uses the picture": {
			given: archtest.Package{ImportPath: m + "/internal/collaset", Imports: []string{m + "/internal/insight"}},
			want:  "of internal, itself and",
		},
		"the picture compares revisions": {
			given: archtest.Package{ImportPath: m + "/internal/insight",
				Imports: []string{"time", m + "/internal/revision", m + "/api/podops", "k8s.io/api/core/v1"}},
		},
		"the picture reads a cluster": {
			given: archtest.Package{ImportPath: m + "/internal/insight", Imports: []string{"k8s.io/client-go/kubernetes"}},
			want:  "only the Kubernetes API",
		},
		"the picture uses a component": {
			given: archtest.Package{ImportPath: m + "/internal/insight", Imports: []string{m + "/internal/collaset/setplan"}},
			want:  "only revision",
		},
		"the explorer uses all cores": {
			given: archtest.Package{ImportPath: m + "/test/protocol",
				TestImports: []string{m + "/internal/collaset/setplan", m + "/internal/sixth/part"}},
		},
		"a core takes a context": {
			given: archtest.Package{ImportPath: m + "/internal/collaset/setplan", Imports: []string{"context", "time"}},
			want:  "does no input or output",
		},
		"a core serves HTTP": {
			given: archtest.Package{ImportPath: m + "/internal/collaset/setplan", Imports: []string{"net/http"}},
			want:  "does no input or output",
		},
		"a core uses a client": {
			given: archtest.Package{ImportPath: m + "/internal/collaset/setplan",
				Imports: []string{"sigs.k8s.io/controller-runtime/pkg/client"}},
			want: "only the Kubernetes API",
		},
		"a core tracks writes": {
			given: archtest.Package{ImportPath: m + "/internal/collaset/setplan", Imports: []string{m + "/internal/freshness"}},
			want:  "a decision imports only api",
		},
		"a core uses the API": {
			given: archtest.Package{ImportPath: m + "/internal/collaset/setplan",
				Imports: []string{"time", "k8s.io/api/core/v1", "k8s.io/utils/ptr", m + "/api/podops"}},
		},
		"a core reads the name of an image": {
			given: archtest.Package{ImportPath: m + "/internal/operationjob/jobplan",
				Imports: []string{m + "/internal/imagename"}},
		},
		"the protocol reads the name of an image": {
			given: archtest.Package{ImportPath: m + "/api/podops", Imports: []string{"github.com/distribution/reference"}},
			want:  "only the Kubernetes API",
		},
		"a kind reads the name of an image": {
			given: archtest.Package{ImportPath: m + "/api/apps/v1alpha1",
				Imports: []string{"github.com/distribution/reference"}},
			want: "only the Kubernetes API",
		},
		"the protocol reads a file": {
			given: archtest.Package{ImportPath: m + "/api/podops", Imports: []string{"os"}},
			want:  "does no input or output",
		},
		"a kind brings controller-runtime along": {
			given: archtest.Package{ImportPath: m + "/api/apps/v1alpha1",
				Imports: []string{"sigs.k8s.io/controller-runtime/pkg/scheme"}},
			want: "only the Kubernetes API",
		},
		"the adapter API reaches into a component": {
			given: archtest.Package{ImportPath: m + "/api/resourceconsist", Imports: []string{m + "/internal/bootstrap"}},
			want:  "imports nothing internal",
		},
		"the door leads to its component": {
			given: archtest.Package{ImportPath: m + "/api/resourceconsist/setup",
				Imports: []string{m + "/internal/resourceconsist", "sigs.k8s.io/controller-runtime"}},
		},
		"the door leads to another component as well": {
			given: archtest.Package{ImportPath: m + "/api/resourceconsist/setup", Imports: []string{m + "/internal/collaset"}},
			want:  "components meet only",
		},
		"a component goes through the door": {
			given: archtest.Package{ImportPath: m + "/internal/collaset", Imports: []string{m + "/api/resourceconsist/setup"}},
			want:  "components meet only",
		},
		"the adapter API goes through the door": {
			given: archtest.Package{ImportPath: m + "/api/resourceconsist", Imports: []string{m + "/api/resourceconsist/setup"}},
			want:  "imports nothing internal",
		},
		"the adapter API uses controller-runtime": {
			given: archtest.Package{ImportPath: m + "/api/resourceconsist",
				Imports: []string{"context", "sigs.k8s.io/controller-runtime"}},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			broken := archtest.Broken(append(commands, tc.given))
			if tc.want == "" {
				require.Empty(t, broken)
				return
			}
			require.Len(t, broken, 1)
			require.Contains(t, broken[0], tc.want)
		})
	}
}

func TestTagNocloudLinksNoSDKOfACloud(t *testing.T) {
	linked := func(tags string) string {
		list := exec.CommandContext(t.Context(), "go", "list", "-deps", "-tags", tags, "./cmd/resourceconsist-controller")
		list.Dir = "../../.."
		out, err := list.Output()
		require.NoError(t, err)
		return string(out)
	}
	const sdk = "github.com/alibabacloud-go/"
	require.Contains(t, linked(""), sdk)
	require.NotContains(t, linked("nocloud"), sdk)
}
