package webhook

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"maps"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	"github.com/stretchr/testify/require"
	admissionv1 "k8s.io/api/admission/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
)

// testHandlers are all handlers on an empty cluster.
func testHandlers() map[string]admission.HandlerFunc {
	nobody, clk := fake.NewFakeClient(), clocktesting.NewFakePassiveClock(time.Unix(1, 0))
	return handlers(&podMutator{services: nobody},
		&remover{namespaces: nobody, live: nobody, writer: nobody, clock: clk, refusals: newRefusals(clk)},
		&forecaster{serverCan: newest})
}

// cluster is a remover and what it sees.
type cluster struct {
	*remover
	client client.WithWatch
	clock  *clocktesting.FakePassiveClock
	// reads and patches count what the API server is asked; the namespaces come from the cache.
	reads, patches int
	// fail, if set, may answer a call with an error.
	fail func(verb string, object runtime.Object) error
}

func newCluster(objects ...client.Object) *cluster {
	c := &cluster{clock: clocktesting.NewFakePassiveClock(time.Unix(1000, 0))}
	objects = append(objects, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}})
	scheme := runtime.NewScheme()
	utilruntime.Must(clientgoscheme.AddToScheme(scheme))
	utilruntime.Must(appsv1alpha1.AddToScheme(scheme))
	c.client = fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).WithStatusSubresource(
		&policyv1.PodDisruptionBudget{}).Build()
	failing := func(verb string, object runtime.Object) error {
		if c.fail == nil {
			return nil
		}
		return c.fail(verb, object)
	}
	live := interceptor.NewClient(c.client, interceptor.Funcs{
		Get: func(ctx context.Context, w client.WithWatch, key client.ObjectKey, obj client.Object,
			opts ...client.GetOption) error {
			c.reads++
			return errors.Join(failing("get", obj), w.Get(ctx, key, obj, opts...))
		},
		List: func(ctx context.Context, w client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
			c.reads++
			return errors.Join(failing("list", list), w.List(ctx, list, opts...))
		},
		Patch: func(ctx context.Context, w client.WithWatch, obj client.Object, patch client.Patch,
			opts ...client.PatchOption) error {
			c.patches++
			if err := failing("patch", obj); err != nil {
				return err
			}
			if err := samePod(ctx, w, obj, patch); err != nil {
				return err
			}
			return w.Patch(ctx, obj, patch, opts...)
		},
	})
	c.remover = &remover{policy: defaultPolicy(true), namespaces: c.client, live: live, writer: live, clock: c.clock,
		refusals: newRefusals(c.clock)}
	return c
}

// samePod is the API server's check of metadata.uid in a patch, which the fake client lacks.
func samePod(ctx context.Context, reader client.Reader, obj client.Object, patch client.Patch) error {
	body, err := patch.Data(obj)
	if err != nil {
		return err
	}
	var sent corev1.Pod
	now := &corev1.Pod{}
	if err := errors.Join(json.Unmarshal(body, &sent), reader.Get(ctx, client.ObjectKeyFromObject(obj), now)); err != nil {
		return err
	}
	if sent.UID == "" {
		return errors.New("the patch has no UID")
	}
	if sent.UID != now.UID {
		return apierrors.NewConflict(corev1.Resource("pods"), now.Name, errors.New("another UID"))
	}
	return nil
}

// webPod is a managed Pod that serves.
func webPod(changes ...func(*corev1.Pod)) *corev1.Pod {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web-1", UID: "u1",
			Labels: map[string]string{"app": "web", appsv1alpha1.ControlLabel: "true"}},
		Spec: corev1.PodSpec{NodeName: "n1",
			ReadinessGates: []corev1.PodReadinessGate{{ConditionType: podops.ServiceReadyCondition}}},
		Status: corev1.PodStatus{Phase: corev1.PodRunning,
			Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}},
	}
	for _, change := range changes {
		change(pod)
	}
	return pod
}

func (c *cluster) mark(t *testing.T) string {
	t.Helper()
	pod := &corev1.Pod{}
	require.NoError(t, c.client.Get(t.Context(), client.ObjectKey{Namespace: "shop", Name: "web-1"}, pod))
	return pod.Labels[appsv1alpha1.ToDeleteLabel]
}

func rawOf(t *testing.T, object any) runtime.RawExtension {
	t.Helper()
	raw, err := json.Marshal(object)
	require.NoError(t, err)
	return runtime.RawExtension{Raw: raw}
}

