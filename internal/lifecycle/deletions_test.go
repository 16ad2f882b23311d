package lifecycle

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
	"kusionstack.io/kuperator/internal/testkit/gathered"
)

var (
	podResource = schema.GroupResource{Resource: "pods"}
	// errPolicy is what a ValidatingAdmissionPolicy answers.
	errPolicy = apierrors.NewForbidden(podResource, key.Name,
		errors.New("ValidatingAdmissionPolicy 'keep' with binding 'keep' denied request: not here"))
)

// policy is an API server that answers deletions with errors.
type policy struct {
	dryRun, inEarnest error
	tries, deletions  int
	options           []client.DeleteOptions
}

func (p *policy) funcs() interceptor.Funcs {
	deletes := func(_ context.Context, _ client.WithWatch, _ client.Object, opts ...client.DeleteOption) error {
		o := client.DeleteOptions{}
		o.ApplyOptions(opts)
		p.options = append(p.options, o)
		if len(o.DryRun) > 0 {
			p.tries++
			return p.dryRun
		}
		p.deletions++
		return p.inEarnest
	}
	return interceptor.Funcs{Delete: deletes}
}

func markedPod() *corev1.Pod {
	pod := servingPod()
	pod.Labels[appsv1alpha1.ToDeleteLabel] = "true"
	return pod
}

// kubelet makes Ready follow the gate, as the kubelet does.
func kubelet(t *testing.T, c client.Client) {
	t.Helper()
	pod := podNow(t, c)
	ready := corev1.ConditionFalse
	if podops.Read(pod).ServiceReady == corev1.ConditionTrue {
		ready = corev1.ConditionTrue
	}
	for i := range pod.Status.Conditions {
		if pod.Status.Conditions[i].Type == corev1.PodReady {
			pod.Status.Conditions[i].Status = ready
		}
	}
	require.NoError(t, c.Status().Update(t.Context(), pod))
}

func TestRefusedDeletionDoesNotBegin(t *testing.T) {
	p := &policy{dryRun: errPolicy}
	r, c := newReconciler(t, &mapperFor{err: errNoRules}, p.funcs(), markedPod())
	var waits []time.Duration
	for range 7 {
		result, err := reconcilePod(t, r)
		require.NoError(t, err)
		waits = append(waits, result.RequeueAfter/time.Second)
		again, err := reconcilePod(t, r) // for whatever reason
		require.NoError(t, err)
		assert.Equal(t, result, again)
		r.step(result.RequeueAfter)
	}
	assert.Equal(t, []time.Duration{1, 2, 4, 8, 16, 30, 30}, waits)
	assert.Equal(t, 7, p.tries)
	assert.Zero(t, p.deletions)
	pod := podNow(t, c)
	assert.True(t, podops.Read(pod).ServiceAvailable())
	assert.Empty(t, podops.Operations(podops.Read(pod)))
	why := podops.Explain(podops.Read(pod), nil)
	require.Len(t, why, 1)
	assert.Contains(t, why[0].Message, "ValidatingAdmissionPolicy 'keep'")
	assert.NotContains(t, why[0].Message, `pods "`, "the name says nothing to a Pod's own reader")
	said := eventsOf(r)
	require.Len(t, said, 1, "once a text")
	assert.Contains(t, said[0],
		"Warning DeletionRefused the API server refuses to delete the Pod: forbidden: ValidatingAdmissionPolicy 'keep'")
	assert.Contains(t, nonzero(gathered.Lines(t, r.timers)),
		"kuperator_lifecycle_waiting_operations{reason=DeletionRefused} 1")

	p.dryRun = nil
	for range 5 { // it goes on by itself
		_, err := reconcilePod(t, r)
		require.NoError(t, err)
		kubelet(t, c)
	}
	assert.Equal(t, 1, p.deletions)
	assert.Equal(t, 8, p.tries)
	assert.NotContains(t, podNow(t, c).Annotations, podops.DeletionRefusedAnnotation)
}

