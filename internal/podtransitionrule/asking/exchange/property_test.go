package exchange

import (
	"encoding/json"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/internal/podtransitionrule/grants"
)

// model is an Inquiry with a server that says anything, and a status that is sometimes written and sometimes seen.
type model struct {
	*Inquiry
	settings  Settings
	now       time.Time
	wanted    []grants.Question
	flying    []flight
	since     map[grants.Subject]int // when a subject began to be wanted, in steps
	steps     int
	status    *appsv1alpha1.WebhookStatus // as the API server has it
	approvals map[grants.Subject]bool     // what a server's answer, or a failure that counts as one, was about
}

// flight is a request that has not been answered, and since when its subjects were wanted when it was made.
type flight struct {
	Request
	since map[grants.Subject]int
}

func (m *model) want(t *rapid.T) {
	pods := rapid.SliceOfDistinct(rapid.SampledFrom([]string{"a", "b", "c", "d"}), rapid.ID[string]).Draw(t, "pods")
	m.wanted = nil
	for _, pod := range pods {
		m.wanted = append(m.wanted, question(pod, rapid.SampledFrom([]string{"1", "2"}).Draw(t, "request")))
	}
	m.Want(m.wanted)
	m.steps++
	since := map[grants.Subject]int{}
	for _, q := range m.wanted {
		since[q.Subject] = m.steps
		if before, was := m.since[q.Subject]; was {
			since[q.Subject] = before
		}
	}
	for s := range m.since { // what is not wanted any more will be asked about again
		if since[s] == 0 {
			delete(m.approvals, s)
		}
	}
	m.since = since
}

func (m *model) ask(t *rapid.T) {
	r, some := m.Next(m.now)
	if !some {
		if due, waits := m.Due(); waits {
			require.True(t, due.After(m.now), "nothing to do, yet something is due")
		}
		return
	}
	if r.TaskID != "" {
		require.NotNil(t, m.status)
		require.True(t, slices.ContainsFunc(m.status.TaskStates,
			func(i appsv1alpha1.TaskInfo) bool { return i.TaskID == r.TaskID }), "a task is polled that status never had")
	}
	for _, q := range r.Questions {
		require.True(t, slices.ContainsFunc(m.wanted, func(w grants.Question) bool { return w.Subject == q.Subject }))
		require.False(t, m.approvals[q.Subject], "what passed is not asked about again")
		for _, other := range m.flying {
			require.False(t, slices.ContainsFunc(other.Questions,
				func(o grants.Question) bool { return o.Subject == q.Subject }) && m.subjects[q.Subject].flight == other.number,
				"asked twice at once")
		}
	}
	m.flying = append(m.flying, flight{r, maps.Clone(m.since)})
}

func (m *model) hear(t *rapid.T) {
	if len(m.flying) == 0 {
		return
	}
	at := rapid.IntRange(0, len(m.flying)-1).Draw(t, "request")
	r := m.flying[at]
	m.flying = slices.Delete(m.flying, at, at+1)
	finished := rapid.SliceOf(rapid.SampledFrom([]string{"a", "b", "c", "d", "nobody"})).Draw(t, "finished")
	yes := rapid.Bool()
	failure := Failure{Reason: "down", Refused: yes.Draw(t, "refused"), Lasting: yes.Draw(t, "lasting")}
	fails := yes.Draw(t, "fails")
	members := r.Questions
	if r.TaskID != "" {
		members = nil
		for _, s := range r.task.members {
			members = append(members, m.subjects[s].Question)
		}
	}
	approve := func(all bool) {
		for _, q := range members {
			since, wanted := m.since[q.Subject]
			if wanted && since == r.since[q.Subject] && (all || slices.Contains(finished, q.PodName)) {
				m.approvals[q.Subject] = true
			}
		}
	}
	switch {
	case r.TaskID != "" && fails:
		m.PollFailed(r.Request, failure, m.now)
	case r.TaskID != "":
		a := PollAnswer{Success: yes.Draw(t, "success"), Finished: yes.Draw(t, "all"), Stop: yes.Draw(t, "stop"),
			FinishedNames: finished}
		approve(a.Success && a.Finished)
		m.Polled(r.Request, a, m.now)
	case fails:
		if m.settings.Ignore && !failure.Refused {
			approve(true)
		}
		m.Failed(r.Request, failure, m.now)
	default:
		a := Answer{Success: yes.Draw(t, "success"), Poll: yes.Draw(t, "poll"),
			TaskID: rapid.SampledFrom([]string{"", "t", "u"}).Draw(t, "id"), FinishedNames: finished}
		approve(a.Success && !a.Poll)
		m.Answered(r.Request, a, m.now)
	}
}

