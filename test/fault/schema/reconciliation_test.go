package schema

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/internal/testkit/await"
	"kusionstack.io/kuperator/internal/testkit/crdgen"
	"kusionstack.io/kuperator/internal/testkit/observer"
)

const (
	everyReconciled = 300
	someReconciled  = 8
	// together is how many operations are under way at a time.
	together = 16
	// maxReplicas keeps operations out that ask for more Pods than a test has room for.
	maxReplicas = 6
)

// TestReconciliation does operations that are accepted without webhook-server, and takes them back.
func TestReconciliation(t *testing.T) {
	w := shared.Get(t)
	n := someReconciled
	if all() {
		n = everyReconciled
	}
	n = number(t, "RECONCILED", n)
	namespace, jobs := w.namespace(t, false), w.namespace(t, false) // jobs select no Pods of others there
	judge, err := observer.Start(context.WithoutCancel(t.Context()), w.RESTConfig(),
		observer.Options{StuckAfter: 2 * await.Patience})
	require.NoError(t, err)

	begin := time.Now()
	result := reconciled{outcomes: map[string]int{}}
	inParallel(w.effective(t, namespace, n), together, func(o numbered) {
		outcome, err := "", error(nil)
		switch o.Kind {
		case appsv1alpha1.OperationJobKind:
			outcome, err = w.runJob(t.Context(), jobs, o)
		case appsv1alpha1.PodDecorationKind:
			outcome, err = w.runDecoration(t.Context(), jobs, o)
		default:
			outcome, err = w.doAndUndo(t, namespace, o)
		}
		result.add(o.Operation, outcome, err)
	})
	t.Logf("%d operations in %s: %v", result.done, time.Since(begin).Round(time.Second), result.outcomes)
	for _, failure := range result.failures {
		t.Error(failure)
	}
	report, err := judge.Stop()
	require.NoError(t, err)
	require.NoError(t, report.Err())
	checks := map[string]int{"reached or reported": result.done, "same end after taking it back": result.done,
		"gone after deletion": result.done}
	require.NoError(t, addRow("accepted operations are reconciled and taken back", result.done, len(result.failures),
		result.outcomes, checks, result.failures, time.Since(begin)))
}

type reconciled struct {
	mu       sync.Mutex
	done     int
	outcomes map[string]int
	failures []string
}

func (r *reconciled) add(o crdgen.Operation, outcome string, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.done++
	if err != nil {
		r.failures = append(r.failures, fmt.Sprintf("%v\nagain: OPERATION='%s'", err, o))
		return
	}
	r.outcomes[outcome]++
}

// numbered is an operation with its own number, for names.
type numbered struct {
	crdgen.Operation
	number int
}

// effective returns up to n operations that are accepted, change something and differ in what they make of the object:
// in turn those about fields of a CollaSet, fields of its template, jobs, and rules.
func (w *world) effective(t *testing.T, namespace string, n int) []numbered {
	t.Helper()
	single := len(w.generate(t, 0)) // what is asked for, and what failed once, always
	pool := n * 25
	groups := map[string][]numbered{}
	seen := map[string]bool{}
	for i, o := range w.generate(t, pool) {
		if o.Kind == appsv1alpha1.ResourceContextKind || o.Kind == appsv1alpha1.CollaSetKind && o.Seed != "plain" {
			continue // the others are paused, or have claims that are never bound
		}
		admitted, err := w.try(t.Context(), namespace,
			crdgen.Operation{Kind: o.Kind, Verb: crdgen.Create, Seed: o.Seed, Changes: o.Changes})
		if err != nil {
			continue
		}
		spec, _, err := unstructured.NestedMap(admitted.Object, "spec")
		require.NoError(t, err)
		if replicas, ok := spec["replicas"].(int64); ok && replicas > maxReplicas {
			continue
		}
		content, err := json.Marshal(spec)
		require.NoError(t, err)
		key := o.Kind + string(content)
		if seen[key] && i >= single {
			continue
		}
		seen[key] = true
		group := o.Kind
		if strings.HasPrefix(o.Changes[len(o.Changes)-1].Field, "spec.template") {
			group = "template"
		}
		groups[group] = append(groups[group], numbered{o, i})
		if i < single {
			n++
		}
	}
	var chosen []numbered
	for i := 0; len(chosen) < n; i++ {
		before := len(chosen)
		for _, group := range slices.Sorted(maps.Keys(groups)) {
			if i < len(groups[group]) && len(chosen) < n {
				chosen = append(chosen, groups[group][i])
			}
		}
		if len(chosen) == before {
			break
		}
	}
	return chosen
}

