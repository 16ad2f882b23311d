package fakekubelet

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
)

// UserAgent names the kubelets in the audit log.
const UserAgent = "fake-kubelet"

const (
	defaultRestartTime = 100 * time.Millisecond
	defaultWorkers     = 32
	retryAfter         = 100 * time.Millisecond // after a failed write
)

// Options say how the kubelets behave. The zero value is prompt kubelets on all nodes.
type Options struct {
	// Nodes are the nodes to play. Empty means all that there are and will be.
	Nodes []string
	// Lag is how much later than the API server's other clients the kubelets see a change of a Pod.
	Lag time.Duration
	// RestartTime is how long a container takes to start. 0 means 100 ms.
	RestartTime time.Duration
	// Workers is the number of writes that are under way at a time. 0 means 32.
	Workers int
	// Log receives what went wrong and is tried again. Nil discards it.
	Log func(format string, args ...any)
}

// Kubelet is all the kubelets together.
type Kubelet struct {
	options Options
	nodes   map[string]bool
	client  kubernetes.Interface
	cancel  context.CancelFunc
	factory informers.SharedInformerFactory
	queue   workqueue.TypedDelayingInterface[types.UID]
	late    *lateness
	done    sync.WaitGroup

	mu       sync.Mutex
	seen     map[types.UID]*corev1.Pod
	machines map[types.UID]*machine
	started  int // Pods, for their addresses
}

// Start starts the kubelets and returns when they have seen all Pods once. They take over Pods that run already. They
// end with ctx or Stop.
func Start(ctx context.Context, config *rest.Config, o Options) (*Kubelet, error) {
	config = rest.CopyConfig(config)
	config.UserAgent, config.QPS = UserAgent, -1
	config.ContentType, config.AcceptContentTypes = runtime.ContentTypeProtobuf,
		runtime.ContentTypeProtobuf+","+runtime.ContentTypeJSON
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	return start(ctx, client, o)
}

func start(ctx context.Context, client kubernetes.Interface, o Options) (*Kubelet, error) {
	o.RestartTime, o.Workers = cmp.Or(o.RestartTime, defaultRestartTime), cmp.Or(o.Workers, defaultWorkers)
	if o.Log == nil {
		o.Log = func(string, ...any) {}
	}
	ctx, cancel := context.WithCancel(ctx)
	k := &Kubelet{
		options: o, nodes: map[string]bool{}, client: client, cancel: cancel,
		queue: workqueue.NewTypedDelayingQueue[types.UID](),
		late:  newLateness(o.Lag),
		seen:  map[types.UID]*corev1.Pod{}, machines: map[types.UID]*machine{},
	}
	for _, name := range o.Nodes {
		k.nodes[name] = true
	}
	k.factory = informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithTransform(strip))
	if err := k.watch(ctx); err != nil {
		return nil, fmt.Errorf("starting the fake kubelets: %w", err)
	}
	k.done.Go(func() { k.late.run(ctx, k.see) })
	for range o.Workers {
		k.done.Go(func() { k.work(ctx) })
	}
	return k, nil
}

// Stop ends the kubelets and returns when their last write has been answered. Pods stay as they are.
func (k *Kubelet) Stop() {
	k.cancel()
	k.queue.ShutDown()
	k.factory.Shutdown()
	k.done.Wait()
}

func (k *Kubelet) watch(ctx context.Context) error {
	informer := k.factory.Core().V1().Pods().Informer()
	take := func(obj any, gone bool) {
		if last, ok := obj.(cache.DeletedFinalStateUnknown); ok {
			obj = last.Obj
		}
		pod, ok := obj.(*corev1.Pod)
		if ok && pod.Spec.NodeName != "" && (len(k.nodes) == 0 || k.nodes[pod.Spec.NodeName]) {
			k.late.add(seenPod{pod: pod, gone: gone})
		}
	}
	registered, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(obj any) { take(obj, false) },
		UpdateFunc: func(_, obj any) { take(obj, false) },
		DeleteFunc: func(obj any) { take(obj, true) },
	})
	if err != nil {
		k.cancel()
		return err
	}
	k.factory.Start(ctx.Done())
	if !cache.WaitForCacheSync(ctx.Done(), registered.HasSynced) {
		k.cancel()
		return context.Cause(ctx)
	}
	return nil
}

// strip drops what is large and not read.
func strip(obj any) (any, error) {
	if pod, ok := obj.(*corev1.Pod); ok {
		pod.ManagedFields = nil
	}
	return obj, nil
}

// see makes what was sighted the kubelets' view, their lag later.
func (k *Kubelet) see(s seenPod) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if s.gone {
		delete(k.seen, s.pod.UID)
		delete(k.machines, s.pod.UID)
		return
	}
	k.seen[s.pod.UID] = s.pod
	if k.machines[s.pod.UID] == nil {
		k.started++
		k.machines[s.pod.UID] = newMachine(s.pod, k.started)
	}
	k.queue.Add(s.pod.UID)
}

func (k *Kubelet) work(ctx context.Context) {
	for {
		uid, shutdown := k.queue.Get()
		if shutdown {
			return
		}
		again, err := k.sync(ctx, uid)
		if err != nil && ctx.Err() == nil {
			k.options.Log("fake kubelet, trying again: %v", err)
			again = retryAfter
		}
		if again > 0 {
			k.queue.AddAfter(uid, again)
		}
		k.queue.Done(uid)
	}
}

// sync does the next thing for one Pod and says when to look again. The queue has one worker at a time on a Pod.
func (k *Kubelet) sync(ctx context.Context, uid types.UID) (time.Duration, error) {
	k.mu.Lock()
	pod, m := k.seen[uid], k.machines[uid]
	k.mu.Unlock()
	switch {
	case pod == nil:
		return 0, nil
	case m.removed: // and what was queued meanwhile is about that
		return 0, nil
	case pod.DeletionTimestamp != nil && len(pod.Finalizers) == 0:
		err := k.remove(ctx, pod)
		m.removed = err == nil
		return 0, err
	}
	now := time.Now()
	if wait := m.run(pod, now, k.options.RestartTime); wait > 0 {
		return wait, nil
	}
	patch, err := m.report(pod, now)
	if err != nil || patch == nil {
		return 0, err
	}
	written, err := k.client.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.StrategicMergePatchType, patch,
		metav1.PatchOptions{}, "status")
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) { // the Pod is gone, or another has its name
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	m.wrote(written)
	return 0, nil
}

func (k *Kubelet) remove(ctx context.Context, pod *corev1.Pod) error {
	err := k.client.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{
		GracePeriodSeconds: new(int64), Preconditions: &metav1.Preconditions{UID: &pod.UID},
	})
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	return err
}
