package monitoring

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"kusionstack.io/kuperator/internal/metric"
)

func TestMetricsAreSound(t *testing.T) {
	names := map[string]string{}
	check := func(owner string, metrics []metric.Metric) {
		require.NotEmpty(t, metrics, owner)
		for _, m := range metrics {
			assert.NoError(t, m.Check(), owner)
			assert.Empty(t, names[m.Name], "%s is declared twice", m.Name)
			names[m.Name] = owner
		}
	}
	check("every binary", Common())
	for _, p := range Programs() {
		check(p.Name, p.Metrics)
	}
}

func TestFilesAreUpToDate(t *testing.T) {
	files, err := Files(RunbookBase)
	require.NoError(t, err)
	for _, f := range files {
		content, err := os.ReadFile(filepath.Join("..", "..", f.Path))
		require.NoError(t, err)
		assert.Equal(t, string(f.Content), string(content), "%s is not what make generate writes", f.Path)
	}
}

// TestQueries has Prometheus' own parser read every query, and looks up what each uses on the page of metrics.
func TestQueries(t *testing.T) {
	var queries, names []string
	add := func(name, expr string) { names, queries = append(names, name), append(queries, Expand(expr, "1m")) }
	for _, a := range Alerts() {
		add(a.Name, a.Expr())
		add(a.Name+", its value", a.Value)
	}
	for _, d := range Dashboards() {
		if d.Of != "" {
			add(d.ID+", variable workload", fmt.Sprintf("%s{namespace=~\"a\", %s=~\"b\"}", d.Of, d.Object))
		}
		for _, row := range d.Rows {
			for _, p := range row.Panels {
				for _, q := range p.Queries {
					add(d.ID+"/"+p.Title, q.Expr)
				}
			}
		}
	}
	for i, p := range parsed(t, queries) {
		if !assert.Empty(t, p.Error, "%s: %s", names[i], queries[i]) {
			continue
		}
		assert.NotEmpty(t, p.Selectors, names[i])
		for _, wrong := range unknown(p) {
			t.Errorf("%s: %s: %s", names[i], queries[i], wrong)
		}
	}
	for _, p := range parsed(t, []string{"kuperator_no_such_metric", `up{colour="red"}`, "sum by (colour) (up)"}) {
		assert.Len(t, unknown(p), 1, "the check finds what is wrong")
	}
}

type parsedQuery struct {
	Error     string
	Selectors []struct {
		Metric string
		Labels []string
	}
	Grouped []string
	Made    []string
}

func parsed(t *testing.T, queries []string) (out []parsedQuery) {
	t.Helper()
	in, err := json.Marshal(queries)
	require.NoError(t, err)
	cmd := exec.CommandContext(t.Context(), "go", "run", "-C", "../../hack/tools/monitoring", ".", "parse")
	cmd.Stdin = bytes.NewReader(in)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	require.NoError(t, cmd.Run(), stderr.String())
	require.NoError(t, json.Unmarshal(stdout.Bytes(), &out))
	require.Len(t, out, len(queries))
	return out
}

// unknown says which metrics and labels of a query are on no page.
func unknown(p parsedQuery) (wrong []string) {
	known, labels := Known(), map[string]bool{"job": true, "instance": true}
	for _, l := range p.Made {
		labels[l] = true
	}
	for _, s := range p.Selectors {
		name := s.Metric
		for _, suffix := range []string{"_bucket", "_count", "_sum"} {
			if base, ok := strings.CutSuffix(name, suffix); ok && known[base].Kind == metric.Histogram {
				name, labels["le"] = base, true
			}
		}
		m, ok := known[name]
		if !ok {
			wrong = append(wrong, "no metric is called "+s.Metric)
			for _, l := range p.Grouped {
				labels[l] = true
			}
		}
		for _, l := range m.Labels {
			labels[l.Name] = true
		}
		for _, l := range s.Labels {
			if ok && !m.HasLabel(l) && l != "job" && l != "instance" {
				wrong = append(wrong, s.Metric+" has no label "+l)
			}
		}
	}
	for _, l := range p.Grouped {
		if !labels[l] {
			wrong = append(wrong, "grouped by "+l+", which none of its metrics has")
		}
	}
	return wrong
}

