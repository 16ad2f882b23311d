package neighbours

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
)

// checker judges every change of the Pods and claims of one namespace. It shares nothing with the components but the
// API.
type checker struct {
	pods   map[types.UID]*corev1.Pod
	claims map[types.UID]*corev1.PersistentVolumeClaim
	// ids are the instance IDs with which Pods came, whatever becomes of the label.
	ids map[types.UID]string

	// floor is how many Pods have to be in service at any time; 0 judges nothing.
	floor int
	low   bool // fewer are
	// keep are Pods and claims that must stay, by name.
	keep map[types.UID]string
	// revisions are those at which Pods were ever seen.
	revisions map[string]bool

	broken []string
}

func newChecker() *checker {
	return &checker{
		pods: map[types.UID]*corev1.Pod{}, claims: map[types.UID]*corev1.PersistentVolumeClaim{},
		ids:  map[types.UID]string{},
		keep: map[types.UID]string{}, revisions: map[string]bool{},
	}
}

func (c *checker) breaks(format string, args ...any) {
	c.broken = append(c.broken, fmt.Sprintf(format, args...))
}

// pod takes the next state of a Pod.
func (c *checker) pod(p *corev1.Pod, deleted bool) {
	if name, kept := c.keep[p.UID]; kept && (deleted || p.DeletionTimestamp != nil) {
		c.breaks("Pod %s was deleted, and was not to be touched", name)
		delete(c.keep, p.UID)
	}
	if deleted {
		delete(c.pods, p.UID)
	} else {
		_, known := c.pods[p.UID]
		c.pods[p.UID] = p
		c.revisions[p.Labels[appsv1.ControllerRevisionHashLabelKey]] = true
		if id := p.Labels[appsv1alpha1.InstanceIDLabel]; id != "" && (!known || c.ids[p.UID] == "") {
			c.ids[p.UID] = id
		}
		if !known {
			c.alone(p)
		}
	}
	c.enough()
}

// alone judges that a Pod which comes is the only one of its instance ID and of its claims.
func (c *checker) alone(p *corev1.Pod) {
	for uid, other := range c.pods {
		if uid == p.UID || !lives(other) {
			continue
		}
		_, released := other.Labels[appsv1alpha1.OrphanedLabel]
		if id := c.ids[uid]; id != "" && id == c.ids[p.UID] && !released {
			c.breaks("Pod %s came with instance ID %s of Pod %s, which is there", p.Name, id, other.Name)
		}
		for _, claim := range claimsOf(other) {
			if slices.Contains(claimsOf(p), claim) {
				c.breaks("Pod %s came with the claim %s of Pod %s, which is there", p.Name, claim, other.Name)
			}
		}
	}
}

// enough judges the number of Pods in service.
func (c *checker) enough() {
	n := 0
	for _, p := range c.pods {
		if serves(p) {
			n++
		}
	}
	if low := n < c.floor; low && !c.low {
		c.breaks("%d Pods were in service, and at least %d had to be:\n%s", n, c.floor, c.describe())
		c.low = true
	} else if !low {
		c.low = false
	}
}

// claim takes the next state of a claim.
func (c *checker) claim(p *corev1.PersistentVolumeClaim, deleted bool) {
	if name, kept := c.keep[p.UID]; kept && (deleted || p.DeletionTimestamp != nil) {
		c.breaks("claim %s was deleted, and was not to be touched", name)
		delete(c.keep, p.UID)
	}
	if deleted {
		delete(c.claims, p.UID)
	} else {
		c.claims[p.UID] = p
	}
}

func (c *checker) describe() string {
	var lines []string
	for _, p := range c.pods {
		lines = append(lines, fmt.Sprintf("  %s id=%s revision=%s serves=%t deleted=%t images=%v", p.Name,
			p.Labels[appsv1alpha1.InstanceIDLabel],
			p.Labels[appsv1.ControllerRevisionHashLabelKey], serves(p), p.DeletionTimestamp != nil, images(p)))
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

func images(p *corev1.Pod) (all []string) {
	for i := range p.Spec.Containers {
		all = append(all, p.Spec.Containers[i].Image)
	}
	return all
}

// lives reports whether a Pod is there and may run.
func lives(p *corev1.Pod) bool {
	return p.DeletionTimestamp == nil && p.Status.Phase != corev1.PodSucceeded && p.Status.Phase != corev1.PodFailed
}

// serves reports whether a Pod is Ready, with every readiness gate open and on its way to nowhere.
func serves(p *corev1.Pod) bool {
	open := func(condition corev1.PodConditionType) bool {
		return slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
			return c.Type == condition && c.Status == corev1.ConditionTrue
		})
	}
	closed := func(g corev1.PodReadinessGate) bool { return !open(g.ConditionType) }
	return lives(p) && open(corev1.PodReady) && !slices.ContainsFunc(p.Spec.ReadinessGates, closed)
}

