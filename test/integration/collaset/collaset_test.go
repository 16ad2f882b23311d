package collaset_test

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
	"kusionstack.io/kuperator/internal/collaset"
	"kusionstack.io/kuperator/internal/testkit/localkube"
	"kusionstack.io/kuperator/internal/testkit/nightly"
	"kusionstack.io/kuperator/internal/testkit/testcluster"
)

// TestDirectly tells the stories that hold without the lifecycle. Those of replacements and rollouts take the same
// decisions with it, so they are told here at night only.
func TestDirectly(t *testing.T) {
	cluster, c := startAs(t, localkube.Config{Name: "collaset", WithControllerManager: true, WithScheduler: true,
		WithNodes: true})
	storageClasses(t, c)
	run(t, cluster, "--pod-ops-lifecycle=false")
	playVolumes(t, c)
	in := func(t *testing.T) env { return env{t, c, cluster, testcluster.Namespace(t, cluster, nil)} }
	tell(t, in, stories)
	if nightly.Run() {
		tell(t, in, replacements)
		tell(t, in, rolloutStories)
	}
	claims := map[string]func(volumeEnv){}
	for _, name := range []string{"claims follow their instance ID",
		"a larger request expands claims, and no Pod is another one"} {
		claims[name] = volumeStories[name]
	}
	tell(t, withVolumes(in), claims)
}

// TestUnderTheLifecycle tells all stories with the test as lifecycle-controller. Volumes are made by the test; binding,
// protection and garbage collection are Kubernetes' own.
func TestUnderTheLifecycle(t *testing.T) {
	cluster, c := startAs(t, localkube.Config{Name: "collaset", WithControllerManager: true, WithScheduler: true,
		WithNodes: true, Nodes: 4, Audit: true})
	storageClasses(t, c)
	run(t, cluster)
	playLifecycle(t, c)
	playVolumes(t, c)
	in := func(t *testing.T) env { return env{t, c, cluster, testcluster.Namespace(t, cluster, nil)} }
	for name, test := range lonelyStories {
		t.Run(name, func(t *testing.T) { test(in(t)) })
	}
	for _, stories := range []map[string]func(env){
		stories, lifecycleStories, replacements, rolloutStories, lifecycleRolloutStories, expressionStories, scaleStories,
		decorationStories,
	} {
		tell(t, in, stories)
	}
	for _, stories := range []map[string]func(volumeEnv){volumeStories, identityStories()} {
		tell(t, withVolumes(in), stories)
	}
}

// tell runs stories at the same time when the test's function is over, each in its own namespace: most of them wait.
func tell[E any](t *testing.T, in func(*testing.T) E, stories map[string]func(E)) {
	t.Helper()
	for name, test := range stories {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(in(t))
		})
	}
}

func withVolumes(in func(*testing.T) env) func(*testing.T) volumeEnv {
	return func(t *testing.T) volumeEnv { return volumeEnv{in(t)} }
}

// lonelyStories have the cluster to themselves: one counts conflicts, which others at work make likelier, the other
// closes nodes.
var lonelyStories = map[string]func(env){
	"an update in place costs three writes for each Pod": writeBudget,
	"what is left is spread over racks":                  spread,
}

