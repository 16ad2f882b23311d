package schema

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
	"kusionstack.io/kuperator/internal/testkit/await"
)

const (
	// struckPods and calmPods are the Pods of the CollaSet whose data is changed, and of the one beside it.
	struckPods = 4
	calmPods   = 2
	// aftermath is how long it is watched that nothing more comes of it.
	aftermath = 3 * time.Second
)

// corruption changes what etcd holds of a CollaSet of struckPods Pods.
type corruption struct {
	// change does it.
	change func(*stored) error
	// removed is how many Pods may be removed because of it, in the end; at a time it is one, as the rule says.
	removed int
	// reported is true if the CollaSet may stay as it is, if a condition says why.
	reported bool
	// mend is what a report asks for, before the CollaSet can go; nil for nothing.
	mend func(*stored) error
}

var corruptions = map[string]corruption{
	"a Pod has an owner that does not exist": { // the garbage collector removes it
		change: func(s *stored) error {
			return s.pod(0, func(p *corev1.Pod) { p.OwnerReferences[0].UID = "00000000-0000-0000-0000-000000000000" })
		}, removed: 1,
	},
	"a Pod has lost the label that selects it": { // it is released, not removed
		change: func(s *stored) error { return s.pod(0, func(p *corev1.Pod) { delete(p.Labels, "app") }) },
	},
	"a Pod has no instance ID": {
		change: func(s *stored) error {
			return s.pod(0, func(p *corev1.Pod) { delete(p.Labels, appsv1alpha1.InstanceIDLabel) })
		},
		removed: 1,
	},
	"a Pod has the instance ID of another": {
		change: func(s *stored) error {
			return s.pod(0, func(p *corev1.Pod) {
				p.Labels[appsv1alpha1.InstanceIDLabel] = s.pods[1].Labels[appsv1alpha1.InstanceIDLabel]
			})
		}, removed: 1, reported: true,
	},
	"a Pod has a revision that does not exist": {
		change: func(s *stored) error {
			return s.pod(0, func(p *corev1.Pod) { p.Labels[appsv1.ControllerRevisionHashLabelKey] = "nothing" })
		},
		removed: 1,
	},
	"annotations of a Pod are not JSON": {
		change: func(s *stored) error {
			return s.pod(0, func(p *corev1.Pod) {
				p.Annotations = map[string]string{appsv1alpha1.LastPodStatusAnnotation: "{",
					appsv1alpha1.PodDecorationRevisionsAnnotation: "[", podops.AvailableConditionsAnnotation: "}"}
			})
		}, reported: true, removed: 1,
		mend: func(s *stored) error { // an event asks the user to correct or remove it: only they know whose the Pod is
			return s.pod(0, func(p *corev1.Pod) { delete(p.Annotations, podops.AvailableConditionsAnnotation) })
		},
	},
	"the CollaSet selects others": {
		change: func(s *stored) error {
			return s.custom("collasets", "struck", func(o map[string]any) {
				o["spec"].(map[string]any)["selector"] = map[string]any{"matchLabels": map[string]any{"app": "others"}}
			})
		}, reported: true,
	},
	"the CollaSet's status names revisions that do not exist": {
		change: func(s *stored) error {
			return s.custom("collasets", "struck", func(o map[string]any) {
				status := o["status"].(map[string]any)
				status["currentRevision"], status["updatedRevision"], status["collisionCount"] = "nothing", "nothing", 7
			})
		},
		removed: struckPods,
	},
	"the revision holds another template": {
		change: func(s *stored) error {
			return s.revision(func(r *appsv1.ControllerRevision) {
				r.Data.Raw = bytes.ReplaceAll(r.Data.Raw, []byte("web:1"), []byte("web:0"))
			})
		}, removed: struckPods,
	},
	"the revision is not JSON": {
		change: func(s *stored) error {
			return s.revision(func(r *appsv1.ControllerRevision) { r.Data.Raw = []byte(`"nothing"`) })
		}, removed: struckPods,
	},
	"the pool is empty": {
		change: func(s *stored) error {
			return s.custom("resourcecontexts", "struck", func(o map[string]any) { o["spec"] = map[string]any{} })
		},
	},
	"the pool has other IDs": {
		change: func(s *stored) error {
			return s.contexts(func(i int, entry map[string]any) { entry["id"] = 70 + i })
		}, removed: struckPods,
	},
	"the pool has one ID many times": {
		change:  func(s *stored) error { return s.contexts(func(_ int, entry map[string]any) { entry["id"] = 0 }) },
		removed: struckPods,
	},
	"the pool belongs to somebody else": {
		change: func(s *stored) error {
			return s.contexts(func(_ int, entry map[string]any) {
				entry["data"].(map[string]any)[appsv1alpha1.ContextOwner] = "nobody"
			})
		}, removed: struckPods, reported: true,
	},
	"the pool says that all is scaled in": {
		change: func(s *stored) error {
			return s.contexts(func(_ int, entry map[string]any) {
				entry["data"].(map[string]any)[appsv1alpha1.ContextScaleIn] = appsv1alpha1.ContextTrue
			})
		}, removed: struckPods,
	},
	"the pool pairs Pods that are none": {
		change: func(s *stored) error {
			return s.contexts(func(i int, entry map[string]any) {
				data := entry["data"].(map[string]any)
				data[appsv1alpha1.ContextReplaceNewPodID], data[appsv1alpha1.ContextReplaceOriginPodID] = "x", fmt.Sprint(i+1)
			})
		}, removed: struckPods,
	},
}

