package bench

import (
	"errors"
	"fmt"
	"maps"
	"strings"
	"time"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
	"kusionstack.io/kuperator/internal/collaset/setplan"
	"kusionstack.io/kuperator/internal/freshness"
	"kusionstack.io/kuperator/internal/revision"
	"kusionstack.io/kuperator/internal/testkit/suite"
)

const (
	// bareLabel stands for the label by which the suite knows its Pods, so that no other program changes these. It is as
	// long.
	bareLabel  = "kusionstack.io/bareone"
	bareBefore = "web-5d8f9c7b6d" // revisions
	bareAfter  = "web-6c9b8d7f5c"
)

// loop is what all else is compared with: it makes the very writes that the suite makes to the Pods of a CollaSet, the
// same patches of the same kinds with the same preconditions, under the names of the same two writers, one after the
// other, and waits for the kubelet where the protocol has to. It watches nothing but the kubelet, and decides nothing.
type loop struct {
	arena
	m                   *meter
	namespace, node     string
	owner               *corev1.ConfigMap
	operator, lifecycle client.Client
}

func (a arena) newLoop(m *meter, namespace, node string) loop {
	owner := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "web"}}
	require.NoError(a, a.Create(a.Context(), owner))
	return loop{a, m, namespace, node, owner, client.WithFieldOwner(a.Client, suite.CollaSet),
		client.WithFieldOwner(a.Client, suite.Lifecycle)}
}

// barePod is a Pod as the loop knows it after its own writes.
type barePod struct {
	name string
	view podops.View
	live *corev1.Pod // as it was seen last
}

// readBare is the Pod as it would be read if it had the label by which the suite knows its own.
func readBare(pod *corev1.Pod) podops.View {
	v := podops.Read(pod)
	v.Labels = maps.Clone(v.Labels)
	v.Labels[appsv1alpha1.ControlLabel] = v.Labels[bareLabel]
	return v
}

// see waits until the Pod is as asked.
func (l loop) see(name string, as func(*corev1.Pod) bool) (*barePod, error) {
	pod, err := l.m.sighted(l.Context(), name, as)
	if err != nil {
		return nil, err
	}
	return &barePod{name, readBare(pod), pod}, nil
}

func asItIs(*corev1.Pod) bool      { return true }
func isReady(pod *corev1.Pod) bool { return podops.Read(pod).Ready }

// wrote takes the answer in, which is metadata only.
func (p *barePod) wrote(after podops.View, answer *metav1.PartialObjectMetadata) {
	p.view = after
	p.view.ResourceVersion = answer.ResourceVersion
}

// patch is a patch of the operator's.
func (l loop) patch(pod client.Object, kind types.PatchType, data []byte) error {
	return l.operator.Patch(l.Context(), pod, client.RawPatch(kind, data))
}

// operate is a write of the operator's.
func (l loop) operate(p *barePod, change podops.Change) error {
	target := freshness.PodTarget(l.namespace, p.name)
	if err := l.patch(target, types.MergePatchType, change.MergePatch(p.view)); err != nil {
		return err
	}
	p.wrote(change.Apply(p.view), target)
	return nil
}

// begin asks for an operation.
func (l loop) begin(p *barePod, request podops.Request) error {
	change, err := podops.Begin(p.view, request, time.Now())
	if err != nil {
		return err
	}
	return l.operate(p, change)
}

// advance is the write of lifecycle-controller that is due.
func (l loop) advance(p *barePod) error { return l.advanceAfter(p, podops.Change{}) }

// advanceAfter is the write of lifecycle-controller that is due once a change is made, which goes with it.
func (l loop) advanceAfter(p *barePod, change podops.Change) error {
	view := change.Apply(p.view)
	step := podops.Advance(view, podops.VerdictsFor(view, nil), time.Now())
	step.Change = change.Then(p.view, step.Change)
	if step.IsZero() {
		return errors.New("nothing is due")
	}
	target := freshness.PodTarget(l.namespace, p.name)
	body := step.StatusPatch(p.view, metav1.Now())
	if err := l.lifecycle.Status().Patch(l.Context(), target,
		client.RawPatch(types.StrategicMergePatchType, body)); err != nil {
		return err
	}
	p.wrote(step.Apply(p.view), target)
	return nil
}

