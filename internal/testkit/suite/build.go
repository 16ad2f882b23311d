package suite

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"kusionstack.io/kuperator/internal/testkit/localkube"
	"kusionstack.io/kuperator/internal/testkit/localkube/binaries"
)

const (
	modulePath = "kusionstack.io/kuperator"

	// componentsPrefix begins the names of the cache's folders of components. So many of these are kept, those that were
	// used last, and of the others those that were used this lately: a suite that runs may restart what is in them.
	componentsPrefix = "components-"
	keptBuilds       = 4
	keptFor          = 2 * time.Hour
)

// build builds components and returns their folder, one per content of the sources and kind of build: what is there is
// not built again, for another checkout neither. The overlay is a file for go build, or ""; what is built with one is put
// beside it.
func build(ctx context.Context, root string, race bool, overlay string, names ...string) (string, error) {
	b := componentBuild{root: root, cgo: "CGO_ENABLED=0", flags: binaries.CompileFlags}
	if race {
		b.cgo, b.flags = "CGO_ENABLED=1", append(slices.Clone(b.flags), "-race")
	}
	if overlay != "" {
		b.flags = append(slices.Clone(b.flags), "-overlay="+overlay)
		dir := filepath.Join(filepath.Dir(overlay), "programs")
		return dir, b.into(ctx, dir, names)
	}
	cache, err := localkube.CacheDir()
	if err != nil {
		return "", err
	}
	key, err := b.key(ctx)
	if err != nil {
		return "", err
	}
	dir := filepath.Join(cache, componentsPrefix+key)
	missing := slices.DeleteFunc(slices.Clone(names), func(name string) bool {
		_, err := os.Stat(filepath.Join(dir, name))
		return err == nil
	})
	if err := b.into(ctx, dir, missing); err != nil {
		return "", err
	}
	if err := markUsed(dir); err != nil {
		return "", err
	}
	return dir, removeOldBuilds(cache, time.Now())
}

// markUsed keeps a folder of components in the cache for a while.
func markUsed(dir string) error {
	now := time.Now()
	return os.Chtimes(dir, now, now)
}

// componentBuild is how components are built.
type componentBuild struct {
	root, cgo string
	flags     []string
}

// into builds components into a folder. Each appears there when it is complete, so two processes may do it at once.
func (b componentBuild) into(ctx context.Context, dir string, names []string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if len(names) == 0 {
		return nil
	}
	work, err := os.MkdirTemp(dir, ".building-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	args := slices.Concat([]string{"build", "-ldflags=-s -w"}, b.flags, []string{"-o", work + string(filepath.Separator)})
	for _, name := range names {
		args = append(args, "./cmd/"+name)
	}
	if _, err := b.goOutput(ctx, args...); err != nil {
		return fmt.Errorf("building the components: %w", err)
	}
	for _, name := range names {
		if err := os.Rename(filepath.Join(work, name), filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	return nil
}

// key names the result by all that it depends on: the compiler, its flags, and the sources that are not tests.
func (b componentBuild) key(ctx context.Context) (string, error) {
	environment, err := b.goOutput(ctx, "env", "GOVERSION", "GOOS", "GOARCH", "GOFLAGS", "GOEXPERIMENT")
	if err != nil {
		return "", err
	}
	sum := sha256.New()
	fmt.Fprintln(sum, environment, b.cgo, b.flags)
	for _, source := range []string{"go.mod", "go.sum", "api", "cmd", "internal"} {
		err := filepath.WalkDir(filepath.Join(b.root, source), func(path string, entry fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			name, err := filepath.Rel(b.root, path)
			if err != nil {
				return err
			}
			name = filepath.ToSlash(name)
			if entry.IsDir() {
				if name == "internal/testkit" || entry.Name() == "testdata" {
					return filepath.SkipDir
				}
				return nil
			}
			if strings.HasSuffix(name, "_test.go") || !entry.Type().IsRegular() {
				return nil
			}
			content, err := os.ReadFile(path)
			fmt.Fprintf(sum, "%s %d\n", name, len(content))
			sum.Write(content)
			return err
		})
		if err != nil {
			return "", fmt.Errorf("hashing the sources of the components: %w", err)
		}
	}
	return hex.EncodeToString(sum.Sum(nil))[:16], nil
}

// goOutput runs the go command in the project, alone with its modules: a workspace would not be in the key.
func (b componentBuild) goOutput(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = b.root
	cmd.Env = append(os.Environ(), b.cgo, "GOWORK=off")
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("go %s: %w\n%s", args[0], err, bytes.TrimSpace(stderr.Bytes()))
	}
	return stdout.String(), nil
}

// removeOldBuilds removes folders of components from the cache that are not likely to be used again.
func removeOldBuilds(cache string, now time.Time) error {
	entries, err := os.ReadDir(cache)
	if err != nil {
		return err
	}
	used := map[string]time.Time{}
	for _, entry := range entries {
		if info, err := entry.Info(); err == nil && entry.IsDir() && strings.HasPrefix(entry.Name(), componentsPrefix) {
			used[entry.Name()] = info.ModTime()
		}
	}
	for _, name := range oldBuilds(used, now) {
		if err := os.RemoveAll(filepath.Join(cache, name)); err != nil {
			return fmt.Errorf("removing an old build of the components: %w", err)
		}
	}
	return nil
}

// oldBuilds are the folders to remove, by when each was used last.
func oldBuilds(used map[string]time.Time, now time.Time) []string {
	var names []string
	for name := range used {
		names = append(names, name)
	}
	slices.SortFunc(names, func(a, b string) int { return used[b].Compare(used[a]) })
	if len(names) <= keptBuilds {
		return nil
	}
	return slices.DeleteFunc(names[keptBuilds:], func(name string) bool { return now.Sub(used[name]) < keptFor })
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
