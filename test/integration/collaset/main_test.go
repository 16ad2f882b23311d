// Package collaset_test runs collaset-controller on a real control plane with simulated nodes: directly, and under the
// Pod lifecycle with the test as lifecycle-controller.
package collaset_test

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
	"kusionstack.io/kuperator/internal/bootstrap"
	"kusionstack.io/kuperator/internal/collaset"
	"kusionstack.io/kuperator/internal/decoration"
	"kusionstack.io/kuperator/internal/testkit/history"
	"kusionstack.io/kuperator/internal/testkit/localkube"
	"kusionstack.io/kuperator/internal/testkit/testcluster"
)

const patience = 3 * time.Minute // for what takes seconds, on a busy machine

// env is one test in its own namespace.
type env struct {
	*testing.T
	client.Client
	cluster   *localkube.Cluster
	namespace string
}

// start starts a cluster in which Pods run and owners are collected.
func start(t *testing.T) (*localkube.Cluster, client.Client) {
	t.Helper()
	return startAs(t, localkube.Config{Name: "collaset", WithControllerManager: true, WithScheduler: true, WithNodes: true,
		Audit: true})
}

// startAs starts a cluster that serves our kinds.
func startAs(t *testing.T, config localkube.Config) (*localkube.Cluster, client.Client) {
	t.Helper()
	cluster := testcluster.Start(t, config)
	require.NoError(t, appsv1alpha1.AddToScheme(clientgoscheme.Scheme))
	c, err := client.NewWithWatch(cluster.RESTConfig(), client.Options{Scheme: clientgoscheme.Scheme})
	require.NoError(t, err)
	crds, err := filepath.Abs("../../../deploy/crd")
	require.NoError(t, err)
	out, err := cluster.Kubectl(t.Context(), "apply", "--server-side", "-k", crds)
	require.NoError(t, err, out)
	require.NoError(t, localkube.WaitForCRDs(t.Context(), cluster.RESTConfig()))
	return cluster, c
}

// output is the controller's log. started is closed at the first line: the process-wide loggers are set by then.
type output struct {
	mu      sync.Mutex
	text    []byte
	once    sync.Once
	started chan struct{}
}

func (o *output) Write(line []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.text = append(o.text, line...)
	o.once.Do(func() { close(o.started) })
	return len(line), nil
}

// run runs the binary's own command in this process until the test ends.
func run(t *testing.T, cluster *localkube.Cluster, args ...string) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	component := collaset.Component()
	component.Manager = func(_ *bootstrap.Options, options *ctrl.Options) error {
		options.Controller.SkipNameValidation = ptr.To(true) // several run in this process
		return nil
	}
	cmd := bootstrap.Command(component)
	log := &output{started: make(chan struct{})}
	cmd.SetErr(log)
	cmd.SetArgs(append([]string{
		"--kubeconfig", cluster.AdminKubeconfig, "--leader-elect=false", "--log-format=console", "--log-level=1",
		"--metrics-bind-address=0", "--health-probe-bind-address=0",
	}, args...))
	done := make(chan error, 1)
	go func() { done <- cmd.ExecuteContext(ctx) }()
	t.Cleanup(func() {
		cancel()
		assert.NoError(t, <-done)
		if t.Failed() {
			t.Logf("collaset-controller said:\n%s", log.text[max(0, len(log.text)-6000):])
		}
	})
	select {
	case <-log.started:
	case <-time.After(patience):
		t.Fatal("collaset-controller does not start")
	}
}

