package plugin

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	kubefake "k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/client/clientset/versioned/fake"
	"kusionstack.io/kuperator/internal/insight"
)

// shop answers as an API server does that has CollaSets and their Pods, of any name, and remembers what is written.
type shop struct {
	// withoutJobs is true if the kind OperationJob is not installed.
	withoutJobs bool
	// policy is the CollaSets' podUpgradePolicy, askers and marked are of the Pods' mark to-replace.
	policy appsv1alpha1.PodUpdatePolicy
	askers string
	marked bool

	written []string // method, path and body
}

func (s *shop) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	resource, name := path.Base(path.Dir(r.URL.Path)), path.Base(r.URL.Path)
	if r.Method != http.MethodGet {
		body, _ := io.ReadAll(r.Body)
		if r.Method == http.MethodPost && s.withoutJobs {
			http.NotFound(w, r)
			return
		}
		s.written = append(s.written, r.Method+" "+r.URL.Path+" "+string(body))
		if r.Method == http.MethodPost { // it is as it was sent
			_, _ = w.Write(body)
			return
		}
	}
	_ = json.NewEncoder(w).Encode(s.object(resource, name))
}

func (s *shop) object(resource, name string) any {
	switch resource {
	case "collasets":
		set := &appsv1alpha1.CollaSet{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, UID: "set"}}
		set.Spec.UpdateStrategy.PodUpdatePolicy = s.policy
		if name != "empty" {
			set.Status.Replicas = 3
		}
		return set
	case "pods":
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, UID: types.UID(name)}}
		pod.OwnerReferences = []metav1.OwnerReference{{Kind: "CollaSet", Name: "web", Controller: ptr.To(true)}}
		pod.Labels, pod.Annotations = map[string]string{}, map[string]string{}
		if s.marked {
			pod.Labels[appsv1alpha1.ToReplaceLabel] = "true"
		}
		if s.askers != "" {
			pod.Annotations[appsv1alpha1.ToReplaceLabel+"-askers"] = s.askers
		}
		return pod
	}
	jobs := appsv1alpha1.OperationJobList{TypeMeta: metav1.TypeMeta{
		APIVersion: appsv1alpha1.SchemeGroupVersion.String(), Kind: "OperationJobList"}}
	if name == "operationjobs" {
		jobs.Items = make([]appsv1alpha1.OperationJob, 1)
		jobs.Items[0].Namespace, jobs.Items[0].Name, jobs.Items[0].UID = "shop", "move", "u-move"
		return jobs
	}
	return coordinationv1.LeaseList{TypeMeta: metav1.TypeMeta{APIVersion: "coordination.k8s.io/v1", Kind: "LeaseList"}}
}

// runs runs a command against the server.
func (s *shop) runs(t *testing.T, command string) (out, problems string, code int) {
	t.Helper()
	listener := httptest.NewServer(s)
	defer listener.Close()
	t.Setenv("KUBECONFIG", "/dev/null")
	var stdout, stderr bytes.Buffer
	code = Run(t.Context(), append([]string{"--server", listener.URL, "-n", "shop"}, strings.Fields(command)...),
		genericiooptions.IOStreams{In: strings.NewReader(""), Out: &stdout, ErrOut: &stderr})
	return stdout.String(), stderr.String(), code
}

