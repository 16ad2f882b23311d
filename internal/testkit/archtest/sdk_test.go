package archtest_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"kusionstack.io/kuperator/internal/testkit/archtest"
	"kusionstack.io/kuperator/internal/testkit/pages"
)

// root is the folder of the sources.
func root(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs("../../..")
	require.NoError(t, err)
	return dir
}

// blocks are those of a page in a language, with a note, one after the other with an empty line between them.
func blocks(t *testing.T, page, language, note string) string {
	t.Helper()
	source, err := os.ReadFile(filepath.Join(root(t), page))
	require.NoError(t, err)
	var found []string
	for _, block := range pages.Read(page, source).Blocks {
		if block.Language == language && block.Note == note {
			found = append(found, block.Text)
		}
	}
	require.NotEmptyf(t, found, "%s has no block of %s %s", page, language, note)
	return strings.Join(found, "\n")
}

// shell runs commands in a folder, as another module sees them, and returns what they print.
func shell(t *testing.T, dir, commands string, env ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "bash", "-ec", commands)
	cmd.Dir, cmd.Env = dir, append(append(os.Environ(), "GOWORK=off"), env...)
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s\n%s", commands, out)
	return string(out)
}

// TestTheSDKInAnotherModule follows docs/sdk/import.md in a fresh module: it builds, and gets nothing of tests or of a
// cloud.
func TestTheSDKInAnotherModule(t *testing.T) {
	const page, mod = "docs/sdk/import.md", "GOFLAGS=-mod=mod -trimpath"
	module, commands := t.TempDir(), blocks(t, page, "bash", "")
	require.NoError(t, os.WriteFile(filepath.Join(module, "main.go"), []byte(blocks(t, page, "go", "")), 0o600))
	require.Contains(t, commands, "../kuperator")
	shell(t, module, "go mod init example.com/mine\n"+strings.ReplaceAll(commands, "../kuperator", root(t)), mod)
	for _, dependency := range strings.Fields(shell(t, module, "go list -deps .", mod)) {
		for _, no := range []string{"/testify", "/rapid", "alibaba", archtest.Module + "/internal/testkit"} {
			assert.NotContains(t, dependency, no)
		}
	}
}

// TestTheOperatorOfThePage puts the blocks of docs/sdk/operators.md together: they are the whole program of the sample.
func TestTheOperatorOfThePage(t *testing.T) {
	const program = "examples/operator/main.go"
	source, err := os.ReadFile(filepath.Join(root(t), program))
	require.NoError(t, err)
	require.Equal(t, string(source), blocks(t, "docs/sdk/operators.md", "go", program))
}

// TestSamplesBuildWhereTheyAreCopied follows each sample's guide and README in an empty folder beside a clone: it is
// copied and tested there, and its image is built.
func TestSamplesBuildWhereTheyAreCopied(t *testing.T) {
	for folder, guide := range map[string]string{"action": "docs/sdk/actions.md",
		"adapter": "docs/adapters/write-an-adapter.md", "operator": "docs/sdk/operators.md"} {
		t.Run(folder, func(t *testing.T) {
			t.Parallel()
			commands := blocks(t, "examples/"+folder+"/README.md", "bash", "")
			require.Contains(t, commands, blocks(t, guide, "bash", ""), "the guide begins as the README does")
			beside := t.TempDir()
			require.NoError(t, os.Symlink(root(t), filepath.Join(beside, "kuperator")))
			out := shell(t, beside, `docker() { echo "image $1 ${@: -2}"; }; kubectl() { :; }`+"\n"+commands+"pwd")
			lines := strings.Split(strings.TrimSpace(out), "\n")
			module := lines[len(lines)-1]
			tag := regexp.MustCompile(`(?m)^image build (\S+) \.$`).FindStringSubmatch(out)
			require.NotNil(t, tag, out)
			deployment, err := os.ReadFile(filepath.Join(module, "deployment.yaml"))
			require.NoError(t, err)
			assert.Contains(t, string(deployment), "image: "+tag[1]+" ", "the image that was built")
			assert.Contains(t, shell(t, module, imageOf(t, module)+" --help"), "kubeconfig")
		})
	}
}

// imageOf does what the Dockerfile of a module says, without a container engine: it builds the program of nothing but
// what is copied into the image. It returns the program's path.
func imageOf(t *testing.T, module string) string {
	t.Helper()
	file, err := os.ReadFile(filepath.Join(module, "Dockerfile"))
	require.NoError(t, err)
	step := func(pattern string) string {
		t.Helper()
		found := regexp.MustCompile("(?m)^"+pattern+"$").FindAllStringSubmatch(string(file), -1)
		require.Lenf(t, found, 1, "%s in\n%s", pattern, file)
		return found[0][1]
	}
	needs, err := os.ReadFile(filepath.Join(module, "go.mod"))
	require.NoError(t, err)
	assert.Contains(t, string(needs), "\ngo "+step(`FROM golang:(\S+) AS build`)+".")
	require.Equal(t, ".", step(`COPY ([^-].*) \.`), "the whole folder is copied")
	image := t.TempDir()
	require.NoError(t, os.CopyFS(image, os.DirFS(module)))
	program := step(`COPY --from=build (/[\w-]+) /\S+`)
	assert.Equal(t, program, step(`COPY --from=build /[\w-]+ (/\S+)`))
	assert.Equal(t, `["`+program+`"]`, step(`ENTRYPOINT (.*)`))
	assert.Equal(t, "65532:65532", step(`USER (.*)`), "the user of the Deployment")
	built := filepath.Join(t.TempDir(), "built")
	build := step(`RUN (.*)`)
	require.Contains(t, build, " -o "+program+" ")
	shell(t, image, strings.Replace(build, " -o "+program, " -o "+built, 1), "GOFLAGS=", "GOPROXY=off")
	return built
}