// create makes the three writes to a new Pod.
func (l loop) create(name string) error {
	pod := &corev1.Pod{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{
			Namespace: l.namespace, Name: name,
			Labels: map[string]string{
				"app": "web", bareLabel: appsv1alpha1.ControlValue, appsv1alpha1.InstanceIDLabel: strings.TrimPrefix(name, "web-"),
				appsv1.ControllerRevisionHashLabelKey: bareBefore, podops.CreatingLabel: podops.Stamp(time.Now()),
			},
			// An owner that is there, and whose controllers do not look at Pods.
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: "v1", Kind: "ConfigMap", Name: l.owner.Name, UID: l.owner.UID, Controller: ptr.To(true),
				BlockOwnerDeletion: ptr.To(true),
			}},
		},
		Spec: corev1.PodSpec{
			NodeName: l.node, Containers: []corev1.Container{{Name: "app", Image: oldImage}},
			ReadinessGates: []corev1.PodReadinessGate{{ConditionType: podops.ServiceReadyCondition}},
		},
	}
	made, err := runtime.DefaultUnstructuredConverter.ToUnstructured(pod) // as from a revision's JSON
	if err != nil {
		return err
	}
	if err := l.operator.Create(l.Context(), &unstructured.Unstructured{Object: made}); err != nil {
		return err
	}
	p, err := l.see(name, func(pod *corev1.Pod) bool { return podops.Read(pod).ContainersReady })
	if err != nil {
		return err
	}
	if err := l.advance(p); err != nil {
		return fmt.Errorf("gate on: %w", err)
	}
	p, err = l.see(name, isReady)
	if err != nil {
		return err
	}
	return l.advance(p)
}

// update makes the five writes to a Pod that is updated in place.
func (l loop) update(name, image string) error {
	p, err := l.see(name, asItIs)
	if err != nil {
		return err
	}
	if err := l.begin(p, podops.Request{ID: setplan.OperatorID, Type: podops.TypeUpdate}); err != nil {
		return fmt.Errorf("begin: %w", err)
	}
	if err := l.advance(p); err != nil {
		return fmt.Errorf("gate off: %w", err)
	}
	changed := *p.live
	changed.ResourceVersion = p.view.ResourceVersion
	target := freshness.PodTarget(l.namespace, name)
	op := podops.OperationOf(p.view, setplan.OperatorID)
	finisher := &revision.Finish{ID: op.ID, Type: op.Type, Request: op.Request}
	body := revision.Change{Images: map[string]string{"app": image}}.Patch(&changed, bareAfter, finisher)
	if err := l.patch(target, types.StrategicMergePatchType, body); err != nil {
		return fmt.Errorf("image: %w", err)
	}
	if p, err = l.see(name, func(pod *corev1.Pod) bool {
		return revision.Recorded(pod) &&
			revision.Carried(pod).Done
	}); err != nil {
		return err
	}
	finish := podops.Finish(p.view, setplan.OperatorID, podops.TypeUpdate, time.Now())
	finish.Annotations = map[string]*string{appsv1alpha1.LastPodStatusAnnotation: nil}
	if err := l.advanceAfter(p, finish); err != nil {
		return fmt.Errorf("finish and gate on: %w", err)
	}
	if p, err = l.see(name, isReady); err != nil {
		return err
	}
	return l.advance(p)
}

// remove makes the three writes to a Pod that is scaled in.
func (l loop) remove(name string) error {
	p, err := l.see(name, asItIs)
	if err != nil {
		return err
	}
	if err := l.begin(p, podops.Request{ID: setplan.OperatorID, Type: podops.TypeScaleIn, Deletes: true}); err != nil {
		return fmt.Errorf("begin: %w", err)
	}
	if err := l.advance(p); err != nil {
		return fmt.Errorf("gate off: %w", err)
	}
	return l.operator.Delete(l.Context(), p.live,
		client.Preconditions{UID: &p.view.UID, ResourceVersion: &p.view.ResourceVersion})
}
