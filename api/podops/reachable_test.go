package podops_test

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
	"kusionstack.io/kuperator/internal/testkit/explorer"
)

// onePod is everything that can happen to one Pod: operators that begin, change
// their type, finish, cancel, or forget about it in the middle; rules that let
// any of them pass or none; a kubelet, an application that fails, a cooperator.
type onePod struct {
	ids   []string
	types []string
}

const cooperatorsFinalizer = "prot.podopslifecycle.kusionstack.io/x"

func (m onePod) initial(t *testing.T) podops.View {
	p := newPod()
	c, err := podops.Expect(p.View, "Service/d/s", cooperatorsFinalizer)
	require.NoError(t, err)
	p.write(c)
	p.settle()
	p.write(podops.Join(p.View, cooperatorsFinalizer, p.now))
	require.True(t, p.ServiceAvailable())
	return normal(p.View)
}

// normal is the same Pod with all times that mean the same made the same: what
// counts is whether a permission is older than the request beside it.
func normal(v podops.View) podops.View {
	labels := make(map[string]string, len(v.Labels))
	for key, value := range v.Labels {
		prefix, id, _ := strings.Cut(key, "/")
		switch prefix {
		case podops.OperationTypePrefix, podops.DoneOperationTypePrefix:
			labels[key] = value
		case podops.OperatingPrefix:
			labels[key] = podops.Stamp(start)
		case podops.PreCheckedPrefix:
			given, _ := podops.TimeOf(value)
			asked, asks := podops.TimeOf(v.Labels[podops.OperatingPrefix+"/"+id])
			labels[key] = podops.Stamp(start)
			if asks && given.Before(asked) {
				labels[key] = podops.Stamp(start.Add(-1))
			}
		default:
			labels[key] = "1"
		}
	}
	v.Labels = labels
	return v
}

func viewKey(v podops.View) string {
	var b strings.Builder
	for _, k := range slices.Sorted(maps.Keys(v.Labels)) {
		b.WriteString(k + "=" + v.Labels[k] + ",")
	}
	b.WriteString(strings.Join(v.Finalizers, ",") + string(v.ServiceReady) + strconv.FormatBool(v.Ready) +
		strconv.FormatBool(v.ContainersReady))
	return b.String()
}

// steps are what may happen next. Those that begin with "?" cannot be counted on.
func (m onePod) steps(v podops.View) []explorer.Step[podops.View] {
	var out []explorer.Step[podops.View]
	try := func(name string, to podops.View, err error) {
		out = append(out, explorer.Step[podops.View]{Name: name, To: normal(to), Err: err})
	}
	add := func(name string, to podops.View) { try(name, to, nil) }
	write := func(name string, c podops.Change) {
		if !c.IsZero() {
			add(name, c.Apply(v))
		}
	}
	later := start.Add(time.Second)
	for _, id := range m.ids {
		m.operator(v, id, later, try, write)
	}
	for name, verdicts := range m.verdicts() {
		step := podops.Advance(v, verdicts, start)
		if !step.IsZero() {
			after := step.Apply(v)
			var err error
			if len(verdicts) != 1 { // yes and no are enough, and the rest is what takes time
				err = resting(after, verdicts, step.ServiceReady != "")
			}
			try(name, after, err)
		}
	}
	kubelet := v
	kubelet.ContainersReady, kubelet.Ready = true, v.ServiceReady == corev1.ConditionTrue
	add("kubelet", kubelet)
	failing := v
	failing.Ready, failing.ContainersReady = false, false
	add("? the application fails", failing)
	if podops.MustLeave(v) {
		write("cooperator leaves", podops.Leave(v, cooperatorsFinalizer, start))
	} else if podops.MayJoin(v) {
		write("cooperator joins", podops.Join(v, cooperatorsFinalizer, start))
	}
	return out
}

// operator is what one operator may do, by the SDK or with bare labels.
func (m onePod) operator(
	v podops.View, id string, at time.Time, try func(string, podops.View, error), write func(string, podops.Change),
) {
	label := func(name, prefix string, value *string) {
		if _, has := v.Labels[prefix+"/"+id]; has != (value != nil) {
			write(name+id, podops.Change{Labels: map[string]*string{prefix + "/" + id: value}})
		}
	}
	o := podops.OperationOf(v, id)
	for _, opType := range m.types {
		c, err := podops.Begin(v, podops.Request{ID: id, Type: opType}, at)
		if !c.IsZero() || err != nil {
			try("? "+id+" begins "+opType, c.Apply(v), err)
		}
	}
	if podops.Allowed(v, id, o.Type) {
		write(id+" finishes", podops.Finish(v, id, o.Type, at))
	}
	if c := podops.Cancel(v, id, at); !c.IsZero() {
		after := c.Apply(v)
		try("? "+id+" cancels", after, nothingLeft(after, id, o.Phase))
	}
	if o.Phase != podops.PhaseNone {
		label("? undo is written for ", podops.UndoOperationTypePrefix, ptr.To("1"))
	}
	label("? operating is taken from ", podops.OperatingPrefix, nil)
}

