package child

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"syscall"
)

// attributes ties a child to the life of its parent, or frees it of it. Neither
// hears the terminal's ^C: the parent ends its children in its own order.
func attributes(detached bool) *syscall.SysProcAttr {
	if detached {
		return &syscall.SysProcAttr{Setsid: true}
	}
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// busy reports whether a thread of the process is on a core or waits for one.
func busy(pid int) bool {
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	if err != nil {
		return false
	}
	return slices.ContainsFunc(threads, func(path string) bool {
		fields, err := statOf(path)
		return err == nil && fields[state][0] == 'R'
	})
}

// Places in what statOf returns.
const state, startTime = 0, 22 - 3

// statOf returns the fields of a stat file of /proc, from field 3, the state, on.
func statOf(path string) ([][]byte, error) {
	stat, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	// The second field, the command in parentheses, may hold spaces.
	end := bytes.LastIndexByte(stat, ')')
	fields := bytes.Fields(stat[end+1:])
	if end < 0 || len(fields) <= startTime {
		return nil, fmt.Errorf("unexpected %s", path)
	}
	return fields, nil
}

// identityOf returns what a later process with the same id cannot have: the
// boot and the clock tick at which it started. A process that has ended but is
// not yet reaped counts as gone.
func identityOf(pid int) (string, error) {
	fields, err := statOf(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return "", err
	}
	if s := fields[state][0]; s == 'Z' || s == 'X' {
		return "", errors.New("the process has ended")
	}
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%s/%s", bytes.TrimSpace(boot), fields[startTime]), nil
}
