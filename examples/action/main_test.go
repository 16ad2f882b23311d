package main

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"kusionstack.io/kuperator/api/podops"
)

const (
	job = "warm-web"
	one = "1"
)

// cluster is a Pod that waits for this program, and the containers that it asks.
type cluster struct {
	client.Client
	*warmer
	key client.ObjectKey
	// asked counts requests to containers; answer answers them.
	asked  atomic.Int32
	answer func(http.ResponseWriter)
}

// newCluster makes one, with the task changed. The interceptor may be empty.
func newCluster(t *testing.T, change func(*corev1.Pod, *podops.Task), funcs interceptor.Funcs) *cluster {
	t.Helper()
	c := &cluster{answer: func(http.ResponseWriter) {}}
	server := httptest.NewServer(http.HandlerFunc(func(out http.ResponseWriter, r *http.Request) {
		if c.asked.Add(1); r.Method != http.MethodPost || r.URL.Path != "/warm" {
			t.Errorf("a container is asked %s %s", r.Method, r.URL)
		}
		c.answer(out)
	}))
	t.Cleanup(server.Close)
	host, port, err := net.SplitHostPort(server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	number, err := strconv.ParseInt(port, 10, 32)
	if err != nil {
		t.Fatal(err)
	}
	operation := podops.JobOperationType(action)
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web-0", UID: "u", Labels: map[string]string{
			podops.OperatingPrefix + "/" + job: one, podops.OperationTypePrefix + "/" + job: operation,
			podops.PreCheckedPrefix + "/" + job: one, podops.OperatePrefix + "/" + job: one,
			podops.PermissionPrefix + "/" + operation: one,
		}},
		Spec: corev1.PodSpec{
			ReadinessGates: []corev1.PodReadinessGate{{ConditionType: podops.ServiceReadyCondition}},
			Containers: []corev1.Container{
				{Name: "web", Ports: []corev1.ContainerPort{{ContainerPort: int32(number)}}}, {Name: "log"}},
		},
		Status: corev1.PodStatus{PodIP: host, Conditions: []corev1.PodCondition{
			{Type: podops.ServiceReadyCondition, Status: corev1.ConditionFalse}}},
	}
	task := podops.Task{Action: action, Request: one}
	if change != nil {
		change(pod, &task)
	}
	pod.Annotations = podops.PutTask(podops.Read(pod), job, &task).Apply(podops.Read(pod)).Annotations
	c.Client = fake.NewClientBuilder().WithObjects(pod).WithInterceptorFuncs(funcs).Build()
	c.key = client.ObjectKeyFromObject(pod)
	c.warmer = &warmer{live: c.Client, pods: c.Client, http: http.DefaultClient,
		tries: wait.Backoff{Duration: time.Millisecond, Steps: 3}}
	return c
}

// reconcile has the Pod looked at, and returns the task then.
func (c *cluster) reconcile(ctx context.Context, t *testing.T) podops.Task {
	t.Helper()
	if _, err := c.Reconcile(ctx, ctrl.Request{NamespacedName: c.key}); err != nil && ctx.Err() == nil {
		t.Fatal(err)
	}
	pod := &corev1.Pod{}
	if err := c.Get(t.Context(), c.key, pod); err != nil {
		t.Fatal(err)
	}
	tasks, err := podops.Tasks(podops.Read(pod))
	if err != nil {
		t.Fatal(err)
	}
	return tasks[job]
}

