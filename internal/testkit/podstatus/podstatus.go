// Package podstatus has a Pod live through what kubelets report, and lists the fields of its status at each stop.
// With it the simulated kubelet is compared with a real one.
package podstatus

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"kusionstack.io/kuperator/internal/testkit/await"
)

// Real is what a kubelet of Kubernetes 1.37.2 wrote, in the form of Text. test/node keeps it true.
//
//go:embed testdata/kubelet.txt
var Real string

const (
	gate      = "example.com/gate"
	finalizer = "example.com/hold"
)

// Stop is a stop in the life of a Pod, and the fields of its status there, sorted.
type Stop struct {
	Name   string
	Fields []string
}

// Play has a Pod of the namespace live. image and other are images that run and end with 0, missing is one that cannot
// be pulled. It returns an error if a stop is not reached.
func Play(ctx context.Context, c client.Client, namespace, image, other, missing string) ([]Stop, error) {
	pod := podOf(namespace, image)
	if err := c.Create(ctx, pod); err != nil {
		return nil, err
	}
	isReady := func(p *corev1.Pod) bool { return is(p, corev1.PodReady, corev1.ConditionTrue, "") }
	restarted := func(p *corev1.Pod) bool {
		s := mainOf(p)
		return isReady(p) && s != nil && s.RestartCount == 1 && s.State.Running != nil
	}
	waits := func(p *corev1.Pod) bool {
		s := mainOf(p)
		return s != nil && s.State.Waiting != nil && strings.HasPrefix(s.State.Waiting.Reason, "ImagePull") &&
			is(p, corev1.PodReady, corev1.ConditionFalse, "ContainersNotReady")
	}
	resized := func(p *corev1.Pod) bool {
		s := mainOf(p)
		return isReady(p) && s != nil && s.AllocatedResources.Cpu().String() == "20m" && s.Resources != nil &&
			s.Resources.Requests.Cpu().String() == "20m"
	}
	ended := func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodSucceeded }
	var stops []Stop
	for _, stop := range []struct {
		name    string
		act     func() error
		reached func(*corev1.Pod) bool
	}{
		{"runs, the gate is closed", func() error { return nil }, func(p *corev1.Pod) bool {
			return is(p, corev1.PodReady, corev1.ConditionFalse, "ReadinessGatesNotReady")
		}},
		{"serves", func() error { return openGate(ctx, c, pod) }, isReady},
		{"has other resources", func() error { return resize(ctx, c, pod) }, resized},
		{"has another image", func() error { return setImage(ctx, c, pod, other) }, restarted},
		{"cannot pull an image", func() error { return setImage(ctx, c, pod, missing) }, waits},
		{"has an image again", func() error { return setImage(ctx, c, pod, other) }, isReady},
		{"is deleted and held by a finalizer", func() error { return c.Delete(ctx, pod) }, ended},
	} {
		if err := stop.act(); err != nil {
			return nil, fmt.Errorf("having the Pod be one that %s: %w", stop.name, err)
		}
		fields, err := reach(ctx, c, pod, stop.reached)
		if err != nil {
			return nil, fmt.Errorf("the Pod is never one that %s: %w", stop.name, err)
		}
		stops = append(stops, Stop{Name: stop.name, Fields: fields})
	}
	return stops, c.Patch(ctx, pod, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`)))
}

// podOf has a container, a native sidecar, a readiness gate and a finalizer.
func podOf(namespace, image string) *corev1.Pod {
	requests := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("10m"),
		corev1.ResourceMemory: resource.MustParse("16Mi")}
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "status", Finalizers: []string{finalizer}},
		Spec: corev1.PodSpec{
			DNSPolicy: corev1.DNSDefault, AutomountServiceAccountToken: ptr.To(false),
			ReadinessGates: []corev1.PodReadinessGate{{ConditionType: gate}},
			InitContainers: []corev1.Container{{Name: "side", Image: image, Args: []string{"pause"},
				RestartPolicy: ptr.To(corev1.ContainerRestartPolicyAlways)}},
			Containers: []corev1.Container{{Name: "main", Image: image, Args: []string{"pause"},
				Resources: corev1.ResourceRequirements{Requests: requests}}},
		},
	}
}

func mainOf(p *corev1.Pod) *corev1.ContainerStatus {
	if len(p.Status.ContainerStatuses) == 0 {
		return nil
	}
	return &p.Status.ContainerStatuses[0]
}

// is reports whether a condition has this status and, if reason is not empty, this reason.
func is(p *corev1.Pod, of corev1.PodConditionType, status corev1.ConditionStatus, reason string) bool {
	return slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == of && c.Status == status && (reason == "" || c.Reason == reason)
	})
}

func openGate(ctx context.Context, c client.Client, pod *corev1.Pod) error {
	return c.Status().Patch(ctx, pod, client.RawPatch(types.StrategicMergePatchType,
		[]byte(`{"status":{"conditions":[{"type":"`+gate+`","status":"True"}]}}`)))
}

func resize(ctx context.Context, c client.Client, pod *corev1.Pod) error {
	return c.SubResource("resize").Patch(ctx, pod, client.RawPatch(types.StrategicMergePatchType,
		[]byte(`{"spec":{"containers":[{"name":"main","resources":{"requests":{"cpu":"20m"}}}]}}`)))
}

func setImage(ctx context.Context, c client.Client, pod *corev1.Pod, image string) error {
	return c.Patch(ctx, pod, client.RawPatch(types.StrategicMergePatchType,
		[]byte(`{"spec":{"containers":[{"name":"main","image":"`+image+`"}]}}`)))
}

// reach waits until the Pod is where it is to be, with the status of its newest generation, and lists the fields.
func reach(ctx context.Context, c client.Client, pod *corev1.Pod, reached func(*corev1.Pod) bool) ([]string, error) {
	err := await.Until(ctx, func() error {
		if err := c.Get(ctx, client.ObjectKeyFromObject(pod), pod); err != nil {
			return err
		}
		isAtRest := !slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
			return c.Type == corev1.PodResizeInProgress || c.Type == corev1.PodResizePending
		})
		if pod.Generation == pod.Status.ObservedGeneration && isAtRest && reached(pod) {
			return nil
		}
		status, err := json.Marshal(pod.Status)
		return errors.Join(fmt.Errorf("its status is %s", status), err)
	})
	if err != nil {
		return nil, err
	}
	return fieldsOf(&pod.Status)
}

// telling are the fields whose values are compared, too.
var telling = map[string]bool{"status": true, "reason": true, "phase": true, "qosClass": true, "ready": true,
	"started": true, "restartCount": true, "exitCode": true, "cpu": true, "memory": true}

// fieldsOf lists the fields of a status, a line each, sorted. Elements of lists go by their name or type.
func fieldsOf(status *corev1.PodStatus) ([]string, error) {
	data, err := json.Marshal(status)
	if err != nil {
		return nil, err
	}
	var decoded map[string]any
	if err := json.Unmarshal(data, &decoded); err != nil {
		return nil, err
	}
	var fields []string
	walk("", "", decoded, &fields)
	slices.Sort(fields)
	return slices.Compact(fields), nil
}

func walk(path, key string, value any, fields *[]string) {
	switch value := value.(type) {
	case map[string]any:
		for k, v := range value {
			walk(strings.TrimPrefix(path+"."+k, "."), k, v, fields)
		}
	case []any:
		for _, v := range value {
			element, id := v, ""
			if m, ok := v.(map[string]any); ok {
				for _, by := range []string{"name", "type"} {
					if name, ok := m[by].(string); ok {
						id = name
						delete(m, by)
						break
					}
				}
				element = m
			}
			walk(path+"["+id+"]", key, element, fields)
		}
	default:
		if telling[key] {
			path += fmt.Sprintf(" = %v", value)
		}
		*fields = append(*fields, path)
	}
}

// Text writes stops one below the other.
func Text(stops []Stop) string {
	var b strings.Builder
	for _, stop := range stops {
		b.WriteString("A Pod that " + stop.Name + ":\n  " + strings.Join(stop.Fields, "\n  ") + "\n")
	}
	return b.String()
}

// Parse reads what Text wrote.
func Parse(text string) []Stop {
	var stops []Stop
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		if name, ok := strings.CutPrefix(line, "A Pod that "); ok {
			stops = append(stops, Stop{Name: strings.TrimSuffix(name, ":")})
			continue
		}
		if last := len(stops) - 1; last >= 0 {
			stops[last].Fields = append(stops[last].Fields, strings.TrimSpace(line))
		}
	}
	return stops
}