func claimsOf(p *corev1.Pod) (names []string) {
	for i := range p.Spec.Volumes {
		if claim := p.Spec.Volumes[i].PersistentVolumeClaim; claim != nil {
			names = append(names, claim.ClaimName)
		}
	}
	return names
}

// view is what is in a namespace, as watches show it, judged by a checker on the way.
type view struct {
	mu sync.Mutex
	*checker
	set *appsv1alpha1.CollaSet // nil if there is none
}

// watchNamespace begins a view, which ends with the test.
func watchNamespace(t testing.TB, c client.WithWatch, namespace string) *view {
	t.Helper()
	v := &view{checker: newChecker()}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	var followers sync.WaitGroup
	t.Cleanup(func() { cancel(); followers.Wait() })
	for _, list := range []client.ObjectList{
		&corev1.PodList{}, &corev1.PersistentVolumeClaimList{}, &appsv1alpha1.CollaSetList{},
	} {
		if err := c.List(ctx, list, client.InNamespace(namespace)); err != nil {
			t.Fatal(err)
		}
		if err := meta.EachListItem(list, func(item runtime.Object) error {
			v.take(item, false)
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		from := &client.ListOptions{
			Namespace: namespace, Raw: &metav1.ListOptions{ResourceVersion: list.GetResourceVersion()},
		}
		w, err := c.Watch(ctx, list, from)
		if err != nil {
			t.Fatal(err)
		}
		followers.Go(func() { v.follow(ctx, w) })
	}
	return v
}

func (v *view) follow(ctx context.Context, w watch.Interface) {
	defer w.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case event, open := <-w.ResultChan():
			if !open || event.Type == watch.Error {
				v.mu.Lock()
				v.breaks("a watch of the test broke: what came after was not judged")
				v.mu.Unlock()
				return
			}
			v.take(event.Object, event.Type == watch.Deleted)
		}
	}
}

func (v *view) take(object runtime.Object, deleted bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	switch o := object.(type) {
	case *corev1.Pod:
		v.pod(o.DeepCopy(), deleted)
	case *corev1.PersistentVolumeClaim:
		v.claim(o.DeepCopy(), deleted)
	case *appsv1alpha1.CollaSet:
		if v.set = nil; !deleted {
			v.set = o.DeepCopy()
		}
	}
}

// podsNow are the Pods as last seen, by name. They must not be changed.
func (v *view) podsNow() []*corev1.Pod {
	v.mu.Lock()
	defer v.mu.Unlock()
	return slices.SortedFunc(maps.Values(v.pods), func(a, b *corev1.Pod) int { return strings.Compare(a.Name, b.Name) })
}

// claimsNow are the claims as last seen, by name.
func (v *view) claimsNow() []*corev1.PersistentVolumeClaim {
	v.mu.Lock()
	defer v.mu.Unlock()
	return slices.SortedFunc(maps.Values(v.claims), func(a, b *corev1.PersistentVolumeClaim) int {
		return strings.Compare(a.Name, b.Name)
	})
}

// setNow is the CollaSet as last seen; an empty one if there is none.
func (v *view) setNow() *appsv1alpha1.CollaSet {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.set != nil {
		return v.set
	}
	return &appsv1alpha1.CollaSet{}
}

// atLeast has so many Pods in service at any time from now on.
func (v *view) atLeast(n int) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.floor, v.low = n, false
	v.enough()
}

// keepAll has what is there stay from now on; keepNone ends that.
func (v *view) keepAll() {
	v.mu.Lock()
	defer v.mu.Unlock()
	for uid, p := range v.pods {
		v.keep[uid] = p.Name
	}
	for uid, c := range v.claims {
		v.keep[uid] = c.Name
	}
}

// keepClaims has the claims stay.
func (v *view) keepClaims() {
	v.mu.Lock()
	defer v.mu.Unlock()
	for uid, c := range v.claims {
		v.keep[uid] = c.Name
	}
}

func (v *view) keepNone() {
	v.mu.Lock()
	defer v.mu.Unlock()
	clear(v.keep)
}

// seenAt reports whether any Pod was ever at a revision.
func (v *view) seenAt(revision string) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.revisions[revision]
}

// verdict is what was broken so far.
func (v *view) verdict() []string {
	v.mu.Lock()
	defer v.mu.Unlock()
	return slices.Clone(v.broken)
}

// free ends keepAll for one Pod.
func (v *view) free(p *corev1.Pod) {
	v.mu.Lock()
	defer v.mu.Unlock()
	delete(v.keep, p.UID)
}
