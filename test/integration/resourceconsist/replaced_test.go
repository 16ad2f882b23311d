package resourceconsist_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
	api "kusionstack.io/kuperator/api/resourceconsist"
	"kusionstack.io/kuperator/internal/resourceconsist/bulk"
	"kusionstack.io/kuperator/internal/resourceconsist/endpointslice"
	"kusionstack.io/kuperator/internal/resourceconsist/webhook"
)

// TestAServiceIsReplaced: a user puts a manifest in the place of a Service, without what the controller wrote into its
// metadata, while the controller runs and while it does not. Nothing is left in a backend, and nothing is stuck.
func TestAServiceIsReplaced(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a control plane")
	}
	w := start(t)
	pool, edge := newBalancer("pool"), newBalancer("edge")
	for name, metadata := range map[string]map[string]string{
		"by one of another adapter":  {appsv1alpha1.ControlLabel: "true"},
		"by one of the same adapter": {appsv1alpha1.ControlLabel: "true", balancerLabel: "edge"},
		"by one that takes no part":  nil,
	} {
		for _, running := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, running %t", name, running), func(t *testing.T) {
				stop := startManager(t, w.config, endpointsOf(), renting{pool}, edge)
				m := market{w.shop(t), pool, edge}
				service := m.balanced(t, "web", "edge")
				m.createPod(t, "web-0")
				m.serving(t, "web-0", "web")
				require.True(t, edge.has(service, "web-0"))
				require.Equal(t, []string{"edge"}, api.AnnotatedHolders(m.service(t, "web")))
				require.Equal(t, []string{"edge"}, api.ConditionedHolders(m.service(t, "web")))
				if !running {
					stop()
				}
				m.replace(t, "web", metadata)
				if !running {
					stop = startManager(t, w.config, endpointsOf(), renting{pool}, edge)
				}
				switch {
				case metadata == nil:
					m.eventually(t, "the Pod is out of the backend", func() bool { return !edge.has(service, "web-0") })
					m.serving(t, "web-0")
					m.unheld(t, "web")
					require.Empty(t, api.HeldBy(m.service(t, "web")))
				case metadata[balancerLabel] == "":
					m.eventually(t, "the Pod is out of the backend", func() bool { return !edge.has(service, "web-0") })
					m.serving(t, "web-0", "web")
					m.eventually(t, "no adapter holds anything", func() bool { return len(api.HeldBy(m.service(t, "web"))) == 0 })
				default:
					m.eventually(t, "it is held again", func() bool {
						s := m.service(t, "web")
						return slices.Contains(s.Finalizers, api.CleanFinalizer) &&
							slices.Equal(api.AnnotatedHolders(s), []string{"edge"})
					})
					m.serving(t, "web-0", "web")
					require.Equal(t, []string{"register web-0"}, edge.called(service), "nothing has happened to the Pod")
				}
				m.begin(t, "web-0")
				m.finish(t, "web-0")
				require.NoError(t, m.client.Delete(t.Context(), m.service(t, "web")))
				m.gone(t, "web")
				m.serving(t, "web-0")
				require.False(t, edge.has(service, "web-0"))
				stop()
			})
		}
	}
}

// replace puts a manifest with these labels, and no other metadata, in the place of a Service.
func (m market) replace(t *testing.T, name string, labels map[string]string) {
	t.Helper()
	m.eventually(t, "the manifest is put", func() bool {
		was := m.service(t, name)
		manifest := &corev1.Service{ObjectMeta: metav1.ObjectMeta{
			Namespace: m.namespace, Name: name, Labels: labels, ResourceVersion: was.ResourceVersion,
		}, Spec: was.Spec}
		_, err := m.clientset.CoreV1().Services(m.namespace).Update(t.Context(), manifest, metav1.UpdateOptions{})
		if apierrors.IsConflict(err) {
			return false
		}
		require.NoError(t, err)
		return true
	})
}

// TestAServiceChoosesAnotherEndpoint: its Pods are taken out at the earlier one, by the replica that runs then.
func TestAServiceChoosesAnotherEndpoint(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a control plane")
	}
	w := start(t)
	old, next := newPools(t), newPools(t)
	file := filepath.Join(t.TempDir(), "endpoints.yaml")
	require.NoError(t, os.WriteFile(file, []byte("endpoints:\n"+old.entry("pools")+next.entry("other")), 0o600))
	for name, story := range map[string]func(t *testing.T, s shop, old, next *pools, restart func(), stop func()){
		"while the controller runs":                          movesWhileRunning,
		"while the controller is down":                       movesWhileDown,
		"and the controller is killed before all have left":  movesAndIsKilled,
		"none any more, while the controller is down":        leavesWhileDown,
		"and its metadata are replaced by empty ones":        movesAndIsReplaced,
		"and another again, before it has left the earliest": movesTwice,
	} {
		t.Run(name, func(t *testing.T) {
			stop := func() {}
			restart := func() {
				o := webhook.DefaultOptions()
				o.Endpoints, o.Allow = file, []string{"127.0.0.0/8"}
				backend, err := webhook.New(o, nil)
				require.NoError(t, err)
				options := o.Calls()
				options.QPS, options.MaxPoll, options.MaxBackoff = -1, 500*time.Millisecond, time.Second
				stop = startManager(t, w.config, endpointslice.New(nil), bulk.New(backend, options, nil))
			}
			restart()
			s := w.shop(t)
			s.createService(t, "web", pooled)
			s.pooled(t, old, "web-0")
			story(t, s, old, next, restart, func() { stop() })
			stop()
			old.endSessions()
		})
	}
}

