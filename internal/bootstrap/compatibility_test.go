package bootstrap

import (
	"testing"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestCompatibilityNamesItsValues(t *testing.T) {
	var c Compatibility
	fs := pflag.NewFlagSet("", pflag.ContinueOnError)
	c.AddTo(fs, "")
	require.NoError(t, fs.Parse([]string{"--compatibility="}))
	assert.Empty(t, c)
	require.NoError(t, fs.Parse([]string{"--compatibility=kuperator-v0.7"}))
	assert.Equal(t, KuperatorV07, c)
	require.ErrorContains(t, fs.Parse([]string{"--compatibility=v0.7"}), `"v0.7" is not known: use "kuperator-v0.7"`)
	assert.Equal(t, KuperatorV07, c)
}