func TestDryRunIsTheVeryRequest(t *testing.T) {
	p := &policy{}
	r, _ := newReconciler(t, &mapperFor{err: errNoRules}, p.funcs(), markedPod())
	for range 2 {
		_, err := reconcilePod(t, r)
		require.NoError(t, err)
	}
	require.Len(t, p.options, 2)
	dryRun, inEarnest := p.options[0], p.options[1]
	assert.Equal(t, []string{metav1.DryRunAll}, dryRun.DryRun)
	assert.Empty(t, inEarnest.DryRun)
	assert.NotEqual(t, dryRun.Preconditions.ResourceVersion, inEarnest.Preconditions.ResourceVersion)
	dryRun.DryRun, dryRun.Preconditions.ResourceVersion = nil, inEarnest.Preconditions.ResourceVersion
	assert.Equal(t, inEarnest, dryRun)
}

// TestPodComesBackWhenItsDeletionIsRefused has a policy come when the Pod is out of service; and the controller
// restart.
func TestPodComesBackWhenItsDeletionIsRefused(t *testing.T) {
	for _, restart := range []bool{false, true} {
		p := &policy{inEarnest: errPolicy}
		r, c := newReconciler(t, &mapperFor{err: errNoRules}, p.funcs(), markedPod())
		_, err := reconcilePod(t, r)
		require.NoError(t, err)
		require.Equal(t, podops.PhaseOperate, podops.PhaseOf(podops.Read(podNow(t, c)), podops.DeletionID))
		if restart {
			r.deletions, r.timers = deletions{}, newPhaseTimers(r.clock)
		}
		eventsOf(r)

		p.dryRun = errPolicy
		result, err := reconcilePod(t, r)
		require.NoError(t, err)
		assert.Equal(t, refusedLook, result.RequeueAfter)
		for range 2 {
			_, err = reconcilePod(t, r)
			require.NoError(t, err)
			kubelet(t, c)
		}
		result, err = reconcilePod(t, r)
		require.NoError(t, err)
		assert.Equal(t, time.Second, result.RequeueAfter)
		pod := podNow(t, c)
		assert.True(t, podops.Read(pod).ServiceAvailable())
		assert.Empty(t, podops.Operations(podops.Read(pod)))
		assert.Contains(t, pod.Labels, appsv1alpha1.ToDeleteLabel)
		assert.Len(t, eventsOf(r), 1)

		r.step(time.Second)
		for range 3 {
			_, err = reconcilePod(t, r)
			require.NoError(t, err)
		}
		assert.Equal(t, pod.ResourceVersion, podNow(t, c).ResourceVersion, "it is not begun anew")
		assert.Equal(t, 1, p.deletions)

		p.dryRun, p.inEarnest = nil, nil
		r.step(time.Minute)
		for range 3 {
			_, err = reconcilePod(t, r)
			require.NoError(t, err)
			kubelet(t, c)
		}
		assert.Equal(t, 2, p.deletions)
	}
}

// TestDeletionThatIsTakenInDryRunsAloneIsTriedWithPauses: what an accepted dry run is worth there is seen by the
// deletion.
func TestDeletionThatIsTakenInDryRunsAloneIsTriedWithPauses(t *testing.T) {
	p := &policy{inEarnest: errPolicy}
	r, c := newReconciler(t, &mapperFor{err: errNoRules}, p.funcs(), markedPod())
	for range 120 {
		_, err := reconcilePod(t, r)
		require.NoError(t, err)
		kubelet(t, c)
		r.step(time.Second)
		eventsOf(r)
	}
	assert.LessOrEqual(t, p.deletions, 8)
}

