package yardstick

import (
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestAPieceOfWorkMeetsEveryLink(t *testing.T) {
	chain := newChain()
	at, met := uint32(0), 0
	for met < links {
		at = chain[at]
		met++
		if at == 0 {
			break
		}
	}
	require.Equal(t, links, met)
}

func TestLapsAreOfWhatWasDoneSince(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("the CPU time of a thread is not known here")
	}
	y := Start()
	defer y.Stop()
	require.Eventually(t, func() bool { return y.Lap() > 0 }, time.Minute, every)
	require.Zero(t, y.Lap(), "nothing was done since")
	require.Positive(t, Measure())
}
