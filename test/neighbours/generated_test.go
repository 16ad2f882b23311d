package neighbours

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/internal/testkit/workload"
)

const (
	// podsOfARun are enough that a quarter of them, rounded down, is one.
	podsOfARun = 5
	// guarded are how many of them a rule allows to be out of service, unguarded what a Deployment allows.
	guarded, unguarded = 2, 1

	shortSelection, longSelection = 12, 240
)

// combination is one run: who comes when, what changes how, and how a refusal ends.
type combination struct {
	neighbour neighbour
	moment    moment
	change    change
	policy    appsv1alpha1.PodUpdatePolicy
	// rule is true if the Pods have traffic and a rule.
	rule bool
	end  ending
}

func (c combination) String() string {
	parts := []string{c.neighbour.name, string(c.moment), c.change.name, string(c.policy)}
	if c.rule {
		parts = append(parts, "rule")
	}
	if c.end != "" {
		parts = append(parts, string(c.end))
	}
	return strings.Join(parts, "_")
}

// writes are those by which a Pod gets the change here: one that cannot be resized is re-created, if that is
// allowed.
func (c combination) writes() []write {
	writes := c.change.writes(c.policy)
	if c.policy == appsv1alpha1.PodUpdateInPlaceIfPossible && slices.Equal(writes, []write{resize}) &&
		c.refuses(resize) {
		return []write{remove, create}
	}
	return writes
}

func (c combination) refuses(w write) bool {
	return c.neighbour.refuses != nil && c.neighbour.refuses(w, c.change, c.moment)
}

// refused is the write that is refused, and what the status has to say then; "" if everything goes on.
func (c combination) refused() (w write, says string) {
	writes := c.writes()
	if len(writes) == 0 {
		return c.change.inPlace, string(appsv1alpha1.PodUpdateInPlaceOnly)
	}
	for _, w := range writes {
		if c.refuses(w) {
			return w, c.neighbour.says
		}
	}
	return "", ""
}

// allowed is how many Pods may be out of service.
func (c combination) allowed() int {
	writes := c.writes()
	anew := c.change.oneWay && c.moment == half && c.end == back // the Pods that have it already
	switch {
	case c.surges(), c.serving(writes) && !anew:
		return 0
	case c.rule:
		return guarded
	default:
		return unguarded
	}
}

// surges reports whether a Pod gets the change by another that takes its place.
func (c combination) surges() bool { return slices.Contains(c.writes(), surge) }

// serving reports whether Pods serve while they get a change by these writes.
func (c combination) serving(writes []write) bool {
	return len(writes) == 0 || len(writes) == 1 && !c.change.restarts
}

// combinations are all that make sense.
func combinations() (all []combination) {
	for _, n := range neighbours {
		for _, m := range n.moments {
			for _, ch := range changes {
				only := slices.ContainsFunc(changes, func(c change) bool { return c.beside == n.name })
				if ch.beside != n.name && (ch.beside != "" || only) {
					continue
				}
				for _, policy := range policies {
					for _, withRule := range []bool{false, true} {
						c := combination{neighbour: n, moment: m, change: ch, policy: policy, rule: withRule}
						for _, end := range c.endings() {
							c.end = end
							all = append(all, c)
						}
					}
				}
			}
		}
	}
	return all
}

// endings are those that a combination can have; none if it makes no sense.
func (c combination) endings() []ending {
	w, says := c.refused()
	switch {
	case len(c.change.writes(c.policy)) == 0: // whatever else is there: a person has to put the template back
		if c.moment == first {
			return []ending{back}
		}
		return nil
	case c.moment == caught && (says == "" || c.allowed() == 0 && w != remove || c.serving(c.change.writes(c.policy))):
		// it goes on, or no Pod is out of service before it is refused
		return nil
	case says == "":
		return []ending{""}
	case c.neighbour.leaves != nil:
		return c.neighbour.leaves(w, c.change, c.moment)
	case c.change.oneWay && c.moment == half && c.policy == appsv1alpha1.PodUpdateInPlaceOnly:
		return []ending{goes}
	default:
		return []ending{goes, back}
	}
}

// choose takes n of the combinations: by chance, but so that soon each two things that can meet have met.
func choose(all []combination, n int, seed uint64) (chosen []combination) {
	left := slices.Clone(all)
	rand.New(rand.NewPCG(seed, 0)).Shuffle(len(left), func(i, j int) { left[i], left[j] = left[j], left[i] })
	met := map[[2]string]bool{}
	for len(left) > 0 && len(chosen) < n {
		news := func(c combination) (count int) {
			for _, pair := range c.pairs() {
				if !met[pair] {
					count++
				}
			}
			return count
		}
		best := 0
		most := -1
		for i, c := range left {
			if count := news(c); count > most {
				best, most = i, count
			}
		}
		for _, pair := range left[best].pairs() {
			met[pair] = true
		}
		chosen = append(chosen, left[best])
		left = slices.Delete(left, best, best+1)
	}
	slices.SortFunc(chosen, func(a, b combination) int { return cmp.Compare(a.String(), b.String()) })
	return chosen
}

// pairs are the things of a combination, two by two.
func (c combination) pairs() (all [][2]string) {
	things := []string{
		"by " + c.neighbour.name, "at " + string(c.moment), "of " + c.change.name, "as " + string(c.policy),
		fmt.Sprint("rule ", c.rule), "end " + string(c.end),
	}
	for i := range things {
		for j := range i {
			all = append(all, [2]string{things[j], things[i]})
		}
	}
	return all
}

func long() bool { return os.Getenv("NEIGHBOURS") == "all" }

