package fault

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
	"kusionstack.io/kuperator/internal/testkit/faultproxy"
	"kusionstack.io/kuperator/internal/testkit/faultreport"
	"kusionstack.io/kuperator/internal/testkit/observer"
	"kusionstack.io/kuperator/internal/testkit/overlay"
	"kusionstack.io/kuperator/internal/testkit/suite"
)

// A suite that cannot fail shows nothing. Here defects are planted into components, which are built from changed
// copies of their sources by `go build -overlay`, and the observer must find each, while the component as it ships
// passes the same.

// bug is a planted defect.
type bug struct {
	name, component string
	changes         []sourceChange
	play            scenario
	// fault is what happens during the play's steps, nil for nothing.
	fault func(*play) faultproxy.Fault
	// finds are the promises by which it may be found.
	finds []observer.Invariant
}

// sourceChange replaces a text that occurs exactly once in a file.
type sourceChange struct{ file, from, to string }

func bugs() []bug {
	return []bug{
		{
			name: "without-preconditions", component: suite.CollaSet,
			changes: []sourceChange{
				{"internal/collaset/apply.go", "	\"context\"\n", "	\"context\"\n	\"encoding/json\"\n"},
				{"internal/collaset/apply.go",
					"	target := freshness.PodTarget(o.set.Namespace, pod.Name())\n	if err := s.client.Patch(ctx, target, client.RawPatch(kind, data)); err != nil {", `	target := freshness.PodTarget(o.set.Namespace, pod.Name())
	loose := map[string]any{}
	if err := json.Unmarshal(data, &loose); err != nil {
		return nil, err
	}
	if metadata, ok := loose["metadata"].(map[string]any); ok {
		delete(metadata, "uid")
		delete(metadata, "resourceVersion")
	}
	data, _ = json.Marshal(loose)
	if err := s.client.Patch(ctx, target, client.RawPatch(kind, data)); err != nil {`},
				{"internal/collaset/apply.go",
					"a.client.Delete(ctx, object, client.Preconditions{UID: &pod.UID, ResourceVersion: &pod.ResourceVersion})",
					"a.client.Delete(ctx, object)"},
			},
			play: scenario{name: "undone while the change is on its way", setup: running(2), steps: updated(2)},
			fault: func(p *play) faultproxy.Fault {
				change := func(w faultproxy.Write) bool { return p.own(w) && bytes.Contains(w.Body, []byte(image2)) }
				return faultproxy.Fault{Action: faultproxy.Observe,
					Match: faultproxy.Match{Key: "patch pods", Ordinal: 1, Where: change}, Call: p.undo}
			},
			finds: []observer.Invariant{observer.Traffic},
		},
		{
			name: "volumes-freed-with-the-pod-only", component: suite.CollaSet,
			changes: []sourceChange{
				{"internal/collaset/apply.go", "			a.writes.Deleted(client.ObjectKeyFromObject(o.set), object)\n			return nil",
					"			a.writes.Deleted(client.ObjectKeyFromObject(o.set), object)\n			plantedFreed.Store(fmt.Sprint(o.set.UID, d.Pod.ID), true)\n			return nil"},
				{"internal/collaset/apply.go", "func (a applier) deletePods(",
					"var plantedFreed sync.Map\n\nfunc (a applier) deletePods("},
				{"internal/collaset/claims.go",
					"func (w claimWriter) deleteClaim(ctx context.Context, o *observation, c *setplan.Claim) error {",
					`func (w claimWriter) deleteClaim(ctx context.Context, o *observation, c *setplan.Claim) error {
	if _, freed := plantedFreed.Load(fmt.Sprint(o.set.UID, c.ID)); !freed {
		return nil
	}`},
			},
			play: scenario{name: "scale in with volumes",
				setup: running(2, volumes(appsv1alpha1.DeletePersistentVolumeClaim, appsv1alpha1.RetainPersistentVolumeClaim)),
				steps: scaled(1, image1)},
			fault: func(p *play) faultproxy.Fault {
				return faultproxy.Fault{Action: faultproxy.KillAfterCommit,
					Match: faultproxy.Match{Key: "delete pods", Ordinal: 1, Where: p.own}}
			},
			finds: []observer.Invariant{observer.Orphan, observer.Stuck},
		},
		{
			name: "operates-on-ready-pods", component: suite.Lifecycle,
			changes: []sourceChange{
				{"api/podops/advance.go", "	if a.ServiceReady == corev1.ConditionFalse {\n		return !a.Ready\n	}",
					"	if a.ServiceReady == corev1.ConditionFalse {\n		return true\n	}"},
				{"api/podops/change.go", "if s.ServiceReady == corev1.ConditionFalse && v.Gate && v.Ready {",
					"if s.ServiceReady == corev1.ConditionUnknown {"},
			},
			play:  scenario{name: "update", setup: running(2), steps: updated(2)},
			finds: []observer.Invariant{observer.Traffic},
		},
		{
			name: "forgets-grants-when-restarted", component: suite.PodTransitionRule,
			changes: []sourceChange{
				{"internal/podtransitionrule/grants/decide.go", "func (d *decision) observePods() {",
					`var plantedStart, plantedOut = time.Now(), map[types.UID]bool{}

func plantedYoung() bool { return time.Since(plantedStart) < 3*time.Second }

func (d *decision) observePods() {`},
				{"internal/podtransitionrule/grants/decide.go", "		p.down = !p.inService\n",
					"		if plantedYoung() && !p.inService {\n			plantedOut[p.UID] = true\n		}\n		p.inService = p.inService || plantedOut[p.UID]\n		p.down = !p.inService\n"},
				{"internal/podtransitionrule/grants/decide.go",
					"		for _, g := range r.Status.Grants {\n			at := podStage{g.PodUID, g.Stage}",
					"		for _, g := range r.Status.Grants {\n			if plantedOut[g.PodUID] {\n				continue\n			}\n			at := podStage{g.PodUID, g.Stage}"},
			},
			play: scenario{name: "restarted while a Pod is out", setup: all(ruled("budget", 1), running(3, slowly)),
				steps: updated(3)},
			fault: func(p *play) faultproxy.Fault {
				grants := func(w faultproxy.Write) bool { return p.own(w) && bytes.Contains(w.Body, []byte(`"grants"`)) }
				return faultproxy.Fault{Action: faultproxy.KillAfterCommit,
					Match: faultproxy.Match{Resource: "podtransitionrules", Subresource: "status", Ordinal: 1, Where: grants}}
			},
			finds: []observer.Invariant{observer.Budget},
		},
		{
			name: "opens-every-domain", component: suite.PodTransitionRule,
			changes: []sourceChange{
				{"internal/podtransitionrule/grants/domains.go", "	return t.pods[domain] > 0 || t.some < limit\n",
					"	return limit > 0\n"},
			},
			play:  scenario{name: "two workloads on two nodes", setup: twoDomains(slowly), steps: bothUpdated},
			finds: []observer.Invariant{observer.Budget},
		},
		{
			name: "forgets-to-undo", component: suite.CollaSet,
			changes: []sourceChange{
				{"internal/collaset/setplan/update.go", "		u.do.Cancels = append(u.do.Cancels, it.Pod)\n", ""},
			},
			play: scenario{name: "rollback before anything is done", setup: all(ruled("budget", 0), running(2)),
				steps: rollbackWhileBlocked},
			finds: []observer.Invariant{observer.Keys, observer.Stuck},
		},
		{
			name: "says-out-and-takes-nobody-out", component: suite.ResourceConsist,
			changes: []sourceChange{
				{"internal/resourceconsist/webhook/webhook.go", "	for _, c := range changes {\n		endpoint := b.PlaceOf(c.ID)\n",
					"	for _, c := range changes {\n		if plantedOut.Delete(idAt(c.ID)); c.Remove || !c.State.Serve {\n			plantedOut.Store(idAt(c.ID), true)\n			continue\n		}\n		endpoint := b.PlaceOf(c.ID)\n"},
				{"internal/resourceconsist/webhook/webhook.go", "		if m.Serve || *m.Serving {\n",
					"		if _, out := plantedOut.Load(m.ID); !out && (m.Serve || *m.Serving) {\n"},
				{"internal/resourceconsist/webhook/webhook.go", "	\"strings\"\n", "	\"strings\"\n	\"sync\"\n"},
				{"internal/resourceconsist/webhook/webhook.go", "// heldOf leaves out",
					"var plantedOut sync.Map\n\n// heldOf leaves out"},
			},
			play:  scenario{name: "update", setup: all(pooledService, running(2), pooled(2)), steps: updated(2)},
			finds: []observer.Invariant{observer.Traffic},
		},
		{
			name: "lets-a-job-go-before-its-traces", component: suite.OperationJob,
			changes: []sourceChange{
				{"internal/operationjob/jobplan/target.go",
					`	return t.clear("removing what the job has left on") && t.requireLive()`,
					"	t.clear(\"removing what the job has left on\")\n	return true"},
			},
			play: scenario{name: "a job is deleted while a Pod has its task", setup: all(ruled("budget", 1), running(3)),
				steps: all(job(warm, 3, 3), oneWarmed, deleteJob, serving(3, image1))},
			fault: func(p *play) faultproxy.Fault {
				taken := func(w faultproxy.Write) bool { // of the target that has succeeded, and of that which is released
					return p.own(w) && bytes.Contains(w.Body, []byte(`"`+podops.TasksAnnotation+`":null`))
				}
				return faultproxy.Fault{Action: faultproxy.FailBefore, Code: http.StatusConflict,
					Match: faultproxy.Match{Key: "patch pods", Ordinal: 2, Where: taken}}
			},
			finds: []observer.Invariant{observer.Keys},
		},
		{
			name: "believes-a-cache-that-lags", component: suite.OperationJob,
			changes: []sourceChange{
				{"internal/operationjob/jobplan/target.go",
					"	if !t.Live {\n		t.plan.Confirm = append(t.plan.Confirm, t.number)\n	}\n	return t.Live\n", "	return true\n"},
			},
			play: scenario{name: "a new leader does not see the marks yet", setup: all(unapproved, running(2)),
				steps: succeededBehind},
			finds: []observer.Invariant{observer.Keys},
		},
	}
}

