package fault

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
	"kusionstack.io/kuperator/internal/testkit/observer"
)

// jobJudge judges what OperationJobs promise, on every state of every job and Pod: no more targets are under way than
// spec.parallelism allows, a target that has ended stays as it is, and a Pod carries something of a job only after the
// start of its target was stored, and nothing of it once that has ended. Jobs and Pods come from two watches, which lag
// each other, so what was first is decided by resourceVersions.
type jobJudge struct {
	mu    sync.Mutex
	plans map[string]*jobsOfPlan
}

// jobsOfPlan is what is known of the jobs and Pods of a plan, those that are gone among them.
type jobsOfPlan struct {
	jobs map[string]*judgedJob // by name
	// traces are when a Pod was seen with something of a job first and last, by the Pod's name.
	traces map[string]map[trace]*span
	checks int
	broken []observer.Violation
}

// trace is something of a job on a Pod. Either job, its name, or asker, its name in the record of a mark, is set.
type trace struct{ kind, job, asker string }

const (
	ofOperation = "a key of the lifecycle"
	ofTask      = "a task"
	ofMark      = "a mark"
)

// span is two resourceVersions of a Pod.
type span struct{ first, last string }

// judgedJob is a job as it was last seen. newest and gone, which is "" while it is there, are resourceVersions.
type judgedJob struct {
	asker, newest, gone string
	targets             map[string]*judgedTarget // by the Pod's name
}

// judgedTarget is a target as it was last seen. started and ended are resourceVersions of the job, "" before.
type judgedTarget struct {
	progress       appsv1alpha1.OperationProgress
	started, ended string
}

func newJobJudge() *jobJudge { return &jobJudge{plans: map[string]*jobsOfPlan{}} }

// of needs j.mu.
func (j *jobJudge) of(plan string) *jobsOfPlan {
	if j.plans[plan] == nil {
		j.plans[plan] = &jobsOfPlan{jobs: map[string]*judgedJob{}, traces: map[string]map[trace]*span{}}
	}
	return j.plans[plan]
}

// sees judges a state of an object. Others than jobs and Pods are ignored.
func (j *jobJudge) sees(o client.Object, gone bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	p := j.of(prefixOf(o.GetName()))
	switch o := o.(type) {
	case *appsv1alpha1.OperationJob:
		p.seesJob(o, gone)
	case *corev1.Pod:
		if !p.seesPod(o) {
			return
		}
	default:
		return
	}
	p.compare(o)
}

// found adds what another part of the suite has found about a plan's jobs.
func (j *jobJudge) found(plan, object, wrong string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.of(plan).found(observer.Keys, object, wrong)
}

// verdict is what was found about a plan.
func (j *jobJudge) verdict(plan string) (checks int, violations []observer.Violation) {
	j.mu.Lock()
	defer j.mu.Unlock()
	p := j.of(plan)
	return p.checks, slices.Clone(p.broken)
}

// found keeps each finding once.
func (p *jobsOfPlan) found(promise observer.Invariant, object, wrong string) {
	isKnown := func(v observer.Violation) bool { return v.Object == object && v.Message == wrong }
	if !slices.ContainsFunc(p.broken, isKnown) {
		p.broken = append(p.broken, observer.Violation{Invariant: promise, Time: time.Now(), Object: object, Message: wrong})
	}
}

