package protocol_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
	"kusionstack.io/kuperator/internal/operationjob/jobplan"
	"kusionstack.io/kuperator/internal/testkit/explorer"
)

// Who asks for a mark: two OperationJobs, by the real decisions of operationjob-controller, and a user want the same of
// one Pod. collaset-controller, lifecycle-controller and the kubelet are reduced to what they do about marks. Each job
// knows the Pods as they were at some time, as a new leader does whose cache lags.

const (
	toReplace = appsv1alpha1.ToReplaceLabel
	toDelete  = appsv1alpha1.ToDeleteLabel
)

// askersState is the store, and what the jobs know of it. Pods and jobs are never changed in place.
type askersState struct {
	// Old is the Pod that the jobs name, New the one that takes its place; nil if there is none.
	Old, New *jobplan.Pod
	// Known are the Pods as each job knows them.
	Known [2]struct{ Old, New *jobplan.Pod }
	Jobs  [2]*appsv1alpha1.OperationJob
	// Version is that of the newest Pod.
	Version int
	Left    askersBudget
}

// askersBudget is what users and bad luck may still do.
type askersBudget struct {
	// Marks and Unmarks are of a user, Deletions of jobs, Kills of the Pod, Deadlines of the lifecycle that cancel.
	Marks, Unmarks, Deletions, Kills, Deadlines int
}

// askersDefects are planted.
type askersDefects struct {
	selfish bool // a job that withdraws takes the mark with it
	deaf    bool // a job that was cancelled does not learn it
}

type askersModel struct {
	mark string // what the jobs ask for
	askersDefects
}

func (m *askersModel) action() appsv1alpha1.OperationAction {
	if m.mark == toReplace {
		return appsv1alpha1.OpsActionReplace
	}
	return appsv1alpha1.OpsActionRecreate
}

func (m *askersModel) initial(left askersBudget) askersState {
	s := askersState{Left: left}
	s.Old = s.pod("old", "0")
	for j := range s.Jobs {
		job := &appsv1alpha1.OperationJob{}
		job.Name, job.UID, job.Generation = fmt.Sprintf("job%d", j), types.UID(fmt.Sprintf("u%d", j)), 1
		job.Finalizers = []string{appsv1alpha1.ProtectionFinalizer}
		job.Spec.Action = m.action()
		job.Spec.Targets = []appsv1alpha1.PodOpsTarget{{Name: "old"}}
		job.Spec.TTLSecondsAfterFinished = ptr.To[int32](1 << 30)
		s.Jobs[j] = job
	}
	for j := range s.Known {
		s.Known[j].Old = s.Old
	}
	return s
}

// pod is a Pod that serves.
func (s *askersState) pod(name, id string) *jobplan.Pod {
	s.Version++
	return &jobplan.Pod{
		View: podops.View{Name: name, UID: types.UID(fmt.Sprintf("%s-%d", name, s.Version)), Ready: true, Gate: true,
			ResourceVersion: fmt.Sprint(s.Version), ServiceReady: corev1.ConditionTrue,
			Labels: map[string]string{podops.ServiceAvailableLabel: "1", appsv1alpha1.InstanceIDLabel: id}},
		Managed: true, CollaSet: "web", InstanceID: id,
	}
}

// changed is the state in which the old Pod is changed so.
func (s askersState) changed(c podops.Change) askersState {
	next := *s.Old
	next.View = c.Apply(s.Old.View)
	s.Version++
	next.View.ResourceVersion = fmt.Sprint(s.Version)
	s.Old = &next
	return s
}

func label(key string, value *string) podops.Change {
	return podops.Change{Labels: map[string]*string{key: value}}
}

func (m *askersModel) steps(s askersState) []explorer.Step[askersState] {
	var steps []explorer.Step[askersState]
	add := func(name string, to askersState, err error) {
		steps = append(steps, explorer.Step[askersState]{Name: name, To: to, Err: err})
	}
	for j := range s.Jobs {
		m.job(s, j, add)
	}
	m.others(s, func(name string, to askersState) { add(name, to, nil) })
	m.users(s, func(name string, to askersState) { add("user "+name, to, nil) })
	return steps
}

