//go:build !linux

package child

import (
	"errors"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
)

// attributes keeps a child away from the terminal's ^C. Only Linux can tie it to
// the life of its parent.
func attributes(detached bool) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setsid: detached, Setpgid: !detached}
}

// busy is not known.
func busy(int) bool { return false }

// identityOf returns what a later process with the same id cannot have: the
// time of its start together with its command line.
func identityOf(pid int) (string, error) {
	out, err := exec.Command("ps", "-o", "stat=,lstart=,command=", "-p", strconv.Itoa(pid)).Output()
	if err != nil {
		return "", err
	}
	state, rest, _ := strings.Cut(strings.TrimSpace(string(out)), " ")
	if strings.HasPrefix(state, "Z") {
		return "", errors.New("the process has ended")
	}
	return strings.TrimSpace(rest), nil
}
