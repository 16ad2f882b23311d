package webhook

import (
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
)

// serving is the removal, by delete, of a managed Pod that serves, in a namespace that says nothing.
func serving(changes ...func(*removal)) removal {
	r := removal{
		Verb: removeByDelete, User: "jane", Groups: []string{"system:authenticated"}, Scheduled: true,
		Pod: podops.View{
			Namespace: "shop", Name: "web-1", UID: "u1", Gate: true, Ready: true, ServiceReady: "True",
			Labels: map[string]string{appsv1alpha1.ControlLabel: "true", podops.ServiceAvailableLabel: "1"},
		},
	}
	for _, change := range changes {
		change(&r)
	}
	return r
}

func byEviction(r *removal)  { r.Verb = removeByEviction }
func pinned(r *removal)      { r.Pinned = true }
func dryRun(r *removal)      { r.DryRun = true }
func marked(r *removal)      { r.Pod.Labels[appsv1alpha1.ToDeleteLabel] = "1" }
func repeated(r *removal)    { r.Verb, r.Repeated = removeByEviction, true }
func terminating(r *removal) { r.Pod.Terminating = true }
func notReady(r *removal)    { r.Pod.Ready = false }
func noneAllowed(r *removal) { r.Budget = "web-pdb" }
func replaces(policy appsv1alpha1.EvictionPolicy) func(*removal) {
	return func(r *removal) { r.Policy.OnEviction = policy }
}
func label(k, v string) func(*removal) {
	return func(r *removal) { r.Pod.Labels[k] = v }
}
func namespaceLabel(v string) func(*removal) { return func(r *removal) { r.NamespaceLabel = v } }

// askedBy records who asked for the Pod's deletion.
func askedBy(askers string) func(*removal) {
	return func(r *removal) {
		r.Pod.Annotations = map[string]string{appsv1alpha1.ToDeleteLabel + podops.AskersSuffix: askers}
	}
}

// inOperate puts the Pod in the Operate phase of an operation.
func inOperate(id, opType string) func(*removal) {
	return func(r *removal) {
		r.Pod.Ready, r.Pod.ServiceReady = false, "False"
		maps.Copy(r.Pod.Labels, operateLabels(id, opType))
	}
}

// operateLabels are those of a Pod in the Operate phase of an operation.
func operateLabels(id, opType string) map[string]string {
	return map[string]string{
		podops.OperatingPrefix + "/" + id: "1", podops.OperationTypePrefix + "/" + id: opType,
		podops.PreCheckedPrefix + "/" + id: "1", podops.PermissionPrefix + "/" + opType: "1",
		podops.OperatePrefix + "/" + id: "1",
	}
}

func defaultPolicy(graceful bool) removalPolicy {
	return removalPolicy{Graceful: graceful, UndelayedUsers: undelayedUsers, UndelayedGroups: undelayedGroups}
}