func removalRequest(user string) admission.Request {
	return admission.Request{AdmissionRequest: admissionv1.AdmissionRequest{
		Resource: metav1.GroupVersionResource{Version: "v1", Resource: "pods"}, Namespace: "shop", Name: "web-1",
		UserInfo: authenticationv1.UserInfo{Username: user},
	}}
}

// delete asks for a deletion, as part of a collection: such a request has no name.
func (c *cluster) delete(t *testing.T, pod *corev1.Pod, options metav1.DeleteOptions) admission.Response {
	t.Helper()
	request := removalRequest("jane")
	request.Name, request.Operation = "", admissionv1.Delete
	request.OldObject, request.Options = rawOf(t, pod), rawOf(t, options)
	return c.deletion(t.Context(), request)
}

func (c *cluster) evict(t *testing.T, user string, options *metav1.DeleteOptions) admission.Response {
	t.Helper()
	request := removalRequest(user)
	request.Operation, request.SubResource = admissionv1.Create, "eviction"
	request.Object = rawOf(t, policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web-1"},
		DeleteOptions: options})
	return c.eviction(t.Context(), request)
}

func TestDeletionMarksOnceAndReadsNothing(t *testing.T) {
	c := newCluster(webPod())
	response := c.delete(t, webPod(), metav1.DeleteOptions{})
	require.False(t, response.Allowed)
	require.EqualValues(t, http.StatusConflict, response.Result.Code)
	require.Equal(t, "1000000000000", c.mark(t), "the mark is the time")
	pod := webPod(func(p *corev1.Pod) { p.Labels[appsv1alpha1.ToDeleteLabel] = "1000000000000" })
	c.clock.SetTime(time.Unix(2000, 0))
	response = c.delete(t, pod, metav1.DeleteOptions{})
	require.False(t, response.Allowed)
	require.Equal(t, "1000000000000", c.mark(t), "a mark stays as it is")
	require.Equal(t, 1, c.patches)
	require.Zero(t, c.reads, "the request brings the Pod along, and the namespace is cached")
}

// TestADeletionIsRecordedBesideAnEvictionRequest: the Pod goes even if the request is withdrawn.
func TestADeletionIsRecordedBesideAnEvictionRequest(t *testing.T) {
	c := newCluster(webPod())
	asked := webPod(func(p *corev1.Pod) {
		p.Labels[appsv1alpha1.ToDeleteLabel] = "7"
		p.Annotations = map[string]string{appsv1alpha1.ToDeleteLabel + podops.AskersSuffix: podops.AskerEvictionRequest}
	})
	// The request has been withdrawn since the API server read the Pod.
	require.False(t, c.delete(t, asked, metav1.DeleteOptions{}).Allowed)
	pod := webPod()
	require.NoError(t, c.client.Get(t.Context(), client.ObjectKeyFromObject(pod), pod))
	v := podops.Read(pod)
	require.Equal(t, "7", v.Labels[appsv1alpha1.ToDeleteLabel])
	require.Equal(t, []string{podops.AskerEvictionRequest, podops.AskerOther},
		podops.Askers(v, appsv1alpha1.ToDeleteLabel))
	require.False(t, c.delete(t, pod, metav1.DeleteOptions{}).Allowed)
	require.Equal(t, 1, c.patches)
}

func TestAMarkedPodOfAReplicaSetIsTheNextThatItDeletes(t *testing.T) {
	ownedBy := func(kind, cost string) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: kind, Name: "web", UID: "o",
				Controller: ptr.To(true)}}
			if cost != "" {
				p.Annotations = map[string]string{corev1.PodDeletionCost: cost}
			}
		}
	}
	tests := map[string]struct{ kind, cost, want string }{
		"a Pod of a ReplicaSet":          {"ReplicaSet", "", cheapest},
		"a Pod whose owner set the cost": {"ReplicaSet", "5", "5"},
		"a Pod of a StatefulSet":         {"StatefulSet", "", ""},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			pod := webPod(ownedBy(tc.kind, tc.cost))
			c := newCluster(pod)
			require.False(t, c.delete(t, pod, metav1.DeleteOptions{}).Allowed)
			require.NotEmpty(t, c.mark(t))
			require.NoError(t, c.client.Get(t.Context(), client.ObjectKeyFromObject(pod), pod))
			require.Equal(t, tc.want, pod.Annotations[corev1.PodDeletionCost])
		})
	}
}

