package realnode

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
)

// packages are Debian's, by a program of each that is needed.
var packages = map[string]string{
	"containerd": "containerd", "ctr": "containerd", "runc": "runc", "ip": "iproute2",
	"unshare": "util-linux", "setpriv": "util-linux", "mount": "mount", "sh": "dash",
}

// cniFolders are where distributions put CNI plugins.
var cniFolders = []string{"/usr/lib/cni", "/opt/cni/bin", "/usr/libexec/cni"}

// Missing says why real nodes cannot run on this machine, all reasons that can be
// told without installing anything. Nil means that they can.
func Missing() error {
	if runtime.GOOS != "linux" {
		return fmt.Errorf("real nodes need Linux, this is %s", runtime.GOOS)
	}
	if os.Geteuid() != 0 {
		return errors.New("real nodes need root: they mount, make namespaces and cgroups")
	}
	var errs []error
	for program, debian := range packages {
		if _, err := exec.LookPath(program); err != nil {
			errs = append(errs, fmt.Errorf("the program %s is not installed (Debian: package %s)", program, debian))
		}
	}
	if _, err := cniPlugins(); err != nil {
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	if err := tryNamespaces(); err != nil {
		return err
	}
	return tryCgroups()
}

// cniPlugins is the folder with the CNI plugins that a node needs.
func cniPlugins() (string, error) {
	for _, dir := range cniFolders {
		found := true
		for _, plugin := range []string{"bridge", "host-local", "loopback"} {
			if _, err := os.Stat(filepath.Join(dir, plugin)); err != nil {
				found = false
			}
		}
		if found {
			return dir, nil
		}
	}
	return "", fmt.Errorf("no CNI plugins in %s (Debian: package containernetworking-plugins)",
		strings.Join(cniFolders, ", "))
}

// tryNamespaces makes what a run makes, and lets it go again.
func tryNamespaces() error {
	args := append(namespaces(), "sh", "-ec", "mount -t tmpfs none /run; ip link set lo up; ip link add probe type bridge")
	var output bytes.Buffer
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Stdout, cmd.Stderr = &output, &output
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("this machine does not let root make namespaces, mounts and bridges: %w: %s", err,
			bytes.TrimSpace(output.Bytes()))
	}
	return nil
}

func tryCgroups() error {
	if err := makeCgroup(prefix + "probe"); err != nil {
		return errors.Join(fmt.Errorf("this machine does not let root make cgroups: %w", err), removeCgroup(prefix+"probe"))
	}
	return removeCgroup(prefix + "probe")
}
