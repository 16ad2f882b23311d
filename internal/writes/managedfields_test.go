package writes

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestAPatchThatClearsManagedFields(t *testing.T) {
	for given, want := range map[string]string{
		`{"metadata":{"labels":{"a":null},"uid":"u"},"spec":{"n":1.50}}`: `{"metadata":{"labels":{"a":null},"managedFields":[{}],"uid":"u"},"spec":{"n":1.50}}`,
		`{"spec":{}}`: `{"metadata":{"managedFields":[{}]},"spec":{}}`,
	} {
		out, err := ClearFields([]byte(given))
		require.NoError(t, err)
		require.Equal(t, want, string(out))
	}
	for _, broken := range []string{`[]`, `{"metadata":[]}`} {
		_, err := ClearFields([]byte(broken))
		require.Error(t, err)
	}
}
