package binaries

import (
	"fmt"
	"os"
	"slices"
	"strings"
)

// VersionVariable names the environment variable that chooses the Kubernetes
// version of clusters whose Config does not, for example 1.30.
const VersionVariable = "KUPERATOR_KUBERNETES"

// Release is a Kubernetes version that hack/cluster builds.
type Release struct {
	minor   string // 1.37
	version string // as the control plane reports it; the modFile must require it
	modFile string // in hack/cluster
	// ShutdownTimeout: kube-controller-manager can be told to end at once.
	ShutdownTimeout bool
}

// releases begin with the one that is used unless another is asked for, and end
// with the oldest that the suite supports.
var releases = []Release{
	{minor: "1.37", version: KubernetesVersion, modFile: "go.mod", ShutdownTimeout: true},
	{minor: "1.36", version: "v1.36.3", modFile: "kubernetes-1.36.mod", ShutdownTimeout: true},
	{minor: OldestVersion, version: "v1.30.14", modFile: "kubernetes-1.30.mod"},
}

// OldestVersion is the oldest Kubernetes that the suite supports.
const OldestVersion = "1.30"

// Versions are the Kubernetes versions that can be run, the usual one first.
func Versions() []string {
	var all []string
	for _, r := range releases {
		all = append(all, r.minor)
	}
	return all
}

// ReleaseOf finds one of Versions; empty means the one that VersionVariable names or,
// if it is not set, the usual one.
func ReleaseOf(minor string) (Release, error) {
	if minor == "" {
		minor = os.Getenv(VersionVariable)
	}
	if minor == "" {
		return releases[0], nil
	}
	i := slices.IndexFunc(releases, func(r Release) bool { return r.minor == strings.TrimPrefix(minor, "v") })
	if i < 0 {
		return Release{}, fmt.Errorf("there is no recipe for Kubernetes %q, only for %s", minor,
			strings.Join(Versions(), ", "))
	}
	return releases[i], nil
}

// buildFlags are those of the go command.
func (r Release) buildFlags() []string {
	const pkg = "k8s.io/component-base/version."
	major, minor, _ := strings.Cut(r.minor, ".")
	ldflags := "-s -w -X " + pkg + "gitVersion=" + r.version + " -X " + pkg + "gitMajor=" + major + " -X " + pkg +
		"gitMinor=" + minor
	flags := []string{"-trimpath", "-buildvcs=false", "-mod=readonly", "-ldflags", ldflags}
	if r.modFile != "go.mod" {
		flags = append(flags, "-modfile="+r.modFile)
	}
	return flags
}

// modules are the files that name the release's modules, relative to hack/cluster.
func (r Release) modules() []string {
	return []string{r.modFile, strings.TrimSuffix(r.modFile, ".mod") + ".sum"}
}
