package suite

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"kusionstack.io/kuperator/internal/child"
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

	path, kubeconfig, webhook string
	ended                     bool // on purpose
}

func newProcess(name, dir, bin, kubeconfig string) (*process, error) {
	addresses, err := freeAddresses(3)
	if err != nil {
		return nil, err
	}
	return &process{
		Process: child.Process{Name: name, Log: filepath.Join(dir, name+".log")}, Probe: addresses[0], Metrics: addresses[1],
		path: filepath.Join(bin, name), kubeconfig: kubeconfig, webhook: addresses[2],
	}, nil
}

// freeAddresses finds ports that nobody listens on; all differ.
func freeAddresses(n int) ([]string, error) {
	var found []string
	for range n {
		listener, err := net.Listen("tcp", loopback+":0")
		if err != nil {
			return nil, fmt.Errorf("looking for a free port: %w", err)
		}
		defer listener.Close() // after all are found
		found = append(found, listener.Addr().String())
	}
	return found, nil
}

// arguments are the component's flags. Leases are short, so that the successor
// of a killed process does not wait long.
func (p *process) arguments(further []string) []string {
	args := []string{
		"--kubeconfig=" + p.kubeconfig,
		"--health-probe-bind-address=" + p.Probe,
		"--metrics-bind-address=" + p.Metrics,
	}
	if p.Name == Webhook {
		_, port, _ := net.SplitHostPort(p.webhook)
		args = append(args, "--webhook-bind-address="+loopback, "--webhook-port="+port, "--advertise-url=https://"+p.webhook, "--webhook-cert-settle=1s",
			"--graceful-deletion", "--announce-services") // as overlay local has them
	} else {
		args = append(args, "--leader-elect-lease-duration=6s", "--leader-elect-renew-deadline=4s", "--leader-elect-retry-period=500ms")
	}
	return append(args, further...)
}

// start runs the component.
func (p *process) start(further []string, detached bool) error {
	p.ended = false
	return p.Start(p.path, p.arguments(further), environment(), detached)
}

// environment is the present one without what would steer a Kubernetes client.
func environment() []string {
	kept := []string{"GORACE=halt_on_error=0"}
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

// end ends the process on purpose.
func (p *process) end(signal syscall.Signal) error {
	p.ended = p.ended || p.Running()
	return p.End(signal, stopGrace)
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
