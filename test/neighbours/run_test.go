package neighbours

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/rand"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/internal/testkit/observer"
	"kusionstack.io/kuperator/internal/testkit/workload"
)

const (
	// patience is how long a run waits for one thing, which takes seconds when few run at a time. But where Kubernetes
	// counts a quota late, as on a busy machine, each of five Pods may be asked for again after half a minute only.
	patience = 5 * time.Minute
	// calm is for how long what must not happen is waited for.
	calm = 2 * time.Second
	pace = 50 * time.Millisecond

	name = "web" // of the workload, its Service and its rule
)

// run is one test in its own namespace.
type run struct {
	*testing.T
	*world
	*view
	namespace string
	// mutated is true if admission changes Pods, so that they are not what their revision says.
	mutated bool
	// edited is true if a person edits what tells instance IDs: the observer goes by it, the view does not.
	edited bool
	// explained is true if what there was when the test failed is in its log.
	explained bool
}

// begin makes a namespace and judges what happens in it until the test is over.
func begin(t *testing.T, w *world) *run {
	t.Helper()
	r := &run{T: t, world: w}
	r.namespace = r.newNamespace()
	r.view = watchNamespace(t, r.client, r.namespace)
	t.Cleanup(func() {
		r.judge()
		if t.Failed() && !r.explained {
			t.Log(r.story())
		}
	})
	return r
}

func (r *run) newNamespace() string {
	r.Helper()
	namespace := "beside-" + rand.String(8)
	r.create(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}})
	r.await("the default service account", func() error {
		return r.client.Get(
			r.Context(), client.ObjectKey{Namespace: namespace, Name: "default"}, &corev1.ServiceAccount{},
		)
	})
	return namespace
}

// judge fails the test for every promise that was broken: by the test's own view when that has seen the present, and
// by the observer.
func (r *run) judge() {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), patience)
	defer cancel()
	if err := r.until(ctx, r.caughtUp); err != nil {
		r.Errorf("the view: %v", err)
	}
	for _, broken := range r.verdict() {
		r.Error(broken)
	}
	report := r.observer.SettledIn(ctx, r.namespace)
	if !r.Failed() && !r.mutated {
		report = r.observer.AtRest(ctx, r.namespace)
	}
	report.Violations = slices.DeleteFunc(report.Violations, func(v observer.Violation) bool {
		return r.edited && v.Invariant == observer.InstanceID
	})
	if err := report.Err(); err != nil {
		r.Error(err)
	}
}

// caughtUp is nil if the view shows what is there now.
func (r *run) caughtUp(ctx context.Context) error {
	pods := &corev1.PodList{}
	if err := r.client.List(ctx, pods, client.InNamespace(r.namespace)); err != nil {
		return err
	}
	seen := map[types.UID]string{}
	for _, p := range r.podsNow() {
		seen[p.UID] = p.ResourceVersion
	}
	if len(seen) != len(pods.Items) {
		return fmt.Errorf("%d Pods exist, and %d were seen", len(pods.Items), len(seen))
	}
	for i := range pods.Items {
		if p := &pods.Items[i]; seen[p.UID] != p.ResourceVersion {
			return fmt.Errorf("the present state of Pod %s was not seen", p.Name)
		}
	}
	return nil
}

// story is what there is, for a test that failed.
func (r *run) story() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	text := "the Pods:\n" + r.describe()
	if set := r.set; set != nil {
		text += fmt.Sprintf("\nCollaSet %s, generation %d, observed %d, revisions %s, %s:", set.Name, set.Generation,
			set.Status.ObservedGeneration,
			set.Status.CurrentRevision, set.Status.UpdatedRevision)
		for _, c := range set.Status.Conditions {
			text += fmt.Sprintf("\n  %s=%s %s: %s", c.Type, c.Status, c.Reason, c.Message)
		}
		for _, b := range set.Status.Blockers {
			text += fmt.Sprintf("\n  blocker %s, %d Pods: %s", b.Reason, b.Count, b.Message)
		}
	}
	return text
}

// await waits until check returns nil, and fails the test when it does not.
func (r *run) await(what string, check func() error) {
	r.Helper()
	ctx, cancel := context.WithTimeout(r.Context(), patience)
	defer cancel()
	if err := r.until(ctx, func(context.Context) error { return check() }); err != nil {
		r.explained = true
		r.Fatalf("waiting for %s: %v\n%s", what, err, r.story())
	}
}

func (r *run) until(ctx context.Context, check func(context.Context) error) error {
	for {
		err := check(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("in vain: %w", err)
		case <-time.After(pace):
		}
	}
}

