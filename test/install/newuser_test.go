package install

import (
	"bytes"
	"context"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"kusionstack.io/kuperator/internal/testkit/pages"
)

// fill has TestANewUser write into the page what commands print whose output it shows as "?".
var fill = flag.Bool("fill", false, `write the output of commands into docs/first-hour.md where it shows "?"`)

// firstHour is the page that the new user follows.
const firstHour = "docs/first-hour.md"

// otherwise are commands of the page that the new user of the test runs in another form, each with the test that runs
// them as they are: images of five platforms take too long here, and nothing pulls them.
var otherwise = map[string]string{
	// make test-release
	"make release REPOSITORY=registry.example.com/kuperator": "mkdir -p bin/release && " +
		"touch bin/release/kubectl-kuperator_linux_amd64.tar.gz && " +
		"go run ./hack/release -repository registry.example.com/kuperator",
	// make test-images
	"make images PUSH=registry.example.com/kuperator": "true",
}

// TestANewUser follows the page of the first hour in a fresh clone and an empty cluster, without a step that the page
// does not name, and compares what commands print with what it shows. What the cluster would do, the test does: run the
// programs of the Deployments that are installed.
func TestANewUser(t *testing.T) {
	long(t)
	w := newWorld(t)
	w.namespaces(t, storyNamespace) // where the test looks whether webhook-server is asked
	clone := filepath.Join(t.TempDir(), "kuperator")
	root, err := filepath.Abs(filepath.Join("..", ".."))
	require.NoError(t, err)
	out, err := exec.CommandContext(t.Context(), "git", "clone", "--quiet", "--no-hardlinks", root, clone).CombinedOutput()
	require.NoError(t, err, string(out))

	source, err := os.ReadFile(filepath.Join(root, firstHour))
	require.NoError(t, err)
	steps := pages.Steps(pages.Read(firstHour, source))
	require.Greater(t, len(steps), 30)
	user := w.newUser(t, clone)
	printed := make([]string, len(steps))
	for i, step := range steps {
		command := strings.TrimSpace(step.Command)
		t.Logf("%s:%d $ %s", firstHour, step.Line, command)
		out, err := user.run(t, command)
		printed[i] = out
		require.Equal(t, step.FailsByDesign(), err != nil && !*fill, "%s:%d: %s\n%s%v", firstHour, step.Line, command,
			out, err)
		if *fill {
			continue
		}
		if line := pages.Missing(step.Shown, out); line != "" {
			t.Errorf("%s:%d: %s\ndid not print, or not in this order,\n%s\nbut\n%s", firstHour, step.Line, command, line, out)
		}
	}
	if *fill {
		filled := pages.Fill(string(source), steps, printed)
		require.NoError(t, os.WriteFile(filepath.Join(root, firstHour), []byte(filled), 0o644))
	}
}

// newUser is who follows the page.
type newUser struct {
	w           *world
	dir         string
	environment []string
	programs    map[string]*program
}

// newUser gives a user a shell with kubectl, the kubeconfig of an administrator and a folder for programs.
func (w *world) newUser(t *testing.T, clone string) *newUser {
	t.Helper()
	bin, home := t.TempDir(), t.TempDir()
	require.NoError(t, os.Symlink(w.cluster.KubectlPath(), filepath.Join(bin, "kubectl")))
	config, err := os.ReadFile(w.cluster.AdminKubeconfig)
	require.NoError(t, err)
	kubeconfig := filepath.Join(home, "kubeconfig")
	require.NoError(t, os.WriteFile(kubeconfig, config, 0o600))
	return &newUser{w: w, dir: clone, environment: append(os.Environ(), "KUBECONFIG="+kubeconfig, "KUBERC=off",
		"GOBIN="+bin, "PATH="+bin+string(filepath.ListSeparator)+os.Getenv("PATH"))}
}

// run runs a command of the page, then does what nodes would do after it.
func (u *newUser) run(t *testing.T, command string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Minute)
	defer cancel()
	text := command
	if other, ok := otherwise[command]; ok {
		text = other
	}
	shell := exec.CommandContext(ctx, "bash", "-c", "set -eu -o pipefail\n"+text)
	shell.Dir, shell.Env = u.dir, u.environment
	var out bytes.Buffer
	shell.Stdout, shell.Stderr = &out, &out
	err := shell.Run()
	switch {
	case strings.HasPrefix(command, "kubectl apply") && strings.Contains(command, "/install-"):
		u.stop(t)
		u.programs = u.w.start(t, system)
	case strings.HasPrefix(command, "kubectl delete") && strings.Contains(command, "/install-"):
		u.stop(t)
	}
	return out.String(), err
}

// stop ends the programs of the Deployments that are gone or changed.
func (u *newUser) stop(t *testing.T) {
	t.Helper()
	for _, p := range u.programs {
		p.stop(t)
	}
	u.programs = nil
}
