package drain_test

import (
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	lifecyclev1alpha1 "k8s.io/api/lifecycle/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
	"kusionstack.io/kuperator/internal/drain"
)

func TestWhichPodsNameTheResponder(t *testing.T) {
	ours := map[string]any{"name": drain.Responder, "priority": int64(10000)}
	assert.Equal(t, ours, drain.ResponderOf(nil, false))
	assert.Equal(t, ours, drain.ResponderOf(make([]string, 9), false))
	assert.Nil(t, drain.ResponderOf(make([]string, 10), false), "it names as many as it may")
	assert.Nil(t, drain.ResponderOf([]string{drain.Responder}, false), "it does so already")
	assert.Nil(t, drain.ResponderOf(nil, true), "it is one of a group")
}

func TestWhoseTurnItIs(t *testing.T) {
	done := metav1.NewTime(now)
	eviction := func(name string, state lifecyclev1alpha1.ResponderStateType, end *metav1.Time) *lifecyclev1alpha1.Eviction {
		return &lifecyclev1alpha1.Eviction{Status: lifecyclev1alpha1.EvictionStatus{
			TargetResponders: []lifecyclev1alpha1.TargetResponder{{Name: name, State: state}},
			Responders:       []lifecyclev1alpha1.ResponderStatus{{Name: name, CompletionTime: end}},
		}}
	}
	for name, tc := range map[string]struct {
		eviction *lifecyclev1alpha1.Eviction
		want     bool
	}{
		"ours":              {eviction(drain.Responder, lifecyclev1alpha1.ResponderStateActive, nil), true},
		"ours, and done":    {eviction(drain.Responder, lifecyclev1alpha1.ResponderStateActive, &done), false},
		"ours, not yet":     {eviction(drain.Responder, lifecyclev1alpha1.ResponderStateInactive, nil), false},
		"ours, canceled":    {eviction(drain.Responder, lifecyclev1alpha1.ResponderStateCanceled, nil), false},
		"ours, interrupted": {eviction(drain.Responder, lifecyclev1alpha1.ResponderStateInterrupted, nil), false},
		"another one's":     {eviction("example.com/other", lifecyclev1alpha1.ResponderStateActive, nil), false},
		"no status yet":     {&lifecyclev1alpha1.Eviction{}, false},
	} {
		t.Run(name, func(t *testing.T) {
			_, got := drain.Turn(tc.eviction)
			assert.Equal(t, tc.want, got)
		})
	}
}

// requested is a Pod, as it is after the changes, in an Eviction that has just become ours.
func requested(changes ...func(*podops.View)) drain.Request {
	v := serving(append([]func(*podops.View){func(v *podops.View) {
		v.Labels[appsv1alpha1.ControlLabel] = appsv1alpha1.ControlValue
	}}, changes...)...)
	return drain.Request{Pod: v, Target: "u1", Now: now}
}

// begun is our status in an Eviction that became ours so long ago.
func begun(ago time.Duration) lifecyclev1alpha1.ResponderStatus {
	start := metav1.NewTime(now.Add(-ago))
	return lifecyclev1alpha1.ResponderStatus{Name: drain.Responder, StartTime: &start}
}

