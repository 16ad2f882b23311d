package main

import (
	"testing"

	"github.com/stretchr/testify/require"

	"kusionstack.io/kuperator/internal/testkit/localkube"
)

func TestANewClusterTellsThatItsNodesAreSimulatedAndHowToStopIt(t *testing.T) {
	config := localkube.Config{WithNodes: true, Nodes: 3}
	text := whatItIs(config, &place{name: "second"})
	require.Contains(t, text, "Its nodes (3) are simulated")
	require.Contains(t, text, "no container runs")
	require.Contains(t, text, "make cluster-down NAME=second")

	require.Contains(t, whatItIs(localkube.Config{}, &place{name: "second"}), "no nodes")
	require.Contains(t, whatItIs(config, &place{name: "second", dir: "/some/folder"}), "down --dir /some/folder")
}
