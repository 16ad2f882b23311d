package realnode

import (
	_ "embed"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"syscall"

	"kusionstack.io/kuperator/internal/testkit/localkube"
)

const (
	// prefix begins the names of a run's folder and cgroup.
	prefix = "kuperator-realnode-"

	// folderVariable is set for the program inside: the run's folder.
	folderVariable = "KUPERATOR_REALNODE_DIR"

	bridge  = "nodes"
	subnet  = "10.88.0.0/16"
	gateway = "10.88.0.1" // the machine's own address, as Pods see it
)

//go:embed machine.sh
var machineScript string

// namespaces is the command line that runs a command in namespaces of its own,
// which end with the caller at the latest.
func namespaces() []string {
	return []string{"setpriv", "--pdeathsig", "KILL", "unshare", "--net", "--mount", "--propagation", "private", "--pid",
		"--fork", "--kill-child", "--mount-proc"}
}

// Inside reports whether this process is one that Main runs in namespaces of its
// own, where nodes can be started.
func Inside() bool { return os.Getenv(folderVariable) != "" }

// Main runs this program once more, with the same arguments, as root of its own machine: network, mounts and processes
// are its own, files are not. Inside, it calls run. It returns the exit code of whichever ran. Temporary files that are
// made inside are removed afterwards, as is everything that an earlier run left which was killed. A signal that ends
// this process ends all of it. Call it only where Missing returns nil.
func Main(run func() int) int {
	if Inside() {
		return run()
	}
	code, err := outside()
	if err != nil {
		fmt.Fprintln(os.Stderr, "real nodes:", err)
		return max(code, 1)
	}
	return code
}

func outside() (code int, err error) {
	dir, release, err := claimFolder()
	if err != nil {
		return 1, err
	}
	name := filepath.Base(dir)
	defer func() { err = errors.Join(err, remove(dir)); release() }()
	if err := makeCgroup(name); err != nil {
		return 1, fmt.Errorf("making cgroups: %w", err)
	}
	self, err := os.Executable()
	if err != nil {
		return 1, err
	}
	script := filepath.Join(dir, "machine.sh")
	if err := os.WriteFile(script, []byte(machineScript), 0o600); err != nil {
		return 1, err
	}
	temporary := filepath.Join(dir, "tmp")
	if err := os.Mkdir(temporary, 0o700); err != nil {
		return 1, err
	}
	args := append(namespaces(), "sh", script, self)
	cmd := exec.Command(args[0], append(args[1:], os.Args[1:]...)...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(), folderVariable+"="+dir, "TMPDIR="+temporary, "BRIDGE="+bridge, "GATEWAY="+gateway+"/16")

	interrupted := make(chan os.Signal, 1)
	signal.Notify(interrupted, os.Interrupt, syscall.SIGTERM)
	defer signal.Stop(interrupted)
	// Linux sends the death signal of setpriv when the *thread* that started it ends.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := cmd.Start(); err != nil {
		return 1, err
	}
	ended := make(chan struct{})
	go func() {
		err = cmd.Wait()
		close(ended)
	}()
	select {
	case <-ended:
	case s := <-interrupted:
		_ = cmd.Process.Kill() // and with it all that it started
		<-ended
		return 1, fmt.Errorf("ended by signal %s", s)
	}
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return exit.ExitCode(), nil
	}
	return 0, err
}

// claimFolder makes the run's folder, locked for as long as this process lives, and removes what runs left whose
// folders are not locked.
func claimFolder() (dir string, release func(), err error) {
	locks, err := localkube.LockDir("real-nodes")
	if err != nil {
		return "", nil, err
	}
	sweeping, err := lock(filepath.Join(locks, "sweep"), true)
	if err != nil {
		return "", nil, err
	}
	defer sweeping.Close()
	if err := sweep(); err != nil {
		return "", nil, fmt.Errorf("removing what an earlier run left: %w", err)
	}
	if dir, err = os.MkdirTemp("", prefix); err != nil {
		return "", nil, err
	}
	held, err := lock(filepath.Join(dir, "lock"), true)
	if err != nil {
		return "", nil, errors.Join(err, os.RemoveAll(dir))
	}
	return dir, func() { _ = held.Close() }, nil
}

// sweep removes what runs left that have ended.
func sweep() error {
	folders, err := filepath.Glob(filepath.Join(os.TempDir(), prefix+"*"))
	if err != nil {
		return err
	}
	var errs []error
	for _, dir := range folders {
		if info, err := os.Lstat(dir); err != nil || !isOurs(info) {
			continue // a link, or what another user made
		}
		held, err := lock(filepath.Join(dir, "lock"), false)
		switch {
		case errors.Is(err, syscall.EWOULDBLOCK): // it has not ended
		case err != nil:
			errs = append(errs, err)
		default:
			errs = append(errs, remove(dir), held.Close())
		}
	}
	return errors.Join(errs...)
}

// isOurs reports whether this is a folder that the user of this process made, as os.MkdirTemp makes them: open to no
// other user.
func isOurs(info os.FileInfo) bool {
	stat, ok := info.Sys().(*syscall.Stat_t)
	return ok && info.IsDir() && info.Mode().Perm() == 0o700 && int(stat.Uid) == os.Getuid()
}

// remove removes a run's cgroup, and then its folder, which is what a later run
// knows the cgroup by.
func remove(dir string) error {
	if err := removeCgroup(filepath.Base(dir)); err != nil {
		return err
	}
	return os.RemoveAll(dir)
}

// lock locks a file, made if need be, until it is closed.
func lock(path string, wait bool) (io.Closer, error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	how := syscall.LOCK_EX
	if !wait {
		how |= syscall.LOCK_NB
	}
	if err := syscall.Flock(int(file.Fd()), how); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return file, nil
}