// TestJobsThatAreCreated: each command's job, as the API server gets it.
func TestJobsThatAreCreated(t *testing.T) {
	for command, want := range map[string]string{
		"restart pod/web-a": `
  action: Restart
  targets: [{name: web-a}]`,
		"restart pod web-a web-b -c main -c proxy --parallelism 1 --max-failed 0 --fallback Fail": `
  action: Restart
  targets: [{name: web-a, containers: [main, proxy]}, {name: web-b, containers: [main, proxy]}]
  parallelism: 1
  failurePolicy: {maxFailedTargets: 0}
  restart: {fallback: Fail}`,
		"restart collaset/web --in-place": `
  action: Restart
  targetSelector: {workload: {kind: CollaSet, name: web}}
  parallelism: 25%`,
		"restart web --in-place -c main --parallelism 10%": `
  action: Restart
  targetSelector: {workload: {kind: CollaSet, name: web}, containers: [main]}
  parallelism: 10%`,
		"replace web-a": `
  action: Replace
  targets: [{name: web-a}]`,
		"replace collaset/web --max-failed 2": `
  action: Replace
  targetSelector: {workload: {kind: CollaSet, name: web}}
  parallelism: 25%
  failurePolicy: {maxFailedTargets: 2}`,
	} {
		t.Run(command, func(t *testing.T) {
			s := &shop{}
			out, problems, code := s.runs(t, command+" --detach")
			require.Zero(t, code, problems)
			require.Len(t, s.written, 1)
			body, isCreated := strings.CutPrefix(s.written[0],
				"POST /apis/apps.kusionstack.io/v1alpha1/namespaces/shop/operationjobs ")
			require.True(t, isCreated, s.written[0])
			var sent, wanted appsv1alpha1.OperationJob
			require.NoError(t, json.Unmarshal([]byte(body), &sent))
			require.NoError(t, yaml.UnmarshalStrict([]byte("spec:"+want), &wanted))
			require.Equal(t, wanted.Spec, sent.Spec)
			require.Regexp(t, `^(restart|replace)-(web-a|web|pods)-[a-z0-9]{5}$`, sent.Name)
			require.Contains(t, out, "operationjob/"+sent.Name+" created")
			require.Contains(t, out, "kubectl -n shop delete operationjob/"+sent.Name)
			require.Contains(t, out, "it waits: operationjob-controller is not running")
		})
	}
}

func TestNameOfAJob(t *testing.T) {
	long := strings.Repeat("a", 48) + "." + strings.Repeat("b", 99)
	name := jobName(appsv1alpha1.OpsActionRestart, []insight.Ref{{Name: long}})
	require.Regexp(t, `^restart-a{48}-[a-z0-9]{5}$`, name)
	require.LessOrEqual(t, len(name), 63)
}

// TestDryRunsOfJobs: nothing is written, and the job can be kept as a manifest.
func TestDryRunsOfJobs(t *testing.T) {
	s := &shop{}
	out, problems, code := s.runs(t, "restart pod/web-a --dry-run=client -o yaml")
	require.Zero(t, code, problems)
	require.Empty(t, s.written)
	var job appsv1alpha1.OperationJob
	require.NoError(t, yaml.UnmarshalStrict([]byte(out), &job))
	require.Equal(t, "OperationJob", job.Kind)
	require.Equal(t, appsv1alpha1.OpsActionRestart, job.Spec.Action)
	out, problems, code = s.runs(t, "replace pod/web-a --dry-run=client")
	require.Zero(t, code, problems)
	require.Contains(t, out, "created (client dry run)")
	require.Empty(t, s.written)
}

// TestWithoutTheKindOperationJob: a replacement is asked for by the mark, a restart in place cannot be.
func TestNoJobForACollaSetWithoutPods(t *testing.T) {
	for _, command := range []string{"restart collaset/empty --in-place", "replace collaset/empty"} {
		s := &shop{}
		_, problems, code := s.runs(t, command)
		require.Equal(t, codeError, code)
		require.Contains(t, problems, "collaset/empty has no Pods")
		require.Empty(t, s.written)
	}
}

