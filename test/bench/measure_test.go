package bench

import (
	"fmt"
	"io"
	"maps"
	"math"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/stretchr/testify/require"

	"kusionstack.io/kuperator/internal/testkit/suite"
)

// Processes beside those of the suite by name.
const (
	apiServer = "kube-apiserver"
	etcd      = "etcd"
	itself    = "benchmark" // clients, kubelets and watches
	ticks     = 100         // of /proc/<pid>/stat, in a second (USER_HZ is 100 wherever Go runs)
)

// spent is what something took.
type spent struct {
	took time.Duration
	// cpu are seconds by process; machine those of everything on the machine. Empty where there is no /proc.
	cpu     map[string]float64
	machine float64
	// piece is what a piece of work took of a core meanwhile, in milliseconds: how fast the machine was. 0 if that is
	// not known.
	piece float64
	// stored are the bytes that etcd received.
	stored float64
	// requests are those of the namespaces asked for, and without one.
	requests []suite.Request
}

// measure has something done and says what it took. It returns when the API server has written down what belongs to it.
// Only requests in these namespaces are kept; none means all.
func (a arena) measure(what func(), namespaces ...string) spent {
	a.Helper()
	_, err := a.audit.Next()
	require.NoError(a, err)
	a.yard.Lap()
	cpu, machine, stored, begin := a.cpu(), machineCPU(), a.etcdReceived(), time.Now()
	what()
	s := spent{took: time.Since(begin), cpu: a.cpu(), machine: machineCPU() - machine, stored: a.etcdReceived() - stored,
		piece: a.yard.Lap()}
	for name := range s.cpu {
		s.cpu[name] -= cpu[name]
	}
	requests, err := a.audit.Next()
	require.NoError(a, err)
	s.requests = slices.DeleteFunc(requests, func(r suite.Request) bool {
		return len(namespaces) > 0 && !slices.Contains(namespaces, r.Namespace)
	})
	return s
}

// ours is the CPU of the suite's own processes.
func (s spent) ours() float64 {
	sum := 0.0
	for _, name := range suite.Components() {
		sum += s.cpu[name]
	}
	return sum
}

// foreign is how many cores others used: neither the cluster nor the suite nor the benchmark.
func (s spent) foreign() float64 {
	known := 0.0
	for _, seconds := range s.cpu {
		known += seconds
	}
	return max(0, s.machine-known) / s.took.Seconds()
}

// perPod is the CPU of the processes, in milliseconds for each Pod.
func (s spent) perPod(pods int) string {
	names := slices.Sorted(maps.Keys(s.cpu))
	slices.SortStableFunc(names, func(a, b string) int { return int(1e6 * (s.cpu[b] - s.cpu[a])) })
	var parts []string
	for _, name := range names {
		if ms := s.cpu[name] * 1e3 / float64(pods); ms >= 0.05 {
			parts = append(parts, fmt.Sprintf("%s %.1f", strings.TrimSuffix(name, "-controller"), ms))
		}
	}
	return strings.Join(parts, ", ")
}

// changesPod reports whether the request made an event of a Pod, no matter which client sent it.
func changesPod(r suite.Request) bool { return r.Resource == "pods" && r.Write() && r.OK() }

// latencies are how long after the last write to a Pod the suite's next one was answered, sorted, in milliseconds: from
// event to write. The first write to each Pod is not among them: it waits for its turn, not for an event of the Pod.
func (s spent) latencies() []float64 {
	last := map[string]time.Time{}
	byPod := map[string][]suite.Request{}
	for _, r := range s.requests {
		if changesPod(r) {
			byPod[r.Namespace+"/"+r.Name] = append(byPod[r.Namespace+"/"+r.Name], r)
		}
	}
	var all []float64
	for pod, writes := range byPod {
		slices.SortStableFunc(writes,
			func(x, y suite.Request) int { return x.Received.Add(x.Took).Compare(y.Received.Add(y.Took)) })
		for _, r := range writes {
			answered := r.Received.Add(r.Took)
			if before, ok := last[pod]; ok && r.Component() != "" {
				all = append(all, answered.Sub(before).Seconds()*1e3)
			}
			last[pod] = answered
		}
	}
	slices.Sort(all)
	return all
}