func TestAnswers(t *testing.T) {
	unavailable := func(out http.ResponseWriter) { out.WriteHeader(http.StatusServiceUnavailable) }
	for name, test := range map[string]struct {
		change  func(*corev1.Pod, *podops.Task)
		answer  func(http.ResponseWriter)
		want    podops.TaskResult
		message string
		asked   int32
	}{
		"the containers with a port": {want: podops.TaskSucceeded, asked: 1},
		"a container that the job names": {
			change: func(_ *corev1.Pod, task *podops.Task) { task.Containers = []string{"web"} },
			want:   podops.TaskSucceeded, asked: 1,
		},
		"one without a port": {
			change: func(_ *corev1.Pod, task *podops.Task) { task.Containers = []string{"log"} },
			want:   podops.TaskFailed, message: "declares no port",
		},
		"it cannot": {answer: unavailable, want: podops.TaskFailed, message: "container web: POST http://", asked: 3},
		"no address yet": {
			change:  func(pod *corev1.Pod, _ *podops.Task) { pod.Status.PodIP = "" },
			message: "no address yet",
		},
		"a task of another program": {
			change: func(_ *corev1.Pod, task *podops.Task) { task.Action = "example.com/other" },
		},
		"a request that is no more": {change: func(_ *corev1.Pod, task *podops.Task) { task.Request = "0" }},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t, test.change, interceptor.Funcs{})
			if test.answer != nil {
				c.answer = test.answer
			}
			task := c.reconcile(t.Context(), t)
			if task.Result != test.want || !strings.Contains(task.Message, test.message) ||
				(test.message == "") != (task.Message == "") || c.asked.Load() != test.asked {
				t.Fatalf("the answer is %+v, containers were asked %d times", task, c.asked.Load())
			}
			if c.reconcile(t.Context(), t); c.asked.Load() != test.asked {
				t.Fatal("containers are asked again after the answer")
			}
		})
	}
}

// TestConflict has the Pod change between the work and the answer: the answer is sent again, the work not done again.
func TestConflict(t *testing.T) {
	patches := 0
	c := newCluster(t, nil, interceptor.Funcs{Patch: func(
		ctx context.Context, c client.WithWatch, o client.Object, patch client.Patch, options ...client.PatchOption,
	) error {
		if patches++; patches == 1 {
			return apierrors.NewConflict(corev1.Resource("pods"), o.GetName(), nil)
		}
		return c.Patch(ctx, o, patch, options...)
	}})
	task := c.reconcile(t.Context(), t)
	if task.Result != podops.TaskSucceeded || patches != 2 || c.asked.Load() != 1 {
		t.Fatalf("the answer is %+v after %d patches, containers were asked %d times", task, patches, c.asked.Load())
	}
}

// TestTaskIsWithdrawn has another job of the same name ask while containers are at work for the first.
func TestTaskIsWithdrawn(t *testing.T) {
	c := newCluster(t, nil, interceptor.Funcs{})
	c.answer = func(http.ResponseWriter) {
		pod := &corev1.Pod{}
		if err := c.Get(t.Context(), c.key, pod); err != nil {
			t.Error(err)
		}
		later := podops.PutTask(podops.Read(pod), job, &podops.Task{Action: action, Request: "2"})
		pod.Annotations = later.Apply(podops.Read(pod)).Annotations
		if err := c.Update(t.Context(), pod); err != nil {
			t.Error(err)
		}
	}
	if task := c.reconcile(t.Context(), t); task.Request != "2" || task.Result != "" {
		t.Fatalf("the later task is answered: %+v", task)
	}
}

// TestShutdown ends the program while containers are at work: there is no answer, and the next one does it again.
func TestShutdown(t *testing.T) {
	c := newCluster(t, nil, interceptor.Funcs{})
	ctx, stop := context.WithCancel(t.Context())
	c.answer = func(out http.ResponseWriter) {
		stop()
		<-ctx.Done()
		out.WriteHeader(http.StatusServiceUnavailable)
	}
	c.live = stopped{c.live}
	if task := c.reconcile(ctx, t); task.Result != "" {
		t.Fatalf("it answers %+v", task)
	}
	c.answer = func(http.ResponseWriter) {}
	if task := c.reconcile(t.Context(), t); task.Result != podops.TaskSucceeded || c.asked.Load() != 2 {
		t.Fatalf("the answer is %+v, containers were asked %d times", task, c.asked.Load())
	}
}

// stopped reads nothing after its context has ended, as a real client.
type stopped struct{ client.Reader }

func (s stopped) Get(ctx context.Context, key client.ObjectKey, o client.Object, options ...client.GetOption) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return s.Reader.Get(ctx, key, o, options...)
}
