package versions

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	lifecyclev1alpha1 "k8s.io/api/lifecycle/v1alpha1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
	"kusionstack.io/kuperator/internal/revision"
	"kusionstack.io/kuperator/internal/revision/detect"
	"kusionstack.io/kuperator/internal/testkit/await"
	"kusionstack.io/kuperator/internal/testkit/localkube"
	"kusionstack.io/kuperator/internal/testkit/observer"
	"kusionstack.io/kuperator/internal/testkit/suite"
	"kusionstack.io/kuperator/internal/testkit/testcluster"
	"kusionstack.io/kuperator/internal/testkit/workload"
)

const (
	// wantedVariable is set by `make test-versions`.
	wantedVariable = "KUPERATOR_VERSION_TESTS"

	replicas = 4
)

// world is the suite on one version, and a namespace with a workload of it.
type world struct {
	*suite.Suite
	client    client.Client
	namespace string
	watching  *observer.Observer
}

// expected is what a version lets change on a running Pod.
var expected = map[string]revision.Capabilities{
	"1.37": {Resize: true, ResizeInit: true, ResizePod: true},
	"1.36": {Resize: true, ResizeInit: true, ResizePod: true},
	"1.30": {},
}

func TestMain(m *testing.M) {
	ctrllog.SetLogger(logr.Discard()) // of the tests' own client
	os.Exit(m.Run())
}

func TestEveryVersion(t *testing.T) {
	if os.Getenv(wantedVariable) == "" {
		t.Skip("builds other versions of Kubernetes: make test-versions runs it")
	}
	require.Len(t, expected, len(localkube.Versions()), "what is expected of each version")
	for _, version := range localkube.Versions() {
		t.Run(version, func(t *testing.T) {
			w := start(t, version)
			can := expected[version]
			t.Run("every overlay is taken", func(t *testing.T) { overlays(t, version) })
			t.Run("what the server can is found out", func(t *testing.T) { w.capabilities(t, version, can) })
			t.Run("rollouts, in place and with new Pods", func(t *testing.T) { w.rollouts(t, can.Resize) })
			t.Run("evicted and deleted gracefully", w.evictions)
			t.Run("EvictionRequests are left alone where they are not served", w.withoutEvictionRequests)
			require.NoError(t, w.Died())
		})
	}
}

// start runs all components on a cluster of that version, with a workload in traffic under a rule.
func start(t *testing.T, version string) *world {
	t.Helper()
	s, err := suite.Start(t.Context(), suite.Config{Name: "versions", Kubernetes: version, Nodes: 2, AuditReads: true,
		Progress: t.Output()})
	require.NoError(t, err)
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(s.LogTails())
		}
		if err := s.Stop(); err != nil {
			t.Errorf("stopping the suite: %v", err)
		}
	})
	require.NoError(t, appsv1alpha1.AddToScheme(clientgoscheme.Scheme))
	c, err := client.New(s.RESTConfig(), client.Options{Scheme: clientgoscheme.Scheme})
	require.NoError(t, err)
	w := &world{Suite: s, client: c, namespace: "shop"}
	w.create(t, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: w.namespace}}, workload.Service(w.namespace, "web"),
		workload.Rule(w.namespace, "web", "1"), w.collaSet())
	w.waitServing(t, "web:1", "100m")
	w.watching, err = observer.Start(t.Context(), w.RESTConfig(), observer.Options{StuckAfter: 2 * await.Patience})
	require.NoError(t, err)
	return w
}

func (w *world) create(t *testing.T, objects ...client.Object) {
	t.Helper()
	for _, object := range objects {
		// admission learns of a namespace a moment later
		await.Nil(t, fmt.Sprintf("%T %s to be taken", object, object.GetName()), func() error {
			return client.IgnoreAlreadyExists(w.client.Create(t.Context(), object))
		})
	}
}

func (w *world) collaSet() *appsv1alpha1.CollaSet {
	set := workload.CollaSet(w.namespace, "web", "web:1", replicas)
	set.Spec.Template.Spec.Containers[0].Resources = corev1.ResourceRequirements{
		Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100m")},
	}
	return set
}

