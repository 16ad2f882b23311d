// Package story is what happens in tests of failing processes: a user rolls out a workload on a running suite while
// something fails, an observer judges every change, and one row of the fault report says how it went.
package story

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"kusionstack.io/kuperator/internal/testkit/await"
	"kusionstack.io/kuperator/internal/testkit/faultreport"
	"kusionstack.io/kuperator/internal/testkit/observer"
	"kusionstack.io/kuperator/internal/testkit/suite"
	"kusionstack.io/kuperator/internal/testkit/testsuite"
	"kusionstack.io/kuperator/internal/testkit/workload"
)

// userAgent tells the user's own requests apart.
const userAgent = "kuperator-story"

// World is a running suite and a user of it.
type World struct {
	*suite.Suite
	Client client.Client
}

// Start starts a suite.
func Start(ctx context.Context, config suite.Config) (*World, error) {
	s, err := suite.Start(ctx, config)
	if err != nil {
		return nil, err
	}
	rest := s.RESTConfig()
	rest.UserAgent = userAgent
	c, err := testsuite.Client(rest)
	if err != nil {
		return nil, errors.Join(err, s.Stop())
	}
	return &World{Suite: s, Client: c}, nil
}

// All reports whether every plan is to run, and not a short selection (FAULTS=all).
func All() bool { return os.Getenv("FAULTS") == "all" }

// Times is how often a plan is to run: once in the short selection, else many times.
func Times(many int) int {
	if All() {
		return many
	}
	return 1
}

// Seed is FAULT_SEED, or a new one.
func Seed(t testing.TB) uint64 {
	t.Helper()
	text := os.Getenv("FAULT_SEED")
	if text == "" {
		return rand.Uint64()
	}
	seed, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		t.Fatalf("FAULT_SEED is %q: give a number from 0 to 2^64-1, or leave it out for a new one: %v", text, err)
	}
	return seed
}

// Plan is one story that is being told.
type Plan struct {
	*World
	*testing.T
	// Namespace is the plan's own.
	Namespace string
	// Observer judges it.
	Observer *observer.Observer
	// Random makes its choices. Its seed is logged.
	Random *rand.Rand
	// Lossy is true if components may lose their Leases by what the plan does, and so end, and are to be started again.
	Lossy bool
	// Again is done every now and then while rest is awaited, for those who play a part and do not try again by
	// themselves. Nil does nothing.
	Again func()

	row   faultreport.Row
	fired bool
}

// Tell runs a plan as a subtest, with its own namespace and observer, and adds it to the fault report. The row says
// what is told; its counts are filled in.
func Tell(t *testing.T, w *World, name string, row faultreport.Row, tell func(*Plan)) {
	t.Helper()
	t.Run(name, func(t *testing.T) {
		begin := time.Now()
		row.Faults, row.Invariants, row.Plans = map[string]int{}, map[string]int{}, 1
		seed := Seed(t)
		p := &Plan{World: w, T: t, row: row, Random: rand.New(rand.NewPCG(seed, 0))}
		t.Cleanup(func() {
			p.row.Took = time.Since(begin)
			switch {
			case t.Failed():
				p.row.Failed = 1
				p.row.Failures = []string{fmt.Sprintf("%s: run again with FAULT_SEED=%d RUN='^%s$'", name, seed,
					strings.ReplaceAll(t.Name(), "/", "$/^"))}
			case !p.fired:
				p.row.NotFired = 1
				t.Logf("NOT FIRED: the fault of this plan found nothing to disturb")
			}
			if err := faultreport.Add(p.row); err != nil {
				t.Errorf("adding to the fault report: %v", err)
			}
		})
		t.Logf("FAULT_SEED=%d", seed)
		p.Namespace = p.namespace()
		p.Observe()
		tell(p)
		p.Judge()
	})
}

// Fault counts one that was injected.
func (p *Plan) Fault(kind string) {
	p.fired = true
	p.row.Faults[kind]++
}

// Checked counts a check of an invariant.
func (p *Plan) Checked(invariant string) { p.row.Invariants[invariant]++ }

// Observe starts to judge; Tell has done it.
func (p *Plan) Observe() {
	p.Helper()
	o, err := observer.Start(context.WithoutCancel(p.Context()), p.RESTConfig(),
		observer.Options{StuckAfter: 2 * await.Patience, Rest: 2 * time.Minute})
	require.NoError(p, err)
	p.Observer = o
	p.Cleanup(func() {
		if p.Observer == o {
			_, _ = o.Stop() // it was judged, or the plan has failed before
		}
	})
}

// StopObserver ends the observation before what it cannot judge; what came before is judged.
func (p *Plan) StopObserver() error {
	report := p.Observer.SettledIn(p.Context(), p.Namespace)
	_, err := p.Observer.Stop()
	p.Observer = nil
	for promise, checks := range report.Checks {
		p.row.Invariants[string(promise)] += checks
	}
	return errors.Join(err, report.Err())
}

// Judge ends the observation, and fails the plan for any broken promise. The workloads must be at rest.
func (p *Plan) Judge() {
	p.Helper()
	if p.Observer == nil {
		return
	}
	report := p.Observer.AtRest(p.Context(), p.Namespace)
	_, err := p.Observer.Stop()
	p.Observer = nil
	require.NoError(p, err, "the observer")
	require.NoError(p, report.Err())
	for promise, checks := range report.Checks {
		p.row.Invariants[string(promise)] += checks
	}
}

