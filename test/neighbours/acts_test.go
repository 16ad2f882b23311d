package neighbours

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
	"kusionstack.io/kuperator/internal/testkit/workload"
)

// podsOfAnAct are the Pods of a workload on which another program acts.
const podsOfAnAct = 4

// acts are what others do to a workload at rest, which is the same under every update policy, and what must come of it.
var acts = []struct {
	name string
	does func(*run, *appsv1alpha1.CollaSet)
}{
	{"control-label-removed", labelEdited(
		`{"metadata":{"labels":{"kusionstack.io/control":null}}}`,
		`{"metadata":{"labels":{"kusionstack.io/control":"true"}}}`,
	)},
	{"instance-id-removed", labelEdited(
		`{"metadata":{"labels":{"collaset.kusionstack.io/instance-id":null}}}`,
		`{"metadata":{"labels":{"collaset.kusionstack.io/instance-id":"%own"}}}`,
	)},
	{"instance-id-of-another", labelEdited(
		`{"metadata":{"labels":{"collaset.kusionstack.io/instance-id":"%another"}}}`,
		`{"metadata":{"labels":{"collaset.kusionstack.io/instance-id":"%own"}}}`,
	)},
	{"owner-removed", ownerRemoved},
	{"claim-deleted", claimDeleted},
	{"deleted-in-background", collected(metav1.DeletePropagationBackground)},
	{"deleted-in-foreground", collected(metav1.DeletePropagationForeground)},
	{"orphaned", orphaned},
	{"restored", restored},
	{"handed-over-by-apply", handedOver()},
	{"handed-over-by-server-side-apply", handedOver("--server-side")},
	{"round-trip", roundTrip},
	{"eviction-refused", evictionRefused},
	{"deletion-refused", deletionRefused},
}

// TestActs has others act on a workload with volumes.
func TestActs(t *testing.T) {
	t.Parallel()
	w := shared.Get(t)
	tried := policies
	if !long() {
		tried = policies[:1]
	}
	for _, act := range acts {
		for _, policy := range tried {
			t.Run(act.name+"_"+string(policy), func(t *testing.T) {
				t.Parallel()
				t.Cleanup(func() {
					if t.Failed() {
						fmt.Printf("FAILED: make test-neighbours RUN='^TestActs$/^%s_%s$'\n", act.name, policy)
					}
				})
				r := begin(t, w)
				set := r.workload(podsOfAnAct, policy)
				r.withClaims(set)
				r.volumes(podsOfAnAct)
				r.start(set)
				r.keepAll()
				r.atLeast(podsOfAnAct)
				act.does(r, set)
			})
		}
	}
}

// labelEdited edits a Pod. No other comes in its place while it runs; it is seen, and put right by us or by a person.
func labelEdited(edit, undo string) func(*run, *appsv1alpha1.CollaSet) {
	return func(r *run, _ *appsv1alpha1.CollaSet) {
		pods := r.podsNow()
		p := pods[0]
		r.edited = true
		ids := strings.NewReplacer("%own", p.Labels[appsv1alpha1.InstanceIDLabel],
			"%another", pods[1].Labels[appsv1alpha1.InstanceIDLabel])
		r.merge(p, ids.Replace(edit))
		r.await("the edit to be undone, or to be told", func() error {
			if now := r.find(p); now != nil && same(now.Labels, p.Labels, appsv1alpha1.ControlLabel,
				appsv1alpha1.InstanceIDLabel) && now.ResourceVersion != p.ResourceVersion {
				return nil
			}
			return r.told(p.Name)
		})
		r.merge(p, ids.Replace(undo))
		r.awaitComplete(podsOfAnAct)
	}
}

func same(a, b map[string]string, keys ...string) bool {
	return !slices.ContainsFunc(keys, func(k string) bool { return a[k] != b[k] })
}

func (r *run) find(p *corev1.Pod) *corev1.Pod {
	for _, now := range r.podsNow() {
		if now.UID == p.UID {
			return now
		}
	}
	return nil
}

