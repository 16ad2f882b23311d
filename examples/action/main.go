// Command warm-cache carries out the action "example.com/warm-cache" of OperationJobs: it sends POST /warm to the
// containers of a Pod, which fill their caches while the Pod is out of service.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/util/retry"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	"kusionstack.io/kuperator/api/podops"
)

const action = "example.com/warm-cache"

func main() {
	flag.Parse() // --kubeconfig
	ctrl.SetLogger(zap.New())
	if err := run(ctrl.SetupSignalHandler()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	managed := cache.ByObject{Label: labels.SelectorFromSet(labels.Set{"kusionstack.io/control": "true"})}
	options := ctrl.Options{Cache: cache.Options{ByObject: map[client.Object]cache.ByObject{&corev1.Pod{}: managed}}}
	options.Metrics.BindAddress = "0"
	mgr, err := ctrl.NewManager(ctrl.GetConfigOrDie(), options)
	if err != nil {
		return err
	}
	w := &warmer{
		live: mgr.GetAPIReader(), pods: mgr.GetClient(), http: &http.Client{Timeout: 30 * time.Second},
		tries: wait.Backoff{Duration: time.Second, Factor: 2, Steps: 3},
	}
	hasTask := predicate.NewPredicateFuncs(func(o client.Object) bool {
		pod, isPod := o.(*corev1.Pod)
		return isPod && len(podops.TasksFor(podops.Read(pod), action)) > 0
	})
	err = ctrl.NewControllerManagedBy(mgr).For(&corev1.Pod{}, builder.WithPredicates(hasTask)).
		WithOptions(controller.Options{MaxConcurrentReconciles: 10}).Complete(w)
	if err != nil {
		return err
	}
	return mgr.Start(ctx)
}

// warmer carries out the tasks of Pods.
type warmer struct {
	live  client.Reader
	pods  client.Writer
	http  *http.Client
	tries wait.Backoff
}

// Reconcile carries out all tasks of one Pod. The Pod is read past the cache, which may not show the last answer yet.
func (w *warmer) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	pod := &corev1.Pod{}
	if err := w.live.Get(ctx, request.NamespacedName, pod); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	var errs []error
	for id, task := range podops.TasksFor(podops.Read(pod), action) {
		result, message := w.carryOut(ctx, pod, task)
		errs = append(errs, w.answer(ctx, request.NamespacedName, id, task.Request, result, message))
	}
	return ctrl.Result{}, errors.Join(errs...)
}

// carryOut returns what became of a task, and a message for people. The result is "" while the Pod has no address: its
// next event leads here again, and the deadline of the job ends the waiting.
func (w *warmer) carryOut(ctx context.Context, pod *corev1.Pod, task podops.Task) (podops.TaskResult, string) {
	if pod.Status.PodIP == "" {
		return "", "the Pod has no address yet"
	}
	warmed := 0
	for _, c := range pod.Spec.Containers {
		isNamed := len(task.Containers) == 0 || slices.Contains(task.Containers, c.Name)
		if !isNamed || len(c.Ports) == 0 {
			continue
		}
		address := net.JoinHostPort(pod.Status.PodIP, strconv.Itoa(int(c.Ports[0].ContainerPort)))
		isRunning := func(error) bool { return ctx.Err() == nil } // without it there is no answer either
		err := retry.OnError(w.tries, isRunning, func() error { return w.post(ctx, "http://"+address+"/warm") })
		if err != nil {
			return podops.TaskFailed, fmt.Sprintf("container %s: %v", c.Name, err)
		}
		warmed++
	}
	if warmed == 0 || warmed < len(task.Containers) {
		return podops.TaskFailed, "a container of the job declares no port: add it to the template of the Pod"
	}
	return podops.TaskSucceeded, ""
}

// post has a container fill its cache.
func (w *warmer) post(ctx context.Context, url string) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, url, nil)
	if err != nil {
		return err
	}
	response, err := w.http.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode/100 != 2 {
		return fmt.Errorf("POST %s is answered with %s", url, response.Status)
	}
	return nil
}

// answer tells the job, unless it does not want the task any more. Without an answer, because this program ends, the
// next one carries the task out again.
func (w *warmer) answer(
	ctx context.Context, pod types.NamespacedName, id, request string, result podops.TaskResult, message string,
) error {
	return retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		now := &corev1.Pod{} // it has changed since the work began
		if err := w.live.Get(ctx, pod, now); err != nil {
			return client.IgnoreNotFound(err)
		}
		view := podops.Read(now)
		if change := podops.Answer(view, id, request, result, message); !change.IsZero() {
			patch := client.RawPatch(types.MergePatchType, change.MergePatch(view))
			return client.IgnoreNotFound(w.pods.Patch(ctx, now, patch))
		}
		return nil
	})
}