// stories hold with and without the lifecycle.
var stories = map[string]func(env){
	"five Pods are created, with the lowest IDs": func(e env) {
		set := e.create("web", 5, nil)
		e.reachesReady(set)
		assert.Equal(e, []string{"0", "1", "2", "3", "4"}, ids(e.pods()))
		assert.Equal(e, "app=web", set.Status.Selector)
		e.quiet()
	},
	"scaling in from 8 to 3 and out again": func(e env) {
		set := e.create("web", 8, nil)
		e.reachesReady(set)
		e.change(set, replicas(3))
		e.reachesReady(set)
		e.change(set, replicas(6))
		e.reachesReady(set)
		assert.Len(e, e.pods(), 6)
		e.change(set, replicas(0))
		e.reachesReady(set)
		e.quiet()
	},
	"an image is updated in place, and containers restart": func(e env) {
		set := e.create("web", 4, nil)
		e.reachesReady(set)
		before := e.pods()
		first := set.Status.UpdatedRevision
		e.change(set, image("nginx:2"))
		e.reachesReady(set)
		after := e.pods()
		assert.Equal(e, uids(before), uids(after))
		assert.Equal(e, 4, running(after, "nginx:2"))
		for i, p := range after {
			assert.NotEqual(e, containerID(before[i], "app"), containerID(p, "app"))
			assert.Equal(e, containerID(before[i], "side"), containerID(p, "side"), "the other container goes on")
		}
		assert.NotEqual(e, first, set.Status.UpdatedRevision)
		assert.Equal(e, set.Status.UpdatedRevision, set.Status.CurrentRevision)
		e.quiet()
	},
	"a change that no running Pod can take over re-creates Pods under their IDs": func(e env) {
		set := e.create("web", 3, nil)
		e.reachesReady(set)
		before := e.pods()
		e.change(set, func(s *appsv1alpha1.CollaSetSpec) {
			s.Template.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "A", Value: "1"}}
		})
		e.reachesReady(set)
		after := e.pods()
		assert.Equal(e, ids(before), ids(after))
		for _, uid := range uids(before) {
			assert.NotContains(e, uids(after), uid)
		}
	},
	"a partition holds, and a rollback midway needs only what was updated": func(e env) {
		set := e.create("web", 5, nil)
		e.reachesReady(set)
		first := set.Status.UpdatedRevision
		before := e.pods()
		e.change(set, func(s *appsv1alpha1.CollaSetSpec) { image("nginx:2")(s); partition(3)(s) })
		e.reachesReady(set)
		assert.Equal(e, 2, running(e.pods(), "nginx:2"))
		assert.Equal(e, first, set.Status.CurrentRevision)
		assert.EqualValues(e, 2, set.Status.UpdatedReplicas)

		// A Pod deleted by hand comes back with its ID and revision.
		for _, p := range e.pods() {
			if p.Labels[appsv1.ControllerRevisionHashLabelKey] == first {
				require.NoError(e, e.Delete(e.Context(), &p))
				break
			}
		}
		e.eventually("the Pod is back", func() string {
			if pods := e.pods(); len(pods) != 5 || running(pods, "nginx:2") != 2 || running(pods, "nginx:1") != 3 {
				return fmt.Sprint(len(pods), running(pods, "nginx:2"))
			}
			return ""
		})
		e.settles(set)

		e.change(set, func(s *appsv1alpha1.CollaSetSpec) { image("nginx:1")(s); partition(0)(s) })
		e.reachesReady(set)
		assert.Equal(e, first, set.Status.UpdatedRevision, "the old revision is used again")
		assert.Equal(e, 5, running(e.pods(), "nginx:1"))
		same := 0
		after := uids(e.pods())
		for _, uid := range uids(before) {
			for _, other := range after {
				if uid == other {
					same++
				}
			}
		}
		assert.Equal(e, 4, same, "only the deleted Pod is another one")
	},
	"the revision changes while an image cannot be pulled": func(e env) {
		set := e.create("web", 3, nil)
		e.reachesReady(set)
		before := uids(e.pods())
		e.change(set, image("nginx:non-exist"))
		e.eventually("a Pod has the broken image", func() string {
			for _, p := range e.pods() {
				if p.Spec.Containers[0].Image == "nginx:non-exist" {
					return ""
				}
			}
			return "none"
		})
		e.change(set, image("nginx:3"))
		e.reachesReady(set)
		assert.Equal(e, before, uids(e.pods()))
		assert.Equal(e, 3, running(e.pods(), "nginx:3"))
	},
	"names in persistent sequence": func(e env) {
		set := e.create("db", 2, func(s *appsv1alpha1.CollaSet) {
			s.Spec.NamingStrategy = &appsv1alpha1.NamingStrategy{PodNamingSuffixPolicy: appsv1alpha1.PodNamingSuffixPersistentSequence}
			s.Spec.UpdateStrategy.PodUpdatePolicy = appsv1alpha1.PodUpdateRecreate
		})
		e.reachesReady(set)
		e.change(set, image("nginx:2"))
		e.reachesReady(set)
		for i, p := range e.pods() {
			assert.Equal(e, fmt.Sprintf("db-%d", i), p.Name)
			assert.Equal(e, p.Name, p.Spec.Hostname)
			assert.Equal(e, "nginx:2", p.Spec.Containers[0].Image)
		}
	},
	"in place only never re-creates, and says why it stops": func(e env) {
		set := e.create("web", 2, func(s *appsv1alpha1.CollaSet) {
			s.Spec.UpdateStrategy.PodUpdatePolicy = appsv1alpha1.PodUpdateInPlaceOnly
		})
		e.reachesReady(set)
		before := uids(e.pods())
		e.change(set, func(s *appsv1alpha1.CollaSetSpec) {
			s.Template.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "A", Value: "1"}}
		})
		e.reaches(set, appsv1alpha1.CollaSetStalled)
		require.NotEmpty(e, set.Status.Blockers)
		assert.Equal(e, "InPlaceImpossible", set.Status.Blockers[0].Reason)
		assert.Contains(e, set.Status.Blockers[0].Message, "template.spec.containers[app].env")
		e.quiet()
		assert.Equal(e, before, uids(e.pods()))
	},
	"paused holds back scaling and updating": func(e env) {
		set := e.create("web", 2, nil)
		e.reachesReady(set)
		e.change(set, func(s *appsv1alpha1.CollaSetSpec) { s.Paused = true; replicas(3)(s); image("nginx:2")(s) })
		e.eventually("it says so", func() string {
			require.NoError(e, e.Get(e.Context(), client.ObjectKeyFromObject(set), set))
			for _, c := range set.Status.Conditions {
				if c.Type == appsv1alpha1.CollaSetProgressing && c.Reason == string(appsv1alpha1.ReasonPaused) {
					return ""
				}
			}
			return "not yet"
		})
		e.quiet()
		assert.Len(e, e.pods(), 2)
		assert.Equal(e, 2, running(e.pods(), "nginx:1"))
		e.change(set, func(s *appsv1alpha1.CollaSetSpec) { s.Paused = false })
		e.reachesReady(set)
		assert.Equal(e, 3, running(e.pods(), "nginx:2"))
	},
	"a deleted CollaSet leaves nothing": func(e env) {
		set := e.create("web", 3, nil)
		e.reachesReady(set)
		e.change(set, image("nginx:2"))
		require.NoError(e, e.Client.Delete(e.Context(), set))
		e.gone(set)
	},
	"old revisions go, used ones stay": func(e env) {
		limit := int32(1)
		set := e.create("web", 2, func(s *appsv1alpha1.CollaSet) { s.Spec.HistoryLimit = &limit })
		e.reachesReady(set)
		for i := range 4 {
			e.change(set, image(fmt.Sprintf("nginx:%d", i+10)))
			e.reachesReady(set)
		}
		e.eventually("two are left", func() string {
			list := &appsv1.ControllerRevisionList{}
			require.NoError(e, e.List(e.Context(), list, client.InNamespace(e.namespace)))
			if len(list.Items) == 2 {
				return ""
			}
			return fmt.Sprint(len(list.Items))
		})
	},
	"a template with a field of a newer Kubernetes keeps it in its revision": func(e env) {
		_, err := e.cluster.Kubectl(e.Context(), "apply", "--validate=false", "-n", e.namespace, "-f", "testdata/future.yaml")
		require.NoError(e, err)
		e.eventually("the revision has it", func() string {
			list := &appsv1.ControllerRevisionList{}
			require.NoError(e, e.List(e.Context(), list, client.InNamespace(e.namespace)))
			for _, cr := range list.Items {
				if assert.Contains(e, string(cr.Data.Raw), "fieldOfTheFuture") {
					return ""
				}
			}
			return "no revision"
		})
	},
}

