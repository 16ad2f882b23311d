package collaset_test

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
	"kusionstack.io/kuperator/internal/testkit/testcluster"
)

// scaleStories show the effect of each field of scaleStrategy and its labels, under the lifecycle.
var scaleStories = map[string]func(env){
	"the Pod that costs least to delete goes": func(e env) {
		set := e.create("web", 4, nil)
		e.reachesReady(set)
		e.edit(&e.pods()[1], func(pod *corev1.Pod) {
			metav1.SetMetaDataAnnotation(&pod.ObjectMeta, corev1.PodDeletionCost, "-10")
		})
		e.seen() // CollaSets come by another watch
		e.change(set, replicas(3))
		e.reachesReady(set)
		assert.Equal(e, []string{"0", "2", "3"}, ids(e.pods()))
	},
	"a Pod that failed is replaced, and the event says why":  failed,
	"names in sequence: one that failed comes back, too":     failedInSequence,
	"a Pod that does not go holds its name, and nobody else": stuck,
	"Pods leave as they are":                                 leave,
	"a Pod whose labels no longer match leaves":              mismatch,
	"a Pod joins as soon as it may":                          join,
	"a set's Pods move to another set":                       move,
	"sets on one pool have no ID in common":                  pool,
	"entries of nobody are dropped":                          stalePool,
	"the delay of a scale-in is waited for":                  scaleInDelay,
	"a quota is not stormed":                                 quota,
	"a paused set removes nothing": func(e env) {
		set := e.create("web", 3, nil)
		e.reachesReady(set)
		before := uids(e.pods())
		e.change(set, func(s *appsv1alpha1.CollaSetSpec) {
			s.Paused = true
			replicas(1)(s)
			s.ScaleStrategy.PodToExclude = []string{e.pods()[0].Name}
		})
		e.heldUp(set, "Paused")
		e.heldUp(set, "ExcludeNotAllowed")
		e.quiet()
		assert.Equal(e, before, uids(e.pods()))
		e.change(set, func(s *appsv1alpha1.CollaSetSpec) { s.Paused = false })
		e.reaches(set, appsv1alpha1.CollaSetReady)
		assert.Len(e, e.pods(), 2, "one that stayed and one that left")
	},
	"a name that is no hostname is refused clearly": func(e env) {
		set := e.create("a.b", 1, nil)
		e.reachesReady(set)
		sequence := `{"spec":{"namingStrategy":{"podNamingSuffixPolicy":"PersistentSequence"}}}`
		err := e.Client.Patch(e.Context(), set.DeepCopy(), client.RawPatch(types.MergePatchType, []byte(sequence)))
		require.True(e, apierrors.IsInvalid(err), "%v", err)
		require.ErrorContains(e, err, "spec.namingStrategy.podNamingSuffixPolicy")
		require.ErrorContains(e, err, "use Random, or another name")
		e.reachesReady(set)
	},
	"deleted in the foreground, nothing is left": func(e env) {
		set := e.create("web", 3, nil)
		e.reachesReady(set)
		require.NoError(e, e.Client.Delete(e.Context(), set, client.PropagationPolicy(metav1.DeletePropagationForeground)))
		e.gone(set)
	},
}

// edit patches a Pod.
func (e env) edit(pod *corev1.Pod, change func(*corev1.Pod)) {
	e.Helper()
	before := pod.DeepCopy()
	change(pod)
	require.NoError(e, e.Patch(e.Context(), pod, client.MergeFrom(before)))
}

// heldUp waits until status has a blocker of this reason, and returns what it says.
func (e env) heldUp(set *appsv1alpha1.CollaSet, reason string) (message string) {
	e.Helper()
	e.eventually("it is blocked by "+reason, func() string {
		require.NoError(e, e.Get(e.Context(), client.ObjectKeyFromObject(set), set))
		for _, b := range set.Status.Blockers {
			if b.Reason == reason {
				message = b.Message
				return ""
			}
		}
		return fmt.Sprint(set.Status.Blockers)
	})
	return message
}