// runJob creates a job, waits until it ends or says what it waits for, and deletes it. What a job has done cannot be
// taken back.
func (w *world) runJob(ctx context.Context, namespace string, o numbered) (outcome string, err error) {
	object, err := w.object(o.Operation)
	if err != nil {
		return "", err
	}
	object.SetName(fmt.Sprintf("op-%d", o.number))
	at := w.at(o.Kind, namespace)
	if _, err := at.Create(ctx, object, metav1.CreateOptions{}); err != nil {
		return "", fmt.Errorf("creating it: %w", err)
	}
	err = await.Until(ctx, func() error {
		job := &appsv1alpha1.OperationJob{}
		if err := w.client.Get(ctx, client.ObjectKey{Namespace: namespace, Name: object.GetName()}, job); err != nil {
			return err
		}
		reconciling := meta.FindStatusCondition(job.Status.Conditions, appsv1alpha1.OperationJobReconciling)
		if reconciling == nil || reconciling.Status != metav1.ConditionFalse {
			return fmt.Errorf("it neither has ended nor says why it waits: %+v", job.Status)
		}
		outcome = "job: " + reconciling.Reason
		return nil
	})
	if err != nil {
		return "", err
	}
	return outcome, w.remove(ctx, o.Kind, namespace, object.GetName())
}

// runDecoration creates a decoration, waits until its status is about it, and deletes it.
func (w *world) runDecoration(ctx context.Context, namespace string, o numbered) (outcome string, err error) {
	object, err := w.object(o.Operation)
	if err != nil {
		return "", err
	}
	object.SetName(fmt.Sprintf("op-%d", o.number))
	if _, err := w.at(o.Kind, namespace).Create(ctx, object, metav1.CreateOptions{}); err != nil {
		return "", fmt.Errorf("creating it: %w", err)
	}
	err = await.Until(ctx, func() error {
		d := &appsv1alpha1.PodDecoration{}
		if err := w.client.Get(ctx, client.ObjectKey{Namespace: namespace, Name: object.GetName()}, d); err != nil {
			return err
		}
		progressing := meta.FindStatusCondition(d.Status.Conditions, appsv1alpha1.PodDecorationProgressing)
		if progressing == nil || d.Status.ObservedGeneration != d.Generation {
			return fmt.Errorf("its status says nothing of it: %+v", d.Status)
		}
		outcome = "decoration: " + progressing.Reason
		return nil
	})
	if err != nil {
		return "", err
	}
	return outcome, w.remove(ctx, o.Kind, namespace, object.GetName())
}

// doAndUndo does an operation on its own object, waits for what becomes of it, takes it back, and deletes the object.
func (w *world) doAndUndo(t *testing.T, namespace string, o numbered) (outcome string, err error) {
	ctx, name := t.Context(), fmt.Sprintf("op-%d", o.number)
	at := w.at(o.Kind, namespace)
	seed := unstructured.Unstructured{Object: w.seeds[o.Kind][o.Seed]}
	plain := seed.DeepCopy()
	plain.SetName(name)
	changed, err := w.object(o.Operation)
	if err != nil {
		return "", err
	}
	changed.SetName(name)

	var before *end
	first := plain
	if o.Verb == crdgen.Create {
		first = changed
	}
	if _, err := at.Create(ctx, first, metav1.CreateOptions{}); err != nil {
		return "", fmt.Errorf("creating it: %w", err)
	}
	if o.Verb == crdgen.Update {
		if before, err = w.reached(ctx, o.Kind, namespace, name); err != nil {
			return "", fmt.Errorf("before the operation: %w", err)
		}
		if err := w.setSpec(ctx, o.Kind, namespace, name, changed); err != nil {
			if apierrors.IsInvalid(err) {
				return "refused as a change", w.remove(ctx, o.Kind, namespace, name)
			}
			return "", fmt.Errorf("changing it: %w", err)
		}
	}
	if outcome, err = w.reachedOrReported(ctx, o.Kind, namespace, name); err != nil {
		return "", fmt.Errorf("after the operation: %w", err)
	}
	if err := w.setSpec(ctx, o.Kind, namespace, name, plain); err == nil {
		after, err := w.reached(ctx, o.Kind, namespace, name)
		if err != nil {
			return "", fmt.Errorf("%s; after it was taken back: %w", outcome, err)
		}
		if before != nil {
			if diff := cmp.Diff(before, after); diff != "" {
				return "", fmt.Errorf("%s; after it was taken back something is left of it (-never done +taken back):\n%s",
					outcome, diff)
			}
		}
	} else if !apierrors.IsInvalid(err) { // what cannot be changed cannot be taken back
		return "", fmt.Errorf("taking it back: %w", err)
	}
	return outcome, w.remove(ctx, o.Kind, namespace, name)
}

