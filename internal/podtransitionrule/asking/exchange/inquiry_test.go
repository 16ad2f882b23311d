package exchange

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/internal/podtransitionrule/grants"
)

var start = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func at(seconds float64) time.Time { return start.Add(time.Duration(seconds * float64(time.Second))) }

func polling() Settings {
	return Settings{Rule: "rule", Check: "check", Polls: true, Interval: 5 * time.Second, Timeout: time.Minute,
		Room: 96 << 10, HistoryRoom: 24}
}

func question(pod, request string) grants.Question {
	requests := []appsv1alpha1.GrantedOperation{{ID: "job", Type: "update", Request: request}}
	return grants.Question{PodName: pod, Requests: requests, Subject: grants.Subject{
		Rule: "rule", Check: "check", Pod: types.UID("uid-" + pod), Stage: appsv1alpha1.StagePreCheck,
		Operations: grants.OperationsKey(requests),
	}}
}

func questions(pods ...string) []grants.Question {
	var all []grants.Question
	for _, pod := range pods {
		all = append(all, question(pod, "1"))
	}
	return all
}

func next(t *testing.T, i *Inquiry, now time.Time) Request {
	t.Helper()
	r, some := i.Next(now)
	require.True(t, some, "there is something to ask")
	return r
}

func nothing(t *testing.T, i *Inquiry, now time.Time) {
	t.Helper()
	r, some := i.Next(now)
	require.False(t, some, "%+v", r)
}

func names(r Request) string {
	var all []string
	for _, q := range r.Questions {
		all = append(all, q.PodName)
	}
	return strings.Join(all, " ")
}

// answers are "name" for a Pod that passes, "name: reason" for one that does not, and nothing for the others.
func answers(i *Inquiry, asked ...grants.Question) []string {
	got := map[grants.Subject]grants.Answer{}
	i.Answers(got)
	var all []string
	for _, q := range asked {
		a, has := got[q.Subject]
		switch {
		case !has:
		case a.Passed:
			all = append(all, q.PodName)
		default:
			all = append(all, q.PodName+": "+a.Reason)
		}
	}
	return all
}

// written is the state as it comes back from the API server.
func written(t *testing.T, i *Inquiry) *appsv1alpha1.WebhookStatus {
	t.Helper()
	body, err := json.Marshal(i.State())
	require.NoError(t, err)
	var back *appsv1alpha1.WebhookStatus
	require.NoError(t, json.Unmarshal(body, &back))
	return back
}