// noted waits for an event of this reason about the Pod and returns its note.
func (e env) noted(reason, pod string) (note string) {
	e.Helper()
	e.eventually("an event says "+reason, func() string {
		list := &eventsv1.EventList{}
		require.NoError(e, e.List(e.Context(), list, client.InNamespace(e.namespace)))
		for _, event := range list.Items {
			if event.Reason == reason && strings.Contains(event.Note, pod) {
				note = event.Note
				return ""
			}
		}
		return "none"
	})
	return note
}

// spread has two older Pods in one rack and two younger in the other: by age alone, both of the second would go.
func spread(e env) {
	nodes := &corev1.NodeList{}
	require.NoError(e, e.List(e.Context(), nodes))
	require.Len(e, nodes.Items, 4)
	cordon := func(rack string) {
		for i := range nodes.Items {
			node := &nodes.Items[i]
			before := node.DeepCopy()
			mine := []string{"a", "a", "b", "b"}[i]
			metav1.SetMetaDataLabel(&node.ObjectMeta, "rack", mine)
			node.Spec.Unschedulable = mine == rack
			require.NoError(e, e.Patch(e.Context(), node, client.MergeFrom(before)))
		}
	}
	cordon("b")
	defer cordon("")
	e.cordoned(nodes.Items[3].Name)
	set := e.create("web", 2, func(s *appsv1alpha1.CollaSet) {
		s.Spec.Template.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{
			MaxSkew: 1, TopologyKey: "rack", WhenUnsatisfiable: corev1.ScheduleAnyway, LabelSelector: s.Spec.Selector,
		}}
	})
	e.reachesReady(set)
	cordon("a")
	e.cordoned(nodes.Items[0].Name)
	e.change(set, replicas(4))
	e.reachesReady(set)
	e.change(set, replicas(2))
	e.reachesReady(set)
	racks := map[string]int{}
	for _, p := range e.pods() {
		for _, node := range nodes.Items {
			if node.Name == p.Spec.NodeName {
				racks[node.Labels["rack"]]++
			}
		}
	}
	assert.Equal(e, map[string]int{"a": 1, "b": 1}, racks)
}

// cordoned waits until the scheduler gives the node no Pod any more.
func (e env) cordoned(node string) {
	e.Helper()
	namespace := testcluster.Namespace(e.T, e.cluster, nil)
	for i := range 100 {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: fmt.Sprint("probe-", i)}}
		pod.Spec.Containers = []corev1.Container{{Name: "app", Image: "nginx:1"}}
		pod.Spec.NodeSelector = map[string]string{corev1.LabelHostname: node}
		require.NoError(e, e.Create(e.Context(), pod))
		refused := false
		e.eventually("the scheduler looks at "+pod.Name, func() string {
			require.NoError(e, e.Get(e.Context(), client.ObjectKeyFromObject(pod), pod))
			refused = slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
				return c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse
			})
			if !refused && pod.Spec.NodeName == "" {
				return "it has not"
			}
			return ""
		})
		require.NoError(e, e.Client.Delete(e.Context(), pod, client.GracePeriodSeconds(0)))
		if refused {
			return
		}
	}
	e.Fatalf("%s gets Pods although it is cordoned", node)
}

// fail lets a Pod fail as an eviction by the kubelet does.
func (e env) fail(pod *corev1.Pod) {
	e.Helper()
	before := pod.DeepCopy()
	pod.Status.Phase, pod.Status.Reason, pod.Status.Message = corev1.PodFailed, "Evicted",
		"The node was low on resource: memory."
	for i := range pod.Status.Conditions {
		if pod.Status.Conditions[i].Type == corev1.PodReady {
			pod.Status.Conditions[i].Status = corev1.ConditionFalse
		}
	}
	require.NoError(e, e.Status().Patch(e.Context(), pod, client.MergeFrom(before)))
}

func failed(e env) {
	set := e.create("web", 3, nil)
	e.reachesReady(set)
	victim := e.pods()[1]
	e.fail(&victim)
	e.eventually("another Pod has its ID", func() string {
		if pods := e.pods(); len(pods) == 3 && !slices.Contains(uids(pods), victim.UID) {
			return ""
		}
		return "not yet"
	})
	e.settles(set)
	assert.Equal(e, []string{"0", "1", "2"}, ids(e.pods()))
	note := e.noted("PodEnded", victim.Name)
	assert.Contains(e, note, "Evicted: The node was low on resource: memory.")

	// Again and again: the next attempt waits, and says what for.
	for range 6 { // each time for longer
		pod := e.pods()[1]
		e.fail(&pod)
		if message := e.sawBackOff(set, pod.UID); message != "" {
			assert.Contains(e, message, "Evicted")
			return
		}
	}
	e.Fatal("no attempt waits")
}