// ownerRemoved takes the owner off a Pod, which is taken in again.
func ownerRemoved(r *run, _ *appsv1alpha1.CollaSet) {
	p := r.podsNow()[0]
	r.merge(p, `{"metadata":{"ownerReferences":null}}`)
	r.await("the Pod to be taken in, or to be told of", func() error {
		if now := r.find(p); now != nil && metav1.GetControllerOfNoCopy(now) != nil &&
			now.ResourceVersion != p.ResourceVersion {
			return nil
		}
		return r.told(p.Name)
	})
	r.change(func(s *appsv1alpha1.CollaSet) { s.Spec.ScaleStrategy.PodToInclude = []string{p.Name} })
	r.awaitComplete(podsOfAnAct)
}

// claimDeleted deletes a claim under a running Pod: the Pod runs on until a person lets it go, and its successor gets
// another claim.
func claimDeleted(r *run, _ *appsv1alpha1.CollaSet) {
	p := r.podsNow()[0]
	lost := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: r.namespace, Name: claimsOf(p)[0]}}
	r.keepNone()
	require.NoError(r, r.client.Delete(r.Context(), lost))
	r.await("the loss to be told", func() error { return r.told(lost.Name) })
	r.calmly("the Pod runs on", func() error {
		if now := r.find(p); now == nil || !serves(now) {
			return errors.New("it does not")
		}
		return nil
	})
	r.volumes(1)
	r.atLeast(podsOfAnAct - 1)
	r.merge(p, `{"metadata":{"labels":{"collaset.kusionstack.io/to-delete":"true"}}}`)
	r.await("another claim", func() error {
		if r.find(p) != nil || slices.ContainsFunc(r.claimsNow(), func(c *corev1.PersistentVolumeClaim) bool {
			return c.Name == lost.Name
		}) {
			return errors.New("the old Pod or claim is there")
		}
		return nil
	})
	r.awaitComplete(podsOfAnAct)
}

// collected deletes the CollaSet. Its Pods go, as the rule lets them, and its claims stay.
func collected(propagation metav1.DeletionPropagation) func(*run, *appsv1alpha1.CollaSet) {
	return func(r *run, set *appsv1alpha1.CollaSet) {
		r.keepNone()
		r.atLeast(0)
		r.keepClaims()
		r.create(workload.Rule(r.namespace, name, "2"))
		require.NoError(r, r.client.Delete(r.Context(), set, client.PropagationPolicy(propagation)))
		r.await("CollaSet and Pods to go", func() error {
			if left := len(r.podsNow()); left > 0 {
				return fmt.Errorf("%d Pods are left", left)
			}
			return gone(r.client.Get(r.Context(), client.ObjectKeyFromObject(set), set))
		})
		require.Len(r, r.claimsNow(), podsOfAnAct)
	}
}

// orphaned deletes the CollaSet, leaves its Pods, and re-creates it: the Pods are its own again as they run.
func orphaned(r *run, set *appsv1alpha1.CollaSet) {
	require.NoError(r, r.client.Delete(r.Context(), set, client.PropagationPolicy(metav1.DeletePropagationOrphan)))
	r.await("the CollaSet to go", func() error {
		return gone(r.client.Get(r.Context(), client.ObjectKeyFromObject(set), set.DeepCopy()))
	})
	r.adopted(r.again(set))
}

// again is a CollaSet as it was asked for at first.
func (r *run) again(set *appsv1alpha1.CollaSet) *appsv1alpha1.CollaSet {
	return &appsv1alpha1.CollaSet{
		ObjectMeta: metav1.ObjectMeta{Namespace: r.namespace, Name: set.Name}, Spec: *set.Spec.DeepCopy(),
	}
}

// adopted creates a CollaSet beside the Pods of one before it, which is told and doubles none; podToInclude takes
// them in as they run.
func (r *run) adopted(set client.Object) {
	r.Helper()
	before := r.uids()
	var names []string
	for _, p := range r.podsNow() {
		names = append(names, p.Name)
	}
	r.create(set)
	r.await("the Pods to be taken in, or to be told of", func() error {
		if slices.ContainsFunc(r.podsNow(), func(p *corev1.Pod) bool {
			return metav1.GetControllerOfNoCopy(p) == nil
		}) {
			return r.told(names[0])
		}
		return nil
	})
	r.change(func(s *appsv1alpha1.CollaSet) { s.Spec.ScaleStrategy.PodToInclude = names })
	r.awaitComplete(len(names))
	require.Equal(r, before, r.uids(), "the Pods are the same")
	for _, p := range r.podsNow() {
		require.Zero(r, p.Status.ContainerStatuses[0].RestartCount, "%s was not restarted", p.Name)
	}
}