func TestDeletionForcedOrInADryRunHasNoEffect(t *testing.T) {
	c := newCluster(webPod())
	require.True(t, c.delete(t, webPod(), metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)}).Allowed)
	require.False(t, c.delete(t, webPod(func(p *corev1.Pod) { p.UID = "u0" }),
		metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](1)}).Allowed)
	require.Empty(t, c.mark(t), "another Pod of that name is not marked")
	request := removalRequest("jane")
	request.Operation, request.OldObject, request.DryRun = admissionv1.Delete, rawOf(t, webPod()), ptr.To(true)
	response := c.deletion(t.Context(), request)
	require.True(t, response.Allowed)
	require.Len(t, response.Warnings, 1)
	require.Empty(t, c.mark(t))
}

func TestDeletionInANamespaceThatTerminatesOrSaysSo(t *testing.T) {
	c := newCluster(webPod())
	namespace := &corev1.Namespace{}
	require.NoError(t, c.client.Get(t.Context(), client.ObjectKey{Name: "shop"}, namespace))
	namespace.Labels = map[string]string{podops.GracefulDeletionLabel: "disabled"}
	require.NoError(t, c.client.Update(t.Context(), namespace))
	require.True(t, c.delete(t, webPod(), metav1.DeleteOptions{}).Allowed)
	namespace.Labels, namespace.Finalizers = nil, []string{"kubernetes"}
	require.NoError(t, c.client.Update(t.Context(), namespace))
	require.NoError(t, c.client.Delete(t.Context(), namespace))
	require.True(t, c.delete(t, webPod(), metav1.DeleteOptions{}).Allowed)
	require.Zero(t, c.patches)
}

// TestTheGarbageCollectorLeavesThePodsOfACollaSetToIt is about Pods whose owner reference blocks: they are what the
// garbage collector deletes while their owner is being deleted.
func TestTheGarbageCollectorLeavesThePodsOfACollaSetToIt(t *testing.T) {
	of := func(apiVersion, kind string) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.OwnerReferences = []metav1.OwnerReference{{APIVersion: apiVersion, Kind: kind, Name: "web", UID: "o",
				Controller: ptr.To(true), BlockOwnerDeletion: ptr.To(true)}}
		}
	}
	ours := of(appsv1alpha1.SchemeGroupVersion.String(), appsv1alpha1.CollaSetKind)
	leaving := func(changes ...func(*appsv1alpha1.CollaSet)) *appsv1alpha1.CollaSet {
		set := &appsv1alpha1.CollaSet{ObjectMeta: metav1.ObjectMeta{
			Namespace: "shop", Name: "web", UID: "o", DeletionTimestamp: &metav1.Time{Time: time.Unix(900, 0)},
			Finalizers: []string{metav1.FinalizerDeleteDependents, appsv1alpha1.CollaSetFinalizer},
		}}
		for _, change := range changes {
			change(set)
		}
		return set
	}
	for name, tc := range map[string]struct {
		user     string
		pod      *corev1.Pod
		set      *appsv1alpha1.CollaSet
		off      bool
		admitted bool
	}{
		"its CollaSet takes it out of service": {pod: webPod(ours), set: leaving()},
		"its CollaSet is gone":                 {pod: webPod(ours), admitted: true},
		"another has its name": {pod: webPod(ours),
			set: leaving(func(s *appsv1alpha1.CollaSet) { s.UID = "other" }), admitted: true},
		"nothing holds the CollaSet for it": {pod: webPod(ours),
			set: leaving(func(s *appsv1alpha1.CollaSet) { s.Finalizers = s.Finalizers[:1] }), admitted: true},
		"its CollaSet stays": {
			pod: webPod(ours), set: leaving(func(s *appsv1alpha1.CollaSet) { s.DeletionTimestamp = nil }), admitted: true,
		},
		"a Pod of a ReplicaSet": {pod: webPod(of("apps/v1", "ReplicaSet")), set: leaving(), admitted: true},
		"a CollaSet of another group": {pod: webPod(of("example.test/v1", appsv1alpha1.CollaSetKind)), set: leaving(),
			admitted: true},
		"a Pod that is out of service":   {pod: webPod(ours, updating), set: leaving(), admitted: true},
		"graceful deletion is off":       {pod: webPod(ours), set: leaving(), off: true, admitted: true},
		"another user who must not wait": {user: "system:kube-scheduler", pod: webPod(ours), set: leaving(), admitted: true},
	} {
		t.Run(name, func(t *testing.T) {
			objects := []client.Object{tc.pod}
			if tc.set != nil {
				objects = append(objects, tc.set)
			}
			c := newCluster(objects...)
			c.policy = defaultPolicy(!tc.off)
			request := removalRequest(cmp.Or(tc.user, garbageCollector))
			request.Operation, request.OldObject, request.Options = admissionv1.Delete, rawOf(t, tc.pod),
				rawOf(t, metav1.DeleteOptions{})
			response := c.deletion(t.Context(), request)
			require.Equal(t, tc.admitted, response.Allowed)
			require.Empty(t, c.mark(t), "the CollaSet deletes it")
			if !tc.admitted {
				require.EqualValues(t, http.StatusConflict, response.Result.Code)
				require.Contains(t, response.Result.Message, "CollaSet web is being deleted and takes Pod web-1 out of service")
			}
		})
	}
	t.Run("the CollaSet cannot be read", func(t *testing.T) {
		pod := webPod(ours)
		c := newCluster(pod, leaving())
		c.fail = func(string, runtime.Object) error { return errors.New("no answer") }
		request := removalRequest(garbageCollector)
		request.Operation, request.OldObject, request.Options = admissionv1.Delete, rawOf(t, pod),
			rawOf(t, metav1.DeleteOptions{})
		response := c.deletion(t.Context(), request)
		require.False(t, response.Allowed)
		require.EqualValues(t, http.StatusInternalServerError, response.Result.Code)
	})
}

