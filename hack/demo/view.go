package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
	"kusionstack.io/kuperator/internal/testkit/observer"
	"kusionstack.io/kuperator/internal/testkit/suite"
)

// starting is shown for a Pod that is not in service yet, with no operation on it.
const starting = "Starting"

// revisionWidth is how much of a revision's hash tells it apart.
const revisionWidth = 6

// picture is the state of the workload at one moment.
type picture struct {
	title, why    string
	elapsed       time.Duration
	startReplicas int
	goalReplicas  int
	goalImage     string
	rule          observer.RuleReport
	writes        map[string]suite.Counts
	job           *appsv1alpha1.OperationJob // nil for a stage without one
	stuck         bool                       // the stage cannot be completed
	failing       string                     // the CollaSet's blocker of containers that cannot run
	held          time.Duration              // how long that has been there
	rows          []row
}

// row is one Pod.
type row struct {
	uid      types.UID
	name     string
	id       int
	phase    string
	revision string
	image    string
	ready    bool
	serving  bool
	leaving  bool
	waits    string
}

// look reads the Pods and rules as they are.
func (d *demo) look(ctx context.Context) (picture, error) {
	pods, rules := &corev1.PodList{}, &appsv1alpha1.PodTransitionRuleList{}
	if err := d.client.List(ctx, pods, client.InNamespace(namespace), client.MatchingLabels(appLabels)); err != nil {
		return picture{}, fmt.Errorf("listing Pods: %w", err)
	}
	if err := d.client.List(ctx, rules, client.InNamespace(namespace)); err != nil {
		return picture{}, fmt.Errorf("listing rules: %w", err)
	}
	var compiled []podops.Rule
	for i := range rules.Items {
		compiled = append(compiled, podops.CompileRule(&rules.Items[i]))
	}
	p := picture{}
	for i := range pods.Items {
		p.rows = append(p.rows, rowOf(&pods.Items[i], compiled))
	}
	slices.SortFunc(p.rows, func(a, b row) int {
		return cmp.Or(cmp.Compare(a.id, b.id), cmp.Compare(a.name, b.name))
	})
	return p, nil
}

func rowOf(pod *corev1.Pod, rules []podops.Rule) row {
	v := podops.Read(pod)
	r := row{uid: pod.UID, name: pod.Name, id: -1, ready: v.Ready, serving: v.Ready && v.ServiceAvailable(),
		leaving: v.Terminating}
	if id, err := strconv.Atoi(pod.Labels[appsv1alpha1.InstanceIDLabel]); err == nil {
		r.id = id
	}
	if len(pod.Spec.Containers) > 0 {
		// A restart in place adds a digest; the content is the same.
		r.image, _, _ = strings.Cut(pod.Spec.Containers[0].Image, "@")
	}
	revision := pod.Labels[appsv1.ControllerRevisionHashLabelKey]
	r.revision = revision[strings.LastIndexByte(revision, '-')+1:]
	r.revision = r.revision[:min(len(r.revision), revisionWidth)]
	if r.leaving {
		r.phase, r.waits = "Terminating", "its containers to end"
		if held := podops.ProtectionFinalizers(pod.Finalizers); len(held) > 0 {
			r.waits = "finalizer " + held[0]
		}
		return r
	}
	waits := podops.Explain(v, rules)
	if len(waits) == 0 {
		return r
	}
	w := waits[0] // there is one operation at a time here
	r.phase, r.waits = string(w.Phase), w.Message
	if w.Phase == podops.PhaseNone {
		r.phase = starting
	}
	if cannotPull(pod) {
		r.waits = "an image that can be pulled"
		return r
	}
	switch w.Reason {
	case podops.WaitFinalizer:
		r.waits = "traffic to drain"
	case podops.WaitExpected:
		r.waits = "traffic to return"
	case podops.WaitOperator:
		r.waits = w.Type
	case podops.WaitReady:
		r.waits = "the Pod to be Ready"
	case podops.WaitRule, podops.WaitOperationType, podops.WaitLifecycle, podops.WaitNotReady, podops.WaitStayOffline,
		podops.WaitFrozen, podops.WaitOther, podops.WaitRefused:
	}
	return r
}

func cannotPull(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.ContainerStatuses, func(s corev1.ContainerStatus) bool {
		return s.State.Waiting != nil && s.State.Waiting.Reason == "ImagePullBackOff"
	})
}

// having is the number of Pods with the image.
func (p picture) having(image string) int {
	n := 0
	for _, r := range p.rows {
		if r.image == image {
			n++
		}
	}
	return n
}

// serving is the number of Pods in service.
func (p picture) serving() int {
	n := 0
	for _, r := range p.rows {
		if r.serving && !r.leaving {
			n++
		}
	}
	return n
}

// reached says how many Pods are as the stage wants them.
func (p picture) reached() int {
	n := 0
	for _, r := range p.rows {
		if r.image == p.goalImage && r.serving && r.phase == "" {
			n++
		}
	}
	return n
}

// out is the number of Pods that an operation has out of service now. The
// observer's own count is what judges; it comes most of a second later.
func (p picture) out() int {
	n := 0
	for _, r := range p.rows {
		if r.leaving || !r.serving && r.phase != starting && r.phase != string(podops.PhasePreCheck) {
			n++
		}
	}
	return n
}

// progress counts what the stage is about, in words too.
func (p picture) progress() (n, of int, words string) {
	if p.job != nil {
		return int(p.job.Status.SucceededPodCount), len(p.job.Spec.Targets), "Pods restarted in place"
	}
	if p.stuck {
		return p.having(p.goalImage), p.goalReplicas, fmt.Sprintf("Pods have %s, %d serve", p.goalImage, p.serving())
	}
	if gone := p.startReplicas - p.goalReplicas; gone > 0 && p.startReplicas > 0 {
		return p.startReplicas - len(p.rows), gone, "Pods removed"
	}
	return p.reached(), p.goalReplicas, "Pods in service with " + p.goalImage
}

func (p picture) done() bool {
	if p.stuck {
		return p.held >= stuckFor
	}
	if p.job != nil && p.job.Status.Progress != appsv1alpha1.OperationProgressSucceeded {
		return false
	}
	return len(p.rows) == p.goalReplicas && p.reached() == p.goalReplicas
}