func TestWhatAnAnswerMeans(t *testing.T) {
	withoutPoll := polling()
	withoutPoll.Polls = false
	tests := map[string]struct {
		settings Settings
		answer   string
		want     []string
		task     string // its ID, if one is begun
	}{
		"success lets all pass, whatever names it has": {polling(), `{"success":true,"finishedNames":["other"]}`,
			[]string{"a", "b"}, ""},
		"a rejection names those that pass nevertheless": {polling(),
			`{"success":false,"message":"not\nnow","finishedNames":["b"]}`,
			[]string{"a: rejected by the webhook: not now", "b"}, ""},
		"names that nobody asked about are ignored": {polling(), `{"success":false,"finishedNames":["c","uid-a","A"]}`,
			[]string{"a: rejected by the webhook", "b: rejected by the webhook"}, ""},
		"an empty object rejects": {polling(), `{}`,
			[]string{"a: rejected by the webhook", "b: rejected by the webhook"}, ""},
		"a task is begun for those that are not finished": {polling(),
			`{"success":true,"poll":true,"taskId":"t","message":"started","finishedNames":["a"]}`,
			[]string{"a", "b: the webhook works on it, task t: started"}, "t"},
		"the old name of poll works": {polling(), `{"success":true,"async":true,"taskId":"t"}`,
			[]string{"a: the webhook works on it, task t", "b: the webhook works on it, task t"}, "t"},
		"the trace names the task if nothing else does": {polling(), `{"success":true,"poll":true,"traceId":"x"}`,
			[]string{"a: the webhook works on it, task x", "b: the webhook works on it, task x"}, "x"},
		"a task of which all are finished is none": {polling(),
			`{"success":true,"poll":true,"taskId":"t","finishedNames":["b","a"]}`, []string{"a", "b"}, ""},
		"a task without a name is refused": {polling(), `{"success":true,"poll":true}`,
			[]string{"a: the webhook wants to be polled but names no task: its answer needs a taskId",
				"b: the webhook wants to be polled but names no task: its answer needs a taskId"}, ""},
		"a task with a name without end is refused": {polling(),
			`{"success":true,"poll":true,"finishedNames":["a"],"taskId":"` + strings.Repeat("x", 254) + `"}`,
			[]string{"a", "b: the webhook's taskId has more than 253 bytes: it must give a shorter one"}, ""},
		"a task needs a rule that says how to poll": {withoutPoll, `{"success":true,"poll":true,"taskId":"t"}`,
			[]string{"a: the webhook wants to be polled: set webhook.clientConfig.poll",
				"b: the webhook wants to be polled: set webhook.clientConfig.poll"}, ""},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			i := New(tc.settings)
			asked := questions("a", "b")
			i.Want(asked)
			r := next(t, i, at(0))
			require.Equal(t, "a b", names(r))
			require.Empty(t, answers(i, asked...))
			answer, err := ParseAnswer([]byte(tc.answer))
			require.NoError(t, err)
			i.Answered(r, answer, at(1))
			require.Empty(t, cmp.Diff(tc.want, answers(i, asked...)))
			if state := i.State(); tc.task == "" {
				require.Nil(t, state)
			} else {
				require.Len(t, state.TaskStates, 1)
				require.Equal(t, tc.task, state.TaskStates[0].TaskID)
			}
		})
	}
}

func TestWhatIsNoAnswer(t *testing.T) {
	for name, body := range map[string]string{
		"nothing": "", "text": "<html>busy</html>", "null": "null", "a list": "[]", "a number": "1",
		"half an object": `{"success":true`,
		"two objects":    `{"success":true}{"success":true}`, "another type": `{"success":"yes"}`,
		"names that are none": `{"finishedNames":[1]}`,
	} {
		t.Run(name, func(t *testing.T) {
			_, err := ParseAnswer([]byte(body))
			require.EqualError(t, err, "its answer is not the JSON object expected")
			if name != "another type" {
				_, err = ParsePollAnswer([]byte(body))
				require.Error(t, err)
			}
		})
	}
}

func TestRejectedPodsAreAskedAboutAgainLaterAndLater(t *testing.T) {
	i := New(polling())
	i.Want(questions("a", "b"))
	now, last := at(0), time.Duration(0)
	for attempt := range 8 {
		r := next(t, i, now)
		require.Equal(t, "a b", names(r), "they stay together")
		i.Answered(r, Answer{}, now)
		due, some := i.Due()
		require.True(t, some)
		rest := due.Sub(now)
		least := min(5*time.Second<<attempt, 48*time.Second)
		require.GreaterOrEqual(t, rest, least)
		require.LessOrEqual(t, rest, least+least/4)
		require.GreaterOrEqual(t, rest+least/4, last)
		nothing(t, i, due.Add(-time.Second))
		now, last = due, rest
	}
}