func TestANamespaceThatTheCacheLacksIsRead(t *testing.T) {
	c := newCluster(webPod())
	c.namespaces = fake.NewFakeClient()
	require.False(t, c.delete(t, webPod(), metav1.DeleteOptions{}).Allowed)
	require.Equal(t, 1, c.reads)
	require.NotEmpty(t, c.mark(t))
}

// updating has the Pod, in version 7, out of service for an update in place, which may act.
func updating(p *corev1.Pod) {
	p.ResourceVersion = "7"
	maps.Copy(p.Labels, operateLabels("collaset", "update"))
	p.Status.Conditions = nil
}

func ofVersion(v string) *metav1.DeleteOptions {
	return &metav1.DeleteOptions{Preconditions: &metav1.Preconditions{ResourceVersion: &v}}
}

func TestEviction(t *testing.T) {
	budget := func(allowed int32, owner string) *policyv1.PodDisruptionBudget {
		b := &policyv1.PodDisruptionBudget{
			ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "budget"},
			Spec:       policyv1.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}},
			Status:     policyv1.PodDisruptionBudgetStatus{DisruptionsAllowed: allowed},
		}
		if owner != "" {
			b.OwnerReferences = []metav1.OwnerReference{{APIVersion: owner, Kind: "PodTransitionRule", Name: "r", UID: "r",
				Controller: ptr.To(true)}}
		}
		return b
	}
	tests := map[string]struct {
		objects []client.Object
		options *metav1.DeleteOptions
		allowed bool
		marked  bool
		says    string
	}{
		"a Pod that serves": {objects: []client.Object{webPod()}, marked: true,
			says: "is being taken out of service"},
		"a Pod that does not exist": {allowed: true},
		"a Pod that is not managed": {objects: []client.Object{webPod(func(p *corev1.Pod) { p.Labels = nil })},
			allowed: true},
		"a dry run in the body": {objects: []client.Object{webPod()},
			options: &metav1.DeleteOptions{DryRun: []string{"All"}}, allowed: true, says: "not in a dry run"},
		"a grace period of 0": {objects: []client.Object{webPod()},
			options: &metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)}, allowed: true},
		"a precondition that fails anyway": {objects: []client.Object{webPod()},
			options: &metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: ptr.To(types.UID("u0"))}}, allowed: true},
		"a precondition that holds": {objects: []client.Object{webPod()},
			options: &metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: ptr.To(types.UID("u1"))}}, marked: true},
		"an update that may act": {objects: []client.Object{webPod(updating)}, marked: true,
			says: "is being taken out of service"},
		"an update, and an old version": {objects: []client.Object{webPod(updating)}, options: ofVersion("6"),
			allowed: true},
		"an update, and this version": {objects: []client.Object{webPod(updating)}, options: ofVersion("7"),
			allowed: true},
		"this version of a Pod that serves": {objects: []client.Object{webPod(
			func(p *corev1.Pod) { p.ResourceVersion = "7" })}, options: ofVersion("7"), marked: true},
		"a budget that allows none": {objects: []client.Object{webPod(), budget(0, "")},
			says: "PodDisruptionBudget budget allows no disruption now"},
		"a budget that allows one": {objects: []client.Object{webPod(), budget(1, "")}, marked: true},
		"a budget of other Pods": {objects: []client.Object{webPod(
			func(p *corev1.Pod) { p.Labels["app"] = "db" }), budget(0, "")}, marked: true},
		"a budget that mirrors a rule": {objects: []client.Object{webPod(),
			budget(0, "apps.kusionstack.io/v1alpha1")}, marked: true},
		"a budget that somebody's rule mirrors": {objects: []client.Object{webPod(), budget(0, "example.test/v1")},
			says: "allows no disruption now"},
		"a budget and a Pod that is not Ready": {objects: []client.Object{webPod(
			func(p *corev1.Pod) { p.Status.Conditions = nil }), budget(0, "")}, marked: true},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			c := newCluster(tc.objects...)
			response := c.evict(t, "jane", tc.options)
			require.Equal(t, tc.allowed, response.Allowed, "%+v", response.Result)
			message := strings.Join(response.Warnings, "\n")
			if !tc.allowed {
				status := apierrors.StatusError{ErrStatus: *response.Result}
				require.True(t, apierrors.IsTooManyRequests(&status))
				seconds, suggested := apierrors.SuggestsClientDelay(&status)
				require.True(t, suggested)
				require.Equal(t, retrySeconds, seconds)
				message = response.Result.Message
			}
			require.Contains(t, message, tc.says)
			if tc.says == "" && tc.allowed {
				require.Empty(t, message)
			}
			if len(tc.objects) > 0 {
				require.Equal(t, tc.marked, c.mark(t) != "")
			}
		})
	}
}

