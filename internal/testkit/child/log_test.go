package child_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"kusionstack.io/kuperator/internal/testkit/child"
)

func TestLogs(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	require.Contains(t, child.LogTail(path, 2), "no such file")
	_, err := child.InLog(path, child.Crashes...)
	require.ErrorIs(t, err, os.ErrNotExist)

	require.NoError(t, os.WriteFile(path, []byte("one\ntwo\npanic: oh\ngoroutine 1\n\n"), 0o600))
	require.Equal(t, "panic: oh\ngoroutine 1", child.LogTail(path, 2))
	require.Equal(t, "one\ntwo\npanic: oh\ngoroutine 1", child.LogTail(path, 20))
	found, err := child.InLog(path, child.Crashes...)
	require.NoError(t, err)
	require.Equal(t, []string{"one\ntwo\npanic: oh\ngoroutine 1\n\n"}, found)
	found, err = child.InLog(path, "nothing of it")
	require.NoError(t, err)
	require.Empty(t, found)
}