func TestFailuresFollowTheFailurePolicy(t *testing.T) {
	ignore := polling()
	ignore.Ignore = true
	const down = "the webhook cannot be asked: it is down"
	tests := map[string]struct {
		settings Settings
		failure  Failure
		want     []string
		ignored  int
		least    time.Duration
	}{
		"Fail refuses and tries again soon": {polling(), Failure{Reason: down}, []string{"a: " + down}, 0,
			time.Second},
		"Ignore lets Pods pass": {ignore, Failure{Reason: down}, []string{"a"}, 1, 0},
		"Ignore is not about what was never sent": {ignore, Failure{Reason: down, Refused: true},
			[]string{"a: " + down}, 0, time.Second},
		"what somebody must change is tried again late": {ignore, Failure{Reason: down, Refused: true, Lasting: true},
			[]string{"a: " + down}, 0, 48 * time.Second},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			i := New(tc.settings)
			i.Want(questions("a"))
			require.Equal(t, tc.ignored, i.Failed(next(t, i, at(0)), tc.failure, at(0)))
			require.Equal(t, tc.want, answers(i, questions("a")...))
			require.Equal(t, down, i.Failing())
			due, some := i.Due()
			require.Equal(t, tc.ignored == 0, some)
			if some {
				require.GreaterOrEqual(t, due.Sub(at(0)), tc.least)
				require.LessOrEqual(t, due.Sub(at(0)), tc.least+tc.least/4)
				i.Retry()
				r := next(t, i, at(0.1)) // a change of the rule is tried at once
				i.Answered(r, Answer{Success: true}, at(0.1))
				require.Empty(t, i.Failing())
			}
		})
	}
}

func TestWhatWasIgnoredIsAskedOnceItIsNotToBeIgnored(t *testing.T) {
	settings := polling()
	settings.Ignore = true
	i := New(settings)
	i.Want(questions("a"))
	require.Equal(t, 1, i.Failed(next(t, i, at(0)), Failure{Reason: "away"}, at(0)))
	i.Use(settings)
	nothing(t, i, at(1))
	settings.Ignore = false
	i.Retry()
	i.Use(settings)
	i.Want(questions("a"))
	i.Answered(next(t, i, at(1)), Answer{Message: "no"}, at(1))
	require.NotEqual(t, []string{"a"}, answers(i, questions("a")...), "it does not pass")
}

func TestAnAnswerCountsForWhatWasAskedAlone(t *testing.T) {
	t.Run("a request that changed meanwhile is asked about anew", func(t *testing.T) {
		i := New(polling())
		i.Want(questions("a"))
		r := next(t, i, at(0))
		changed := question("a", "2")
		i.Want([]grants.Question{changed})
		i.Answered(r, Answer{Success: true}, at(1))
		require.Empty(t, answers(i, changed))
		require.Equal(t, "2", next(t, i, at(1)).Questions[0].Requests[0].Request)
	})
	t.Run("what went and came back is not answered by the first question", func(t *testing.T) {
		i := New(polling())
		i.Want(questions("a"))
		first := next(t, i, at(0))
		i.Want(nil)
		i.Want(questions("a"))
		i.Answered(first, Answer{Success: true}, at(1))
		require.Empty(t, answers(i, questions("a")...))
		i.Answered(next(t, i, at(1)), Answer{}, at(1))
		require.Len(t, answers(i, questions("a")...), 1)
	})
	t.Run("nor if it has been asked about again by then", func(t *testing.T) {
		var all []grants.Question
		for j := range MaxBatch {
			all = append(all, question(fmt.Sprint(j), "1"))
		}
		i := New(polling())
		i.Want(all)
		first := next(t, i, at(0))
		i.Want(nil)
		i.Want(all)
		second := next(t, i, at(0))
		i.Answered(first, Answer{Success: true}, at(1))
		require.Empty(t, answers(i, all...))
		i.Answered(second, Answer{Success: true}, at(1))
		require.Len(t, answers(i, all...), MaxBatch)
	})
	t.Run("two Pods of one name are never in one request", func(t *testing.T) {
		i := New(polling())
		again := question("a", "1")
		again.Pod = "later"
		i.Want([]grants.Question{question("a", "1"), again})
		r := next(t, i, at(0))
		require.Len(t, r.Questions, 1)
		i.Answered(r, Answer{FinishedNames: []string{"a"}}, at(0))
		require.Len(t, answers(i, question("a", "1"), again), 1)
		require.Equal(t, types.UID("later"), next(t, i, at(0)).Questions[0].Pod)
	})
	t.Run("what passed stays passed as long as it waits", func(t *testing.T) {
		i := New(polling())
		i.Want(questions("a"))
		i.Answered(next(t, i, at(0)), Answer{Success: true}, at(0))
		i.Want(questions("a", "b"))
		r := next(t, i, at(1))
		require.Equal(t, "b", names(r))
		i.Failed(r, Failure{Reason: "down"}, at(1))
		require.Equal(t, []string{"a", "b: down"}, answers(i, questions("a", "b")...))
		i.Want(questions("b"))
		i.Want(questions("a", "b"))
		require.Equal(t, []string{"b: down"}, answers(i, questions("a", "b")...))
	})
}