func TestRepeatedEvictionDoesNotHitTheNextPodOfThatName(t *testing.T) {
	c := newCluster(webPod())
	require.False(t, c.evict(t, "drainer", nil).Allowed)
	replace := func(uid types.UID) {
		require.NoError(t, c.client.Delete(t.Context(), webPod()))
		require.NoError(t, c.client.Create(t.Context(), webPod(func(p *corev1.Pod) { p.UID = uid })))
	}
	replace("u2")
	require.True(t, c.evict(t, "drainer", &metav1.DeleteOptions{DryRun: []string{"All"}}).Allowed,
		"a dry run neither uses nor changes the memory")

	response := c.evict(t, "drainer", nil)
	require.False(t, response.Allowed)
	require.True(t, apierrors.IsNotFound(&apierrors.StatusError{ErrStatus: *response.Result}),
		"drain takes that as the end: %+v", response.Result)
	require.Empty(t, c.mark(t))

	require.False(t, c.evict(t, "drainer", nil).Allowed)
	require.NotEmpty(t, c.mark(t), "whoever asks again means the new Pod")

	replace("u3")
	require.False(t, c.evict(t, "somebody else", nil).Allowed)
	require.NotEmpty(t, c.mark(t))

	replace("u4")
	c.clock.SetTime(c.clock.Now().Add(evictionMemory + time.Second))
	require.False(t, c.evict(t, "drainer", nil).Allowed)
	require.NotEmpty(t, c.mark(t), "what was long ago does not count")
}

// TestARepeatedEvictionWaitsForThePodToGo: between the answer and the deletion the next Pod of the name may come.
func TestARepeatedEvictionWaitsForThePodToGo(t *testing.T) {
	ofStatefulSet := func(p *corev1.Pod) {
		p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "StatefulSet", Name: "web", UID: "s",
			Controller: ptr.To(true)}}
	}
	leave := func(p *corev1.Pod) {
		maps.Copy(p.Labels, operateLabels(podops.DeletionID, podops.TypeDelete))
		p.Status.Conditions = nil
	}
	for name, tc := range map[string]struct {
		pod  func(*corev1.Pod)
		held bool
	}{
		"of a StatefulSet": {pod: ofStatefulSet, held: true},
		"of another owner": {pod: func(*corev1.Pod) {}},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(webPod(tc.pod))
			require.False(t, c.evict(t, "drainer", nil).Allowed)
			pod := webPod(tc.pod, leave)
			pod.Labels[appsv1alpha1.ToDeleteLabel] = c.mark(t)
			require.NoError(t, c.client.Delete(t.Context(), webPod()))
			require.NoError(t, c.client.Create(t.Context(), pod))
			require.True(t, c.evict(t, "somebody else", nil).Allowed, "whoever was not refused may evict it now")
			uid := &metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &pod.UID}}
			require.True(t, c.evict(t, "drainer", uid).Allowed, "the API server deletes no other Pod then")
			response := c.evict(t, "drainer", nil)
			require.Equal(t, !tc.held, response.Allowed, "%+v", response.Result)
			if tc.held {
				require.True(t, apierrors.IsTooManyRequests(&apierrors.StatusError{ErrStatus: *response.Result}))
			}
		})
	}
}