// setSpec replaces the spec of an object.
func (w *world) setSpec(ctx context.Context, kind, namespace, name string, to *unstructured.Unstructured) error {
	at := w.at(kind, namespace)
	for {
		present, err := at.Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		present.Object["spec"] = to.DeepCopy().Object["spec"]
		if to.Object["spec"] == nil {
			delete(present.Object, "spec")
		}
		if _, err := at.Update(ctx, present, metav1.UpdateOptions{}); !apierrors.IsConflict(err) || ctx.Err() != nil {
			return err
		}
	}
}

// remove deletes an object and waits until it and its Pods are gone.
func (w *world) remove(ctx context.Context, kind, namespace, name string) error {
	if err := w.at(kind, namespace).Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
		return fmt.Errorf("deleting it: %w", err)
	}
	return await.Until(ctx, func() error {
		left, err := w.at(kind, namespace).Get(ctx, name, metav1.GetOptions{})
		if err == nil {
			return fmt.Errorf("it is being deleted since %v: %v", left.GetDeletionTimestamp(), left.Object["status"])
		}
		return client.IgnoreNotFound(err)
	})
}

// end is what is left when everything is reached, without what no two runs have in common.
type end struct {
	Revision string
	Pods     []corev1.PodSpec
	Labels   []map[string]string
}

// reached waits until an object is as it says.
func (w *world) reached(ctx context.Context, kind, namespace, name string) (*end, error) {
	var found *end
	err := await.Until(ctx, func() error {
		state, err := w.state(ctx, kind, namespace, name)
		if err != nil {
			return err
		}
		if !state.is(appsv1alpha1.CollaSetReady) {
			return fmt.Errorf("it is not Ready: %v", state)
		}
		found = &end{Revision: state.revision}
		for _, pod := range state.pods {
			found.Pods = append(found.Pods, normalSpec(pod))
			found.Labels = append(found.Labels, normalLabels(pod.Labels))
		}
		return nil
	})
	return found, err
}

// reachedOrReported waits until an object is as it says, or a condition or its Pods say what is to be changed.
func (w *world) reachedOrReported(ctx context.Context, kind, namespace, name string) (outcome string, err error) {
	err = await.Until(ctx, func() error {
		state, err := w.state(ctx, kind, namespace, name)
		if err != nil {
			return err
		}
		if outcome = state.outcome(); outcome == "" {
			return fmt.Errorf("it is neither Ready nor says what is to be changed: %v", state)
		}
		return nil
	})
	return outcome, err
}

// state is what can be seen of an object and its Pods.
type state struct {
	kind     string
	revision string
	paused   bool
	// never is what the spec keeps Pods from ever having, in the words of a condition; "" for nothing.
	never      string
	conditions []metav1.Condition
	pods       []*corev1.Pod
}

func (s state) String() string {
	lines := make([]string, 0, len(s.conditions)+len(s.pods))
	for _, c := range s.conditions {
		lines = append(lines, fmt.Sprintf("%s=%s %s: %.300s", c.Type, c.Status, c.Reason, c.Message))
	}
	for _, pod := range s.pods {
		lines = append(lines, fmt.Sprintf("Pod %s %s %v %v", pod.Name, pod.Status.Phase, pod.Labels, podTrouble(pod)))
	}
	return strings.Join(lines, "\n\t")
}

func (s state) is(condition string) bool { return meta.IsStatusConditionTrue(s.conditions, condition) }