// entry is the server in the file of endpoints.
func (p *pools) entry(name string) string {
	return fmt.Sprintf(
		"- {name: %s, url: %q, caFile: %[3]s/ca.crt, certificateFile: %[3]s/tls.crt, keyFile: %[3]s/tls.key, timeout: 30s, namespaces: ['*']}\n", name, p.URL, p.dir)
}

func (s shop) choose(t *testing.T, endpoint string) {
	t.Helper()
	s.patchService(t, "web", `{"metadata":{"annotations":{"`+webhook.EndpointAnnotation+`":`+endpoint+`}}}`)
}

// heldBy waits until the Service names exactly these as holders.
func (s shop) heldBy(t *testing.T, names ...string) {
	t.Helper()
	s.eventually(t, fmt.Sprint("the Service names ", names), func() bool {
		return slices.Equal(api.HeldBy(market{shop: s}.service(t, "web")), names)
	})
}

// moved waits until the Pod is at next and not at old.
func (s shop) moved(t *testing.T, old, next *pools) {
	t.Helper()
	pod := s.pod(t, "web-0")
	s.eventually(t, "the Pod is at the new endpoint", func() bool { return next.member(pod).Serving })
	s.eventually(t, "the Pod is not at the old one", func() bool { return !old.member(pod).Serving })
	s.heldBy(t, "webhook.other")
	require.True(t, s.bound(t, s.pod(t, "web-0"), "web"))
	s.begin(t, "web-0")
	s.allowed(t, "web-0")
	require.False(t, next.member(pod).Serving)
	s.finish(t, "web-0")
	s.serving(t, "web-0", "web")
}

func movesWhileRunning(t *testing.T, s shop, old, next *pools, _, _ func()) {
	s.heldBy(t, "webhook.pools")
	s.choose(t, `"other"`)
	s.moved(t, old, next)
}

func movesWhileDown(t *testing.T, s shop, old, next *pools, restart, stop func()) {
	stop()
	s.choose(t, `"other"`)
	restart()
	s.moved(t, old, next)
}

func movesAndIsKilled(t *testing.T, s shop, old, next *pools, restart, stop func()) {
	old.set(func() { old.sticky = true })
	s.choose(t, `"other"`)
	pod := s.pod(t, "web-0")
	s.eventually(t, "the Pod is at the new endpoint", func() bool { return next.member(pod).Serving })
	stop()
	require.True(t, old.member(pod).Serving)
	restart()
	seen := s.record(t, "web-0", "web")
	s.begin(t, "web-0")
	s.waits(t, "web-0")
	s.eventually(t, "the Pod is not at the new one", func() bool { return !next.member(pod).Serving })
	s.heldBy(t, "webhook.other", "webhook.pools")
	still := s.now(t)
	old.endSessions()
	s.released(t, next, "web-0", seen, still)
	require.False(t, old.member(pod).Serving)
	s.heldBy(t, "webhook.other")
}

func leavesWhileDown(t *testing.T, s shop, old, next *pools, restart, stop func()) {
	stop()
	s.choose(t, "null")
	restart()
	pod := s.pod(t, "web-0")
	s.eventually(t, "the Pod is not at the old one", func() bool { return !old.member(pod).Serving })
	s.heldBy(t)
	s.serving(t, "web-0", "web")
	require.Empty(t, next.member(pod))
}

func movesAndIsReplaced(t *testing.T, s shop, old, next *pools, restart, stop func()) {
	old.set(func() { old.sticky = true })
	s.choose(t, `"other"`)
	pod := s.pod(t, "web-0")
	s.eventually(t, "the Pod is at the new endpoint", func() bool { return next.member(pod).Serving })
	stop()
	market{shop: s}.replace(t, "web", map[string]string{appsv1alpha1.ControlLabel: "true"})
	restart()
	s.eventually(t, "the Pod is not at the new one", func() bool { return !next.member(pod).Serving })
	s.begin(t, "web-0")
	s.eventually(t, "the Service is waited for",
		func() bool { return len(podops.Explain(podops.Read(s.pod(t, "web-0")), nil)) > 0 })
	old.endSessions()
	s.allowed(t, "web-0")
	require.False(t, old.member(pod).Serving)
	s.heldBy(t)
}

func movesTwice(t *testing.T, s shop, old, next *pools, _, _ func()) {
	old.set(func() { old.sticky = true })
	s.choose(t, `"other"`)
	pod := s.pod(t, "web-0")
	s.eventually(t, "the Pod is at the new endpoint", func() bool { return next.member(pod).Serving })
	s.choose(t, `"pools"`)
	s.eventually(t, "the Pod is back at the old one",
		func() bool { return old.member(pod).Serve && old.member(pod).Serving })
	s.eventually(t, "the Pod is not at the new one", func() bool { return !next.member(pod).Serving })
	s.heldBy(t, "webhook.pools")
}
