package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/internal/testkit/localkube"
	"kusionstack.io/kuperator/internal/testkit/observer"
	"kusionstack.io/kuperator/internal/testkit/suite"
)

const (
	clusterName = "demo"
	nodes       = 5

	frameInterval = 100 * time.Millisecond
	countInterval = time.Second
	stepTimeout   = 3 * time.Minute
	cleanTimeout  = time.Minute
	stuckFor      = 3 * time.Second // how long a stage that is stuck is shown
	readingTime   = 5 * time.Second // of a pause without a terminal

	// containersFail is the blocker of containers that cannot run.
	containersFail = "ContainersFail"
)

// demo is one run.
type demo struct {
	suite    *suite.Suite
	client   client.Client
	observer *observer.Observer
	screen   *screen
	options  options
	stages   []stage
}

// stage is one act of the demo, and afterwards what was seen of it.
type stage struct {
	title    string
	why      string // what happens, and why, in a sentence or two
	acting   string // what a Pod may do once it is out of traffic
	column   string // in the summary
	replicas int
	image    string
	operated int    // Pods; counted afterwards if it is stuck or undoes that
	patch    string // of the CollaSet
	stuck    bool   // it cannot be completed: it is over when that has been seen for a while
	undoes   bool   // it repairs the stage before, which is stuck
	restarts bool   // an OperationJob restarts the first of the Pods; without that and a patch, everything is created

	took    time.Duration
	writes  map[string]suite.Counts // nil if they cannot be counted
	rule    observer.RuleReport
	events  int
	kept    int // Pods whose UID was there before
	outages []time.Duration
}

func run(ctx context.Context, o options, out *screen) (err error) {
	if o.stop {
		return stopKept(out)
	}
	config := suite.Config{Name: clusterName, Kubeconfig: o.kubeconfig, Nodes: nodes, Progress: out, Detached: o.keep}
	if o.keep {
		if _, err := stopEarlier(out); err != nil {
			return err
		}
		if config.Dir, config.ClusterDir, err = keptDirs(); err != nil {
			return err
		}
	}
	s, err := suite.Start(ctx, config)
	if err != nil {
		return err
	}
	d := &demo{suite: s, screen: out, options: o}
	defer func() {
		out.rest()
		if o.keep && ctx.Err() == nil {
			return
		}
		err = errors.Join(err, d.cleanUp(context.WithoutCancel(ctx), o))
		if err == nil && o.kubeconfig == "" && !out.asks {
			out.print(whatNext)
		}
	}()
	if err := d.play(ctx); err != nil {
		if o.keep && ctx.Err() == nil {
			fmt.Fprintln(out, "the cluster is left running; make demo-stop ends it")
		}
		return err
	}
	return d.tellWhatToTry(ctx)
}

// keptDirs are where a kept demo lives.
func keptDirs() (dir, clusterDir string, err error) {
	cache, err := localkube.CacheDir()
	if err != nil {
		return "", "", err
	}
	return filepath.Join(cache, "suites", clusterName), filepath.Join(cache, "clusters", clusterName), nil
}

// stopEarlier ends a demo that was left running, and reports whether there was one.
func stopEarlier(out *screen) (found bool, err error) {
	dir, clusterDir, err := keptDirs()
	if err != nil {
		return false, err
	}
	cluster, err := localkube.Attach(clusterDir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return false, err
	}
	if _, err := os.Stat(dir); cluster == nil && errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	fmt.Fprintln(out, "stopping the cluster and the components of the demo that was left running")
	if err := suite.StopLeftovers(dir); err != nil { // its record is in the folder
		return true, err
	}
	if cluster != nil {
		if err := cluster.Stop(); err != nil {
			return true, err
		}
	}
	return true, os.RemoveAll(dir)
}

// stopKept is make demo-stop.
func stopKept(out *screen) error {
	found, err := stopEarlier(out)
	if err != nil {
		return err
	}
	if found {
		out.print("The demo is stopped, and nothing is left of it.")
	} else {
		out.print("There is nothing to stop: no demo was left running (make demo KEEP=1 does that).")
	}
	return nil
}

