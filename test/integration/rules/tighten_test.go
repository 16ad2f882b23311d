package rules_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"kusionstack.io/kuperator/internal/testkit/suite"
)

// TestARuleThatBecomesStricterBindsGrantsThatWereNotUsed: what was granted before, and is used only later, goes on
// within the new spec.
func TestARuleThatBecomesStricterBindsGrantsThatWereNotUsed(t *testing.T) {
	s := alone(t)
	pods := s.serve(6)
	rule := s.rule("budget", atMost("5"))
	s.work(pods...)
	require.NoError(t, s.Kill(suite.Lifecycle)) // no grant is used
	s.ask(pods[:5]...)
	s.until("five are granted", func() bool { return s.status(rule).Granted == 5 })
	require.NoError(t, s.Kill(suite.PodTransitionRule))

	patch := []byte(`[{"op":"replace","path":"/spec/rules/0/availablePolicy/maxUnavailableValue","value":1}]`)
	require.NoError(t, s.Patch(t.Context(), rule, client.RawPatch(types.JSONPatchType, patch)))
	require.NoError(t, s.Restart(t.Context(), suite.Lifecycle))
	s.stays("none goes on before the rule has been evaluated anew", func() bool { return s.out(pods...) == 0 })
	require.Len(t, s.status(rule).Grants, 5, "which are in the ledger still")

	require.NoError(t, s.Restart(t.Context(), suite.PodTransitionRule))
	s.until("one is out", func() bool { return s.out(pods...) == 1 })
	s.until("the others are blocked", func() bool { st := s.status(rule); return st.Granted == 1 && st.Blocked == 4 })
	s.finish()
	s.until("all are done, one after the other", func() bool {
		require.LessOrEqual(t, s.out(pods...), 1)
		return s.done(pods[:5]...) == 5
	})
	s.until("nothing is granted any more", func() bool { return len(s.status(rule).Grants) == 0 })
}
