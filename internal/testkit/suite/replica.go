package suite

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// Replica is a process of a component beside the one that the Suite keeps: a test starts and stops it by itself. It
// uses its own token, by which its requests are told from those of other replicas.
type Replica struct {
	// Component is its name, Credential that of its token in Request.Credential.
	Component, Credential string

	process *process
}

// StartReplica starts one with further flags. It may not be ready yet. The name tells its log and kubeconfig from
// others.
func (s *Suite) StartReplica(ctx context.Context, component, name string, args ...string) (*Replica, error) {
	if _, err := s.build(ctx, component); err != nil {
		return nil, err
	}
	kubeconfig := filepath.Join(s.Dir, component+"-"+name+".kubeconfig")
	token, err := s.writeKubeconfig(ctx, component, kubeconfig)
	if err != nil {
		return nil, err
	}
	credential, err := credentialOf(token)
	if err != nil {
		return nil, err
	}
	p, err := newProcess(component, s.Dir, s.bin, kubeconfig)
	if err != nil {
		return nil, err
	}
	p.Log = filepath.Join(s.Dir, component+"-"+name+".log")
	r := &Replica{Component: component, Credential: credential, process: p}
	return r, p.start(args, nil, false)
}

// credentialOf is how the audit log names a token.
func credentialOf(token string) (string, error) {
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return "", fmt.Errorf("a token of %d parts is no JSON web token", len(parts))
	}
	payload, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		return "", fmt.Errorf("reading a token: %w", err)
	}
	var claims struct {
		ID string `json:"jti"`
	}
	if err := json.Unmarshal(payload, &claims); err != nil {
		return "", fmt.Errorf("reading a token: %w", err)
	}
	return "JTI=" + claims.ID, nil
}

// Running reports whether the process is there, stopped by a signal or not.
func (r *Replica) Running() bool { return r.process.Running() }

// Log is the path of its log.
func (r *Replica) Log() string { return r.process.Log }

// Ready is nil once the replica says so.
func (r *Replica) Ready(ctx context.Context) error {
	client := &http.Client{Timeout: 10 * time.Second}
	defer client.CloseIdleConnections()
	_, err := probe(ctx, client, "http://"+r.process.Probe+"/readyz")
	return err
}

// WebhookAddress is host:port of a webhook-server's webhooks.
func (r *Replica) WebhookAddress() string { return r.process.webhook }

// Metrics is what it says of itself.
func (r *Replica) Metrics(ctx context.Context) (string, error) {
	client := &http.Client{Timeout: 10 * time.Second}
	defer client.CloseIdleConnections()
	body, err := scrape(ctx, client, r.process)
	return string(body), err
}

// Signal sends it a signal, such as SIGSTOP.
func (r *Replica) Signal(signal syscall.Signal) error { return syscall.Kill(r.process.PID, signal) }

// Stop asks it to end, and Kill ends it; both return when it is gone.
func (r *Replica) Stop() error { defer r.process.ports.Release(); return r.process.stop() }

// Kill ends it at once.
func (r *Replica) Kill() error { defer r.process.ports.Release(); return r.process.kill() }
