package shards

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"kusionstack.io/kuperator/internal/shard"
	"kusionstack.io/kuperator/internal/shard/placement"
	"kusionstack.io/kuperator/internal/testkit/await"
	"kusionstack.io/kuperator/internal/testkit/child"
	"kusionstack.io/kuperator/internal/testkit/suite"
	"kusionstack.io/kuperator/internal/testkit/testsuite"
	"kusionstack.io/kuperator/internal/testkit/workload"
)

const (
	image1, image2, image3 = "web:1", "web:2", "web:3"
	replicasOfSet          = 3
	// leaseDuration is long enough for a process on a busy machine to keep its Leases.
	leaseDuration = 10 * time.Second
)

// controllers are the components that have shards.
var controllers = []string{suite.CollaSet, suite.PodTransitionRule, suite.Lifecycle, suite.ResourceConsist,
	suite.OperationJob, suite.PodDecoration}

// world is a cluster with the suite installed and webhook-server running; controllers are started as replicas.
type world struct {
	*suite.Suite
	client client.Client
	all    []*replica
}

var shared = testsuite.Share(func(ctx context.Context) (*world, error) {
	s, err := suite.Start(ctx, suite.Config{Name: "shards", Nodes: 3, Components: []string{suite.Webhook},
		Progress: os.Stderr})
	if err != nil {
		return nil, err
	}
	roles, err := filepath.Abs("../../../deploy/components/sharded/lease-roles.yaml")
	if err == nil {
		_, err = s.Kubectl(ctx, "apply", "-f", roles)
	}
	if err != nil {
		return nil, errors.Join(err, s.Stop())
	}
	config := s.RESTConfig()
	config.UserAgent = "kuperator-shards-test"
	c, err := testsuite.Client(config)
	if err != nil {
		return nil, errors.Join(err, s.Stop())
	}
	return &world{Suite: s, client: c}, nil
})

func TestMain(m *testing.M) { shared.Main(m) }

// replica is one of each controller, as on one node.
type replica struct {
	name      string
	processes []*suite.Replica
}

// start starts a replica of every controller.
func (w *world) start(t *testing.T, name string, shards int) *replica {
	t.Helper()
	r := &replica{name: name}
	for _, component := range controllers {
		p, err := w.StartReplica(t.Context(), component, name, fmt.Sprintf("--shards=%d", shards),
			fmt.Sprintf("--leader-elect-lease-duration=%s", leaseDuration), "--leader-elect-renew-deadline=8s",
			"--leader-elect-retry-period=1s")
		require.NoError(t, err)
		r.processes = append(r.processes, p)
		t.Cleanup(func() {
			_ = p.Signal(syscall.SIGCONT)
			if t.Failed() {
				t.Logf("%s %s:\n%s", component, name, child.LogTail(p.Log(), 40))
			}
			require.NoError(t, p.Kill())
			requireNoPanic(t, p.Log())
		})
	}
	w.all = append(w.all, r)
	return r
}

func requireNoPanic(t *testing.T, path string) {
	t.Helper()
	crashes, err := child.InLog(path, child.Crashes...)
	require.NoError(t, err)
	require.Empty(t, crashes, path)
}

// each does something to all processes of a replica at a time.
func (r *replica) each(t *testing.T, do func(*suite.Replica) error) {
	t.Helper()
	errs := make([]error, len(r.processes))
	var wg sync.WaitGroup
	for i, p := range r.processes {
		wg.Go(func() { errs[i] = do(p) })
	}
	wg.Wait()
	require.NoError(t, errors.Join(errs...), r.name)
}

func (r *replica) stop(t *testing.T) { t.Helper(); r.each(t, (*suite.Replica).Stop) }
func (r *replica) kill(t *testing.T) { t.Helper(); r.each(t, (*suite.Replica).Kill) }

func (r *replica) signal(t *testing.T, s syscall.Signal) {
	t.Helper()
	r.each(t, func(p *suite.Replica) error { return p.Signal(s) })
}

// waitEnded waits until the replica's processes have ended by themselves.
func (r *replica) waitEnded(t *testing.T) {
	t.Helper()
	await.Nil(t, "the processes of "+r.name+" to end", func() error {
		for _, p := range r.processes {
			if p.Running() {
				return fmt.Errorf("%s runs", p.Component)
			}
		}
		return nil
	})
}

// holders are who holds the shards of a component, from the Leases; "" for one without a holder.
func (w *world) holders(t *testing.T, component string, shards int) []string {
	t.Helper()
	holders := make([]string, shards)
	for i := range holders {
		holders[i] = w.lease(t, shard.LeaseName(component, i)).holder
	}
	return holders
}

type lease struct {
	holder      string
	transitions int
}

func (w *world) lease(t *testing.T, name string) lease {
	t.Helper()
	l := &coordinationv1.Lease{}
	err := w.client.Get(t.Context(), client.ObjectKey{Namespace: suite.Namespace, Name: name}, l)
	require.NoError(t, client.IgnoreNotFound(err))
	return lease{ptr.Deref(l.Spec.HolderIdentity, ""), int(ptr.Deref(l.Spec.LeaseTransitions, 0))}
}

