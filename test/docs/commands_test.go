package docs

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"kusionstack.io/kuperator/internal/testkit/pages"
)

// pagePatience bounds the commands of one page. They take seconds to a minute; the machine may be busy.
const pagePatience = 15 * time.Minute

// elsewhere are commands that are not run here, each with where it is.
var elsewhere = map[string]string{
	"make test": "it is what runs this",
	"make demo": "with KUPERATOR_DOCS=all, by TestDemo",
	"make release REPOSITORY=registry.example.com/kuperator": "by make test-release",
	"make images PUSH=registry.example.com/kuperator":        "by make test-images, to a registry of its own",
}

// instead are commands that the test runs in another form. Components are processes outside the cluster here, for which
// there is an overlay; test/install applies the others. Programs are built beforehand, with the cache of this test.
var instead = map[string]string{
	"kubectl apply --server-side -f bin/release/prerequisites.yaml": "kubectl apply --server-side -k deploy/prerequisites",
	"kubectl apply --server-side -f bin/release/install-full.yaml":  "kubectl apply --server-side --force-conflicts -k deploy/overlays/local",
	`go build -C examples/action -o "$PWD/warm-cache" .`:            `ln -s "$(command -v warm-cache)" .`,
	`go build -C examples/operator -o "$PWD/retag" .`:               `ln -s "$(command -v retag)" .`,
	"go build -o webserver ./hack/webserver":                        `ln -s "$(command -v webserver)" .`,
}

// isRun reports whether a page's commands are run by the short form, or by the whole.
func isRun(page pages.Page) (short, long bool) {
	switch dir := filepath.Dir(page.Path); {
	case page.Path == "README.md", page.Path == "docs/quick-start.md":
		return true, true
	case dir == "docs/features", dir == "docs/migrate", dir == "docs/sdk":
		return false, true
	}
	return false, false
}

// TestCommands runs the commands of each page in their order, in its own namespace, and compares what they print with
// what the page shows.
func TestCommands(t *testing.T) {
	w := everything(t)
	bin := w.programs(t)
	ran, commands := 0, 0
	for _, page := range allPages(t) {
		short, long := isRun(page)
		if !short && (!long || !whole()) {
			continue
		}
		ran++
		steps := pages.Steps(page)
		commands += len(steps)
		t.Run(page.Path, func(t *testing.T) { w.runPage(t, page, steps, bin) })
	}
	t.Logf("%d pages with %d commands", ran, commands)
	require.GreaterOrEqual(t, ran, 2)
	require.Greater(t, commands, 10)
}

// programs returns a folder with the programs that pages use: the plugin of kubectl, and those that sources names.
func (w *world) programs(t *testing.T) string {
	t.Helper()
	bin := t.TempDir()
	build := []string{"build", "-o", bin + string(filepath.Separator)}
	for path := range sources {
		build = append(build, "./"+path)
	}
	if exists(filepath.Join(root, "cmd", "kubectl-kuperator")) {
		build = append(build, "./cmd/kubectl-kuperator")
	}
	inRoot(t, build...)
	if whole() { // what pages of docs/sdk build
		inRoot(t, "build", "-o", bin, "./hack/webserver")
		inRoot(t, "build", "-C", "examples/action", "-o", bin, ".")
		inRoot(t, "build", "-C", "examples/operator", "-o", bin, ".")
	}
	return bin
}

// inRoot runs the go command in the root of the sources.
func inRoot(t *testing.T, args ...string) {
	t.Helper()
	command := exec.CommandContext(t.Context(), "go", args...)
	command.Dir = root
	out, err := command.CombinedOutput()
	require.NoErrorf(t, err, "%s", out)
}

func (w *world) runPage(t *testing.T, page pages.Page, steps []pages.Step, bin string) {
	namespace := "docs-" + strings.TrimSuffix(strings.ToLower(filepath.Base(page.Path)), ".md")
	w.namespace(t, namespace)
	t.Cleanup(func() { w.clear(t, namespace) })

	out, err := w.run(t, namespace, bin, script(steps))
	printed := outputs(out)
	if err != nil {
		last := min(max(len(printed)-1, 0), len(steps)-1)
		t.Fatalf("%s:%d: %s\n%v; it printed\n%s", page.Path, steps[last].Line, steps[last].Command, err, printed[last])
	}
	require.Len(t, printed, len(steps))
	if *fill {
		filled(t, page, steps, printed)
		return
	}
	for i, s := range steps {
		if line := pages.Missing(s.Shown, printed[i]); line != "" {
			t.Errorf("%s:%d: %s\ndid not print, or not in this order,\n%s\nbut\n%s", page.Path, s.Line, s.Command, line,
				printed[i])
		}
	}
}