// some are those that the short selection has.
var some = []string{"a Pod has an owner that does not exist", "a Pod has lost the label that selects it",
	"the revision holds another template", "the pool is empty", "the CollaSet selects others",
	"annotations of a Pod are not JSON"}

// TestCorruptStorage changes objects in etcd and watches what the controllers make of it.
func TestCorruptStorage(t *testing.T) {
	w := shared.Get(t)
	begin := time.Now()
	var names []string
	for name := range corruptions {
		if all() || slices.Contains(some, name) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	var failures sync.Map
	t.Run("corruptions", func(t *testing.T) {
		for _, name := range names {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				t.Cleanup(func() {
					if t.Failed() {
						failures.Store(name, "TestCorruptStorage/corruptions/"+name)
					}
				})
				w.strike(t, corruptions[name])
			})
		}
	})
	var failed []string
	failures.Range(func(_, replay any) bool { failed = append(failed, replay.(string)); return true })
	checks := map[string]int{"others are not affected": len(names), "one Pod at a time": len(names),
		"Pods come back, or it is reported": len(names)}
	require.NoError(t, addRow("objects changed in etcd", len(names), len(failed), map[string]int{"corruption": len(names)},
		checks, failed, time.Since(begin)))
}

func (w *world) strike(t *testing.T, c corruption) {
	ctx, namespace := t.Context(), w.namespace(t, false)
	t.Cleanup(func() {
		if t.Failed() {
			found, err := w.Kubectl(context.WithoutCancel(ctx), "-n", namespace, "get",
				"podtransitionrules,collasets,resourcecontexts,pods", "-o", "yaml")
			t.Logf("what is there (%v):\n%s", err, found)
		}
	})
	require.NoError(t, w.client.Create(ctx, &appsv1alpha1.PodTransitionRule{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "one"},
		Spec: appsv1alpha1.PodTransitionRuleSpec{
			Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "struck"}},
			Rules: []appsv1alpha1.TransitionRule{{Name: "one", TransitionRuleDefinition: appsv1alpha1.TransitionRuleDefinition{
				AvailablePolicy: &appsv1alpha1.AvailableRule{MaxUnavailableValue: ptr.To(fromInt(1))},
			}}},
		},
	}))
	for name, replicas := range map[string]int32{"struck": struckPods, "calm": calmPods} {
		require.NoError(t, w.client.Create(ctx, plainSet(namespace, name, replicas)))
	}
	for _, name := range []string{"struck", "calm"} {
		_, err := w.reached(ctx, appsv1alpha1.CollaSetKind, namespace, name)
		require.NoError(t, err)
	}
	s := &stored{w: w, ctx: ctx, namespace: namespace}
	s.pods = w.podsOf(t, namespace, "struck")
	calm := w.podsOf(t, namespace, "calm")
	removals := w.watchRemovals(t, namespace, s.pods)

	require.NoError(t, c.change(s))
	settled := func() error {
		state, err := w.state(ctx, appsv1alpha1.CollaSetKind, namespace, "struck")
		switch {
		case err != nil:
			return err
		case state.is(appsv1alpha1.CollaSetReady) && len(state.pods) == struckPods:
			return nil
		case c.reported && state.outcome() != "":
			return nil
		}
		return fmt.Errorf("%v", state)
	}
	await.Nil(t, "the CollaSet to be as before, or a report", settled)
	// Watches of several kinds are not in step: what comes of it may come later.
	for deadline := time.Now().Add(aftermath); time.Now().Before(deadline); {
		await.Nil(t, "the CollaSet to be as before, or a report", settled)
		select {
		case <-ctx.Done():
			t.Fatal(ctx.Err())
		case <-time.After(interval):
		}
	}
	most, total := removals()
	t.Logf("%d of %d Pods were removed, %d at a time", total, struckPods, most)
	require.LessOrEqual(t, most, 1, "one Pod at a time, as the rule says")
	require.LessOrEqual(t, total, c.removed)
	require.Equal(t, identities(calm), identities(w.podsOf(t, namespace, "calm")), "others are not affected")
	if c.mend != nil {
		require.NoError(t, c.mend(s))
	}
	for _, name := range []string{"struck", "calm"} {
		require.NoError(t, w.remove(ctx, appsv1alpha1.CollaSetKind, namespace, name))
	}
}

