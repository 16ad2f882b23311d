package conformance

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/controller-runtime/pkg/client"

	api "kusionstack.io/kuperator/api/resourceconsist"
)

// named is one check.
type named struct {
	name string
	run  func(testing.TB)
}

// checksOf are all checks, each in its own world.
func checksOf[E client.Object, S comparable](fresh func(testing.TB) Fixture[E, S]) []named {
	var all []named
	for _, c := range []struct {
		name string
		run  func(*world[E, S])
	}{
		{"the name is a DNS label and stays the same", theName[E, S]},
		{"the selector is a function of the employer", theSelector[E, S]},
		{"a Service that takes no part employs no Pod", noPart[E, S]},
		{"the resource of an employer is made and removed, twice too", provisioning[E, S]},
		{"a Pod is served once registered and not once deregistered", inAndOut[E, S]},
		{"registering and deregistering again change nothing", idempotent[E, S]},
		{"a failing provider is an error and never no traffic", failing[E, S]},
		{"a throttling provider delays and confuses nothing", throttling[E, S]},
		{"what is accepted counts when it is carried out", holding[E, S]},
		{"a call that is given up returns", cancelled[E, S]},
		{"a restarted adapter knows what its provider serves", restarted[E, S]},
		{"members of others stay as they are", foreign[E, S]},
		{"employers of the same Pods do not disturb each other", employers[E, S]},
		{"an address used again serves its new Pod", reusedAddress[E, S]},
		{"a Pod without an address disturbs no other", noAddress[E, S]},
		{"a Pod of two addresses comes and goes as one", dualStack[E, S]},
		{"failures of single Pods are told apart", partialFailure[E, S]},
		{"calls for a Pod do not grow with the number of Pods", calls[E, S]},
		{"arguments stay as they are", arguments[E, S]},
		{"many Pods at the same time", concurrent[E, S]},
		{"lives of Pods at random", lives[E, S]},
		{"members are a function of employer and Pod", memberFunction[E, S]},
		{"members of a Pod that is gone are found and removed", orphans[E, S]},
	} {
		all = append(all, named{c.name, func(t testing.TB) { c.run(newWorld(t, fresh)) }})
	}
	return all
}

func theName[E client.Object, S comparable](w *world[E, S]) {
	name := w.adapter.Name()
	for _, wrong := range validation.IsDNS1123Label(name) {
		w.Errorf("Name is %q, and has to be a DNS label: %s", name, wrong)
	}
	for range 10 {
		if again := w.adapter.Name(); again != name {
			w.Fatalf("Name is %q and then %q: return a constant", name, again)
		}
	}
	w.restart()
	if again := w.adapter.Name(); again != name {
		w.Errorf("Name is %q, and %q for another adapter of the same kind: return a constant", name, again)
	}
}

func theSelector[E client.Object, S comparable](w *world[E, S]) {
	employer := w.employer(namespace, "web")
	before := employer.DeepCopyObject()
	calls := w.calls()
	selector := w.adapter.Selector(employer)
	if selector == nil || !selector.Matches(labels.Set{Label: LabelValue}) ||
		selector.Matches(labels.Set{Label: "other"}) {
		w.Fatalf(
			"Selector is %v for an employer that takes part: it, or Provider.Employer, has to select Pods labelled %s=%s and no others",
			selector, Label, LabelValue)
	}
	if w.provider.Fail != nil {
		w.provider.Fail(true)
		defer w.provider.Fail(false)
	}
	for range 10 {
		if again := w.adapter.Selector(employer); again == nil || again.String() != selector.String() {
			w.Fatalf("Selector is %v and then %v for the same employer: make it a function of the employer alone",
				selector, again)
		}
	}
	if w.calls() != calls {
		w.Errorf("Selector calls the provider: it is called for each event of an employer, so decide from the employer alone")
	}
	if !equality.Semantic.DeepEqual(before, employer) {
		w.Errorf("Selector changes the employer: it comes from a cache that others read")
	}
}