// play creates the workload and goes through the stages.
func (d *demo) play(ctx context.Context) error {
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), appsv1alpha1.AddToScheme(scheme)); err != nil {
		return err
	}
	config := d.suite.RESTConfig()
	config.UserAgent = "kuperator-demo"
	var err error
	if d.client, err = client.New(config, client.Options{Scheme: scheme}); err != nil {
		return err
	}
	if err := d.clear(ctx); err != nil { // of an earlier demo on this cluster
		return err
	}
	if d.observer, err = observer.Start(ctx, d.suite.RESTConfig(),
		observer.Options{Hold: 700 * time.Millisecond}); err != nil {
		return err
	}
	stages := acts()
	for i, s := range stages {
		s.title = fmt.Sprintf("act %d of %d: %s", i+1, len(stages), s.title)
		if err := d.stage(ctx, s); err != nil {
			return err
		}
		next := "the summary"
		if i+1 < len(stages) {
			next = stages[i+1].title
		}
		if err := d.pause(ctx, "Next: "+next); err != nil {
			return err
		}
	}
	report, err := d.observer.Stop()
	if err != nil {
		return err
	}
	return d.summarise(report)
}

// stage starts one act, shows it until it is over, and records it.
func (d *demo) stage(ctx context.Context, s stage) error {
	before, err := d.look(ctx)
	if err != nil {
		return err
	}
	eventsBefore, err := d.events(ctx)
	if err != nil {
		return err
	}
	d.observer.Lap()
	outBefore := d.observer.Report().OutOfService
	begin := time.Now()
	var job *appsv1alpha1.OperationJob
	switch {
	case s.restarts:
		job = restartJob(before.rows)
		if err := d.client.Create(ctx, job); err != nil {
			return fmt.Errorf("creating the OperationJob: %w", err)
		}
	case s.patch == "":
		for _, obj := range objects() {
			if err := d.client.Create(ctx, obj); err != nil && !apierrors.IsAlreadyExists(err) {
				return fmt.Errorf("creating %T %s: %w", obj, obj.GetName(), err)
			}
		}
	default:
		set := &appsv1alpha1.CollaSet{}
		set.Namespace, set.Name = namespace, name
		if err := d.client.Patch(ctx, set, client.RawPatch(types.MergePatchType, []byte(s.patch))); err != nil {
			return fmt.Errorf("changing the CollaSet: %w", err)
		}
	}
	d.screen.stage(s.title, s.why)
	if err := d.show(ctx, &s, job, len(before.rows), begin); err != nil {
		return err
	}
	s.took = time.Since(begin)
	report := d.observer.Settled(ctx)
	s.rule, _ = report.Rule(namespace, ruleName)
	for at, total := range report.OutOfService {
		if lap := total - outBefore[at]; lap > 0 {
			s.outages = append(s.outages, lap)
		}
	}
	if s.writes, err = d.writes(begin); err != nil {
		return err
	}
	events, err := d.events(ctx)
	if err != nil {
		return err
	}
	s.events = events - eventsBefore
	after, err := d.look(ctx)
	if err != nil {
		return err
	}
	switch {
	case s.stuck:
		s.operated = after.having(s.image)
	case s.undoes:
		s.operated = before.having(badImage)
	}
	for _, now := range after.rows {
		if slices.ContainsFunc(before.rows, func(then row) bool { return then.uid == now.uid }) {
			s.kept++
		}
	}
	d.stages = append(d.stages, s)
	return nil
}

