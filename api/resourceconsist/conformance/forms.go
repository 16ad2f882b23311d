package conformance

import (
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	api "kusionstack.io/kuperator/api/resourceconsist"
)

// perPodOnly are the checks of the per-Pod form.
func perPodOnly[E client.Object]() []check[E] {
	return []check[E]{{"an observation can be followed up", followUp[E]}}
}

// bulkOnly are the checks of the bulk form.
func bulkOnly[E, P client.Object, S comparable]() []check[E] {
	return []check[E]{
		{"members are a function of employer and employee", memberFunction[E, P, S]},
		{"members of a Pod that is gone are found and removed", orphans[E, P, S]},
	}
}

// followUp checks what an Observation says beside Serving.
func followUp[E client.Object](w *world[E]) {
	d, ok := w.driver.(*perPod[E])
	if !ok {
		w.Fatal("this check is for the per-Pod form")
	}
	_, watches := d.adapter().(api.Watcher)
	employer := w.employer(namespace, "web")
	pods := w.pods(2)
	judge := func(pod *corev1.Pod) {
		w.Helper()
		w.eventually("Observe knows of "+pod.Name, func() string {
			o, err := d.Observe(w.Context(), employer, pod)
			switch {
			case errors.Is(err, api.ErrPending) && !watches:
				w.once("Observe returns ErrPending, and the adapter is no Watcher that would enqueue the Pod later: the Pod would wait for ever")
			case err != nil:
				return err.Error()
			case o.Since.After(time.Now().Add(time.Minute)):
				w.once("Since is %s, which is yet to come: it is when the adapter itself saw Serving change, by the local clock", o.Since)
			case o.LookAgain < 0:
				w.once("LookAgain is %s: give how long to wait before Observe is called again", o.LookAgain)
			case o.LookAgain == 0 && !watches && !w.moves():
				w.once("LookAgain is zero, and the adapter is no Watcher that would tell: the Pod would wait for ever")
			}
			return ""
		})
	}
	judge(pods[0])
	w.join(employer, pods[0])
	judge(pods[0])
	w.leave(employer, pods[0])
	judge(pods[0])
}

// asBulk is the driver of the bulk form.
func asBulk[E, P client.Object, S comparable](w *world[E]) *bulk[E, P, S] {
	d, ok := w.driver.(*bulk[E, P, S])
	if !ok {
		w.Fatal("this check is for the bulk form")
	}
	return d
}

func memberFunction[E, P client.Object, S comparable](w *world[E]) {
	d := asBulk[E, P, S](w)
	employer := w.employer(namespace, "web")
	pods := append(w.pods(20), w.pod(namespace, "dual", address(50), "fd00::50"))
	calls := w.calls()
	owner := map[string]string{}
	for _, pod := range pods {
		on, off, err := d.members(employer, pod)
		if err != nil {
			w.Errorf("Members of Pod %s: %v", pod.Name, err)
			continue
		}
		if len(on) == 0 {
			w.Errorf("Members names none for Pod %s, which has an address: it could never serve", pod.Name)
		}
		for id := range maps.Keys(off) {
			if state, stays := on[id]; d.backend != nil && stays && any(state) == any(off[id]) {
				w.Errorf("Members gives member %q of Pod %s the same State with and without traffic, so it could never be taken out: leave it out without traffic, or set another State", id, pod.Name)
			}
		}
		ids, err := d.ids(employer, pod)
		if err != nil {
			w.Fatal(err)
		}
		for _, id := range ids {
			if other, taken := owner[id]; taken {
				w.Errorf("Members gives Pods %s and %s the same member ID %q: make it of what only one Pod has, such as its address", other, pod.Name, id)
			}
			owner[id] = pod.Name
		}
		for range 5 {
			onAgain, offAgain, err := d.members(employer, pod)
			if err != nil || !reflect.DeepEqual(on, onAgain) || !reflect.DeepEqual(off, offAgain) {
				w.Errorf("Members of Pod %s are %v and %v, and then %v and %v (%v): they have to be a function of employer and employee alone", pod.Name, on, off, onAgain, offAgain, err)
				break
			}
		}
	}
	if on, off, err := d.members(employer, w.pod(namespace, "bare")); err != nil {
		w.Errorf("Members of a Pod without an address: %v; return an empty map, it will have one soon", err)
	} else if maps.Copy(on, off); slices.Contains(slices.Collect(maps.Keys(on)), "") {
		w.Errorf("Members of a Pod without an address has a member with the ID \"\": return an empty map")
	}
	if w.calls() != calls {
		w.Errorf("Members calls the provider: it is called for each event of a Pod, so decide from the arguments alone")
	}
}

func orphans[E, P client.Object, S comparable](w *world[E]) {
	employer := w.employer(namespace, "web")
	pods := w.pods(4)
	w.join(employer, pods...)
	w.restart()
	d := asBulk[E, P, S](w)
	held, err := d.read(w.Context(), employer, nil)
	if err != nil {
		w.Fatalf("Read without ids: %v", err)
	}
	for _, pod := range pods {
		on, _, err := d.members(employer, pod)
		if err != nil {
			w.Fatal(err)
		}
		for _, id := range slices.Sorted(maps.Keys(on)) {
			h, there := held[id]
			switch {
			case !there:
				w.Errorf("Read without ids does not return member %q of %s, which Read with its ID does: return all members that the adapter may change, from all pages", id, pod.Name)
			case !h.Serving:
				w.Errorf("Read without ids returns member %q of %s without Serving, while the provider sends it traffic", id, pod.Name)
			}
		}
	}
	if len(held) > len(pods)*4 {
		w.Errorf("Read without ids returns %d members for %d Pods: it must not return those of other employers", len(held), len(pods))
	}
	if d.backend == nil {
		return
	}
	living := pods[1:]
	w.eventually("the member of a Pod that is gone is removed", func() string {
		if _, err := w.sweep(w.Context(), employer, living); err != nil {
			return err.Error()
		}
		if w.serves(employer, pods[0]) {
			return fmt.Sprintf("%s is still sent traffic", pods[0].Name)
		}
		return ""
	})
	w.stay("the removal of a Pod that is gone", employer, living...)
}