// job is what one job's controller may do: see the Pods as they are, or any one part of what it decides on those that
// it knows.
func (m *askersModel) job(s askersState, j int, add func(string, askersState, error)) {
	job := s.Jobs[j]
	if job == nil {
		return
	}
	name := job.Name
	if known := s.Known[j]; known.Old != s.Old || known.New != s.New {
		next := s
		next.Known[j].Old, next.Known[j].New = s.Old, s.New
		add(name+" sees the Pods", next, nil)
	}
	plan := m.decide(s, j)
	for _, w := range plan.Writes {
		if s.Old == nil || s.Old.View.ResourceVersion != w.Pod.View.ResourceVersion {
			continue // a conflict
		}
		change := w.Change
		if m.selfish && change.Annotations[m.mark+podops.AskersSuffix] != nil && !podops.MarkedBy(change.Apply(s.Old.View),
			m.mark, jobplan.Asker(job.UID)) {
			change = podops.Unmark(s.Old.View, m.mark)
		}
		add(name+" writes: "+w.Does+" the Pod", s.changed(change), mayWithdraw(s.Old.View, change.Apply(s.Old.View), m.mark,
			jobplan.Asker(job.UID)))
	}
	next := s
	switch {
	case plan.Release:
		next.Jobs[j] = nil
		add(name+" is gone", next, noName(s, jobplan.Asker(job.UID)))
	case plan.Status == nil || m.deaf && isCancelled(plan.Status):
	default:
		stored := job.DeepCopy()
		stored.Status = *plan.Status
		next.Jobs[j] = stored
		add(name+" stores its status", next, nil)
	}
}

func isCancelled(s *appsv1alpha1.OperationJobStatus) bool {
	return s.TargetDetails[0].Error != nil && s.TargetDetails[0].Error.Reason == appsv1alpha1.ReasonCancelled
}

// decide makes the job's plan; what it wants confirmed it reads as it is.
func (m *askersModel) decide(s askersState, j int) jobplan.Plan {
	snapshot := jobplan.Snapshot{Job: s.Jobs[j], Now: now}
	pods := s.Known[j]
	for live := false; ; live = true {
		if len(s.Jobs[j].Status.TargetDetails) > 0 {
			t := jobplan.Target{Pod: pods.Old, Live: live}
			op := s.Jobs[j].Status.TargetDetails[0].Operation
			if n := pods.New; n != nil && op != nil && op.InstanceID == n.InstanceID {
				t.Successor = n
			}
			snapshot.Targets = []jobplan.Target{t}
		}
		plan := jobplan.Decide(&snapshot)
		if len(plan.Confirm) == 0 || live {
			return plan
		}
		pods.Old, pods.New = s.Old, s.New
	}
}

// mayWithdraw says what is wrong with a job's write: a mark goes only with the last who asks for it.
func mayWithdraw(before, after podops.View, mark, asker string) error {
	others := slices.DeleteFunc(podops.Askers(before, mark), func(name string) bool { return name == asker })
	if still := podops.Askers(after, mark); len(others) > 0 && len(still) == 0 {
		return fmt.Errorf("%s takes %s away, which %v ask for", asker, mark, others)
	}
	return nil
}

// noName says what is wrong if a job that is gone is named on the Pod.
func noName(s askersState, asker string) error {
	if s.Old != nil && !s.Old.View.Terminating && strings.Contains(s.Old.View.Annotations[toReplace+podops.AskersSuffix]+
		s.Old.View.Annotations[toDelete+podops.AskersSuffix], asker) {
		return fmt.Errorf("%s is gone, and the Pod names it", asker)
	}
	return nil
}