func TestWithoutTheKindOperationJob(t *testing.T) {
	s := &shop{withoutJobs: true}
	out, problems, code := s.runs(t, "replace pod/web-a pod/web-b")
	require.Zero(t, code, problems)
	require.Len(t, s.written, 2)
	require.Regexp(t,
		`^PATCH /api/v1/namespaces/shop/pods/web-a .*"collaset.kusionstack.io/to-replace":"\d+".*"uid":"web-a"`,
		s.written[0])
	require.Contains(t, out, "pod/web-a being replaced")
	require.Contains(t, out, "OperationJob is not installed")
	for _, command := range []string{"restart pod/web-a", "restart collaset/web --in-place", "replace collaset/web"} {
		_, problems, code = s.runs(t, command)
		require.Equal(t, codeError, code)
		require.Contains(t, problems, "kubectl apply --server-side -k deploy/crd", command)
	}
	require.Len(t, s.written, 2)
}

// TestCancelIsForUsers: what a job asks for is left to the job, which is named.
func TestCancelIsForUsers(t *testing.T) {
	const annotation, label = "collaset.kusionstack.io/to-replace-askers", "collaset.kusionstack.io/to-replace"
	for name, tc := range map[string]struct {
		askers        string
		marked        bool
		code          int
		says, patches string
	}{
		"nothing is asked for": {says: "not being replaced any more already: nothing to do"},
		"a user asks": {marked: true, says: "pod/web-a not being replaced any more",
			patches: `"labels":{"` + label + `":null}`},
		"a job asks": {marked: true, askers: "operationjob/u-move", code: codeError,
			says: "operationjob/move asked for its replacement; to stop that: kubectl -n shop delete operationjob/move"},
		"both ask": {marked: true, askers: "operationjob/u-gone,operationjob/u-move,other",
			says:    "kubectl -n shop delete operationjob/u-gone operationjob/move",
			patches: `"annotations":{"` + annotation + `":"operationjob/u-gone,operationjob/u-move"}`},
	} {
		t.Run(name, func(t *testing.T) {
			s := &shop{askers: tc.askers, marked: tc.marked}
			out, problems, code := s.runs(t, "replace pod/web-a --cancel")
			require.Equal(t, tc.code, code, problems)
			require.Contains(t, out+problems, tc.says)
			if tc.patches == "" {
				require.Empty(t, s.written)
				return
			}
			require.Len(t, s.written, 1)
			require.Contains(t, s.written[0], tc.patches)
		})
	}
}

// TestRestartSaysWhichItIs: an update of the CollaSet, and how to restart in place instead.
func TestRestartSaysWhichItIs(t *testing.T) {
	const inPlace = "kubectl kuperator -n shop restart collaset/web --in-place"
	for policy, says := range map[appsv1alpha1.PodUpdatePolicy]string{
		"":                                "its Pods are re-created, as an update; to restart containers in place: " + inPlace,
		appsv1alpha1.PodUpdateReplace:     "its Pods are replaced, as an update; to restart containers in place: " + inPlace,
		appsv1alpha1.PodUpdateInPlaceOnly: "are not re-created: to restart containers in place, " + inPlace,
	} {
		s := &shop{policy: policy}
		out, problems, code := s.runs(t, "restart collaset/web")
		require.Contains(t, out+problems, says)
		require.Equal(t, policy == appsv1alpha1.PodUpdateInPlaceOnly, code != 0)
		require.Len(t, s.written, 1-code)
	}
}

// followed is a job that a command follows, and what the command does.
type followed struct {
	job           atomic.Pointer[appsv1alpha1.OperationJob]
	changes       *watch.RaceFreeFakeWatcher
	out, problems *lockedBuffer
	interrupt     context.CancelFunc
	ended         chan error
}

