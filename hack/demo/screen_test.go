package main

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/internal/testkit/observer"
	"kusionstack.io/kuperator/internal/testkit/suite"
)

func aPicture() picture {
	return picture{
		title: "update web:1 to web:2, in place", elapsed: 1500 * time.Millisecond, startReplicas: 3, goalReplicas: 3,
		goalImage: "web:2",
		rule:      observer.RuleReport{Name: "web", Allowed: 2, Desired: 3},
		writes:    map[string]suite.Counts{suite.CollaSet: {Writes: 4}, suite.Lifecycle: {Writes: 3, Conflicts: 1}},
		rows: []row{
			{name: "web-aaaaa", id: 0, image: "web:2", revision: "5f684d", ready: true, serving: true},
			{name: "web-with-a-very-long-name-indeed", id: 1, image: "registry/web:2", phase: "Operate",
				waits: strings.Repeat("something long ", 10)},
			{name: "web-ccccc", id: 2, image: "web:1", phase: "PreCheck", ready: true, serving: true,
				waits: "rule web: blocked"},
		},
	}
}

func TestPictureFitsTheTerminal(t *testing.T) {
	s := &screen{}
	for _, width := range []int{79, 99, 119} {
		for _, line := range s.lines(aPicture(), width) {
			require.LessOrEqual(t, columns(line), width, "%q", line)
		}
	}
}

func TestPictureTellsProgressBudgetAndWrites(t *testing.T) {
	text := strings.Join((&screen{}).lines(aPicture(), 99), "\n")
	for _, part := range []string{
		"1 of 3 Pods in service with web:2", "1 of 2 out of service (20% of 3)", "collaset 4 · lifecycle 4",
		"rule web: blocked",
	} {
		require.Contains(t, text, part)
	}
	require.NotContains(t, text, "\x1b", "no colours unless asked for")
}

func TestScaleInCountsThePodsThatAreGone(t *testing.T) {
	p := aPicture()
	p.startReplicas, p.goalReplicas = 4, 2
	n, of, _ := p.progress()
	require.Equal(t, 1, n)
	require.Equal(t, 2, of)
	require.False(t, p.done())
}

func TestARestartIsDoneWhenItsJobIs(t *testing.T) {
	p := aPicture()
	p.rows, p.startReplicas, p.goalReplicas = p.rows[:1], 1, 1
	require.True(t, p.done())
	p.job = restartJob(make([]row, restarted))
	p.job.Status.SucceededPodCount = 1
	n, of, words := p.progress()
	require.Equal(t, 1, n)
	require.Equal(t, restarted, of)
	require.Equal(t, "Pods restarted in place", words)
	require.False(t, p.done())
	p.job.Status.Progress = appsv1alpha1.OperationProgressSucceeded
	require.True(t, p.done())
}

func TestWithoutTerminalEachChangeIsALine(t *testing.T) {
	var out bytes.Buffer
	s := &screen{out: &out, last: map[string]row{}, begin: time.Now()}
	p := aPicture()
	s.draw(p, nil)
	require.Equal(t, 3, strings.Count(out.String(), "\n"))
	s.draw(p, nil)
	require.Equal(t, 3, strings.Count(out.String(), "\n"), "nothing changed")
	p.rows[2].phase, p.rows[2].ready, p.rows[2].serving = "Preparing", false, false
	p.rows = p.rows[1:]
	s.draw(p, nil)
	require.Equal(t, 5, strings.Count(out.String(), "\n"))
	require.Contains(t, out.String(), "web-aaaaa    gone")
}
