package archtest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"iter"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"kusionstack.io/kuperator/internal/testkit/pages"
)

const root = "../../.."

func allPages(t *testing.T) []pages.Page {
	t.Helper()
	all, err := pages.All(root)
	if err != nil {
		t.Fatal(err)
	}
	if len(all) < 20 {
		t.Fatalf("only %d pages were looked at", len(all))
	}
	return all
}

func TestLinksInDocsLeadSomewhere(t *testing.T) {
	all := allPages(t)
	links := 0
	for _, page := range all {
		links += len(page.Links)
		for _, target := range pages.BrokenLinks(root, page, all) {
			t.Errorf("%s links to %s, which does not exist", page.Path, target)
		}
	}
	if links < 50 {
		t.Fatalf("only %d links were looked at", links)
	}
}

// TestEveryPageIsReached: a page that no other links to is not found by readers.
func TestEveryPageIsReached(t *testing.T) {
	all := allPages(t)
	reached := map[string]bool{"README.md": true}
	for range all { // as many steps as the longest way can have
		for _, page := range all {
			for _, target := range page.Links {
				if file, _, _ := strings.Cut(target, "#"); reached[page.Path] && file != "" {
					to := filepath.ToSlash(filepath.Join(filepath.Dir(page.Path), file))
					reached[to] = true
				}
			}
		}
	}
	for _, page := range all {
		if strings.HasPrefix(page.Path, "docs/") && !strings.HasPrefix(page.Path, "docs/design/") && !reached[page.Path] {
			t.Errorf("%s cannot be reached from README.md: link it in docs/README.md", page.Path)
		}
	}
}

// strayBlocks are the blocks of a page that are not part of the file that they name. If one in Go names a file, those
// in Go all have to, so that whatever the page shows compiles.
func strayBlocks(root string, page pages.Page) []string {
	quotes := slices.ContainsFunc(page.Blocks, func(b pages.Block) bool { return b.Language == "go" && quoted(b) != "" })
	var stray []string
	for _, b := range page.Blocks {
		first, _, _ := strings.Cut(b.Text, "\n")
		if quoted(b) == "" {
			if quotes && b.Language == "go" {
				stray = append(stray, first+": names no file")
			}
			continue
		}
		file, err := os.ReadFile(filepath.Join(root, quoted(b)))
		if err != nil || !strings.Contains(string(file), b.Text) {
			stray = append(stray, first+": is not part of "+quoted(b))
		}
	}
	return stray
}

// quoted is the file that a block is part of, "" if it names none. Other notes are explained in
// docs/contributing/pages.md.
func quoted(b pages.Block) string {
	if filepath.Ext(b.Note) == "" || strings.ContainsAny(b.Note, "= ") {
		return ""
	}
	return b.Note
}

func TestCodeInDocsIsThatOfTheExamples(t *testing.T) {
	quotes := 0
	for _, page := range allPages(t) {
		for _, b := range page.Blocks {
			if strings.HasPrefix(quoted(b), "examples/adapter/") {
				quotes++
			}
		}
		for _, what := range strayBlocks(root, page) {
			t.Errorf("%s has a block that begins with %s", page.Path, what)
		}
	}
	if quotes < 8 {
		t.Fatalf("only %d blocks name a file of the example", quotes)
	}
}

func TestStrayBlockIsFound(t *testing.T) {
	text := "```go docs_test.go\npackage archtest\n```\n\n```go docs_test.go\npackage other\n```\n```sh\nls\n```\n```go\nfunc f()\n```\n```yaml nowhere.yaml\na: b\n```\n" +
		"```yaml fragment=Pod:spec\na: b\n```\n"
	want := []string{"package other: is not part of docs_test.go", "func f(): names no file",
		"a: b: is not part of nowhere.yaml"}
	if got := strayBlocks(".", pages.Read("page.md", []byte(text))); !slices.Equal(got, want) {
		t.Fatalf("found %q", got)
	}
	if got := strayBlocks(".", pages.Read("page.md", []byte("```go\nfunc f()\n```\n"))); len(got) > 0 {
		t.Fatalf("found %q on a page that quotes nothing", got)
	}
}

// These two read files of other packages. Beside the tests of those packages they would have Go repeat all of them for a
// change of the pages.