// waitSpread waits until the shards of every controller are held by so many replicas, each by as many as others or
// one more.
func (w *world) waitSpread(t *testing.T, shards, replicas int) {
	t.Helper()
	for _, component := range controllers {
		await.Nil(t, fmt.Sprintf("%d shards of %s to be held by %d replicas", shards, component, replicas), func() error {
			count := map[string]int{}
			for _, holder := range w.holders(t, component, shards) {
				count[holder]++
			}
			for holder, n := range count {
				if holder == "" || len(count) != min(replicas, shards) || n < shards/replicas || n > shards/replicas+1 {
					return fmt.Errorf("%v", count)
				}
			}
			return nil
		})
	}
}

// teams makes namespaces with a CollaSet each, under a rule that lets one Pod be out of service, with a Service. They
// stay, at rest: the observer of another scenario would see them being torn down.
func (w *world) teams(t *testing.T, n int) []string {
	t.Helper()
	var names []string
	for i := range n {
		ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: fmt.Sprintf("team-%d-", i)}}
		require.NoError(t, w.client.Create(t.Context(), ns))
		set := workload.CollaSet(ns.Name, "web", image1, replicasOfSet)
		set.Spec.Template.Spec.TerminationGracePeriodSeconds = ptr.To[int64](1)
		service, rule := workload.Service(ns.Name, "web"), workload.Rule(ns.Name, "web", "1")
		for _, object := range []client.Object{service, rule, set} {
			require.NoError(t, w.client.Create(t.Context(), object))
		}
		names = append(names, ns.Name)
	}
	return names
}

func (w *world) setImage(t *testing.T, namespaces []string, image string) {
	t.Helper()
	for _, ns := range namespaces {
		require.NoError(t, workload.Patch(t.Context(), w.client, ns, "web", workload.Image(image)))
	}
}

// waitServing waits until all Pods are in service with the image and nothing is under way.
func (w *world) waitServing(t *testing.T, namespaces []string, image string) {
	t.Helper()
	for _, ns := range namespaces {
		await.Nil(t, ns+" serving "+image, func() error { return w.atRest(t, ns, image) })
	}
}

func (w *world) atRest(t *testing.T, ns, image string) error {
	return workload.AtRest(t.Context(), w.client, ns, "web", replicasOfSet, image)
}

// waitUnderWay waits until some Pods of some namespace have the image and others do not, or, if all was faster, until
// all do.
func (w *world) waitUnderWay(t *testing.T, namespaces []string, image string) {
	t.Helper()
	await.Nil(t, "the rollout of "+image+" to be under way", func() error {
		rest := 0
		for _, ns := range namespaces {
			pods, err := workload.Pods(t.Context(), w.client, ns, "web")
			if err != nil {
				return err
			}
			begun := slices.ContainsFunc(pods, func(pod corev1.Pod) bool { return pod.Spec.Containers[0].Image == image })
			switch finished := w.atRest(t, ns, image) == nil; {
			case finished:
				rest++
			case begun:
				return nil
			}
		}
		if rest == len(namespaces) {
			return nil
		}
		return errors.New("it is not")
	})
}

// write is a successful one in a namespace.
type write struct {
	replica      string
	began, ended time.Time
	what         string
}

// requireOneWriter checks, of the audit log since a moment, that the writes of a component in a namespace come from
// one replica at a time: those of two never overlap, and the writer changes only when the shard's Lease did. It
// returns how many writes were looked at, and how often a writer changed. shards are the numbers that were used.
func (w *world) requireOneWriter(
	t *testing.T, since time.Time, namespaces []string, shards ...int,
) (looked, changed int) {
	t.Helper()
	requests, err := w.Requests(since)
	require.NoError(t, err)
	name := map[string]string{}
	for _, r := range w.all {
		for _, p := range r.processes {
			name[p.Credential] = r.name
		}
	}
	by := map[[2]string][]write{}
	for _, r := range requests {
		if !r.Write() || !r.OK() || r.Resource == "events" || !slices.Contains(controllers, r.Component()) ||
			!slices.Contains(namespaces, r.Namespace) {
			continue
		}
		require.NotEmpty(t, name[r.Credential], "%v by an unknown token %q", r, r.Credential)
		key := [2]string{r.Component(), r.Namespace}
		by[key] = append(by[key], write{name[r.Credential], r.Received, r.Received.Add(r.Took), r.String()})
		looked++
	}
	for key, writes := range by {
		slices.SortFunc(writes, func(a, b write) int { return a.began.Compare(b.began) })
		changes := 0
		for i := 1; i < len(writes); i++ {
			before, after := writes[i-1], writes[i]
			if before.replica == after.replica {
				continue
			}
			changes++
			require.False(t, after.began.Before(before.ended), "%s, %s: %s by %s while %s by %s was under way", key[0], key[1],
				after.what, after.replica, before.what, before.replica)
		}
		allowed := len(shards) - 1 + w.lease(t, key[0]).transitions // from one number to another, and without shards
		of := map[string]bool{}
		for _, n := range shards {
			of[shard.LeaseName(key[0], placement.Of(key[1], n))] = true
		}
		for name := range of {
			allowed += w.lease(t, name).transitions
		}
		require.LessOrEqual(t, changes, allowed, "%s, %s: the writer changed more often than the shard's Lease",
			key[0], key[1])
		changed += changes
	}
	return looked, changed
}
