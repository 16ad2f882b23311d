package neighbours

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/internal/testkit/workload"
)

// TestKeysGivenTwice: what a chart renders that appends what the user gives, and what a Deployment takes.
func TestKeysGivenTwice(t *testing.T) {
	t.Parallel()
	r := begin(t, shared.Get(t))
	set := r.workload(2, appsv1alpha1.PodUpdateInPlaceIfPossible)
	spec := &set.Spec.Template.Spec
	spec.ImagePullSecrets = []corev1.LocalObjectReference{{Name: "mirror"}, {Name: "mirror"}}
	spec.HostAliases = []corev1.HostAlias{
		{IP: "192.0.2.7", Hostnames: []string{"queue"}}, {IP: "192.0.2.7", Hostnames: []string{"cache"}},
	}
	spec.Containers[0].Env = append(spec.Containers[0].Env, corev1.EnvVar{Name: "VERSION", Value: "1b"})
	spec.Containers[0].Ports = []corev1.ContainerPort{
		{Name: "http", ContainerPort: 8080}, {Name: "probe", ContainerPort: 8080},
	}
	r.start(set)
	r.atLeast(1)
	r.change(func(s *appsv1alpha1.CollaSet) { s.Spec.Template.Spec.Containers[0].Env[1].Value = "2" })
	r.awaitComplete(2)
}

// TestDecimalQuantities: a manifest with quantities that YAML takes for numbers, as a Deployment's may have.
func TestDecimalQuantities(t *testing.T) {
	t.Parallel()
	r := begin(t, shared.Get(t))
	const manifest = `
apiVersion: apps.kusionstack.io/v1alpha1
kind: CollaSet
metadata: {name: web}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      containers:
      - name: main
        image: web:1
        resources: {requests: {cpu: %s, memory: 2.5e8}, limits: {cpu: 2, memory: 1Gi}}
`
	r.apply(fmt.Sprintf(manifest, "0.25"))
	r.awaitComplete(2)
	r.keepAll()
	r.atLeast(2)
	r.apply(fmt.Sprintf(manifest, "250m"))
	r.awaitComplete(2)
	for _, p := range r.podsNow() {
		require.Equal(t, int64(250), p.Spec.Containers[0].Resources.Requests.Cpu().MilliValue())
	}
}

// TestTheSameTemplateInOtherWords spells out what Kubernetes fills in, and changes the order of what has none.
func TestTheSameTemplateInOtherWords(t *testing.T) {
	t.Parallel()
	w := shared.Get(t)
	for _, policy := range policies {
		t.Run(string(policy), func(t *testing.T) {
			t.Parallel()
			r := begin(t, w)
			set := r.workload(3, policy)
			spec := &set.Spec.Template.Spec
			spec.Volumes = []corev1.Volume{
				{Name: "tmp", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
				{Name: "conf", VolumeSource: corev1.VolumeSource{
					ConfigMap: &corev1.ConfigMapVolumeSource{
						LocalObjectReference: corev1.LocalObjectReference{Name: "conf"}, Optional: ptr.To(true),
					},
				}},
			}
			spec.Tolerations = []corev1.Toleration{
				{Key: "spot", Operator: corev1.TolerationOpExists},
				{Key: "arm", Operator: corev1.TolerationOpExists},
			}
			c := &spec.Containers[0]
			c.Env = append(
				c.Env,
				corev1.EnvVar{
					Name:      "NODE",
					ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "spec.nodeName"}},
				},
			)
			c.Ports = []corev1.ContainerPort{{ContainerPort: 9090}}
			c.LivenessProbe = &corev1.Probe{
				ProbeHandler: corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt32(9090)}},
			}
			r.start(set)
			r.keepAll()
			r.atLeast(3)
			revision, versions := r.setNow().Status.UpdatedRevision, r.versions()

			r.change(func(s *appsv1alpha1.CollaSet) {
				spec := &s.Spec.Template.Spec
				slices.Reverse(spec.Volumes)
				slices.Reverse(spec.Tolerations)
				spec.RestartPolicy, spec.DNSPolicy = corev1.RestartPolicyAlways, corev1.DNSClusterFirst
				spec.SchedulerName, spec.TerminationGracePeriodSeconds = corev1.DefaultSchedulerName, ptr.To[int64](30)
				spec.SecurityContext = &corev1.PodSecurityContext{}
				spec.Volumes[0].ConfigMap.DefaultMode = ptr.To[int32](0o644)
				c := &spec.Containers[0]
				slices.Reverse(c.Env)
				c.Env[0].ValueFrom.FieldRef.APIVersion = "v1"
				c.ImagePullPolicy, c.TerminationMessagePath = corev1.PullIfNotPresent, "/dev/termination-log"
				c.TerminationMessagePolicy = corev1.TerminationMessageReadFile
				c.Ports[0].Protocol = corev1.ProtocolTCP
				p := c.LivenessProbe
				p.TimeoutSeconds, p.PeriodSeconds, p.SuccessThreshold, p.FailureThreshold = 1, 10, 1, 3
			})
			r.calmly("the same template", func() error {
				if now := r.setNow().Status.UpdatedRevision; now != revision {
					return fmt.Errorf("revision %s came after %s", now, revision)
				}
				if now := r.versions(); fmt.Sprint(now) != fmt.Sprint(versions) {
					return fmt.Errorf("Pods were written: %v, before %v", now, versions)
				}
				return nil
			})
			r.awaitComplete(3)

			r.keepNone()
			r.atLeast(2)
			r.change(func(s *appsv1alpha1.CollaSet) {
				s.Spec.Template.Spec.Containers[0].Image = "web:2"
			})
			r.await("another template", func() error {
				if r.setNow().Status.UpdatedRevision == revision {
					return errors.New("the revision is the same")
				}
				return nil
			})
			r.awaitComplete(3)
		})
	}
}