// restored brings everything that a backup tool saves into another namespace, without UIDs, owners and status.
func restored(from *run, _ *appsv1alpha1.CollaSet) {
	var saved []*unstructured.Unstructured
	for _, kind := range []string{
		"v1/PersistentVolumeClaim", "v1/Pod", "apps/v1/ControllerRevision",
		"apps.kusionstack.io/v1alpha1/ResourceContext", "apps.kusionstack.io/v1alpha1/CollaSet",
	} {
		at := strings.LastIndex(kind, "/")
		list := &unstructured.UnstructuredList{}
		list.SetGroupVersionKind(schema.FromAPIVersionAndKind(kind[:at], kind[at+1:]+"List"))
		require.NoError(from, from.client.List(from.Context(), list, client.InNamespace(from.namespace)))
		for i := range list.Items {
			saved = append(saved, &list.Items[i])
		}
	}
	from.Run("into another namespace", func(t *testing.T) {
		r := begin(t, from.world)
		var set client.Object
		for _, o := range saved {
			for _, key := range []string{
				"uid", "resourceVersion", "creationTimestamp", "generation", "managedFields", "ownerReferences",
			} {
				unstructured.RemoveNestedField(o.Object, "metadata", key)
			}
			o.SetNamespace(r.namespace)
			unstructured.RemoveNestedField(o.Object, "status")
			switch o.GetKind() {
			case "PersistentVolumeClaim":
				unstructured.RemoveNestedField(o.Object, "spec", "volumeName")
				unstructured.RemoveNestedField(o.Object, "metadata", "annotations")
				require.NoError(t, unstructured.SetNestedField(o.Object, r.namespace, "spec", "storageClassName"))
			case "Pod":
				unstructured.RemoveNestedField(o.Object, "spec", "nodeName")
			case "CollaSet":
				set = o
				continue
			}
			require.NoError(t, r.client.Create(t.Context(), o))
		}
		r.volumes(podsOfAnAct)
		r.await("the restored Pods to run", func() error {
			if n := r.count(func(p *corev1.Pod) bool { return len(p.Status.ContainerStatuses) > 0 }); n != podsOfAnAct {
				return fmt.Errorf("%d do", n)
			}
			return nil
		})
		r.keepAll()
		r.adopted(set)
	})
}

// handedOver takes replicas out of the manifest, for an autoscaler. The Pods stay, and the autoscaler works.
func handedOver(flags ...string) func(*run, *appsv1alpha1.CollaSet) {
	return func(r *run, set *appsv1alpha1.CollaSet) {
		manifest := func(with bool) string {
			object, err := runtime.DefaultUnstructuredConverter.ToUnstructured(r.again(set))
			require.NoError(r, err)
			object["apiVersion"], object["kind"] = appsv1alpha1.SchemeGroupVersion.String(), appsv1alpha1.CollaSetKind
			delete(object, "status")
			if !with {
				unstructured.RemoveNestedField(object, "spec", "replicas")
			}
			body, err := json.Marshal(object)
			require.NoError(r, err)
			return string(body)
		}
		r.apply(manifest(true), append(slices.Clone(flags), "--force-conflicts="+fmt.Sprint(len(flags) > 0))...)
		r.volumes(1)
		r.apply(manifest(false), flags...)
		r.calmly("the Pods stay", func() error {
			if n := *r.setNow().Spec.Replicas; n != podsOfAnAct {
				return fmt.Errorf("replicas is %d", n)
			}
			return nil
		})
		r.create(&autoscalingv2.HorizontalPodAutoscaler{
			ObjectMeta: metav1.ObjectMeta{Namespace: r.namespace, Name: name},
			Spec: autoscalingv2.HorizontalPodAutoscalerSpec{
				ScaleTargetRef: autoscalingv2.CrossVersionObjectReference{
					APIVersion: appsv1alpha1.SchemeGroupVersion.String(), Kind: appsv1alpha1.CollaSetKind,
					Name: name,
				},
				MinReplicas: ptr.To[int32](podsOfAnAct + 1), MaxReplicas: podsOfAnAct + 3,
			},
		})
		r.awaitComplete(podsOfAnAct + 1)
		r.apply(manifest(false), flags...)
		r.calmly("what the autoscaler wants stays", func() error { return r.complete(podsOfAnAct + 1) })
	}
}

