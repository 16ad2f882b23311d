package conformance

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
	api "kusionstack.io/kuperator/api/resourceconsist"
)

const (
	patience = 30 * time.Second
	// firstPause and longestPause are between two looks at what becomes true later.
	firstPause, longestPause = time.Millisecond, 100 * time.Millisecond
	namespace                = "shop"
)

// world is one check: a provider, the adapter connected to it, and what the check has made.
type world[E client.Object, S comparable] struct {
	testing.TB
	adapter  api.Adapter[E, S]
	mover    api.Mover[E, S] // nil for an adapter that only observes
	provider Provider[E]
	connect  func() api.Adapter[E, S]
	// fixture makes another fixture, with its own provider.
	fixture func(testing.TB) Fixture[E, S]
	// inspecting is true if arguments of calls are compared before and after.
	inspecting bool

	mu sync.Mutex
	// seen are the Pods of employers that the adapter knows to be served since the provider was last told to serve
	// them, for an adapter that observes: it learns of that a little later.
	seen map[string]bool
	said map[string]bool
	made int
}

func newWorld[E client.Object, S comparable](t testing.TB, fixture func(testing.TB) Fixture[E, S]) *world[E, S] {
	t.Helper()
	f := fixture(t)
	if f.Connect == nil {
		t.Fatal("Fixture.Connect is nil: give a function that makes the adapter")
	}
	p := f.Provider
	if p.Serves == nil {
		t.Fatal("Provider.Serves is nil: give a function that asks the provider itself whether a request would reach the Pod")
	}
	if p.Employer == nil {
		p.Employer = func(namespace, name string) E {
			employer, ok := any(Service(namespace, name)).(E)
			if !ok {
				t.Fatal("Provider.Employer is nil: give a function that makes an employer, since employers are no Services")
			}
			return employer
		}
	}
	if p.Patience == 0 {
		p.Patience = patience
	}
	if p.Sizes == nil {
		p.Sizes = []int{10, 100, 1000}
	}
	if p.Seeds == nil {
		p.Seeds = []uint64{1, 2, 3, 4, 5}
	}
	w := &world[E, S]{TB: t, fixture: fixture, provider: p, connect: f.Connect, seen: map[string]bool{},
		said: map[string]bool{}}
	w.restart()
	if !w.moves() && p.Move == nil {
		t.Fatal(
			"Provider.Move is nil, and the adapter moves nothing itself: give a function that makes the provider send traffic to a Pod, or none")
	}
	return w
}

// restart takes a new adapter, as a process that has just started does.
func (w *world[E, S]) restart() {
	w.mu.Lock()
	clear(w.seen)
	w.mu.Unlock()
	w.adapter = w.connect()
	w.mover, _ = w.adapter.(api.Mover[E, S])
}

// needs skips the check unless the provider can do something.
func (w *world[E, S]) needs(field string, there bool) {
	w.Helper()
	if !there {
		w.Skipf("Provider.%s is nil: give it to have this checked", field)
	}
}

// once reports a failure, the same one only once.
func (w *world[E, S]) once(format string, arguments ...any) {
	w.Helper()
	text := fmt.Sprintf(format, arguments...)
	w.mu.Lock()
	said := w.said[text]
	w.said[text] = true
	w.mu.Unlock()
	if !said {
		w.Error(text)
	}
}

// employer makes an employer that takes part, with its own resource.
func (w *world[E, S]) employer(namespace, name string) E {
	w.Helper()
	employer := w.provider.Employer(namespace, name)
	if p, ok := any(w.adapter).(api.Provisioner[E]); ok {
		w.eventually("Provision succeeds", func() string { return text(p.Provision(w.Context(), employer)) })
	}
	return employer
}