// others are collaset-controller, lifecycle-controller and the kubelet.
func (m *askersModel) others(s askersState, add func(string, askersState)) {
	if s.Old == nil {
		if s.New == nil {
			next := s
			next.New = next.pod("new", "0")
			add("collaset creates the Pod again", next)
		}
		return
	}
	v := s.Old.View
	_, wanted := v.Labels[toReplace]
	_, leaves := v.Labels[toDelete]
	_, paired := v.Labels[appsv1alpha1.ReplacePairNewIDLabel]
	next := s
	switch {
	case v.Terminating && len(v.Finalizers) == 0:
		next.Old = nil
		add("kubelet ends the Pod", next)
	case v.Terminating:
	case wanted && !paired:
		add("collaset begins a replacement", s.changed(label(appsv1alpha1.ReplacePairNewIDLabel, ptr.To("1"))))
	case wanted && s.New == nil:
		next.New = next.pod("new", "1")
		add("collaset creates the new Pod", next)
	case wanted && !leaves:
		add("collaset lets the Pod go", s.changed(label(toDelete, ptr.To("true"))))
	case paired && !wanted && !leaves:
		next = s.changed(label(appsv1alpha1.ReplacePairNewIDLabel, nil))
		next.New = nil
		add("collaset takes the replacement back", next)
	}
	if leaves && !v.Terminating {
		next := s.changed(podops.Change{})
		gone := *next.Old
		gone.View.Terminating = true
		next.Old = &gone
		add("lifecycle deletes the Pod", next)
	}
}

// users are people and bad luck.
func (m *askersModel) users(s askersState, add func(string, askersState)) {
	if s.Old != nil && !s.Old.View.Terminating {
		_, marked := s.Old.View.Labels[m.mark]
		if marked && s.Left.Unmarks > 0 {
			next := s.changed(label(m.mark, nil))
			next.Left.Unmarks--
			add("takes the mark away", next)
		}
		if marked && s.Left.Deadlines > 0 {
			next := s.changed(podops.Unmark(s.Old.View, m.mark))
			next.Left.Deadlines--
			add("has a deadline that cancels", next)
		}
		if !marked && s.Left.Marks > 0 {
			next := s.changed(label(m.mark, ptr.To("true")))
			next.Left.Marks--
			add("marks the Pod", next)
		}
	}
	if s.Old != nil && s.Left.Kills > 0 {
		next := s
		next.Left.Kills--
		next.Old = nil
		add("deletes the Pod at once", next)
	}
	for j, job := range s.Jobs {
		if job != nil && job.DeletionTimestamp == nil && s.Left.Deletions > 0 {
			next := s
			next.Left.Deletions--
			next.Jobs[j] = job.DeepCopy()
			next.Jobs[j].DeletionTimestamp = &metav1.Time{Time: now}
			add("deletes "+job.Name, next)
		}
	}
}

func (m *askersModel) goal(s askersState) bool {
	for _, job := range s.Jobs {
		if job != nil && (job.DeletionTimestamp != nil || job.Status.EndTime == nil) {
			return false
		}
	}
	for _, p := range []*jobplan.Pod{s.Old, s.New} {
		if p != nil && (len(p.View.Annotations) > 0 || len(p.View.Finalizers) > 0) {
			return false
		}
	}
	return true
}