func noPart[E client.Object, S comparable](w *world[E, S]) {
	for name, change := range map[string]func(*corev1.Service){
		"without the label kusionstack.io/control=true": func(s *corev1.Service) { s.Labels = nil },
		"with an empty selector":                        func(s *corev1.Service) { s.Spec.Selector = map[string]string{} },
		"without a selector":                            func(s *corev1.Service) { s.Spec.Selector = nil },
		"of type ExternalName": func(s *corev1.Service) {
			s.Spec.Type = corev1.ServiceTypeExternalName
		},
	} {
		employer := w.provider.Employer(namespace, "web")
		service, ok := any(employer).(*corev1.Service)
		if !ok {
			w.Skip("employers are no Services")
		}
		change(service)
		if s := w.adapter.Selector(employer); s != nil && !s.Empty() {
			w.Errorf("Selector is %q for a Service %s: return nil, or use resourceconsist.ServiceSelector", s, name)
		}
	}
}

func provisioning[E client.Object, S comparable](w *world[E, S]) {
	p, ok := any(w.adapter).(api.Provisioner[E])
	if !ok {
		w.Skip("the adapter is no Provisioner")
	}
	employer := w.employer(namespace, "web")
	pods := w.pods(2)
	w.join(employer, pods...)
	if err := p.Provision(w.Context(), employer); err != nil {
		w.Errorf(
			"a second Provision fails: %v; it is called after each change of the employer, so what is there already is no failure",
			err)
	}
	w.stay("a second Provision", employer, pods...)
	w.leave(employer, pods...)
	for _, which := range []string{"Deprovision", "a second Deprovision"} {
		if err := p.Deprovision(w.Context(), employer); err != nil {
			w.Errorf("%s fails: %v; what is gone already is no failure", which, err)
		}
	}
	if err := p.Provision(w.Context(), employer); err != nil {
		w.Fatalf("Provision after Deprovision fails: %v", err)
	}
	w.join(employer, pods...)
}

func inAndOut[E client.Object, S comparable](w *world[E, S]) {
	employer := w.employer(namespace, "web")
	pods := w.pods(3)
	for _, pod := range pods {
		if a, err := w.look(employer, pod); err == nil && a.serving {
			w.Errorf("%s says that Pod %s is served, which the provider has never heard of", asks, pod.Name)
		}
	}
	w.join(employer, pods...)
	w.leave(employer, pods[1])
	w.stay(changes+" of another Pod", employer, pods[0], pods[2])
	w.join(employer, pods[1])
	w.stay(changes+" of another Pod", employer, pods[0], pods[2])
	w.leave(employer, pods...)
	w.deny(changes, employer, pods...)
}

func idempotent[E client.Object, S comparable](w *world[E, S]) {
	if !w.moves() {
		w.Skip("the adapter moves no traffic")
	}
	employer := w.employer(namespace, "web")
	pods := w.pods(2)
	again := func(call func(context.Context, E, ...*corev1.Pod) error, what string) {
		for range 2 {
			if err := call(w.Context(), employer, pods[0]); err != nil {
				w.Errorf(
					"%s fails for a Pod that %s: %v; it is called again until %s confirms it, so return nil for what is so already",
					changes, what, err, asks)
			}
		}
	}
	again(w.deregister, "was never registered")
	w.join(employer, pods...)
	again(w.register, "is registered already")
	w.join(employer, pods...)
	if err := w.deregister(w.Context(), employer, pods[0]); err != nil {
		w.Errorf("%s: %v", changes, err)
	}
	if err := w.await("nothing is left of a Pod that was registered three times and deregistered once", func() string {
		if w.serves(employer, pods[0]) {
			return "the provider still sends it traffic: registering again must not add it again"
		}
		return ""
	}); err != nil {
		w.Error(err)
	}
	again(w.deregister, "is deregistered already")
	w.leave(employer, pods[0])
	w.stay(changes+" of another Pod", employer, pods[1])
}

