package conformance

import (
	"fmt"
	"maps"
	"reflect"
	"slices"

	"sigs.k8s.io/controller-runtime/pkg/client"

	api "kusionstack.io/kuperator/api/resourceconsist"
)

func memberFunction[E client.Object, S comparable](w *world[E, S]) {
	employer := w.employer(namespace, "web")
	pods := append(w.pods(20), w.pod(namespace, "dual", address(50), "fd00::50"))
	calls := w.calls()
	owner := map[string]string{}
	for _, pod := range pods {
		on, off, err := w.members(employer, pod)
		if err != nil {
			w.Errorf("Members of Pod %s: %v", pod.Name, err)
			continue
		}
		if len(on) == 0 {
			w.Errorf("Members names none for Pod %s, which has an address: it could never serve", pod.Name)
		}
		for id := range maps.Keys(off) {
			if state, stays := on[id]; w.moves() && stays && any(state) == any(off[id]) {
				w.Errorf(
					"Members gives member %q of Pod %s the same State with and without traffic, so it could never be taken out: leave it out without traffic, or set another State",
					id, pod.Name)
			}
		}
		ids, err := w.ids(employer, pod)
		if err != nil {
			w.Fatal(err)
		}
		for _, id := range ids {
			if other, taken := owner[id]; taken {
				w.Errorf(
					"Members gives Pods %s and %s the same member ID %q: make it of what only one Pod has, such as its address",
					other, pod.Name, id)
			}
			owner[id] = pod.Name
		}
		for range 5 {
			onAgain, offAgain, err := w.members(employer, pod)
			if err != nil || !reflect.DeepEqual(on, onAgain) || !reflect.DeepEqual(off, offAgain) {
				w.Errorf(
					"Members of Pod %s are %v and %v, and then %v and %v (%v): they have to be a function of employer and Pod alone",
					pod.Name, on, off, onAgain, offAgain, err)
				break
			}
		}
	}
	if on, off, err := w.members(employer, w.pod(namespace, "bare")); err != nil {
		w.Errorf("Members of a Pod without an address: %v; return an empty map, it will have one soon", err)
	} else if maps.Copy(on, off); slices.Contains(slices.Collect(maps.Keys(on)), "") {
		w.Errorf("Members of a Pod without an address has a member with the ID \"\": return an empty map")
	}
	if w.calls() != calls {
		w.Errorf("Members calls the provider: it is called for each event of a Pod, so decide from the arguments alone")
	}
}

func orphans[E client.Object, S comparable](w *world[E, S]) {
	employer := w.employer(namespace, "web")
	pods := w.pods(4)
	w.join(employer, pods...)
	w.restart()
	var held map[string]api.Held[S]
	w.eventually("Read without ids succeeds after a restart", func() string {
		var err error
		held, err = w.read(w.Context(), employer, nil)
		return text(err)
	})
	for _, pod := range pods {
		on, _, err := w.members(employer, pod)
		if err != nil {
			w.Fatal(err)
		}
		for _, id := range slices.Sorted(maps.Keys(on)) {
			h, there := held[id]
			switch {
			case !there:
				w.Errorf(
					"Read without ids does not return member %q of %s, which Read with its ID does: return all members that the adapter may change, from all pages",
					id, pod.Name)
			case !h.Serving:
				w.Errorf("Read without ids returns member %q of %s without Serving, while the provider sends it traffic",
					id, pod.Name)
			}
		}
	}
	if len(held) > len(pods)*4 {
		w.Errorf("Read without ids returns %d members for %d Pods: it must not return those of other employers",
			len(held), len(pods))
	}
	if !w.moves() {
		return
	}
	living := pods[1:]
	w.eventually("the member of a Pod that is gone is removed", func() string {
		if err := w.sweep(w.Context(), employer, living); err != nil {
			return err.Error()
		}
		if w.serves(employer, pods[0]) {
			return fmt.Sprintf("%s is still sent traffic", pods[0].Name)
		}
		return ""
	})
	w.stay("the removal of a Pod that is gone", employer, living...)
}