// sawBackOff waits until the Pod is replaced, or its successor is said to wait.
func (e env) sawBackOff(set *appsv1alpha1.CollaSet, uid types.UID) (message string) {
	e.Helper()
	e.eventually("it is replaced or waits", func() string {
		require.NoError(e, e.Get(e.Context(), client.ObjectKeyFromObject(set), set))
		for _, b := range set.Status.Blockers {
			if b.Reason == "BackOff" {
				message = b.Message
				return ""
			}
		}
		if pods := e.pods(); len(pods) == 3 && !slices.Contains(uids(pods), uid) {
			return ""
		}
		return "neither"
	})
	return message
}

func failedInSequence(e env) {
	set := e.create("db", 2, inSequence)
	e.reachesReady(set)
	victim := e.pods()[0]
	e.fail(&victim)
	e.eventually("db-0 is another Pod", func() string {
		if pods := e.pods(); len(pods) == 2 && pods[0].UID != victim.UID {
			return ""
		}
		return "not yet"
	})
	e.settles(set)
	assert.Equal(e, "db-0", e.pods()[0].Name)
}

func inSequence(s *appsv1alpha1.CollaSet) {
	s.Spec.NamingStrategy = &appsv1alpha1.NamingStrategy{PodNamingSuffixPolicy: appsv1alpha1.PodNamingSuffixPersistentSequence}
}

// stuck has Pods that stay while they are being deleted, as on a dead node.
func stuck(e env) {
	random, named := e.create("web", 1, nil), e.create("db", 1, inSequence)
	e.reaches(random, appsv1alpha1.CollaSetReady)
	e.reaches(named, appsv1alpha1.CollaSetReady)
	held := e.pods()
	for i := range held {
		e.edit(&held[i], func(pod *corev1.Pod) { pod.Finalizers = append(pod.Finalizers, "test/keep") })
		require.NoError(e, e.Client.Delete(e.Context(), &held[i]))
	}
	e.heldUp(named, "NameInUse")
	e.reaches(random, appsv1alpha1.CollaSetReady)
	e.eventually("the one with a random name has its successor", func() string {
		if pods := e.pods(); len(pods) == 1 && strings.HasPrefix(pods[0].Name, "web-") {
			return ""
		}
		return "not yet"
	})
	for i := range held {
		require.NoError(e, e.Get(e.Context(), client.ObjectKeyFromObject(&held[i]), &held[i]))
		e.edit(&held[i], func(pod *corev1.Pod) { pod.Finalizers = nil })
	}
	e.eventually("and so has the other when its name is free", func() string {
		if len(e.pods()) == 2 {
			return ""
		}
		return "not yet"
	})
}

// alone waits until the Pod has no owner and is marked as orphaned, and checks that it is the same Pod, in service.
func (e env) alone(pod corev1.Pod) {
	e.Helper()
	got := &corev1.Pod{}
	e.eventually(pod.Name+" is nobody's", func() string {
		require.NoError(e, e.Get(e.Context(), client.ObjectKeyFromObject(&pod), got))
		if len(got.OwnerReferences) > 0 || len(podops.Operations(podops.Read(got))) > 0 ||
			!podops.Read(got).ServiceAvailable() {
			return fmt.Sprint(got.OwnerReferences, got.Labels)
		}
		return ""
	})
	assert.Equal(e, pod.UID, got.UID)
	assert.Nil(e, got.DeletionTimestamp)
	assert.Equal(e, appsv1alpha1.OrphanedValue, got.Labels[appsv1alpha1.OrphanedLabel])
	assert.NotContains(e, got.Labels, appsv1alpha1.ToExcludeLabel)
}

// mine are the Pods that the set owns.
func (e env) mine(set *appsv1alpha1.CollaSet) []corev1.Pod {
	e.Helper()
	return slices.DeleteFunc(e.pods(), func(p corev1.Pod) bool { return !metav1.IsControlledBy(&p, set) })
}