func TestDecideRemoval(t *testing.T) {
	const admitted, warned, refused, refusedAndMarked = "admitted", "admitted with a warning", "refused",
		"refused and marked"
	tests := map[string]struct {
		removal removal
		off     bool // --graceful-deletion=false
		want    string
		says    string // part of the message or the warning
	}{
		"a Pod that serves": {removal: serving(), want: refusedAndMarked,
			says: "Now: it waits for lifecycle-controller to begin"},
		"an eviction of it": {removal: serving(byEviction), want: refusedAndMarked,
			says: "is being taken out of service"},
		"a Pod that is marked": {removal: serving(marked), want: refused,
			says: "it waits for lifecycle-controller to begin"},
		"an eviction of a Pod that is marked":         {removal: serving(marked, byEviction), want: refused},
		"a Pod that is not Ready":                     {removal: serving(notReady), want: refusedAndMarked},
		"a Pod that is not managed":                   {removal: serving(label(appsv1alpha1.ControlLabel, "yes")), want: admitted},
		"a Pod from before the webhook, no gate":      {removal: serving(func(r *removal) { r.Pod.Gate = false }), want: admitted},
		"a terminating Pod":                           {removal: serving(terminating), want: admitted},
		"a marked Pod that terminates":                {removal: serving(marked, terminating), want: admitted},
		"the first eviction of a Pod that terminates": {removal: serving(marked, terminating, byEviction), want: admitted},
		"a repeated eviction of a Pod that terminates, whose name comes again": {
			removal: serving(marked, terminating, repeated), want: refused, says: "is being deleted"},
		"a repeated eviction of a Pod that may be deleted now, whose name comes again": {
			removal: serving(marked, inOperate(podops.DeletionID, podops.TypeDelete), repeated), want: refused,
			says: "is being deleted"},
		"a dry run of a repeated eviction": {removal: serving(marked, terminating, repeated, dryRun), want: warned},
		"a repeated eviction, forced": {
			removal: serving(marked, terminating, repeated, func(r *removal) { r.Forced = true }), want: admitted},
		"a Pod that has run to its end": {removal: serving(func(r *removal) { r.Pod.Terminal = true }),
			want: admitted},
		"a Pod without a node": {removal: serving(func(r *removal) { r.Scheduled = false }),
			want: admitted},
		"a grace period of 0": {removal: serving(func(r *removal) { r.Forced = true }), want: admitted},
		"a grace period of 0, marked": {removal: serving(marked, func(r *removal) { r.Forced = true }),
			want: admitted},
		"a terminating namespace": {removal: serving(func(r *removal) { r.NamespaceTerminating = true }),
			want: admitted},
		"a kubelet": {removal: serving(
			func(r *removal) { r.Groups = append(r.Groups, "system:nodes") }), want: admitted},
		"the garbage collector": {removal: serving(
			func(r *removal) { r.User = "system:serviceaccount:kube-system:generic-garbage-collector" }), want: admitted},
		"the namespace controller": {removal: serving(
			func(r *removal) { r.User = "system:serviceaccount:kube-system:namespace-controller" }), want: admitted},
		"the Pod garbage collector": {removal: serving(
			func(r *removal) { r.User = "system:serviceaccount:kube-system:pod-garbage-collector" }), want: admitted},
		"the taint eviction controller": {removal: serving(
			func(r *removal) { r.User = "system:serviceaccount:kube-system:taint-eviction-controller" }), want: admitted},
		"the node lifecycle controller": {removal: serving(
			func(r *removal) { r.User = "system:serviceaccount:kube-system:node-controller" }), want: admitted},
		"the scheduler that preempts": {removal: serving(func(r *removal) { r.User = "system:kube-scheduler" }),
			want: admitted},
		"the ReplicaSet controller": {removal: serving(
			func(r *removal) { r.User = "system:serviceaccount:kube-system:replicaset-controller" }), want: refusedAndMarked},
		"controllers that share one user": {removal: serving(
			func(r *removal) { r.User = "system:kube-controller-manager" }), want: refusedAndMarked},
		"an update that may act": {removal: serving(inOperate("collaset", "update")), want: admitted},
		"the deletion itself": {removal: serving(marked, inOperate(podops.DeletionID, podops.TypeDelete)),
			want: admitted},
		"an eviction during it": {removal: serving(marked, inOperate(podops.DeletionID, podops.TypeDelete),
			byEviction), want: admitted},
		"an eviction during an update, after which the Pod may be back by the time it is deleted": {
			removal: serving(inOperate("collaset", "update"), byEviction), want: refusedAndMarked,
			says: "is being taken out of service",
		},
		"an eviction during an update, of a Pod that is marked": {
			removal: serving(marked, inOperate("collaset", "update"), byEviction), want: refused,
		},
		"an eviction during an update, of this version of the Pod": {
			removal: serving(inOperate("collaset", "update"), byEviction, pinned), want: admitted,
		},
		"an eviction during a deletion that has been cancelled": {
			removal: serving(inOperate(podops.DeletionID, podops.TypeDelete), byEviction), want: refusedAndMarked,
		},
		"an eviction of this version of a Pod that serves": {removal: serving(byEviction, pinned), want: refusedAndMarked},
		"the deletion before Ready is seen to be False": {
			removal: serving(marked, inOperate(podops.DeletionID, podops.TypeDelete), func(r *removal) { r.Pod.Ready = true }),
			want:    refused, says: "OperatorAtWork",
		},
		"the deletion while a cooperator holds the Pod": {
			removal: serving(marked, inOperate(podops.DeletionID, podops.TypeDelete),
				func(r *removal) { r.Pod.Finalizers = []string{podops.ProtectionFinalizerPrefix + "/a"} }), want: refused,
		},
		"a Pod whose deletion others refuse": {
			removal: serving(marked, func(r *removal) {
				r.Pod.Annotations = map[string]string{podops.DeletionRefusedAnnotation: "policy keep denied the request"}
			}),
			want: refused,
			says: "Now: DeletionRefused: the API server refuses to delete the Pod: policy keep denied the request",
		},
		"a Pod in PreCheck names what it waits for": {
			removal: serving(marked, label(podops.OperatingPrefix+"/"+podops.DeletionID, "1"),
				label(podops.OperationTypePrefix+"/"+podops.DeletionID, "delete"),
				label(podops.PreCheckPrefix+"/"+podops.DeletionID, "1")),
			want: refused, says: "it waits for the PodTransitionRules that select it, then for lifecycle-controller",
		},
		"a Pod that rules have held for a while names them": {
			removal: serving(marked, label(podops.OperatingPrefix+"/"+podops.DeletionID, "1"),
				label(podops.OperationTypePrefix+"/"+podops.DeletionID, "delete"),
				label(podops.PreCheckPrefix+"/"+podops.DeletionID, "1"),
				func(r *removal) {
					r.Pod.Annotations = map[string]string{podops.RuleDetailPrefix + "/b": "{}",
						podops.RuleDetailPrefix + "/a": "{}", "c": ""}
				}),
			want: refused, says: "it waits for PodTransitionRule a, b: see kubectl describe podtransitionrule -n shop",
		},
		"a Pod in Preparing names its cooperator": {
			removal: serving(marked, label(podops.OperatingPrefix+"/"+podops.DeletionID, "1"),
				label(podops.OperationTypePrefix+"/"+podops.DeletionID, "delete"),
				label(podops.PreCheckedPrefix+"/"+podops.DeletionID, "1"), label(podops.PermissionPrefix+"/delete", "1"),
				label(podops.PreparingPrefix+"/"+podops.DeletionID, "1"),
				func(r *removal) {
					r.Pod.ServiceReady, r.Pod.Ready = "False", false
					r.Pod.Finalizers = []string{podops.ProtectionFinalizerPrefix + "/lb"}
				}),
			want: refused, says: "WaitingForCooperatorToLeave",
		},
		"a dry run": {removal: serving(dryRun), want: warned,
			says: "not in a dry run, this delete would be refused at first"},
		"a dry run of an eviction": {removal: serving(dryRun, byEviction), want: warned,
			says: "this eviction would be refused at first"},
		"a dry run on a marked Pod": {removal: serving(dryRun, marked), want: warned},
		"a dry run of what is admitted": {removal: serving(dryRun, func(r *removal) { r.Forced = true }),
			want: admitted},
		"switched off":                     {removal: serving(), off: true, want: admitted},
		"switched off, marked by somebody": {removal: serving(marked), off: true, want: admitted},
		"switched off, and its workload has evicted Pods replaced": {
			removal: serving(byEviction, replaces("Replace")), off: true, want: refusedAndMarked, says: "is replaced"},
		"switched off, and its workload has Pods replaced if need be": {
			removal: serving(byEviction, replaces("ReplaceWhenBlocked")), off: true, want: refusedAndMarked,
			says: "is then deleted by itself"},
		"a deletion, switched off, of such a Pod": {removal: serving(replaces("Replace")), off: true, want: admitted},
		"disabled by label, and its workload has evicted Pods replaced": {
			removal: serving(byEviction, replaces("Replace"), label(podops.GracefulDeletionLabel, "disabled")), want: admitted},
		"enabled for the namespace": {removal: serving(namespaceLabel("enabled")), off: true,
			want: refusedAndMarked},
		"disabled for the namespace": {removal: serving(namespaceLabel("disabled")), want: admitted},
		"enabled for the Pod alone": {removal: serving(namespaceLabel("disabled"),
			label(podops.GracefulDeletionLabel, "enabled")), off: true, want: refusedAndMarked},
		"disabled for the Pod alone": {removal: serving(namespaceLabel("enabled"),
			label(podops.GracefulDeletionLabel, "disabled")), want: admitted},
		"a switch on the Pod that is none": {removal: serving(namespaceLabel("disabled"),
			label(podops.GracefulDeletionLabel, "on")), want: warned,
			says: `label podopslifecycle.kusionstack.io/graceful-deletion of Pod web-1 is "on"`},
		"a switch on the namespace that is none": {removal: serving(namespaceLabel("no")), off: true, want: warned,
			says: "of Namespace shop"},
		"an eviction that a budget forbids": {removal: serving(byEviction, noneAllowed), want: refused,
			says: "PodDisruptionBudget web-pdb allows no disruption now"},
		"a deletion, whatever the budget": {removal: serving(noneAllowed), want: refusedAndMarked},
		"a budget and a Pod that is not Ready": {removal: serving(byEviction, noneAllowed, notReady),
			want: refusedAndMarked},
		"a budget and a Pod that is marked": {removal: serving(byEviction, noneAllowed, marked), want: refused,
			says: "is being taken out of service"},
		"an eviction of a Pod that is replaced first": {removal: serving(byEviction, replaces("Replace")),
			want: refusedAndMarked, says: "Pod web-1 is replaced: another Pod serves before it is taken out of service"},
		"the same, whatever the budget": {removal: serving(byEviction, replaces("Replace"), noneAllowed),
			want: refusedAndMarked, says: "it waits for the other Pod. To cancel: kubectl label pod -n shop web-1 " +
				"collaset.kusionstack.io/to-replace- ."},
		"the same, in a dry run": {removal: serving(byEviction, replaces("Replace"), dryRun), want: warned,
			says: "another Pod takes its place"},
		"the same, again": {removal: serving(byEviction, replaces("Replace"),
			label(appsv1alpha1.ToReplaceLabel, "true"), func(r *removal) {
				r.Awaits = "its replacement web-2 is not available yet"
				r.Pod.Annotations = map[string]string{appsv1alpha1.ToReplaceLabel + podops.AskersSuffix: "eviction"}
			}), want: refused, says: "Now: its replacement web-2 is not available yet."},
		"a deletion is no eviction": {removal: serving(replaces("Replace")), want: refusedAndMarked,
			says: "is then deleted by itself"},
		"a Pod that cannot be replaced first": {removal: serving(byEviction, replaces("Replace"),
			func(r *removal) { r.Policy.Obstacle = "its name is in sequence" }), want: refusedAndMarked,
			says: "It is not replaced by another Pod first: its name is in sequence"},
		"a budget refuses a Pod that is replaced when blocked": {
			removal: serving(byEviction, replaces("ReplaceWhenBlocked"), noneAllowed), want: refusedAndMarked,
			says: "is replaced"},
		"no budget does": {removal: serving(byEviction, replaces("ReplaceWhenBlocked")), want: refusedAndMarked,
			says: "is then deleted by itself"},
		"a Pod that a job wants deleted": {removal: serving(byEviction, marked, askedBy("operationjob/1")),
			want: refusedAndMarked, says: "is then deleted by itself"},
		"a budget in a dry run": {removal: serving(byEviction, noneAllowed, dryRun), want: warned},
		"a deletion of a Pod that an EvictionRequest has marked and may withdraw": {
			removal: serving(marked, askedBy(podops.AskerEvictionRequest)), want: refusedAndMarked},
		"a deletion of a Pod that an eviction has marked": {removal: serving(marked, askedBy(podops.AskerEviction)),
			want: refusedAndMarked},
		"a deletion of a Pod that a user has marked as well": {
			removal: serving(marked, askedBy(podops.AskerEvictionRequest+","+podops.AskerOther)), want: refused},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			answer := decideRemoval(tc.removal, defaultPolicy(!tc.off))
			got := map[[2]bool]string{{true, false}: admitted, {false, false}: refused,
				{false, true}: refusedAndMarked}[[2]bool{answer.Allowed, answer.Mark != ""}]
			if answer.Allowed && len(answer.Warnings) > 0 {
				got = warned
			}
			require.Equal(t, tc.want, got, "%+v", answer)
			require.Contains(t, answer.Message+strings.Join(answer.Warnings, "\n"), tc.says)
			if answer.Allowed {
				require.Empty(t, answer.Message)
				return
			}
			if tc.removal.Verb == removeByEviction {
				require.EqualValues(t, http.StatusTooManyRequests, answer.Code)
				require.Equal(t, metav1.StatusReasonTooManyRequests, answer.Reason)
				require.Positive(t, answer.RetryAfter)
			} else {
				require.EqualValues(t, http.StatusConflict, answer.Code)
				require.Equal(t, metav1.StatusReasonConflict, answer.Reason)
				require.Zero(t, answer.RetryAfter)
			}
		})
	}
}