func TestQuestionsAreAskedInBatches(t *testing.T) {
	many := func(n int) []grants.Question {
		var all []grants.Question
		for j := range n {
			all = append(all, question(fmt.Sprintf("p%03d", j), "1"))
		}
		return all
	}
	t.Run("in the order in which they are served, a hundred at a time", func(t *testing.T) {
		s := polling()
		s.Polls = false
		i := New(s)
		i.Want(many(250))
		first, second := next(t, i, at(0)), next(t, i, at(0))
		require.Len(t, first.Questions, MaxBatch)
		require.Equal(t, "p000", first.Questions[0].PodName)
		require.Equal(t, "p100", second.Questions[0].PodName)
		nothing(t, i, at(0)) // the rest waits, because it may grow meanwhile
		i.Answered(first, Answer{Success: true}, at(1))
		nothing(t, i, at(1))
		i.Answered(second, Answer{Success: true}, at(1))
		require.Len(t, next(t, i, at(1)).Questions, 50)
	})
	t.Run("and no more than status has room for", func(t *testing.T) {
		s := polling()
		s.Room = 10 * sizeOf(question("p000", "1"))
		i := New(s)
		i.Want(many(25))
		r := next(t, i, at(0))
		require.Len(t, r.Questions, 10)
		i.Answered(r, Answer{Success: true, Poll: true, TaskID: "t"}, at(0))
		nothing(t, i, at(0))
		due, some := i.Due()
		require.True(t, some)
		require.Equal(t, at(60), due, "nothing is due but the end of the task")
		body, err := json.Marshal(i.State())
		require.NoError(t, err)
		require.Less(t, len(body), s.Room+1000)
		i.Known(written(t, i))
		i.Polled(next(t, i, at(5)), PollAnswer{Success: true, Finished: true}, at(5))
		require.Len(t, next(t, i, at(5)).Questions, 10)
	})
	t.Run("even if one Pod alone takes more", func(t *testing.T) {
		s := polling()
		s.Room = 1
		i := New(s)
		i.Want(many(2))
		require.Len(t, next(t, i, at(0)).Questions, 1)
	})
}

func TestATaskIsPolledOnlyAfterStatusHasIt(t *testing.T) {
	i := New(polling())
	asked := questions("a", "b")
	i.Want(asked)
	i.Answered(next(t, i, at(0)), Answer{Success: true, Poll: true, TaskID: "t"}, at(0))
	state := written(t, i)
	nothing(t, i, at(30))
	due, _ := i.Due()
	require.Equal(t, at(60), due, "no poll is due")

	other := state.DeepCopy()
	other.TaskStates[0].Subjects = other.TaskStates[0].Subjects[:1]
	i.Known(other)
	other = state.DeepCopy()
	other.TaskStates[0].TaskID = "u"
	i.Known(other)
	i.Known(nil)
	nothing(t, i, at(30))

	i.Known(state)
	r := next(t, i, at(30))
	require.Equal(t, "t", r.TaskID)
	nothing(t, i, at(30)) // one poll at a time
}

func known(t *testing.T, s Settings, pods ...string) *Inquiry {
	t.Helper()
	i := New(s)
	i.Want(questions(pods...))
	i.Answered(next(t, i, at(0)), Answer{Success: true, Poll: true, TaskID: "t", Message: "begun"}, at(0))
	i.Known(written(t, i))
	return i
}