func leave(e env) {
	set := e.create("web", 4, nil)
	e.reachesReady(set)
	before := e.pods()
	e.change(set, func(s *appsv1alpha1.CollaSetSpec) {
		s.ScaleStrategy.PodToExclude = []string{before[1].Name}
		replicas(3)(s)
	})
	e.alone(before[1])
	// Not before: a set that still wants four would give another the number that gets free.
	e.edit(&before[3], func(pod *corev1.Pod) { pod.Labels[appsv1alpha1.ToExcludeLabel] = "please" })
	e.alone(before[3])
	e.reaches(set, appsv1alpha1.CollaSetReady)
	e.eventually("one takes a place", func() string { return differ(ids(e.mine(set)), []string{"0", "1", "2"}) })
	assert.Subset(e, uids(e.mine(set)), []types.UID{before[0].UID, before[2].UID})
	e.noted("Excluded", before[1].Name)
	e.noted("Excluded", before[3].Name)
	e.quiet()
}

func differ(got, want []string) string {
	if slices.Equal(got, want) {
		return ""
	}
	return fmt.Sprint(got)
}

func mismatch(e env) {
	set := e.create("web", 2, nil)
	e.reachesReady(set)
	leaver := e.pods()[0]
	e.edit(&leaver, func(pod *corev1.Pod) { pod.Labels["app"] = "debug" })
	e.alone(leaver)
	e.eventually("another takes its place", func() string { return differ(ids(e.mine(set)), []string{"0", "1"}) })
	e.reaches(set, appsv1alpha1.CollaSetReady)
	assert.Len(e, e.pods(), 3)
}

func join(e env) {
	set := e.create("web", 2, nil)
	e.reachesReady(set)
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: e.namespace, Name: "hand-made", Labels: map[string]string{"app": "web"}},
		Spec:       *set.Spec.Template.Spec.DeepCopy(),
	}
	require.NoError(e, e.Create(e.Context(), pod))
	e.change(set, func(s *appsv1alpha1.CollaSetSpec) {
		s.ScaleStrategy.PodToInclude = []string{"hand-made"}
		s.UpdateStrategy.RollingUpdate = &appsv1alpha1.RollingUpdateStrategy{ByLabel: &appsv1alpha1.ByLabel{}}
	})
	assert.Contains(e, e.heldUp(set, "IncludeNotAllowed"), appsv1alpha1.ControlLabel)
	// Setting the label is enough: nothing of the CollaSet changes. It is one too many then, and the cheapest goes.
	e.change(set, replicas(3))
	e.reaches(set, appsv1alpha1.CollaSetReady)
	replaced := e.mine(set)
	require.Len(e, replaced, 3)
	pods := record[*corev1.Pod](e, &corev1.PodList{}) // it may be the one that goes, at once
	e.edit(pod, func(pod *corev1.Pod) { pod.Labels[appsv1alpha1.ControlLabel] = appsv1alpha1.ControlValue })
	pods.Until("it joined", func(p *corev1.Pod) bool { return p.UID == pod.UID && metav1.IsControlledBy(p, set) })
	e.noted("Included", "hand-made")
	e.eventually("and there are as many as wanted", func() string {
		// What is left in the list may be named as missing.
		if mine := e.mine(set); len(mine) != 3 {
			return fmt.Sprint(ids(mine))
		}
		return ""
	})
	seen := map[string]bool{}
	for _, id := range ids(e.mine(set)) {
		assert.False(e, seen[id], "ID %s twice", id)
		seen[id] = true
	}
}