// overlays: the API server takes everything that deploy/ installs, with nothing that it does not know or that is
// malformed for it.
func overlays(t *testing.T, version string) {
	cluster := testcluster.Start(t, localkube.Config{Name: "overlays", Kubernetes: version, WithControllerManager: true})
	all, err := filepath.Glob("../../deploy/overlays/*/kustomization.yaml")
	require.NoError(t, err)
	require.Greater(t, len(all), 5)
	_, err = cluster.Kubectl(t.Context(), "apply", "--server-side", "--validate=strict", "-k",
		"../../deploy/prerequisites")
	require.NoError(t, err)
	require.NoError(t, localkube.WaitForCRDs(t.Context(), cluster.RESTConfig()))
	for _, namespace := range []string{"team-a", "team-b"} { // which the overlay namespace-scoped is about
		_, err := cluster.Kubectl(t.Context(), "create", "namespace", namespace)
		require.NoError(t, err)
	}
	for _, overlay := range all {
		// A webhook has a URL or a Service, and the overlays differ in that.
		_, err := cluster.Kubectl(t.Context(), "delete",
			"mutatingwebhookconfigurations,validatingwebhookconfigurations", "--all")
		require.NoError(t, err)
		out, err := cluster.Kubectl(t.Context(), "apply", "--server-side", "--force-conflicts", "--validate=strict", "-k",
			filepath.Dir(overlay))
		require.NoError(t, err, overlay)
		require.Contains(t, out, "serverside-applied")
	}
	definitions, err := cluster.Kubectl(t.Context(), "get", "crd", "-o",
		`jsonpath={range .items[*].status.conditions[?(@.type=="NonStructuralSchema")]}{.message}{end}`)
	require.NoError(t, err)
	require.Empty(t, definitions)
}

func (w *world) capabilities(t *testing.T, version string, can revision.Capabilities) {
	detector, err := detect.New(w.RESTConfig(), clock.RealClock{}, revision.Capabilities{})
	require.NoError(t, err)
	got, err := detector.Capabilities(t.Context())
	require.NoError(t, err)
	assert.Equal(t, can, got)
	clients, err := w.Clients()
	require.NoError(t, err)
	server, err := clients.Discovery().ServerVersion()
	require.NoError(t, err)
	assert.True(t, strings.HasPrefix(server.GitVersion, "v"+version+"."), server.GitVersion)
}

// withoutEvictionRequests: no version serves them unless it is told to. Programs ask discovery, and no more.
func (w *world) withoutEvictionRequests(t *testing.T) {
	requests, err := w.Requests(time.Time{})
	require.NoError(t, err)
	for _, r := range requests {
		assert.NotEqual(t, lifecyclev1alpha1.GroupName, r.Group, "%s %s", r, r.URI)
	}
	pods := &corev1.PodList{}
	require.NoError(t, w.client.List(t.Context(), pods, client.InNamespace(w.namespace)))
	require.NotEmpty(t, pods.Items)
	for i := range pods.Items {
		assert.Empty(t, pods.Items[i].Spec.EvictionResponders)
	}
}

func (w *world) set(t *testing.T) *appsv1alpha1.CollaSet {
	t.Helper()
	set := &appsv1alpha1.CollaSet{}
	require.NoError(t, w.client.Get(t.Context(), client.ObjectKey{Namespace: w.namespace, Name: "web"}, set))
	return set
}

// change patches the workload with a JSON merge patch of its spec.
func (w *world) change(t *testing.T, spec string) {
	t.Helper()
	require.NoError(t, w.client.Patch(t.Context(), w.set(t),
		client.RawPatch(types.MergePatchType, []byte(`{"spec":`+spec+`}`))))
}

func (w *world) setContainer(t *testing.T, image, cpu string) {
	t.Helper()
	w.change(t,
		fmt.Sprintf(`{"template":{"spec":{"containers":[{"name":"main","image":%q,"resources":{"requests":{"cpu":%q}}}]}}}`,
			image, cpu))
}

