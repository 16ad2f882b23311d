package binaries

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
)

const (
	// envtestVariable names the folder of binaries of controller-runtime's envtest.
	envtestVariable = "KUBEBUILDER_ASSETS"
)

// envtestRoles are what a folder of envtest's has. The rest of a control plane is compiled.
var envtestRoles = []string{Etcd, KubeAPIServer, Kubectl}

// readyMade is a folder with programs of a control plane that were not built here.
type readyMade struct {
	dir      string
	version  string // of its kube-apiserver, such as v1.37.0
	complete bool   // it has all that a folder of Assets has
}

// machinesControlPlane is the control plane of the version that is chosen, with what the machine has of it. It says on
// progress what it takes, and why not what it does not take.
func machinesControlPlane(ctx context.Context, progress io.Writer) (recipe, error) {
	wanted, err := controlPlane("")
	if err != nil {
		return recipe{}, err
	}
	if cached, err := wanted.cached(ctx); cached || err != nil {
		return wanted, err
	}
	release, err := ReleaseOf("")
	if err != nil {
		return recipe{}, err
	}
	found := findReadyMade(readyMadeFolders(os.Getenv, runtime.GOOS), func(program string) (string, error) {
		out, err := exec.CommandContext(ctx, program, "--version").Output()
		return string(out), err
	})
	best, text := choose(found, release.minor)
	if text != "" {
		fmt.Fprintln(progress, text)
	}
	switch {
	case best == nil:
		return wanted, nil
	case best.complete:
		return recipe{given: best.dir}, nil
	default:
		return controlPlaneBeside("", best.dir)
	}
}

// readyMadeFolders are where the binaries of envtest may be: the folder that a variable names, those of setup-envtest,
// and the one of older versions.
func readyMadeFolders(environment func(string) string, system string) []string {
	var folders []string
	if given := environment(envtestVariable); given != "" {
		folders = append(folders, given)
	}
	home := environment("HOME")
	store := filepath.Join(home, ".local", "share", "kubebuilder-envtest")
	switch {
	case environment("XDG_DATA_HOME") != "":
		store = filepath.Join(environment("XDG_DATA_HOME"), "kubebuilder-envtest")
	case system == "darwin":
		store = filepath.Join(home, "Library", "Application Support", "io.kubebuilder.envtest")
	}
	installed, _ := filepath.Glob(filepath.Join(store, "k8s", "*"))
	slices.Reverse(installed) // the newest first
	return append(append(folders, installed...), "/usr/local/kubebuilder/bin")
}

// findReadyMade returns the folders that have what envtest has.
func findReadyMade(folders []string, versionOf func(program string) (string, error)) []readyMade {
	has := func(dir string, programs ...string) bool {
		return !slices.ContainsFunc(programs, func(program string) bool {
			info, err := os.Stat(filepath.Join(dir, program))
			return err != nil || !info.Mode().IsRegular() || info.Mode()&0o111 == 0
		})
	}
	var found []readyMade
	for _, dir := range folders {
		if !has(dir, envtestRoles...) {
			continue
		}
		version, err := versionOf(filepath.Join(dir, KubeAPIServer))
		if err != nil {
			continue // of another platform, perhaps
		}
		found = append(found, readyMade{dir: dir, version: strings.TrimPrefix(strings.TrimSpace(version), "Kubernetes "),
			complete: has(dir, append([]string{Kwok}, controlPlaneRoles...)...)})
	}
	return found
}

// choose returns the folder to take, nil if none fits, and says why. Only programs of the same minor version fit
// together.
func choose(found []readyMade, minor string) (*readyMade, string) {
	var fit *readyMade
	for i, candidate := range found {
		if strings.HasPrefix(candidate.version, "v"+minor+".") && (fit == nil || candidate.complete && !fit.complete) {
			fit = &found[i]
		}
	}
	switch {
	case fit != nil && fit.complete:
		return fit, fmt.Sprintf("using the control plane (Kubernetes %s) in %s", fit.version, fit.dir)
	case fit != nil:
		return fit, fmt.Sprintf("using %s (Kubernetes %s) in %s; what it lacks is compiled", strings.Join(envtestRoles, ", "),
			fit.version, fit.dir)
	case len(found) > 0:
		return nil, fmt.Sprintf("not using %s: it is Kubernetes %s, and this needs %s", found[0].dir, found[0].version, minor)
	default:
		return nil, ""
	}
}

func copyProgram(from, to string) error {
	source, err := os.Open(from)
	if err != nil {
		return err
	}
	defer source.Close()
	target, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY|os.O_EXCL, 0o755)
	if err != nil {
		return err
	}
	if _, err := io.Copy(target, source); err != nil {
		_ = target.Close()
		return fmt.Errorf("copying %s: %w", from, err)
	}
	return target.Close()
}
