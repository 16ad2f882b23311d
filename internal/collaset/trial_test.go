package collaset

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
	"kusionstack.io/kuperator/internal/collaset/setplan"
)

// errPolicy is what a ValidatingAdmissionPolicy answers.
var errPolicy = apierrors.NewForbidden(pods, "web-x7k2p",
	errors.New("ValidatingAdmissionPolicy 'released' with binding 'released' denied request: the image is not released"))

func TestARefusedTrialBeginsNothing(t *testing.T) {
	for name, tc := range map[string]struct {
		policy appsv1alpha1.PodUpdatePolicy
		change func(*appsv1alpha1.CollaSetSpec)
		asked  string
	}{
		"in place": {"", image("nginx:2"), "patch Pod"},
		"created":  {appsv1alpha1.PodUpdateRecreate, image("nginx:2"), "create Pod"},
		"not in place": {"", func(s *appsv1alpha1.CollaSetSpec) { s.Template.Spec.ServiceAccountName = "other" },
			"create Pod"},
		"deleted":  {appsv1alpha1.PodUpdateRecreate, image("nginx:2"), "delete Pod"},
		"replaced": {appsv1alpha1.PodUpdateReplace, image("nginx:2"), "delete Pod"},
	} {
		for _, protocol := range []bool{true, false} {
			t.Run(name, func(t *testing.T) {
				w := newWorld(t, protocol, collaSet(3))
				w.settle()
				w.change(both(tc.change, func(s *appsv1alpha1.CollaSetSpec) { s.UpdateStrategy.PodUpdatePolicy = tc.policy }))
				w.refuseTrial = refusing(tc.asked, errPolicy)
				w.look()
				assert.Empty(t, onlyPods(w.written))
				stalled := w.condition(appsv1alpha1.CollaSetStalled)
				assert.Equal(t, metav1.ConditionTrue, stalled.Status)
				assert.Contains(t, stalled.Message, "ValidatingAdmissionPolicy 'released'")
				assert.NotContains(t, stalled.Message, "x7k2p", "the name is that of the attempt")
				require.Len(t, w.set().Status.Blockers, 1)
				assert.Equal(t, setplan.BlockChangeRefused, w.set().Status.Blockers[0].Reason)

				asked := len(w.tried)
				w.look()
				assert.Len(t, w.tried, asked, "it is not asked again at once")

				w.refuseTrial = nil
				w.clock.Step(time.Minute)
				w.look()
				assert.NotEmpty(t, onlyPods(w.written), "it goes on by itself")
			})
		}
	}
}

// TestAPodThatIsOutComesBack has the API server refuse a change that it took in the trial.
func TestAPodThatIsOutComesBack(t *testing.T) {
	for name, see := range map[string]func(*world){
		"found by a decision": func(w *world) {
			result, err := w.reconcile()
			require.NoError(w, err)
			assert.Positive(w, result.RequeueAfter)
		},
		"found by a step": func(w *world) { w.step() },
	} {
		t.Run(name, func(t *testing.T) {
			w := permitted(t)
			require.NoError(t, w.r.window.decisions.Start(t.Context(), w.queued))
			w.refuse = refusing("patch Pod", errPolicy)
			see(w)
			require.Equal(t, 1, w.count("patch Pod"))
			w.forget()
			w.refuseTrial = refusing("patch Pod", errPolicy)
			w.see()
			w.look()
			assert.Equal(t, 1, w.count("patch Pod"), "it is cancelled")
			w.advance()
			w.see()
			pod := podops.Read(&w.pods()[0])
			assert.True(t, pod.ServiceAvailable())
			assert.Empty(t, podops.Operations(pod))
			assert.Equal(t, "nginx:1", w.pods()[0].Spec.Containers[0].Image)
			w.forget()
			w.refuseTrial = refusing("patch Pod", errPolicy)
			w.look()
			assert.Empty(t, onlyPods(w.written), "and not begun anew")
		})
	}
}

// TestAReplacedPodThatMayNotGoIsDeletedWithPauses has the API server refuse a deletion that it took in the trial.
func TestAReplacedPodThatMayNotGoIsDeletedWithPauses(t *testing.T) {
	set := collaSet(1)
	set.Spec.UpdateStrategy = appsv1alpha1.UpdateStrategy{PodUpdatePolicy: appsv1alpha1.PodUpdateReplace}
	w := newWorld(t, false, set)
	w.settle()
	w.change(image("nginx:2"))
	w.refuse = refusing("delete Pod", errPolicy)
	for range 4 {
		_, err := w.reconcile()
		require.NoError(t, err)
		w.see()
		w.serve()
		w.see()
	}
	assert.Equal(t, 1, w.count("delete Pod"))
	assert.Len(t, w.pods(), 2, "both serve")
	assert.Equal(t, metav1.ConditionTrue, w.condition(appsv1alpha1.CollaSetStalled).Status)
	w.refuse = nil
	w.clock.Step(time.Minute)
	w.carryOut()
	require.Len(t, w.pods(), 1)
	assert.Equal(t, 1, w.at(w.set().Status.UpdatedRevision))
}

