package suite

import (
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestComponentsRunWithTheirOwnRightsUntilTheyAreKilled(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a cluster")
	}
	s, err := Start(t.Context(), Config{Name: "suite-test", Components: []string{Lifecycle, Webhook},
		Progress: t.Output()})
	require.NoError(t, err)
	defer func() { require.NoError(t, s.Stop()) }()

	require.ElementsMatch(t, []string{Lifecycle, Webhook}, s.Running())

	require.NoError(t, s.Kill(Lifecycle))
	require.Equal(t, []string{Webhook}, s.Running())
	require.NoError(t, s.Died(), "it was killed on purpose")
	require.NoError(t, s.Restart(t.Context(), Lifecycle))
	require.ElementsMatch(t, []string{Lifecycle, Webhook}, s.Running())

	require.NoError(t, s.WaitLeading(t.Context(), Lifecycle), "one that is ready need not have asked for the Lease yet")
	clients, err := s.Clients()
	require.NoError(t, err)
	lease, err := clients.CoordinationV1().Leases(Namespace).Get(t.Context(), Lifecycle, metav1.GetOptions{})
	require.NoError(t, err)
	require.Equal(t, Lifecycle, lease.Name)
	requests, err := s.Requests(time.Time{})
	require.NoError(t, err)
	require.Positive(t, Writes(requests)[Lifecycle].Writes, "its requests are counted under its own name")

	tails := s.LogTails()
	for _, name := range []string{Lifecycle, Webhook, "etcd", "kube-apiserver"} {
		require.Contains(t, tails, "the last lines of "+name+":\n")
	}
	require.NotContains(t, tails, CollaSet, "it never ran")

	require.ErrorContains(t, s.Restart(t.Context(), "scheduler"), "there is no component")
	require.ErrorContains(t, s.Restart(t.Context(), Lifecycle, "--log-level=shout"), "--log-level")
	require.ErrorContains(t, s.Died(), Lifecycle+" ended by itself")
	require.Contains(t, s.LogTails(), "the last lines of "+Lifecycle+", which does not run:\n")
	require.NoError(t, s.Restart(t.Context(), Lifecycle, ""))

	log := s.Logs(Lifecycle)
	require.FileExists(t, log)
	require.NoError(t, s.Stop())
	require.NoFileExists(t, log)
	_, err = os.Stat(s.Dir)
	require.ErrorIs(t, err, os.ErrNotExist)
}
