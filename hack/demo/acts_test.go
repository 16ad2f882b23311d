package main

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestEachActTellsWhatHappensAndWhy(t *testing.T) {
	for _, s := range acts() {
		require.NotEmpty(t, s.why, s.title)
		require.True(t, strings.HasSuffix(s.why, "."), s.title)
		if s.patch != "" || s.restarts {
			require.NotEmpty(t, s.acting, s.title)
		}
		for _, line := range wrap(s.why, textWidth) {
			require.LessOrEqual(t, columns(line), textWidth)
		}
	}
}

func TestTheStoryTellsEachPhaseOnceByThePodThatIsInIt(t *testing.T) {
	tells := narrator{acting: "may it change"}
	p := picture{rows: []row{{name: "web-a", serving: true}, {name: "web-b", serving: true}}}
	require.Empty(t, tells.tell(p))
	p.rows[1].phase = "Preparing"
	require.Equal(t, []string{"the rule lets web-b go; its traffic is being taken off"}, tells.tell(p))
	require.Empty(t, tells.tell(p))
	p.rows[0].phase, p.rows[1].phase = "PreCheck", "Operate"
	require.Equal(t, []string{"web-b is out of traffic; only now may it change"}, tells.tell(p), "it does not go back")
	p.rows[0].phase, p.rows[1].phase = "PostCheck", "Completing"
	require.Len(t, tells.tell(p), 2)
}

func TestAnActThatUndoesTellsOfTheReturnAlone(t *testing.T) {
	tells := newNarrator(&stage{undoes: true, acting: "may it change"})
	p := picture{rows: []row{{name: "web-a", phase: "Operate"}}}
	require.Empty(t, tells.tell(p), "it was in that phase before")
	p.rows[0].phase = "Completing"
	require.Equal(t, []string{"web-a has done what was asked; its traffic is put back"}, tells.tell(p))
}

func TestTheBlockerIsToldOnce(t *testing.T) {
	tells := narrator{told: len(phaseOrder)}
	p := picture{rows: []row{{name: "web-a", serving: true}, {name: "web-b"}}, failing: "its image cannot be pulled"}
	require.Equal(t, []string{"the rollout waits, blocker ContainersFail; 1 of 2 Pods still serve"}, tells.tell(p))
	require.Empty(t, tells.tell(p))
}

func TestAStuckActIsOverWhenItHasBeenSeen(t *testing.T) {
	p := picture{stuck: true, goalImage: badImage, goalReplicas: 3, rows: []row{{image: badImage}, {serving: true}}}
	require.False(t, p.done())
	n, of, words := p.progress()
	require.Equal(t, []int{1, 3}, []int{n, of})
	require.Equal(t, "Pods have web:non-exist, 1 serve", words)
	p.held = stuckFor + time.Millisecond
	require.True(t, p.done())
}

func TestTheEndTellsWhatToTryInTheWordsOfTheUser(t *testing.T) {
	text := whatToTry("/k/config", "/k/bin")
	for _, part := range []string{"export KUBECONFIG=/k/config\n", "export PATH=/k/bin:$PATH\n",
		"kubectl kuperator -n demo status", "kubectl kuperator -n demo why collaset/web",
		"kubectl kuperator -n demo dashboard", "simulated"} {
		require.Contains(t, text, part)
	}
	for _, part := range []string{"make demo KEEP=1", "make demo-stop", "make demo SLOW=1", "status, why and dashboard"} {
		require.Contains(t, whatNext, part)
	}
}
