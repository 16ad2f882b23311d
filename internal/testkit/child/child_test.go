package child

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// patience is for what takes milliseconds, on a busy machine.
const patience = time.Minute

func TestAProcessIsNeverTakenForAnother(t *testing.T) {
	cmd := exec.Command("sleep", "60")
	require.NoError(t, cmd.Start())
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	identity, err := identityOf(cmd.Process.Pid)
	require.NoError(t, err)

	stranger := Process{Name: "stranger", PID: cmd.Process.Pid, Identity: "another start"}
	require.False(t, stranger.Running())
	require.NoError(t, stranger.End(syscall.SIGTERM, patience))
	select {
	case err := <-ended:
		t.Fatalf("a process that is not ours was ended: %v", err)
	default:
	}

	ours := Process{Name: "ours", PID: cmd.Process.Pid, Identity: identity}
	require.True(t, ours.Running())
	require.NoError(t, ours.End(syscall.SIGTERM, patience))
	require.False(t, ours.Running())
	require.Error(t, <-ended, "it ended by the signal")
}

func TestProcessWritesItsLogAndEnds(t *testing.T) {
	p := Process{Name: "shell", Log: filepath.Join(t.TempDir(), "log")}
	require.NoError(t, p.Start("/bin/sh", []string{"-c", "echo $GREETING; exec sleep 60"},
		[]string{"GREETING=hello", "PATH=" + os.Getenv("PATH")}, false))
	require.Eventually(t, func() bool {
		said, err := os.ReadFile(p.Log)
		return err == nil && string(said) == "hello\n"
	}, patience, poll)
	require.True(t, p.Running())

	found := Process{Name: p.Name, PID: p.PID, Identity: p.Identity} // as a later program finds it
	require.True(t, found.Running())
	require.NoError(t, found.End(syscall.SIGTERM, patience))
	require.Eventually(t, func() bool { return !p.Running() }, patience, poll,
		"its starter learns of it when it has been reaped")
	require.NoError(t, p.End(syscall.SIGTERM, patience), "ended already")
}

func TestAProcessThatWorksIsBusy(t *testing.T) {
	start := func(script string) *Process {
		p := &Process{Name: "shell", Log: filepath.Join(t.TempDir(), "log")}
		require.NoError(t, p.Start("/bin/sh", []string{"-c", script}, os.Environ(), false))
		t.Cleanup(func() { require.NoError(t, p.End(syscall.SIGKILL, patience)) })
		return p
	}
	idle := start("exec sleep 600")
	require.Eventually(t, func() bool { return !idle.Busy() }, patience, poll)
	works := start("while :; do :; done")
	if runtime.GOOS == "linux" {
		require.Eventually(t, works.Busy, patience, poll)
		require.True(t, works.Busy(), "it waits for a core at most")
	}
	require.NoError(t, works.End(syscall.SIGKILL, patience))
	require.False(t, works.Busy())
}

func TestProcessThatStaysIsKilled(t *testing.T) {
	p := Process{Name: "stubborn", Log: filepath.Join(t.TempDir(), "log")}
	require.NoError(t, p.Start("/bin/sh", []string{"-c", "trap '' TERM; echo ready; while :; do sleep 1; done"},
		os.Environ(), false))
	require.Eventually(t, func() bool { said, err := os.ReadFile(p.Log); return err == nil && len(said) > 0 },
		patience, poll)
	require.NoError(t, p.End(syscall.SIGTERM, 50*time.Millisecond))
	require.False(t, p.Running())
}

func TestProgramThatIsNotThere(t *testing.T) {
	p := Process{Name: "nobody", Log: filepath.Join(t.TempDir(), "log")}
	require.ErrorContains(t, p.Start("/does/not/exist", nil, nil, false), "starting nobody")
	require.False(t, p.Running())
}
