package insight_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/internal/insight"
)

// TestActions: what is offered in which state, and what is said to happen.
func TestActions(t *testing.T) {
	all := func(change ...func(*appsv1alpha1.CollaSet)) func(*appsv1alpha1.CollaSet) {
		return func(set *appsv1alpha1.CollaSet) {
			for _, c := range change {
				c(set)
			}
		}
	}
	paused := func(set *appsv1alpha1.CollaSet) { set.Spec.Paused = true }
	operating := func(n int32) func(*appsv1alpha1.CollaSet) {
		return func(set *appsv1alpha1.CollaSet) { set.Status.OperatingReplicas = n }
	}
	updated := func(n int32) func(*appsv1alpha1.CollaSet) {
		return func(set *appsv1alpha1.CollaSet) { set.Status.UpdatedReplicas = n }
	}
	unseen := func(set *appsv1alpha1.CollaSet) { set.Generation = 3 }
	done := func(set *appsv1alpha1.CollaSet) {
		set.Status.CurrentRevision, set.Status.UpdatedReplicas = "web-2", 10
		says(appsv1alpha1.CollaSetProgressing, metav1.ConditionTrue, appsv1alpha1.ReasonRolloutComplete, 2)(set)
	}
	byLabel := func(set *appsv1alpha1.CollaSet) {
		set.Spec.UpdateStrategy.RollingUpdate = &appsv1alpha1.RollingUpdateStrategy{ByLabel: &appsv1alpha1.ByLabel{}}
	}
	one := func(set *appsv1alpha1.CollaSet) {
		set.Spec.Replicas, set.Status.Replicas, set.Status.UpdatedReplicas = ptr.To[int32](1), 1, 0
	}
	replaces := func(set *appsv1alpha1.CollaSet) {
		set.Spec.UpdateStrategy.PodUpdatePolicy = appsv1alpha1.PodUpdateReplace
	}
	halted := func(set *appsv1alpha1.CollaSet) { set.Status.Halted = &appsv1alpha1.HaltedRollout{Revision: "web-2"} }
	first := func(pods int, inPlace *bool, fields ...string) *insight.Revision {
		return &insight.Revision{Revision: 1, Name: "web-1", Images: []string{"main=web:1"}, Pods: pods, InPlace: inPlace,
			Fields: fields}
	}
	const (
		pause   = "Pause web: no further Pod is added, removed or updated."
		resume  = "Resume web: Pods are added, removed and updated again."
		promote = "Promote web: the partition (6) is removed, and no Pod is kept back."
		undo    = "Undo web: the template of revision 1 (web-1) is put back: main=web:1."
		change  = " Change your manifests as well."
		restart = "Restart web: all 10 Pods are re-created as an update, as fast as rules and maxUnavailable allow."
		joins   = " Those that do not have revision web-2 yet get it with that."
		label   = appsv1alpha1.UpdateIncludedLabel
	)
	for name, tc := range map[string]struct {
		partition string
		set       func(*appsv1alpha1.CollaSet)
		back      *insight.Revision
		want      []string
	}{
		"a rollout": {want: []string{pause + " 4 of 10 Pods have the new revision web-2 and keep it.", restart + joins}},
		"one with Pods under way": {set: operating(2), want: []string{pause +
			" 4 of 10 Pods have the new revision web-2 and keep it. The operation on 2 Pods has begun and is finished.",
			restart + joins}},
		"one that has one Pod": {set: all(updated(1), operating(1)), want: []string{pause +
			" 1 of 10 Pods has the new revision web-2 and keeps it. The operation on 1 Pod has begun and is finished.",
			restart + joins}},
		"one that has not begun": {set: updated(0), want: []string{pause +
			" None of 10 Pods has the new revision web-2 yet.", restart + joins}},
		"one that the controller has not seen": {set: unseen, want: []string{pause, restart}},
		"one that is paused": {set: paused, want: []string{resume +
			" 6 Pods are still to get revision web-2, as fast as rules and maxUnavailable allow.", restart + joins}},
		"one that is paused before its last Pod": {set: all(paused, updated(9)),
			want: []string{resume + " 1 Pod is still to get revision web-2.", restart + joins}},
		"one that is paused and updated": {set: all(paused, updated(10)), want: []string{resume, restart + joins}},
		"one that is paused and was stopped": {set: all(paused, halted), want: []string{resume + " The rollout to web-2 " +
			"was stopped by spec.updateStrategy.failurePolicy and does not go on before the template is changed.",
			restart + joins}},
		"one that is paused, by label": {set: all(byLabel, paused), want: []string{
			resume + " Pods with the label " + label + " are to get revision web-2.",
			"Restart web: Pods with the label " + label + " are re-created as an update, as fast as rules and " +
				"maxUnavailable allow." + joins}},
		"one with a partition": {partition: "6", want: []string{pause +
			" 4 of 10 Pods have the new revision web-2 and keep it.",
			promote + " 10 of 10 Pods are to be at web-2: 6 more than now.",
			"Restart web: 4 of 10 Pods are re-created as an update, as fast as rules and maxUnavailable allow; the partition " +
				"keeps the others as they are." + joins}},
		"one with a partition that is paused": {partition: "9", set: all(paused, updated(1)), want: []string{resume,
			"Promote web: the partition (9) is removed, and no Pod is kept back. 10 of 10 Pods are to be at web-2: 9 more " +
				"than now. It is paused, and begins when it is resumed.",
			"Restart web: 1 of 10 Pods is re-created as an update, as fast as rules and maxUnavailable allow; the partition " +
				"keeps the others as they are." + joins}},
		"at rest": {set: done, want: []string{restart}},
		"at rest, and a Pod is replaced": {set: all(done, operating(1)), want: []string{
			pause + " The operation on 1 Pod has begun and is finished.", restart}},
		"at rest with a partition": {partition: "6", set: done, want: []string{
			promote + " No rollout is under way: it applies to the next one.",
			"Restart web: 4 of 10 Pods are re-created as an update, as fast as rules and maxUnavailable allow; the partition " +
				"keeps the others as they are."}},
		"one Pod": {set: all(done, one), want: []string{
			"Restart web: its Pod is re-created as an update, as fast as rules and maxUnavailable allow."}},
		"one Pod that is replaced": {set: all(done, one, replaces), want: []string{
			"Restart web: its Pod is replaced, another one first, as an update, as fast as rules and maxUnavailable allow."}},
		"many that are replaced": {set: all(done, replaces), want: []string{
			"Restart web: all 10 Pods are replaced, another one first, as an update, as fast as rules and maxUnavailable " +
				"allow."}},

		"back from a rollout": {back: first(6, ptr.To(true)), want: []string{
			pause + " 4 of 10 Pods have the new revision web-2 and keep it.",
			undo + " 4 of 10 Pods go back, in place." + change, restart + joins}},
		"back from its first Pod": {set: all(paused, updated(1)), back: first(9, ptr.To(false), "template.spec.hostNetwork"),
			want: []string{resume + " 9 Pods are still to get revision web-2, as fast as rules and maxUnavailable allow.",
				undo + " 1 of 10 Pods goes back, re-created because of template.spec.hostNetwork. It is paused, and begins " +
					"when it is resumed." + change, restart + joins}},
		"back while it is paused, with Pods under way": {set: all(paused, updated(10), operating(1)), back: first(0, nil),
			want: []string{resume, undo + " 10 of 10 Pods go back. It is paused: Pods on which an operation has begun go back " +
				"within it, and the others when it is resumed." + change, restart + joins}},
		"back before any Pod": {set: updated(0), back: first(10, nil), want: []string{
			pause + " None of 10 Pods has the new revision web-2 yet.",
			undo + " No Pod is changed by that." + change, restart + joins}},
		"back from a rollout, whatever the partition": {partition: "6", back: first(6, nil), want: []string{
			pause + " 4 of 10 Pods have the new revision web-2 and keep it.",
			promote + " 10 of 10 Pods are to be at web-2: 6 more than now.",
			undo + " 4 of 10 Pods go back." + change,
			"Restart web: 4 of 10 Pods are re-created as an update, as fast as rules and maxUnavailable allow; the partition " +
				"keeps the others as they are." + joins}},
		"back at rest, as the partition lets": {partition: "6", set: done, back: first(0, nil), want: []string{
			promote + " No rollout is under way: it applies to the next one.",
			undo + " 4 of 10 Pods go back; the partition keeps back 6 Pods." + change,
			"Restart web: 4 of 10 Pods are re-created as an update, as fast as rules and maxUnavailable allow; the partition " +
				"keeps the others as they are."}},
		"back by label": {set: all(done, byLabel), back: first(0, nil), want: []string{
			undo + " Pods with the label " + label + " go back." + change,
			"Restart web: Pods with the label " + label + " are re-created as an update, as fast as rules and " +
				"maxUnavailable allow."}},

		"what is being deleted": {set: func(set *appsv1alpha1.CollaSet) {
			set.DeletionTimestamp = &metav1.Time{}
		}, back: first(0, nil)},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			for _, a := range insight.Actions(rolling(tc.partition, tc.set), tc.back) {
				got = append(got, a.Happens)
			}
			assert.Equal(t, tc.want, got)
		})
	}
}

// TestAnActionHasItsCommand: the one that does the same.
func TestAnActionHasItsCommand(t *testing.T) {
	commands := map[insight.Verb]string{}
	back := &insight.Revision{Revision: 7, Name: "web-1"}
	for _, change := range []func(*appsv1alpha1.CollaSet){nil,
		func(set *appsv1alpha1.CollaSet) { set.Spec.Paused = true }} {
		for _, a := range insight.Actions(rolling("6", change), back) {
			commands[a.Verb] = a.Command
			require.Equal(t, a.Verb == insight.VerbUndo, a.Revision == 7, a.Verb)
		}
	}
	assert.Equal(t, map[insight.Verb]string{
		insight.VerbPause:   "kubectl kuperator pause collaset/web -n shop",
		insight.VerbResume:  "kubectl kuperator resume collaset/web -n shop",
		insight.VerbPromote: "kubectl kuperator promote collaset/web -n shop",
		insight.VerbUndo:    "kubectl kuperator undo collaset/web -n shop --to-revision=7",
		insight.VerbRestart: "kubectl kuperator restart collaset/web -n shop",
	}, commands)
}
