package e2e

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
	"kusionstack.io/kuperator/api/resourceconsist"
	"kusionstack.io/kuperator/internal/testkit/await"
	"kusionstack.io/kuperator/internal/testkit/observer"
	"kusionstack.io/kuperator/internal/testkit/suite"
	"kusionstack.io/kuperator/internal/testkit/workload"
)

// permission is one thing that a component may do.
type permission struct {
	component, verb, group, resource string // resource with its subresource
}

func (p permission) String() string {
	return fmt.Sprintf("%s: %s %s.%s", p.component, p.verb, p.resource, p.group)
}

// unused are permissions that no request shows, with the reason to have them.
var unused = map[permission]string{
	{suite.CollaSet, "update", "apps.kusionstack.io",
		"collasets/finalizers"}: "admission asks for it (OwnerReferencesPermissionEnforcement) when an owner reference blocks deletion",

	{suite.CollaSet, "list", "",
		"nodes"}: "scale-in reads nodes where a template is spread over more than hosts; test/integration/collaset shows it",
	{suite.CollaSet, "watch", "", "nodes"}: "as above",

	{suite.CollaSet, "create", "",
		"persistentvolumeclaims"}: "a CollaSet with claim templates has claims made; test/integration/collaset shows it",
	{suite.CollaSet, "patch", "", "persistentvolumeclaims"}:  "and expanded, adopted and released; as above",
	{suite.CollaSet, "delete", "", "persistentvolumeclaims"}: "and deleted where its policy says so; as above",

	{suite.CollaSet, "patch", "events.k8s.io", "events"}:          "an event that is repeated within minutes is patched",
	{suite.Lifecycle, "patch", "events.k8s.io", "events"}:         "as above",
	{suite.PodTransitionRule, "patch", "events.k8s.io", "events"}: "as above",
	{suite.ResourceConsist, "patch", "events.k8s.io", "events"}:   "as above",
	{suite.OperationJob, "patch", "events.k8s.io", "events"}:      "as above",
	{suite.PodDecoration, "patch", "events.k8s.io", "events"}:     "as above",

	{suite.PodDecoration, "get", "apps", "statefulsets"}: "how many Pods it wants, as of the ReplicaSet here; " +
		"test/integration/poddecoration shows it",
	{suite.PodDecoration, "get", "apps", "daemonsets"}: "as above",

	{suite.Lifecycle, "get", "",
		"services"}: "a Pod that waits for a Service's finalizer for long has the Service looked up; test/integration/lifecycle shows it",
	{suite.Lifecycle, "patch", "", "pods"}: "and is made to forget one that is gone; as above",
}

// delegated are the permissions of system:auth-delegator: the API server is asked about each client that scrapes a
// component's metrics. Here they are served without; test/integration/security shows it.
func delegated(component string) []permission {
	return []permission{
		{component, "create", "authentication.k8s.io", "tokenreviews"},
		{component, "create", "authorization.k8s.io", "subjectaccessreviews"},
	}
}

// comesWithWatch reports whether get and list are granted for a cache: a client
// watches, lists where a watch cannot begin with the present objects, and gets
// where a cache is not fresh enough. Who may watch learns nothing more by them.
func comesWithWatch(p permission, used map[permission]bool) bool {
	watch := p
	watch.verb = "watch"
	return (p.verb == "get" || p.verb == "list") && used[watch]
}

// TestRBAC lets each component do all it does, and compares what it was granted
// with what it used: nothing is missing and nothing is left over.
func TestRBAC(t *testing.T) {
	w := alone(t)
	w.doEverything(t)
	granted := w.grants(t)
	require.NotEmpty(t, granted)
	await.Nil(t, "every permission to be used", func() error { // events come after what they tell of
		used := w.used(t)
		var idle []string
		for _, p := range granted {
			if !servesEvictions() && p.group == "lifecycle.k8s.io" {
				continue
			}
			if !used[p] && unused[p] == "" && !slices.Contains(delegated(p.component), p) && !comesWithWatch(p, used) {
				idle = append(idle, p.String())
			}
		}
		if len(idle) > 0 {
			return errors.New("granted and never used:\n" + strings.Join(idle, "\n"))
		}
		return nil
	})
	for _, component := range suite.Components() {
		for _, p := range delegated(component) {
			assert.Contains(t, granted, p)
		}
	}
	for p := range unused {
		assert.Contains(t, granted, p, "an exception for what is not granted")
	}
}

