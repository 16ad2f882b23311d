// Package child runs programs as children of this one: for the local cluster, the
// suite's processes in tests, and the demo. It signals only the very process that
// it started, also when it finds it again by a recorded PID.
package child

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"time"
)

const (
	poll      = 10 * time.Millisecond
	killGrace = 30 * time.Second // a killed process that is still there after this is an error
)

// Process is a program that was started. Its exported fields may be recorded, and
// the process found again by them in a later program.
type Process struct {
	// Name is for messages.
	Name string `json:"name"`
	// Log is the path of the file that its output is added to.
	Log string `json:"log"`
	// PID is the process id, 0 while it does not run.
	PID int `json:"pid"`
	// Identity tells this process from a later one with the same PID.
	Identity string `json:"identity"`

	// exited is closed when the process has ended. It is nil for a process that
	// another program started.
	exited chan struct{}
}

// Tail returns the last lines of its log, at most n, under its name, with a note if it does not run.
func (p *Process) Tail(n int) string {
	stopped := ""
	if !p.Running() {
		stopped = ", which does not run"
	}
	return fmt.Sprintf("the last lines of %s%s:\n%s\n", p.Name, stopped, LogTail(p.Log, n))
}

// Start runs a program. A process that is not detached ends with its parent where the system can do that (Linux); a
// detached one lives on in its own session.
func (p *Process) Start(path string, args, env []string, detached bool) error {
	log, err := os.OpenFile(p.Log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	cmd := exec.Command(path, args...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Env = env
	cmd.SysProcAttr = attributes(detached)
	started, exited := make(chan error), make(chan struct{})
	go func() {
		// Linux sends the death signal when the *thread* that started the child
		// ends, so the thread must live as long as the child.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer log.Close()
		err := cmd.Start()
		started <- err
		if err != nil {
			return
		}
		_ = cmd.Wait() // how it ended is in its log
		close(exited)
	}()
	if err := <-started; err != nil {
		return fmt.Errorf("starting %s: %w", p.Name, err)
	}
	p.PID, p.exited = cmd.Process.Pid, exited
	p.Identity, err = identityOf(p.PID)
	if err != nil && p.Running() {
		return fmt.Errorf("identifying %s: %w", p.Name, err)
	}
	return nil
}

// Running reports whether the very process that was started is still there.
func (p *Process) Running() bool {
	if p.PID == 0 {
		return false
	}
	if p.exited != nil {
		select {
		case <-p.exited:
			return false
		default:
			return true
		}
	}
	identity, err := identityOf(p.PID)
	return err == nil && identity == p.Identity
}

// Busy reports whether any thread of the process works, or would if it had a core: on a machine that is out of breath
// that is what tells a process that waits for work from one that waits for a core. Where the system does not tell
// (other than Linux) it never is.
func (p *Process) Busy() bool { return p.Running() && busy(p.PID) }

// Signal sends the process a signal. It is an error if it does not run.
func (p *Process) Signal(signal syscall.Signal) error {
	if !p.Running() {
		return fmt.Errorf("%s does not run", p.Name)
	}
	if err := syscall.Kill(p.PID, signal); err != nil {
		return fmt.Errorf("sending %s to %s (process %d): %w", signal, p.Name, p.PID, err)
	}
	return nil
}

// End signals the process, kills it if it stays for longer than grace, and
// returns when it is gone. It never signals a process other than the one that was
// started; one that has ended is no error.
func (p *Process) End(signal syscall.Signal, grace time.Duration) error {
	for _, step := range []struct {
		signal syscall.Signal
		grace  time.Duration
	}{{signal, grace}, {syscall.SIGKILL, killGrace}} {
		if !p.Running() {
			return nil
		}
		if err := syscall.Kill(p.PID, step.signal); err != nil && !errors.Is(err, syscall.ESRCH) {
			return fmt.Errorf("stopping %s (process %d): %w", p.Name, p.PID, err)
		}
		for deadline := time.Now().Add(step.grace); p.Running() && time.Now().Before(deadline); {
			time.Sleep(poll)
		}
	}
	if p.Running() {
		return fmt.Errorf("%s (process %d) is still running after SIGKILL", p.Name, p.PID)
	}
	return nil
}