// pod makes a Pod with these addresses; no other Pod of the world has its UID.
func (w *world[E, S]) pod(namespace, name string, addresses ...string) *corev1.Pod {
	w.mu.Lock()
	w.made++
	uid := types.UID(fmt.Sprintf("00000000-0000-4000-8000-%012d", w.made))
	w.mu.Unlock()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: name, UID: uid, ResourceVersion: "1",
			Labels: map[string]string{Label: LabelValue, appsv1alpha1.ControlLabel: appsv1alpha1.ControlValue},
		},
		Spec: corev1.PodSpec{NodeName: "node-0",
			ReadinessGates: []corev1.PodReadinessGate{{ConditionType: podops.ServiceReadyCondition}}},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{
			{Type: podops.ServiceReadyCondition, Status: corev1.ConditionTrue},
			{Type: corev1.PodReady, Status: corev1.ConditionTrue},
		}},
	}
	for _, a := range addresses {
		pod.Status.PodIPs = append(pod.Status.PodIPs, corev1.PodIP{IP: a})
	}
	if len(addresses) > 0 {
		pod.Status.PodIP = addresses[0]
	}
	if w.provider.Pod != nil {
		w.provider.Pod(pod)
	}
	return pod
}

// pods makes n Pods in the namespace of most checks, each of one address.
func (w *world[E, S]) pods(n int) []*corev1.Pod {
	made := make([]*corev1.Pod, n)
	for i := range made {
		made[i] = w.pod(namespace, fmt.Sprintf("web-%d", i), address(i))
	}
	return made
}

// address is the i-th address for Pods, beginning with 10.0.0.1.
func address(i int) string { return fmt.Sprintf("10.%d.%d.%d", (i+1)>>16&255, (i+1)>>8&255, (i+1)&255) }

func key(employer client.Object, pod *corev1.Pod) string {
	return strings.Join([]string{employer.GetNamespace(), employer.GetName(), string(pod.UID)}, "/")
}

func (w *world[E, S]) serves(employer E, pod *corev1.Pod) bool {
	return w.provider.Serves(employer, pod)
}

// move moves the traffic of an adapter that observes.
func (w *world[E, S]) move(employer E, pod *corev1.Pod, on bool) {
	w.mu.Lock()
	delete(w.seen, key(employer, pod))
	w.mu.Unlock()
	w.provider.Move(employer, pod, on)
}

// look asks the adapter about a Pod, with the check that is made always.
func (w *world[E, S]) look(employer E, pod *corev1.Pod) (answer, error) {
	w.Helper()
	return w.lookWithin(w.Context(), employer, pod)
}

func (w *world[E, S]) lookWithin(ctx context.Context, employer E, pod *corev1.Pod) (answer, error) {
	w.Helper()
	k := key(employer, pod)
	w.mu.Lock()
	mustKnow := w.seen[k] || w.moves()
	w.mu.Unlock()
	before := w.serves(employer, pod)
	a, err := w.observe(ctx, employer, pod)
	after := w.serves(employer, pod)
	switch {
	case err != nil:
	case a.serving:
		w.mu.Lock()
		w.seen[k] = true
		w.mu.Unlock()
	case mustKnow && before && after:
		w.once(
			"%s says that Pod %s of %s is not served, while the provider sends it traffic: the framework would let it be operated now. "+
				"Return an error whenever the provider itself did not just say so", asks, pod.Name, employer.GetName())
	}
	return a, err
}

// await waits until holds returns "", and says otherwise what it was in the end.
func (w *world[E, S]) await(what string, holds func() string) error {
	deadline := time.Now().Add(w.provider.Patience)
	for pause := firstPause; ; pause = min(2*pause, longestPause) {
		why := holds()
		switch {
		case why == "":
			return nil
		case time.Now().After(deadline):
			return fmt.Errorf("waited %s until %s: %s", w.provider.Patience, what, why)
		}
		select {
		case <-w.Context().Done():
			return fmt.Errorf("the test ended before %s: %s", what, why)
		case <-time.After(pause):
		}
	}
}

// eventually is await for the check's own goroutine: the check ends if it does not come.
func (w *world[E, S]) eventually(what string, holds func() string) {
	w.Helper()
	if err := w.await(what, holds); err != nil {
		w.Fatal(err)
	}
}

// join brings Pods into the backend as the framework does: by asking again until the adapter confirms it.
func (w *world[E, S]) join(employer E, pods ...*corev1.Pod) {
	w.Helper()
	if err := w.joined(employer, pods...); err != nil {
		w.Fatal(err)
	}
}