// runbook is how each begins: what users notice, and the panel that shows the case. Its sections follow.
var runbook = regexp.MustCompile(`^# (\w+)\n\n([A-Z][^#*|]+?\.)\n\n` +
	`\*\*Panel:\*\* \*([^*]+)\*,\srow\s\*([^*]+)\*,\sboard\s\*([^*]+)\*\s\(in\sGrafana\sat\s` + "`/d/([a-z-]+)`" +
	`\)\.\n\n## Diagnosis\n[^#]*` + "```console\n\\$ [^`]*```" +
	`(?s:.*)\n\n## What to do\n(?s:.+)\n\n## Meaning\n(?s:.+)`)

// TestRunbooks wants a page for each alert, in the order in which a person on call who was woken up asks: what do users
// notice, where do I see it, what do I type, what do I do, what does the alert mean.
func TestRunbooks(t *testing.T) {
	const folder = "../../docs/operations/runbooks"
	entries, err := os.ReadDir(folder)
	require.NoError(t, err)
	pages := map[string]bool{}
	for _, e := range entries {
		pages[e.Name()] = true
	}
	list, err := os.ReadFile(filepath.Join(folder, "README.md"))
	require.NoError(t, err)
	for _, a := range Alerts() {
		page := a.Name + ".md"
		if !assert.True(t, pages[page], "%s has no runbook %s", a.Name, page) {
			continue
		}
		delete(pages, page)
		text, err := os.ReadFile(filepath.Join(folder, page))
		require.NoError(t, err)
		assert.Contains(t, string(text), "$ kubectl ", page)
		assert.NotRegexp(t, `<[A-Za-z][A-Za-z ]*>`, string(text), "%s has a name that its reader cannot fill in", page)
		parts := runbook.FindStringSubmatch(string(text))
		if !assert.NotNil(t, parts, "%s lacks a part, or has them in another order", page) {
			continue
		}
		assert.Equal(t, a.Name, parts[1], page)
		for i, part := range parts {
			parts[i] = strings.ReplaceAll(part, "\n", " ")
		}
		users := strings.TrimSuffix(parts[2], ".")
		assert.Contains(t, string(list), "["+a.Name+"]("+page+") | "+users+" |", "what users notice, in the list")
		assert.NoError(t, shows(a, parts[6], parts[5], parts[4], parts[3]), page)
	}
	delete(pages, "README.md")
	assert.Empty(t, pages, "runbooks without an alert")

	alert := Alert{Value: "max(kuperator_lifecycle_cluster_frozen)"}
	require.NoError(t, shows(alert, "kuperator-lifecycle", "Kuperator / Pod lifecycle", "Operations", "Frozen"))
	require.Error(t, shows(alert, "kuperator-lifecycle", "Kuperator / Pod lifecycle", "Operations", "Oldest, by phase"))
	require.Error(t, shows(alert, "kuperator-lifecycle", "Kuperator / Pod lifecycle", "Operations", "No such panel"))
}

var metricName = regexp.MustCompile(`\bup\{|\b[a-z]+_[a-z_]+\b`)

// shows says what is wrong with a panel that a runbook names: that there is none, or that it shows no metric of the
// alert. The panel of the first board that shows alerts themselves shows each.
func shows(a Alert, uid, board, row, title string) error {
	for _, d := range Dashboards() {
		for _, r := range d.Rows {
			for _, p := range r.Panels {
				if d.ID != uid || d.Title != board || r.Title != row || p.Title != title {
					continue
				}
				for _, name := range metricName.FindAllString(a.Value, -1) {
					_, known := Known()[strings.TrimSuffix(name, "_bucket")]
					if (known || name == "up{") &&
						slices.ContainsFunc(p.Queries, func(q Query) bool { return strings.Contains(q.Expr, name) }) {
						return nil
					}
				}
				return fmt.Errorf("%s / %s shows no metric of %s", board, title, a.Value)
			}
		}
	}
	return fmt.Errorf("board %s (%s) has no panel %q in a row %q", board, uid, title, row)
}

// TestDashboardsAreReadable: every panel has its own title in its row, and what it shows is said.
func TestDashboardsAreReadable(t *testing.T) {
	for _, d := range Dashboards() {
		for _, row := range d.Rows {
			titles := map[string]bool{}
			for _, p := range row.Panels {
				assert.False(t, titles[p.Title], "%s has two panels %q in row %q", d.ID, p.Title, row.Title)
				titles[p.Title] = true
				for _, q := range p.Queries {
					assert.NotEmpty(t, q.Legend, "%s/%s", d.ID, p.Title)
				}
			}
		}
	}
}