// eventually waits until the check finds nothing wrong.
func (e env) eventually(what string, wrong func() string) {
	e.Helper()
	deadline := time.Now().Add(patience)
	last := ""
	for time.Now().Before(deadline) {
		if last = wrong(); last == "" {
			return
		}
		<-time.After(50 * time.Millisecond)
	}
	set := &appsv1alpha1.CollaSetList{}
	_ = e.List(e.Context(), set, client.InNamespace(e.namespace))
	status := ""
	for i := range set.Items {
		raw, _ := json.MarshalIndent(set.Items[i].Status, "", " ")
		status += string(raw)
	}
	labels := ""
	for _, p := range e.pods() {
		labels += fmt.Sprintf("\n%s ready=%v %v %v", p.Name, podops.Read(&p).Ready, p.Labels, p.Annotations)
	}
	e.Fatalf("not within %s: %s: %s\n%s%s", patience, what, last, status, labels)
}

// create makes a CollaSet of one container "app" and one "side".
func (e env) create(name string, replicas int32, change func(*appsv1alpha1.CollaSet)) *appsv1alpha1.CollaSet {
	e.Helper()
	labels := map[string]string{"app": name}
	set := &appsv1alpha1.CollaSet{
		ObjectMeta: metav1.ObjectMeta{Namespace: e.namespace, Name: name},
		Spec: appsv1alpha1.CollaSetSpec{
			Replicas: &replicas,
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec: corev1.PodSpec{Containers: []corev1.Container{
					{Name: "app", Image: "nginx:1"}, {Name: "side", Image: "envoy:1"},
				}},
			},
		},
	}
	if change != nil {
		change(set)
	}
	require.NoError(e, e.Create(e.Context(), set))
	return set
}

// change patches the CollaSet's spec.
func (e env) change(set *appsv1alpha1.CollaSet, change func(*appsv1alpha1.CollaSetSpec)) {
	e.Helper()
	require.NoError(e, e.Get(e.Context(), client.ObjectKeyFromObject(set), set))
	before := set.DeepCopy()
	change(&set.Spec)
	require.NoError(e, e.Patch(e.Context(), set, client.MergeFrom(before)))
}

func image(image string) func(*appsv1alpha1.CollaSetSpec) {
	return func(s *appsv1alpha1.CollaSetSpec) { s.Template.Spec.Containers[0].Image = image }
}

func replicas(n int32) func(*appsv1alpha1.CollaSetSpec) {
	return func(s *appsv1alpha1.CollaSetSpec) { s.Replicas = &n }
}

func partition(n int32) func(*appsv1alpha1.CollaSetSpec) {
	return func(s *appsv1alpha1.CollaSetSpec) {
		s.UpdateStrategy.RollingUpdate = &appsv1alpha1.RollingUpdateStrategy{ByPartition: &appsv1alpha1.ByPartition{Partition: ptr.To(intstr.FromInt32(n))}}
	}
}

// pods are the namespace's Pods that are not being deleted, by instance ID.
func (e env) pods() []corev1.Pod {
	e.Helper()
	list := &corev1.PodList{}
	require.NoError(e, e.List(e.Context(), list, client.InNamespace(e.namespace)))
	live := slices.DeleteFunc(list.Items, func(p corev1.Pod) bool { return p.DeletionTimestamp != nil })
	slices.SortFunc(live, func(a, b corev1.Pod) int {
		id := func(p corev1.Pod) int { n, _ := strconv.Atoi(p.Labels[appsv1alpha1.InstanceIDLabel]); return n }
		return id(a) - id(b)
	})
	return live
}

func uids(pods []corev1.Pod) []types.UID {
	var out []types.UID
	for _, p := range pods {
		out = append(out, p.UID)
	}
	return out
}

func ids(pods []corev1.Pod) []string {
	var out []string
	for _, p := range pods {
		out = append(out, p.Labels[appsv1alpha1.InstanceIDLabel])
	}
	return out
}

// updated counts Pods at the updated revision whose first container runs the image.
func running(pods []corev1.Pod, image string) int {
	n := 0
	for _, p := range pods {
		for _, s := range p.Status.ContainerStatuses {
			if s.Name == "app" && s.Image == image && s.State.Running != nil {
				n++
			}
		}
	}
	return n
}

