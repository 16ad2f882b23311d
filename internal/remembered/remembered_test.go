package remembered_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"

	"kusionstack.io/kuperator/internal/remembered"
)

func TestMap(t *testing.T) {
	var m remembered.Map[int]
	key := types.NamespacedName{Namespace: "shop", Name: "web"}
	require.Nil(t, m.Find(key, "1"))
	require.Nil(t, m.Find(key, ""))
	*m.Of(key, "1") = 7
	require.Equal(t, 7, *m.Of(key, "1"))
	require.Equal(t, 7, *m.Find(key, "1"))
	require.Equal(t, 7, *m.Find(key, ""), "any of the name")
	require.Nil(t, m.Find(key, "2"))
	require.Zero(t, *m.Of(key, "2"), "another one of the same name")
	require.Nil(t, m.Find(key, "1"))
	m.Forget(key)
	require.Nil(t, m.Find(key, ""))
}