func TestRemovalWhenTheAPIServerFails(t *testing.T) {
	down := errors.New("etcd is away")
	tests := map[string]struct {
		verb  string
		kind  runtime.Object
		err   error
		evict bool
		code  int
		says  string
	}{
		"the mark of a deletion": {"patch", &corev1.Pod{}, down, false, http.StatusInternalServerError,
			"marking Pod shop/web-1"},
		"the mark of an eviction": {"patch", &corev1.Pod{}, down, true, http.StatusTooManyRequests,
			"marking Pod shop/web-1"},
		"the Pod of an eviction": {"get", &corev1.Pod{}, down, true, http.StatusTooManyRequests,
			"reading Pod shop/web-1"},
		"the budgets": {"list", &policyv1.PodDisruptionBudgetList{}, down, true, http.StatusTooManyRequests,
			"listing the PodDisruptionBudgets"},
		"the namespace": {"get", &metav1.PartialObjectMetadata{}, down, false, http.StatusInternalServerError,
			"reading Namespace shop"},
		"a Pod that is gone meanwhile": {"patch", &corev1.Pod{}, apierrors.NewNotFound(corev1.Resource("pods"), "web-1"),
			false, http.StatusConflict, "being taken out"},
		"a Pod that is another one": {"patch", &corev1.Pod{},
			apierrors.NewConflict(corev1.Resource("pods"), "web-1", down), true, http.StatusTooManyRequests, "being taken out"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			c := newCluster(webPod())
			c.namespaces = c.live // so that reading the namespace can fail
			failed := false
			c.fail = func(verb string, object runtime.Object) error {
				if verb == tc.verb && sameType(object, tc.kind) {
					failed = true
					return tc.err
				}
				return nil
			}
			var response admission.Response
			if tc.evict {
				response = c.evict(t, "jane", nil)
			} else {
				response = c.delete(t, webPod(), metav1.DeleteOptions{})
			}
			require.True(t, failed, "the call was made")
			require.False(t, response.Allowed)
			require.EqualValues(t, tc.code, response.Result.Code)
			require.Contains(t, response.Result.Message, tc.says)
			require.Empty(t, c.mark(t))
		})
	}
}

func TestAFailureIsLogged(t *testing.T) {
	var lines []string
	logger := funcr.New(func(_, line string) { lines = append(lines, line) }, funcr.Options{})
	failed(log.IntoContext(t.Context(), logger), removal{Verb: removeByEviction}, errors.New("etcd is away"))
	require.Len(t, lines, 1)
	require.Contains(t, lines[0], "etcd is away")
}

func sameType(a, b runtime.Object) bool {
	switch b.(type) {
	case *corev1.Pod:
		_, same := a.(*corev1.Pod)
		return same
	case *policyv1.PodDisruptionBudgetList:
		_, same := a.(*policyv1.PodDisruptionBudgetList)
		return same
	default:
		_, same := a.(*metav1.PartialObjectMetadata)
		return same
	}
}

func TestRemovalsThatAreNone(t *testing.T) {
	c := newCluster(webPod())
	for name, change := range map[string]func(*admission.Request){
		"another resource":    func(r *admission.Request) { r.Resource.Resource = "widgets" },
		"another subresource": func(r *admission.Request) { r.SubResource = "status" },
		"another operation":   func(r *admission.Request) { r.Operation = admissionv1.Connect },
	} {
		t.Run(name, func(t *testing.T) {
			request := removalRequest("jane")
			request.Operation, request.OldObject = admissionv1.Delete, runtime.RawExtension{Raw: []byte("no JSON")}
			require.EqualValues(t, http.StatusBadRequest, c.deletion(t.Context(), request).Result.Code, "nonsense is refused")
			change(&request)
			require.True(t, c.deletion(t.Context(), request).Allowed)

			request = removalRequest("jane")
			request.Operation, request.SubResource, request.Object = admissionv1.Create, "eviction",
				runtime.RawExtension{Raw: []byte("no JSON")}
			require.EqualValues(t, http.StatusBadRequest, c.eviction(t.Context(), request).Result.Code)
			change(&request)
			require.True(t, c.eviction(t.Context(), request).Allowed)
		})
	}
	require.Zero(t, c.patches)
}

func TestPodsOfOtherNamespacesAreLeftAlone(t *testing.T) {
	request := ask(t, "pods", `{metadata: {labels: {kusionstack.io/control: "true"}}, spec: {}}`, "")
	request.Namespace = "shop"
	for name, tc := range map[string]struct {
		namespaces []string
		patches    int
	}{
		"all":          {nil, 1},
		"one of them":  {[]string{"other", "shop"}, 1},
		"none of them": {[]string{"other"}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			response := within(tc.namespaces, (&podMutator{}).mutate)(t.Context(), request)
			require.True(t, response.Allowed)
			require.Len(t, response.Patches, tc.patches)
		})
	}
}

