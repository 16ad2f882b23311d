package pages

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

const page = "# The `Pod` protocol: what's next?\n\nSee [there](other.md#made-up), [here](#the-pod-protocol-whats-next), [gone](gone.md),\n" +
	"[out](https://example.com/#x) and `spec.replicas`.\n\n## Again\n\n## Again\n\n| a | b |\n| --- | --- |\n| `x` | [y](#again-1) |\n\n" +
	"```yaml fragment=CollaSet\nspec: {}\n# no heading\n```\n\n- in a list:\n\n  ```console\n  $ ls\n  ```\n"

func TestRead(t *testing.T) {
	p := Read("docs/page.md", []byte(page))
	require.Equal(t, []string{"the-pod-protocol-whats-next", "again", "again-1"}, p.Anchors)
	require.Equal(t, []string{"other.md#made-up", "#the-pod-protocol-whats-next", "gone.md", "https://example.com/#x",
		"#again-1"}, p.Links)
	require.Equal(t, []string{"Pod", "spec.replicas", "x"}, p.Words)
	require.Equal(t, []Block{
		{Line: 15, Language: "yaml", Note: "fragment=CollaSet", Text: "spec: {}\n# no heading\n"},
		{Line: 22, Language: "console", Text: "$ ls\n"},
	}, p.Blocks)
}

func TestWhatIsRemovedIsNotNamed(t *testing.T) {
	p := Read("CHANGELOG.md", []byte("### Added\n\n- `new`\n\n### Removed\n\n- `old`\n\n### Fixed\n\n- `mended`\n"))
	require.Equal(t, []string{"new", "mended"}, p.Words)
}

func TestBrokenLinks(t *testing.T) {
	root := t.TempDir()
	require.NoError(t, os.MkdirAll(filepath.Join(root, "docs"), 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(root, "docs", "page.md"), []byte(page), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(root, "docs", "other.md"), []byte("# Other\n"), 0o600))
	all, err := All(root)
	require.NoError(t, err)
	require.Len(t, all, 2)
	require.Equal(t, "docs/page.md", all[1].Path)
	require.Equal(t, []string{"other.md#made-up", "gone.md"}, BrokenLinks(root, all[1], all))
	require.Empty(t, BrokenLinks(root, all[0], all))
}
