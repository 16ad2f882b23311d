package cputime

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestAStopwatchCountsWorkAndNoWaiting(t *testing.T) {
	if _, err := Thread(); err != nil {
		t.Skip(err)
	}
	idle := Start()
	<-time.After(50 * time.Millisecond)
	require.Less(t, idle(), 25*time.Millisecond, "waiting takes no CPU")

	busy := Start()
	for sum, until := 0, time.Now().Add(50*time.Millisecond); time.Now().Before(until); {
		sum++
	}
	require.Positive(t, busy())
}