func (w *world[E, S]) joined(employer E, pods ...*corev1.Pod) error {
	done := map[*corev1.Pod]bool{}
	return w.await(fmt.Sprintf("%s serves %s after %s", employer.GetName(), some(pods), changes), func() string {
		return w.round(employer, pods, done, w.register, func(pod *corev1.Pod, a answer) (finished bool, why string) {
			switch {
			case !a.complete:
				return false, asks + " does not say that " + pod.Name + " is served. " + a.lacks
			case !w.serves(employer, pod):
				return true, asks + " says that " + pod.Name + " is served, and the provider sends it no traffic"
			}
			return true, ""
		})
	})
}

// leave takes Pods out of the backend as the framework does.
func (w *world[E, S]) leave(employer E, pods ...*corev1.Pod) {
	w.Helper()
	if err := w.left(employer, pods...); err != nil {
		w.Fatal(err)
	}
}

func (w *world[E, S]) left(employer E, pods ...*corev1.Pod) error {
	done := map[*corev1.Pod]bool{}
	return w.await(fmt.Sprintf("%s serves no more %s after %s", employer.GetName(), some(pods), changes), func() string {
		return w.round(employer, pods, done, w.deregister, func(pod *corev1.Pod, a answer) (finished bool, why string) {
			switch {
			case a.serving:
				return false, asks + " says that " + pod.Name + " is served still"
			case w.serves(employer, pod):
				return true, asks + " says that " + pod.Name + " is not served, and the provider sends it traffic"
			}
			return true, ""
		})
	})
}

// swept is sweep, again and again until it succeeds.
func (w *world[E, S]) swept(employer E, living ...*corev1.Pod) {
	w.Helper()
	w.eventually("members of no Pod are removed", func() string { return text(w.sweep(w.Context(), employer, living)) })
}

// round looks at the Pods that are not done and makes the call for those that are known and not finished. It returns
// what is still missing.
func (w *world[E, S]) round(
	employer E, pods []*corev1.Pod, done map[*corev1.Pod]bool, call func(context.Context, E, ...*corev1.Pod) error,
	judge func(*corev1.Pod, answer) (bool, string),
) (missing string) {
	var due []*corev1.Pod
	for _, pod := range pods {
		if done[pod] {
			continue
		}
		a, err := w.look(employer, pod)
		if err != nil {
			missing = fmt.Sprintf("%s for %s: %v", asks, pod.Name, err)
			continue
		}
		finished, why := judge(pod, a)
		if why != "" {
			missing = why
		}
		done[pod] = why == ""
		if !finished {
			due = append(due, pod)
		}
	}
	if len(due) > 0 {
		if err := call(w.Context(), employer, due...); err != nil {
			missing = fmt.Sprintf("%s; the last call failed: %v", missing, err)
		}
	}
	return missing
}

// stay checks that Pods are served and known to be.
func (w *world[E, S]) stay(why string, employer E, pods ...*corev1.Pod) {
	w.Helper()
	for _, pod := range pods {
		if !w.serves(employer, pod) {
			w.once("%s stopped the traffic of Pod %s of %s/%s, which was not asked for", why, pod.Name, employer.GetNamespace(),
				employer.GetName())
		}
		_, _ = w.look(employer, pod)
	}
}

// deny checks that the provider sends no traffic to Pods.
func (w *world[E, S]) deny(why string, employer E, pods ...*corev1.Pod) {
	w.Helper()
	for _, pod := range pods {
		if w.serves(employer, pod) {
			w.once("%s brought traffic to Pod %s of %s/%s, which was not asked for", why, pod.Name, employer.GetNamespace(),
				employer.GetName())
		}
	}
}

func some(pods []*corev1.Pod) string {
	const most = 3
	var names []string
	for _, pod := range pods[:min(most, len(pods))] {
		names = append(names, pod.Name)
	}
	if more := len(pods) - most; more > 0 {
		names = append(names, fmt.Sprintf("%d more", more))
	}
	return strings.Join(names, ", ")
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// memberErrors are the members that an error of Apply names, in order, and whether it names any.
func memberErrors(err error) ([]string, bool) {
	var failed api.MemberErrors
	if !errors.As(err, &failed) {
		return nil, false
	}
	ids := make([]string, 0, len(failed))
	for id := range failed {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids, true
}
