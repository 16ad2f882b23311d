package observer

import (
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
)

// AtRest judges what has to hold in a namespace when nothing is to be done any more, and reports whether it holds and
// whether EndpointSlices follow the Pods. Unless they do, nothing is taken down before the last look.
func (c *Checker) AtRest(namespace string, now time.Time, last bool) bool {
	s := c.space(namespace)
	r := resting{newRecord(s.options), now}
	s.judgeAll(r)
	if !last && (len(r.violations) > 0 || !s.slicesFollow()) {
		return false
	}
	s.add(r.record)
	return len(r.violations) == 0
}

func (s *space) judgeAll(r resting) {
	owned := map[*set][]*pod{}
	for _, name := range sortedKeys(s.pods) {
		p := s.pods[name]
		if isLive(p.obj) && p.obj.Labels[controlLabel] == "true" {
			s.judgeKeys(r, p.obj)
			s.judgeStage(r, p)
		}
		if set := s.setsByUID[p.owner]; set != nil {
			owned[set] = append(owned[set], p)
		}
	}
	for _, name := range sortedKeys(s.sets) {
		set := s.sets[name]
		if set.obj.DeletionTimestamp != nil {
			continue
		}
		s.judgeSet(r, set, owned[set])
		judgeGrowth(r, set.obj, len(owned[set]), &set.sample)
	}
	for _, name := range sortedKeys(s.rules) {
		rule := s.rules[name]
		s.judgeRule(r, rule)
		unnamed := rule.obj.DeepCopy()
		unnamed.Status.Targets = nil
		judgeGrowth(r, unnamed, rule.servedLive, &rule.sample)
	}
	s.judgeOrphans(r)
	s.judgeChurn(r)
}

// judgeRule judges that a rule's status is of its spec and its Pods, and that no grant is left of what is over.
func (s *space) judgeRule(r resting, rule *rule) {
	obj := rule.obj
	if obj.DeletionTimestamp != nil {
		return
	}
	r.judge(Stuck, obj, obj.Status.ObservedGeneration == obj.Generation, "is at generation %d, and status is of %d",
		obj.Generation, obj.Status.ObservedGeneration)
	granted := map[string]bool{}
	for i := range obj.Status.Grants {
		g := &obj.Status.Grants[i]
		p := s.pods[g.PodName]
		granted[g.PodName] = true
		r.judge(Orphan, obj, p != nil && p.obj.UID == g.PodUID &&
			(p.out || hasKey(p.obj, operatingPrefix) || hasKey(p.obj, operatedPrefix)),
			"still has a grant for Pod %s, which needs none", g.PodName)
	}
	available := 0
	for name, p := range s.pods {
		_, serves := p.obj.Labels[serviceAvailable]
		if rule.selects(p.obj) && isLive(p.obj) && isReady(p.obj) && (serves || p.obj.Labels[controlLabel] != "true") &&
			!p.out && !granted[name] {
			available++
		}
	}
	r.judge(Revision, obj, int(obj.Status.Available) == available, "says that %d Pods are available, and counted are %d",
		obj.Status.Available, available)
}

// judgeStage judges that a Pod which waits in a stage can be told why.
func (s *space) judgeStage(r resting, p *pod) {
	if asks(p.obj) && !p.out {
		r.judge(Stuck, p.obj, s.explained(p.obj), "waits in a stage, which no rule explains: %s", protocolState(p.obj))
	}
}

func (s *space) judgeSet(r resting, set *set, owned []*pod) {
	obj := set.obj
	r.judge(Stuck, obj, obj.Status.ObservedGeneration == obj.Generation, "is at generation %d, and status is of %d",
		obj.Generation, obj.Status.ObservedGeneration)
	s.judgeReasons(r, obj)
	judgeCounts(r, obj, owned)
	s.judgeRevisions(r, set, owned)
	s.judgeEntries(r, set, owned)
}

// judgeReasons judges that a CollaSet is ready, or says why it is not.
func (s *space) judgeReasons(r resting, obj *appsv1alpha1.CollaSet) {
	conditions := obj.Status.Conditions
	held := obj.Spec.Paused || len(obj.Status.Blockers) > 0 || obj.Status.Halted != nil ||
		meta.IsStatusConditionTrue(conditions, appsv1alpha1.CollaSetStalled) ||
		meta.IsStatusConditionFalse(conditions, appsv1alpha1.CollaSetScale) ||
		meta.IsStatusConditionFalse(conditions, appsv1alpha1.CollaSetUpdate)
	ready := meta.IsStatusConditionTrue(conditions, appsv1alpha1.CollaSetReady)
	why := ""
	if c := meta.FindStatusCondition(conditions, appsv1alpha1.CollaSetReady); c != nil {
		why = c.Reason + ": " + c.Message
	}
	r.judge(Stuck, obj, ready || held || s.unready(obj), "is not Ready (%s) and names nothing that holds it back", why)
}