func (p *jobsOfPlan) seesJob(o *appsv1alpha1.OperationJob, gone bool) {
	job, object := p.jobs[o.Name], "OperationJob "+client.ObjectKeyFromObject(o).String()
	if job == nil {
		job = &judgedJob{asker: "operationjob/" + string(o.UID), targets: map[string]*judgedTarget{}}
		p.jobs[o.Name] = job
	}
	job.newest = o.ResourceVersion
	if gone {
		job.gone = o.ResourceVersion
		return
	}
	underWay := 0
	for i := range o.Status.TargetDetails {
		d := &o.Status.TargetDetails[i]
		t := job.targets[d.Name]
		if t == nil {
			t = &judgedTarget{}
			job.targets[d.Name] = t
		}
		p.checks++
		if t.ended != "" && t.progress != d.Progress {
			p.found(observer.Keys, object, fmt.Sprintf("has target %s, which has ended, turn from %s to %s", d.Name,
				t.progress, d.Progress))
		}
		t.progress = d.Progress
		if t.started == "" && d.Progress == appsv1alpha1.OperationProgressProcessing {
			t.started = o.ResourceVersion
		}
		isOver := d.Progress == appsv1alpha1.OperationProgressSucceeded || d.Progress == appsv1alpha1.OperationProgressFailed
		if t.ended == "" && isOver {
			t.ended = o.ResourceVersion
		}
		if !isOver && (t.started != "" || d.Operation != nil) {
			underWay++
		}
	}
	if most := o.Spec.Parallelism; most != nil {
		p.checks++
		if underWay > most.IntValue() {
			p.found(observer.Budget, object, fmt.Sprintf("has %d targets under way, and may have %s", underWay, most))
		}
	}
}

// seesPod reports whether the Pod has something of a job.
func (p *jobsOfPlan) seesPod(pod *corev1.Pod) bool {
	traces := tracesOn(pod)
	for _, t := range traces {
		if p.traces[pod.Name] == nil {
			p.traces[pod.Name] = map[trace]*span{}
		}
		if s := p.traces[pod.Name][t]; s != nil {
			s.last = pod.ResourceVersion
		} else {
			p.traces[pod.Name][t] = &span{pod.ResourceVersion, pod.ResourceVersion}
		}
	}
	return len(traces) > 0
}

// tracesOn are what a Pod has of jobs.
func tracesOn(pod *corev1.Pod) []trace {
	var found []trace
	for _, key := range sortedKeys(pod.Labels) {
		if prefix, id, _ := strings.Cut(key, "/"); strings.Contains(prefix, "podopslifecycle") && prefixOf(id) != "" {
			found = append(found, trace{kind: ofOperation, job: id})
		}
	}
	v := podops.Read(pod)
	tasks, _ := podops.Tasks(v)
	for _, id := range sortedKeys(tasks) {
		found = append(found, trace{kind: ofTask, job: id})
	}
	for _, mark := range []string{appsv1alpha1.ToReplaceLabel, appsv1alpha1.ToDeleteLabel} {
		for asker := range strings.SplitSeq(pod.Annotations[mark+podops.AskersSuffix], ",") {
			if strings.HasPrefix(asker, "operationjob/") {
				found = append(found, trace{kind: ofMark, asker: asker})
			}
		}
	}
	return found
}

// compare judges when Pods had something of jobs.
func (p *jobsOfPlan) compare(o client.Object) {
	for _, name := range sortedKeys(p.jobs) {
		job := p.jobs[name]
		for _, pod := range sortedKeys(p.traces) {
			for t, s := range p.traces[pod] {
				if t.job != name && t.asker != job.asker {
					continue
				}
				p.checks++
				object := fmt.Sprintf("Pod %s/%s", o.GetNamespace(), pod)
				if why := job.judge(pod, t.kind, s); why != "" {
					p.found(observer.Keys, object, fmt.Sprintf("has %s of OperationJob %s, %s", t.kind, name, why))
				}
			}
		}
	}
}

// judge says why a Pod may not have had something of the job at two moments, "" if it may.
func (job *judgedJob) judge(pod, kind string, s *span) string {
	t := job.targets[pod]
	isStarted := t != nil && t.started != ""
	isReleased := t != nil && t.progress == appsv1alpha1.OperationProgressFailed || job.gone != ""
	switch {
	case !isStarted && older(s.first, job.newest):
		return "and the start of a target is not stored"
	case isStarted && older(s.first, t.started):
		return "from before the start of its target was stored"
	case isReleased && kind == ofOperation: // lifecycle-controller ends what was cancelled
		return ""
	case isStarted && t.ended != "" && older(t.ended, s.last):
		return "whose target has ended"
	case job.gone != "" && older(job.gone, s.last):
		return "which is gone"
	}
	return ""
}

