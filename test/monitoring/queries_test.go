package monitoring

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"kusionstack.io/kuperator/internal/monitoring"
	"kusionstack.io/kuperator/internal/testkit/await"
	"kusionstack.io/kuperator/internal/testkit/suite"
)

func expand(expr string) string { return monitoring.Expand(expr, rateInterval) }

// TestDashboardsAndAlerts asks a real Prometheus that scrapes the running suite.
func TestDashboardsAndAlerts(t *testing.T) {
	if os.Getenv("KUPERATOR_MONITORING_TESTS") == "" {
		t.Skip("takes minutes: make test-monitoring")
	}
	program(t, "prometheus")
	w := newWorld(t)
	p := startPrometheus(t, w.Suite)

	w.healthy(t)
	t.Run("what is published is what the page says", func(t *testing.T) { published(t, w) })
	t.Run("no alert is about a suite that is well", func(t *testing.T) {
		inARow := 0
		await.Nil(t, "no alert's condition holds, in ten looks in a row", func() error {
			inARow++
			if err := noneHolds(t, p); err != nil {
				inARow = 0
				return err
			}
			if inARow < 10 {
				return fmt.Errorf("%d looks", inARow)
			}
			return nil
		})
	})

	w.trouble(t, p)
	t.Run("every alert's value has data", func(t *testing.T) {
		await.Nil(t, "data for all alerts", func() error { return allHaveData(alertQueries(), instant(t, p)) })
	})
	t.Run("every panel's queries have data", func(t *testing.T) {
		await.Nil(t, "data for all panels", func() error {
			return allHaveData(panelQueries(), func(expr string) ([]series, error) { return p.queryRange(t.Context(), expr) })
		})
	})
	t.Run("what went wrong holds the conditions of its alerts", func(t *testing.T) { conditionsHold(t, p) })
	draw(t, p)
}

func hasData(answer []series, err error) error {
	if err == nil && len(answer) == 0 {
		return errors.New("no data")
	}
	return err
}

// shownQuery is one of a panel or an alert.
type shownQuery struct{ of, expr string }

func alertQueries() (all []shownQuery) {
	for _, a := range monitoring.Alerts() {
		all = append(all, shownQuery{a.Name, a.Value})
	}
	return all
}

func instant(t *testing.T, p *prometheus) func(expr string) ([]series, error) {
	return func(expr string) ([]series, error) { return p.query(t.Context(), expr) }
}

// allHaveData is an error that names the queries without data.
func allHaveData(queries []shownQuery, ask func(expr string) ([]series, error)) error {
	var errs []error
	for _, q := range queries {
		if err := hasData(ask(expand(q.expr))); err != nil {
			errs = append(errs, fmt.Errorf("%s: %s: %w", q.of, q.expr, err))
		}
	}
	return errors.Join(errs...)
}

func panelQueries() (all []shownQuery) {
	for _, d := range monitoring.Dashboards() {
		for _, row := range d.Rows {
			for _, p := range row.Panels {
				for _, q := range p.Queries {
					all = append(all, shownQuery{d.ID + "/" + p.Title, q.Expr})
				}
			}
		}
	}
	return all
}

// noneHolds is nil if no alert's condition holds now.
func noneHolds(t *testing.T, p *prometheus) error {
	t.Helper()
	var holding []string
	for _, a := range monitoring.Alerts() {
		answer, err := p.query(t.Context(), a.Expr())
		if err != nil {
			return err
		}
		if len(answer) > 0 {
			holding = append(holding, fmt.Sprintf("%s: %v", a.Name, answer))
		}
	}
	if len(holding) > 0 {
		return fmt.Errorf("these hold: %s", strings.Join(holding, "; "))
	}
	rows, err := p.query(t.Context(), whoNeedsAUser())
	if err == nil && len(rows) > 0 {
		err = fmt.Errorf("the table of who needs a user has rows: %v", rows)
	}
	return err
}

// conditionsHold waits for the alerts that the story is about. Those with a long threshold are left to promtool.
func conditionsHold(t *testing.T, p *prometheus) {
	t.Helper()
	for _, name := range []string{
		"KuperatorOperationOverdue", "KuperatorBudgetExhausted", "KuperatorBlockedByWebhookRule",
		"KuperatorRuleWebhookFailing",
		"KuperatorRuleStalled", "KuperatorRolloutStalled", "KuperatorProviderFailing", "KuperatorEmployerFailing",
	} {
		for _, a := range monitoring.Alerts() {
			if a.Name == name {
				await.Nil(t, a.Name+" holds", func() error { return hasData(p.query(t.Context(), a.Expr())) })
			}
		}
		await.Nil(t, name+" is in the table of who needs a user", func() error {
			rows, err := p.query(t.Context(), whoNeedsAUser())
			for _, row := range rows {
				if row.Labels["alert"] == name && row.Labels["who"] != "" {
					return nil
				}
			}
			return errors.Join(fmt.Errorf("not among %d rows", len(rows)), err)
		})
	}
}