// TestNoAnswerIsNoRefusal: nothing begins, nothing is said, and what others do with the Pod goes on.
func TestNoAnswerIsNoRefusal(t *testing.T) {
	for name, tc := range map[string]struct {
		err   error
		later bool
		soon  bool
	}{
		"the Pod has changed":      {apierrors.NewConflict(podResource, key.Name, errors.New("changed")), false, true},
		"the Pod is gone":          {apierrors.NewNotFound(podResource, key.Name), false, false},
		"the API server is busy":   {apierrors.NewTooManyRequests("busy", 1), true, false},
		"the API server is broken": {apierrors.NewInternalError(errors.New("etcd")), true, false},
		"it cannot be reached":     {errors.New("connection refused"), true, false},
	} {
		t.Run(name, func(t *testing.T) {
			pod := beginning() // another operation
			pod.Labels[appsv1alpha1.ToDeleteLabel] = "true"
			p := &policy{dryRun: tc.err}
			r, c := newReconciler(t, &mapperFor{err: errNoRules}, p.funcs(), pod)
			result, err := reconcilePod(t, r)
			require.NoError(t, err)
			assert.Equal(t, tc.later, result.RequeueAfter == untriedLook)
			assert.Equal(t, tc.soon, result.RequeueAfter > 0 && result.RequeueAfter < time.Second)
			after := podops.Read(podNow(t, c))
			assert.Equal(t, podops.PhaseNone, podops.PhaseOf(after, podops.DeletionID))
			assert.NotContains(t, after.Annotations, podops.DeletionRefusedAnnotation)
			assert.Zero(t, p.deletions)
			if !tc.soon {
				assert.Equal(t, podops.PhaseOperate, podops.PhaseOf(after, "job"))
			}
			for _, said := range eventsOf(r) {
				assert.NotContains(t, said, "DeletionRefused")
			}
		})
	}
}

func TestWhatIsKnownOfDeletionsIsForgotten(t *testing.T) {
	for name, ends := range map[string]func(t *testing.T, r *reconciler, pod *corev1.Pod){
		"with the mark": func(t *testing.T, r *reconciler, pod *corev1.Pod) {
			delete(pod.Labels, appsv1alpha1.ToDeleteLabel)
			require.NoError(t, r.client.Update(t.Context(), pod))
			_, err := reconcilePod(t, r)
			require.NoError(t, err)
			assert.NotContains(t, podNow(t, r.client).Annotations, podops.DeletionRefusedAnnotation)
		},
		"with the Pod": func(_ *testing.T, r *reconciler, _ *corev1.Pod) { r.gone(key) },
		"with its deletion": func(t *testing.T, r *reconciler, pod *corev1.Pod) {
			pod.DeletionTimestamp = &metav1.Time{Time: r.clock.Now()}
			_, err := r.observe(t.Context(), pod)
			require.NoError(t, err)
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := &policy{dryRun: errPolicy}
			r, c := newReconciler(t, &mapperFor{err: errNoRules}, p.funcs(), markedPod())
			for range 2 {
				_, err := reconcilePod(t, r)
				require.NoError(t, err)
			}
			require.NotEmpty(t, r.deletions.pods)
			require.NotEmpty(t, r.timers.refused)
			ends(t, r, podNow(t, c))
			assert.Empty(t, r.deletions.pods)
			assert.Empty(t, r.timers.refused)
		})
	}
	t.Run("and is not another Pod's", func(t *testing.T) {
		r, _ := newReconciler(t, &mapperFor{err: errNoRules}, (&policy{dryRun: errPolicy}).funcs(), markedPod())
		_, err := reconcilePod(t, r)
		require.NoError(t, err)
		other := markedPod()
		other.UID = "other"
		assert.Zero(t, r.deletions.of(other))
	})
}

func TestReasonsAreShortAndNameNoGeneratedNames(t *testing.T) {
	pod := markedPod()
	pod.GenerateName = "web-"
	assert.Equal(t, "no deletion of", reason(pod, `no deletion of "web-x7k2p"`))
	assert.Equal(t, "no deletion of web-*", reason(pod, "no deletion of web-x7k2p"))
	pod.GenerateName = ""
	assert.Equal(t, "no deletion of web-x7k2p", reason(pod, "no deletion of web-x7k2p"))
	long := reason(pod, strings.Repeat("ü", 2000))
	assert.True(t, utf8.ValidString(long))
	assert.LessOrEqual(t, len(podops.ExplainRefusal(long)), 1024, "what an event takes")
}

