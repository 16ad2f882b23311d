package archtest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// unusedWord is a row of the glossary's table of words that no identifier has.
var unusedWord = regexp.MustCompile("`([a-z]+)`")

// TestIdentifiersUseTheGlossary looks at all hand-written Go that ships, and at what it is tested with.
func TestIdentifiersUseTheGlossary(t *testing.T) {
	unused := unusedWords(t)
	require.Contains(t, unused, "victim")
	looked := 0
	for _, dir := range []string{"api", "cmd", "internal", "examples", "hack"} {
		require.NoError(t, filepath.WalkDir(filepath.Join(root, dir), func(path string, entry fs.DirEntry, err error) error {
			switch {
			case err != nil:
				return err
			case entry.IsDir() && path == filepath.Join(root, "api", "client"):
				return fs.SkipDir
			case entry.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go"):
				return nil
			}
			looked++
			for name, word := range identifiersWith(t, path, nil, unused) {
				t.Errorf("%s: %s has the word %q: docs/glossary.md tells another", path, name, word)
			}
			return nil
		}))
	}
	require.Greater(t, looked, 100)
}

func TestAnUnusedWordIsFound(t *testing.T) {
	found := identifiersWith(t, "x.go", "package x\n\nfunc chooseVictims(victimOf int) {}\n", []string{"victim"})
	require.Equal(t, map[string]string{"victimOf": "victim", "chooseVictims": "victim"}, found)
}

// unusedWords are the first cells of the glossary's table.
func unusedWords(t *testing.T) (words []string) {
	t.Helper()
	page, err := os.ReadFile(filepath.Join(root, "docs", "glossary.md"))
	require.NoError(t, err)
	_, table, ok := strings.Cut(string(page), "## Words that are not used")
	require.True(t, ok)
	for line := range strings.Lines(table) {
		if cells := strings.Split(line, "|"); len(cells) > 1 {
			for _, match := range unusedWord.FindAllStringSubmatch(cells[1], -1) {
				words = append(words, match[1])
			}
		}
	}
	return words
}

// identifiersWith are the identifiers of a file that have one of the words, in singular or plural, with that word.
func identifiersWith(t *testing.T, path string, source any, unused []string) map[string]string {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), path, source, parser.SkipObjectResolution)
	require.NoError(t, err)
	found := map[string]string{}
	ast.Inspect(file, func(n ast.Node) bool {
		if id, ok := n.(*ast.Ident); ok {
			for _, word := range wordsOf(id.Name) {
				for _, one := range []string{word, strings.TrimSuffix(word, "s"), strings.TrimSuffix(word, "es")} {
					if slices.Contains(unused, one) {
						found[id.Name] = one
					}
				}
			}
		}
		return true
	})
	return found
}

var wordOfName = regexp.MustCompile(`[A-Z]+(?:[^a-z]|$)|[A-Z]?[a-z]+`)

// wordsOf are the words of a name in camel case, in small letters.
func wordsOf(name string) []string {
	words := wordOfName.FindAllString(name, -1)
	for i := range words {
		words[i] = strings.ToLower(words[i])
	}
	return words
}