// reachesReady waits until the CollaSet reports its present spec as reached, and checks that it is. Where the spec has
// not changed, but Pods have, use settles: the status may still be of the time before.
func (e env) reachesReady(set *appsv1alpha1.CollaSet) {
	e.Helper()
	e.reaches(set, appsv1alpha1.CollaSetReady)
	assert.Empty(e, e.missing(set), "Ready promises that")
	e.hasItsContext(set)
}

// settles waits until the CollaSet reports its spec as reached, and it is.
func (e env) settles(set *appsv1alpha1.CollaSet) {
	e.Helper()
	e.eventually(set.Name+" is at its goal", func() string {
		require.NoError(e, e.Get(e.Context(), client.ObjectKeyFromObject(set), set))
		if !is(set, appsv1alpha1.CollaSetReady, set.Generation) {
			return "its status does not say so"
		}
		return e.missing(set)
	})
	e.hasItsContext(set)
}

// missing says what of the goal is not reached, by the status in set and the Pods as they are.
func (e env) missing(set *appsv1alpha1.CollaSet) string {
	e.Helper()
	pods, want := e.pods(), *set.Spec.Replicas
	if len(pods) != int(want) || set.Status.Replicas != want || set.Status.AvailableReplicas != want {
		return fmt.Sprintf("of %d Pods there are %d, %d by the status and %d of these available", want, len(pods),
			set.Status.Replicas, set.Status.AvailableReplicas)
	}
	for _, p := range pods {
		for key := range p.Labels {
			if strings.Contains(key, ".podopslifecycle.") {
				return fmt.Sprintf("%s has %s left", p.Name, key)
			}
		}
		if _, left := p.Annotations[appsv1alpha1.LastPodStatusAnnotation]; left || !podops.Read(&p).Ready {
			return fmt.Sprintf("%s is under way: %v, Ready %t", p.Name, p.Annotations, podops.Read(&p).Ready)
		}
	}
	return ""
}

// hasItsContext waits until the ResourceContext has an entry for each Pod.
func (e env) hasItsContext(set *appsv1alpha1.CollaSet) {
	e.Helper()
	rc := &appsv1alpha1.ResourceContext{}
	e.eventually("the ResourceContext agrees with the Pods", func() string {
		pods := e.pods()
		if err := e.Get(e.Context(), client.ObjectKeyFromObject(set), rc); err != nil {
			if len(pods) == 0 {
				return ""
			}
			return err.Error()
		}
		if len(rc.Spec.Contexts) != len(pods) {
			return fmt.Sprintf("%d entries", len(rc.Spec.Contexts))
		}
		for i, c := range rc.Spec.Contexts {
			want := map[string]string{"Owner": set.Name, "Revision": pods[i].Labels[appsv1.ControllerRevisionHashLabelKey]}
			if made, _ := decoration.Keys(pods[i].Annotations); made != "" {
				want["PodDecorationRevisions"] = made
			}
			if fmt.Sprint(c.ID) != pods[i].Labels[appsv1alpha1.InstanceIDLabel] || fmt.Sprint(want) != fmt.Sprint(c.Data) {
				return fmt.Sprintf("entry %v, Pod %v", c, pods[i].Labels)
			}
		}
		return ""
	})
}

// reaches waits until the condition is True for the CollaSet's present generation.
func (e env) reaches(set *appsv1alpha1.CollaSet, condition string) {
	e.Helper()
	generation := set.Generation
	e.eventually(set.Name+" is "+condition, func() string {
		require.NoError(e, e.Get(e.Context(), client.ObjectKeyFromObject(set), set))
		if is(set, condition, generation) {
			return ""
		}
		return "it is not"
	})
}

// is reports whether the condition is True for the generation, or a later one.
func is(set *appsv1alpha1.CollaSet, condition string, generation int64) bool {
	return set.Status.ObservedGeneration >= generation &&
		slices.ContainsFunc(set.Status.Conditions, func(c metav1.Condition) bool {
			return c.Type == condition && c.Status == metav1.ConditionTrue && c.ObservedGeneration >= generation
		})
}

