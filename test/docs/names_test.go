package docs

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"kusionstack.io/kuperator/internal/testkit/suite"
)

// sources of programs whose flags pages name, besides the components and kubectl; each with its commands.
var sources = map[string][]string{"hack/localkube": {"up", "down", "assets"}, "hack/demo": {""}}

// Flags of other programs that pages name.
var otherFlags = map[string]string{
	"no-install-recommends":                  "apt-get",
	"skip-nodes-with-custom-controller-pods": "cluster-autoscaler", "max-pod-eviction-time": "cluster-autoscaler",
	"node-monitor-grace-period":       "kube-controller-manager",
	"use-service-account-credentials": "kube-controller-manager",
	"fail":                            "curl", "silent": "curl", "show-error": "curl", "unix-socket": "curl",
	"arg": "jq", "runbook-base": "hack/generate/monitoring", "feature-gates": "Kuperator v0.7", "platform": "docker",
	"balancer":       "examples/adapter",
	"runtime-config": "kube-apiserver", "warnings-as-errors": "kubectl options",
	"build-arg":     "docker",
	"bump-revision": "etcdutl", "data-dir": "etcdutl", "mark-compacted": "etcdutl",
	"values": "helm", "set": "helm", "create-namespace": "helm", "reset-then-reuse-values": "helm",
	"take-ownership": "helm", "manifest": "krew", "archive": "krew",
}

// kubectlCommands are those whose help is read.
var kubectlCommands = []string{"annotate", "apply", "autoscale", "config set-context", "config view",
	"create namespace", "create clusterrolebinding", "delete", "drain", "events", "get", "label", "logs",
	"create secret generic", "patch", "proxy", "rollout", "scale", "uncordon", "wait", "taint", "auth can-i"}

var flagWord = regexp.MustCompile(`(?:^|[\s\x60("'])--([a-z][a-z0-9-]+)`)

// named collects what a pattern finds in the code of all pages: spans within text, and blocks. It tells where.
func named(t *testing.T, pattern *regexp.Regexp, blocks bool) map[string]string {
	t.Helper()
	found := map[string]string{}
	for _, page := range allPages(t) {
		texts := page.Words
		for _, b := range page.Blocks {
			if blocks && slices.Contains([]string{"console", "sh", "yaml", "json"}, b.Language) {
				texts = append(texts, b.Text)
			}
		}
		for _, text := range texts {
			for _, m := range pattern.FindAllStringSubmatch(text, -1) {
				found[m[len(m)-1]] = page.Path
			}
		}
	}
	return found
}

func TestFlagsExist(t *testing.T) {
	w := everything(t)
	known := map[string]bool{}
	learn := func(help string) {
		for _, m := range regexp.MustCompile(`--([a-z][a-z0-9-]+)`).FindAllStringSubmatch(help, -1) {
			known[m[1]] = true
		}
	}
	for _, name := range suite.Components() {
		learn(helpOf(t, w.Program(name)))
	}
	for _, command := range append(kubectlCommands, "options") {
		learn(helpOf(t, w.KubectlPath(), strings.Fields(command)...))
	}
	bin := w.programs(t)
	for path, commands := range sources {
		for _, command := range commands {
			learn(helpOf(t, filepath.Join(bin, filepath.Base(path)), strings.Fields(command)...))
		}
	}
	if plugin := filepath.Join(bin, "kubectl-kuperator"); exists(plugin) {
		help := helpOf(t, plugin)
		learn(help)
		for _, m := range regexp.MustCompile(`(?m)^  ([a-z][a-z-]+)  +\S`).FindAllStringSubmatch(help, -1) {
			learn(helpOf(t, plugin, m[1]))
		}
	}
	require.False(t, known["no-such-flag"])
	flags := named(t, flagWord, true)
	require.Greater(t, len(flags), 30)
	for flag, page := range flags {
		if !known[flag] && otherFlags[flag] == "" {
			t.Errorf("%s names --%s, which no program has", page, flag)
		}
	}
}

// helpOf is what a program says of itself, or of one of its commands.
func helpOf(t *testing.T, program string, command ...string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), program, append(command, "--help")...).CombinedOutput()
	require.NoErrorf(t, err, "%s %v: %s", program, command, out)
	return string(out)
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// TestMetricsExist compares the metrics that pages name with those that the sources register.
func TestMetricsExist(t *testing.T) {
	text := sourceText(t)
	metrics := named(t, regexp.MustCompile(`(?:^|[^-\w])(kuperator_[a-z][a-z0-9_]+[a-z0-9])\b`), true)
	require.Greater(t, len(metrics), 10)
	for metric, page := range metrics {
		base := regexp.MustCompile(`_(bucket|sum|count)$`).ReplaceAllString(metric, "")
		if !isIn(text, base) {
			t.Errorf("%s names %s, which the sources do not have", page, metric)
		}
	}
}

// isIn reports whether a text has a name as it is, or put together of a beginning and an end.
func isIn(text, name string) bool {
	if strings.Contains(text, name) {
		return true
	}
	for i, r := range name {
		if r == '_' && strings.Contains(text, `"`+name[:i+1]+`"`) && strings.Contains(text, `"`+name[i+1:]+`"`) {
			return true
		}
	}
	return false
}

// TestKeysExist compares the labels, annotations, finalizers and conditions that pages name with the sources.
func TestKeysExist(t *testing.T) {
	text := sourceText(t)
	keys := named(t,
		regexp.MustCompile(`\b([a-z-]+(?:\.[a-z-]+)*\.kusionstack\.io(?:/[A-Za-z0-9-]+)?|kusionstack\.io/[a-z][a-z-]+)`),
		true)
	require.Greater(t, len(keys), 20)
	for key, page := range keys {
		key = strings.TrimSuffix(key, "-") // kubectl's way to remove one
		prefix, _, _ := strings.Cut(key, "/")
		if strings.HasSuffix(prefix, "apps.kusionstack.io") { // a kind, not a key
			continue
		}
		_, adapter, _ := strings.Cut(prefix, ".")
		if !strings.Contains(text, key) && !strings.Contains(text, prefix+`"`) && !strings.Contains(text, `.`+adapter) {
			t.Errorf("%s names %s, which the sources do not have", page, key)
		}
	}
}