func follow(t *testing.T, output string, listing error) *followed {
	t.Helper()
	job := &appsv1alpha1.OperationJob{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "restart-web"}}
	job.Spec.Action = appsv1alpha1.OpsActionRestart
	f := &followed{changes: watch.NewRaceFreeFake(), out: &lockedBuffer{}, problems: &lockedBuffer{},
		ended: make(chan error, 1)}
	f.job.Store(job)
	suite := fake.NewClientset()
	suite.PrependReactor("get", "operationjobs", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, f.job.Load().DeepCopy(), nil
	})
	suite.PrependReactor("list", "operationjobs", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, &appsv1alpha1.OperationJobList{Items: []appsv1alpha1.OperationJob{*f.job.Load().DeepCopy()}}, listing
	})
	suite.PrependWatchReactor("operationjobs", clienttesting.DefaultWatchReactor(f.changes, nil))
	p := &plugin{IOStreams: genericiooptions.IOStreams{Out: f.out, ErrOut: f.problems}, output: output}
	kube := kubefake.NewClientset(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}})
	s := &session{namespace: "shop", system: insight.SystemNamespace, kube: kube, suite: suite,
		clock: clock.RealClock{}, server: &serverTime{clock: clock.RealClock{}}}
	ctx, interrupt := context.WithCancel(t.Context())
	f.interrupt = interrupt
	t.Cleanup(interrupt)
	go func() { f.ended <- p.followJob(ctx, s, job) }()
	return f
}

// shows waits until the command has printed a text.
func (f *followed) shows(t *testing.T, text string) {
	t.Helper()
	require.EventuallyWithT(t, func(c *assert.CollectT) { assert.Contains(c, f.out.String(), text) }, 20*time.Second,
		10*time.Millisecond)
}

// becomes writes the job's status.
func (f *followed) becomes(progress appsv1alpha1.OperationProgress, details ...appsv1alpha1.OpsStatus) {
	job := f.job.Load().DeepCopy()
	job.Status = appsv1alpha1.OperationJobStatus{Progress: progress, StartTime: ptr.To(metav1.Now()),
		TargetDetails: details}
	for _, d := range details {
		switch d.Progress {
		case appsv1alpha1.OperationProgressSucceeded:
			job.Status.SucceededPodCount++
		case appsv1alpha1.OperationProgressFailed:
			job.Status.FailedPodCount++
		case appsv1alpha1.OperationProgressPending, appsv1alpha1.OperationProgressProcessing:
		}
	}
	if progress != appsv1alpha1.OperationProgressProcessing {
		job.Status.EndTime = ptr.To(metav1.Now())
	}
	f.job.Store(job)
	f.changes.Modify(job)
}

func detail(name string, progress appsv1alpha1.OperationProgress) appsv1alpha1.OpsStatus {
	return appsv1alpha1.OpsStatus{Name: name, Progress: progress}
}

const (
	underWay  = appsv1alpha1.OperationProgressProcessing
	succeeded = appsv1alpha1.OperationProgressSucceeded
	failed    = appsv1alpha1.OperationProgressFailed
)

func TestAJobIsFollowedUntilItSucceeds(t *testing.T) {
	f := follow(t, "", nil)
	f.shows(t, "operationjob/restart-web created\ntargets are not recorded yet  waits for ControllerMissing")
	waits := detail("web-a", underWay)
	waits.ExtraInfo = map[appsv1alpha1.OpsExtraInfoKey]string{appsv1alpha1.ExtraInfoWaiting: "the door is shut"}
	f.becomes(underWay, waits, detail("web-b", succeeded))
	f.shows(t, "1 of 2 targets done, 1 under way  waits for ")
	recreated := detail("web-a", succeeded)
	recreated.ExtraInfo = map[appsv1alpha1.OpsExtraInfoKey]string{appsv1alpha1.ExtraInfoRecreated: "no second name"}
	f.becomes(succeeded, recreated, detail("web-b", succeeded))
	require.NoError(t, <-f.ended)
	require.True(t, strings.HasSuffix(f.out.String(), `2 of 2 targets done
operationjob/restart-web succeeded: 2 of 2 targets done
  web-a was re-created, not restarted in place: no second name
`), f.out.String())
}