func failing[E client.Object, S comparable](w *world[E, S]) {
	w.needs("Fail", w.provider.Fail != nil)
	employer := w.employer(namespace, "web")
	pods := w.pods(3)
	w.join(employer, pods[:2]...)
	w.provider.Fail(true)
	for range 5 {
		for _, pod := range pods {
			_, _ = w.look(employer, pod)
		}
	}
	if w.moves() {
		dropped := w.deregister(w.Context(), employer, pods[0])
		put := w.register(w.Context(), employer, pods[2])
		_, _ = w.look(employer, pods[0])
		w.provider.Fail(false)
		w.honest(dropped, func() bool { return !w.serves(employer, pods[0]) })
		w.honest(put, func() bool { return w.serves(employer, pods[2]) })
	}
	w.provider.Fail(false)
	w.leave(employer, pods[0])
	w.join(employer, pods[2])
	w.stay("a provider that failed for a while", employer, pods[1])
}

// honest checks that a call that returned nil while the provider failed takes effect by itself.
func (w *world[E, S]) honest(returned error, done func() bool) {
	w.Helper()
	if returned != nil {
		return
	}
	if w.await("it", func() string {
		if done() {
			return ""
		}
		return "not yet"
	}) != nil {
		w.once(
			"%s returned nil while every call to the provider failed, and nothing came of it: return the error, so that it is reported and retried",
			changes)
	}
}

func throttling[E client.Object, S comparable](w *world[E, S]) {
	w.needs("Throttle", w.provider.Throttle != nil)
	employer := w.employer(namespace, "web")
	pods := w.pods(6)
	w.provider.Throttle(true)
	defer w.provider.Throttle(false)
	w.join(employer, pods...)
	w.leave(employer, pods[:3]...)
	w.stay("a provider that throttles", employer, pods[3:]...)
}

func holding[E client.Object, S comparable](w *world[E, S]) {
	w.needs("Hold", w.provider.Hold != nil)
	if !w.moves() {
		w.Skip("the adapter moves no traffic")
	}
	employer := w.employer(namespace, "web")
	pods := w.pods(2)
	w.join(employer, pods[0])
	w.provider.Hold(true)
	for range 3 {
		_ = w.deregister(w.Context(), employer, pods[0])
		_ = w.register(w.Context(), employer, pods[1])
		for _, pod := range pods {
			_, _ = w.look(employer, pod)
		}
	}
	w.provider.Hold(false)
	w.leave(employer, pods[0])
	w.join(employer, pods[1])
}

func cancelled[E client.Object, S comparable](w *world[E, S]) {
	w.needs("Delay", w.provider.Delay != nil)
	employer := w.employer(namespace, "web")
	pods := w.pods(2)
	w.join(employer, pods[0])
	w.provider.Delay(24 * time.Hour)
	w.Cleanup(func() { w.provider.Delay(0) })
	w.returns(asks, func(ctx context.Context) error {
		_, err := w.lookWithin(ctx, employer, pods[0])
		return err
	})
	if w.moves() {
		w.returns(changes, func(ctx context.Context) error { return w.register(ctx, employer, pods[1]) })
		w.returns(changes, func(ctx context.Context) error { return w.deregister(ctx, employer, pods[0]) })
	}
	w.provider.Delay(0)
	w.leave(employer, pods[0])
	w.join(employer, pods[1])
}

// returns checks that a call comes back after its context has ended.
func (w *world[E, S]) returns(method string, call func(context.Context) error) {
	w.Helper()
	const soon = 10 * time.Millisecond
	ctx, cancel := context.WithTimeout(w.Context(), soon)
	defer cancel()
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = call(ctx) // what it answers is judged by lookWithin
	}()
	select {
	case <-done:
	case <-time.After(w.provider.Patience):
		w.provider.Delay(0)
		w.Fatalf(
			"%s has not returned %s after its context ended: pass the context on to the calls of the provider, and wait for nothing without it",
			method, w.provider.Patience)
	}
}

func restarted[E client.Object, S comparable](w *world[E, S]) {
	employer := w.employer(namespace, "web")
	pods := w.pods(3)
	w.join(employer, pods[:2]...)
	if w.provider.Fail != nil {
		w.provider.Fail(true)
	}
	w.restart()
	for _, pod := range pods {
		_, _ = w.look(employer, pod)
	}
	if w.provider.Fail != nil {
		w.provider.Fail(false)
	}
	for _, pod := range pods[:2] {
		w.eventually(asks+" knows after a restart that "+pod.Name+" is served", func() string {
			a, err := w.look(employer, pod)
			switch {
			case err != nil:
				return err.Error()
			case !a.serving:
				return "it says that it is not: keep nothing in memory that the provider does not say again"
			}
			return ""
		})
	}
	w.leave(employer, pods[0])
	w.join(employer, pods[2])
	w.stay("a restart", employer, pods[1])
}