// lifecycleStories need the lifecycle.
var lifecycleStories = map[string]func(env){
	"raising the replicas again lets victims off": func(e env) {
		set := e.create("web", 4,
			func(s *appsv1alpha1.CollaSet) { s.Spec.Template.Annotations = map[string]string{"hold": "rules"} })
		e.reachesReady(set)
		before := uids(e.pods())
		e.change(set, replicas(2))
		e.eventually("two are asked for", func() string {
			require.NoError(e, e.Get(e.Context(), client.ObjectKeyFromObject(set), set))
			if set.Status.OperatingReplicas == 2 && len(set.Status.Blockers) > 0 &&
				set.Status.Blockers[0].Reason == "WaitingForPermission" {
				return ""
			}
			return fmt.Sprint(set.Status.OperatingReplicas)
		})
		e.change(set, replicas(4))
		e.reachesReady(set)
		assert.Equal(e, before, uids(e.pods()))
	},
	"podToDelete is handed over, and the Pod comes back under its ID": func(e env) {
		set := e.create("web", 2, nil)
		e.reachesReady(set)
		victim := e.pods()[1]
		e.change(set, func(s *appsv1alpha1.CollaSetSpec) { s.ScaleStrategy.PodToDelete = []string{victim.Name} })
		e.eventually("it is another Pod", func() string {
			pods := e.pods()
			if len(pods) == 2 && pods[1].UID != victim.UID {
				return ""
			}
			return "it is not"
		})
		e.settles(set)
		assert.Equal(e, []string{"0", "1"}, ids(e.pods()))
	},
	"a delay is waited for": func(e env) {
		delay := int32(5)
		set := e.create("web", 1, func(s *appsv1alpha1.CollaSet) { s.Spec.UpdateStrategy.OperationDelaySeconds = &delay })
		e.reachesReady(set)
		sets, pods := record[*appsv1alpha1.CollaSet](e, &appsv1alpha1.CollaSetList{}),
			record[*corev1.Pod](e, &corev1.PodList{})
		e.change(set, image("nginx:2"))
		sets.Until("it waits", func(s *appsv1alpha1.CollaSet) bool { return blockedBy(s, "OperationDelay") })
		e.reachesReady(set)
		assert.Equal(e, "nginx:2", e.pods()[0].Spec.Containers[0].Image)
		var allowed time.Time
		pods.Until("the Pod may be changed", func(p *corev1.Pod) (known bool) {
			allowed, known = podops.OperateTime(podops.Read(p), "collaset")
			return known
		})
		// A container's start is in whole seconds.
		assert.GreaterOrEqual(e, startOf(e.pods()[0], "app").Sub(allowed), time.Duration(delay)*time.Second-time.Second)
	},
	"Pods have the readiness gate": func(e env) {
		set := e.create("web", 1, nil)
		e.reachesReady(set)
		assert.Equal(e, []corev1.PodReadinessGate{{ConditionType: "pod.kusionstack.io/service-ready"}},
			e.pods()[0].Spec.ReadinessGates)
	},
}

