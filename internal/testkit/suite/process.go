package suite

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"kusionstack.io/kuperator/internal/testkit/child"
	"kusionstack.io/kuperator/internal/testkit/localkube"
)

const (
	stopGrace  = 25 * time.Second // above the components' own --shutdown-timeout
	recordFile = "processes.json"
)

// process is one component. Its exported fields are recorded in a file, for a
// later program that cleans up.
type process struct {
	child.Process
	// Probe and Metrics are host:port.
	Probe   string `json:"probe"`
	Metrics string `json:"metrics"`

	component                 string
	path, kubeconfig, webhook string
	credential                string // of its token
	ended                     bool   // on purpose
	paused                    bool
	// ports are kept while the component restarts.
	ports *localkube.Ports
}

func newProcess(name, dir, bin, kubeconfig string) (*process, error) {
	ports, err := localkube.ReservePorts(3)
	if err != nil {
		return nil, err
	}
	address := func(i int) string { return net.JoinHostPort(loopback, strconv.Itoa(ports.Numbers[i])) }
	return &process{
		Process: child.Process{Name: name, Log: filepath.Join(dir, name+".log")}, Probe: address(0), Metrics: address(1),
		component: ComponentOf(name), path: filepath.Join(bin, ComponentOf(name)),
		kubeconfig: kubeconfig, webhook: address(2), ports: ports,
	}, nil
}

// arguments are the component's flags. Leases are short, so that the successor
// of a killed process does not wait long, and long enough for a leader to keep
// its own on a busy machine.
func (p *process) arguments(further []string) []string {
	args := []string{
		"--kubeconfig=" + p.kubeconfig,
		"--health-probe-bind-address=" + p.Probe,
		"--metrics-bind-address=" + p.Metrics,
		"--metrics-secure=false", // on this machine alone; test/integration/security has it on
	}
	if p.component == Webhook {
		_, port, _ := net.SplitHostPort(p.webhook)
		args = append(args, "--webhook-bind-address="+loopback, "--webhook-port="+port, "--advertise-url=https://"+p.webhook,
			"--webhook-cert-settle=1s",
			"--graceful-deletion", "--announce-services") // as overlay local has them
	} else {
		args = append(args, "--leader-elect-lease-duration=10s", "--leader-elect-renew-deadline=8s",
			"--leader-elect-retry-period=500ms")
	}
	return append(args, further...)
}

// start runs the component.
func (p *process) start(further, env []string, detached bool) error {
	p.ended, p.paused = false, false
	return p.Start(p.path, p.arguments(further), append(environment(), env...), detached)
}

// environment is the present one without what would steer a Kubernetes client.
func environment() []string {
	kept := []string{"GORACE=halt_on_error=0", "GOGC=75"} // as the manifests have it
	for _, variable := range os.Environ() {
		name, _, _ := strings.Cut(variable, "=")
		if name != "KUBECONFIG" && name != "POD_NAMESPACE" && !strings.HasPrefix(name, "KUBERNETES_") {
			kept = append(kept, variable)
		}
	}
	return kept
}

func (p *process) stop() error { return p.end(syscall.SIGTERM) }

func (p *process) kill() error { return p.end(syscall.SIGKILL) }

// end ends the process on purpose. One that is paused goes on first, unless it is killed: it would not hear of it.
func (p *process) end(signal syscall.Signal) error {
	p.ended = p.ended || p.Running()
	if p.paused && signal != syscall.SIGKILL {
		if err := p.resume(); err != nil {
			return err
		}
	}
	return p.End(signal, stopGrace)
}

func (p *process) pause() error {
	if err := p.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	p.paused = true
	return nil
}

func (p *process) resume() error {
	p.paused = false
	return p.Signal(syscall.SIGCONT)
}

// record writes down the processes, for StopLeftovers.
func (s *Suite) record() error {
	content, err := json.MarshalIndent(s.processes, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(s.Dir, recordFile), content, 0o600)
}

// StopLeftovers ends the components that an earlier program left running,
// detached, with this Dir, and removes the folder. A folder that is not there is
// no error.
func StopLeftovers(dir string) error {
	content, err := os.ReadFile(filepath.Join(dir, recordFile))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var processes map[string]*process
	if err := json.Unmarshal(content, &processes); err != nil {
		return fmt.Errorf("reading the record of processes in %s: %w", dir, err)
	}
	var errs []error
	for _, p := range processes {
		errs = append(errs, p.stop())
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return os.RemoveAll(dir)
}