func foreign[E client.Object, S comparable](w *world[E, S]) {
	w.needs("Foreign", w.provider.Foreign != nil)
	employer := w.employer(namespace, "web")
	untouched := w.provider.Foreign(employer)
	intact := func(after string) {
		w.Helper()
		if !untouched() {
			w.once(
				"members that another system put into the backend were changed by %s: touch, and let Read return, only what the adapter itself put there",
				after)
		}
	}
	intact("Provider.Foreign itself")
	pods := w.pods(3)
	w.join(employer, pods...)
	intact(changes)
	w.leave(employer, pods[0])
	intact(changes)
	w.restart()
	if w.moves() {
		w.swept(employer, pods[1:]...)
		intact("the removal of what Read returned without ids and belongs to no Pod")
	}
	w.leave(employer, pods...)
	intact(changes + " of the last Pod")
}

func employers[E client.Object, S comparable](w *world[E, S]) {
	web, admin, elsewhere := w.employer(namespace, "web"), w.employer(namespace, "admin"), w.employer("elsewhere", "web")
	pods := w.pods(2)
	there := w.pod("elsewhere", pods[0].Name, address(1000))
	w.join(web, pods...)
	w.deny(changes+" for another employer", admin, pods...)
	w.join(admin, pods...)
	w.join(elsewhere, there)
	w.leave(web, pods[0])
	const why = "taking a Pod out of another employer"
	w.stay(why, web, pods[1])
	w.stay(why, admin, pods...)
	w.stay(why+" of the same name in another namespace", elsewhere, there)
	w.leave(elsewhere, there)
	w.join(web, pods[0])
	w.stay(why, admin, pods...)
	w.stay(why+" of the same name in another namespace", web, pods...)
}

func reusedAddress[E client.Object, S comparable](w *world[E, S]) {
	employer := w.employer(namespace, "web")
	first, other := w.pod(namespace, "web-0", address(0)), w.pod(namespace, "web-9", address(9))
	w.join(employer, first, other)
	w.leave(employer, first)
	second := w.pod(namespace, "web-1", address(0))
	w.join(employer, second)
	w.leave(employer, second)
	same := w.pod(namespace, "web-0", address(0))
	w.join(employer, same)
	w.stay("another Pod with an address used before", employer, other)

	if !w.moves() {
		return
	}
	// The Pod vanishes without being deregistered.
	heir := w.pod(namespace, "web-2", address(0))
	w.swept(employer, other, heir)
	w.join(employer, heir)
	w.swept(employer, other, heir)
	w.stay("the removal of members of a Pod that is gone, whose address another has now,", employer, heir, other)
	w.leave(employer, heir)
}

func noAddress[E client.Object, S comparable](w *world[E, S]) {
	employer := w.employer(namespace, "web")
	pods := w.pods(2)
	w.join(employer, pods...)
	bare := []*corev1.Pod{w.pod(namespace, "bare-0"), w.pod(namespace, "bare-1")}
	consistent := func(after string) {
		w.Helper()
		for _, pod := range bare {
			w.eventually(asks+" tells the truth of a Pod without an address "+after, func() string {
				a, err := w.look(employer, pod)
				switch {
				case err != nil:
					return fmt.Sprintf(
						"it returns an error (%v): a Pod without an address is no failure, the provider knows nothing of it", err)
				case a.serving && !w.serves(employer, pod):
					return "it says that it is served, so the Pod could never be deleted"
				}
				return ""
			})
		}
		w.stay("a Pod without an address", employer, pods...)
	}
	consistent("at first")
	if w.moves() {
		_ = w.register(w.Context(), employer, bare...)
		consistent("after " + changes)
		_ = w.deregister(w.Context(), employer, bare[0])
		consistent("after " + changes)
		w.leave(employer, bare...)
	}
	addressed := w.pod(namespace, "bare-0", address(20))
	addressed.UID = bare[0].UID
	w.join(employer, addressed)
	w.leave(employer, pods[0])
}

