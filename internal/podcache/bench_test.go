package podcache_test

import (
	"context"
	"fmt"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/cache"

	"kusionstack.io/kuperator/api/podops"
	"kusionstack.io/kuperator/internal/bootstrap"
	"kusionstack.io/kuperator/internal/collaset"
	"kusionstack.io/kuperator/internal/lifecycle"
	"kusionstack.io/kuperator/internal/operationjob"
	"kusionstack.io/kuperator/internal/podtransitionrule"
	"kusionstack.io/kuperator/internal/resourceconsist/builtin"
)

// BenchmarkKept tells what a Pod takes in the cache of each program: of a CollaSet, and one that is not managed.
func BenchmarkKept(b *testing.B) {
	for _, c := range []bootstrap.Component{
		collaset.Component(), podtransitionrule.Component(), lifecycle.Component(), builtin.Component(),
		operationjob.Component(),
	} {
		options := c.Cache(&bootstrap.Options{})
		transform := transformOf(options)
		for kind, pod := range map[string]func(int) *corev1.Pod{"managed": managed, "other": other} {
			if kind == "other" && c.Name != podtransitionrule.Name {
				continue // it alone caches those
			}
			b.Run(c.Name+"/"+kind, func(b *testing.B) {
				for b.Loop() {
					before := heap()
					i := options.NewInformer(&listed{pod: pod}, &corev1.Pod{}, 0,
						toolscache.Indexers{toolscache.NamespaceIndex: toolscache.MetaNamespaceIndexFunc})
					require.NoError(b, i.SetTransform(transform))
					ctx, stop := context.WithCancel(b.Context())
					done := make(chan struct{})
					go func() { defer close(done); i.RunWithContext(ctx) }()
					require.True(b, toolscache.WaitForCacheSync(ctx.Done(), i.HasSynced))
					b.ReportMetric(float64(heap()-before)/many, "bytes/Pod")
					runtime.KeepAlive(i)
					stop()
					<-done
				}
			})
		}
	}
}

// many are enough for what a cache takes once not to matter.
const many = 10_000

func transformOf(o cache.Options) toolscache.TransformFunc {
	for object, by := range o.ByObject {
		if _, ok := object.(*corev1.Pod); ok {
			return by.Transform
		}
	}
	return o.DefaultTransform
}

// heap is what can be reached.
func heap() uint64 {
	runtime.GC()
	runtime.GC() // what a first one found to be reachable only weakly
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// listed are many Pods of an API server, where nothing changes.
type listed struct{ pod func(int) *corev1.Pod }

func (l *listed) ListWithContext(context.Context, metav1.ListOptions) (apiruntime.Object, error) {
	list := &corev1.PodList{ListMeta: metav1.ListMeta{ResourceVersion: "1"}, Items: make([]corev1.Pod, many)}
	for i := range list.Items {
		encoded, err := l.pod(i).Marshal()
		if err != nil {
			return nil, err
		}
		if err := list.Items[i].Unmarshal(encoded); err != nil { // gives each its own texts
			return nil, err
		}
	}
	return list, nil
}

func (l *listed) WatchWithContext(context.Context, metav1.ListOptions) (watch.Interface, error) {
	return watch.NewFake(), nil
}

func (l *listed) List(o metav1.ListOptions) (apiruntime.Object, error) {
	return l.ListWithContext(context.TODO(), o)
}

func (l *listed) Watch(o metav1.ListOptions) (watch.Interface, error) {
	return l.WatchWithContext(context.TODO(), o)
}

// IsWatchListSemanticsUnSupported has the informer list, as a fake watch sends nothing.
func (l *listed) IsWatchListSemanticsUnSupported() bool { return true }

// managed is a Pod of a CollaSet, one of a hundred, that serves on one of a hundred nodes.
func managed(i int) *corev1.Pod {
	set := fmt.Sprint("web-", i/100)
	at := metav1.Unix(1_700_000_000+int64(i), 0)
	pod := other(i)
	pod.Name, pod.GenerateName = fmt.Sprintf("%s-%05d", set, i), set+"-"
	pod.Finalizers = []string{podops.ProtectionFinalizerPrefix + "/service.shop.web"}
	pod.Labels = map[string]string{
		"app": set, "kusionstack.io/control": "true", "controller-revision-hash": set + "-5d8f7c6b9",
		"collaset.kusionstack.io/instance-id": fmt.Sprint(i % 100), podops.ServiceAvailableLabel: "1700000000000000000",
	}
	pod.Annotations = map[string]string{
		podops.AvailableConditionsAnnotation: `{"expectedFinalizers":{"Service/shop/web":"` + pod.Finalizers[0] + `"}}`,
		"prometheus.io/scrape":               "true", "prometheus.io/port": "8080",
	}
	pod.OwnerReferences = []metav1.OwnerReference{{
		APIVersion: "apps.kusionstack.io/v1alpha1", Kind: "CollaSet", Name: set,
		UID: types.UID(fmt.Sprintf("%036d", i/100)), Controller: ptr.To(true), BlockOwnerDeletion: ptr.To(true),
	}}
	pod.Spec.ReadinessGates = []corev1.PodReadinessGate{{ConditionType: podops.ServiceReadyCondition}}
	pod.Status.Conditions = append(pod.Status.Conditions, corev1.PodCondition{
		Type: podops.ServiceReadyCondition, Status: corev1.ConditionTrue, LastTransitionTime: at,
	})
	return pod
}

// other is a Pod that no CollaSet has.
func other(i int) *corev1.Pod {
	at := metav1.Unix(1_700_000_000+int64(i), 0)
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "others", Name: fmt.Sprint("other-", i), UID: types.UID(fmt.Sprintf("%036d", i)),
			ResourceVersion: fmt.Sprint(1_000_000 + i), CreationTimestamp: at, Generation: 1,
			Labels:        map[string]string{"app": "other"},
			ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "kubelet", Operation: metav1.ManagedFieldsOperationUpdate}},
		},
		Spec: corev1.PodSpec{
			NodeName: fmt.Sprint("node-", i%100), ServiceAccountName: "default",
			Containers: []corev1.Container{{
				Name: "app", Image: "registry.example.com/shop/web:1.2.3",
				Ports: []corev1.ContainerPort{{Name: "http", ContainerPort: 8080, Protocol: corev1.ProtocolTCP}},
				Env:   []corev1.EnvVar{{Name: "A_SETTING", Value: "the value of a setting of the program"}},
			}},
		},
		Status: corev1.PodStatus{
			Phase: corev1.PodRunning, PodIP: fmt.Sprintf("10.0.%d.%d", i/250, i%250), HostIP: "192.168.0.1", StartTime: &at,
			PodIPs: []corev1.PodIP{{IP: fmt.Sprintf("10.0.%d.%d", i/250, i%250)}},
			ContainerStatuses: []corev1.ContainerStatus{{
				Name: "app", Image: "registry.example.com/shop/web:1.2.3", Ready: true, Started: ptr.To(true),
				ImageID:     "registry.example.com/shop/web@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef",
				ContainerID: fmt.Sprintf("containerd://%064d", i),
				State:       corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: at}},
			}},
		},
	}
	for _, c := range []corev1.PodConditionType{corev1.PodScheduled, corev1.PodInitialized, corev1.ContainersReady,
		corev1.PodReady} {
		pod.Status.Conditions = append(pod.Status.Conditions, corev1.PodCondition{
			Type: c, Status: corev1.ConditionTrue, LastTransitionTime: at,
		})
	}
	return pod
}