func (w *world) rollouts(t *testing.T, resizes bool) {
	first := w.uids(t)

	t.Log("an image")
	w.setContainer(t, "web:2", "100m")
	w.waitServing(t, "web:2", "100m")
	require.Equal(t, first, w.uids(t), "in place")

	t.Log("cpu")
	w.change(t, `{"updateStrategy":{"podUpgradePolicy":"InPlaceOnly"}}`)
	w.setContainer(t, "web:2", "200m")
	if resizes {
		w.waitServing(t, "web:2", "200m")
		require.Equal(t, first, w.uids(t), "in place")
	} else {
		await.Nil(t, "InPlaceOnly to say that it cannot be done", func() error {
			set := w.set(t)
			if set.Status.NextUpdate == nil || len(set.Status.Blockers) == 0 ||
				set.Status.Blockers[0].Reason != "InPlaceImpossible" {
				return fmt.Errorf("next update %+v, blockers %+v", set.Status.NextUpdate, set.Status.Blockers)
			}
			return nil
		})
		require.Equal(t, first, w.uids(t), "nothing is recreated against the policy")
	}
	w.change(t, `{"updateStrategy":{"podUpgradePolicy":"InPlaceIfPossible"}}`)
	w.waitServing(t, "web:2", "200m")
	if !resizes {
		for uid := range w.uids(t) {
			require.NotContains(t, first, uid, "every Pod is new")
		}
	}

	t.Log("a variable, which no version changes on a running Pod")
	before := w.uids(t)
	w.change(t,
		`{"template":{"spec":{"containers":[{"name":"main","image":"web:3","env":[{"name":"A","value":"1"}],"resources":{"requests":{"cpu":"200m"}}}]}}}`)
	w.waitServing(t, "web:3", "200m")
	for uid := range w.uids(t) {
		require.NotContains(t, before, uid, "every Pod is new")
	}
	w.requireOneAtATime(t)
}

// requireOneAtATime: an observer from outside saw a Pod out of service, and never two.
func (w *world) requireOneAtATime(t *testing.T) {
	t.Helper()
	report := w.watching.Settled(t.Context())
	require.NoError(t, report.Err())
	seen, found := report.Rule(w.namespace, "web")
	require.True(t, found)
	require.Equal(t, 1, seen.MaxOut)
}

func (w *world) evictions(t *testing.T) {
	pods := w.pods(t)
	clients, err := w.Clients()
	require.NoError(t, err)
	err = clients.PolicyV1().Evictions(w.namespace).Evict(t.Context(),
		&policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: pods[0].Name}})
	// The client asks again by itself as long as it is refused.
	require.True(t, apierrors.IsTooManyRequests(err) || apierrors.IsNotFound(err),
		"it leaves service first, and is deleted then: %v", err)
	_, err = w.Kubectl(t.Context(), "-n", w.namespace, "delete", "pod", pods[1].Name, "--wait=false")
	require.ErrorContains(t, err, "is being taken out of service and is then deleted by itself")
	for _, pod := range pods[:2] {
		await.Nil(t, pod.Name+" to go", func() error {
			if _, there := w.uids(t)[pod.UID]; there {
				return errors.New("it is there")
			}
			return nil
		})
	}
	w.waitServing(t, "web:3", "200m")
	for _, pod := range pods[2:] {
		require.Contains(t, w.uids(t), pod.UID, "nobody asked it to go")
	}
	w.requireOneAtATime(t)
	_, err = w.watching.Stop()
	require.NoError(t, err)
}

func (w *world) pods(t *testing.T) []corev1.Pod {
	t.Helper()
	list := &corev1.PodList{}
	require.NoError(t, w.client.List(t.Context(), list, client.InNamespace(w.namespace),
		client.MatchingLabels{"app": "web"}))
	return list.Items
}

func (w *world) uids(t *testing.T) map[types.UID]bool {
	t.Helper()
	uids := map[types.UID]bool{}
	for _, pod := range w.pods(t) {
		uids[pod.UID] = true
	}
	return uids
}

// waitServing waits until all Pods are in service with the image and the cpu, with no operation left on them.
func (w *world) waitServing(t *testing.T, image, cpu string) {
	t.Helper()
	await.Nil(t, fmt.Sprintf("%d Pods serving %s with %s", replicas, image, cpu), func() error {
		pods := w.pods(t)
		for i := range pods {
			container, v := pods[i].Spec.Containers[0], podops.Read(&pods[i])
			if pods[i].DeletionTimestamp != nil || container.Image != image ||
				container.Resources.Requests.Cpu().String() != cpu ||
				!v.Ready || !v.ServiceAvailable() || len(podops.Operations(v)) > 0 {
				return fmt.Errorf("%s has %s, %s: %v", pods[i].Name, container.Image, container.Resources.Requests.Cpu(),
					podops.Explain(v, nil))
			}
		}
		if len(pods) != replicas {
			return fmt.Errorf("%d Pods exist", len(pods))
		}
		return nil
	})
}