func TestAnnounceServices(t *testing.T) {
	service := func(name, namespace string, selector map[string]string, changes ...func(*corev1.Service)) *corev1.Service {
		s := &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name,
				Labels: map[string]string{appsv1alpha1.ControlLabel: "true"}},
			Spec: corev1.ServiceSpec{Selector: selector},
		}
		for _, change := range changes {
			change(s)
		}
		return s
	}
	web := map[string]string{"app": "web"}
	mutator := &podMutator{services: fake.NewClientBuilder().WithObjects(
		service("web", "shop", web),
		service("elsewhere", "other", web),
		service("db", "shop", map[string]string{"app": "db"}),
		service("none", "shop", nil),
		service("free", "shop", web, func(s *corev1.Service) { s.Labels = nil }),
		service("outside", "shop", web, func(s *corev1.Service) { s.Spec.Type = corev1.ServiceTypeExternalName }),
		service("leaving", "shop", web, func(s *corev1.Service) {
			s.DeletionTimestamp, s.Finalizers = ptr.To(metav1.Unix(1, 0)), []string{"example.test/a"}
		}),
	).Build()}
	finalizer := podops.ProtectionFinalizerPrefix + "/" + "9705eb7ac2c98403"
	expects := func(more string) string {
		return `{"expectedFinalizers":{` + more + `"Service/shop/web":"` + finalizer + `"}}`
	}
	const gates = `spec: {readinessGates: [{conditionType: ` + gate + `}]}`
	tests := map[string]struct{ metadata, want, warning string }{
		"a Pod without annotations": {`labels: {kusionstack.io/control: "true", app: web}`, expects(""), ""},
		"a Pod with null annotations": {`annotations: null, labels: {kusionstack.io/control: "true", app: web}`,
			expects(""), ""},
		"what others announced stays": {`annotations: {a: b, pod.kusionstack.io/available-conditions: '{"expectedFinalizers":{"LB/shop/x":"f"}}'}, labels: {kusionstack.io/control: "true", app: web}`, expects(`"LB/shop/x":"f",`), ""},
		"what is announced already stays": {`annotations: {pod.kusionstack.io/available-conditions: '` + expects("") +
			`'}, labels: {kusionstack.io/control: "true", app: web}`, expects(""), ""},
		"a Pod that no Service selects":           {`labels: {kusionstack.io/control: "true", app: cache}`, "", ""},
		"a Pod that is not managed":               {`labels: {app: web}`, "", ""},
		"an annotation that cannot be read stays": {`annotations: {pod.kusionstack.io/available-conditions: "no JSON"}, labels: {kusionstack.io/control: "true", app: web}`, "no JSON", "is not valid JSON"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			request := ask(t, "pods", `{metadata: {generateName: web-, `+tc.metadata+`}, `+gates+`}`, "")
			request.Namespace = "shop"
			got := patched(t, request, mutator.mutate)
			var pod corev1.Pod
			require.NoError(t, json.Unmarshal([]byte(got), &pod))
			require.Equal(t, tc.want, pod.Annotations[podops.AvailableConditionsAnnotation])
			require.Contains(t, strings.Join(mutator.mutate(t.Context(), request).Warnings, ""), tc.warning)
			request.Object.Raw = []byte(got)
			require.JSONEq(t, got, patched(t, request, mutator.mutate), "a second time changes nothing")
		})
	}
}

func TestAPodIsGatedWhenServicesCannotBeRead(t *testing.T) {
	broken := interceptor.NewClient(fake.NewClientBuilder().Build(), interceptor.Funcs{
		List: func(context.Context, client.WithWatch, client.ObjectList, ...client.ListOption) error {
			return errors.New("no cache")
		},
	})
	request := ask(t, "pods", `{metadata: {labels: {kusionstack.io/control: "true"}}, spec: {}}`, "")
	response := (&podMutator{services: broken}).mutate(t.Context(), request)
	require.True(t, response.Allowed)
	require.Len(t, response.Patches, 1)
	require.Contains(t, response.Warnings[0], "no cache")
}

func TestStripServiceKeepsWhatSelects(t *testing.T) {
	got, err := stripService(&corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "web", Labels: map[string]string{"a": "b"},
			Annotations: map[string]string{"big": "value"}, ManagedFields: []metav1.ManagedFieldsEntry{{}}},
		Spec: corev1.ServiceSpec{Selector: map[string]string{"app": "web"}, Type: corev1.ServiceTypeExternalName,
			Ports: []corev1.ServicePort{{Port: 1}}},
		Status: corev1.ServiceStatus{LoadBalancer: corev1.LoadBalancerStatus{Ingress: []corev1.LoadBalancerIngress{{IP: "192.0.2.1"}}}},
	})
	require.NoError(t, err)
	require.Equal(t, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "web", Labels: map[string]string{"a": "b"}},
		Spec:       corev1.ServiceSpec{Selector: map[string]string{"app": "web"}, Type: corev1.ServiceTypeExternalName},
	}, got)
}