// whoNeedsAUser is the query of the table that the first dashboard begins with.
func whoNeedsAUser() string {
	first := monitoring.Dashboards()[0].Rows[0].Panels[0]
	return expand(first.Queries[0].Expr)
}

// published compares each component's /metrics with the declarations, and has promtool check it.
func published(t *testing.T, w world) {
	t.Helper()
	known := monitoring.Known()
	for _, component := range suite.Components() {
		text, err := w.Metrics(t.Context(), component)
		require.NoError(t, err)
		checkMetrics(t, component, text)
		for line := range strings.Lines(text) {
			fields := strings.Fields(line)
			if len(fields) < 4 || !strings.HasPrefix(fields[2], "kuperator_") {
				continue
			}
			m, declared := known[fields[2]]
			if !assert.True(t, declared, "%s publishes %s, which is not declared", component, fields[2]) {
				continue
			}
			switch fields[1] {
			case "TYPE":
				assert.Equal(t, string(m.Kind), fields[3], fields[2])
			case "HELP":
				assert.Contains(t, strings.ReplaceAll(strings.TrimSpace(line), `\"`, `"`), m.Help)
			}
		}
	}
}

// checkMetrics has promtool check the suite's own metrics; those of libraries are their authors'.
func checkMetrics(t *testing.T, component, text string) {
	t.Helper()
	var own strings.Builder
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "kuperator_") || strings.HasPrefix(line, "# HELP kuperator_") ||
			strings.HasPrefix(line, "# TYPE kuperator_") {
			own.WriteString(line)
		}
	}
	require.NotEmpty(t, own.String(), component)
	promtool(t, own.String(), "check", "metrics")
}

type drawnDashboard struct {
	ID     string       `json:"id"`
	Title  string       `json:"title"`
	Panels []drawnPanel `json:"panels"`
}

type drawnPanel struct {
	Title  string        `json:"title"`
	Unit   string        `json:"unit"`
	Series []drawnSeries `json:"series"`
}

type drawnSeries struct {
	Legend string       `json:"legend"`
	Points [][2]float64 `json:"points"`
}

// draw writes what every panel shows, as data and as pictures, to KUPERATOR_ARTIFACTS or bin/artifacts/monitoring.
func draw(t *testing.T, p *prometheus) {
	t.Helper()
	folder := os.Getenv("KUPERATOR_ARTIFACTS")
	if folder == "" {
		folder = filepath.Join("..", "..", "bin", "artifacts", "monitoring")
	}
	folder, err := filepath.Abs(folder)
	require.NoError(t, err)
	require.NoError(t, os.MkdirAll(folder, 0o750))
	var dashboards []drawnDashboard
	for _, d := range monitoring.Dashboards() {
		drawn := drawnDashboard{ID: d.ID, Title: d.Title}
		for _, row := range d.Rows {
			for _, panel := range row.Panels {
				out := drawnPanel{Title: panel.Title, Unit: panel.Unit}
				for _, q := range panel.Queries {
					answer, err := p.queryRange(t.Context(), expand(q.Expr))
					require.NoError(t, err)
					for _, s := range answer {
						out.Series = append(out.Series, drawnSeries{Legend: legend(q.Legend, s.Labels), Points: s.Points})
					}
				}
				drawn.Panels = append(drawn.Panels, out)
			}
		}
		dashboards = append(dashboards, drawn)
	}
	data, err := json.Marshal(dashboards)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(folder, "dashboards.json"), data, 0o600))
	cmd := exec.CommandContext(t.Context(), "go", "run", "-C", "../../hack/tools/monitoring", ".", "draw", folder)
	cmd.Stdin = bytes.NewReader(data)
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, string(out))
	for _, d := range dashboards {
		picture, err := os.Stat(filepath.Join(folder, d.ID+".svg"))
		require.NoError(t, err)
		require.Greater(t, picture.Size(), int64(1000))
	}
	t.Logf("the dashboards are drawn in %s", folder)
}

// legend fills labels into the name of a series.
func legend(format string, labels map[string]string) string {
	for name, value := range labels {
		format = strings.ReplaceAll(format, "{{"+name+"}}", value)
	}
	return format
}