// TestAPodThatIsGoneIsNotDeletedAgain while the cache still shows it.
func TestAPodThatIsGoneIsNotDeletedAgain(t *testing.T) {
	p := &policy{inEarnest: apierrors.NewNotFound(corev1.Resource("pods"), "p")}
	r, c := newReconciler(t, &mapperFor{err: errNoRules}, p.funcs(), markedPod())
	_, err := reconcilePod(t, r)
	require.NoError(t, err)
	require.Equal(t, podops.PhaseOperate, podops.PhaseOf(podops.Read(podNow(t, c)), podops.DeletionID))
	asked := len(p.options)
	for range 3 {
		_, err = reconcilePod(t, r)
		require.NoError(t, err)
	}
	require.Equal(t, asked+1, len(p.options))
}

// slowLister has a list of rules take a while.
type slowLister struct {
	client.Reader
	r *reconciler
}

func (s slowLister) List(context.Context, client.ObjectList, ...client.ListOption) error {
	s.r.step(20 * time.Millisecond)
	return nil
}

// TestAnAnswerThatBecomesOldMeanwhileIsAskedAnew: nothing else would wake the Pod, which waits for nothing but the
// answer.
func TestAnAnswerThatBecomesOldMeanwhileIsAskedAnew(t *testing.T) {
	p := &policy{}
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
		Name: "kuperator-system", Annotations: map[string]string{podops.FreezeClusterAnnotation: "x"},
	}}
	r, c := newReconciler(t, &mapperFor{}, p.funcs(), markedPod(), ns)
	r.rules.newest = newRuleFreshness(slowLister{r: r})
	_, err := reconcilePod(t, r)
	require.NoError(t, err)
	require.Equal(t, podops.PhasePreCheck, podops.PhaseOf(podops.Read(podNow(t, c)), podops.DeletionID))
	r.step(time.Minute - 10*time.Millisecond)
	ns.Annotations = nil
	require.NoError(t, c.Update(t.Context(), ns))
	result, err := reconcilePod(t, r)
	require.NoError(t, err)
	assert.Positive(t, result.RequeueAfter)
	assert.Less(t, result.RequeueAfter, time.Second)
	_, err = reconcilePod(t, r)
	require.NoError(t, err)
	assert.NotEqual(t, podops.PhasePreCheck, podops.PhaseOf(podops.Read(podNow(t, c)), podops.DeletionID))
}

// TestOtherOperationsKeepTheirTimes while the API server cannot be asked about a deletion.
func TestOtherOperationsKeepTheirTimes(t *testing.T) {
	p := &policy{dryRun: apierrors.NewInternalError(errors.New("etcd is slow"))}
	pod := markedPod()
	pod.Annotations = map[string]string{
		podops.AvailableConditionsAnnotation: `{"expectedFinalizers":{"Service/default/x":"prot.podopslifecycle.kusionstack.io/x"}}`,
	}
	pod.Labels[podops.OperatingPrefix+"/job"] = "1700000000000000000"
	pod.Labels[podops.OperationTypePrefix+"/job"] = "restart"
	r, c := newReconciler(t, &mapperFor{err: errNoRules}, p.funcs(), pod)
	r.patience = 6 * time.Second
	for range 8 {
		result, err := reconcilePod(t, r)
		require.NoError(t, err)
		require.LessOrEqual(t, result.RequeueAfter, untriedLook)
		r.step(1500 * time.Millisecond)
	}
	assert.NotContains(t, podNow(t, c).Labels, podops.UnheldLabel, "the hold has ended")
	assert.Equal(t, podops.PhaseOperate, podops.PhaseOf(podops.Read(podNow(t, c)), "job"))
}