func TestRefusalSaysHowToCancelAndToForce(t *testing.T) {
	message := decideRemoval(serving(), defaultPolicy(true)).Message
	require.Contains(t, message, "kubectl label pod -n shop web-1 collaset.kusionstack.io/to-delete-")
	require.Contains(t, message, "kubectl delete pod -n shop web-1 --grace-period=0 --force")
}

// TestRemovalProperties: whatever the Pod and the request, a Pod is marked only when a real request is refused that
// was not marked before, and those who must never wait never do.
func TestRemovalProperties(t *testing.T) {
	labels := []string{
		podops.GracefulDeletionLabel, appsv1alpha1.ToDeleteLabel, appsv1alpha1.ToReplaceLabel, podops.OperatingPrefix + "/a",
		podops.OperationTypePrefix + "/a", podops.PreCheckPrefix + "/a",
		podops.PreCheckedPrefix + "/a", podops.PreparingPrefix + "/a", podops.OperatePrefix + "/a",
		podops.PermissionPrefix + "/delete",
		podops.OperatingPrefix + "/" + podops.DeletionID, podops.OperatePrefix + "/" + podops.DeletionID,
		podops.UndoOperationTypePrefix + "/a",
	}
	values := []string{"enabled", "disabled", "delete", "1", ""}
	rapid.Check(t, func(t *rapid.T) {
		yes := func(what string) bool { return rapid.Bool().Draw(t, what) }
		r := serving()
		r.Verb = rapid.SampledFrom([]removalVerb{removeByDelete, removeByEviction}).Draw(t, "verb")
		r.User = rapid.SampledFrom(append(slices.Clone(undelayedUsers), "jane")).Draw(t, "user")
		r.DryRun, r.Forced, r.Pinned, r.Scheduled, r.NamespaceTerminating = yes("dry run"), yes("forced"), yes("pinned"),
			yes("scheduled"), yes("namespace")
		r.Repeated = r.Verb == removeByEviction && yes("repeated")
		r.NamespaceLabel = rapid.SampledFrom(values).Draw(t, "namespace label")
		r.Budget = rapid.SampledFrom([]string{"", "pdb"}).Draw(t, "budget")
		r.Pod.Gate, r.Pod.Ready, r.Pod.Terminating, r.Pod.Terminal = yes("gate"), yes("ready"), yes("terminating"),
			yes("terminal")
		for _, key := range rapid.SliceOfDistinct(rapid.SampledFrom(labels), rapid.ID).Draw(t, "labels") {
			r.Pod.Labels[key] = rapid.SampledFrom(values).Draw(t, key)
		}
		if askers := rapid.SampledFrom([]string{"", podops.AskerEviction, "operationjob/1", "operationjob/1,other"}).
			Draw(t, "askers"); askers != "" {
			askedBy(askers)(&r)
		}
		r.Policy.OnEviction = rapid.SampledFrom([]appsv1alpha1.EvictionPolicy{"", "Replace", "ReplaceWhenBlocked"}).
			Draw(t, "policy")
		answer := decideRemoval(r, defaultPolicy(yes("graceful")))
		_, wasMarked := r.Pod.Labels[answer.Mark]
		asker := map[removalVerb]string{removeByEviction: podops.AskerEviction, removeByDelete: podops.AskerOther}[r.Verb]
		if answer.Mark != "" && (answer.Allowed || r.DryRun || wasMarked && podops.MarkedBy(r.Pod, answer.Mark, asker)) {
			t.Fatalf("marked: %+v", answer)
		}
		if _, replaced := r.Pod.Labels[appsv1alpha1.ToReplaceLabel]; r.Policy.OnEviction == "Replace" && r.Pod.Ready &&
			r.Verb == removeByEviction && answer.Mark == appsv1alpha1.ToDeleteLabel && (replaced || !wasMarked) {
			t.Fatalf("it goes before another Pod serves: %+v", answer)
		}
		free := r.DryRun || r.Forced || !r.Scheduled || r.NamespaceTerminating || !r.Pod.Gate ||
			r.Pod.Terminating && !r.Repeated || r.Pod.Terminal || r.User != "jane" ||
			r.Pod.Labels[podops.GracefulDeletionLabel] == "disabled"
		if free && !answer.Allowed {
			t.Fatalf("held up: %+v", answer)
		}
		if !answer.Allowed && (answer.Message == "" || answer.Code < 400 || answer.Reason == "") {
			t.Fatalf("a refusal without a reason: %+v", answer)
		}
	})
}