func TestWhatAnEvictionRequestIsAnswered(t *testing.T) {
	cancelled := func(v *podops.View) { v.Annotations[toDelete+podops.AskersSuffix] = podops.AskerEvictionRequest }
	replaced := requested(marked(toReplace, podops.AskerEvictionRequest))
	replaced.Awaits, replaced.Policy = "it waits for a node", replaces(appsv1alpha1.EvictionReplace)
	surging := requested()
	surging.Policy = replaces(appsv1alpha1.EvictionReplace)
	kept := requested()
	kept.Budget = "web"
	disabled := requested()
	disabled.NamespaceLabel = "disabled"
	enabled := requested(func(v *podops.View) { v.Labels[podops.GracefulDeletionLabel] = "enabled" })
	enabled.NamespaceLabel = "disabled"
	other := requested()
	other.Target = "u2"
	impatient := requested()
	impatient.Patience = time.Hour
	for name, tc := range map[string]struct {
		request drain.Request
		says    string
		ends    bool
	}{
		"a Pod in service":                 {request: requested(), says: "about to be taken out of service"},
		"one that rules hold":              {request: requested(marked(toDelete, podops.AskerEvictionRequest), held), says: "then deleted"},
		"one that is replaced":             {request: replaced, says: "another Pod takes its place first: it waits for a node"},
		"one that is to be replaced":       {request: surging, says: "another Pod takes its place first"},
		"one that a budget holds":          {request: kept, says: "PodDisruptionBudget web allows no disruption now", ends: true},
		"one that is being deleted":        {request: requested(func(v *podops.View) { v.Terminating = true }, cancelled), says: "is being deleted"},
		"another Pod of the name":          {request: other, says: "another one than the target", ends: true},
		"one that is not managed":          {request: drain.Request{Pod: serving(), Target: "u1", Now: now}, says: "not managed", ends: true},
		"one without a gate":               {request: requested(func(v *podops.View) { v.Gate = false }), says: "no readiness gate", ends: true},
		"one that opted out":               {request: requested(func(v *podops.View) { v.Labels[podops.GracefulDeletionLabel] = "disabled" }), says: "disabled", ends: true},
		"one whose namespace did":          {request: disabled, says: "disabled", ends: true},
		"one that did not":                 {request: enabled, says: "about to be"},
		"one whose mark was taken away":    {request: requested(cancelled), says: "was removed", ends: true},
		"one whose patience is not over":   {request: impatient, says: "about to be"},
		"one that is asked by others, too": {request: requested(marked(toDelete)), says: "about to be taken out of service"},
	} {
		t.Run(name, func(t *testing.T) {
			answer := tc.request.Answer(begun(time.Minute))
			require.NotNil(t, answer.Status)
			assert.Contains(t, *answer.Status.Message, tc.says)
			assert.Equal(t, tc.ends, answer.Status.CompletionTime != nil)
			assert.Equal(t, tc.ends, answer.Status.HeartbeatTime == nil)
			assert.Equal(t, !tc.ends, answer.Asks)
		})
	}
	was := begun(time.Minute)
	was.HeartbeatTime = was.StartTime
	answer := requested().Answer(was)
	assert.Contains(t, *answer.Status.Message, "mark of Pod web-1 was removed", "it was asked before")
	assert.False(t, answer.Asks)
	assert.True(t, impatient.Answer(begun(time.Hour)).Asks, "no rule holds it")
	impatient.Pod = requested(marked(toDelete, podops.AskerEvictionRequest), held).Pod
	answer = impatient.Answer(begun(time.Hour))
	assert.Contains(t, *answer.Status.Message, "given up after 1h0m0s: ")
	assert.NotNil(t, answer.Status.CompletionTime)
}

func TestHowOftenItIsToldThatWorkIsBeingDone(t *testing.T) {
	for name, tc := range map[string]struct {
		after   time.Duration
		changed bool
		want    bool
	}{
		"nothing new":              {after: 2 * time.Minute},
		"nothing new for long":     {after: 3 * time.Minute, want: true},
		"something new, too soon":  {after: 20 * time.Second, changed: true},
		"something new":            {after: 30 * time.Second, changed: true, want: true},
		"a clock that is set back": {after: -time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			request := requested(marked(toReplace, podops.AskerEvictionRequest))
			request.Policy = replaces(appsv1alpha1.EvictionReplace)
			first := request.Answer(begun(time.Minute))
			request.Now = now.Add(tc.after)
			if tc.changed {
				request.Awaits = "it waits for a node"
			}
			next := request.Answer(*first.Status)
			assert.Equal(t, tc.want, next.Status != nil)
			assert.True(t, next.Asks)
		})
	}
}

func TestWhatAnEvictionRequestAsksOfAPod(t *testing.T) {
	for name, tc := range map[string]struct {
		pod    podops.View
		policy appsv1alpha1.EvictionPolicy
		budget string
		want   map[string][]string // askers by mark
	}{
		"a Pod": {pod: serving(), want: map[string][]string{toDelete: {podops.AskerEvictionRequest}}},
		"one that is asked already": {pod: serving(marked(toDelete, podops.AskerEvictionRequest)),
			want: map[string][]string{toDelete: {podops.AskerEvictionRequest}}},
		"one that a call evicts, too": {pod: serving(marked(toDelete, podops.AskerEviction)),
			want: map[string][]string{toDelete: {podops.AskerEviction, podops.AskerEvictionRequest}}},
		"one that is to be replaced": {pod: serving(), policy: appsv1alpha1.EvictionReplace,
			want: map[string][]string{toReplace: {podops.AskerEvictionRequest}}},
		"one whose deletion rules hold": {policy: appsv1alpha1.EvictionReplaceWhenBlocked,
			pod:  serving(marked(toDelete, podops.AskerEvictionRequest), held),
			want: map[string][]string{toReplace: {podops.AskerEvictionRequest}}},
		"one that does not serve, whatever budgets say": {pod: serving(notReady), budget: "web",
			want: map[string][]string{toDelete: {podops.AskerEvictionRequest}}},
		"one that a budget holds and that can be replaced": {pod: serving(), budget: "web",
			policy: appsv1alpha1.EvictionReplaceWhenBlocked, want: map[string][]string{toReplace: {podops.AskerEvictionRequest}}},
		"one that is being deleted": {pod: serving(func(v *podops.View) { v.Terminating = true }), want: map[string][]string{}},
	} {
		t.Run(name, func(t *testing.T) {
			request := drain.Request{Facts: drain.Facts{Policy: replaces(tc.policy), Budget: tc.budget}, Pod: tc.pod, Now: now}
			v := request.Change().Apply(tc.pod)
			got := map[string][]string{}
			for _, mark := range []string{toDelete, toReplace} {
				if askers := podops.Askers(v, mark); askers != nil {
					got[mark] = askers
				}
			}
			assert.Equal(t, tc.want, got)
		})
	}
}

