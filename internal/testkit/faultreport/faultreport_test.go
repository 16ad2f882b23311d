package faultreport

import (
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"
)

func TestRowsOfSeveralProcessesBecomeOneTable(t *testing.T) {
	t.Setenv(ArtifactsVariable, t.TempDir())
	folder, err := Folder()
	require.NoError(t, err)
	rows, err := Read(folder)
	require.NoError(t, err)
	require.Empty(t, rows, "nothing was run yet")

	require.NoError(t, Add(Row{Suite: "crash", Scenario: "create", Component: "collaset-controller", Plans: 3,
		NotFired: 1, Failed: 1,
		Faults: map[string]int{"KillBefore": 2}, Invariants: map[string]int{"I1": 10},
		Failures: []string{"create|x\nIDs doubled"}, Took: time.Second}))
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			require.NoError(t, Add(Row{Suite: "crash", Scenario: "create", Component: "collaset-controller", Plans: 1,
				Faults: map[string]int{"KillBefore": 1}, Invariants: map[string]int{"I2": 1}, Took: time.Second}))
		})
	}
	wg.Wait()
	require.NoError(t, Add(Row{Suite: "stale", Scenario: "a|b", Plans: 1}))

	rows, err = Read(folder)
	require.NoError(t, err)
	want := []Row{
		{
			Suite: "crash", Scenario: "create", Component: "collaset-controller", Plans: 23, NotFired: 1, Failed: 1,
			Faults: map[string]int{"KillBefore": 22}, Invariants: map[string]int{"I1": 10, "I2": 20},
			Failures: []string{"create|x\nIDs doubled"}, Took: 21 * time.Second,
		},
		{Suite: "stale", Scenario: "a|b", Plans: 1, Faults: map[string]int{}, Invariants: map[string]int{}},
	}
	if diff := cmp.Diff(want, rows); diff != "" {
		t.Fatalf("rows (-want +got):\n%s", diff)
	}
	require.Equal(t, 21, rows[0].Passed())

	require.Equal(t, `24 plans: 22 passed, 1 failed, 1 not fired. 22 faults injected, 30 checks of invariants.

| suite | scenario | component | plans | passed | failed | not fired | faults | checks |
| --- | --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |
| crash | create | collaset-controller | 23 | 21 | 1 | 1 | 22 | 30 |
| stale | a\|b |  | 1 | 1 | 0 | 0 | 0 | 0 |

| fault | times |
| --- | ---: |
| KillBefore | 22 |

| invariant | times |
| --- | ---: |
| I1 | 10 |
| I2 | 20 |

Failures:

    create|x
    IDs doubled

`, Markdown(rows))
}
