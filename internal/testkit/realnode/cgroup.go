package realnode

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

const (
	cgroupRoot    = "/sys/fs/cgroup"
	cgroupRetries = 50 // a cgroup may be busy for a moment after its last process has ended
	cgroupPause   = 100 * time.Millisecond
)

// controllers are what kubelet needs of a cgroup tree of version 2.
var controllers = []string{"cpu", "memory", "pids"}

// hierarchies are the folders below which a cgroup is to be made: one with
// cgroups of version 2, one per controller with version 1 (and perhaps one of
// version 2 without controllers, which runc knows).
func hierarchies() (dirs []string, unified bool, err error) {
	if _, err := os.Stat(filepath.Join(cgroupRoot, "cgroup.controllers")); err == nil {
		return []string{cgroupRoot}, true, nil
	}
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		return nil, false, err
	}
	for line := range strings.Lines(string(mounts)) {
		if fields := strings.Fields(line); len(fields) > 2 && (fields[2] == "cgroup" || fields[2] == "cgroup2") &&
			strings.HasPrefix(fields[1], cgroupRoot+"/") {
			dirs = append(dirs, fields[1])
		}
	}
	if len(dirs) == 0 {
		return nil, false, fmt.Errorf("no cgroups are mounted below %s", cgroupRoot)
	}
	return dirs, false, nil
}

// makeCgroup makes a cgroup in every hierarchy, those above it too.
func makeCgroup(path string) error {
	dirs, unified, err := hierarchies()
	if err != nil {
		return err
	}
	for _, dir := range dirs {
		for part := range strings.SplitSeq(path, "/") {
			if unified {
				if err := enableControllers(dir); err != nil {
					return err
				}
			}
			dir = filepath.Join(dir, part)
			if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
				return err
			}
		}
	}
	return nil
}

// enableControllers lets children of a cgroup of version 2 have the controllers.
func enableControllers(dir string) error {
	file := filepath.Join(dir, "cgroup.subtree_control")
	enabled, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	for _, c := range controllers {
		if slices.Contains(strings.Fields(string(enabled)), c) {
			continue
		}
		if err := os.WriteFile(file, []byte("+"+c), 0o644); err != nil {
			return fmt.Errorf("enabling cgroup controller %s: %w", c, err)
		}
	}
	return nil
}

// removeCgroup removes a cgroup and those in it, from every hierarchy. None of
// them may have processes any more. One that is not there is no error.
func removeCgroup(path string) error {
	dirs, _, err := hierarchies()
	if err != nil {
		return err
	}
	var errs []error
	for _, dir := range dirs {
		errs = append(errs, removeTree(filepath.Join(dir, path)))
	}
	return errors.Join(errs...)
}

func removeTree(root string) error {
	var found []string
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.IsDir() {
			found = append(found, path)
		}
		return err
	})
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	slices.Reverse(found) // children first
	var errs []error
	for _, dir := range found {
		err := os.Remove(dir)
		for range cgroupRetries {
			if err == nil || errors.Is(err, os.ErrNotExist) {
				err = nil
				break
			}
			time.Sleep(cgroupPause)
			err = os.Remove(dir)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}