// create creates objects, those without their own scope in the run's namespace. They go with the test.
func (r *run) create(objects ...client.Object) {
	r.Helper()
	for _, o := range objects {
		require.NoError(r, r.client.Create(r.Context(), o), "creating %T %s", o, o.GetName())
		if o.GetNamespace() == "" {
			r.Cleanup(func() { r.remove(o) })
		}
	}
}

// remove deletes objects, in whatever state they are.
func (r *run) remove(objects ...client.Object) {
	r.Helper()
	for _, o := range objects {
		err := r.client.Delete(
			context.WithoutCancel(r.Context()), o, client.PropagationPolicy(metav1.DeletePropagationBackground),
		)
		require.NoError(r, client.IgnoreNotFound(err), "deleting %T %s", o, o.GetName())
	}
}

// workload is a CollaSet of the run, of n Pods with one container, main, that has everything that a change changes.
func (r *run) workload(n int32, policy appsv1alpha1.PodUpdatePolicy) *appsv1alpha1.CollaSet {
	set := workload.CollaSet(r.namespace, name, "web:1", n)
	set.Spec.UpdateStrategy = appsv1alpha1.UpdateStrategy{PodUpdatePolicy: policy} // with a Deployment's bound
	set.Spec.Template.Labels["version"] = "1"
	main := &set.Spec.Template.Spec.Containers[0]
	main.Env = []corev1.EnvVar{{Name: "VERSION", Value: "1"}}
	main.Resources.Requests = corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("100m"), corev1.ResourceMemory: resource.MustParse("64Mi"),
	}
	return set
}

// withClaims gives every Pod its own claim, and makes its volume.
func (r *run) withClaims(set *appsv1alpha1.CollaSet) {
	class := r.namespace
	set.Spec.Template.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "data", MountPath: "/data"}}
	set.Spec.VolumeClaimTemplates = []corev1.PersistentVolumeClaim{{
		ObjectMeta: metav1.ObjectMeta{Name: "data"},
		Spec: corev1.PersistentVolumeClaimSpec{
			StorageClassName: &class, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources: corev1.VolumeResourceRequirements{
				Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")},
			},
		},
	}}
}

// volumes are PersistentVolumes for claims of the run.
func (r *run) volumes(n int) {
	r.Helper()
	for range n {
		r.create(&corev1.PersistentVolume{
			ObjectMeta: metav1.ObjectMeta{Name: r.namespace + "-" + rand.String(5)},
			Spec: corev1.PersistentVolumeSpec{
				Capacity: corev1.ResourceList{
					corev1.ResourceStorage: resource.MustParse("1Gi"),
				}, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
				StorageClassName: r.namespace,
				PersistentVolumeSource: corev1.PersistentVolumeSource{
					HostPath: &corev1.HostPathVolumeSource{Path: "/data/" + r.namespace},
				},
			},
		})
	}
}

// start creates a CollaSet and waits until it is complete.
func (r *run) start(set *appsv1alpha1.CollaSet) {
	r.Helper()
	r.create(set)
	r.awaitComplete(int(*set.Spec.Replicas))
}

// change changes a CollaSet, and returns when the controller has taken it up.
func (r *run) change(how func(*appsv1alpha1.CollaSet)) {
	r.Helper()
	set := &appsv1alpha1.CollaSet{}
	require.NoError(r, r.client.Get(r.Context(), client.ObjectKey{Namespace: r.namespace, Name: name}, set))
	before := set.DeepCopy()
	how(set)
	require.NoError(r, r.client.Patch(r.Context(), set, client.MergeFrom(before)))
	r.await("the change to be taken up", func() error {
		if now := r.setNow(); now.Status.ObservedGeneration < set.Generation {
			return fmt.Errorf("generation %d was observed, not %d", now.Status.ObservedGeneration, set.Generation)
		}
		return nil
	})
}

// merge changes any object with a JSON merge patch.
func (r *run) merge(o client.Object, patch string) {
	r.Helper()
	require.NoError(
		r,
		r.client.Patch(
			r.Context(), o.DeepCopyObject().(client.Object), client.RawPatch(types.MergePatchType, []byte(patch)),
		),
		patch,
	)
}