// run runs a script with kubectl in a namespace, in a copy of what commands of pages name.
func (w *world) run(t *testing.T, namespace, bin, script string) (string, error) {
	t.Helper()
	dir := t.TempDir()
	absolute, err := filepath.Abs(root)
	require.NoError(t, err)
	for _, name := range []string{"deploy", "examples", "go.mod", "go.sum", "api", "internal"} {
		require.NoError(t, os.Symlink(filepath.Join(absolute, name), filepath.Join(dir, name)))
	}
	config, err := os.ReadFile(w.AdminKubeconfig)
	require.NoError(t, err)
	kubeconfig := filepath.Join(dir, "kubeconfig")
	require.NoError(t, os.WriteFile(kubeconfig, config, 0o600))
	ctx, cancel := context.WithTimeout(t.Context(), pagePatience)
	defer cancel()
	commands := exec.CommandContext(ctx, "bash", "-c",
		"kubectl config set-context --current --namespace="+namespace+" >/dev/null\n"+script)
	commands.Dir = dir
	commands.WaitDelay = 10 * time.Second
	commands.Env = append(os.Environ(), "KUBECONFIG="+kubeconfig, "KUBERC=off", "HOME="+dir,
		"PATH="+strings.Join([]string{filepath.Dir(w.KubectlPath()), bin, os.Getenv("PATH")}, string(filepath.ListSeparator)))
	var out bytes.Buffer
	commands.Stdout, commands.Stderr = &out, &out
	err = commands.Run()
	return out.String(), err
}

const marker = "@@@ step"

// script runs the steps one after the other, in one shell, and stops at the first that does not end as the page shows.
func script(steps []pages.Step) string {
	var b strings.Builder
	b.WriteString("set -eu -o pipefail\ntrap 'kill $(jobs -p) 2>/dev/null || true' EXIT\n") // what a page leaves running
	for _, s := range steps {
		fmt.Fprintf(&b, "echo '%s'\n", marker)
		command := strings.TrimSpace(s.Command)
		if other, ok := instead[command]; ok {
			command = other
		}
		switch {
		case elsewhere[command] != "":
		case s.FailsByDesign():
			fmt.Fprintf(&b, "if %s; then echo 'it succeeded, and the page shows an error'; exit 1; fi\n", command)
		case strings.Contains(command, "--watch"): // ends when its reader has seen enough
			fmt.Fprintf(&b, "timeout 5 %s || [ $? = 124 ]\n", command)
		default:
			b.WriteString(command + "\n")
		}
	}
	return b.String()
}

// outputs splits what a script printed by its steps.
func outputs(out string) []string {
	parts := strings.Split(out, marker+"\n")
	return parts[1:]
}

// clear removes what a page left.
func (w *world) clear(t *testing.T, namespace string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 2*time.Minute)
	defer cancel()
	if t.Failed() {
		for _, args := range [][]string{{"get", "pods", "-o", "wide", "--show-labels"},
			{"get", "collasets,podtransitionrules", "-o", "yaml"}, {"get", "events"}} {
			out, err := w.Kubectl(ctx, append([]string{"-n", namespace}, args...)...)
			t.Logf("kubectl %s\n%s%v", strings.Join(args, " "), out, err)
		}
	}
	if _, err := w.Kubectl(ctx, "-n", namespace, "delete", "podtransitionrules,collasets,deployments", "--all",
		"--ignore-not-found", "--wait", "--timeout=60s"); err != nil {
		t.Logf("clearing namespace %s: %v", namespace, err)
	}
	if _, err := w.Kubectl(ctx, "delete", "namespace", namespace, "--wait=false"); err != nil {
		t.Logf("removing namespace %s: %v", namespace, err)
	}
}

// filled writes into the page what commands printed whose output it shows as "?".
func filled(t *testing.T, page pages.Page, steps []pages.Step, printed []string) {
	t.Helper()
	path := filepath.Join(root, page.Path)
	content, err := os.ReadFile(path)
	require.NoError(t, err)
	text := pages.Fill(string(content), steps, printed)
	require.NoError(t, os.WriteFile(path, []byte(text), 0o644))
}

// TestDemo runs what README offers first, as long as no other process runs it: it has its own cluster.
func TestDemo(t *testing.T) {
	if !whole() {
		t.Skip("takes minutes: make test-docs")
	}
	ctx, cancel := context.WithTimeout(t.Context(), pagePatience)
	defer cancel()
	demo := exec.CommandContext(ctx, "make", "-C", root, "demo")
	demo.WaitDelay = time.Minute
	out, err := demo.CombinedOutput()
	require.NoErrorf(t, err, "%s", out)
}