// show draws the stage until its goal is reached. job is nil for a stage without one.
func (d *demo) show(
	ctx context.Context, s *stage, job *appsv1alpha1.OperationJob, startReplicas int, begin time.Time,
) error {
	frames := time.NewTicker(frameInterval)
	defer frames.Stop()
	tooLong := time.After(stepTimeout)
	var counted, failing time.Time
	tells := newNarrator(s)
	var writes map[string]suite.Counts
	for {
		picture, err := d.look(ctx)
		if err != nil {
			return err
		}
		if picture.job = job; job != nil {
			if err := d.client.Get(ctx, client.ObjectKeyFromObject(job), job); err != nil {
				return fmt.Errorf("reading the OperationJob: %w", err)
			}
			if job.Status.Progress == appsv1alpha1.OperationProgressFailed {
				return fmt.Errorf("the OperationJob has failed: %+v", job.Status.TargetDetails)
			}
		}
		if s.stuck {
			picture.stuck = true
			if picture.failing, err = d.failing(ctx); err != nil {
				return err
			}
			switch {
			case picture.failing == "":
				failing = time.Time{}
			case failing.IsZero():
				failing = time.Now()
			default:
				picture.held = time.Since(failing)
			}
		}
		picture.title, picture.why, picture.elapsed = s.title, s.why, time.Since(begin)
		picture.startReplicas, picture.goalReplicas, picture.goalImage = startReplicas, s.replicas, s.image
		if picture.done() || time.Since(counted) > countInterval {
			if writes, err = d.writes(begin); err != nil {
				return err
			}
			if err := d.suite.Died(); err != nil {
				return err
			}
			counted = time.Now()
		}
		report := d.observer.Report()
		picture.rule, _ = report.Rule(namespace, ruleName)
		picture.writes = writes
		d.screen.draw(picture, tells.tell(picture))
		if err := report.Err(); err != nil {
			return err
		}
		if picture.done() {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tooLong:
			return d.gaveUp(picture)
		case <-frames.C:
		}
	}
}

// failing is the message of the blocker of containers that cannot run, "" without it.
func (d *demo) failing(ctx context.Context) (string, error) {
	set := &appsv1alpha1.CollaSet{}
	if err := d.client.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, set); err != nil {
		return "", fmt.Errorf("reading the CollaSet: %w", err)
	}
	for _, b := range set.Status.Blockers {
		if b.Reason == containersFail {
			return b.Message, nil
		}
	}
	return "", nil
}

// gaveUp says what the Pods were waiting for.
func (d *demo) gaveUp(p picture) error {
	var waits []string
	for _, r := range p.rows {
		if r.waits != "" {
			waits = append(waits, r.name+": "+r.waits)
		}
	}
	return fmt.Errorf("%q was not over after %s; %s\n%s", p.title, stepTimeout, strings.Join(waits, "; "),
		d.suite.LogTails())
}

// writes counts writes to Pods; nil where they cannot be counted.
func (d *demo) writes(since time.Time) (map[string]suite.Counts, error) {
	if d.suite.Cluster == nil {
		return nil, nil
	}
	requests, err := d.suite.Requests(since)
	if err != nil {
		return nil, err
	}
	return suite.PodWrites(requests), nil
}

// events is the number of events about the demo's Pods.
func (d *demo) events(ctx context.Context) (int, error) {
	byPod, err := d.suite.PodEvents(ctx, namespace)
	if err != nil {
		return 0, err
	}
	total := 0
	for _, events := range byPod {
		for _, e := range events {
			total += e.Times
		}
	}
	return total, nil
}

// clear removes what an earlier demo left on the cluster.
func (d *demo) clear(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, cleanTimeout)
	defer cancel()
	if err := d.client.DeleteAllOf(ctx, &appsv1alpha1.OperationJob{}, client.InNamespace(namespace)); err != nil {
		return fmt.Errorf("removing OperationJobs: %w", err)
	}
	for _, obj := range objects() {
		if obj.GetNamespace() == "" {
			continue
		}
		if err := d.client.Delete(ctx, obj); client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("removing %T %s: %w", obj, obj.GetName(), err)
		}
	}
	for {
		left := &appsv1alpha1.CollaSet{}
		err := d.client.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, left)
		if apierrors.IsNotFound(err) {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the CollaSet of an earlier demo is still there: remove namespace %s first", namespace)
		case <-time.After(frameInterval):
		}
	}
}

func (d *demo) cleanUp(ctx context.Context, o options) error {
	ctx, cancel := context.WithTimeout(ctx, cleanTimeout)
	defer cancel()
	var errs []error
	if d.observer != nil {
		_, _ = d.observer.Stop()
	}
	if o.kubeconfig != "" && d.client != nil {
		errs = append(errs, d.clear(ctx))
	}
	if o.kubeconfig != "" {
		fmt.Fprintln(d.screen, "stopping the components; the suite's manifests stay installed on your cluster")
	} else {
		fmt.Fprintln(d.screen, "stopping the cluster and the components, and removing what they left")
	}
	return errors.Join(append(errs, d.suite.Stop())...)
}
