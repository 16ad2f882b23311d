package plugin

import (
	"bytes"
	"encoding/json"
	"flag"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"

	"kusionstack.io/kuperator/internal/insight"
)

var update = flag.Bool("update", false, "write the golden files anew")

// golden compares a text with a file.
func golden(t *testing.T, path, got string) {
	t.Helper()
	if *update {
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(t, os.WriteFile(path, []byte(got), 0o644))
	}
	want, err := os.ReadFile(path)
	require.NoError(t, err, "write it with -update")
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-want +got; -update takes it over):\n%s", path, diff)
	}
}

func printed(f func(io.Writer)) string {
	var out bytes.Buffer
	f(&out)
	return out.String()
}

// TestTexts prints what insight found in each of its situations, as why and status do.
func TestTexts(t *testing.T) {
	answers, err := filepath.Glob("../insight/testdata/*/answer.json")
	require.NoError(t, err)
	require.Greater(t, len(answers), 10)
	for _, path := range answers {
		situation := filepath.Base(filepath.Dir(path))
		t.Run(situation, func(t *testing.T) {
			var answer insight.Answer
			var fleet insight.Fleet
			read(t, path, &answer)
			read(t, filepath.Join(filepath.Dir(path), "fleet.json"), &fleet)
			golden(t, filepath.Join("testdata", "why", situation+".txt"), printed(func(w io.Writer) { writeAnswer(w, answer) }))
			golden(t, filepath.Join("testdata", "status", situation+".txt"),
				printed(func(w io.Writer) { writeFleet(w, fleet, statusOptions{pods: podsMoving, limit: 20}) }))
		})
	}
}

// read also shows that the JSON form loses nothing that a reader needs.
func read(t *testing.T, path string, into any) {
	t.Helper()
	raw, err := os.ReadFile(path)
	require.NoError(t, err)
	decoder := json.NewDecoder(bytes.NewReader(raw))
	decoder.DisallowUnknownFields()
	require.NoError(t, decoder.Decode(into))
}
