package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestTheTableOfAPageIsReplaced(t *testing.T) {
	page := filepath.Join(t.TempDir(), "page.md")
	require.NoError(t, os.WriteFile(page, []byte("before\n"+goalsBegin+"old\n"+goalsEnd+"after\n"), 0o600))
	require.NoError(t, replaceTable(page, "new\n"))
	content, err := os.ReadFile(page)
	require.NoError(t, err)
	require.Equal(t, "before\n"+goalsBegin+"new\n"+goalsEnd+"after\n", string(content))
	require.NoError(t, os.WriteFile(page, []byte("no place"), 0o600))
	require.ErrorContains(t, replaceTable(page, "new\n"), "no place for the table")
}