// used are the permissions that the components' requests so far show. None of them lacks one.
func (w *world) used(t *testing.T) map[permission]bool {
	t.Helper()
	requests, err := w.Requests(time.Time{})
	require.NoError(t, err)
	used := map[permission]bool{}
	for _, r := range requests {
		if r.Component() == "" {
			continue
		}
		assert.False(t, r.Unauthorized, "missing permission: %s %s", r, r.URI)
		name := r.Resource
		if r.Subresource != "" {
			name += "/" + r.Subresource
		}
		used[permission{r.Component(), r.Verb, r.Group, name}] = true
	}
	return used
}

// grants lists what roles and bindings on the cluster let the components do.
func (w *world) grants(t *testing.T) []permission {
	t.Helper()
	ctx := t.Context()
	var clusterRoles rbacv1.ClusterRoleList
	var roles rbacv1.RoleList
	var clusterBindings rbacv1.ClusterRoleBindingList
	var bindings rbacv1.RoleBindingList
	require.NoError(t, w.client.List(ctx, &clusterRoles))
	require.NoError(t, w.client.List(ctx, &roles))
	require.NoError(t, w.client.List(ctx, &clusterBindings))
	require.NoError(t, w.client.List(ctx, &bindings))
	rulesOf := func(ref rbacv1.RoleRef, namespace string) []rbacv1.PolicyRule {
		for i := range clusterRoles.Items {
			if ref.Kind == "ClusterRole" && clusterRoles.Items[i].Name == ref.Name {
				return clusterRoles.Items[i].Rules
			}
		}
		for i := range roles.Items {
			if ref.Kind == "Role" && roles.Items[i].Name == ref.Name && roles.Items[i].Namespace == namespace {
				return roles.Items[i].Rules
			}
		}
		t.Fatalf("%s %s/%s is bound and does not exist", ref.Kind, namespace, ref.Name)
		return nil
	}
	var all []permission
	grant := func(subjects []rbacv1.Subject, rules func() []rbacv1.PolicyRule) {
		for _, s := range subjects {
			if s.Kind != rbacv1.ServiceAccountKind || s.Namespace != suite.Namespace ||
				!slices.Contains(suite.Components(), s.Name) {
				continue
			}
			for _, r := range rules() {
				assert.Empty(t, r.NonResourceURLs, s.Name)
				for _, group := range r.APIGroups {
					for _, name := range r.Resources {
						for _, verb := range r.Verbs {
							assert.NotContains(t, group+name+verb, "*", "%s has a wildcard", s.Name)
							if p := (permission{s.Name, verb, group, name}); !slices.Contains(all, p) {
								all = append(all, p)
							}
						}
					}
				}
			}
		}
	}
	for i := range clusterBindings.Items {
		b := &clusterBindings.Items[i]
		grant(b.Subjects, func() []rbacv1.PolicyRule { return rulesOf(b.RoleRef, "") })
	}
	for i := range bindings.Items {
		b := &bindings.Items[i]
		grant(b.Subjects, func() []rbacv1.PolicyRule { return rulesOf(b.RoleRef, b.Namespace) })
	}
	slices.SortFunc(all, func(a, b permission) int { return strings.Compare(a.String(), b.String()) })
	return all
}

