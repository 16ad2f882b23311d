package suite

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"kusionstack.io/kuperator/internal/testkit/localkube"
)

const modulePath = "kusionstack.io/kuperator"

// build builds components and returns their folder, one per checkout and kind of
// build, so that an unchanged component is not linked again. The overlay is a file
// for go build, or ""; what is built with one is put beside it.
func build(ctx context.Context, root string, race bool, overlay string, names ...string) (string, error) {
	cache, err := localkube.CacheDir()
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256([]byte(root))
	dir := filepath.Join(cache, "components-"+hex.EncodeToString(sum[:4]))
	// The flags of the control plane: what both have is compiled once.
	args := []string{"build", "-trimpath", "-buildvcs=false"}
	cgo := "CGO_ENABLED=0"
	if race {
		cgo = "CGO_ENABLED=1"
		dir += "-race"
		args = append(args, "-race")
	}
	if overlay != "" {
		dir = filepath.Join(filepath.Dir(overlay), "programs")
		args = append(args, "-overlay="+overlay)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	args = append(args, "-o", dir+string(filepath.Separator))
	if len(names) == 0 {
		return dir, nil
	}
	for _, name := range names {
		args = append(args, "./cmd/"+name)
	}
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = root
	cmd.Env = append(os.Environ(), cgo)
	var output bytes.Buffer
	cmd.Stdout, cmd.Stderr = &output, &output
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("go build: %w\n%s", err, bytes.TrimSpace(output.Bytes()))
	}
	return dir, nil
}

// moduleRoot finds the sources from the present folder upwards.
func moduleRoot() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		content, err := os.ReadFile(filepath.Join(dir, "go.mod"))
		if err == nil && bytes.HasPrefix(content, []byte("module "+modulePath+"\n")) {
			return dir, nil
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return "", errors.New("not inside a checkout of " + modulePath + ": run this from there")
		}
		dir = parent
	}
}