// quantile is of sorted values; q is between 0 and 1.
func quantile(sorted []float64, q float64) float64 {
	if len(sorted) == 0 {
		return math.NaN()
	}
	return sorted[int(q*float64(len(sorted)-1))]
}

// cpu is what each process has used so far, in seconds.
func (a arena) cpu() map[string]float64 {
	seconds := map[string]float64{}
	for name, pid := range a.processes() {
		content, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			continue // not Linux, or it has just ended
		}
		// The name, in parentheses, may hold anything; utime and stime are the 12th and 13th field after it.
		fields := strings.Fields(string(content[strings.LastIndexByte(string(content), ')')+1:]))
		if len(fields) < 13 {
			continue
		}
		for _, field := range fields[11:13] {
			used, err := strconv.ParseFloat(field, 64)
			require.NoError(a, err)
			seconds[name] += used / ticks
		}
	}
	return seconds
}

// processes are the ids of all processes that belong here.
func (a arena) processes() map[string]int {
	pids := a.suite.Processes()
	for name, pid := range a.suite.Cluster.Processes() {
		if pid != 0 {
			pids[name] = pid
		}
	}
	pids[itself] = os.Getpid()
	return pids
}

// machineCPU are the seconds that all cores have worked.
func machineCPU() float64 {
	content, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0
	}
	line, _, _ := strings.Cut(string(content), "\n")
	sum := 0.0
	for i, field := range strings.Fields(line) {
		value, err := strconv.ParseFloat(field, 64)
		if err == nil && i != 4 && i != 5 && i < 9 { // idle, iowait; guests are in user
			sum += value / ticks
		}
	}
	return sum
}

// resident is a process' memory in MB (10⁶ bytes): "VmRSS" now or "VmHWM" at its highest.
func (a arena) resident(name, what string) float64 {
	content, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", a.processes()[name]))
	if err != nil {
		return math.NaN()
	}
	for line := range strings.Lines(string(content)) {
		if value, ok := strings.CutPrefix(line, what+":"); ok {
			kib, err := strconv.ParseFloat(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 64)
			require.NoError(a, err)
			return kib * 1024 / 1e6
		}
	}
	return math.NaN()
}

var etcdURL = regexp.MustCompile(`--listen-client-urls=(http://[0-9.:]+)`)

// etcdReceived are the bytes that clients have sent to etcd, as it says itself; 0 if it cannot be asked.
func (a arena) etcdReceived() float64 {
	command, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(a.processes()[etcd]), "cmdline"))
	if err != nil {
		return 0
	}
	url := etcdURL.FindSubmatch(command)
	if url == nil {
		return 0
	}
	metrics, err := fetch(a, string(url[1])+"/metrics")
	if err != nil {
		return 0
	}
	return metricSum(metrics, "etcd_network_client_grpc_received_bytes_total")
}

func fetch(a arena, url string) (string, error) {
	request, err := http.NewRequestWithContext(a.Context(), http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	var text strings.Builder
	_, err = io.Copy(&text, response.Body)
	return text.String(), err
}

// metricSum adds up the series of a metric whose labels hold all that is asked for.
func metricSum(metrics, name string, labels ...string) float64 {
	sum := 0.0
	for line := range strings.Lines(metrics) {
		rest, ok := strings.CutPrefix(line, name)
		if !ok || rest == "" || rest[0] != '{' && rest[0] != ' ' ||
			slices.ContainsFunc(labels, func(l string) bool { return !strings.Contains(rest, l) }) {
			continue
		}
		value, err := strconv.ParseFloat(strings.TrimSpace(rest[strings.LastIndexByte(strings.TrimSpace(rest), ' ')+1:]), 64)
		if err == nil {
			sum += value
		}
	}
	return sum
}
