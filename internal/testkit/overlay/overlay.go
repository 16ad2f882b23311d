// Package overlay has programs built from changed copies of sources, which `go build -overlay` takes in their place.
package overlay

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Overlay is a set of files in place of others. Make one with New.
type Overlay struct {
	testing.TB
	dir     string
	replace map[string]string
}

// New makes an empty one, whose files are kept in a folder that has no others.
func New(t testing.TB, dir string) *Overlay {
	t.Helper()
	require.NoError(t, os.MkdirAll(dir, 0o755))
	return &Overlay{TB: t, dir: dir, replace: map[string]string{}}
}

// Change replaces a text that is in a source, as changed so far, exactly once.
func (o *Overlay) Change(path, from, to string) {
	o.Helper()
	present := path
	if changed := o.replace[path]; changed != "" {
		present = changed
	}
	source, err := os.ReadFile(present)
	require.NoError(o, err)
	require.Equal(o, 1, strings.Count(string(source), from), "in %s there is once: %s", path, from)
	o.Put(path, strings.Replace(string(source), from, to, 1))
}

// Put has a source, which need not exist, say something else.
func (o *Overlay) Put(path, content string) {
	o.Helper()
	if o.replace[path] == "" {
		o.replace[path] = filepath.Join(o.dir, strconv.Itoa(len(o.replace))+"_"+filepath.Base(path))
	}
	require.NoError(o, os.WriteFile(o.replace[path], []byte(content), 0o600))
}

// Write returns the file to give to `go build -overlay`.
func (o *Overlay) Write() string {
	o.Helper()
	list, err := json.Marshal(map[string]any{"Replace": o.replace})
	require.NoError(o, err)
	path := filepath.Join(o.dir, "overlay.json")
	require.NoError(o, os.WriteFile(path, list, 0o600))
	return path
}