// TestAnnotationsThatRestart: elsewhere a checksum restarts the Pods; other annotations restart nothing.
func TestAnnotationsThatRestart(t *testing.T) {
	t.Parallel()
	r := begin(t, shared.Get(t))
	annotated := func(key, value string) {
		r.change(func(s *appsv1alpha1.CollaSet) {
			metav1.SetMetaDataAnnotation(&s.Spec.Template.ObjectMeta, key, value)
		})
		r.awaitComplete(3)
	}
	starts := func() map[string]string {
		all := map[string]string{}
		for _, p := range r.podsNow() {
			all[p.Labels[appsv1alpha1.InstanceIDLabel]] = p.Status.ContainerStatuses[0].ContainerID
		}
		return all
	}
	set := r.workload(3, appsv1alpha1.PodUpdateInPlaceIfPossible)
	set.Spec.Template.Annotations = map[string]string{"checksum/settings": "1f", "team": "shop"}
	r.start(set)

	r.atLeast(2)
	for _, key := range []string{"checksum/settings", "kubectl.kubernetes.io/restartedAt"} {
		before := starts()
		annotated(key, "2e")
		for id, container := range starts() {
			require.NotEqual(t, before[id], container, "%s has the container of instance ID %s start anew", key, id)
		}
	}
	before := starts()
	r.atLeast(3)
	r.keepAll()
	annotated("team", "search")
	require.Equal(t, before, starts())
}

// TestDigestsPinned has admission turn tags into digests: of equal contents, there and back, and of others.
func TestDigestsPinned(t *testing.T) {
	t.Parallel()
	w := shared.Get(t)
	for _, pins := range []string{"pin-same", "pin-each"} {
		t.Run(pins, func(t *testing.T) {
			t.Parallel()
			r := begin(t, w)
			neighbourOf(pins).comes(r, change{})
			r.create(workload.Service(r.namespace, name), workload.Rule(r.namespace, name, "1"))
			r.start(r.workload(4, appsv1alpha1.PodUpdateInPlaceIfPossible))
			r.keepAll()
			r.atLeast(3)
			for _, tag := range []string{"2", "1"} {
				r.change(func(s *appsv1alpha1.CollaSet) {
					s.Spec.Template.Spec.Containers[0].Image = "web:" + tag
				})
				r.awaitComplete(4)
				if pins == "pin-each" {
					for _, p := range r.podsNow() {
						require.Equal(t, digest(tag), p.Spec.Containers[0].Image)
					}
				}
			}
		})
	}
}

