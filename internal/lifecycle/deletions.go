package lifecycle

import (
	"context"
	"fmt"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/internal/failures"
	"kusionstack.io/kuperator/internal/lifecycle/podphase"
	"kusionstack.io/kuperator/internal/shorten"
)

// maxWhy bounds, in bytes, what is kept of the reason of a refusal.
const maxWhy = 800

// deletions remembers what the API server said of deleting Pods, in a dry run or in earnest. It is a memory of one
// process: after a restart a deletion is tried again before it begins, and one that is allowed already is tried in
// earnest. The zero deletions remember nothing. They are safe for concurrent use.
type deletions struct {
	mu   sync.Mutex
	pods map[types.NamespacedName]answerOfServer
}

type answerOfServer struct {
	podphase.Verdict
	uid types.UID
	// refusals counts those in a row: a dry run that is accepted does not end the row, or a deletion that is accepted in
	// dry runs alone would be tried in earnest all the time.
	refusals int
}

// of is what is known of a Pod that is marked for deletion. Of others it is forgotten.
func (d *deletions) of(pod *corev1.Pod) podphase.Verdict {
	d.mu.Lock()
	defer d.mu.Unlock()
	key := client.ObjectKeyFromObject(pod)
	a := d.pods[key]
	if _, marked := pod.Labels[appsv1alpha1.ToDeleteLabel]; !marked || a.uid != pod.UID {
		delete(d.pods, key)
		return podphase.Verdict{}
	}
	return a.Verdict
}

func (d *deletions) forget(pod types.NamespacedName) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.pods, pod)
}

func (d *deletions) put(pod *corev1.Pod, v podphase.Verdict, refusals int) {
	if d.pods == nil {
		d.pods = map[types.NamespacedName]answerOfServer{}
	}
	d.pods[client.ObjectKeyFromObject(pod)] = answerOfServer{v, pod.UID, refusals}
}

// deletePod deletes a Pod, or asks whether it would be deleted, and remembers whether the API server agrees. A
// refusal is no error.
func (r *reconciler) deletePod(ctx context.Context, pod *corev1.Pod, dryRun bool) (deleted bool, err error) {
	options := []client.DeleteOption{client.Preconditions{UID: &pod.UID, ResourceVersion: ptr.To(pod.ResourceVersion)}}
	if dryRun {
		options = append(options, client.DryRunAll)
	}
	err = r.client.Delete(ctx, pod, options...)
	now, d := r.clock.Now(), &r.deletions
	d.mu.Lock()
	defer d.mu.Unlock()
	refusals := d.pods[client.ObjectKeyFromObject(pod)].refusals
	why, refused := failures.RejectionIn(err)
	switch {
	case refused:
		refusals++
		d.put(pod, podphase.Verdict{At: now, Refused: reason(pod, why.Why), Retry: now.Add(failures.AskAgainIn(refusals))},
			refusals)
		return false, nil
	case err != nil:
		return false, fmt.Errorf("deleting pod %s/%s (dry run: %t): %w", pod.Namespace, pod.Name, dryRun, err)
	}
	d.put(pod, podphase.Verdict{At: now}, refusals)
	return !dryRun, nil
}

// reason is why a deletion is refused: without names that were generated, so that it is the same for Pods of one
// workload, and no longer than an event takes, with what is said around it.
func reason(pod *corev1.Pod, why string) string {
	if pod.GenerateName != "" {
		why = failures.WithoutNames(why, pod.GenerateName)
	}
	return shorten.Bytes(why, maxWhy)
}