// TestWhatIsTakenBackIsOnlyOurs: whoever else asks, for whatever mark, asks as before, and knows as before that a person
// has taken the mark away.
func TestWhatIsTakenBackIsOnlyOurs(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var changes []func(*podops.View)
		for _, mark := range []string{toDelete, toReplace} {
			askers := rapid.SliceOfNDistinct(rapid.SampledFrom([]string{podops.AskerEviction, podops.AskerDrain, "job/1",
				podops.AskerEvictionRequest}), 0, 4, rapid.ID).Draw(t, mark)
			if len(askers) > 0 {
				changes = append(changes, marked(mark, askers...))
			}
			if rapid.Bool().Draw(t, "a person takes it away") {
				changes = append(changes, func(v *podops.View) { delete(v.Labels, mark) })
			}
		}
		v := serving(changes...)
		after := drain.Unrequest(v).Apply(v)
		assert.False(t, drain.IsRequested(after))
		assert.True(t, drain.Unrequest(after).IsZero())
		others := func(names []string) []string {
			return slices.DeleteFunc(names, func(name string) bool { return name == podops.AskerEvictionRequest || name == "" })
		}
		for _, mark := range []string{toDelete, toReplace} {
			assert.ElementsMatch(t, others(podops.Askers(v, mark)), podops.Askers(after, mark))
			record := func(v podops.View) []string {
				return others(strings.Split(v.Annotations[mark+podops.AskersSuffix], ","))
			}
			assert.ElementsMatch(t, record(v), record(after))
		}
	})
}

// TestAnswersKeepToTheRulesOfTheAPIServer: Kubernetes 1.37 refuses others (pkg/apis/lifecycle/validation).
func TestAnswersKeepToTheRulesOfTheAPIServer(t *testing.T) {
	const skew = 30 * time.Second
	rapid.Check(t, func(t *rapid.T) {
		server := now
		seconds := func(name string, from, to int) time.Duration {
			return time.Duration(rapid.IntRange(from, to).Draw(t, name)) * time.Second
		}
		was := begun(seconds("begun", -14, 3600))
		if rapid.Bool().Draw(t, "heard of") {
			heard := metav1.NewTime(was.StartTime.Add(seconds("heard of after", 0, int(server.Sub(was.StartTime.Time).Seconds())+14)))
			if heard.Before(was.StartTime) {
				heard = *was.StartTime
			}
			was.HeartbeatTime = &heard
		}
		request := requested(marked(toReplace, podops.AskerEvictionRequest))
		request.Policy = replaces(appsv1alpha1.EvictionReplace)
		request.Now = server.Add(seconds("our clock", -14, 14)).Truncate(time.Second)
		request.Patience = seconds("patience", 0, 3600)
		request.Awaits = strings.Repeat("ü", rapid.IntRange(0, 5000).Draw(t, "message"))
		status := request.Answer(was).Status
		if status == nil {
			return
		}
		assert.Equal(t, was.StartTime, status.StartTime)
		for name, at := range map[string]*metav1.Time{"heartbeat": status.HeartbeatTime, "completion": status.CompletionTime} {
			if at == nil || at == was.HeartbeatTime {
				continue
			}
			assert.False(t, at.Before(status.StartTime), name)
			assert.Less(t, at.Sub(server).Abs(), skew, name)
		}
		if was.HeartbeatTime != nil {
			assert.False(t, status.HeartbeatTime.Before(was.HeartbeatTime))
		}
		assert.LessOrEqual(t, utf8.RuneCountInString(*status.Message), 4000)
	})
}