func dualStack[E client.Object, S comparable](w *world[E, S]) {
	employer := w.employer(namespace, "web")
	pods := []*corev1.Pod{
		w.pod(namespace, "dual-0", address(0), "fd00::1"), w.pod(namespace, "dual-1", "fd00::2", address(1)),
		w.pod(namespace, "six-2", "fd00::3"),
	}
	w.join(employer, pods[:2]...)
	w.leave(employer, pods[0])
	w.stay(changes+" of another Pod", employer, pods[1])
	w.join(employer, pods[0])
	if a, err := w.look(employer, pods[2]); err == nil && a.serving {
		w.Errorf("%s says that a Pod of one IPv6 address is served, which the provider has never heard of", asks)
	}
	w.leave(employer, pods[:2]...)
}

func partialFailure[E client.Object, S comparable](w *world[E, S]) {
	w.needs("FailFor", w.provider.FailFor != nil)
	if !w.moves() {
		w.Skip("the adapter moves no traffic")
	}
	employer := w.employer(namespace, "web")
	pods := w.pods(6)
	bad, good := []*corev1.Pod{pods[1], pods[4]}, []*corev1.Pod{pods[0], pods[2], pods[3], pods[5]}
	look := func() {
		for _, pod := range pods {
			_, _ = w.look(employer, pod)
		}
	}

	w.provider.FailFor(bad...)
	w.toldApart(w.register, employer, pods, bad)
	w.settles(good, func(pod *corev1.Pod) bool { return w.serves(employer, pod) })
	look()
	w.join(employer, good...)
	w.provider.FailFor()
	w.join(employer, pods...)

	w.provider.FailFor(bad...)
	w.toldApart(w.deregister, employer, pods, bad)
	w.settles(good, func(pod *corev1.Pod) bool { return !w.serves(employer, pod) })
	look()
	w.leave(employer, good...)
	w.provider.FailFor()
	w.leave(employer, pods...)
}

// toldApart checks the errors of a call for many Pods of which some are bad.
func (w *world[E, S]) toldApart(
	call func(context.Context, E, ...*corev1.Pod) error, employer E, pods, bad []*corev1.Pod,
) {
	w.Helper()
	err := call(w.Context(), employer, pods...)
	failed, told := memberErrors(err)
	if err == nil {
		w.Errorf("%s returned nil although the members of %s failed: return MemberErrors with one error for each of them",
			changes, some(bad))
		return
	}
	if !told {
		w.Errorf(
			"%s returned %v, which says that every change failed, although only those of %s did: return MemberErrors with one error for each of them",
			changes, err, some(bad))
		return
	}
	want := map[string]bool{}
	for _, pod := range bad {
		ids, err := w.ids(employer, pod)
		if err != nil {
			w.Fatal(err)
		}
		for _, id := range ids {
			want[id] = true
		}
	}
	for _, id := range failed {
		if !want[id] {
			w.Errorf("%s names member %q in MemberErrors, which did not fail: it would be retried with growing delays",
				changes, id)
		}
		delete(want, id)
	}
	for id := range want {
		w.Errorf("%s does not name member %q in MemberErrors, which failed: it would count as done", changes, id)
	}
}

// settles waits until the changes of Pods that did not fail took effect, without another call.
func (w *world[E, S]) settles(pods []*corev1.Pod, done func(*corev1.Pod) bool) {
	w.Helper()
	if err := w.await(changes+" took effect for the Pods that did not fail", func() string {
		for _, pod := range pods {
			if !done(pod) {
				return "it did not for " + pod.Name
			}
		}
		return ""
	}); err != nil {
		w.Error(err)
	}
}

func (w *world[E, S]) calls() int {
	if w.provider.Calls == nil {
		return 0
	}
	return w.provider.Calls()
}