// doEverything goes through all that the components can do, once.
func (w *world) doEverything(t *testing.T) {
	ns := w.namespace(t)
	w.observe(t, ns, observer.Options{})
	set := workload.CollaSet(ns, "web", image1, 3)
	set.Spec.HistoryLimit = ptr.To[int32](1)
	w.reconfigure(t, suite.Webhook, "--webhook-cert-lifetime=6s", "--webhook-cert-settle=1s") // renews once or twice
	old := workload.Rule(ns, "web", "2")
	old.Finalizers = []string{appsv1alpha1.ProtectionFinalizer} // as Kuperator leaves it
	w.create(t, workload.Service(ns, "web"), old, set, deployment(ns, "guest", 1))
	w.waitServing(t, ns, "web", 3, image1)

	t.Log("updates in place, more than the history keeps")
	for _, image := range []string{image2, image3, "web:4"} {
		w.setImage(t, ns, "web", image)
		w.waitServing(t, ns, "web", 3, image)
	}
	w.resizeInPlace(t, ns)
	t.Log("scale in and out")
	w.scale(t, ns, "web", 1)
	w.waitServing(t, ns, "web", 1, "web:4")
	w.scale(t, ns, "web", 2)
	w.waitServing(t, ns, "web", 2, "web:4")

	t.Log("recreation")
	w.patch(t, ns, "web", `{"spec":{"updateStrategy":{"podUpgradePolicy":"Recreate"}}}`)
	w.setImage(t, ns, "web", image2)
	w.waitServing(t, ns, "web", 2, image2)

	t.Log("a rollback to a revision of the history")
	w.setImage(t, ns, "web", "web:4")
	w.waitServing(t, ns, "web", 2, "web:4")
	w.setImage(t, ns, "web", image2)
	w.waitServing(t, ns, "web", 2, image2)

	t.Log("an eviction")
	w.evict(t, &w.pods(t, ns, "web")[0])
	w.waitServing(t, ns, "web", 2, image2)
	w.create(t, surging(ns, "moving", 1, appsv1alpha1.EvictionReplace))
	w.waitServing(t, ns, "moving", 1, image1)
	w.evict(t, &w.pods(t, ns, "moving")[0])
	w.waitServing(t, ns, "moving", 1, image1)

	if servesEvictions() {
		t.Log("an EvictionRequest")
		w.evictor(t, ns)
		pod := &w.pods(t, ns, "moving")[0]
		w.request(t, pod, autoscaler)
		w.replaced(t, pod)
		w.waitServing(t, ns, "moving", 1, image1)
	}

	w.useJobs(t, ns, "web", "guest")
	w.waitServing(t, ns, "web", 2, image2)

	w.useDecorations(t, ns, "guest")

	w.useRuleInFull(t, ns)

	t.Log("mistakes that are told")
	await.Nil(t, "the Service to change", func() error {
		annotated := &corev1.Service{}
		if err := w.client.Get(t.Context(), keyOf(set), annotated); err != nil {
			return err
		}
		annotated.Annotations = map[string]string{resourceconsist.DrainSecondsAnnotation: "soon"}
		annotated.Finalizers = []string{resourceconsist.CleanFinalizer} // as Kuperator leaves it
		return w.client.Update(t.Context(), annotated)
	})
	w.shareFinalizer(t, ns)
	w.down(t, suite.Webhook) // which would refuse the next
	wrong := workload.Rule(ns, "wrong", "1")
	// of keys the schema knows nothing
	wrong.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"no label!": "web"}}
	w.create(t, wrong)
	for _, component := range []string{suite.PodTransitionRule, suite.ResourceConsist} {
		await.Nil(t, "an event of "+component, func() error {
			requests, err := w.Requests(time.Time{})
			require.NoError(t, err)
			for _, r := range requests {
				if r.Component() == component && r.Resource == "events" && r.Group == "events.k8s.io" && r.Namespace == ns {
					return nil
				}
			}
			return fmt.Errorf("none yet")
		})
	}

	t.Log("graceful deletion by label")
	pod := &w.pods(t, ns, "web")[0]
	w.label(t, pod, map[string]any{appsv1alpha1.ToDeleteLabel: fmt.Sprint(time.Now().UnixNano())})
	await.Nil(t, "another Pod in its place", func() error {
		if slices.Contains(workload.UIDs(w.pods(t, ns, "web")), pod.UID) {
			return fmt.Errorf("%s is still there", pod.Name)
		}
		return nil
	})
	w.waitServing(t, ns, "web", 2, image2)

	t.Log("the end of a Service, of rules and of a CollaSet")
	require.NoError(t, w.client.Delete(t.Context(), old))
	await.Nil(t, "the rule gone",
		func() error { return gone(w.client.Get(t.Context(), keyOf(old), &appsv1alpha1.PodTransitionRule{})) })
	require.NoError(t, w.client.Delete(t.Context(), workload.Service(ns, "web")))
	await.Nil(t, "the Service gone",
		func() error { return gone(w.client.Get(t.Context(), keyOf(set), &corev1.Service{})) })
	require.NoError(t, w.Restart(t.Context(), suite.Webhook))
	// The garbage collector asks to delete the Pods, of which webhook-server has to know whether their CollaSet is going.
	require.NoError(t, w.client.Delete(t.Context(), set, client.PropagationPolicy(metav1.DeletePropagationForeground)))
	await.Nil(t, "the CollaSet gone",
		func() error { return gone(w.client.Get(t.Context(), keyOf(set), &appsv1alpha1.CollaSet{})) })
}