func FuzzRemovalsNeverPanic(f *testing.F) {
	f.Add(
		[]byte(
			`{"metadata":{"namespace":"shop","name":"web-1","labels":{"kusionstack.io/control":"true"}},"spec":{"nodeName":"n","readinessGates":[{"conditionType":"pod.kusionstack.io/service-ready"}]}}`), []byte(`{"gracePeriodSeconds":1}`))
	f.Add([]byte(`{"metadata":null}`), []byte(`{"dryRun":[null],"preconditions":{}}`))
	f.Fuzz(func(t *testing.T, pod, options []byte) {
		c := newCluster(webPod())
		request := removalRequest("jane")
		request.Operation, request.OldObject, request.Options = admissionv1.Delete, runtime.RawExtension{Raw: pod},
			runtime.RawExtension{Raw: options}
		c.deletion(t.Context(), request)
		request.Operation, request.SubResource, request.Object = admissionv1.Create, "eviction",
			runtime.RawExtension{Raw: []byte(`{"deleteOptions":` + string(options) + `}`)}
		c.eviction(t.Context(), request)
	})
}

// TestABudgetHoldsAPodThatIsReplacedForOtherReasons: an update, a job or a user has the Pod replaced, and an eviction
// would delete it before.
func TestABudgetHoldsAPodThatIsReplacedForOtherReasons(t *testing.T) {
	c := newCluster(webPod(func(p *corev1.Pod) { p.Labels[appsv1alpha1.ToReplaceLabel] = "true" }),
		&policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web-pdb"},
			Spec: policyv1.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}}})
	response := c.evict(t, "jane", nil)
	require.False(t, response.Allowed)
	require.Contains(t, response.Result.Message, "PodDisruptionBudget web-pdb allows no disruption now")
	require.Empty(t, c.mark(t))
}

// TestAnEvictionDoesWhatTheCollaSetSays has a budget allow nothing, so that only a Pod that is replaced is marked.
func TestAnEvictionDoesWhatTheCollaSetSays(t *testing.T) {
	for name, tc := range map[string]struct {
		policy   appsv1alpha1.EvictionPolicy
		replaces bool
		uid      string
	}{
		"Replace":                        {policy: appsv1alpha1.EvictionReplace, replaces: true, uid: "o"},
		"ReplaceWhenBlocked":             {policy: appsv1alpha1.EvictionReplaceWhenBlocked, replaces: true, uid: "o"},
		"Delete":                         {policy: appsv1alpha1.EvictionDelete, uid: "o"},
		"another CollaSet with its name": {policy: appsv1alpha1.EvictionReplace, uid: "other"},
	} {
		t.Run(name, func(t *testing.T) {
			pod := webPod(func(p *corev1.Pod) {
				p.OwnerReferences = []metav1.OwnerReference{{APIVersion: appsv1alpha1.SchemeGroupVersion.String(),
					Kind: appsv1alpha1.CollaSetKind, Name: "web", UID: "o", Controller: ptr.To(true)}}
			})
			set := &appsv1alpha1.CollaSet{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", UID: types.UID(tc.uid)},
				Spec: appsv1alpha1.CollaSetSpec{Disruption: &appsv1alpha1.Disruption{OnEviction: tc.policy}}}
			set.Status.Blockers = []appsv1alpha1.Blocker{{Message: "Pod web-1: its replacement web-2 is not available yet"}}
			budget := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web-pdb"},
				Spec: policyv1.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}}}
			c := newCluster(pod, set, budget)
			for range 2 {
				response := c.evict(t, "jane", nil)
				require.False(t, response.Allowed)
				require.EqualValues(t, http.StatusTooManyRequests, response.Result.Code)
				require.Equal(t, tc.replaces, strings.Contains(response.Result.Message, "web-2 is not available yet"))
			}
			require.Empty(t, c.mark(t))
			require.NoError(t, c.client.Get(t.Context(), client.ObjectKeyFromObject(pod), pod))
			require.Equal(t, tc.replaces, podops.MarkedBy(podops.Read(pod), appsv1alpha1.ToReplaceLabel, podops.AskerEviction))
			if tc.replaces {
				require.Equal(t, 1, c.patches, "it is marked once")
			}
		})
	}
}
