package monitoring

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"kusionstack.io/kuperator/internal/testkit/await"
	"kusionstack.io/kuperator/internal/testkit/child"
	"kusionstack.io/kuperator/internal/testkit/localkube"
	"kusionstack.io/kuperator/internal/testkit/suite"
)

const (
	// scrapeInterval is short, so that a minute of a story has many points; rates are over rateInterval.
	scrapeInterval = "1s"
	rateInterval   = "1m"
	rulesFile      = "../../deploy/monitoring/alerts/rules.yaml"
)

// program is the path of one of Prometheus' programs; without it the test is skipped.
func program(t *testing.T, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		t.Skipf("%s is not installed: apt-get install --no-install-recommends prometheus", name)
	}
	return path
}

// promtool runs a command of promtool.
func promtool(t *testing.T, stdin string, args ...string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), program(t, "promtool"), args...)
	cmd.Stdin = strings.NewReader(stdin)
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "promtool %s:\n%s", strings.Join(args, " "), out)
}

// prometheus is one that scrapes the suite.
type prometheus struct {
	url     string
	started time.Time
}

func startPrometheus(t *testing.T, s *suite.Suite) *prometheus {
	t.Helper()
	path := program(t, "prometheus")
	ports, err := localkube.ReservePorts(1)
	require.NoError(t, err)
	t.Cleanup(ports.Release)
	rules, err := filepath.Abs(rulesFile)
	require.NoError(t, err)
	dir := t.TempDir()
	config := fmt.Sprintf("global: {scrape_interval: %s, evaluation_interval: %s}\nrule_files: [%q]\nscrape_configs:\n",
		scrapeInterval, scrapeInterval, rules)
	for _, component := range suite.Components() {
		config += fmt.Sprintf("- {job_name: %s, honor_labels: true, static_configs: [{targets: [%q]}]}\n", component,
			s.MetricsAddress(component))
	}
	file := filepath.Join(dir, "prometheus.yaml")
	require.NoError(t, os.WriteFile(file, []byte(config), 0o600))
	address := "127.0.0.1:" + strconv.Itoa(ports.Numbers[0])
	process := &child.Process{Name: "prometheus", Log: filepath.Join(dir, "prometheus.log")}
	p := &prometheus{url: "http://" + address, started: time.Now()}
	require.NoError(t, process.Start(path, []string{
		"--config.file=" + file, "--storage.tsdb.path=" + filepath.Join(dir, "data"), "--web.listen-address=" + address,
		"--log.level=warn",
	}, os.Environ(), false))
	t.Cleanup(func() {
		if err := process.End(syscall.SIGTERM, 20*time.Second); err != nil {
			t.Error(err)
		}
		if log, err := os.ReadFile(process.Log); t.Failed() && err == nil {
			t.Logf("Prometheus:\n%s", log)
		}
	})
	await.Nil(t, "every component is scraped", func() error {
		up, err := p.query(t.Context(), "sum(up)")
		if err != nil || len(up) == 0 || up[0].last() != float64(len(suite.Components())) {
			return fmt.Errorf("up is %v: %w", up, err)
		}
		return nil
	})
	return p
}

// series is one series of an answer. Values that are no numbers are left out.
type series struct {
	Labels map[string]string
	Points [][2]float64
}

func (s series) last() float64 { return s.Points[len(s.Points)-1][1] }

// query evaluates an expression now.
func (p *prometheus) query(ctx context.Context, expr string) ([]series, error) {
	return p.ask(ctx, "/api/v1/query", url.Values{"query": {expr}})
}

// queryRange evaluates an expression over the time since Prometheus was started.
func (p *prometheus) queryRange(ctx context.Context, expr string) ([]series, error) {
	stamp := func(at time.Time) string { return strconv.FormatInt(at.Unix(), 10) }
	return p.ask(ctx, "/api/v1/query_range",
		url.Values{"query": {expr}, "start": {stamp(p.started)}, "end": {stamp(time.Now())}, "step": {"2s"}})
}

func (p *prometheus) ask(ctx context.Context, path string, form url.Values) ([]series, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, p.url+path, strings.NewReader(form.Encode()))
	if err != nil {
		return nil, err
	}
	request.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return nil, err
	}
	var answer struct {
		Error string
		Data  struct {
			Result []struct {
				Metric map[string]string
				Value  *[2]any
				Values [][2]any
			}
		}
	}
	if err := json.Unmarshal(body, &answer); err != nil || response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s: %s: %s %w", form.Get("query"), response.Status, answer.Error, err)
	}
	var all []series
	for _, r := range answer.Data.Result {
		s := series{Labels: r.Metric}
		if r.Value != nil {
			r.Values = append(r.Values, *r.Value)
		}
		for _, v := range r.Values {
			at, _ := v[0].(float64)
			text, _ := v[1].(string)
			if n, err := strconv.ParseFloat(text, 64); err == nil && !math.IsNaN(n) && !math.IsInf(n, 0) {
				s.Points = append(s.Points, [2]float64{at, n})
			}
		}
		if len(s.Points) > 0 {
			all = append(all, s)
		}
	}
	return all, nil
}