// evict evicts a Pod once, and waits until another one is there instead.
func (w *world) evict(t *testing.T, pod *corev1.Pod) {
	t.Helper()
	if err := w.client.SubResource("eviction").Create(t.Context(), pod,
		&policyv1.Eviction{}); !apierrors.IsTooManyRequests(err) {
		require.NoError(t, client.IgnoreNotFound(err)) // client-go asks again, up to ten times
	}
	w.replaced(t, pod)
}

// useDecorations decorates the Pod of a Deployment: in place, by other resources, and by another Pod; by more templates
// than the history keeps, and by one that it has kept.
func (w *world) useDecorations(t *testing.T, ns, deployment string) {
	t.Helper()
	t.Log("decorations")
	d := &appsv1alpha1.PodDecoration{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "sidecar"}}
	d.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": deployment}}
	d.Spec.HistoryLimit = ptr.To[int32](1)
	w.create(t, d)
	template := func(value, cpu string) {
		t.Helper()
		await.Nil(t, "the decoration to change", func() error {
			if err := w.client.Get(t.Context(), keyOf(d), d); err != nil {
				return err
			}
			d.Spec.Template = appsv1alpha1.PodDecorationPodTemplate{Metadata: []*appsv1alpha1.PodDecorationPodTemplateMeta{
				{PatchPolicy: appsv1alpha1.OverwriteMetadata, Labels: map[string]string{"tier": value}}}}
			if cpu != "" {
				d.Spec.Template.Containers = []*appsv1alpha1.ContainerPatch{{Container: corev1.Container{Name: "proxy",
					Image: "proxy:1", Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{
						corev1.ResourceCPU: resource.MustParse(cpu)}}}}}
			}
			return w.client.Update(t.Context(), d)
		})
		await.Nil(t, "the Pod to have it", func() error {
			if err := w.client.Get(t.Context(), keyOf(d), d); err != nil {
				return err
			}
			if s := &d.Status; s.ObservedGeneration != d.Generation || s.UpdatedAvailablePods != 1 ||
				s.CurrentRevision != s.UpdatedRevision {
				return fmt.Errorf("%+v", s)
			}
			return nil
		})
	}
	for _, value := range []string{"a", "b", "a", "c", "d"} {
		template(value, "")
	}
	template("d", "100m") // another Pod, which webhook-server decorates
	template("d", "200m")
	require.NoError(t, w.client.Delete(t.Context(), d))
	await.Nil(t, "the decoration gone",
		func() error { return gone(w.client.Get(t.Context(), keyOf(d), &appsv1alpha1.PodDecoration{})) })
}

// resizeInPlace gives the Pod of a separate CollaSet more cpu.
func (w *world) resizeInPlace(t *testing.T, ns string) {
	t.Helper()
	t.Log("a resize")
	cpu := func(set *appsv1alpha1.CollaSet, quantity string) {
		set.Spec.Template.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(
			quantity)}
	}
	set := workload.CollaSet(ns, "sized", image1, 1)
	cpu(set, "100m")
	w.create(t, set)
	w.waitServing(t, ns, "sized", 1, image1)
	await.Nil(t, "the CollaSet to change", func() error {
		if err := w.client.Get(t.Context(), keyOf(set), set); err != nil {
			return err
		}
		cpu(set, "200m")
		return w.client.Update(t.Context(), set)
	})
	await.Nil(t, "the Pod to have more", func() error {
		pod := &w.pods(t, ns, "sized")[0]
		if got := pod.Status.ContainerStatuses[0].Resources.Requests.Cpu().String(); got != "200m" {
			return fmt.Errorf("it has %s", got)
		}
		return nil
	})
	require.NoError(t, w.client.Delete(t.Context(), set))
}