func (m onePod) verdicts() map[string]podops.Verdicts {
	all, back := podops.Verdicts{}, podops.Verdicts{}
	named := map[string]podops.Verdicts{"lifecycle": all, "? rules only let back": back, "? rules say no": nil}
	for _, id := range m.ids {
		all[podops.Ask{ID: id, Stage: appsv1alpha1.StagePreCheck}] = true
		all[podops.Ask{ID: id, Stage: appsv1alpha1.StagePostCheck}] = true
		back[podops.Ask{ID: id, Stage: appsv1alpha1.StagePostCheck}] = true
		if len(m.ids) > 1 {
			named["? rules only let out "+id] = podops.Verdicts{{ID: id, Stage: appsv1alpha1.StagePreCheck}: true}
		}
	}
	return named
}

// resting says what is wrong with the result of a step: Advance has nothing to
// add to it, but once where the readiness that it wrote is news.
func resting(after podops.View, verdicts podops.Verdicts, news bool) error {
	again := podops.Advance(after, verdicts, start)
	if news {
		after = again.Apply(after)
		again = podops.Advance(after, verdicts, start)
	}
	if !again.IsZero() {
		return fmt.Errorf("not idempotent: %+v is due after %v", again, after.Labels)
	}
	return nil
}

// nothingLeft says what an undo left behind.
func nothingLeft(v podops.View, id string, from podops.Phase) error {
	for key := range v.Labels {
		if strings.HasSuffix(key, ".podopslifecycle.kusionstack.io/"+id) {
			return fmt.Errorf("undone in %s, and %s is left", from, key)
		}
	}
	return nil
}

func (m onePod) check(v podops.View) error {
	for _, o := range podops.Operations(v) {
		if o.Phase == podops.PhaseOperate && v.ServiceReady == corev1.ConditionTrue {
			return fmt.Errorf("service-ready is True while %s is in Operate", o.ID)
		}
		if podops.Allowed(v, o.ID, o.Type) && (v.Ready || v.Protected()) {
			return fmt.Errorf("%s may act on a Pod that serves", o.ID)
		}
	}
	return nil
}

func (m onePod) goal(v podops.View) bool {
	return v.ServiceAvailable() && v.Ready && len(podops.Operations(v)) == 0 &&
		len(slices.DeleteFunc(lifecycleKeys(v),
			func(k string) bool { return strings.HasPrefix(k, podops.OperationTypePrefix) })) == 0
}

// TestFromEveryReachableStateThePodCanComeBack searches all that can become of
// a Pod with up to three operations at once, whole: service-ready is never True
// in Operate, Advance is idempotent, undoing leaves nothing in any phase, and
// from every state the Pod can come back to service with nothing left over.
func TestFromEveryReachableStateThePodCanComeBack(t *testing.T) {
	for name, tc := range map[string]struct {
		onePod
		long bool
	}{
		"one operator that changes its type": {onePod{ids: []string{"a"}, types: []string{"update", "scale-in"}}, false},
		"two operators that change types":    {onePod{ids: []string{"a", "b"}, types: []string{"update", "scale-in"}}, false},
		"three operators of one type":        {onePod{ids: []string{"a", "b", "c"}, types: []string{"update"}}, true},
	} {
		t.Run(name, func(t *testing.T) {
			if tc.long && testing.Short() {
				t.Skip("takes long")
			}
			seen := map[podops.Phase]bool{}
			result, err := explorer.Search(explorer.Model[podops.View]{
				Initial: tc.initial(t), Steps: tc.steps, Key: viewKey, Goal: tc.goal,
				Check: func(v podops.View) error {
					for _, o := range podops.Operations(v) {
						seen[o.Phase] = true
					}
					return tc.check(v)
				},
				Fair: func(step string) bool { return !strings.HasPrefix(step, "?") },
			})
			t.Logf("%d states, %d steps, depth %d, phases %v", result.States, result.Steps, result.Depth,
				slices.Sorted(maps.Keys(seen)))
			require.NoError(t, err)
			for _, phase := range []podops.Phase{
				podops.PhasePreCheck, podops.PhasePreparing, podops.PhaseOperate, podops.PhaseFinished, podops.PhasePostCheck,
				podops.PhaseCompleting, podops.PhaseUndone, podops.PhaseAbandoned,
			} {
				require.True(t, seen[phase], "%s was not reached", phase)
			}
		})
	}
}