// played runs combinations by their names.
func played(t *testing.T, names ...string) {
	t.Helper()
	t.Parallel()
	w := shared.Get(t)
	all := combinations()
	for _, full := range names {
		at := slices.IndexFunc(all, func(c combination) bool { return c.String() == full })
		require.GreaterOrEqual(t, at, 0, "there is a combination %s", full)
		t.Run(full, func(t *testing.T) {
			t.Parallel()
			all[at].play(begin(t, w))
		})
	}
}

// TestImageRefused: a policy takes no image that was not released.
func TestImageRefused(t *testing.T) {
	played(t, "refuse-new_first_image_InPlaceIfPossible_back", "refuse-new_first_image_InPlaceOnly_goes",
		"refuse-new_first_image_Recreate_back",
		"refuse-new_first_image_Replace_goes", "refuse-update_caught_image_InPlaceIfPossible_goes",
		"refuse-update_half_image_InPlaceOnly_rule_back")
}

// TestSuccessorRefused: Pods of the new template cannot be created.
func TestSuccessorRefused(t *testing.T) {
	played(t, "no-account_first_account_InPlaceIfPossible_goes", "no-account_first_account_Recreate_rule_back",
		"no-account_first_account_Replace_goes",
		"no-class_first_class_Recreate_back", "pod-security_first_host-pid_InPlaceIfPossible_back")
}

// TestDeletionRefused: the Pods that are to go may not, from the start, or when one is out of service for it.
func TestDeletionRefused(t *testing.T) {
	played(t, "refuse-delete_first_image_Replace_goes", "refuse-delete_caught_env_Replace_goes",
		"refuse-delete_caught_image_Replace_rule_goes", "refuse-delete_caught_image_Recreate_goes")
}

// TestRefusalCountsForTheFailurePolicy: a rollout that is refused from the start goes back, after its deadline, as
// one does that breaks Pods.
func TestRefusalCountsForTheFailurePolicy(t *testing.T) {
	t.Parallel()
	r := begin(t, shared.Get(t))
	set := r.workload(3, appsv1alpha1.PodUpdateRecreate)
	set.Spec.UpdateStrategy.FailurePolicy = appsv1alpha1.RolloutFailureRollback
	set.Spec.ProgressDeadlineSeconds = ptr.To[int32](3600)
	r.start(set)
	r.keepAll()
	r.atLeast(3 - unguarded)
	r.change(func(s *appsv1alpha1.CollaSet) {
		s.Spec.Template.Spec.ServiceAccountName = "shop-2"
		s.Spec.ProgressDeadlineSeconds = ptr.To[int32](5)
	})
	r.await("the rollout to be halted", func() error {
		if r.setNow().Status.Halted == nil {
			return errors.New("it is not")
		}
		return nil
	})
	r.awaitServing(3)
	r.change(func(s *appsv1alpha1.CollaSet) { s.Spec.Template.Spec.ServiceAccountName = "" })
	r.awaitComplete(3)
}

// TestQuota: the quota is used up, or lowered in the midst of the rollout.
func TestQuota(t *testing.T) {
	played(t, "quota-full_first_cpu_InPlaceIfPossible_goes", "quota-full_first_cpu_Recreate_back",
		"quota-full_first_env_Recreate", "quota-full_first_image_Replace_goes",
		"quota-lowered_half_env_InPlaceIfPossible_goes", "limits-default_first_cpu_InPlaceIfPossible_back")
}

// TestPendingClaimDeleted: a claim of a Pod that never ran is deleted, and comes back, as a StatefulSet's.
func TestPendingClaimDeleted(t *testing.T) {
	t.Parallel()
	r := begin(t, shared.Get(t))
	set := r.workload(2, appsv1alpha1.PodUpdateInPlaceIfPossible)
	r.withClaims(set)
	r.create(set)
	await := func(what string) {
		r.await(what, func() error {
			have := map[string]bool{}
			for _, c := range r.claimsNow() {
				have[c.Name] = c.DeletionTimestamp == nil
			}
			pods := 0
			for _, p := range r.podsNow() {
				if lives(p) && have[claimsOf(p)[0]] {
					pods++
				}
			}
			if pods != 2 {
				return fmt.Errorf("%d Pods have their claims", pods)
			}
			return nil
		})
	}
	await("Pods that wait for volumes")
	lost := r.claimsNow()[0]
	require.NoError(t, r.client.Delete(r.Context(), lost))
	r.await("the claim to go", func() error {
		if slices.ContainsFunc(r.claimsNow(), func(c *corev1.PersistentVolumeClaim) bool { return c.UID == lost.UID }) {
			return errors.New("it is there")
		}
		return nil
	})
	await("the claim to come back")
	r.volumes(2)
	r.awaitComplete(2)
}

