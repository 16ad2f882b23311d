package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/internal/testkit/await"
	"kusionstack.io/kuperator/internal/testkit/evictions"
	"kusionstack.io/kuperator/internal/testkit/observer"
	"kusionstack.io/kuperator/internal/testkit/race"
	"kusionstack.io/kuperator/internal/testkit/suite"
	"kusionstack.io/kuperator/internal/testkit/testsuite"
	"kusionstack.io/kuperator/internal/testkit/workload"
)

const (
	// userAgent tells the tests' own requests apart.
	userAgent = "kuperator-e2e"
)

// world is a running suite and a user of it.
type world struct {
	*suite.Suite
	client client.Client
	// alone is set for a test that has the shared suite to itself.
	alone bool
}

// shared is the suite that most tests use: first those that want it alone, one after the other, then the others
// together.
var shared = testsuite.Share(func(ctx context.Context) (*world, error) {
	config := suite.Config{Name: "e2e", Nodes: 3, AuditReads: true, Progress: os.Stderr}
	if servesEvictions() {
		config.APIServerArgs = evictions.Flags()
	}
	return newWorld(ctx, config)
})

func TestMain(m *testing.M) { shared.Main(m) }

// alone returns the shared suite with all components running as they ship, to a test that stops some of them, or looks
// at the whole cluster. No other test runs meanwhile: it must not be parallel.
func alone(t *testing.T) *world {
	t.Helper()
	var w *world
	t.Cleanup(func() { // after it was seen what has died
		if w != nil {
			w.restore(t)
		}
	})
	mine := *shared.Get(t)
	w = &mine
	w.alone = true
	w.restore(t)
	return w
}

// together returns the shared suite to a test that disturbs nothing outside of its namespaces. It runs beside others,
// when those that want the suite alone are over.
func together(t *testing.T) *world {
	t.Helper()
	t.Parallel()
	return shared.Get(t)
}

// own returns a suite of the test's own.
func own(t *testing.T, config suite.Config) *world {
	t.Helper()
	if testing.Short() {
		t.Skip("starts a cluster")
	}
	w, err := newWorld(t.Context(), config)
	require.NoError(t, err)
	t.Cleanup(func() {
		testsuite.Explain(t, w)
		if err := w.Stop(); err != nil {
			t.Errorf("stopping the suite: %v", err)
		}
	})
	return w
}

func newWorld(ctx context.Context, config suite.Config) (*world, error) {
	config.Race = race.Enabled
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
	return &world{Suite: s, client: c}, nil
}

// changedArgs are the components that run with other flags than usual.
var changedArgs = map[string]bool{}

// restore brings every component back to how it ships, and to work: a new process may wait for the Lease of one that
// was killed, and a Pod that comes into service while resourceconsist-controller does not look has no cooperator yet.
func (w *world) restore(t *testing.T) {
	t.Helper()
	for _, name := range suite.Components() {
		ctx := context.WithoutCancel(t.Context())
		switch {
		case changedArgs[name]:
			delete(changedArgs, name)
			require.NoError(t, w.StopComponent(name))
			require.NoError(t, w.Restart(ctx, name, ""))
		case !slices.Contains(w.Running(), name):
			require.NoError(t, w.Restart(ctx, name))
		}
	}
	require.NoError(t, w.WaitLeading(context.WithoutCancel(t.Context()), suite.Components()...))
}

// reconfigure restarts a component of the shared suite with other flags, until the test is over.
func (w *world) reconfigure(t *testing.T, name string, args ...string) {
	t.Helper()
	changedArgs[name] = true
	require.NoError(t, w.StopComponent(name))
	require.NoError(t, w.Restart(t.Context(), name, args...))
}

// down keeps a component from running until it is restarted or the test is over.
func (w *world) down(t *testing.T, names ...string) {
	t.Helper()
	for _, name := range names {
		require.NoError(t, w.StopComponent(name)) // which gives its Lease back, so that its successor need not wait
	}
}

// namespace makes a namespace for the test; its workloads are gone when the test is over.
func (w *world) namespace(t *testing.T) string {
	t.Helper()
	name := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' {
			return r
		}
		return '-'
	}, strings.ToLower(strings.TrimPrefix(t.Name(), "Test")))
	if len(name) > 50 {
		name = name[:50]
	}
	name = strings.Trim(name, "-") + fmt.Sprintf("-%x", time.Now().UnixMilli()&0xffff)
	require.NoError(t, w.client.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}))
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 30*time.Second)
		defer cancel()
		if t.Failed() {
			t.Log(workload.Describe(ctx, w.Kubectl, name))
		}
		if w.alone {
			w.restore(t) // components clear what the test leaves
			if err := w.clear(ctx, name); err != nil {
				t.Logf("clearing namespace %s: %v", name, err)
			}
		}
		if err := w.client.Delete(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}); client.IgnoreNotFound(
			err) != nil {
			t.Logf("removing namespace %s: %v", name, err)
		}
	})
	return name
}

// clear deletes the jobs, workloads and rules of a namespace, and waits until they are gone, or ctx ends.
func (w *world) clear(ctx context.Context, namespace string) error {
	for _, kind := range []client.Object{&appsv1alpha1.OperationJob{}, &appsv1alpha1.CollaSet{}, &appsv1.Deployment{},
		&appsv1alpha1.PodTransitionRule{}} {
		background := client.PropagationPolicy(metav1.DeletePropagationBackground)
		if err := w.client.DeleteAllOf(ctx, kind, client.InNamespace(namespace), background); err != nil {
			return err
		}
	}
	return await.Until(ctx, func() error {
		for _, list := range []client.ObjectList{&appsv1alpha1.OperationJobList{}, &appsv1alpha1.CollaSetList{},
			&appsv1.DeploymentList{}, &appsv1alpha1.PodTransitionRuleList{}} {
			if err := w.client.List(ctx, list, client.InNamespace(namespace)); err != nil {
				return err
			}
			if n := meta.LenList(list); n > 0 {
				return fmt.Errorf("%d of %T are there", n, list)
			}
		}
		return nil
	})
}

// observe watches the namespace from here to the end of the test, and fails it for any broken promise.
func (w *world) observe(t *testing.T, namespace string, options observer.Options) *observer.Observer {
	t.Helper()
	options.Namespace = namespace
	if options.StuckAfter == 0 {
		options.StuckAfter = 2 * await.Patience // the waits for Pods are over before
	}
	o, err := observer.Start(context.WithoutCancel(t.Context()), w.RESTConfig(), options)
	require.NoError(t, err)
	t.Cleanup(func() {
		report, err := o.Stop()
		if err != nil {
			t.Errorf("the observer: %v", err)
		}
		if err := report.Err(); err != nil {
			t.Error(err)
		}
	})
	return o
}

// create creates objects, and takes one that is there as well.
func (w *world) create(t *testing.T, objects ...client.Object) {
	t.Helper()
	for _, obj := range objects {
		if err := w.client.Create(t.Context(), obj); err != nil && !apierrors.IsAlreadyExists(err) {
			t.Fatalf("creating %T %s: %v", obj, obj.GetName(), err)
		}
	}
}

// gone is nil once a Get does not find what it looks for.
func gone(err error) error {
	if err == nil {
		return errors.New("it is still there")
	}
	return client.IgnoreNotFound(err)
}