func TestWhatAPollMeans(t *testing.T) {
	tests := map[string]struct {
		answer string
		want   []string
		open   bool
	}{
		"finished in success lets all pass": {`{"success":true,"finished":true}`, []string{"a", "b"}, false},
		"names pass one by one": {`{"success":true,"finishedNames":["b","zzz"],"message":"half"}`,
			[]string{"a: the webhook works on it, task t: half", "b"}, true},
		"finished without success goes on": {`{"finished":true,"message":"?"}`,
			[]string{"a: the webhook works on it, task t: ?", "b: the webhook works on it, task t: ?"}, true},
		"all names is the end": {`{"finishedNames":["a","b"]}`, []string{"a", "b"}, false},
		"stop rejects what is left": {`{"stop":true,"finishedNames":["a"],"message":"no"}`,
			[]string{"a", "b: the webhook stopped its task: no"}, false},
		"success alone is no end": {`{"success":true}`,
			[]string{"a: the webhook works on it, task t", "b: the webhook works on it, task t"}, true},
		"stop together with the end lets all pass.": {`{"success":true,"finished":true,"stop":true}`,
			[]string{"a", "b"}, false},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			i := known(t, polling(), "a", "b")
			answer, err := ParsePollAnswer([]byte(tc.answer))
			require.NoError(t, err)
			i.Polled(next(t, i, at(5)), answer, at(6))
			require.Empty(t, cmp.Diff(tc.want, answers(i, questions("a", "b")...)))
			state := i.State()
			require.Len(t, state.TaskStates, map[bool]int{true: 1}[tc.open])
			require.Len(t, state.History, map[bool]int{false: 1}[tc.open])
			if tc.open {
				nothing(t, i, at(10))
				require.Equal(t, "t", next(t, i, at(11)).TaskID)
			} else {
				require.Empty(t, state.History[0].Subjects)
				i.Tick(at(6 + 599))
				require.NotNil(t, i.State())
				i.Tick(at(6 + 600))
				require.Nil(t, i.State(), "it is forgotten after ten minutes")
			}
		})
	}
}

func TestATaskRunsOut(t *testing.T) {
	i := known(t, polling(), "a", "b")
	r := next(t, i, at(5))
	i.PollFailed(r, Failure{Reason: "the webhook cannot be asked: it is down"}, at(5))
	require.Equal(t, "a: the webhook works on it, task t: the webhook cannot be asked: it is down",
		answers(i, questions("a")...)[0])
	i.Polled(next(t, i, at(20)), PollAnswer{FinishedNames: []string{"a"}, Message: "slow"}, at(20))
	i.Tick(at(59))
	require.Len(t, i.State().TaskStates, 1)
	last := next(t, i, at(59))
	nothing(t, i, at(61)) // the poll on its way may bring the end
	require.Len(t, i.State().TaskStates, 1)
	i.Polled(last, PollAnswer{Message: "slow"}, at(61))
	nothing(t, i, at(61))
	require.Equal(t, []string{"a", "b: Polling timeout: the webhook's task did not finish within 1m0s: slow"},
		answers(i, questions("a", "b")...))
	require.Equal(t, "Polling timeout: slow", i.State().History[0].Message)
	require.Equal(t, []string{"b"}, i.State().History[0].Processing)
	require.Equal(t, "b", names(next(t, i, at(70))), "and is asked about anew")
}