// oneDeleted is a set of three Pods in an update by re-creation, the first of which is deleted. All were at the revision
// before.
func oneDeleted(t *testing.T) (w *world, before string) {
	t.Helper()
	set := collaSet(3)
	set.Spec.UpdateStrategy = appsv1alpha1.UpdateStrategy{PodUpdatePolicy: appsv1alpha1.PodUpdateRecreate}
	w = newWorld(t, false, set)
	w.settle()
	before = w.set().Status.UpdatedRevision
	w.change(image("nginx:2"))
	w.look()
	require.Equal(t, 1, w.count("delete Pod"))
	return w, before
}

// TestASuccessorThatIsRefusedComesAtTheRevisionBefore has the API server refuse new Pods when one is gone already.
func TestASuccessorThatIsRefusedComesAtTheRevisionBefore(t *testing.T) {
	w, before := oneDeleted(t)
	w.refuse = refusingImage("nginx:2", errPolicy)
	w.refuseTrial = refusingImage("nginx:2", errPolicy)
	for range 5 {
		_, _ = w.reconcile()
		w.see()
		w.serve()
		w.see()
		w.clock.Step(time.Second)
	}
	assert.Equal(t, 3, w.at(before), "all serve as they did")
	assert.Equal(t, 1, w.count("delete Pod"), "and no other goes")
	assert.Equal(t, metav1.ConditionTrue, w.condition(appsv1alpha1.CollaSetStalled).Status)
	w.refuse, w.refuseTrial = nil, nil
	w.clock.Step(time.Minute)
	w.carryOut()
	assert.Equal(t, 3, w.at(w.set().Status.UpdatedRevision))
}

// TestAQuotaThatRefusesASuccessor: it may still count the Pod that has made room, some time after that is gone. A Pod of
// the revision before is no way out then; it is one where the updated revision alone needs too much.
func TestAQuotaThatRefusesASuccessor(t *testing.T) {
	for name, tc := range map[string]struct {
		figures string
		back    bool
	}{
		"of any revision":       {"requested: pods=1, used: pods=3, limited: pods=3", false},
		"that needs more alone": {"requested: requests.cpu=150m, used: requests.cpu=200m, limited: requests.cpu=300m", true},
	} {
		t.Run(name, func(t *testing.T) {
			w, before := oneDeleted(t)
			why := errors.New("exceeded quota: team, " + tc.figures)
			w.refuse = refusingImage("nginx:2", apierrors.NewForbidden(pods, "x", why))
			for range 3 {
				_, _ = w.reconcile()
				w.see()
				w.serve()
				w.see()
			}
			require.Equal(t, tc.back, w.at(before) == 3, "it is there, at the revision before")
			require.Equal(t, 1, w.count("delete Pod"), "no other goes meanwhile")
			w.refuse = nil
			w.clock.Step(time.Minute)
			w.carryOut()
			require.Equal(t, 3, w.at(w.set().Status.UpdatedRevision))
		})
	}
}

// refusingImage answers the creation of a Pod with an image.
func refusingImage(image string, answer error) func(string, client.Object) error {
	return func(what string, o client.Object) error {
		if pod, ok := o.(*unstructured.Unstructured); ok && what == "create Pod" {
			containers, _, _ := unstructured.NestedSlice(pod.Object, "spec", "containers")
			if containers[0].(map[string]any)["image"] == image {
				return answer
			}
		}
		return nil
	}
}