// identities are what would differ if a Pod were touched.
func identities(pods []*corev1.Pod) map[types.UID]string {
	of := map[types.UID]string{}
	for _, pod := range pods {
		of[pod.UID] = pod.Spec.Containers[0].Image
	}
	return of
}

// watchRemovals returns a function that tells how many of the Pods were removed, at most at one moment and in all. A
// Pod counts as being removed from its deletion until another Pod of its app is Ready in its place.
func (w *world) watchRemovals(t *testing.T, namespace string, pods []*corev1.Pod) func() (most, total int) {
	t.Helper()
	known := identities(pods)
	clients, err := w.Clients()
	require.NoError(t, err)
	list, err := clients.CoreV1().Pods(namespace).List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	watching, err := clients.CoreV1().Pods(namespace).Watch(t.Context(),
		metav1.ListOptions{ResourceVersion: list.ResourceVersion})
	require.NoError(t, err)
	var mu sync.Mutex
	gone, ready := map[types.UID]bool{}, map[types.UID]bool{}
	most := 0
	var done sync.WaitGroup
	done.Go(func() {
		for event := range watching.ResultChan() {
			pod, ok := event.Object.(*corev1.Pod)
			if !ok || pod.Labels["app"] == "calm" {
				continue
			}
			mu.Lock()
			leaving := pod.DeletionTimestamp != nil || event.Type == "DELETED"
			if _, ours := known[pod.UID]; ours && leaving {
				gone[pod.UID] = true
			} else if !ours {
				ready[pod.UID] = !leaving && isReady(pod)
			}
			back := 0
			for _, is := range ready {
				if is {
					back++
				}
			}
			most = max(most, len(gone)-back)
			mu.Unlock()
		}
	})
	t.Cleanup(func() { watching.Stop(); done.Wait() })
	return func() (int, int) {
		mu.Lock()
		defer mu.Unlock()
		return most, len(gone)
	}
}

