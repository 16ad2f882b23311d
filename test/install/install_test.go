package install

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"kusionstack.io/kuperator/internal/testkit/await"
)

// stories are the jobs by overlay. Every overlay but the one for processes has one.
var stories = map[string]story{
	"full":                   wholeSuite(true),
	"ha":                     wholeSuite(true),
	"sharded":                wholeSuite(true),
	"kuperator-v0.7":         wholeSuite(true),
	"no-webhook":             wholeSuite(false),
	"namespace-scoped":       wholeSuite(true),
	"collaset-only":          collaSetAlone,
	"lifecycle-only":         lifecycleAlone,
	"podtransitionrule-only": rulesAlone,
	"resourceconsist-only":   trafficAlone,
	"operationjob-only":      jobsAlone,
	"poddecoration-only":     decorationsAlone,
	"webhook-only":           webhookAlone,
}

// live is the life of an installation: it is installed, becomes ready, does its job, is taken away, which changes
// nothing, and is installed again, which goes on with what is there.
func (w *world) live(t *testing.T, s story, install func(t *testing.T) installed) {
	t.Helper()
	w.comeAndGo(t, s, install)

	second := install(t)
	programs := w.start(t, second.namespace)
	s.again(t, w)
	w.remove(t, s.scene()...)
	second.uninstall(t)
	for _, p := range programs {
		p.stop(t)
	}
}

// comeAndGo is the first half of it.
func (w *world) comeAndGo(t *testing.T, s story, install func(t *testing.T) installed) {
	t.Helper()
	first := install(t)
	programs := w.start(t, first.namespace)
	s.begin(t, w)
	crds := w.crds(t)
	require.Len(t, crds, 5)

	before := w.calm(t)
	first.uninstall(t)
	for _, p := range programs {
		p.stop(t)
	}
	require.Equal(t, crds, w.crds(t), "CRDs outlive the controllers")
	require.Equal(t, before, states(w.pods(t, storyNamespace)), "no write to any Pod")
	require.NotEmpty(t, before)
	w.requireGone(t, first.namespace)
}

// calm waits until the Pods are not written to any more, and returns their states.
func (w *world) calm(t *testing.T) []string {
	t.Helper()
	var last []string
	same := 0
	await.Nil(t, "the Pods to be left alone", func() error {
		now := states(w.pods(t, storyNamespace))
		if len(last) == 0 || !equal(now, last) {
			last, same = now, 0
		}
		if same++; same < 40 { // two seconds
			return errNotYet
		}
		return nil
	})
	return last
}

func equal(a, b []string) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i] != b[i] {
			return false
		}
	}
	return true
}

// requireGone checks that nothing of the suite is left but what outlives it.
func (w *world) requireGone(t *testing.T, namespace string) {
	t.Helper()
	for _, kind := range []string{"deployments", "serviceaccounts", "roles", "rolebindings", "clusterrolebindings",
		"services", "poddisruptionbudgets",
		"networkpolicies", "mutatingwebhookconfigurations", "validatingwebhookconfigurations", "flowschemas",
		"prioritylevelconfigurations", "priorityclasses"} {
		left := w.kubectl(t, "get", kind, "-n", namespace, "-l", "app.kubernetes.io/part-of=kuperator", "-o", "name")
		require.Empty(t, left)
	}
}

func TestOverlayFullAndTheChart(t *testing.T) {
	w := newWorld(t)
	w.namespaces(t, storyNamespace, "team-b")
	t.Run("chart, in a namespace of another name", func(t *testing.T) {
		w.restrict(t, "platform")
		w.live(t, stories["full"], func(t *testing.T) installed { return w.release(t, "platform", "kuperator") })
	})
	t.Run("overlay ha", func(t *testing.T) {
		w.kubectl(t, "apply", "--server-side", "--force-conflicts", "-k", deployDir(t, "prerequisites"))
		w.restrict(t, system)
		w.comeAndGo(t, stories["ha"], func(t *testing.T) installed {
			i := w.apply(t, system, "ha")
			w.rolledOut(t, system)
			w.requireSpread(t, system)
			return i
		})
	})
}

// requireSpread checks that no two replicas share a node.
func (w *world) requireSpread(t *testing.T, namespace string) {
	t.Helper()
	list := &corev1.PodList{}
	require.NoError(t, w.client.List(t.Context(), list, client.InNamespace(namespace),
		client.MatchingLabels{"app.kubernetes.io/part-of": "kuperator"}))
	nodes := map[string]int{}
	for _, pod := range list.Items {
		require.Equal(t, "kuperator", pod.Spec.PriorityClassName)
		at := pod.Labels["app.kubernetes.io/name"] + " on " + pod.Spec.NodeName
		nodes[at]++
		require.Equal(t, 1, nodes[at], at)
	}
	require.Len(t, nodes, 21) // three of each
}

func TestEveryOverlay(t *testing.T) {
	long(t)
	w := newWorld(t)
	w.namespaces(t, storyNamespace, "team-b")
	w.prerequisites(t, "platform")
	w.restrict(t, "platform")
	w.prerequisites(t, system)
	w.restrict(t, system)
	for overlay, s := range stories {
		passed := t.Run(overlay, func(t *testing.T) {
			namespace := "platform"
			if overlay == "namespace-scoped" {
				namespace = "" // it has namespaces of its own
			}
			w.live(t, s, func(t *testing.T) installed {
				i := w.apply(t, namespace, overlay)
				if namespace == "" {
					i.namespace = system
					w.requireRightsOnlyIn(t, system)
				}
				return i
			})
		})
		if !passed {
			t.Fatal("what this one left would be in the way of the next")
		}
	}
}

func TestEveryVariantOfTheChart(t *testing.T) {
	long(t)
	w := newWorld(t)
	w.namespaces(t, storyNamespace, "team-b")
	w.restrict(t, "platform")
	for overlay, s := range stories {
		passed := t.Run(overlay, func(t *testing.T) {
			w.live(t, s, func(t *testing.T) installed {
				i := w.release(t, "platform", "kuperator", "--values", variant(t, overlay))
				if overlay == "namespace-scoped" {
					w.requireRightsOnlyIn(t, "platform")
				}
				return i
			})
		})
		if !passed {
			t.Fatal("what this one left would be in the way of the next")
		}
	}
}

// requireRightsOnlyIn checks that the components may do their work in the two named namespaces and in no other.
func (w *world) requireRightsOnlyIn(t *testing.T, namespace string) {
	t.Helper()
	may := func(component, verb, resource, in string) bool {
		out, err := w.cluster.Kubectl(t.Context(), "auth", "can-i", verb, resource, "-n", in, "--as",
			"system:serviceaccount:"+namespace+":"+component)
		if out == "" {
			require.NoError(t, err)
		}
		return out == "yes\n"
	}
	for component, right := range map[string][2]string{
		"collaset-controller":          {"delete", "pods"},
		"podtransitionrule-controller": {"list", "podtransitionrules.apps.kusionstack.io"},
		"lifecycle-controller":         {"patch", "pods"},
		"resourceconsist-controller":   {"patch", "services"},
		"operationjob-controller":      {"delete", "operationjobs.apps.kusionstack.io"},
		"poddecoration-controller":     {"delete", "controllerrevisions.apps"},
		"webhook-server":               {"patch", "pods"},
	} {
		for in, want := range map[string]bool{"team-a": true, "team-b": true, "default": false, namespace: false} {
			await.Nil(t, component+"'s rights in "+in, func() error {
				if may(component, right[0], right[1], in) != want {
					return errNotYet // the authorizer learns of bindings a moment later
				}
				return nil
			})
		}
	}
}
