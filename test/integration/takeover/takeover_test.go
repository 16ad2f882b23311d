package takeover_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
	"kusionstack.io/kuperator/internal/testkit/observer"
	"kusionstack.io/kuperator/internal/testkit/suite"
)

// TestTakeover is the whole story: first nothing at all in any of the three moments, then each goes on from where it is
// when, and only when, a user changes something. With --compatibility it is the same, to the last write.
func TestTakeover(t *testing.T) {
	w := newWorld(t)
	t.Run("as we ship it", func(t *testing.T) {
		w.takeOver(t, "")
		if t.Failed() {
			return // what follows would show the same
		}
		watch, err := observer.Start(t.Context(), w.RESTConfig(), observer.Options{StuckAfter: -1})
		require.NoError(t, err)
		w.goesOn(t)
		report, err := watch.Stop()
		require.NoError(t, errors.Join(err, report.Err(), w.Died()))
	})
	if t.Failed() {
		return
	}
	t.Run("with the switch", func(t *testing.T) {
		w.takeOver(t, "--compatibility=kuperator-v0.7")
		if t.Failed() {
			return
		}
		w.goesOn(t)
		t.Run("nobody waits for a finalizer that is missing",
			func(t *testing.T) { w.atRest.on(t).goesOnWithoutItsFinalizer() })
		require.NoError(t, w.Died())
	})
}

// takeOver loads the three moments and has our controllers come, with a flag.
func (w *world) takeOver(t *testing.T, flag string) {
	for _, name := range controllers {
		require.NoError(t, w.StopComponent(name))
	}
	require.NoError(t, w.Cluster.StopComponent(kwok)) // a Pod is complete only with its status
	w.atRest, w.midRollout, w.third = w.load(t, "1-at-rest.yaml"), w.load(t, "2-mid-rollout.yaml"),
		w.load(t, "3-third-revision.yaml")
	moments := []*moment{w.atRest, w.midRollout, w.third}
	require.NoError(t, w.Cluster.StartComponent(t.Context(), kwok))
	for _, m := range moments {
		m.played()
		m.rests() // kubelets and volume controllers have taken over before we come
		m.before = m.belongings(kept...)
	}
	came := time.Now()
	for _, name := range controllers {
		args := []string{""}
		if name != suite.PodTransitionRule {
			args = []string{flag}
		}
		require.NoError(t, w.Restart(t.Context(), name, args...))
	}
	require.NoError(t, w.WaitLeading(t.Context(), controllers...))
	for _, m := range moments {
		t.Run("nothing is touched in "+m.file, func(t *testing.T) { m.on(t).isLeftAlone(came) })
	}
}

func (w *world) goesOn(t *testing.T) {
	t.Run("web goes on when the partition is lowered", func(t *testing.T) { w.midRollout.on(t).webGoesOn() })
	t.Run("bylabel goes on with the Pod that is labelled", func(t *testing.T) { w.midRollout.on(t).bylabelGoesOn() })
	t.Run("held finishes the operation that it is in", func(t *testing.T) { w.midRollout.on(t).heldFinishes() })
	t.Run("replace goes on with an image that can be pulled", func(t *testing.T) { w.midRollout.on(t).replaceGoesOn() })
	t.Run("db scaled out uses the claim that was retained",
		func(t *testing.T) { w.midRollout.on(t).dbComesBackToItsClaim() })
	t.Run("a Pod deleted by hand comes back at its own revision",
		func(t *testing.T) { w.third.on(t).comesBackAtItsRevision() })
	t.Run("a Pod with claims comes back to them", func(t *testing.T) { w.third.on(t).comesBackToItsClaims() })
	t.Run("an update in place after the takeover restarts one container",
		func(t *testing.T) { w.atRest.on(t).updatesInPlace() })
	t.Run("a deleted CollaSet leaves the claims that it is to retain",
		func(t *testing.T) { w.atRest.on(t).leavesItsClaims() })
}

// isLeftAlone looks at the first decisions, and at another after a change of spec that means nothing to Pods.
func (m *moment) isLeftAlone(came time.Time) {
	for round := range 2 {
		for _, name := range m.sets {
			if round > 0 {
				m.edit(&appsv1alpha1.CollaSet{}, name, `{"spec":{"historyLimit":7}}`)
			}
			m.eventually("our status of "+name, func() error {
				set := m.set(name)
				if set.Status.Selector == "" || set.Status.ObservedGeneration != set.Generation {
					return fmt.Errorf("%+v", set.Status)
				}
				return nil
			})
			condition := appsv1alpha1.CollaSetReady
			if m.underWay(name) {
				condition = appsv1alpha1.CollaSetReconciling
			}
			m.reaches(name, condition)
		}
		m.rests()
	}
	assert.Empty(m, cmp.Diff(m.before, m.belongings(kept...)),
		"Pods, claims, revisions and ResourceContexts are as they were, to the resourceVersion")
	for component, counts := range m.written(came) {
		for what, n := range counts.Kinds {
			assert.Contains(m, []string{
				"patch collasets/status", "update podtransitionrules/status", "patch podtransitionrules/status", "create events",
				"patch events",
			}, what, "%s did it %d times", component, n)
		}
	}
}