// selection is what runs: some combinations, many in the long form, and all that RUN can name, where it names any.
func selection(t *testing.T) []combination {
	t.Helper()
	all := combinations()
	if strings.Contains(flag.Lookup("test.run").Value.String(), "/") {
		return all
	}
	seed, err := strconv.ParseUint(cmp.Or(os.Getenv("NEIGHBOURS_SEED"), "1"), 10, 64)
	require.NoError(t, err, "NEIGHBOURS_SEED is a number")
	if long() {
		return choose(all, longSelection, seed)
	}
	return choose(all, shortSelection, seed)
}

// TestGenerated has neighbours of the table come to updates of the table.
func TestGenerated(t *testing.T) {
	t.Parallel()
	w := shared.Get(t)
	var passed, failed atomic.Int32
	t.Cleanup(func() { fmt.Printf("TestGenerated: %d passed, %d failed\n", passed.Load(), failed.Load()) })
	for _, c := range selection(t) {
		t.Run(c.String(), func(t *testing.T) {
			t.Parallel()
			t.Cleanup(func() {
				if !t.Failed() {
					passed.Add(1)
					return
				}
				failed.Add(1)
				fmt.Printf("FAILED: make test-neighbours RUN='^TestGenerated$/^%s$'\n", c)
			})
			c.play(begin(t, w))
		})
	}
}

// split is nil if all Pods but those held back are updated, and all are in service.
func (r *run) split(held int, old string) error {
	updated := r.setNow().Status.UpdatedRevision
	behind, ahead := 0, 0
	for _, p := range r.podsNow() {
		switch at := p.Labels[appsv1.ControllerRevisionHashLabelKey]; {
		case !serves(p):
			return fmt.Errorf("%s is not in service", p.Name)
		case at == updated:
			ahead++
		default:
			behind++
		}
	}
	if updated == old || behind != held || ahead != podsOfARun-held {
		return fmt.Errorf("%d Pods are updated, %d are not", ahead, behind)
	}
	return nil
}

// play runs a combination: what is refused costs no service and is told, and what is not, or not any more, ends by
// itself.
func (c combination) play(r *run) {
	set := r.workload(podsOfARun, c.policy)
	if c.rule {
		r.create(workload.Service(r.namespace, name), workload.Rule(r.namespace, name, strconv.Itoa(guarded)))
	}
	refused, says := c.refused()
	if strings.Contains(says, "%s") {
		says = fmt.Sprintf(says, r.namespace)
	}
	var leave func()
	if c.moment == first {
		leave = c.neighbour.comes(r, c.change)
	}
	r.start(set)
	r.atLeast(podsOfARun - c.allowed())

	r.keepAll()
	old := r.setNow().Status.UpdatedRevision
	switch c.moment {
	case first:
		r.change(c.changes)
	case half:
		r.keepNone()
		const held = 2
		r.change(func(s *appsv1alpha1.CollaSet) { c.changes(s); partition(s, held) })
		r.await("a part of the Pods to be updated", func() error { return r.split(held, old) })
		r.keepAll()
		leave = c.neighbour.comes(r, c.change)
		r.change(func(s *appsv1alpha1.CollaSet) { partition(s, 0) })
	case caught:
		before := r.uids()
		letGo := func() { r.change(func(s *appsv1alpha1.CollaSet) { delay(s, 0) }) }
		if refused == remove && c.surges() { // no delay holds up lifecycle-controller, which deletes them
			letGo = r.holdAll()
		}
		r.change(func(s *appsv1alpha1.CollaSet) { c.changes(s); delay(s, 3600) })
		r.await("a Pod that is out of service", func() error {
			out := r.count(func(p *corev1.Pod) bool { return slices.Contains(before, p.UID) && !serves(p) })
			if out == 0 {
				return errors.New("there is none")
			}
			return nil
		})
		leave = c.neighbour.comes(r, c.change)
		letGo()
	}
	if says == "" {
		r.keepNone()
		r.awaitComplete(podsOfARun)
		return
	}

	r.awaitStalled(says)
	r.awaitServing(podsOfARun)
	r.awaitAllServing()
	r.calmly("while the refusal lasts", func() error {
		may := c.moment == half || c.moment == caught && c.surges()
		if begun := r.seenAt(r.setNow().Status.UpdatedRevision); begun && !may {
			return fmt.Errorf("a Pod is at the new revision, although that is refused")
		}
		if n := r.count(lives); n != podsOfARun && c.moment == first {
			return fmt.Errorf("%d Pods live, although none may go or come", n)
		}
		return nil
	})
	r.awaitServing(podsOfARun)
	r.awaitAllServing()

	if c.end == goes || c.moment == half {
		r.keepNone()
	}
	if c.end == goes {
		leave()
	} else {
		r.change(func(s *appsv1alpha1.CollaSet) { s.Spec.Template = *set.Spec.Template.DeepCopy() })
	}
	r.awaitComplete(podsOfARun)
	if c.end == back {
		require.Equal(r, old, r.setNow().Status.UpdatedRevision, "the template is the one before")
	}
}

func (c combination) changes(s *appsv1alpha1.CollaSet) { c.change.makes(&s.Spec.Template, s.Namespace) }

func partition(s *appsv1alpha1.CollaSet, held int32) {
	s.Spec.UpdateStrategy.RollingUpdate = &appsv1alpha1.RollingUpdateStrategy{
		ByPartition: &appsv1alpha1.ByPartition{Partition: ptr.To(intstr.FromInt32(held))},
	}
}

func delay(s *appsv1alpha1.CollaSet, seconds int32) {
	s.Spec.UpdateStrategy.OperationDelaySeconds = ptr.To(seconds)
}