// record keeps all states of the namespace's objects of a kind from here on.
func record[T client.Object](e env, list client.ObjectList) *history.Of[T] {
	e.Helper()
	c, ok := e.Client.(client.WithWatch)
	require.True(e, ok)
	return history.Record[T](e.T, c, list, client.InNamespace(e.namespace))
}

// seen waits until the controller's cache of Pods, in whatever namespace, has all that was written before: it comes
// to know of a Pod that is made now.
func (e env) seen() {
	e.Helper()
	there := env{e.T, e.Client, e.cluster, testcluster.Namespace(e.T, e.cluster, nil)}
	witness := there.create("witness", 1, nil)
	there.reaches(witness, appsv1alpha1.CollaSetReady)
	require.NoError(e, e.Client.Delete(e.Context(), witness))
}

// refuses waits until the API server refuses another Pod, as a quota or a limit wants it: its admission learns of
// both a moment after they were made.
func (e env) refuses(because string, change func(*corev1.Container)) {
	e.Helper()
	e.eventually("another Pod is refused", func() string {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: e.namespace, Name: "another"},
			Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "app", Image: "nginx:1"}}}}
		if change != nil {
			change(&pod.Spec.Containers[0])
		}
		err := e.Create(e.Context(), pod, client.DryRunAll)
		if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), because) {
			return fmt.Sprint(err)
		}
		return ""
	})
}

// quiet waits until the API server has taken no write on the namespace's Pods and CollaSets for a second.
func (e env) quiet() {
	e.Helper()
	last, since := "", time.Now()
	e.eventually("nothing is written any more", func() string {
		now := ""
		for _, p := range e.pods() {
			now += p.Name + p.ResourceVersion
		}
		sets := &appsv1alpha1.CollaSetList{}
		require.NoError(e, e.List(e.Context(), sets, client.InNamespace(e.namespace)))
		for _, s := range sets.Items {
			now += s.Name + s.ResourceVersion
		}
		if now != last {
			last, since = now, time.Now()
		}
		if time.Since(since) > time.Second {
			return ""
		}
		return "still writing"
	})
}

// playLifecycle does what lifecycle-controller does, with every rule content, until the test ends.
func playLifecycle(t *testing.T, c client.Client) {
	play(t, 20*time.Millisecond, func(ctx context.Context) { advancePods(ctx, c) })
}

// play does a part again and again, with a pause after each time, until the test ends.
func play(t *testing.T, pause time.Duration, part func(context.Context)) {
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	t.Cleanup(func() { cancel(); <-done })
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			part(ctx)
			select {
			case <-ctx.Done():
			case <-time.After(pause):
			}
		}
	}()
}

func advancePods(ctx context.Context, c client.Client) {
	list := &corev1.PodList{}
	if c.List(ctx, list, client.MatchingLabels{appsv1alpha1.ControlLabel: appsv1alpha1.ControlValue}) != nil {
		return
	}
	for i := range list.Items {
		pod := &list.Items[i]
		if _, marked := pod.Labels[appsv1alpha1.ToDeleteLabel]; marked {
			_ = c.Delete(ctx, pod)
			continue
		}
		v := podops.Read(pod)
		verdicts := podops.Verdicts{}
		for _, o := range podops.Operations(v) {
			if o.ID == "held" || pod.Annotations["hold"] != "" {
				continue
			}
			verdicts[podops.Ask{ID: o.ID, Stage: appsv1alpha1.StagePreCheck}] = true
			verdicts[podops.Ask{ID: o.ID, Stage: appsv1alpha1.StagePostCheck}] = true
		}
		if step := podops.Advance(v, verdicts, time.Now()); !step.IsZero() {
			_ = c.Status().Patch(ctx, pod, client.RawPatch(types.StrategicMergePatchType, step.StatusPatch(v, metav1.Now())))
		}
	}
}