func blockedBy(set *appsv1alpha1.CollaSet, reason string) bool {
	return slices.ContainsFunc(set.Status.Blockers, func(b appsv1alpha1.Blocker) bool { return b.Reason == reason })
}

func containerID(p corev1.Pod, name string) string {
	for _, s := range p.Status.ContainerStatuses {
		if s.Name == name {
			return s.ContainerID
		}
	}
	return ""
}

// gone waits until nothing of the CollaSet is left.
func (e env) gone(set *appsv1alpha1.CollaSet) {
	e.Helper()
	e.eventually("nothing is left", func() string {
		left := ""
		for what, list := range map[string]client.ObjectList{
			"CollaSet": &appsv1alpha1.CollaSetList{}, "ResourceContext": &appsv1alpha1.ResourceContextList{},
			"Pod": &corev1.PodList{}, "ControllerRevision": &appsv1.ControllerRevisionList{},
		} {
			require.NoError(e, e.List(e.Context(), list, client.InNamespace(set.Namespace)))
			if meta.LenList(list) > 0 {
				left += what + " "
			}
		}
		return left
	})
}

// writes counts the controller's write requests in the namespace since a line of the audit log, as "verb resource
// code". Dry runs begin with "try".
func (e env) writes(from int) (counts map[string]int, lines int) {
	e.Helper()
	text, err := os.ReadFile(e.cluster.AuditLog())
	require.NoError(e, err)
	all := strings.Split(string(text), "\n")
	all = all[:len(all)-1] // nothing, or a line that is being written
	counts = map[string]int{}
	for _, line := range all[from:] {
		var event struct {
			Verb, UserAgent, RequestURI string
			ObjectRef                   struct{ Resource, Subresource, Namespace string }
			ResponseStatus              struct{ Code int }
		}
		require.NoError(e, json.Unmarshal([]byte(line), &event))
		if strings.Contains(event.RequestURI, "dryRun=All") {
			event.Verb = "try " + event.Verb
		}
		if strings.HasPrefix(event.UserAgent, collaset.Name+"/") && event.ObjectRef.Namespace == e.namespace {
			counts[strings.TrimSuffix(fmt.Sprintf("%s %s/%s", event.Verb, event.ObjectRef.Resource, event.ObjectRef.Subresource),
				"/")+fmt.Sprintf(" %d", event.ResponseStatus.Code)]++
		}
	}
	return counts, len(all)
}

// writeBudget: three writes for each Pod, no conflict worth speaking of, and few of everything else.
func writeBudget(e env) {
	const pods = 30
	set := e.create("web", pods, nil)
	e.reachesReady(set)
	e.quiet()
	_, from := e.writes(0)
	begin := time.Now()
	e.change(set, image("nginx:2"))
	e.reachesReady(set)
	took := time.Since(begin)
	e.quiet()
	var counts map[string]int
	e.eventually("the log has the last of the writes", func() string {
		if counts, _ = e.writes(from); counts["patch pods 200"] < 3*pods || counts["update resourcecontexts 200"] < 1 {
			return fmt.Sprint(counts)
		}
		return ""
	})
	e.Logf("writes in %s: %v", took, counts)
	assert.Equal(e, 3*pods, counts["patch pods 200"])
	assert.LessOrEqual(e, counts["patch pods 409"], pods/10)
	assert.Equal(e, 1, counts["update resourcecontexts 200"])
	assert.LessOrEqual(e, counts["patch collasets/status 200"], 20+int(took/(200*time.Millisecond)),
		"numbers are written every 200 ms at most")
	assert.LessOrEqual(e, counts["create events 201"]+counts["patch events 200"], 2,
		"that it begins, and that it is complete")
	assert.LessOrEqual(e, counts["try patch pods 200"], 1+int(took/time.Minute), "one, and one a minute")
}