// TestTwoMirroredBudgets evicts every Pod of two rules with budgets, one after the other, as kubectl drain does.
func TestTwoMirroredBudgets(t *testing.T) {
	t.Parallel()
	r := begin(t, shared.Get(t))
	r.merge(
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: r.namespace}},
		`{"metadata":{"labels":{"podopslifecycle.kusionstack.io/graceful-deletion":"disabled"}}}`,
	)
	set := r.workload(4, appsv1alpha1.PodUpdateInPlaceIfPossible)
	set.Spec.Template.Labels["part-of"] = "shop"
	team, platform := workload.Rule(r.namespace, name, "1"), workload.Rule(r.namespace, "platform", "50%")
	platform.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"part-of": "shop"}}
	team.Spec.MirrorPodDisruptionBudget, platform.Spec.MirrorPodDisruptionBudget = true, true
	r.create(team, platform)
	r.start(set)
	r.await("a budget", func() error {
		budgets := &policyv1.PodDisruptionBudgetList{}
		if err := r.client.List(r.Context(), budgets, client.InNamespace(r.namespace)); err != nil ||
			len(budgets.Items) > 0 {
			return err
		}
		return errors.New("there is none")
	})
	r.atLeast(3)
	for _, p := range r.podsNow() {
		r.await("the eviction of "+p.Name, func() error { return r.evict(p) })
	}
	r.awaitComplete(4)
}

// evict asks for an eviction, and is nil if it is granted or the Pod is gone.
func (r *run) evict(p *corev1.Pod) error {
	eviction := &policyv1.Eviction{
		DeleteOptions: &metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(p.UID))},
	}
	return client.IgnoreNotFound(r.client.SubResource("eviction").Create(r.Context(), p.DeepCopy(), eviction))
}

// TestExcludeHalfOfAReplacement names one half of a replacement under way in podToExclude, and lowers replicas in the
// same change.
func TestExcludeHalfOfAReplacement(t *testing.T) {
	t.Parallel()
	w := shared.Get(t)
	for _, who := range []string{"origin", "new"} {
		t.Run(who, func(t *testing.T) {
			t.Parallel()
			r := begin(t, w)
			const gate = "example.com/gate"
			set := r.workload(3, appsv1alpha1.PodUpdateInPlaceIfPossible)
			set.Spec.Template.Spec.ReadinessGates = []corev1.PodReadinessGate{{ConditionType: gate}}
			open := func(p *corev1.Pod, status corev1.ConditionStatus) {
				body := fmt.Sprintf(`{"status":{"conditions":[{"type":%q,"status":%q}]}}`, gate, status)
				require.NoError(
					t,
					r.client.SubResource("status").Patch(
						r.Context(), p.DeepCopy(), client.RawPatch(types.StrategicMergePatchType, []byte(body)),
					),
				)
			}
			r.create(set)
			r.await("three Pods", func() error {
				if n := r.count(lives); n != 3 {
					return fmt.Errorf("%d", n)
				}
				return nil
			})
			for _, p := range r.podsNow() {
				open(p, corev1.ConditionTrue)
			}
			r.awaitComplete(3)

			r.keepAll()
			named := r.podsNow()[0]
			r.free(named)
			open(named, corev1.ConditionFalse)
			r.merge(named, `{"metadata":{"labels":{"collaset.kusionstack.io/to-replace":"true"}}}`)
			var other *corev1.Pod
			r.await("the new Pod", func() error {
				for _, p := range r.podsNow() {
					if p.Labels[appsv1alpha1.ReplacePairOriginNameLabel] == named.Name {
						other = p
						return nil
					}
				}
				return errors.New("there is none")
			})
			if who == "new" {
				named, other = other, named
			}
			r.keepAll()
			r.free(other)
			r.change(func(s *appsv1alpha1.CollaSet) {
				s.Spec.Replicas, s.Spec.ScaleStrategy.PodToExclude = ptr.To[int32](2), []string{named.Name}
			})
			r.awaitComplete(2)
		})
	}
}