// TestFailuresAreListed compares the list in docs/contributing/known-failures.md with the tests that there are.
func TestFailuresAreListed(t *testing.T) {
	name := regexp.MustCompile(`TestFailure([0-9]{2})[A-Z][A-Za-z]+`)
	text, err := os.ReadFile(filepath.Join(root, "docs", "contributing", "known-failures.md"))
	require.NoError(t, err)
	listed := map[string]bool{}
	modes := map[string]bool{}
	for _, found := range name.FindAllStringSubmatch(string(text), -1) {
		listed[found[0]], modes[found[1]] = true, true
	}
	assert.Len(t, modes, 15)
	there := map[string]bool{}
	for _, folder := range []string{"internal/collaset", "internal/collaset/setplan", "internal/revision"} {
		files, err := filepath.Glob(filepath.Join(root, folder, "failuremodes_test.go"))
		require.NoError(t, err)
		require.Len(t, files, 1, folder)
		code, err := os.ReadFile(files[0])
		require.NoError(t, err)
		for _, found := range regexp.MustCompile(`(?m)^func (TestFailure[0-9]{2}\w+)`).FindAllStringSubmatch(
			string(code), -1) {
			there[found[1]] = true
		}
	}
	assert.Equal(t, there, listed)
}

// TestEveryKeyOfTheProtocolIsDocumented reads the keys from the source of api/podops and looks each up in docs/protocol.md.
func TestEveryKeyOfTheProtocolIsDocumented(t *testing.T) {
	page, err := os.ReadFile(filepath.Join(root, "docs", "protocol.md"))
	require.NoError(t, err)
	file, err := parser.ParseFile(token.NewFileSet(), filepath.Join(root, "api", "podops", "keys.go"), nil, 0)
	require.NoError(t, err)
	found := 0
	ast.Inspect(file, func(n ast.Node) bool {
		lit, ok := n.(*ast.BasicLit)
		if !ok || lit.Kind != token.STRING {
			return true
		}
		if key, err := strconv.Unquote(lit.Value); err == nil && strings.Contains(key, "kusionstack.io") &&
			!strings.HasPrefix(key, ".") {
			found++
			assert.Contains(t, string(page), "`"+key, "docs/protocol.md does not list the key")
		}
		return true
	})
	assert.Greater(t, found, 20)
}

// answersElsewhere are pages whose answers are of cases that the plugin's tests do not record.
var answersElsewhere = []string{"docs/kubectl-kuperator.md", "docs/deletion.md"}

// TestAnswersOfThePluginAreTrue: pages that no test executes show answers of kubectl kuperator's status and why as the
// plugin's own tests record them, with "..." for what is left out.
func TestAnswersOfThePluginAreTrue(t *testing.T) {
	recorded := map[string][]string{}
	for _, command := range []string{"status", "why"} {
		files, err := filepath.Glob(filepath.Join(root, "internal", "plugin", "testdata", command, "*.txt"))
		require.NoError(t, err)
		require.NotEmpty(t, files)
		for _, file := range files {
			text, err := os.ReadFile(file)
			require.NoError(t, err)
			recorded[command] = append(recorded[command], "\n"+string(text))
		}
	}
	seen := 0
	for _, page := range allPages(t) {
		if !strings.HasPrefix(page.Path, "docs/") || slices.Contains(answersElsewhere, page.Path) ||
			page.Path == "docs/first-hour.md" || // test/install executes that one, and test/docs those folders
			slices.Contains([]string{"docs/features", "docs/migrate", "docs/sdk"}, filepath.Dir(page.Path)) {
			continue
		}
		for _, b := range page.Blocks {
			for command, answer := range answersOf(b.Text) {
				seen++
				if !slices.ContainsFunc(recorded[command], func(text string) bool { return hasAll(text, answer) }) {
					t.Errorf("%s:%d shows an answer of kubectl kuperator %s that internal/plugin/testdata does not have:\n%s",
						page.Path, b.Line, command, answer)
				}
			}
		}
	}
	assert.Greater(t, seen, 10)

	some := recorded["why"][0]
	assert.True(t, hasAll(some, "...\n"+strings.Split(some, "\n")[1]+"\n...\n"))
	assert.False(t, hasAll(some, "Pod shop/web-a  Dancing  on n1\n"))
}

var pluginCommand = regexp.MustCompile(`^\$ kubectl kuperator (status|why)\b[^|]*$`)

// answersOf yields what a block shows as printed by kubectl kuperator status and why, where it shows anything.
func answersOf(block string) iter.Seq2[string, string] {
	return func(yield func(string, string) bool) {
		command, answer := "", ""
		for _, line := range append(strings.Split(strings.TrimSuffix(block, "\n"), "\n"), "$ ") {
			if !strings.HasPrefix(line, "$ ") {
				answer += line + "\n"
				continue
			}
			if command != "" && answer != "" && !yield(command, answer) {
				return
			}
			command, answer = "", ""
			if m := pluginCommand.FindStringSubmatch(line); m != nil {
				command = m[1]
			}
		}
	}
}

// hasAll reports whether a text has what is between lines of "...", each part in whole lines, in order.
func hasAll(text, answer string) bool {
	for _, part := range strings.Split("\n"+answer, "\n...\n") {
		if part = strings.Trim(part, "\n"); part == "" {
			continue
		}
		_, after, found := strings.Cut(text, "\n"+part+"\n")
		if !found {
			return false
		}
		text = "\n" + after
	}
	return true
}