// underWay says which CollaSets are not at their goal.
func (m *moment) underWay(name string) bool {
	return m.file != "1-at-rest.yaml" && (name == "held" || name == "replace")
}

// webGoesOn: two Pods are updated in place, the two that were are not touched. The observer sees that the rule is kept.
func (m *moment) webGoesOn() {
	before := m.pods("web")
	begin := time.Now()
	updated := m.set("web").Status.UpdatedRevision
	m.edit(&appsv1alpha1.CollaSet{}, "web",
		`{"spec":{"updateStrategy":{"rollingUpdate":{"byPartition":{"partition":0}}}}}`)
	after := m.servesAt("web", map[string]string{"0": updated, "1": updated, "2": updated, "3": updated})
	for id, pod := range after {
		was := before[id]
		assert.Equal(m, was.UID, pod.UID)
		want := restarts(&was)
		if revisionOf(&was) != updated {
			want["app"]++
		} else {
			assert.Equal(m, was.ResourceVersion, pod.ResourceVersion, "%s was there already", pod.Name)
			assert.Zero(m, m.patchesOf(suite.CollaSet, pod.Name, begin))
		}
		assert.Equal(m, want, restarts(&pod), pod.Name)
	}
	assert.Equal(m, updated, m.reaches("web", appsv1alpha1.CollaSetReady).Status.CurrentRevision)
}

// bylabelGoesOn: only the labelled Pod is re-created, under its instance ID, and the label goes with it.
func (m *moment) bylabelGoesOn() {
	before := m.pods("bylabel")
	status := m.set("bylabel").Status
	labelled := before["0"]
	require.Equal(m, status.CurrentRevision, revisionOf(&labelled))
	m.edit(&corev1.Pod{}, labelled.Name, fmt.Sprintf(`{"metadata":{"labels":{%q:"true"}}}`,
		appsv1alpha1.UpdateIncludedLabel))
	after := m.servesAt("bylabel", map[string]string{"0": status.UpdatedRevision, "1": status.CurrentRevision,
		"2": status.UpdatedRevision})
	assert.NotEqual(m, labelled.UID, after["0"].UID)
	assert.NotContains(m, after["0"].Labels, appsv1alpha1.UpdateIncludedLabel)
	for _, id := range []string{"1", "2"} {
		assert.Equal(m, before[id].ResourceVersion, after[id].ResourceVersion, "Pod %s is not touched", id)
	}
}

// heldFinishes: the operations that Kuperator began are carried out and finished, not begun again.
func (m *moment) heldFinishes() {
	before := m.pods("held")
	begin := time.Now()
	set := m.set("held")
	for _, pod := range before {
		m.edit(&corev1.Pod{}, pod.Name, `{"metadata":{"finalizers":null}}`)
	}
	updated := set.Status.UpdatedRevision
	after := m.servesAt("held", map[string]string{"0": updated, "1": updated})
	for id, pod := range after {
		was := before[id]
		assert.Equal(m, was.UID, pod.UID)
		assert.Equal(m, set.Spec.Template.Spec.Containers[0].Image, pod.Spec.Containers[0].Image)
		assert.Equal(m, map[string]int{"c": 1}, restarts(&pod))
		assert.Equal(m, 1, m.patchesOf(suite.CollaSet, pod.Name, begin),
			"one write changes the Pod and names the operation that lifecycle-controller finishes; nothing is asked for again")
	}
	m.reaches("held", appsv1alpha1.CollaSetReady)
}