// succeededBehind has two Pods replaced, and operationjob-controller restarted meanwhile with a view of Pods from
// before it asked.
func succeededBehind(p *play) error {
	proc := p.cell.processes[suite.OperationJob]
	version := ""
	asks := proc.proxy.Arm(faultproxy.Fault{Match: faultproxy.Match{Key: "patch pods", Ordinal: 1, Where: p.own},
		Call: func(faultproxy.Write) { version = proc.proxy.ResourceVersion() }})
	err := all(job(appsv1alpha1.OpsActionReplace, 2, 2), replacementsServe(2))(p)
	asks.Disarm()
	if err != nil {
		return err
	}
	if version == "" || !restartAt(proc, faultproxy.Match{Resource: "pods"}, version) {
		return errors.New("it was not restarted with an old view")
	}
	return all(allow(2), jobEnds(appsv1alpha1.OperationProgressSucceeded), serving(2, image1))(p)
}

// slowly leaves each Pod out of service for a while before it is changed.
func slowly(s *appsv1alpha1.CollaSet) { s.Spec.UpdateStrategy.OperationDelaySeconds = ptr.To[int32](4) }

// rollbackWhileBlocked takes an update back while the rule lets no Pod begin, and then lets all.
func rollbackWhileBlocked(p *play) error {
	if err := p.image("web", image2); err != nil {
		return err
	}
	err := p.await("all Pods to ask", func(s *state) error {
		for _, pod := range podsOf(s, "web") {
			if len(podops.Operations(podops.Read(pod))) == 0 {
				return fmt.Errorf("%s does not", pod.Name)
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	return all(imaged(image1), allow(2), serving(2, image1))(p)
}

// undo takes the operation back on the Pod that a write of collaset-controller is about, while the write waits, and
// lets the write go on when the Pod is in service again. The component sees nothing of that meanwhile: it would begin
// again.
func (p *play) undo(w faultproxy.Write) {
	frozen := p.cell.processes[suite.CollaSet].proxy.Arm(faultproxy.Fault{Action: faultproxy.Freeze,
		Match: faultproxy.Match{Resource: "pods"}})
	defer frozen.Disarm()
	find := func(s *state) *corev1.Pod {
		i := slices.IndexFunc(podsOf(s, "web"), func(pod *corev1.Pod) bool { return pod.Name == w.Name })
		if i < 0 {
			return nil
		}
		return podsOf(s, "web")[i]
	}
	now, _ := p.plane.view.state(p.prefix)
	pod := find(now)
	if pod == nil {
		return
	}
	body, err := json.Marshal(
		map[string]any{"metadata": map[string]any{"labels": map[string]any{podops.UndoOperationTypePrefix +
			"/collaset": podops.TypeUpdate}}})
	if err != nil {
		return
	}
	undone := pod.DeepCopy()
	if p.user(func() error {
		return p.plane.client.Patch(p.ctx, undone,
			client.RawPatch(types.MergePatchType, body))
	}) != nil {
		return
	}
	_ = p.await("the Pod to be in service again", func(s *state) error {
		// The view may still show the Pod as it was before it was taken out of service.
		if pod := find(s); pod == nil || older(pod.ResourceVersion, undone.ResourceVersion) || !podops.Read(pod).Ready ||
			!podops.Read(pod).ServiceAvailable() {
			return errors.New("it is not")
		}
		return nil
	})
}

// TestPlantedBugsAreFound plants one defect after the other.
func TestPlantedBugsAreFound(t *testing.T) {
	notShort(t, "it builds a component for each bug; TestPlantedBugsFitTheSources is quick")
	p := start(t)
	o, err := observer.Start(context.WithoutCancel(t.Context()), p.cluster.RESTConfig(),
		observer.Options{StuckAfter: -1, Rest: 20 * time.Second})
	require.NoError(t, err)
	t.Cleanup(func() {
		_, err := o.Stop()
		assert.NoError(t, err)
	})
	chosen := bugs()
	if os.Getenv("FAULTS") != "all" {
		chosen = chosen[:2]
	}
	for _, b := range chosen {
		t.Run(b.name, func(t *testing.T) {
			namespace := "planted-" + b.name
			c, err := p.startCell(t.Context(), namespace)
			require.NoError(t, err)
			t.Cleanup(c.stop)

			fired, violations := p.tryBug(t, o, c, b)
			require.True(t, fired, "without the defect: the fault was done")
			require.Empty(t, violations, "without the defect")

			c.processes[b.component].replace(p.buildPlanted(t, b))
			fired, violations = p.tryBug(t, o, c, b)
			require.True(t, fired, "with the defect: the fault was done")
			found := slices.ContainsFunc(violations,
				func(v observer.Violation) bool { return slices.Contains(b.finds, v.Invariant) })
			b.report(t, found)
			require.True(t, found, "the planted defect was not found by %v; there was: %v", b.finds, violations)
			t.Logf("found: %s", violations[0])
			p.observer.Forget(t.Context(), namespace) // the other observer has seen it too
		})
	}
}

// report adds the defect to the fault report.
func (b bug) report(t *testing.T, found bool) {
	t.Helper()
	row := faultreport.Row{Suite: "planted bugs", Scenario: b.name, Component: b.component, Plans: 1,
		Faults: map[string]int{"planted": 1}}
	if !found {
		row.Failed, row.Failures = 1, []string{b.name + " was not found"}
	}
	require.NoError(t, faultreport.Add(row))
}

// tryBug plays the scenario in which a defect shows, and reports whether the fault was injected and what promises were
// broken.
func (p *plane) tryBug(
	t *testing.T, o *observer.Observer, c *cell, b bug,
) (fired bool, violations []observer.Violation) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	run := &play{ctx: ctx, plane: p, cell: c, prefix: fmt.Sprintf("p%d", numbers.Add(1))}
	require.NoError(t, b.play.setup(run))
	fired = b.fault == nil
	if b.fault != nil {
		armed := c.processes[b.component].proxy.Arm(b.fault(run))
		defer func() {
			fired = armed.Fired() > 0
			armed.Disarm()
		}()
	}
	steps, end := context.WithTimeout(ctx, time.Minute)
	defer end()
	run.ctx = steps
	if err := b.play.steps(run); err != nil {
		t.Logf("the steps: %v", err) // that is for the promises to say
	}
	run.ctx = ctx
	report := o.AtRest(ctx, c.namespace)
	assert.NoError(t, run.clear())
	clearing, cleared := context.WithTimeout(ctx, 30*time.Second)
	defer cleared()
	run.ctx = clearing
	if err := run.cleared(); err != nil {
		t.Logf("clearing: %v", err)
	}
	o.Forget(ctx, c.namespace)
	_, ofProvider := p.provider.verdict(run.prefix)
	_, ofJobs := p.jobs.verdict(run.prefix)
	return fired, slices.Concat(report.Violations, ofProvider, ofJobs)
}

// replace has the process run another program from now on.
func (p *process) replace(path string) {
	p.mu.Lock()
	p.path = path
	p.mu.Unlock()
	p.kill()
}

// build builds changed sources, which it writes into a folder, by a command with further arguments.
func build(t *testing.T, dir string, changes []sourceChange, args ...string) {
	t.Helper()
	module, err := filepath.Abs(root)
	require.NoError(t, err)
	planted := overlay.New(t, dir)
	for _, c := range changes {
		planted.Change(filepath.Join(module, c.file), c.from, c.to)
	}
	cmd := exec.CommandContext(t.Context(), "go", append([]string{"build", "-overlay", planted.Write()}, args...)...)
	cmd.Dir = module
	output, err := cmd.CombinedOutput()
	require.NoError(t, err, string(output))
}

// TestPlantedBugsFitTheSources compiles what is changed, and no more: it is quick, and about those too that only the
// whole run tries.
func TestPlantedBugsFitTheSources(t *testing.T) {
	planted := append(bugs(), untrusted, bug{name: "narrow bounds", changes: narrowBounds})
	for _, b := range planted {
		t.Run(b.name, func(t *testing.T) {
			var packages []string
			for _, c := range b.changes {
				packages = append(packages, "./"+filepath.Dir(c.file))
			}
			build(t, t.TempDir(), b.changes, packages...)
		})
	}
}

// buildPlanted builds a component with a defect.
func (p *plane) buildPlanted(t *testing.T, b bug) string {
	t.Helper()
	return p.buildChanged(t, b.name, b.component, b.changes)
}

// buildChanged builds a component from changed sources.
func (p *plane) buildChanged(t *testing.T, name, component string, changes []sourceChange) string {
	t.Helper()
	dir := filepath.Join(p.dir, "planted", name)
	program := filepath.Join(dir, component)
	build(t, dir, changes, "-o", program, "./cmd/"+component)
	return program
}