// outcome says what became of an operation, "" for nothing yet.
func (s state) outcome() string {
	ready := meta.FindStatusCondition(s.conditions, appsv1alpha1.CollaSetReady)
	switch {
	case s.is(appsv1alpha1.CollaSetReady):
		return "reached"
	case s.paused && ready != nil && ready.Message != "":
		return "paused"
	}
	for _, c := range s.conditions {
		failed := c.Status == metav1.ConditionFalse &&
			(c.Type == appsv1alpha1.CollaSetScale || c.Type == appsv1alpha1.CollaSetUpdate ||
				c.Type == appsv1alpha1.CollaSetProgressing || c.Reason == string(appsv1alpha1.ReasonWebhookUnreachable))
		stalled := c.Type == appsv1alpha1.CollaSetStalled && c.Status == metav1.ConditionTrue
		if (failed || stalled) && c.Message != "" {
			return "reported: " + c.Type + " " + c.Reason
		}
	}
	if ready == nil || ready.Reason != string(appsv1alpha1.ReasonUnavailable) {
		return ""
	}
	for _, c := range s.conditions {
		if s.never != "" && strings.Contains(c.Message, s.never) {
			return "reported: " + c.Message
		}
	}
	if slices.ContainsFunc(s.pods, func(pod *corev1.Pod) bool { return podTrouble(pod) != "" }) {
		return "reported by Pods"
	}
	return ""
}

// podTrouble is what a Pod itself says is wrong with it.
func podTrouble(pod *corev1.Pod) string {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse {
			return c.Message
		}
	}
	for _, container := range append(slices.Clone(pod.Status.InitContainerStatuses), pod.Status.ContainerStatuses...) {
		if waiting := container.State.Waiting; waiting != nil && waiting.Reason != "" {
			return waiting.Reason
		}
	}
	return ""
}

// state reads an object whose status answers to its spec.
func (w *world) state(ctx context.Context, kind, namespace, name string) (state, error) {
	s := state{kind: kind}
	var observed, generation int64
	switch kind {
	case appsv1alpha1.CollaSetKind:
		set := &appsv1alpha1.CollaSet{}
		if err := w.client.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, set); err != nil {
			return s, err
		}
		observed, generation, s.conditions, s.revision, s.paused = set.Status.ObservedGeneration, set.Generation,
			set.Status.Conditions, set.Status.UpdatedRevision, set.Spec.Paused
		switch scheduler := set.Spec.Template.Spec.SchedulerName; {
		case scheduler != "" && scheduler != corev1.DefaultSchedulerName:
			s.never = "have no node"
		case int64(set.Spec.MinReadySeconds) > int64(await.Patience.Seconds()):
			s.never = "spec.minReadySeconds"
		case len(set.Spec.Template.Spec.ReadinessGates) > 0: // which is not set here
			s.never = "readiness gate"
		}
		pods := &corev1.PodList{}
		if err := w.client.List(ctx, pods, client.InNamespace(namespace)); err != nil {
			return s, err
		}
		for i := range pods.Items {
			if owner := metav1.GetControllerOf(&pods.Items[i]); owner != nil && owner.UID == set.UID {
				s.pods = append(s.pods, &pods.Items[i])
			}
		}
		if s.is(appsv1alpha1.CollaSetReady) && len(s.pods) != int(ptr.Deref(set.Spec.Replicas, 0)) {
			return s, fmt.Errorf("it has %d Pods: %v", len(s.pods), s)
		}
	case appsv1alpha1.PodTransitionRuleKind:
		rule := &appsv1alpha1.PodTransitionRule{}
		if err := w.client.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, rule); err != nil {
			return s, err
		}
		observed, generation, s.conditions = rule.Status.ObservedGeneration, rule.Generation, rule.Status.Conditions
	default:
		return s, errors.New("nobody reports on kind " + kind)
	}
	if observed != generation {
		return s, fmt.Errorf("the status is about generation %d of %d: %v", observed, generation, s)
	}
	return s, nil
}

// normalSpec is the spec of a Pod without what is the Pod's own.
func normalSpec(pod *corev1.Pod) corev1.PodSpec {
	spec := *pod.Spec.DeepCopy()
	spec.NodeName, spec.Hostname = "", ""
	spec.Volumes = slices.DeleteFunc(spec.Volumes,
		func(v corev1.Volume) bool { return strings.HasPrefix(v.Name, "kube-api-access-") })
	for i := range spec.Containers {
		spec.Containers[i].VolumeMounts = slices.DeleteFunc(spec.Containers[i].VolumeMounts,
			func(m corev1.VolumeMount) bool { return strings.HasPrefix(m.Name, "kube-api-access-") })
	}
	return spec
}

// normalLabels are labels without the values that no two Pods have in common.
func normalLabels(labels map[string]string) map[string]string {
	normal := maps.Clone(labels)
	for key := range normal {
		if key == appsv1alpha1.InstanceIDLabel || strings.HasSuffix(key, "service-available") {
			normal[key] = "*"
		}
	}
	return normal
}
