package observer

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
)

// rule is one PodTransitionRule, with counts of the Pods that it selects.
type rule struct {
	obj      *appsv1alpha1.PodTransitionRule
	selector labels.Selector
	// created and changed are when the rule and its present spec were first seen.
	created, changed moment

	// shares are the selected Pods by owner, loose those without an owner that have not run to their end.
	shares map[types.UID]*share
	loose  int
	// servedLive are those of them that were Ready once and have not run to their end, out those that an operation has
	// away.
	servedLive, out int

	// losses are when Pods were deleted without an operation, if Options.Notice has them excused.
	losses []time.Time

	// missing are the Pods that owners want and once had in service.
	desired, missing int
	allowed          int
	// formerly is a larger allowance that still holds until formerlyUntil.
	formerly      int
	formerlyUntil time.Time
	// sample is the object's size when it was last at rest.
	sample        sample
	maxOut        int
	maxOutAllowed int
	maxOutAt      time.Time
}

// moment is when something was seen.
type moment struct {
	time    time.Time
	version uint64
}

func (e Event) moment() moment { return moment{e.Time, e.ResourceVersion} }

// settling reports whether a Pod that was there before need not be judged yet by what has come since.
func (s *space) settling(since moment, p *pod, when time.Time) bool {
	return when.Sub(since.time) < s.options.Settle && p.born <= since.version
}

// share are the selected Pods of one owner.
type share struct {
	// live are those that have not run to their end, servedLive those of them that were Ready once; served counts Pods
	// that have run to their end too.
	live, servedLive, served int
	// peak is the number of Pods that once served at a time, two that take each other's place as one, at most what was
	// wanted since.
	peak int
}

func (s *space) applyRule(obj *appsv1alpha1.PodTransitionRule, e Event) {
	if e.Deleted {
		delete(s.rules, obj.Name)
		return
	}
	r := s.rules[obj.Name]
	if r == nil || r.obj.UID != obj.UID {
		r = &rule{created: e.moment(), allowed: -1}
		s.rules[obj.Name] = r
	}
	same := r.obj != nil && r.obj.Generation == obj.Generation && obj.Generation != 0
	if r.obj != nil {
		s.checkWriters(r.obj, obj, e)
	}
	if r.obj = obj; same {
		return
	}
	r.changed = e.moment()
	selector, err := metav1.LabelSelectorAsSelector(obj.Spec.Selector)
	if err != nil {
		selector = labels.Nothing()
	}
	r.selector = selector
	before := r.shares
	s.recount(r)
	for uid, part := range r.shares {
		if was := before[uid]; was != nil {
			part.peak = was.peak
		}
	}
}

// recount counts the Pods that a rule selects.
func (s *space) recount(r *rule) {
	r.shares, r.loose, r.servedLive, r.out = map[types.UID]*share{}, 0, 0, 0
	for _, p := range s.pods {
		r.count(p, 1)
	}
}

// countPod adds a Pod to what is counted, or with -1 takes it away.
func (s *space) countPod(p *pod, by int) {
	if p.owner != "" && !p.surplus && !ended(p.obj) {
		o := s.ownerOf(p.owner)
		if o.all += by; isLive(p.obj) {
			o.live += by
		}
	}
	for _, r := range s.rules {
		r.count(p, by)
	}
}

func (r *rule) count(p *pod, by int) {
	if p.surplus || !r.selects(p.obj) {
		return // without a surplus Pod as many serve
	}
	if p.out {
		r.out += by
	}
	live := !ended(p.obj)
	if p.served && live {
		r.servedLive += by
	}
	if p.owner == "" {
		if live {
			r.loose += by
		}
		return
	}
	part := r.shares[p.owner]
	if part == nil {
		part = &share{}
		r.shares[p.owner] = part
	}
	if live {
		part.live += by
	}
	if p.served {
		part.served += by
	}
	if p.served && live {
		part.servedLive += by
	}
}

// part takes down that a Pod is its owner's no more, by no fault of those that are left.
func (r *rule) part(p *pod) {
	if of := r.shares[p.owner]; of != nil && r.selects(p.obj) {
		of.peak = max(0, of.peak-1)
	}
}

