package operationjob

import (
	"context"
	"fmt"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/internal/livelist"
)

// pageSize is how many objects are listed at a time.
const pageSize = 1000

// selectPods resolves spec.targetSelector: names of Pods, sorted, that are not being deleted. It reads past the cache,
// which has managed Pods only and may be late: the answer is recorded for good. invalid is what is wrong with a
// selector that selects nothing, whatever there is.
func selectPods(
	ctx context.Context, live client.Reader, job *appsv1alpha1.OperationJob,
) (names []string, invalid string, err error) {
	s := job.Spec.TargetSelector
	selector := labels.Everything()
	if s.LabelSelector != nil {
		wanted, problem := metav1.LabelSelectorAsSelector(s.LabelSelector)
		if problem != nil {
			invalid = "spec.targetSelector.labelSelector is not valid, create another OperationJob: " + problem.Error()
			return nil, invalid, nil //nolint:nilerr // the job says so in its status
		}
		selector = wanted
	}
	belongs := func(metav1.Object) bool { return true }
	if s.Workload != nil {
		if belongs, err = controlledBy(ctx, live, job.Namespace, s.Workload); err != nil {
			return nil, "", err
		}
	}
	names = []string{} // not nil: none is an answer
	_, err = livelist.Each(ctx, live, corev1.SchemeGroupVersion.WithKind("Pod"), pageSize,
		func(pod *metav1.PartialObjectMetadata) (more bool) {
			if pod.DeletionTimestamp == nil && belongs(pod) {
				names = append(names, pod.Name)
			}
			return true
		}, client.InNamespace(job.Namespace), client.MatchingLabelsSelector{Selector: selector})
	if err != nil {
		return nil, "", fmt.Errorf("listing the Pods that spec.targetSelector selects: %w", err)
	}
	slices.Sort(names)
	return names, "", nil
}

// controlledBy returns what reports whether a workload controls a Pod, for a Deployment through its ReplicaSets. The
// API group is not compared.
func controlledBy(
	ctx context.Context, live client.Reader, namespace string, workload *appsv1alpha1.WorkloadReference,
) (func(metav1.Object) bool, error) {
	isWorkload := func(o metav1.Object) bool {
		owner := metav1.GetControllerOfNoCopy(o)
		return owner != nil && owner.Kind == workload.Kind && owner.Name == workload.Name
	}
	if workload.Kind != "Deployment" {
		return isWorkload, nil
	}
	sets := map[types.UID]bool{}
	_, err := livelist.Each(ctx, live, appsv1.SchemeGroupVersion.WithKind("ReplicaSet"), pageSize,
		func(set *metav1.PartialObjectMetadata) (more bool) {
			if isWorkload(set) {
				sets[set.UID] = true
			}
			return true
		}, client.InNamespace(namespace))
	if err != nil {
		return nil, fmt.Errorf("listing the ReplicaSets of Deployment %s: %w", workload.Name, err)
	}
	return func(pod metav1.Object) bool {
		owner := metav1.GetControllerOfNoCopy(pod)
		return owner != nil && sets[owner.UID]
	}, nil
}
