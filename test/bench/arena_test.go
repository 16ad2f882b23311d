package bench

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
	"kusionstack.io/kuperator/internal/suite"
	"kusionstack.io/kuperator/internal/testkit/fakekubelet"
)

const (
	node      = "node-0" // all Pods are there: the scheduler is not measured
	userAgent = "kuperator-bench"
	oldImage  = "app:v1"
	newImage  = "app:v2"
)

// arena is a suite whose kubelets are played at the pace of the API server.
type arena struct {
	bench
	pods kubernetes.Interface // protobuf, no limit
}

// newArena starts it; args are further flags by component.
func newArena(b *testing.B, args map[string][]string) arena {
	b.Helper()
	s, err := suite.Start(b.Context(), suite.Config{Name: "bench", Nodes: 1, Progress: b.Output(), Args: args})
	require.NoError(b, err)
	b.Cleanup(func() { require.NoError(b, s.Stop()) })
	require.NoError(b, s.WaitLeading(b.Context(), suite.Components()...))
	require.NoError(b, s.Cluster.StopComponent("kwok"))
	kubelet, err := fakekubelet.Start(context.WithoutCancel(b.Context()), s.RESTConfig(), fakekubelet.Options{})
	require.NoError(b, err)
	b.Cleanup(kubelet.Stop)

	scheme := runtime.NewScheme()
	require.NoError(b, clientgoscheme.AddToScheme(scheme))
	require.NoError(b, appsv1alpha1.AddToScheme(scheme))
	config := s.RESTConfig()
	config.UserAgent = userAgent
	c, err := client.New(config, client.Options{Scheme: scheme})
	require.NoError(b, err)
	config.ContentType, config.AcceptContentTypes = runtime.ContentTypeProtobuf, runtime.ContentTypeProtobuf+","+runtime.ContentTypeJSON
	pods, err := kubernetes.NewForConfig(config)
	require.NoError(b, err)
	return arena{bench{b, c, s}, pods}
}

func (a arena) namespace(name string) string {
	require.NoError(a, a.Create(a.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}))
	return name
}

// budget creates a rule over the Pods with these labels.
func (a arena) budget(namespace, name, maxUnavailable string, selector metav1.LabelSelector) {
	value := intstr.Parse(maxUnavailable)
	rule := &appsv1alpha1.PodTransitionRule{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	rule.Spec.Selector = &selector
	rule.Spec.Rules = []appsv1alpha1.TransitionRule{{Name: "budget", TransitionRuleDefinition: appsv1alpha1.TransitionRuleDefinition{
		AvailablePolicy: &appsv1alpha1.AvailableRule{MaxUnavailableValue: &value},
	}}}
	require.NoError(a, a.Create(a.Context(), rule))
}

// inFlight runs a task for each name, 64 at a time, and returns when all are done.
func (a arena) inFlight(names []string, task func(name string) error) {
	var wg sync.WaitGroup
	slots := make(chan struct{}, inFlight)
	for _, name := range names {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			if err := task(name); err != nil {
				a.Errorf("Pod %s: %v", name, err)
			}
		})
	}
	wg.Wait()
}

func (a arena) write(namespace, name, body string, subresource ...string) error {
	_, err := a.pods.CoreV1().Pods(namespace).Patch(a.Context(), name, types.StrategicMergePatchType, []byte(body), metav1.PatchOptions{}, subresource...)
	return err
}

func labelled(labels map[string]any) string {
	body, err := json.Marshal(map[string]any{"metadata": map[string]any{"labels": labels}})
	if err != nil {
		panic(err) // strings only
	}
	return string(body)
}

// yardstick rolls Pods that nobody controls: the six writes that the protocol makes to a Pod, with nobody deciding, 64 Pods
// at a time.
func (a arena) yardstick(name string, pods int) figures {
	namespace := a.namespace(name)
	m := newMeter(a.B, a.pods, namespace, nil)
	var names []string
	for i := range pods {
		names = append(names, fmt.Sprintf("bare-%d", i))
	}
	serves := func(image string) func(*corev1.Pod) bool {
		return func(p *corev1.Pod) bool {
			return podops.Read(p).Ready && len(p.Status.ContainerStatuses) > 0 && p.Status.ContainerStatuses[0].Image == image
		}
	}
	m.lap(serves(oldImage))
	a.inFlight(names, func(name string) error {
		_, err := a.pods.CoreV1().Pods(namespace).Create(a.Context(), &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: corev1.PodSpec{
				NodeName: node, Containers: []corev1.Container{{Name: "app", Image: oldImage}},
				ReadinessGates: []corev1.PodReadinessGate{{ConditionType: podops.ServiceReadyCondition}},
			},
		}, metav1.CreateOptions{})
		if err != nil {
			return err
		}
		return a.write(namespace, name, gate("True"), "status")
	})
	require.Equal(a, pods, m.wait(a.Context(), pods, patience))

	m.lap(func(p *corev1.Pod) bool { return serves(newImage)(p) && p.Labels["step"] == "available" })
	a.inFlight(names, func(name string) error { return a.bareUpdate(m, namespace, name, serves(newImage)) })
	require.Equal(a, pods, m.wait(a.Context(), pods, patience))
	f := m.figures()
	m.close()
	return f
}

func (a arena) bareUpdate(m *meter, namespace, name string, done func(*corev1.Pod) bool) error {
	step := func(value string) string { return labelled(map[string]any{"step": value}) }
	restarted := func(p *corev1.Pod) bool {
		return len(p.Status.ContainerStatuses) > 0 && p.Status.ContainerStatuses[0].Image == newImage
	}
	image := fmt.Sprintf(`{"spec":{"containers":[{"name":"app","image":%q}]}}`, newImage)
	for _, do := range []func() error{
		func() error { return a.write(namespace, name, step("begin")) },
		func() error { return a.write(namespace, name, gate("False"), "status") },
		func() error { return a.write(namespace, name, image) },
		func() error { return m.await(a.Context(), name, restarted) },
		func() error { return a.write(namespace, name, step("finish")) },
		func() error { return a.write(namespace, name, gate("True"), "status") },
		func() error { return m.await(a.Context(), name, done) },
		func() error { return a.write(namespace, name, step("available")) },
	} {
		if err := do(); err != nil {
			return err
		}
	}
	return nil
}

// podWrites counts what the suite wrote to these Pods since a moment; nil means all Pods of the namespace.
func (a arena) podWrites(namespace string, since time.Time, pods map[string]bool) suite.Counts {
	requests, err := a.suite.Requests(since)
	require.NoError(a, err)
	requests = slices.DeleteFunc(requests, func(r suite.Request) bool {
		return r.Namespace != namespace || pods != nil && !pods[r.Name]
	})
	return suite.Sum(suite.PodWrites(requests))
}