func (r *rule) selects(obj *corev1.Pod) bool { return r.selector.Matches(labels.Set(obj.Labels)) }

// ended reports whether a Pod has run to its end and is not being deleted: no rule counts it.
func ended(obj *corev1.Pod) bool { return isTerminal(obj) && obj.DeletionTimestamp == nil }

// lose takes down that a Pod in service is deleted, if no operation does it.
func (s *space) lose(before *pod, e Event) {
	if s.options.Notice == 0 || before.out || before.obj.DeletionTimestamp != nil || hasKey(before.obj, operatePrefix) {
		return
	}
	for _, r := range s.rules {
		if r.selects(before.obj) {
			r.losses = append(r.losses, e.Time)
		}
	}
}

// excusedLosses is how many Pods were lost so recently that no component need know.
func (r *rule) excusedLosses(since time.Time) int {
	r.losses = slices.DeleteFunc(r.losses, func(t time.Time) bool { return t.Before(since) })
	return len(r.losses)
}

func (s *space) checkBudget(p *pod, e Event) {
	for name, r := range s.rules {
		if !r.selects(p.obj) || excused(p.obj, r.obj) {
			continue
		}
		s.allow(r, e.Time)
		out, missing := r.outOf()
		allowed := r.allowed
		if e.Time.Before(r.formerlyUntil) {
			allowed = max(allowed, r.formerly)
		}
		if out+missing > r.maxOut {
			r.maxOut, r.maxOutAllowed, r.maxOutAt = out+missing, allowed, e.Time
		}
		if r.allowed < 0 || s.settling(r.created, p, e.Time) {
			continue
		}
		s.checks[Budget]++
		if out+missing-r.excusedLosses(e.Time.Add(-s.options.Notice)) > allowed {
			s.report(Budget, e,
				fmt.Sprintf("went out of service as number %d of rule %s, which allows %d of %d (%d of them missing); out: %s",
					out+missing, name, allowed, r.desired, missing, strings.Join(s.outNames(r), ", ")))
		}
	}
}

// checkGranted judges that every rule has granted what takes a Pod out of service. Rules and selections that are new
// are the business of checkBudget alone.
func (s *space) checkGranted(before, now *pod, id string, e Event) {
	request := now.obj.Labels[operatingPrefix+id]
	for _, name := range sortedKeys(s.rules) {
		r := s.rules[name]
		if s.settling(r.changed, now, e.Time) || r.obj.DeletionTimestamp != nil || !r.selects(now.obj) ||
			!r.selects(before.obj) || excused(now.obj, r.obj) {
			continue
		}
		granted := slices.ContainsFunc(r.obj.Status.Grants, func(g appsv1alpha1.PodGrant) bool {
			return g.PodUID == now.obj.UID && g.Stage == appsv1alpha1.StagePreCheck &&
				slices.ContainsFunc(g.Operations, func(o appsv1alpha1.GrantedOperation) bool {
					return o.ID == id &&
						o.Request == request
				})
		})
		s.check(Budget, e, granted, "was let pass PreCheck with operation %s without a grant of rule %s for this request", id,
			name)
	}
}

// allow brings what is wanted and allowed up to date. Pods of an owner that wants none, as after a scaling to 0,
// count themselves until they are gone, or no percentage of them could ever go; and none of them is missing
// afterwards. Nor has an owner lost what another of the same name had before it.
func (s *space) allow(r *rule, when time.Time) {
	r.desired, r.missing = r.loose, 0
	for uid, part := range r.shares {
		if *part == (share{peak: part.peak}) {
			delete(r.shares, uid)
			continue
		}
		o := s.owners[uid]
		if o == nil || !o.known || o.wanted == 0 || part.live != o.all {
			r.desired += part.live
			part.peak = 0
			continue
		}
		r.desired += o.wanted
		part.peak = min(max(part.peak, part.servedLive-s.doubled(uid)), o.wanted)
		r.missing += max(0, part.peak-part.served)
	}
	allowed := allowance(r.obj, r.desired, max(r.servedLive-r.desired, 0))
	if r.allowed >= 0 && allowed < r.allowed {
		r.formerly, r.formerlyUntil = max(r.allowed, r.stillFormerly(when)), when.Add(s.options.Settle)
	}
	r.allowed = allowed
}