// unready reports whether some Pod of the CollaSet is not Ready of its own accord, which is reason enough.
func (s *space) unready(obj *appsv1alpha1.CollaSet) bool {
	for _, p := range s.pods {
		if p.owner == obj.UID && isLive(p.obj) && !p.out && !isReady(p.obj) {
			return true
		}
	}
	return false
}

// judgeCounts compares status with a recount.
func judgeCounts(r resting, obj *appsv1alpha1.CollaSet, owned []*pod) {
	sequential := obj.Spec.NamingStrategy != nil &&
		obj.Spec.NamingStrategy.PodNamingSuffixPolicy == appsv1alpha1.PodNamingSuffixPersistentSequence
	var all, ready, updated, updatedReady, scheduled, terminating int32
	selector, err := metav1.LabelSelectorAsSelector(obj.Spec.Selector)
	if err != nil {
		selector = labels.Everything()
	}
	for _, p := range owned {
		if p.obj.DeletionTimestamp != nil {
			terminating++
		}
		if !sequential && !isLive(p.obj) || !selector.Matches(labels.Set(p.obj.Labels)) {
			continue
		}
		add := func(holds bool, n *int32) {
			if holds {
				*n++
			}
		}
		isUpdated := p.obj.Labels[revisionLabel] == obj.Status.UpdatedRevision
		add(true, &all)
		add(isReady(p.obj), &ready)
		add(isUpdated, &updated)
		add(isUpdated && isReady(p.obj), &updatedReady)
		add(p.obj.Spec.NodeName != "", &scheduled)
	}
	st := obj.Status
	said := []int32{st.Replicas, st.ReadyReplicas, st.UpdatedReplicas, st.UpdatedReadyReplicas, st.ScheduledReplicas,
		st.TerminatingReplicas}
	counted := []int32{all, ready, updated, updatedReady, scheduled, terminating}
	r.judge(Revision, obj, slices.Equal(said, counted),
		"says of replicas, ready, updated, updated and ready, scheduled, terminating: %v, and counted are %v", said, counted)
}

// judgeEntries compares the ResourceContext with the Pods.
func (s *space) judgeEntries(r resting, set *set, owned []*pod) {
	context := s.contexts[set.pool()]
	entries := map[string]map[string]string{}
	if context != nil && context.obj != nil {
		for i := range context.obj.Spec.Contexts {
			entry := &context.obj.Spec.Contexts[i]
			if entry.Data[appsv1alpha1.ContextOwner] == set.obj.Name {
				entries[itoa(entry.ID)] = entry.Data
			}
		}
	}
	holders := map[string]bool{}
	for _, p := range owned {
		id := p.obj.Labels[instanceIDLabel]
		holders[id] = true
		if !isLive(p.obj) {
			continue
		}
		data, ok := entries[id]
		r.judge(InstanceID, p.obj, ok, "has instance ID %q, of which ResourceContext %s has no entry of CollaSet %s", id,
			set.pool(), set.obj.Name)
		if !ok {
			continue
		}
		r.judge(Revision, p.obj, data[appsv1alpha1.ContextRevision] == p.obj.Labels[revisionLabel],
			"is of revision %s, and its entry of %s", p.obj.Labels[revisionLabel], data[appsv1alpha1.ContextRevision])
		for _, mark := range []string{appsv1alpha1.ContextPodJustCreate, appsv1alpha1.ContextPodRecreateUpdate,
			appsv1alpha1.ContextScaleIn} {
			_, marked := data[mark]
			r.judge(Orphan, context.obj, !marked || asks(p.obj) || !isReady(p.obj),
				"has the mark %s for instance ID %s, whose Pod is in service", mark, id)
		}
	}
	if len(entries) > 0 && meta.IsStatusConditionTrue(set.obj.Status.Conditions, appsv1alpha1.CollaSetReady) {
		for _, id := range sortedKeys(entries) {
			r.judge(Orphan, context.obj, holders[id],
				"has an entry of instance ID %s for CollaSet %s, which has no such Pod and is Ready", id, set.obj.Name)
		}
	}
}

// judgeOrphans judges that nothing is left of what is gone. What an owner reference names is the garbage collector's.
func (s *space) judgeOrphans(r resting) {
	for _, name := range sortedKeys(s.contexts) {
		context := s.contexts[name]
		if context.obj == nil {
			continue
		}
		r.judge(Orphan, context.obj, len(context.obj.Spec.Contexts) > 0, "has no entry and should be gone")
		for id, owner := range context.owners {
			set := s.sets[owner]
			r.judge(Orphan, context.obj, set != nil && set.pool() == name || !s.used(name),
				"has an entry of instance ID %s for CollaSet %q, which does not use it", id, owner)
		}
	}
	s.judgeClaims(r)
	s.judgeHistory(r)
}