// key leaves out which version of the Pod is which by number, but for what the jobs know.
func (m *askersModel) key(s askersState) string {
	same := [2][2]bool{}
	for j, known := range s.Known {
		same[j] = [2]bool{known.Old == s.Old, known.New == s.New}
	}
	versions := map[string]int{}
	at := func(p *jobplan.Pod) any {
		if p == nil {
			return nil
		}
		if _, ok := versions[p.View.ResourceVersion]; !ok {
			versions[p.View.ResourceVersion] = len(versions)
		}
		if _, ok := versions[string(p.View.UID)]; !ok {
			versions[string(p.View.UID)] = len(versions)
		}
		v := p.View
		return []any{versions[v.ResourceVersion], versions[string(v.UID)], v.Labels, v.Annotations, v.Finalizers,
			v.Terminating}
	}
	pods := []any{at(s.Old), at(s.New), at(s.Known[0].Old), at(s.Known[0].New), at(s.Known[1].Old), at(s.Known[1].New)}
	var jobs []any
	for _, job := range s.Jobs {
		if job == nil {
			jobs = append(jobs, nil)
			continue
		}
		status := job.Status.DeepCopy()
		for i := range status.TargetDetails {
			if op := status.TargetDetails[i].Operation; op != nil {
				op.PodUID = types.UID(fmt.Sprint(versions[string(op.PodUID)]))
			}
		}
		jobs = append(jobs, []any{status, job.DeletionTimestamp != nil})
	}
	key, err := json.Marshal([]any{pods, jobs, same, s.Left})
	if err != nil {
		panic(err)
	}
	return string(key)
}

func (m *askersModel) search(t *testing.T, left askersBudget) error {
	t.Helper()
	result, err := explorer.Search(explorer.Model[askersState]{
		Initial: m.initial(left), Steps: m.steps, Key: m.key, Goal: m.goal, Fair: fair,
		Check: func(askersState) error { return nil },
	})
	t.Logf("%d states, %d steps, depth %d, %d goal states", result.States, result.Steps, result.Depth, result.Goals)
	return err
}

// TestAskers searches what two jobs, a user and bad luck can do about one mark: it goes only with the last who asks or
// by the hand of a user, a job that was cancelled ends, and no name is left behind.
func TestAskers(t *testing.T) {
	for _, test := range []struct {
		name, mark string
		long       bool // searched by make explore
		left       askersBudget
	}{
		{"replace, alone", toReplace, false, askersBudget{}},
		{"replace, a job is deleted", toReplace, false, askersBudget{Deletions: 1}},
		{"replace, the Pod is gone", toReplace, false, askersBudget{Kills: 1}},
		{"replace, both jobs are deleted", toReplace, true, askersBudget{Deletions: 2}},
		{"replace, a user cancels", toReplace, true, askersBudget{Unmarks: 1}},
		{"replace, a user asks, too", toReplace, true, askersBudget{Marks: 1, Deletions: 1}},
		{"replace, a deadline", toReplace, true, askersBudget{Deadlines: 1}},
		{"delete, alone", toDelete, false, askersBudget{}},
		{"delete, a user cancels", toDelete, false, askersBudget{Unmarks: 1}},
		{"delete, a user asks, too", toDelete, false, askersBudget{Marks: 1, Deletions: 1}},
		{"delete, a deadline", toDelete, false, askersBudget{Deadlines: 1}},
		{"delete, the Pod is gone", toDelete, false, askersBudget{Kills: 1}},
		{"delete, both jobs are deleted", toDelete, false, askersBudget{Deletions: 2}},
	} {
		t.Run(test.name, func(t *testing.T) {
			if test.long && os.Getenv("EXPLORE") != "all" {
				t.Skip("searched by make explore")
			}
			require.NoError(t, (&askersModel{mark: test.mark}).search(t, test.left))
		})
	}
}

func TestAskersFindsPlantedDefects(t *testing.T) {
	for name, test := range map[string]struct {
		mark string
		askersDefects
		left    askersBudget
		problem string
	}{
		"a job that takes the mark with it": {toReplace, askersDefects{selfish: true}, askersBudget{Deletions: 1}, "ask for"},
		"a job that does not learn of its cancel": {toDelete, askersDefects{deaf: true}, askersBudget{Unmarks: 1},
			"cannot be reached"},
	} {
		t.Run(name, func(t *testing.T) {
			err := (&askersModel{mark: test.mark, askersDefects: test.askersDefects}).search(t, test.left)
			var v *explorer.Violation
			require.True(t, errors.As(err, &v), "%v", err)
			assert.ErrorContains(t, err, test.problem)
		})
	}
}
