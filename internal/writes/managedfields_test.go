package writes

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestAPatchThatReplacesManagedFields(t *testing.T) {
	for given, want := range map[string]string{
		`{"metadata":{"labels":{"a":null},"uid":"u"},"spec":{"n":1.50}}`: `{"metadata":{"labels":{"a":null},"managedFields":[{}],"uid":"u"},"spec":{"n":1.50}}`,
		`{"spec":{}}`: `{"metadata":{"managedFields":[{}]},"spec":{}}`,
	} {
		out, err := WithFields([]byte(given), NoFields)
		require.NoError(t, err)
		require.Equal(t, want, string(out))
	}
	for _, broken := range []string{`[]`, `{"metadata":[]}`} {
		_, err := WithFields([]byte(broken), NoFields)
		require.Error(t, err)
	}
}