// shareFinalizer has a Pod employed by a Service and by an employer of another kind and the same name, which is
// recorded in the Service's status.
func (w *world) shareFinalizer(t *testing.T, ns string) {
	t.Helper()
	expected, err := podops.Expect(podops.View{},
		resourceconsist.EmployerKey("Gateway", client.ObjectKey{Namespace: ns, Name: "shared"}),
		resourceconsist.Finalizer("shared"))
	require.NoError(t, err)
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: ns, Name: "shared", Labels: map[string]string{"app": "shared",
			appsv1alpha1.ControlLabel: appsv1alpha1.ControlValue},
		Annotations: map[string]string{podops.AvailableConditionsAnnotation: *expected.Annotations[podops.AvailableConditionsAnnotation]},
	}}
	pod.Spec.Containers = []corev1.Container{{Name: "app", Image: image1}}
	pod.Spec.ReadinessGates = []corev1.PodReadinessGate{{ConditionType: podops.ServiceReadyCondition}}
	shared := workload.Service(ns, "shared")
	w.create(t, shared, pod)
	await.Nil(t, "the Service to say that its finalizer is shared", func() error {
		if err := w.client.Get(t.Context(), keyOf(shared), shared); err != nil {
			return err
		}
		if meta.FindStatusCondition(shared.Status.Conditions, resourceconsist.ConditionInSync) == nil {
			return errors.New("it does not")
		}
		return nil
	})
}

// useRuleInFull has a rule hold a Pod long enough to say so on it, watch nodes, and mirror, change and drop a
// PodDisruptionBudget.
func (w *world) useRuleInFull(t *testing.T, ns string) {
	t.Helper()
	t.Log("a rule with a topology budget and a mirrored PodDisruptionBudget, and a Pod that it holds")
	w.reconfigure(t, suite.PodTransitionRule, "--annotate-blocked-after=1s")
	held := workload.Rule(ns, "held", "0")
	held.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}
	held.Spec.MirrorPodDisruptionBudget = true
	held.Spec.Rules[0].AvailablePolicy.Topology = &appsv1alpha1.TopologyBudget{TopologyKey: corev1.LabelHostname}
	w.create(t, held)
	mirrored := func(minAvailable int) func() error {
		return func() error {
			budget := &policyv1.PodDisruptionBudget{}
			if err := w.client.Get(t.Context(), keyOf(held), budget); err != nil {
				return err
			}
			if got := budget.Spec.MinAvailable; got == nil || got.IntValue() != minAvailable {
				return fmt.Errorf("minAvailable is %v", got)
			}
			return nil
		}
	}
	await.Nil(t, "the PodDisruptionBudget", mirrored(2))
	pod := &w.pods(t, ns, "web")[0]
	mark := func(value string) {
		body := fmt.Sprintf(`{"metadata":{"labels":{%q:%s}}}`, appsv1alpha1.ToDeleteLabel, value)
		require.NoError(t, w.client.Patch(t.Context(), pod, client.RawPatch(types.MergePatchType, []byte(body))))
	}
	mark(`"1"`)
	await.Nil(t, "the Pod to say what holds it", func() error {
		now := &corev1.Pod{}
		if err := w.client.Get(t.Context(), keyOf(pod), now); err != nil {
			return err
		}
		if now.Annotations[podops.RuleDetailPrefix+"/"+held.Name] == "" {
			return fmt.Errorf("its annotations are %v", now.Annotations)
		}
		return nil
	})
	mark("null")
	update := func(change func(*appsv1alpha1.PodTransitionRuleSpec)) {
		await.Nil(t, "the rule to change", func() error {
			if err := w.client.Get(t.Context(), keyOf(held), held); err != nil {
				return err
			}
			change(&held.Spec)
			return w.client.Update(t.Context(), held)
		})
	}
	update(func(spec *appsv1alpha1.PodTransitionRuleSpec) {
		spec.Rules[0].AvailablePolicy.MaxUnavailableValue = ptr.To(intstr.FromInt32(1))
	})
	await.Nil(t, "the PodDisruptionBudget to follow", mirrored(1))
	update(func(spec *appsv1alpha1.PodTransitionRuleSpec) { spec.MirrorPodDisruptionBudget = false })
	await.Nil(t, "the PodDisruptionBudget to go", func() error {
		if err := w.client.Get(t.Context(), keyOf(held), &policyv1.PodDisruptionBudget{}); !apierrors.IsNotFound(err) {
			return fmt.Errorf("it is there, or: %w", err)
		}
		return nil
	})
	require.NoError(t, w.client.Delete(t.Context(), held))
}
