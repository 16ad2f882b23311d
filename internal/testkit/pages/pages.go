// Package pages reads the repository's Markdown pages as their readers see them: headings with their anchors, links,
// blocks of code and words in code. Tests hold what pages say against what is so.
package pages

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/yuin/goldmark"
	"github.com/yuin/goldmark/ast"
	"github.com/yuin/goldmark/extension"
	"github.com/yuin/goldmark/text"
)

// Page is one Markdown page.
type Page struct {
	// Path is relative to the repository's root, with slashes.
	Path string
	// Anchors are the fragments that a link may name, as GitHub makes them of headings.
	Anchors []string
	// Links are the targets of links and images, as written.
	Links []string
	// Blocks are the fenced blocks of code, in order.
	Blocks []Block
	// Words are the spans of code within sentences and tables, in order. Those of a section "Removed", as a changelog
	// has it, are left out: they name what is there no longer.
	Words []string
}

// Block is a fenced block of code.
type Block struct {
	// Line is where its text begins, from 1.
	Line int
	// Language is the first word after the fence, "" if there is none; Note is the rest.
	Language, Note string
	// Text is what is between the fences.
	Text string
}

// Read parses a page.
func Read(path string, source []byte) Page {
	p := Page{Path: filepath.ToSlash(path)}
	document := goldmark.New(goldmark.WithExtensions(extension.GFM)).Parser().Parse(text.NewReader(source))
	seen := map[string]int{}
	removed := false
	_ = ast.Walk(document, func(n ast.Node, entering bool) (ast.WalkStatus, error) { // the walker returns no error
		if !entering {
			return ast.WalkContinue, nil
		}
		switch n := n.(type) {
		case *ast.Heading:
			removed = plain(n, source) == "Removed"
			p.Anchors = append(p.Anchors, anchor(plain(n, source), seen))
		case *ast.Link:
			p.Links = append(p.Links, string(n.Destination))
		case *ast.Image:
			p.Links = append(p.Links, string(n.Destination))
		case *ast.CodeSpan:
			if !removed {
				p.Words = append(p.Words, plain(n, source))
			}
		case *ast.FencedCodeBlock:
			p.Blocks = append(p.Blocks, block(n, source))
		}
		return ast.WalkContinue, nil
	})
	return p
}

func block(n *ast.FencedCodeBlock, source []byte) Block {
	b := Block{Text: string(n.Lines().Value(source))}
	if n.Info != nil {
		b.Language, b.Note, _ = strings.Cut(strings.TrimSpace(string(n.Info.Value(source))), " ")
		b.Note = strings.TrimSpace(b.Note)
	}
	if n.Lines().Len() > 0 {
		b.Line = 1 + strings.Count(string(source[:n.Lines().At(0).Start]), "\n")
	}
	return b
}

// plain is the text of a node without its markup.
func plain(n ast.Node, source []byte) string {
	var b strings.Builder
	_ = ast.Walk(n, func(n ast.Node, entering bool) (ast.WalkStatus, error) {
		if t, ok := n.(*ast.Text); ok && entering {
			b.Write(t.Segment.Value(source))
			if t.SoftLineBreak() {
				b.WriteByte(' ')
			}
		}
		return ast.WalkContinue, nil
	})
	return b.String()
}

var notInAnchors = regexp.MustCompile(`[^\p{L}\p{N}_ -]`)

// anchor is the fragment that GitHub gives a heading; a second heading of the same text gets a number.
func anchor(heading string, seen map[string]int) string {
	name := strings.ReplaceAll(notInAnchors.ReplaceAllString(strings.ToLower(strings.TrimSpace(heading)), ""), " ", "-")
	n := seen[name]
	seen[name]++
	if n > 0 {
		return fmt.Sprintf("%s-%d", name, n)
	}
	return name
}

// All reads every page below root, sorted by path, without what is built or kept by git.
func All(root string) ([]Page, error) {
	var all []Page
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if path != root && slices.Contains([]string{".git", "bin", "node_modules"}, d.Name()) {
				return filepath.SkipDir
			}
			return nil
		}
		if filepath.Ext(path) != ".md" {
			return nil
		}
		source, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		relative, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		all = append(all, Read(relative, source))
		return nil
	})
	return all, err
}

// BrokenLinks are the relative links of a page that lead to no file, or to no heading of a page. all are the
// repository's pages.
func BrokenLinks(root string, page Page, all []Page) []string {
	var broken []string
	for _, target := range page.Links {
		if strings.Contains(target, "://") || strings.HasPrefix(target, "mailto:") {
			continue
		}
		file, fragment, _ := strings.Cut(target, "#")
		path := page.Path
		if file != "" {
			path = filepath.ToSlash(filepath.Join(filepath.Dir(page.Path), file))
		}
		if _, err := os.Stat(filepath.Join(root, path)); err != nil {
			broken = append(broken, target)
			continue
		}
		to := slices.IndexFunc(all, func(p Page) bool { return p.Path == path })
		if fragment != "" && (to < 0 || !slices.Contains(all[to].Anchors, fragment)) {
			broken = append(broken, target)
		}
	}
	return broken
}