func TestAJobThatFailsIsAnError(t *testing.T) {
	f := follow(t, "json", nil)
	lost := detail("web-a", failed)
	lost.Error = &appsv1alpha1.OpsError{Reason: appsv1alpha1.ReasonPodNotFound, Message: "the Pod does not exist"}
	f.becomes(failed, lost, detail("web-b", succeeded))
	require.EqualError(t, <-f.ended, "operationjob/restart-web failed: 2 of 2 targets done, 1 failed\n"+
		"  web-a: PodNotFound: the Pod does not exist")
	var job appsv1alpha1.OperationJob
	require.NoError(t, json.Unmarshal([]byte(f.out.String()), &job), "nothing is printed but the job")
	require.Equal(t, failed, job.Status.Progress)
	require.Equal(t, "OperationJob", job.Kind)
}

func TestAnInterruptedCommandLeavesTheJob(t *testing.T) {
	f := follow(t, "", nil)
	f.shows(t, "targets are not recorded yet")
	f.interrupt()
	require.ErrorIs(t, <-f.ended, errInterrupted)
	require.Equal(t, `operationjob/restart-web goes on
  watch it: kubectl kuperator -n shop status operationjob/restart-web --watch
  stop it: kubectl -n shop delete operationjob/restart-web
`, f.problems.String())
}

func TestAJobThatCannotBeFollowed(t *testing.T) {
	f := follow(t, "", nil)
	f.shows(t, "targets are not recorded yet")
	f.changes.Delete(f.job.Load())
	require.EqualError(t, <-f.ended, "operationjob/restart-web was deleted before it ended")

	f = follow(t, "", apierrors.NewForbidden(appsv1alpha1.Resource("operationjobs"), "", nil))
	require.ErrorContains(t, <-f.ended, "operationjob/restart-web goes on, and cannot be followed")
}

// TestProgressFitsTheTerminal, and takes the same lines each time.
func TestProgressFitsTheTerminal(t *testing.T) {
	var out bytes.Buffer
	v := progressView{out: &out}
	lines := []string{"█░ 1 of 2", "  waits for BudgetSpent: " + strings.Repeat("long ", 40)}
	v.draw(lines, 40)
	first := out.String()
	for line := range strings.Lines(first) {
		require.LessOrEqual(t, len([]rune(strings.TrimSuffix(line, "\033[K\n"))), 39)
	}
	v.draw(lines, 40)
	require.Equal(t, "\033[2F"+first, strings.TrimPrefix(out.String(), first))
}

// TestPlainProgressHasALineForEachChange: numbers in messages are no change.
func TestPlainProgressHasALineForEachChange(t *testing.T) {
	var out bytes.Buffer
	v := progressView{out: &out}
	job := insight.Job{Total: 2, UnderWay: 1}
	for i, code := range []insight.Code{insight.CodeBudgetSpent, insight.CodeBudgetSpent, insight.CodeImagePull} {
		job.Reasons = []insight.Reason{{Code: code, Message: fmt.Sprintf("%d available", i)}}
		v.show(&job)
	}
	require.Equal(t, "0 of 2 targets done, 1 under way  waits for BudgetSpent: 0 available\n"+
		"0 of 2 targets done, 1 under way  waits for ImagePull: 2 available\n", out.String())
}

func TestSeveralTargets(t *testing.T) {
	pods := func(names ...string) (refs []insight.Ref) {
		for _, name := range names {
			refs = append(refs, insight.Ref{Kind: "Pod", Name: name})
		}
		return refs
	}
	for args, want := range map[string][]insight.Ref{
		"pod/a pod/b": pods("a", "b"), "pods a b": pods("a", "b"), "a b": pods("a", "b"), "po/a b": pods("a", "b"),
		"cls/web": {{Kind: "CollaSet", Name: "web"}}, "collaset web": {{Kind: "CollaSet", Name: "web"}},
	} {
		refs, err := targets(strings.Fields(args), "Pod", "Pod", "CollaSet")
		require.NoError(t, err, args)
		require.Equal(t, want, refs, args)
	}
}

// lockedBuffer is written by one goroutine and read by another.
type lockedBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}
