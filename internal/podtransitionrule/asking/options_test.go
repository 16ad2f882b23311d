package asking

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestOptions(t *testing.T) {
	o := DefaultOptions()
	require.NoError(t, o.Validate())
	o.Allow = []string{"fine.example.com", "10.0.0.0/99"}
	require.ErrorContains(t, o.Validate(), "--rule-webhook-allow: ")
	o = Options{}
	require.EqualError(t, o.Validate(),
		"--rule-webhook-timeout is 0s: give more than 0s\n--rule-webhook-concurrency is 0: give at least 1")
}