// move orphans the Pods of a set and has another one take them in, all of them as they are.
func move(e env) {
	old := e.create("old", 3, func(s *appsv1alpha1.CollaSet) {
		s.Spec.Selector.MatchLabels, s.Spec.Template.Labels = map[string]string{"app": "web"}, map[string]string{"app": "web"}
	})
	e.reaches(old, appsv1alpha1.CollaSetReady)
	before := e.pods()
	require.NoError(e, e.Client.Delete(e.Context(), old, client.PropagationPolicy(metav1.DeletePropagationOrphan)))
	e.eventually("the old set and its IDs are gone", func() string {
		sets, pools := &appsv1alpha1.CollaSetList{}, &appsv1alpha1.ResourceContextList{}
		require.NoError(e, e.List(e.Context(), sets, client.InNamespace(e.namespace)))
		require.NoError(e, e.List(e.Context(), pools, client.InNamespace(e.namespace)))
		return strings.TrimPrefix(fmt.Sprint(len(sets.Items)+len(pools.Items)), "0")
	})
	require.Equal(e, uids(before), uids(e.pods()), "no Pod was touched")
	names := []string{}
	for _, p := range e.pods() {
		assert.Empty(e, p.OwnerReferences)
		assert.NotContains(e, p.Labels, appsv1alpha1.ToDeleteLabel)
		names = append(names, p.Name)
	}
	// byLabel: the Pods are of a revision that the new set does not know, and would be re-created otherwise.
	set := e.create("web", 3, func(s *appsv1alpha1.CollaSet) {
		s.Spec.ScaleStrategy.PodToInclude = names
		s.Spec.UpdateStrategy.RollingUpdate = &appsv1alpha1.RollingUpdateStrategy{ByLabel: &appsv1alpha1.ByLabel{}}
	})
	e.eventually("they are the new set's", func() string { return differ(ids(e.mine(set)), []string{"0", "1", "2"}) })
	e.reaches(set, appsv1alpha1.CollaSetReady)
	assert.Equal(e, uids(before), uids(e.pods()), "the same Pods, and no other")
}

func inPool(s *appsv1alpha1.CollaSet) { s.Spec.ScaleStrategy.Context = "shop" }

// entriesOf are the IDs of the pool by owner.
func (e env) entriesOf(owner string) (own []string) {
	e.Helper()
	rc := &appsv1alpha1.ResourceContext{}
	if err := e.Get(e.Context(), client.ObjectKey{Namespace: e.namespace, Name: "shop"}, rc); err != nil {
		return []string{err.Error()}
	}
	for _, c := range rc.Spec.Contexts {
		if c.Data[appsv1alpha1.ContextOwner] == owner {
			own = append(own, fmt.Sprint(c.ID))
		}
	}
	return own
}

func pool(e env) {
	a, b := e.create("a", 5, inPool), e.create("b", 5, inPool)
	disjoint := func(n int) {
		e.Helper()
		e.eventually(fmt.Sprintf("%d IDs, none twice, and entries to match", n), func() string {
			all := append(ids(e.mine(a)), ids(e.mine(b))...)
			slices.Sort(all)
			if len(slices.Compact(all)) != n || len(e.pods()) != n {
				return fmt.Sprint(all)
			}
			return differ(e.entriesOf("a"), ids(e.mine(a))) + differ(e.entriesOf("b"), ids(e.mine(b)))
		})
	}
	disjoint(10)
	e.change(a, replicas(2))
	disjoint(7)
	e.change(b, replicas(9))
	disjoint(11)
	e.reaches(b, appsv1alpha1.CollaSetReady)
	for _, p := range e.pods() {
		assert.Less(e, len(p.Labels[appsv1alpha1.InstanceIDLabel]), 3, "the lowest IDs that are free")
	}
	kept := ids(e.mine(b))
	require.NoError(e, e.Client.Delete(e.Context(), a))
	e.eventually("only its own entries go",
		func() string { return differ(e.entriesOf("a"), nil) + differ(e.entriesOf("b"), kept) })
	require.NoError(e, e.Client.Delete(e.Context(), b))
	e.gone(b)
}

func stalePool(e env) {
	entry := func(id int, owner string) appsv1alpha1.ContextDetail {
		return appsv1alpha1.ContextDetail{ID: id, Data: map[string]string{appsv1alpha1.ContextOwner: owner}}
	}
	require.NoError(e, e.Create(e.Context(), &appsv1alpha1.ResourceContext{
		ObjectMeta: metav1.ObjectMeta{Namespace: e.namespace, Name: "shop"},
		Spec: appsv1alpha1.ResourceContextSpec{Contexts: []appsv1alpha1.ContextDetail{entry(0, "ghost"),
			entry(1, "elsewhere"), entry(2, "neighbour")}},
	}))
	e.create("elsewhere", 0, nil)
	e.create("neighbour", 0, func(s *appsv1alpha1.CollaSet) { inPool(s); s.Spec.Paused = true })
	set := e.create("web", 3, inPool)
	e.eventually("what nobody uses is free", func() string { return differ(ids(e.mine(set)), []string{"0", "1", "3"}) })
	assert.Empty(e, e.entriesOf("ghost"))
	assert.Empty(e, e.entriesOf("elsewhere"))
	assert.Equal(e, []string{"2"}, e.entriesOf("neighbour"))
}

