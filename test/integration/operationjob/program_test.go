package operationjob_test

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
	"kusionstack.io/kuperator/internal/testkit/child"
	"kusionstack.io/kuperator/internal/testkit/suite"
	"kusionstack.io/kuperator/internal/testkit/workload"
)

const (
	examplesAction = "../../../examples/action"
	warm           = "example.com/warm-cache"
)

// TestProgramOfAnAction runs the program of examples/action, and kills it between its work and the answer.
func TestProgramOfAnAction(t *testing.T) {
	s := begin(t, 0, "1")
	require.NoError(t, workload.Patch(t.Context(), s.Client, s.namespace, "web", `{"spec":{"replicas":2,"template":{"spec":
		{"containers":[{"name":"main","image":"`+image+`","ports":[{"containerPort":8080}]}]}}}}`))
	s.serve("web", 2)
	containers := newContainers(t)
	p := s.program(containers.proxy.URL)

	containers.hold()
	job := s.job(warm, s.pods(), nil)
	s.await("the work on the first Pod to be done", func() error {
		if len(containers.warmed()) == 0 {
			return errors.New("no container was asked")
		}
		return nil
	})
	require.NoError(t, p.End(syscall.SIGKILL, time.Minute))
	unanswered := 0
	for _, pod := range s.pods() {
		unanswered += len(podops.TasksFor(podops.Read(&pod), warm))
	}
	require.Equal(t, 1, unanswered, "the rule lets one go, and there was no time to answer")
	p.start(t)
	s.await("the work to be done again", func() error {
		if got := containers.warmed(); slices.Max(slices.Collect(maps.Values(got))) < 2 {
			return fmt.Errorf("containers were asked so often: %v", got)
		}
		return nil
	})
	containers.release()
	status := s.ends(job, appsv1alpha1.OperationProgressSucceeded)
	require.EqualValues(t, 2, status.SucceededPodCount)
	times := slices.Sorted(maps.Values(containers.warmed()))
	require.Equal(t, []int{1, 2}, times, "what was not answered was done again, and nothing else")
	s.serve("web", 2)

	containers.fail()
	status = s.ends(s.job(warm, s.pods()[:1], nil), appsv1alpha1.OperationProgressFailed)
	require.Equal(t, appsv1alpha1.ReasonActionFailed, status.TargetDetails[0].Error.Reason)
	require.Contains(t, status.TargetDetails[0].Error.Message, "503")
	s.serve("web", 2)
}

// ownProgram is the program of an action, as a process of its own.
type ownProgram struct {
	child.Process
	path string
	env  []string
}

// program builds and starts the program of examples/action. It calls containers through a proxy, because simulated
// nodes run none.
func (s *story) program(proxy string) *ownProgram {
	s.Helper()
	dir := s.TempDir()
	p := &ownProgram{path: filepath.Join(dir, "warm-cache")}
	p.Name, p.Log = "warm-cache", filepath.Join(dir, "log")
	build := exec.CommandContext(s.Context(), "go", "build", "-o", p.path, ".")
	build.Dir = examplesAction
	out, err := build.CombinedOutput()
	require.NoErrorf(s, err, "%s", out)

	_, err = s.Kubectl(s.Context(), "apply", "-f", filepath.Join(examplesAction, "rbac.yaml"))
	require.NoError(s, err)
	kubeconfig, err := s.Cluster.ServiceAccountKubeconfig(s.Context(), suite.Namespace, "warm-cache")
	require.NoError(s, err)
	isProxy := func(variable string) bool { return strings.Contains(strings.ToLower(variable), "_proxy=") }
	p.env = append(slices.DeleteFunc(os.Environ(), isProxy), "KUBECONFIG="+kubeconfig, "HTTP_PROXY="+proxy)
	p.start(s.T)
	s.Cleanup(func() {
		if s.Failed() {
			s.Log(p.Tail(20))
		}
		require.NoError(s, p.End(syscall.SIGTERM, time.Minute))
	})
	return p
}

func (p *ownProgram) start(t *testing.T) {
	t.Helper()
	require.NoError(t, p.Start(p.path, nil, p.env, false))
}

// containers answer in place of those of all Pods.
type containers struct {
	proxy *httptest.Server

	mu sync.Mutex
	// asked is how often each was, by its address.
	asked map[string]int
	// held, if it is not nil, is closed when they may answer.
	held   chan struct{}
	broken bool
}

func newContainers(t *testing.T) *containers {
	t.Helper()
	c := &containers{asked: map[string]int{}}
	c.proxy = httptest.NewServer(c)
	t.Cleanup(c.proxy.Close)
	return c
}

// ServeHTTP has done the work before it answers.
func (c *containers) ServeHTTP(out http.ResponseWriter, r *http.Request) {
	c.mu.Lock()
	c.asked[r.Host]++
	held, broken := c.held, c.broken
	c.mu.Unlock()
	if held != nil {
		select {
		case <-held:
		case <-r.Context().Done():
		}
	}
	if broken {
		out.WriteHeader(http.StatusServiceUnavailable)
	}
}

// hold has them not answer until release.
func (c *containers) hold() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.held = make(chan struct{})
}

func (c *containers) release() {
	c.mu.Lock()
	defer c.mu.Unlock()
	close(c.held)
	c.held = nil
}

// fail has them answer with an error from now on.
func (c *containers) fail() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.broken = true
}

// warmed is how often each was asked, by its address.
func (c *containers) warmed() map[string]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.asked)
}