func calls[E client.Object, S comparable](w *world[E, S]) {
	w.needs("Calls", w.provider.Calls != nil)
	first, base := 0, 0
	for _, size := range w.provider.Sizes {
		if testing.Short() && size > 100 {
			break
		}
		w.Logf("%d Pods:", size)
		fresh := newWorld(w.TB, w.fixture)
		all, one := fresh.cost(size)
		w.Logf("  %d calls to bring all in and look at each; %d calls for one Pod that leaves and comes back", all, one)
		if first == 0 {
			first, base = all*10/size, one
			continue
		}
		if most := 2*first + 10; all*10/size > most {
			w.Errorf(
				"bringing in %d Pods takes %d calls, which is more for each than with %d Pods: a call must not be repeated for every member that is there",
				size, all, w.provider.Sizes[0])
		}
		// A provider may give its members in pages.
		if most := 2*base + 10*(size/batch); one > most {
			w.Errorf(
				"one Pod that leaves and comes back takes %d calls among %d Pods and %d among %d: ask only about the Pods that the call names",
				one, size, base, w.provider.Sizes[0])
		}
	}
}

// cost is how many calls it takes to bring in so many Pods, and then to take out and bring back one of them.
func (w *world[E, S]) cost(size int) (all, one int) {
	w.Helper()
	employer := w.employer(namespace, "web")
	pods := w.pods(size)
	start := w.calls()
	if err := w.register(w.Context(), employer, pods...); err != nil {
		w.Fatalf("%s of %d Pods: %v", changes, size, err)
	}
	var late []*corev1.Pod
	for _, pod := range pods {
		if a, err := w.look(employer, pod); err != nil || !a.complete {
			late = append(late, pod)
		}
	}
	all = w.calls() - start
	w.join(employer, late...)

	// Looks that wait for an effect are no measure, so only one is counted after each call.
	pod := pods[size/2]
	start = w.calls()
	if err := errors.Join(w.deregister(w.Context(), employer, pod), w.seenOnce(employer, pod),
		w.register(w.Context(), employer, pod), w.seenOnce(employer, pod)); err != nil {
		w.Fatalf("%s and %s of one Pod among %d: %v", changes, changes, size, err)
	}
	one = w.calls() - start
	return all, one
}

func (w *world[E, S]) seenOnce(employer E, pod *corev1.Pod) error {
	_, err := w.look(employer, pod)
	return err
}

func arguments[E client.Object, S comparable](w *world[E, S]) {
	w.inspecting = true
	employer := w.employer(namespace, "web")
	pods := append(w.pods(3), w.pod(namespace, "dual", address(50), "fd00::50"))
	w.join(employer, pods...)
	_, _ = w.look(employer, w.pod(namespace, "bare"))
	if w.provider.Fail != nil {
		w.provider.Fail(true)
		for _, pod := range pods {
			_, _ = w.look(employer, pod)
			if w.moves() {
				_, _ = w.register(w.Context(), employer, pod), w.deregister(w.Context(), employer, pod)
			}
		}
		w.provider.Fail(false)
	}
	if w.moves() {
		_ = w.sweep(w.Context(), employer, pods)
	}
	w.leave(employer, pods...)
}

func concurrent[E client.Object, S comparable](w *world[E, S]) {
	const workers, each, rounds = 8, 2, 2
	web, admin := w.employer(namespace, "web"), w.employer(namespace, "admin")
	pods := w.pods(workers * each)
	stays := w.pod(namespace, "stays", address(5000))
	w.join(web, stays)
	var group sync.WaitGroup
	for worker := range workers {
		mine := pods[worker*each : (worker+1)*each]
		group.Go(func() {
			for range rounds {
				if err := errors.Join(w.joined(web, mine...), w.joined(admin, mine...), w.left(web, mine...),
					w.joined(web, mine...), w.left(admin, mine...)); err != nil {
					w.once("with %d callers at the same time: %v", workers, err)
					return
				}
				_ = w.adapter.Name()
				_ = w.adapter.Selector(web)
			}
		})
	}
	group.Wait()
	for _, pod := range append(pods, stays) {
		if !w.serves(web, pod) {
			w.Errorf("after %d callers at the same time %s is not served by the employer that it was registered with last",
				workers, pod.Name)
		}
		if pod != stays && w.serves(admin, pod) {
			w.Errorf("after %d callers at the same time %s is served by the employer that it was deregistered from last",
				workers, pod.Name)
		}
	}
}
