package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

const modulePath = "kusionstack.io/kuperator"

// compile builds a static program of cmd/ for a platform and returns its path below work. Nothing of the machine gets
// into it: no paths, no state of git, none of the user's flags.
func (j *job) compile(ctx context.Context, component string, platform v1.Platform, work string) (string, error) {
	into := filepath.Join(work, platform.OS+"-"+platform.Architecture, component)
	versioned := "bootstrap"
	if component == pluginName {
		versioned = "plugin"
	}
	ldflags := "-s -w -X " + modulePath + "/internal/" + versioned + ".version=" + j.version
	cmd := exec.CommandContext(ctx, "go", "build", "-buildvcs=false", "-mod=readonly", "-tags", j.tags,
		"-ldflags", ldflags,
		"-o", into, "./cmd/"+component)
	cmd.Dir = j.root
	cmd.Env = append(os.Environ(),
		"GOOS="+platform.OS, "GOARCH="+platform.Architecture, "GOAMD64=v1", "GOARM64=v8.0",
		"CGO_ENABLED=0", "GOFLAGS=-trimpath", "GOEXPERIMENT=", "GOWORK=off", "GOFIPS140=off")
	if output, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("go build for %s: %w\n%s", platform, err, bytes.TrimSpace(output))
	}
	return into, nil
}

// fileName is what a platform is called in file names.
func fileName(platform v1.Platform) string {
	return strings.ReplaceAll(platform.String(), "/", "-")
}