func TestBrokenPromisesOfJobsAreFound(t *testing.T) {
	const processing, succeeded, failed = appsv1alpha1.OperationProgressProcessing,
		appsv1alpha1.OperationProgressSucceeded, appsv1alpha1.OperationProgressFailed
	// job is a job about the Pods p1-a and p1-b, of which one may be under way.
	job := func(version string, a, b appsv1alpha1.OperationProgress) *appsv1alpha1.OperationJob {
		job := &appsv1alpha1.OperationJob{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p1-job", UID: "u",
			ResourceVersion: version}}
		job.Spec.Parallelism = ptr.To(intstr.FromInt(1))
		job.Status.TargetDetails = []appsv1alpha1.OpsStatus{{Name: "p1-a", Progress: a}, {Name: "p1-b", Progress: b}}
		return job
	}
	pod := func(version string, labels, annotations map[string]string) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p1-a", ResourceVersion: version,
			Labels: labels, Annotations: annotations}}
	}
	operating := map[string]string{podops.OperatingPrefix + "/p1-job": "1"}
	task := map[string]string{podops.TasksAnnotation: `{"p1-job":{"action":"example.com/x"}}`}
	asked := map[string]string{appsv1alpha1.ToReplaceLabel + podops.AskersSuffix: "operationjob/u"}
	const gone = "gone"
	type events []any // gone is about the object before it
	tests := map[string]struct {
		events events
		want   string
	}{
		"in order": {events{job("1", "Pending", "Pending"), job("2", processing, "Pending"), pod("3", operating, task),
			pod("4", nil, nil), job("5", succeeded, processing), job("6", succeeded, succeeded)}, ""},
		"the Pods' watch is behind": {events{job("2", processing, "Pending"), job("5", succeeded, "Pending"),
			pod("3", operating, asked), pod("4", nil, nil)}, ""},
		"the jobs' watch is behind": {events{pod("3", operating, asked), job("1", "Pending", "Pending"),
			job("2", processing, "Pending")}, ""},
		"two under way": {events{job("2", processing, processing)}, "has 2 targets under way, and may have 1"},
		"another end":   {events{job("2", failed, ""), job("3", succeeded, "")}, "turn from Failed to Succeeded"},
		"begun again":   {events{job("2", succeeded, ""), job("3", processing, "")}, "turn from Succeeded to Processing"},
		"before its start": {events{pod("2", operating, nil), job("3", processing, "")},
			"from before the start of its target was stored"},
		"never started": {events{job("2", "Pending", ""), pod("3", nil, asked), job("4", "Pending", "")},
			"the start of a target is not stored"},
		"a key stays": {events{job("2", processing, ""), job("4", succeeded, ""), pod("5", operating, nil)},
			"has a key of the lifecycle of OperationJob p1-job, whose target has ended"},
		"a task stays": {events{job("2", processing, ""), pod("5", nil, task), job("4", failed, "")},
			"has a task of OperationJob p1-job, whose target has ended"},
		"an asker stays": {events{job("2", processing, ""), job("4", failed, ""), pod("5", nil, asked)},
			"has a mark of OperationJob p1-job, whose target has ended"},
		"a cancelled operation is ended by another": {events{job("2", processing, ""), job("4", failed, ""),
			pod("5", operating, nil)}, ""},
		"the job is gone": {events{job("2", processing, ""), job("4", processing, ""), gone, pod("5", operating, task)},
			"has a task of OperationJob p1-job, which is gone"},
		"of another job": {events{job("2", succeeded, ""), pod("3",
			map[string]string{podops.OperatingPrefix + "/p1-other": "1"}, nil)}, ""},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			judge := newJobJudge()
			for i, event := range tc.events {
				if o, is := event.(client.Object); is {
					judge.sees(o, i+1 < len(tc.events) && tc.events[i+1] == gone)
				}
			}
			checks, found := judge.verdict("p1")
			require.Positive(t, checks)
			if tc.want == "" {
				require.Empty(t, found)
				return
			}
			require.Len(t, found, 1)
			require.Contains(t, found[0].Message, tc.want)
		})
	}
}
