package install

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/go-logr/logr"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/internal/testkit/await"
	"kusionstack.io/kuperator/internal/testkit/localkube"
	"kusionstack.io/kuperator/internal/testkit/testcluster"
)

const (
	// version is what the programs report as theirs, where a test does not ask for another.
	version = "v0.1.0-installed"
)

func TestMain(m *testing.M) {
	ctrllog.SetLogger(logr.Discard()) // of the tests' own clients
	os.Exit(m.Run())
}

// long skips what only make test-install runs.
func long(t *testing.T) {
	t.Helper()
	if os.Getenv("INSTALL") != "all" {
		t.Skip("make test-install runs this")
	}
}

// world is a bare cluster: a real control plane, three simulated nodes, and nothing of ours.
type world struct {
	cluster *localkube.Cluster
	client  client.Client
	bin     map[string]string // folder of the programs by their version
}

func newWorld(t *testing.T) *world {
	t.Helper()
	if testing.Short() {
		t.Skip("starts a cluster")
	}
	w := &world{bin: map[string]string{}}
	w.cluster = testcluster.Start(t, localkube.Config{
		Name: "install", WithControllerManager: true, WithScheduler: true, WithNodes: true, Nodes: 3,
	})
	scheme := runtime.NewScheme()
	require.NoError(t, errors.Join(clientgoscheme.AddToScheme(scheme), appsv1alpha1.AddToScheme(scheme)))
	config := w.cluster.RESTConfig()
	config.QPS = -1
	var err error
	w.client, err = client.New(config, client.Options{Scheme: scheme})
	require.NoError(t, err)
	return w
}

// programs returns the folder of the programs, built with a version.
func (w *world) programs(t *testing.T, version string) string {
	t.Helper()
	if dir := w.bin[version]; dir != "" {
		return dir
	}
	cache, err := localkube.CacheDir()
	require.NoError(t, err)
	dir := filepath.Join(cache, "installed-"+version)
	require.NoError(t, os.MkdirAll(dir, 0o755))
	cmd := exec.CommandContext(t.Context(), "go", "build", "-o", dir+string(filepath.Separator),
		"-ldflags", "-X kusionstack.io/kuperator/internal/bootstrap.version="+version, "./cmd/...")
	cmd.Dir = filepath.Join("..", "..")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, string(out))
	w.bin[version] = dir
	return dir
}

func (w *world) kubectl(t *testing.T, args ...string) string {
	t.Helper()
	out, err := w.cluster.Kubectl(t.Context(), args...)
	require.NoError(t, err)
	return out
}

// namespaces makes namespaces, and waits until Pods can be made in them.
func (w *world) namespaces(t *testing.T, names ...string) {
	t.Helper()
	for _, name := range names {
		err := w.client.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}})
		require.NoError(t, client.IgnoreAlreadyExists(err))
		await.Nil(t, "the default ServiceAccount of "+name, func() error {
			return w.client.Get(t.Context(), client.ObjectKey{Namespace: name, Name: "default"}, &corev1.ServiceAccount{})
		})
	}
}

// restrict makes the namespace one of a strict cluster: Pod Security restricted, and a quota by which every Pod must
// say what it needs.
func (w *world) restrict(t *testing.T, namespace string) {
	t.Helper()
	w.namespaces(t, namespace)
	w.kubectl(t, "label", "--overwrite", "namespace", namespace, "pod-security.kubernetes.io/enforce=restricted",
		"kuperator.kusionstack.io/installation=true")
	quota := &corev1.ResourceQuota{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "everything-is-counted"},
		Spec: corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{
			corev1.ResourcePods: resource.MustParse("30"), corev1.ResourceRequestsCPU: resource.MustParse("20"),
			corev1.ResourceRequestsMemory: resource.MustParse("40Gi"), corev1.ResourceLimitsMemory: resource.MustParse("120Gi"),
		}},
	}
	require.NoError(t, client.IgnoreAlreadyExists(w.client.Create(t.Context(), quota)))
}

// installed is something that was installed, and how it goes.
type installed struct {
	namespace string
	uninstall func(t *testing.T)
}

// apply installs an overlay with kubectl.
func (w *world) apply(t *testing.T, namespace, overlay string) installed {
	t.Helper()
	dir := kustomization(t, namespace, []string{"overlays/" + overlay}, nil)
	w.kubectl(t, "apply", "--server-side", "-k", dir)
	return installed{namespace: namespace, uninstall: func(t *testing.T) {
		t.Helper()
		w.kubectl(t, "delete", "--wait", "-k", dir)
	}}
}

// prerequisites installs what the overlays presuppose.
func (w *world) prerequisites(t *testing.T, namespace string) {
	t.Helper()
	w.kubectl(t, "apply", "--server-side", "-k", kustomization(t, namespace, []string{"prerequisites"}, nil))
	require.NoError(t, localkube.WaitForCRDs(t.Context(), w.cluster.RESTConfig()))
}

// release installs the chart with helm.
func (w *world) release(t *testing.T, namespace, name string, args ...string) installed {
	t.Helper()
	to := []string{"--kubeconfig", w.cluster.AdminKubeconfig, "--namespace", namespace}
	out, err := helm(t, append(append([]string{"install", name, deployDir(t, "charts", "kuperator")}, to...), args...)...)
	require.NoError(t, err, out)
	require.NoError(t, localkube.WaitForCRDs(t.Context(), w.cluster.RESTConfig()))
	return installed{namespace: namespace, uninstall: func(t *testing.T) {
		t.Helper()
		_, err := helm(t, append([]string{"uninstall", name, "--wait"}, to...)...)
		require.NoError(t, err)
	}}
}

// crds returns the UIDs of our CRDs by name.
func (w *world) crds(t *testing.T) map[string]string {
	t.Helper()
	uids := map[string]string{}
	for line := range strings.Lines(w.kubectl(t, "get", "crds", "-o",
		`jsonpath={range .items[*]}{.metadata.name} {.metadata.uid}{"\n"}{end}`)) {
		if name, uid, ok := strings.Cut(strings.TrimSpace(line), " "); ok && strings.HasSuffix(name, "kusionstack.io") {
			uids[name] = uid
		}
	}
	return uids
}

var errNotYet = errors.New("not yet")

// background is for what outlives the test's own context, its end.
func background(t *testing.T) context.Context { return context.WithoutCancel(t.Context()) }