// replaceGoesOn: the new Pods that cannot start go, others come at the image's revision, and only when those serve do
// the origins go.
func (m *moment) replaceGoesOn() {
	origins := map[string]bool{}
	for _, pod := range m.pods("replace") {
		if serves(&pod) == nil {
			origins[string(pod.UID)] = true
		}
	}
	require.Len(m, origins, 2)
	broken := m.set("replace").Status.UpdatedRevision
	m.setImage("replace", "nginx:1.26.0")
	m.eventually("two Pods of the new image serve, and nobody else is there", func() error {
		list := &corev1.PodList{}
		require.NoError(m, m.List(m.Context(), list, client.InNamespace(m.namespace),
			client.MatchingLabels{"app": "replace"}))
		serving, fresh := 0, 0
		for i := range list.Items {
			pod := &list.Items[i]
			if serves(pod) == nil && pod.DeletionTimestamp == nil {
				serving++
				if !origins[string(pod.UID)] && pod.Spec.Containers[0].Image == "nginx:1.26.0" {
					fresh++
				}
			}
		}
		assert.GreaterOrEqual(m, serving, 2, "replicas serve all the time")
		if fresh != 2 || len(list.Items) != 2 {
			return fmt.Errorf("%d Pods, %d of the new image serve", len(list.Items), fresh)
		}
		return nil
	})
	set := m.reaches("replace", appsv1alpha1.CollaSetReady)
	assert.NotEqual(m, broken, set.Status.UpdatedRevision)
	m.eventually("nothing is left of the replacements", func() error {
		for _, pod := range m.pods("replace") {
			for _, label := range []string{
				appsv1alpha1.ToReplaceLabel, appsv1alpha1.ReplacePairNewIDLabel, appsv1alpha1.ReplacePairOriginNameLabel,
				appsv1alpha1.ReplacedByReplaceUpdateLabel,
			} {
				if _, left := pod.Labels[label]; left {
					return fmt.Errorf("%s has label %s", pod.Name, label)
				}
			}
		}
		return nil
	})
	for _, pod := range m.pods("replace") {
		assert.Equal(m, set.Status.UpdatedRevision, revisionOf(&pod))
	}
}

// claims are the claims of the namespace by UID, with the instance IDs that they are for.
func (m *moment) claims() map[string]string {
	m.Helper()
	list := &corev1.PersistentVolumeClaimList{}
	require.NoError(m, m.List(m.Context(), list, client.InNamespace(m.namespace)))
	out := map[string]string{}
	for _, claim := range list.Items {
		out[string(claim.UID)] = claim.Labels[appsv1alpha1.InstanceIDLabel]
	}
	return out
}

// claimOf is the name of the claim that a Pod of db mounts.
func claimOf(pod *corev1.Pod) string {
	for _, volume := range pod.Spec.Volumes {
		if volume.PersistentVolumeClaim != nil {
			return volume.PersistentVolumeClaim.ClaimName
		}
	}
	return ""
}

func (m *moment) dbComesBackToItsClaim() {
	before := m.claims()
	require.Len(m, before, 3)
	m.edit(&appsv1alpha1.CollaSet{}, "db", `{"spec":{"replicas":3}}`)
	revision := m.set("db").Status.UpdatedRevision
	after := m.servesAt("db", map[string]string{"0": revision, "1": revision, "2": revision})
	back := after["0"]
	assert.Equal(m, "db-0", back.Name)
	assert.Equal(m, "db-data-t4cdb", claimOf(&back), "the claim that Kuperator retained for instance ID 0")
	m.reaches("db", appsv1alpha1.CollaSetReady)
	assert.Equal(m, before, m.claims(), "no claim came, none went")
}

func (m *moment) comesBackAtItsRevision() {
	before := m.pods("web")
	status := m.set("web").Status
	own := map[string]string{}
	for id, pod := range before {
		own[id] = revisionOf(&pod)
	}
	require.Equal(m, map[string]string{"0": "web-7966fcb9b5", "1": "web-7966fcb9b5", "2": "web-7966fcb9b5",
		"3": status.UpdatedRevision}, own)
	for _, id := range []string{"0", "3"} { // one at the old revision, one at the new
		gone := before[id]
		require.NoError(m, m.Delete(m.Context(), &gone))
		m.eventually(gone.Name+" is gone", func() error {
			now := &corev1.Pod{}
			if err := m.Get(m.Context(), client.ObjectKeyFromObject(&gone), now); err != nil || now.UID != gone.UID {
				return client.IgnoreNotFound(err)
			}
			return errors.New("it is there")
		})
		after := m.servesAt("web", own)
		back := after[id]
		assert.NotEqual(m, gone.UID, back.UID)
		assert.Equal(m, gone.Spec.Containers[0].Image, back.Spec.Containers[0].Image)
		assert.Equal(m, gone.Spec.Containers[0].Env, back.Spec.Containers[0].Env, "the third revision is another variable")
		for _, other := range []string{"1", "2"} {
			assert.Equal(m, before[other].ResourceVersion, after[other].ResourceVersion)
		}
	}
	m.reaches("web", appsv1alpha1.CollaSetReady)
}

func (m *moment) comesBackToItsClaims() {
	before, claims := m.pods("db"), m.claims()
	gone := before["1"]
	require.NoError(m, m.Delete(m.Context(), &gone))
	m.eventually(gone.Name+" is another Pod", func() error {
		if now, ok := m.pods("db")["1"]; !ok || now.UID == gone.UID {
			return errors.New("not yet")
		}
		return nil
	})
	revision := m.set("db").Status.UpdatedRevision
	after := m.servesAt("db", map[string]string{"0": revision, "1": revision, "2": revision})
	back := after["1"]
	assert.Equal(m, gone.Name, back.Name)
	assert.Equal(m, claimOf(&gone), claimOf(&back))
	m.reaches("db", appsv1alpha1.CollaSetReady)
	assert.Equal(m, claims, m.claims())
	for _, id := range []string{"0", "2"} {
		assert.Equal(m, before[id].ResourceVersion, after[id].ResourceVersion, "Pod %s is not touched", id)
	}
}