// used reports whether a CollaSet looks after a ResourceContext: without one, entries stay.
func (s *space) used(pool string) bool {
	for _, set := range s.sets {
		if set.pool() == pool {
			return true
		}
	}
	return false
}

func (s *space) judgeClaims(r resting) {
	type place struct {
		set          *set
		id, template string
	}
	mounted := s.mounted()
	seen := map[place]string{}
	for _, name := range sortedKeys(s.claims) {
		claim := s.claims[name]
		set := s.claimOwner(claim)
		if set == nil || claim.DeletionTimestamp != nil {
			continue
		}
		id := claim.Labels[instanceIDLabel]
		at := place{set, id, claim.Labels[appsv1alpha1.ClaimTemplateNameLabel]}
		other, twice := seen[at]
		r.judge(Orphan, claim, !twice || mounted[name] && mounted[other],
			"is the second claim of instance ID %s for template %s, beside %s", id, at.template, other)
		seen[at] = name
		if retention(set.obj).scaled && !mounted[name] {
			pool := s.contexts[set.pool()]
			r.judge(Orphan, claim, pool != nil && pool.owners[id] == set.obj.Name,
				"is of instance ID %s, which CollaSet %s has given up (whenScaled: Delete)", id, set.obj.Name)
		}
	}
}

// mounted are the claims that Pods mount.
func (s *space) mounted() map[string]bool {
	names := map[string]bool{}
	for _, p := range s.pods {
		for _, name := range mounts(p.obj) {
			names[name] = true
		}
	}
	return names
}

func mounts(obj *corev1.Pod) []string {
	var names []string
	for i := range obj.Spec.Volumes {
		if claim := obj.Spec.Volumes[i].PersistentVolumeClaim; claim != nil {
			names = append(names, claim.ClaimName)
		}
	}
	return names
}

// judgeHistory judges that no more revisions are kept than are in use or within the limit.
func (s *space) judgeHistory(r resting) {
	kept := map[*set][]*appsv1.ControllerRevision{}
	for _, name := range sortedKeys(s.revisions) {
		if ref := metav1.GetControllerOfNoCopy(s.revisions[name]); ref != nil {
			if set := s.setsByUID[ref.UID]; set != nil {
				kept[set] = append(kept[set], s.revisions[name])
			}
		}
	}
	for _, name := range sortedKeys(s.sets) {
		set := s.sets[name]
		if set.obj.DeletionTimestamp != nil {
			continue
		}
		limit := 20
		if set.obj.Spec.HistoryLimit != nil {
			limit = int(*set.obj.Spec.HistoryLimit)
		}
		unused := len(kept[set])
		for _, revision := range kept[set] {
			if s.inUse(set, revision.Name) {
				unused--
			}
		}
		// The controller keeps limit+1 revisions, used or not, before it looks closer.
		r.judge(Orphan, set.obj, unused <= limit || len(kept[set]) <= limit+1,
			"keeps %d revisions that nobody uses, and historyLimit is %d", unused, limit)
	}
}

func (s *space) inUse(set *set, revision string) bool {
	if revision == set.obj.Status.UpdatedRevision || revision == set.obj.Status.CurrentRevision {
		return true
	}
	for _, p := range s.pods {
		if p.owner == set.obj.UID && p.obj.Labels[revisionLabel] == revision {
			return true
		}
	}
	return false
}

// judgeChurn compares what was created and deleted with what was expected.
func (s *space) judgeChurn(r resting) {
	for _, name := range sortedKeys(s.churn) {
		c := s.churn[name]
		if c.expected == nil {
			continue
		}
		var about metav1.Object = &appsv1alpha1.CollaSet{ObjectMeta: metav1.ObjectMeta{Namespace: s.name, Name: name}}
		r.judge(Churn, about, c.Churns == *c.expected, "had %d Pods created and %d deleted, where %d and %d are needed",
			c.Created, c.Deleted, c.expected.Created, c.expected.Deleted)
	}
}

// Hush has the Checker expect that from now on nothing happens in a namespace, and Unhush ends that.
func (c *Checker) Hush(namespace string) {
	s := c.space(namespace)
	s.quiet = true
	s.checks[Quiet]++
}

// Unhush ends what Hush began.
func (c *Checker) Unhush(namespace string) { c.space(namespace).quiet = false }

// checkQuiet judges that nothing happens where nothing may.
func (s *space) checkQuiet(e Event) {
	if s.quiet {
		s.check(Quiet, e, false, "was written at rest, last by %s", lastWriter(e.Object))
	}
}

// lastWriter is who wrote an object last, as far as managedFields tells: to the second.
func lastWriter(obj metav1.Object) string {
	var last metav1.ManagedFieldsEntry
	for _, entry := range obj.GetManagedFields() {
		if entry.Time != nil && (last.Time == nil || !entry.Time.Before(last.Time)) {
			last = entry
		}
	}
	if last.Manager == "" {
		return "somebody"
	}
	return last.Manager
}