func TestAnotherProcessGoesOnWithTheTask(t *testing.T) {
	before := known(t, polling(), "a", "b", "c")
	before.Polled(next(t, before, at(5)), PollAnswer{FinishedNames: []string{"a"}}, at(5))
	state := written(t, before)
	state.TaskStates = append(state.TaskStates,
		appsv1alpha1.TaskInfo{TaskID: "of Kuperator v0.7", Processing: []string{"a"}},
		appsv1alpha1.TaskInfo{Subjects: []appsv1alpha1.TaskSubject{{PodName: "d", PodUID: "uid-d"}}},
	)
	after := New(polling())
	after.Adopt(state, at(20))
	wanted := append(questions("a", "b", "d"), question("c", "2"))
	after.Want(wanted)
	require.Equal(t, []string{"a", "b: the webhook works on it, task t"}, answers(after, wanted...))
	poll := next(t, after, at(20))
	require.Equal(t, "t", poll.TaskID)
	require.Equal(t, "d c", names(next(t, after, at(20))), "what changed meanwhile and what nobody knows is asked about")
	after.Polled(poll, PollAnswer{Success: true, Finished: true}, at(21))
	require.Equal(t, []string{"a", "b"}, answers(after, wanted...))

	t.Run("with its time", func(t *testing.T) {
		late := New(polling())
		late.Adopt(written(t, before), at(61))
		late.Want(questions("a", "b", "c"))
		nothing(t, late, at(61))
		require.Contains(t, answers(late, questions("b")...)[0], "Polling timeout")
	})
	t.Run("not if the rule polls no more", func(t *testing.T) {
		s := polling()
		s.Polls = false
		none := New(s)
		none.Adopt(written(t, before), at(6))
		none.Want(questions("a", "b"))
		require.Equal(t, "a b", names(next(t, none, at(6))))
	})
	t.Run("and writes the same status", func(t *testing.T) {
		same := New(polling())
		same.Adopt(written(t, before), at(6))
		same.Want(questions("a", "b", "c"))
		require.Empty(t, cmp.Diff(written(t, before), written(t, same)))
	})
	t.Run("and does not trust times of the future", func(t *testing.T) {
		future := written(t, before)
		future.TaskStates[0].BeginTime = &metav1.Time{Time: at(1e6)}
		i := New(polling())
		i.Adopt(future, at(6))
		due, _ := i.Due()
		require.Equal(t, at(6), due)
		i.Tick(at(66))
		require.Empty(t, i.State().TaskStates)
	})
	t.Run("nothing there is nothing to adopt", func(t *testing.T) {
		i := New(polling())
		i.Adopt(nil, at(0))
		require.True(t, i.Idle())
	})
}

func TestTasksThatNobodyWaitsForAreDropped(t *testing.T) {
	i := known(t, polling(), "a", "b")
	flying := next(t, i, at(5))
	i.Want(questions("b"))
	require.Equal(t, []string{"b"}, i.State().TaskStates[0].Processing)
	i.Want(nil)
	require.Nil(t, i.State())
	i.Polled(flying, PollAnswer{Success: true, Finished: true}, at(6))
	require.True(t, i.Idle())
}

func TestStatusStaysSmall(t *testing.T) {
	i := New(polling())
	now := at(0)
	for round := range 100 {
		i.Want(questions("a", strings.Repeat("b", 200)))
		i.Answered(next(t, i, now), Answer{Success: true, Poll: true, TaskID: fmt.Sprint(round),
			Message: strings.Repeat("ü", 5000)}, now)
		i.Known(written(t, i))
		now = now.Add(5 * time.Second)
		i.Polled(next(t, i, now), PollAnswer{Success: true, Finished: true}, now)
		i.Want(nil)
	}
	state := i.State()
	require.Len(t, state.History, 24)
	require.Equal(t, "76", state.History[0].TaskID, "the oldest go first")
	i.Want(questions("a"))
	i.Answered(next(t, i, now), Answer{Success: true, Poll: true, TaskID: "long", Message: strings.Repeat("ü", 5000)}, now)
	require.Equal(t, 256, len([]rune(i.State().TaskStates[0].Message)))
}

func TestWithdrawing(t *testing.T) {
	i := New(polling())
	i.Want(questions("a", "b", "c"))
	r := next(t, i, at(0))
	i.Withdraw(&r, "uid-a", Failure{Reason: "no such field", Refused: true, Lasting: true}, at(0))
	i.Withdraw(&r, "uid-b", Failure{}, at(0))
	require.Equal(t, "c", names(r))
	require.Equal(t, []string{"a: no such field"}, answers(i, questions("a", "b", "c")...))
	i.Answered(r, Answer{Success: true}, at(0))
	r = next(t, i, at(0))
	require.Equal(t, "b", names(r))
	i.Withdraw(&r, "uid-b", Failure{}, at(1))
	require.Equal(t, "b", names(next(t, i, at(1))), "an empty request is over")
}