// namespace makes one. Its workloads are gone when the plan is over.
func (p *Plan) namespace() string {
	p.Helper()
	name := fmt.Sprintf("plan-%x", time.Now().UnixNano())
	p.Eventually("a namespace", func() error {
		return ignoreExists(p.Client.Create(p.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}))
	})
	p.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(p.Context()), time.Minute)
		defer cancel()
		if p.Failed() {
			p.Log(workload.Describe(ctx, p.Kubectl, name))
		}
		if _, err := p.Kubectl(ctx, "delete", "namespace", name, "--wait=false", "--ignore-not-found"); err != nil {
			p.Logf("removing namespace %s: %v", name, err)
		}
	})
	return name
}

// Eventually waits until check returns nil. In a Lossy plan a component that ends by itself
// meanwhile is started again, as a kubelet would.
func (p *Plan) Eventually(what string, check func() error) {
	p.Helper()
	await.Nil(p.T, what, func() error {
		p.revive()
		return check()
	})
}

// revive starts again what has ended by itself. Only the loss of a Lease is a reason to.
func (p *Plan) revive() {
	p.Helper()
	if !p.Lossy {
		return
	}
	revived, err := p.Revive(p.Context())
	require.NoError(p, err)
	for _, name := range revived {
		require.Contains(p, p.LogTail(name), "leader election lost", "%s ended, and not because it lost its Lease", name)
		p.Logf("%s had lost its Lease and was started again", name)
	}
}

// Always checks again and again for a while.
func (p *Plan) Always(d time.Duration, what string, check func() error) {
	p.Helper()
	await.Always(p.T, d, what, func() error {
		p.revive()
		return check()
	})
}

// Within waits for a moment of chance, up to d from now.
func (p *Plan) Within(d time.Duration) {
	p.Helper()
	select {
	case <-p.Context().Done():
		p.Fatal(p.Context().Err())
	case <-time.After(time.Duration(p.Random.Int64N(int64(d)))):
	}
}

// Create creates objects, however often that must be tried: who asks for a change has to try again while the cluster
// fails.
func (p *Plan) Create(objects ...client.Object) {
	p.Helper()
	for _, obj := range objects {
		p.Eventually("the creation of "+obj.GetName(),
			func() error { return ignoreExists(p.Client.Create(p.Context(), obj)) })
	}
}

func ignoreExists(err error) error {
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}

// Patch changes a CollaSet with a JSON merge patch, trying again.
func (p *Plan) Patch(name, patch string) {
	p.Helper()
	p.Eventually("the change of "+name, func() error {
		return workload.Patch(p.Context(), p.Client, p.Namespace,
			name, patch)
	})
}

// SetImage begins a rollout.
func (p *Plan) SetImage(name, image string) {
	p.Helper()
	p.Patch(name, workload.Image(image))
}

// Scale changes the number of Pods.
func (p *Plan) Scale(name string, n int) {
	p.Helper()
	p.Patch(name, workload.Replicas(n))
}

// Pods are those labelled app=name.
func (p *Plan) Pods(name string) ([]corev1.Pod, error) {
	return workload.Pods(p.Context(), p.Client, p.Namespace, name)
}

// Updated is nil if at least n Pods have the image.
func (p *Plan) Updated(name string, n int, image string) error {
	pods, err := p.Pods(name)
	if err != nil {
		return err
	}
	have := 0
	for i := range pods {
		if pods[i].Spec.Containers[0].Image == image {
			have++
		}
	}
	if have < n {
		return fmt.Errorf("%d of %d Pods have %s", have, n, image)
	}
	return nil
}

// AtRest is nil if exactly n Pods exist, all of them in service with the image and with no operation left on them.
func (p *Plan) AtRest(name string, n int, image string) error {
	return workload.AtRest(p.Context(), p.Client, p.Namespace, name, n, image)
}

// tryAgain is how long rest is awaited before what Again does is done, each time.
const tryAgain = 40 * time.Second

// WaitAtRest waits until AtRest is nil.
func (p *Plan) WaitAtRest(name string, n int, image string) {
	p.Helper()
	tried := time.Now()
	p.Eventually(fmt.Sprintf("%d Pods of %s serving %s", n, name, image), func() error {
		err := p.AtRest(name, n, image)
		if err != nil && p.Again != nil && time.Since(tried) > tryAgain {
			p.Logf("trying again while waiting: %v", err)
			p.Again()
			tried = time.Now()
		}
		return err
	})
	p.Checked("end state")
}

// UIDs are those of the Pods, sorted.
func (p *Plan) UIDs(name string) []types.UID {
	p.Helper()
	var uids []types.UID
	p.Eventually("a list of the Pods", func() error {
		pods, err := p.Pods(name)
		uids = workload.UIDs(pods)
		return err
	})
	return uids
}

// WithRules creates a workload of n Pods with traffic and a rule, and waits until it serves.
func (p *Plan) WithRules(name, image string, n int, maxUnavailable string) {
	p.Helper()
	p.Create(workload.Service(p.Namespace, name), workload.Rule(p.Namespace, name, maxUnavailable),
		workload.CollaSet(p.Namespace, name, image, int32(n)))
	p.WaitAtRest(name, n, image)
}
