package localkube

import (
	"context"
	"fmt"
	"os"
	"strings"
	"syscall"
	"time"

	"kusionstack.io/kuperator/internal/testkit/child"
)

const (
	pollInterval = 20 * time.Millisecond
	termGrace    = 15 * time.Second // between SIGTERM and SIGKILL

	logTailLines = 25
)

// component is one process of a cluster, as state.json keeps it.
type component struct {
	child.Process
	Path string   `json:"path"`
	Args []string `json:"args"`
}

// start runs the component.
func (c *component) start(detached bool) error {
	return c.Start(c.Path, c.Args, childEnvironment(), detached)
}

// stop ends the process, gently for as long as termGrace.
func (c *component) stop() error {
	if err := c.End(syscall.SIGTERM, termGrace); err != nil {
		return err
	}
	c.PID, c.Identity = 0, ""
	return nil
}

// kill ends the process at once.
func (c *component) kill() error {
	if err := c.End(syscall.SIGKILL, termGrace); err != nil {
		return err
	}
	c.PID, c.Identity = 0, ""
	return nil
}

// diedError explains an unexpected end with the last lines of the log.
func (c *component) diedError() error {
	content, err := os.ReadFile(c.Log)
	if err != nil {
		return fmt.Errorf("%s ended and its log cannot be read: %w", c.Name, err)
	}
	return fmt.Errorf("%s ended; the last lines of its log:\n%s", c.Name, child.LastLines(content, logTailLines))
}

// waitFor polls check until it returns nil. It gives up, naming what and the
// last failure, when ctx ends or a component of the lifeline has died.
func waitFor(ctx context.Context, what string, lifeline []component, check func(context.Context) error) error {
	for {
		err := check(ctx)
		if err == nil {
			return nil
		}
		for _, c := range lifeline {
			if !c.Running() {
				return fmt.Errorf("waiting for %s: %w", what, c.diedError())
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waiting for %s: %w (last: %w)", what, ctx.Err(), err)
		case <-time.After(pollInterval):
		}
	}
}

// childEnvironment is the present environment without what would steer a Kubernetes client elsewhere, or its calls
// through a user's proxy: all that a cluster here talks to is on this machine. Nor is what watches over the caches of
// programs under test meant for those of Kubernetes.
func childEnvironment() []string {
	var kept []string
	for _, variable := range os.Environ() {
		name, _, _ := strings.Cut(variable, "=")
		switch {
		case strings.HasSuffix(strings.ToUpper(name), "_PROXY"):
		case name == "KUBECONFIG", name == "KUBE_CACHE_MUTATION_DETECTOR", strings.HasPrefix(name, "KUBERNETES_"),
			strings.HasPrefix(name, "ETCD_"):
		default:
			kept = append(kept, variable)
		}
	}
	return kept
}
