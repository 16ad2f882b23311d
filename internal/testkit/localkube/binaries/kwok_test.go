package binaries

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestKwokIsMendedOrNotBuilt(t *testing.T) {
	mend := kwokMends[0]
	for name, tc := range map[string]struct {
		text, want, wantErr string
	}{
		"the defect":             {"func f() {\n\t" + mend.old + "}\n", "func f() {\n\t" + mend.new + "}\n", ""},
		"a version without it":   {"func f() {}\n", "", "0 times, not once"},
		"a version with it else": {mend.old + mend.old, "", "2 times, not once"},
	} {
		t.Run(name, func(t *testing.T) {
			source, into := t.TempDir(), filepath.Join(t.TempDir(), "source")
			original := filepath.Join(source, filepath.FromSlash(mend.file))
			require.NoError(t, os.MkdirAll(filepath.Dir(original), 0o700))
			require.NoError(t, os.WriteFile(original, []byte(tc.text), 0o400), "as in the module cache")
			err := mendKwok(source, into, kwokMends[:1])
			if tc.wantErr != "" {
				require.ErrorContains(t, err, tc.wantErr)
				return
			}
			require.NoError(t, err)
			mended, err := os.ReadFile(filepath.Join(into, filepath.FromSlash(mend.file)))
			require.NoError(t, err)
			require.Equal(t, tc.want, string(mended))
			unchanged, err := os.ReadFile(original)
			require.NoError(t, err)
			require.Equal(t, tc.text, string(unchanged))
		})
	}
}
