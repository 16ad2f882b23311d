package archtest

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
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

func TestLinksInDocsLeadSomewhere(t *testing.T) {
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
		for _, target := range brokenLinks(filepath.Dir(path), string(text)) {
			t.Errorf("%s links to %s, which does not exist", path, target)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if pages < 4 {
		t.Fatalf("only %d pages were looked at", pages)
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
