package archtest

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var link = regexp.MustCompile(`\]\(([^)\s#]+)(#[^)]*)?\)`)

// brokenLinks are the relative links of a Markdown text that lead nowhere.
func brokenLinks(dir, text string) []string {
	var broken []string
	for _, m := range link.FindAllStringSubmatch(text, -1) {
		if strings.Contains(m[1], "://") || strings.HasPrefix(m[1], "mailto:") {
			continue
		}
		if _, err := os.Stat(filepath.Join(dir, m[1])); err != nil {
			broken = append(broken, m[1])
		}
	}
	return broken
}

// eachPage calls f with every Markdown page of the repository.
func eachPage(t *testing.T, f func(path, text string)) {
	t.Helper()
	pages := 0
	err := filepath.WalkDir("../..", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() && (d.Name() == ".git" || d.Name() == "bin") {
			return skip(err)
		}
		if d.IsDir() || filepath.Ext(path) != ".md" {
			return nil
		}
		pages++
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		f(path, string(text))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if pages < 4 {
		t.Fatalf("only %d pages were looked at", pages)
	}
}

func TestLinksInDocsLeadSomewhere(t *testing.T) {
	eachPage(t, func(path, text string) {
		for _, target := range brokenLinks(filepath.Dir(path), text) {
			t.Errorf("%s links to %s, which does not exist", path, target)
		}
	})
}

// fence is a block of code: its language, the file that it is taken from or "", and its text.
var fence = regexp.MustCompile("(?ms)^```([a-z]+) *(\\S*)\n(.*?)^```$")

// strayBlocks are the blocks of a page that are not part of the file that they name. If one names a file, those in Go
// all have to, so that whatever the page shows compiles.
func strayBlocks(root, text string) []string {
	blocks := fence.FindAllStringSubmatch(text, -1)
	quotes := slices.ContainsFunc(blocks, func(b []string) bool { return b[2] != "" })
	var stray []string
	for _, b := range blocks {
		first, _, _ := strings.Cut(b[3], "\n")
		if b[2] == "" {
			if quotes && b[1] == "go" {
				stray = append(stray, first+": names no file")
			}
			continue
		}
		file, err := os.ReadFile(filepath.Join(root, b[2]))
		if err != nil || !strings.Contains(string(file), b[3]) {
			stray = append(stray, first+": is not part of "+b[2])
		}
	}
	return stray
}

func TestCodeInDocsIsThatOfTheExamples(t *testing.T) {
	quoted := 0
	eachPage(t, func(path, text string) {
		quoted += strings.Count(text, " examples/adapter/")
		for _, what := range strayBlocks("../..", text) {
			t.Errorf("%s has a block that begins with %s", path, what)
		}
	})
	if quoted < 8 {
		t.Fatalf("only %d blocks name a file of the example", quoted)
	}
}

func TestStrayBlockIsFound(t *testing.T) {
	text := "```go docs_test.go\npackage archtest\n```\n\n```go docs_test.go\npackage other\n```\n```sh\nls\n```\n```go\nfunc f()\n```\n```yaml nowhere.yaml\na: b\n```\n"
	want := []string{"package other: is not part of docs_test.go", "func f(): names no file", "a: b: is not part of nowhere.yaml"}
	if got := strayBlocks(".", text); !slices.Equal(got, want) {
		t.Fatalf("found %q", got)
	}
	if got := strayBlocks(".", "```go\nfunc f()\n```\n"); len(got) > 0 {
		t.Fatalf("found %q on a page that quotes nothing", got)
	}
}

func skip(err error) error {
	if err != nil {
		return err
	}
	return filepath.SkipDir
}

func TestBrokenLinkIsFound(t *testing.T) {
	got := brokenLinks(".", "see [a](docs_test.go), [b](nowhere.md#x) and [c](https://example.com)")
	if len(got) != 1 || got[0] != "nowhere.md" {
		t.Fatalf("found %v", got)
	}
}