func isReady(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// stored is what etcd holds of one CollaSet and what belongs to it.
type stored struct {
	w         *world
	ctx       context.Context //nolint:containedctx // of one test, whose steps it belongs to
	namespace string
	pods      []*corev1.Pod
}

func (s *stored) pod(i int, change func(*corev1.Pod)) error {
	pod := &corev1.Pod{}
	return s.binary("/registry/pods/"+s.namespace+"/"+s.pods[i].Name, pod, func() { change(pod) })
}

func (s *stored) revision(change func(*appsv1.ControllerRevision)) error {
	set := &appsv1alpha1.CollaSet{}
	if err := s.w.client.Get(s.ctx, client.ObjectKey{Namespace: s.namespace, Name: "struck"}, set); err != nil {
		return err
	}
	revision := &appsv1.ControllerRevision{}
	return s.binary("/registry/controllerrevisions/"+s.namespace+"/"+set.Status.UpdatedRevision, revision,
		func() { change(revision) })
}

// contexts changes every entry of the pool.
func (s *stored) contexts(change func(i int, entry map[string]any)) error {
	return s.custom("resourcecontexts", "struck", func(o map[string]any) {
		entries := o["spec"].(map[string]any)["contexts"].([]any)
		for i := range entries {
			change(i, entries[i].(map[string]any))
		}
	})
}

// custom changes a custom resource, which etcd holds as JSON.
func (s *stored) custom(resource, name string, change func(map[string]any)) error {
	return s.rewrite("/registry/"+appsv1alpha1.GroupName+"/"+resource+"/"+s.namespace+"/"+name,
		func(content []byte) ([]byte, error) {
			object := map[string]any{}
			if err := json.Unmarshal(content, &object); err != nil {
				return nil, err
			}
			change(object)
			return json.Marshal(object)
		})
}

// binary changes a built-in object, which etcd holds as protobuf.
func (s *stored) binary(key string, object runtime.Object, change func()) error {
	serializer := protobuf.NewSerializer(clientgoscheme.Scheme, clientgoscheme.Scheme)
	return s.rewrite(key, func(content []byte) ([]byte, error) {
		if _, _, err := serializer.Decode(content, nil, object); err != nil {
			return nil, err
		}
		change()
		var changed bytes.Buffer
		err := serializer.Encode(object, &changed)
		return changed.Bytes(), err
	})
}

// rewrite changes a value in etcd, unless another client does so meanwhile. It speaks etcd's JSON gateway.
func (s *stored) rewrite(key string, change func([]byte) ([]byte, error)) error {
	return await.Until(s.ctx, func() error {
		var found struct {
			KVs []struct {
				Value       []byte `json:"value"`
				ModRevision string `json:"mod_revision"`
			} `json:"kvs"`
		}
		encoded := base64.StdEncoding.EncodeToString([]byte(key))
		if err := s.etcd("range", map[string]any{"key": encoded}, &found); err != nil {
			return err
		}
		if len(found.KVs) != 1 {
			return fmt.Errorf("etcd has no %s", key)
		}
		value, err := change(found.KVs[0].Value)
		if err != nil {
			return err
		}
		var answer struct {
			Succeeded bool `json:"succeeded"`
		}
		err = s.etcd("txn", map[string]any{
			"compare": []any{map[string]any{"key": encoded, "target": "MOD", "modRevision": found.KVs[0].ModRevision}},
			"success": []any{map[string]any{"requestPut": map[string]any{"key": encoded,
				"value": base64.StdEncoding.EncodeToString(value)}}},
		}, &answer)
		if err == nil && !answer.Succeeded {
			err = fmt.Errorf("%s has changed meanwhile", key)
		}
		return err
	})
}

func (s *stored) etcd(call string, body, answer any) error {
	content, err := json.Marshal(body)
	if err != nil {
		return err
	}
	request, err := http.NewRequestWithContext(s.ctx, http.MethodPost, s.w.Cluster.EtcdURL()+"/v3/kv/"+call,
		bytes.NewReader(content))
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	content, err = io.ReadAll(response.Body)
	if err != nil {
		return err
	}
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("etcd answers %s: %s", response.Status, content)
	}
	return json.Unmarshal(content, answer)
}