// TestRepairReplaced replaces one Pod of a broken revision by hand; a good template repairs all.
func TestRepairReplaced(t *testing.T) {
	t.Parallel()
	w := shared.Get(t)
	for _, policy := range policies {
		t.Run(string(policy), func(t *testing.T) {
			t.Parallel()
			r := begin(t, w)
			set := r.workload(2, policy)
			set.Spec.Template.Spec.Containers[0].Image = "web:non-exist"
			r.create(set)
			r.await("Pods that cannot start", func() error {
				if n := r.count(func(p *corev1.Pod) bool { return len(p.Status.ContainerStatuses) > 0 }); n != 2 {
					return fmt.Errorf("%d", n)
				}
				return nil
			})
			r.merge(r.podsNow()[1], `{"metadata":{"labels":{"collaset.kusionstack.io/to-replace":"true"}}}`)
			r.await("the new Pod", func() error {
				if n := r.count(lives); n != 3 {
					return fmt.Errorf("%d Pods", n)
				}
				return nil
			})
			r.change(func(s *appsv1alpha1.CollaSet) { s.Spec.Template.Spec.Containers[0].Image = "web:2" })
			r.awaitComplete(2)
		})
	}
}

// TestMissingCooperator updates a Pod that waits for a cooperator who is away, and then deletes its CollaSet: both
// are done without the cooperator, and what the Pod waits for afterwards is told.
func TestMissingCooperator(t *testing.T) {
	t.Parallel()
	w := shared.Get(t)
	for _, policy := range []appsv1alpha1.PodUpdatePolicy{
		appsv1alpha1.PodUpdateInPlaceIfPossible, appsv1alpha1.PodUpdateInPlaceOnly,
		appsv1alpha1.PodUpdateRecreate, appsv1alpha1.PodUpdateReplace,
	} {
		t.Run(string(policy), func(t *testing.T) {
			t.Parallel()
			r := begin(t, w)
			const finalizer = "prot.podopslifecycle.kusionstack.io/mesh"
			set := r.workload(1, policy)
			r.start(set)
			lacking := func() {
				r.merge(
					r.podsNow()[0],
					fmt.Sprintf(`{"metadata":{"annotations":{"pod.kusionstack.io/available-conditions":%q}}}`,
						`{"expectedFinalizers":{"mesh":"`+finalizer+`"}}`),
				)
			}
			lacking()
			r.change(func(s *appsv1alpha1.CollaSet) { s.Spec.Template.Spec.Containers[0].Image = "web:2" })
			updated := func(p *corev1.Pod) bool { return p.Spec.Containers[0].Image == "web:2" && p.DeletionTimestamp == nil }
			r.await("the Pod to be updated", func() error {
				if n, all := r.count(updated), len(r.podsNow()); n != 1 || all != 1 {
					return fmt.Errorf("%d of %d Pods are updated", n, all)
				}
				return nil
			})
			switch policy {
			case appsv1alpha1.PodUpdateInPlaceIfPossible, appsv1alpha1.PodUpdateInPlaceOnly:
				r.await("a blocker to name the finalizer", func() error { return r.told(finalizer) })
			default:
				r.awaitComplete(1)
				lacking()
			}
			r.remove(set)
			r.await("its Pod to be deleted", func() error {
				if left := r.podsNow(); len(left) > 0 {
					return fmt.Errorf("%s is left: %v", left[0].Name, left[0].Labels)
				}
				return nil
			})
		})
	}
}

// versions are the resourceVersions of the Pods.
func (r *run) versions() map[string]string {
	all := map[string]string{}
	for _, p := range r.podsNow() {
		all[p.Name] = p.ResourceVersion
	}
	return all
}

// apply is what kubectl apply does with a manifest.
func (r *run) apply(manifest string, flags ...string) {
	r.Helper()
	out, err := r.KubectlWith(
		r.Context(), strings.TrimSpace(manifest),
		append([]string{"-n", r.namespace, "apply", "-f", "-"}, flags...)...,
	)
	require.NoError(r, err, out)
}