func (m *moment) updatesInPlace() {
	for app, container := range map[string]string{"web": "app", "db": "db", "held": "c"} {
		before, claims := m.pods(app), m.claims()
		m.setImage(app, "example.com/"+app+":2")
		want := map[string]string{}
		m.eventually("a new revision of "+app, func() error {
			set := m.set(app)
			if set.Status.ObservedGeneration != set.Generation || set.Status.UpdatedRevision == set.Status.CurrentRevision &&
				!is(set, appsv1alpha1.CollaSetReady) {
				return fmt.Errorf("%+v", set.Status)
			}
			for id := range before {
				want[id] = set.Status.UpdatedRevision
			}
			return nil
		})
		for id, pod := range m.servesAt(app, want) {
			was := before[id]
			assert.Equal(m, was.UID, pod.UID)
			restarted := restarts(&was)
			restarted[container]++
			assert.Equal(m, restarted, restarts(&pod), "%s", pod.Name)
			assert.Equal(m, claimOf(&was), claimOf(&pod))
		}
		m.reaches(app, appsv1alpha1.CollaSetReady)
		assert.Equal(m, claims, m.claims())
	}
}

func (m *moment) leavesItsClaims() {
	claims := m.claims()
	require.NoError(m, m.Delete(m.Context(), m.set("db")))
	m.eventually("db and its Pods are gone", func() error {
		if pods := m.pods("db"); len(pods) > 0 {
			return fmt.Errorf("%d Pods are there", len(pods))
		}
		err := m.Get(m.Context(), client.ObjectKey{Namespace: m.namespace, Name: "db"}, &appsv1alpha1.CollaSet{})
		if !apierrors.IsNotFound(err) {
			return fmt.Errorf("the CollaSet is there: %w", err)
		}
		return nil
	})
	assert.Equal(m, claims, m.claims())
	for what, object := range m.belongings(corev1.SchemeGroupVersion.WithKind("PersistentVolumeClaim")) {
		assert.Empty(m, object.GetOwnerReferences(), "%s: the garbage collector would take it", what)
		assert.Nil(m, object.GetDeletionTimestamp(), what)
	}
}

// goesOnWithoutItsFinalizer: a Pod whose finalizer was taken off is operated on at once, in one update after the
// other, and the last is finished when the finalizer is back.
func (m *moment) goesOnWithoutItsFinalizer() {
	const finalizer = "prot.podopslifecycle.kusionstack.io/test"
	for _, pod := range m.pods("held") {
		m.edit(&corev1.Pod{}, pod.Name, fmt.Sprintf(`{"metadata":{"finalizers":[%q],"annotations":{%q:%q}}}`, finalizer,
			podops.AvailableConditionsAnnotation, `{"expectedFinalizers":{"Test/x/y":"`+finalizer+`"}}`))
	}
	set := m.reaches("held", appsv1alpha1.CollaSetReady)
	is := func(what string, image string, holds func(v podops.View) bool) {
		m.eventually("Pods of held are "+what, func() error {
			for _, pod := range m.pods("held") {
				if v := podops.Read(&pod); pod.Spec.Containers[0].Image != image || !holds(v) {
					return fmt.Errorf("%s has %s: %v", pod.Name, pod.Spec.Containers[0].Image, podops.Explain(v, nil))
				}
			}
			return nil
		})
	}
	completing := func(v podops.View) bool { return v.Ready && podops.PhaseOf(v, "collaset") == podops.PhaseCompleting }
	m.setImage("held", "nginx:second")
	is("held by it", set.Spec.Template.Spec.Containers[0].Image, podops.View.Protected)
	for _, pod := range m.pods("held") {
		m.edit(&corev1.Pod{}, pod.Name, `{"metadata":{"finalizers":null}}`)
	}
	is("without it", "nginx:second", completing)
	m.setImage("held", "nginx:third")
	is("without it", "nginx:third", completing)
	for _, pod := range m.pods("held") {
		assert.NotContains(m, pod.Labels, podops.ServiceAvailableLabel)
		m.edit(&corev1.Pod{}, pod.Name, fmt.Sprintf(`{"metadata":{"finalizers":[%q]}}`, finalizer))
	}
	m.reaches("held", appsv1alpha1.CollaSetReady)
	for _, pod := range m.pods("held") {
		m.edit(&corev1.Pod{}, pod.Name, `{"metadata":{"finalizers":null}}`)
	}
}