// complete is nil if a CollaSet has exactly n Pods, all in service at the updated revision, is Ready and does not
// call for a person.
func (r *run) complete(n int) error {
	set := r.setNow()
	var errs []error
	if set.Status.ObservedGeneration != set.Generation || set.Generation == 0 {
		errs = append(errs, errors.New("the status is of another generation"))
	}
	for _, conditionType := range []string{appsv1alpha1.CollaSetReady, appsv1alpha1.CollaSetStalled} {
		c := meta.FindStatusCondition(set.Status.Conditions, conditionType)
		if c == nil || (c.Status == metav1.ConditionTrue) != (conditionType == appsv1alpha1.CollaSetReady) {
			errs = append(errs, fmt.Errorf("condition %s: %+v", conditionType, c))
		}
	}
	pods := 0
	for _, p := range r.podsNow() {
		if owner := metav1.GetControllerOfNoCopy(p); owner == nil || owner.UID != set.UID {
			continue
		}
		pods++
		if at := p.Labels[appsv1.ControllerRevisionHashLabelKey]; !serves(p) || at != set.Status.UpdatedRevision {
			errs = append(errs, fmt.Errorf("%s serves: %t, at %s", p.Name, serves(p), at))
		}
	}
	if pods != n {
		errs = append(errs, fmt.Errorf("%d Pods exist, not %d", pods, n))
	}
	return errors.Join(errs...)
}

func (r *run) awaitComplete(n int) {
	r.Helper()
	r.await(fmt.Sprintf("%d Pods in service at the updated revision, and nothing to do", n), func() error {
		return r.complete(n)
	})
}

// awaitServing waits until n Pods are in service, at whatever revision.
func (r *run) awaitServing(n int) {
	r.Helper()
	r.await(fmt.Sprintf("%d Pods in service", n), func() error {
		if serving := r.count(serves); serving < n {
			return fmt.Errorf("%d are", serving)
		}
		return nil
	})
}

// awaitAllServing waits until every Pod that lives is in service, however many there are.
func (r *run) awaitAllServing() {
	r.Helper()
	r.await("every Pod in service", func() error {
		if out := r.count(func(p *corev1.Pod) bool { return lives(p) && !serves(p) }); out > 0 {
			return fmt.Errorf("%d are not", out)
		}
		return nil
	})
}

// holdAll has every Pod held by a finalizer of the protocol, as by a load balancer that still sends traffic, until
// what it returns is called.
func (r *run) holdAll() (letGo func()) {
	r.Helper()
	pods := r.podsNow()
	patch := func(body string) {
		r.Helper()
		for _, p := range pods {
			err := r.client.Patch(r.Context(), p.DeepCopy(), client.RawPatch(types.StrategicMergePatchType, []byte(body)))
			require.NoError(r, err, body)
		}
	}
	const finalizer = `["prot.podopslifecycle.kusionstack.io/neighbour"]`
	patch(`{"metadata":{"finalizers":` + finalizer + `}}`)
	return func() { r.Helper(); patch(`{"metadata":{"$deleteFromPrimitiveList/finalizers":` + finalizer + `}}`) }
}

func (r *run) count(is func(*corev1.Pod) bool) int {
	n := 0
	for _, p := range r.podsNow() {
		if is(p) {
			n++
		}
	}
	return n
}

// awaitStalled waits until a CollaSet calls for a person, for a reason that holds the text.
func (r *run) awaitStalled(text string) {
	r.Helper()
	r.await("Stalled to be True and to name "+text, func() error {
		set := r.setNow()
		c := meta.FindStatusCondition(set.Status.Conditions, appsv1alpha1.CollaSetStalled)
		if c == nil || c.Status != metav1.ConditionTrue || !strings.Contains(c.Message, text) {
			return fmt.Errorf("%+v", c)
		}
		return nil
	})
}

// told is nil if a condition or a blocker holds the text.
func (r *run) told(text string) error {
	set := r.setNow()
	if slices.ContainsFunc(set.Status.Conditions, func(c metav1.Condition) bool {
		return strings.Contains(c.Message, text)
	}) ||
		slices.ContainsFunc(set.Status.Blockers, func(b appsv1alpha1.Blocker) bool {
			return strings.Contains(b.Message, text)
		}) {
		return nil
	}
	return fmt.Errorf("nothing is told of %s", text)
}

// calmly checks that nothing happens that must not, for a moment.
func (r *run) calmly(what string, check func() error) {
	r.Helper()
	for end := time.Now().Add(calm); time.Now().Before(end); time.Sleep(pace) {
		if err := check(); err != nil {
			r.Fatalf("%s: %v", what, err)
		}
	}
}

// uids are those of the Pods that live, sorted.
func (r *run) uids() (all []types.UID) {
	for _, p := range r.podsNow() {
		if lives(p) {
			all = append(all, p.UID)
		}
	}
	slices.Sort(all)
	return all
}

// gone is nil once a Get does not find what it looks for.
func gone(err error) error {
	if err == nil {
		return errors.New("it is still there")
	}
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