func scaleInDelay(e env) {
	delay := int32(5)
	set := e.create("web", 2, func(s *appsv1alpha1.CollaSet) { s.Spec.ScaleStrategy.OperationDelaySeconds = &delay })
	e.reachesReady(set)
	sets := record[*appsv1alpha1.CollaSet](e, &appsv1alpha1.CollaSetList{})
	victim := e.pods()[1]
	e.edit(&victim, func(pod *corev1.Pod) {
		pod.Finalizers = append(pod.Finalizers, "test/keep")
		metav1.SetMetaDataAnnotation(&pod.ObjectMeta, corev1.PodDeletionCost, "-1") // else the last to become Ready goes
	})
	e.change(set, replicas(1))
	sets.Until("it is said that it waits", func(s *appsv1alpha1.CollaSet) bool { return blockedBy(s, "OperationDelay") })
	e.eventually("it is deleted", func() string {
		require.NoError(e, e.Get(e.Context(), client.ObjectKeyFromObject(&victim), &victim))
		if victim.DeletionTimestamp == nil {
			return "not yet"
		}
		return ""
	})
	allowed, known := podops.OperateTime(podops.Read(&victim), "collaset")
	require.True(e, known)
	asked := victim.DeletionTimestamp.Add(-time.Duration(*victim.DeletionGracePeriodSeconds) * time.Second)
	// The API server's times are whole seconds.
	assert.GreaterOrEqual(e, asked.Sub(allowed), time.Duration(delay)*time.Second-time.Second)
	e.edit(&victim, func(pod *corev1.Pod) { pod.Finalizers = nil })
	e.reachesReady(set)
}

func quota(e env) {
	limit := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: e.namespace, Name: "few"}}
	limit.Spec.Hard = corev1.ResourceList{corev1.ResourcePods: resource.MustParse("0")}
	require.NoError(e, e.Create(e.Context(), limit))
	e.refuses("exceeded quota", nil)
	none := limit.DeepCopy()
	limit.Spec.Hard[corev1.ResourcePods] = resource.MustParse("2")
	require.NoError(e, e.Patch(e.Context(), limit, client.MergeFrom(none)))
	e.eventually("the quota counts", func() string {
		require.NoError(e, e.Get(e.Context(), client.ObjectKeyFromObject(limit), limit))
		if allowed := limit.Status.Hard[corev1.ResourcePods]; allowed.Value() != 2 {
			return allowed.String()
		}
		return ""
	})
	set := e.create("web", 9, nil)
	e.eventually("it says so", func() string {
		require.NoError(e, e.Get(e.Context(), client.ObjectKeyFromObject(set), set))
		c := meta.FindStatusCondition(set.Status.Conditions, appsv1alpha1.CollaSetScale)
		if c == nil || c.Reason != string(appsv1alpha1.ReasonScaleOutFailed) ||
			!strings.Contains(c.Message, "exceeded quota") || len(e.pods()) != 2 {
			return fmt.Sprint(c, len(e.pods()))
		}
		return ""
	})
	// Events of the Pods that are there are no reason to try again.
	for i := range 40 {
		e.edit(&e.pods()[i%2], func(pod *corev1.Pod) {
			metav1.SetMetaDataAnnotation(&pod.ObjectMeta, "test/round", fmt.Sprint(i))
		})
	}
	before := limit.DeepCopy()
	limit.Spec.Hard[corev1.ResourcePods] = resource.MustParse("20")
	require.NoError(e, e.Patch(e.Context(), limit, client.MergeFrom(before)))
	e.reachesReady(set)
	var counts map[string]int
	e.eventually("the log has a refusal", func() string {
		if counts, _ = e.writes(0); counts["create pods 403"] == 0 {
			return "it has none"
		}
		return ""
	})
	e.Logf("writes: %v", counts)
	assert.LessOrEqual(e, counts["create pods 403"], 20, "with doubling waits that is an hour's worth")
}