func TestFitsAfter(t *testing.T) {
	pod := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Resources: corev1.ResourceRequirements{
		Requests: corev1.ResourceList{"cpu": resource.MustParse("100m"), "memory": resource.MustParse("1Gi")},
		Limits:   corev1.ResourceList{"cpu": resource.MustParse("200m")},
	}}}}}
	for message, fits := range map[string]bool{
		`pods "x" is forbidden: exceeded quota: full, requested: pods=1, used: pods=10, limited: pods=10`:                                 true,
		`exceeded quota: full, requested: pods=1, used: pods=12, limited: pods=10`:                                                        false,
		`exceeded quota: full, requested: cpu=100m, used: cpu=1, limited: cpu=1`:                                                          true,
		`exceeded quota: full, requested: cpu=150m, used: cpu=1, limited: cpu=1`:                                                          false,
		`exceeded quota: full, requested: requests.cpu=150m, used: requests.cpu=1, limited: requests.cpu=1050m`:                           true,
		`exceeded quota: full, requested: limits.cpu=300m, used: limits.cpu=2, limited: limits.cpu=2`:                                     false,
		`exceeded quota: full, requested: limits.cpu=300m,pods=1, used: limits.cpu=2,pods=3, limited: limits.cpu=2100m,pods=3`:            true,
		`exceeded quota: full, requested: requests.memory=1Gi, used: requests.memory=10Gi, limited: requests.memory=10Gi`:                 true,
		`exceeded quota: full, requested: requests.nvidia.com/gpu=1, used: requests.nvidia.com/gpu=4, limited: requests.nvidia.com/gpu=4`: false,
		`failed quota: full: must specify limits.cpu for: app`:                                                                            false,
		`exceeded quota: full, requested: nonsense, used: cpu=1, limited: cpu=1`:                                                          false,
	} {
		assert.Equal(t, fits, fitsAfter(message, pod), message)
	}
}

func TestIsFullFor(t *testing.T) {
	pod := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Resources: corev1.ResourceRequirements{
		Requests: corev1.ResourceList{"cpu": resource.MustParse("100m")},
	}}}}}
	for message, full := range map[string]bool{
		`exceeded quota: full, requested: pods=1, used: pods=10, limited: pods=10`:                                                        true,
		`exceeded quota: full, requested: requests.cpu=150m, used: requests.cpu=900m, limited: requests.cpu=1`:                            false,
		`exceeded quota: full, requested: requests.cpu=150m, used: requests.cpu=950m, limited: requests.cpu=1`:                            true,
		`exceeded quota: full, requested: cpu=150m,pods=1, used: cpu=1,pods=3, limited: cpu=2,pods=3`:                                     true,
		`exceeded quota: full, requested: requests.nvidia.com/gpu=1, used: requests.nvidia.com/gpu=4, limited: requests.nvidia.com/gpu=4`: false,
		`exceeded quota`: false,
		`exceeded quota: full, requested: nonsense, used: cpu=1, limited: cpu=1`: false,
	} {
		assert.Equal(t, full, isFullFor(message, pod), message)
	}
}

func TestVerdictsBackOff(t *testing.T) {
	var v verdicts
	trial := setplan.Trial{Write: setplan.TrialCreate, To: setplan.Form{Revision: "r2"}}
	now := time.Unix(1_700_000_000, 0)
	no := setplan.Verdict{Refused: "no"}
	var waits []time.Duration
	for range 7 {
		v.refuse(trial, no, now)
		retry := v.all(now)[trial].Retry
		waits = append(waits, retry.Sub(now))
		v.refuse(trial, no, now)
		assert.Equal(t, retry, v.all(now)[trial].Retry, "writes that were under way together count once")
		now = retry
		v.accept(trial, true, now)
		assert.Empty(t, v.all(now)[trial].Refused)
		v.refuse(trial, no, now)
		now = v.all(now)[trial].Retry
	}
	assert.Equal(t, []time.Duration{1 * time.Second, 4 * time.Second, 16 * time.Second, 30 * time.Second, 30 * time.Second,
		30 * time.Second, 30 * time.Second}, waits,
		"a trial that is accepted does not shorten the wait")
	v.accept(trial, false, now)
	v.refuse(trial, no, now)
	assert.Equal(t, time.Second, v.all(now)[trial].Retry.Sub(now), "a write does")
	assert.Empty(t, v.all(now.Add(time.Hour)), "what no decision asks for is forgotten")
}

func TestMaxUnavailableIsADeployments(t *testing.T) {
	for _, tc := range []struct {
		value    string
		replicas int
		want     int
	}{{"", 1, 1}, {"", 3, 1}, {"", 4, 1}, {"", 8, 2}, {"", 11, 2}, {"50%", 3, 1}, {"100%", 3, 3}, {"100%", 0, 1},
		{"2", 10, 2}} {
		var rolling *appsv1alpha1.RollingUpdateStrategy
		if tc.value != "" {
			rolling = &appsv1alpha1.RollingUpdateStrategy{MaxUnavailable: ptr.To(intstr.Parse(tc.value))}
		}
		assert.Equal(t, tc.want, maxUnavailable(rolling, tc.replicas), "%q of %d", tc.value, tc.replicas)
	}
}
