package monitoring

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"kusionstack.io/kuperator/internal/metric"
)

func TestMetricsAreSound(t *testing.T) {
	names := map[string]string{}
	check := func(owner string, metrics []metric.Metric) {
		require.NotEmpty(t, metrics, owner)
		for _, m := range metrics {
			assert.NoError(t, m.Check(), owner)
			assert.Empty(t, names[m.Name], "%s is declared twice", m.Name)
			names[m.Name] = owner
		}
	}
	check("every binary", Common())
	for _, p := range Programs() {
		check(p.Name, p.Metrics)
	}
}

func TestFilesAreUpToDate(t *testing.T) {
	files, err := Files()
	require.NoError(t, err)
	for _, f := range files {
		content, err := os.ReadFile(filepath.Join("..", "..", f.Path))
		require.NoError(t, err)
		assert.Equal(t, string(f.Content), string(content), "%s is not what make generate writes", f.Path)
	}
}