// doubled is how many Pods of an owner count beside the one whose place they take: both have been Ready, and neither
// has run to its end or is surplus.
func (s *space) doubled(owner types.UID) (n int) {
	counts := func(p *pod) bool { return p != nil && p.owner == owner && p.served && !p.surplus && !ended(p.obj) }
	for origin, successors := range s.newOf {
		if !counts(s.pods[origin]) {
			continue
		}
		for _, p := range successors {
			if counts(p) {
				n++
			}
		}
	}
	return n
}

func (r *rule) stillFormerly(when time.Time) int {
	if when.Before(r.formerlyUntil) {
		return r.formerly
	}
	return 0
}

// outOf counts the rule's Pods that are out of service, and those that are gone and still wanted.
func (r *rule) outOf() (out, missing int) { return r.out, r.missing }

func (s *space) outNames(r *rule) []string {
	var names []string
	for name, p := range s.pods {
		if p.out && r.selects(p.obj) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// excused reports whether the Pod's owner has freed it from the rule.
func excused(obj *corev1.Pod, r *appsv1alpha1.PodTransitionRule) bool {
	var skip struct {
		SkipRules []string `json:"skipRules"`
	}
	if json.Unmarshal([]byte(obj.Annotations[skipRules]), &skip) != nil {
		return false
	}
	return slices.ContainsFunc(r.Spec.Rules,
		func(t appsv1alpha1.TransitionRule) bool { return slices.Contains(skip.SkipRules, t.Name) })
}

// allowance is the least that the rule's checks allow of the wanted Pods; -1 if
// none bounds their number. What a minAvailable demands may be served by Pods
// beyond the wanted ones: surplus is how many there are. Budgets of domains
// and groups bound no number: see checkDomains.
func allowance(r *appsv1alpha1.PodTransitionRule, desired, surplus int) int {
	allowed := -1
	for i := range r.Spec.Rules {
		t := &r.Spec.Rules[i]
		if !bears(t) {
			continue
		}
		p := t.AvailablePolicy
		if v := p.MaxUnavailableValue; v != nil {
			allowed = tighter(allowed, scaled(v, desired, true))
		}
		if f := p.MaxUnavailablePolicy; f != nil && f.ExpFunc != nil {
			allowed = tighter(allowed, computed(f.ExpFunc, desired, math.Ceil))
		}
		if v := p.MinAvailableValue; v != nil {
			allowed = tighter(allowed, desired+surplus-scaled(v, desired, false))
		}
		if f := p.MinAvailablePolicy; f != nil && f.ExpFunc != nil {
			allowed = tighter(allowed, desired+surplus-computed(f.ExpFunc, desired, math.Floor))
		}
	}
	return allowed
}

// tighter is the smaller of two bounds, of which -1 is none.
func tighter(bound, other int) int {
	other = max(other, 0)
	if bound < 0 || other < bound {
		return other
	}
	return bound
}

// computed is coeff * total^pow, rounded, from 0 to total. What cannot be read
// counts as 0, as a value does that is no percentage.
func computed(f *appsv1alpha1.ExpFunc, total int, round func(float64) float64) int {
	coeff, errCoeff := strconv.ParseFloat(cmp.Or(f.Coeff, "1"), 64)
	pow, errPow := strconv.ParseFloat(cmp.Or(f.Pow, "1"), 64)
	if errCoeff != nil || errPow != nil || total <= 0 || coeff <= 0 {
		return 0
	}
	exact := min(coeff*math.Pow(float64(total), pow), float64(total))
	// a ten-millionth of a Pod is the error of calculating in binary
	return int(round(math.Round(exact*1e7) / 1e7))
}

func scaled(v *intstr.IntOrString, total int, up bool) int {
	n, err := intstr.GetScaledValueFromIntOrPercent(v, total, up)
	if err != nil {
		return 0
	}
	return n
}