func (m *model) restart(t *rapid.T) {
	m.Inquiry, m.flying, m.approvals = New(m.settings), nil, map[grants.Subject]bool{}
	if m.status != nil {
		m.Adopt(m.status, m.now)
		for s, one := range m.subjects {
			m.approvals[s] = one.state == passed
		}
	}
	m.want(t)
}

func (m *model) check(t *rapid.T) {
	got := map[grants.Subject]grants.Answer{}
	m.Answers(got)
	for s, a := range got {
		require.True(t, slices.ContainsFunc(m.wanted, func(q grants.Question) bool { return q.Subject == s }),
			"an answer that nobody waits for")
		require.True(t, a.Passed || a.Reason != "", "a refusal without a reason")
		if a.Passed {
			require.True(t, m.approvals[s], "%v passed, but nobody said so", s)
		}
	}
	for _, q := range m.wanted {
		one := m.subjects[q.Subject]
		require.NotNil(t, one)
		inTasks := 0
		for _, task := range m.tasks {
			if slices.Contains(task.members, q.Subject) {
				inTasks++
			}
		}
		require.LessOrEqual(t, inTasks, 1)
		require.Equal(t, one.state == tasked, inTasks == 1 && one.state != passed, "it is in a task, or not")
		if one.state == asked {
			require.True(t, m.flights[one.flight], "it waits for a request that is not on its way")
		}
	}
	if at, some := m.Due(); some {
		require.LessOrEqual(t, at.Sub(m.now), 10*time.Minute)
	} else if len(m.wanted) > 0 && len(m.flying) == 0 {
		for _, q := range m.wanted {
			require.Equal(t, passed, m.subjects[q.Subject].state, "it waits for ever")
		}
	}
}

func TestAnyServerAndAnyTimes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := polling()
		s.Ignore, s.Polls = rapid.Bool().Draw(t, "ignore"), rapid.Bool().Draw(t, "polls")
		s.Room = rapid.SampledFrom([]int{1, 500, 96 << 10}).Draw(t, "room")
		m := &model{Inquiry: New(s), settings: s, now: start, approvals: map[grants.Subject]bool{}}
		t.Repeat(map[string]func(*rapid.T){
			"want": m.want,
			"ask":  m.ask,
			"hear": m.hear,
			"write": func(t *rapid.T) {
				body, err := json.Marshal(m.State())
				require.NoError(t, err)
				m.status = nil
				require.NoError(t, json.Unmarshal(body, &m.status))
			},
			"see":     func(*rapid.T) { m.Known(m.status) },
			"restart": m.restart,
			"wait": func(t *rapid.T) {
				m.now = m.now.Add(time.Duration(rapid.IntRange(0, 90).Draw(t, "seconds")) * time.Second)
				m.Tick(m.now)
			},
			"": m.check,
		})
		m.settle(t)
	})
}

// settle: from wherever it is, a server that says yes lets every Pod pass.
func (m *model) settle(t *rapid.T) {
	for _, r := range m.flying {
		if r.TaskID != "" {
			m.PollFailed(r.Request, Failure{Reason: "down"}, m.now)
		} else {
			m.Failed(r.Request, Failure{Reason: "down", Refused: true}, m.now)
		}
	}
	for range 100 {
		m.Known(m.State())
		r, some := m.Next(m.now)
		switch {
		case some && r.TaskID != "":
			m.Polled(r, PollAnswer{Success: true, Finished: true}, m.now)
		case some:
			m.Answered(r, Answer{Success: true}, m.now)
		default:
			if at, due := m.Due(); due && at.After(m.now) {
				m.now = at
			}
		}
	}
	for _, q := range m.wanted {
		require.Equal(t, passed, m.subjects[q.Subject].state)
	}
	m.Want(nil)
	m.Tick(m.now.Add(keepHistory))
	require.True(t, m.Idle(), cmp.Diff(nil, m.State()))
}
