package podops_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestEveryKeyIsDocumented reads the keys from the source and looks each up in docs/protocol.md.
func TestEveryKeyIsDocumented(t *testing.T) {
	page, err := os.ReadFile("../../docs/protocol.md")
	require.NoError(t, err)
	file, err := parser.ParseFile(token.NewFileSet(), "keys.go", nil, 0)
	require.NoError(t, err)
	found := 0
	ast.Inspect(file, func(n ast.Node) bool {
		lit, ok := n.(*ast.BasicLit)
		if !ok || lit.Kind != token.STRING {
			return true
		}
		if key, err := strconv.Unquote(lit.Value); err == nil && strings.Contains(key, "kusionstack.io") &&
			!strings.HasPrefix(key, ".") {
			found++
			assert.Contains(t, string(page), "`"+key, "docs/protocol.md does not list the key")
		}
		return true
	})
	assert.Greater(t, found, 20)
}