// roundTrip is another controller, built on types without our fields, which writes the whole object. It is warned of
// what is lost.
func roundTrip(r *run, _ *appsv1alpha1.CollaSet) {
	heard := &hearing{}
	config := r.RESTConfig()
	config.UserAgent, config.WarningHandler = "another-controller", heard
	other, err := client.New(config, client.Options{Scheme: r.client.Scheme()})
	require.NoError(r, err)
	set := &appsv1alpha1.CollaSet{}
	key := client.ObjectKey{Namespace: r.namespace, Name: name}
	require.NoError(r, other.Get(r.Context(), key, set))
	set.Labels = map[string]string{"rollout.kusionstack.io/workload": "shop"}
	set.Spec.ProgressDeadlineSeconds = ptr.To[int32](3600)
	set.Spec.UpdateStrategy.FailurePolicy = appsv1alpha1.RolloutFailurePause
	require.NoError(r, other.Update(r.Context(), set))

	object := &unstructured.Unstructured{}
	object.SetGroupVersionKind(appsv1alpha1.SchemeGroupVersion.WithKind(appsv1alpha1.CollaSetKind))
	require.NoError(r, other.Get(r.Context(), key, object))
	unstructured.RemoveNestedField(object.Object, "spec", "progressDeadlineSeconds")
	unstructured.RemoveNestedField(object.Object, "spec", "updateStrategy", "failurePolicy")
	if err := other.Update(r.Context(), object); err != nil {
		heard.HandleWarningHeader(299, "", err.Error()) // it may be refused as well
	}
	for _, field := range []string{"progressDeadlineSeconds", "failurePolicy"} {
		require.Contains(r, heard.all(), field, "it is told what is lost")
	}
	r.awaitComplete(podsOfAnAct)
}

// hearing keeps the warnings that a client gets.
type hearing struct {
	mu    sync.Mutex
	texts []string
}

func (h *hearing) HandleWarningHeader(_ int, _, text string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.texts = append(h.texts, text)
}

func (h *hearing) all() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return strings.Join(h.texts, "\n")
}

// evictionRefused refuses an eviction, for a while: the Pod serves on until one is allowed.
func evictionRefused(r *run, _ *appsv1alpha1.CollaSet) {
	leave := neighbourOf("refuse-eviction").comes(r, change{})
	p := r.podsNow()[0]
	require.ErrorContains(r, r.evict(p), "refuse-eviction")
	r.calmly("nothing is done for an eviction that was refused", func() error {
		if now := r.find(p); now == nil || !serves(now) || now.ResourceVersion != p.ResourceVersion {
			return fmt.Errorf("%+v", now)
		}
		return nil
	})
	leave()
	r.free(p)
	r.atLeast(podsOfAnAct - 1)
	r.await("the eviction", func() error {
		if r.find(p) == nil {
			return nil
		}
		return errors.Join(errors.New("the Pod is there"), r.evict(p))
	})
	r.awaitComplete(podsOfAnAct)
}

// deletionRefused deletes a Pod gracefully, which lifecycle-controller may not carry out, for a while: the Pod serves
// on, and says why.
func deletionRefused(r *run, _ *appsv1alpha1.CollaSet) {
	leave := neighbourOf("refuse-delete").comes(r, change{})
	p := r.podsNow()[0]
	require.ErrorContains(r, r.client.Delete(r.Context(), p.DeepCopy()), "taken out of service")
	r.await("the Pod to say who refuses", func() error {
		now := r.find(p)
		if now == nil || !strings.Contains(now.Annotations[podops.DeletionRefusedAnnotation], "refuse-delete") {
			return fmt.Errorf("%+v", now)
		}
		return nil
	})
	r.calmly("nothing is done for a deletion that is refused", func() error {
		if now := r.find(p); now == nil || !serves(now) || len(podops.Operations(podops.Read(now))) > 0 {
			return fmt.Errorf("%+v", now)
		}
		return nil
	})
	require.ErrorContains(r, r.client.Delete(r.Context(), p.DeepCopy()), "refuse-delete", "it is told again")
	r.free(p)
	r.atLeast(podsOfAnAct - 1)
	leave()
	r.await("the deletion", func() error {
		if r.find(p) == nil {
			return nil
		}
		return errors.New("the Pod is there")
	})
	r.awaitComplete(podsOfAnAct)
}