// sourceText is the text of all Go sources but tests, and of the manifests in deploy.
func sourceText(t *testing.T) string {
	t.Helper()
	var b strings.Builder
	for _, dir := range []string{"api", "cmd", "internal", "deploy"} {
		err := filepath.WalkDir(filepath.Join(root, dir), func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || strings.HasSuffix(path, "_test.go") ||
				!slices.Contains([]string{".go", ".yaml"}, filepath.Ext(path)) {
				return err
			}
			content, err := os.ReadFile(path)
			b.Write(content)
			return err
		})
		require.NoError(t, err)
	}
	return b.String()
}

// TestFieldsExist walks every path from spec or status that pages name down the schemas of the API server.
func TestFieldsExist(t *testing.T) {
	w := everything(t)
	var schemas []schema
	for _, path := range []string{"apis/apps.kusionstack.io/v1alpha1", "api/v1", "apis/apps/v1", "apis/autoscaling/v2",
		"apis/policy/v1", "apis/discovery.k8s.io/v1"} {
		out, err := w.Kubectl(t.Context(), "get", "--raw", "/openapi/v3/"+path)
		require.NoError(t, err)
		var document struct {
			Components struct{ Schemas map[string]*schema }
		}
		require.NoError(t, json.Unmarshal([]byte(out), &document))
		for _, s := range document.Components.Schemas {
			s.named = document.Components.Schemas
			schemas = append(schemas, *s)
		}
	}
	has := func(path string) bool {
		fields := strings.Split(regexp.MustCompile(`\[[^\]]*\]`).ReplaceAllString(path, ""), ".")
		return slices.ContainsFunc(schemas, func(s schema) bool { return s.Properties["metadata"] != nil && s.has(fields) })
	}
	require.True(t, has("spec.template.spec.containers[*].image"))
	require.True(t, has("spec.rules[].availablePolicy.topology.topologyKey"))
	require.False(t, has("spec.template.spec.containers.picture"))
	require.False(t, has("spec.rules[].availablePolicy.topology.key"))
	paths := named(t, regexp.MustCompile(`^((?:spec|status)\.[a-zA-Z][A-Za-z0-9.\[\]*]*[A-Za-z0-9\]])(?:: .*)?$`), false)
	require.Greater(t, len(paths), 30)
	for path, page := range paths {
		if !has(path) {
			t.Errorf("%s names the field %s, which no kind has", page, path)
		}
	}
}

// schema is what is needed of an OpenAPI schema.
type schema struct {
	Ref                  string `json:"$ref"`
	AllOf                []*schema
	Properties           map[string]*schema
	Items                *schema
	AdditionalProperties any
	named                map[string]*schema
}

// has reports whether the fields lead somewhere, through lists.
func (s *schema) has(fields []string) bool {
	if len(fields) == 0 {
		return true
	}
	for _, next := range s.behind() {
		next.named = s.named
		if p := next.Properties[fields[0]]; p != nil {
			p.named = s.named
			if p.has(fields[1:]) {
				return true
			}
		}
		if next.AdditionalProperties != nil && len(fields) == 1 {
			return true
		}
	}
	return false
}

// behind is the schema and those that it refers to, as references, as alternatives and as items of a list.
func (s *schema) behind() []*schema {
	all := []*schema{s}
	for i := 0; i < len(all); i++ {
		next := all[i]
		next.named = s.named
		all = append(all, next.AllOf...)
		if next.Items != nil {
			all = append(all, next.Items)
		}
		if name := strings.TrimPrefix(next.Ref, "#/components/schemas/"); name != "" {
			all = append(all, s.named[name])
		}
	}
	return all
}

// TestDiagramsAreBalanced is a cheap look at Mermaid diagrams: the kind, and brackets that close.
func TestDiagramsAreBalanced(t *testing.T) {
	diagrams := 0
	for _, page := range allPages(t) {
		for _, b := range page.Blocks {
			if b.Language == "mermaid" {
				diagrams++
				require.NoError(t, balanced(b.Text), "%s:%d", page.Path, b.Line)
			}
		}
	}
	require.Greater(t, diagrams, 3)
	require.Error(t, balanced("flowchart LR\n a --> [b\n"))
	require.Error(t, balanced("graf LR\n a --> b\n"))
}

func balanced(diagram string) error {
	kind := strings.Fields(diagram)[0]
	if !slices.Contains([]string{"flowchart", "stateDiagram-v2", "sequenceDiagram", "gantt", "graph",
		"classDiagram"}, kind) {
		return fmt.Errorf("%s is no kind of diagram", kind)
	}
	if got := strings.Count(diagram, "subgraph "); got > strings.Count(diagram, "\n  end\n") {
		return fmt.Errorf("%d subgraphs, not all of which end", got)
	}
	var open []rune
	closes := map[rune]rune{')': '(', ']': '[', '}': '{'}
	for _, r := range diagram {
		switch r {
		case '(', '[', '{':
			open = append(open, r)
		case ')', ']', '}':
			if len(open) == 0 || open[len(open)-1] != closes[r] {
				return fmt.Errorf("%c closes nothing", r)
			}
			open = open[:len(open)-1]
		}
	}
	if len(open) > 0 {
		return fmt.Errorf("%c is not closed", open[len(open)-1])
	}
	return nil
}
