package install

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"kusionstack.io/kuperator/internal/testkit/await"
	"kusionstack.io/kuperator/internal/testkit/localkube"
	"kusionstack.io/kuperator/internal/testkit/localkube/binaries"
	"kusionstack.io/kuperator/internal/testkit/pages"
	"kusionstack.io/kuperator/internal/testkit/workload"
)

const (
	fluxSystem = "flux-system"

	// sources are the kinds that kustomize-controller watches. Their own module is not one of those that it is built of.
	sources = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: %[2]s.source.toolkit.fluxcd.io}
spec:
  group: source.toolkit.fluxcd.io
  scope: Namespaced
  names: {kind: %[1]s, plural: %[2]s}
  versions:
  - name: v1
    served: true
    storage: true
    subresources: {status: {}}
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
`
	around = `
apiVersion: v1
kind: Service
metadata: {name: web, labels: {kusionstack.io/control: "true"}}
spec: {selector: {app: web}, ports: [{port: 80, targetPort: 8080}]}
---
apiVersion: apps.kusionstack.io/v1alpha1
kind: PodTransitionRule
metadata: {name: web}
spec:
  selector: {matchLabels: {app: web}}
  rules: [{name: available, availablePolicy: {maxUnavailableValue: 1}}]
`
	web = `
apiVersion: apps.kusionstack.io/v1alpha1
kind: CollaSet
metadata: {name: web}
spec:
  %s
  selector: {matchLabels: {app: web}}
  updateStrategy: {podUpgradePolicy: InPlaceIfPossible}
  template:
    metadata: {labels: {app: web, kusionstack.io/control: "true"}}
    spec: {containers: [{name: main, image: %q}]}
`
)

// flux is a cluster with Flux's kustomize-controller, and the Git repository that it applies. The test plays
// source-controller.
type flux struct {
	*world
	dir, served, url string // of the repository, and of its archives
	revision         string
}

// TestFlux has Flux install the suite and deploy a workload from Git, as docs/gitops.md tells users.
func TestFlux(t *testing.T) {
	foreign(t)
	ports, err := localkube.ReservePorts(3)
	require.NoError(t, err)
	address := fmt.Sprintf("127.1.%d.%d", ports.Numbers[2]/256, ports.Numbers[2]%256) // no other process has it
	if listener, err := net.Listen("tcp", address+":443"); err != nil {
		t.Skipf("webhook-server has to listen at the port of its Service: %v", err)
	} else {
		require.NoError(t, listener.Close())
	}
	f := newFlux(t)
	f.install(t, address)
	f.push(t, map[string]string{"around.yaml": around, "web.yaml": fmt.Sprintf(web, "replicas: 3", image1)})

	f.becomes(t, "kuperator", metav1.ConditionTrue, "")
	await.Always(t, 3*time.Second, "no controller runs", func() error {
		if _, ready := f.status(t, "web"); ready.Status == metav1.ConditionTrue {
			return errors.New(ready.Message)
		}
		return nil
	})
	f.start(t, ports, address)
	o := f.observe(t)
	deployed := func(t *testing.T, spec string, n int, image string) {
		t.Helper()
		f.push(t, map[string]string{"web.yaml": fmt.Sprintf(web, spec, image)})
		f.becomes(t, "web", metav1.ConditionTrue, "")
		require.NoError(t, f.updated(t, n, image), "Ready means that")
	}

	t.Run("ready when the Pods are", func(t *testing.T) {
		f.becomes(t, "web", metav1.ConditionTrue, "")
		require.NoError(t, f.updated(t, 3, image1), "Ready means that")
		f.leavesAlone(t, "web")
	})
	t.Run("an update in place", func(t *testing.T) {
		before := workload.UIDs(f.pods(t, storyNamespace))
		deployed(t, "replicas: 3", 3, image2)
		require.Equal(t, before, workload.UIDs(f.pods(t, storyNamespace)))
	})
	t.Run("replicas handed over", func(t *testing.T) {
		deployed(t, "minReadySeconds: 0", 3, image2)
		f.kubectl(t, "scale", "cls/web", "-n", storyNamespace, "--replicas=4")
		f.waitUpdated(t, 4, image2)
		f.leavesAlone(t, "web")
	})
	t.Run("what users write beside Git", func(t *testing.T) {
		f.plugin(t, "restart", "cls/web")
		f.waitUpdated(t, 4, image2)
		f.plugin(t, "pause", "cls/web")
		f.leavesAlone(t, "web")
		f.plugin(t, "resume", "cls/web")
		spec := func() string { return f.kubectl(t, "get", "cls/web", "-n", storyNamespace, "-o", "jsonpath={.spec}") }
		before := spec()
		f.kubectl(t, "patch", "cls/web", "-n", storyNamespace, "--type=merge", "-p", `{"spec":{"paused":true}}`)
		f.reconcile(t, "web")
		require.Equal(t, before, spec(), "Flux undoes what kubectl writes")
	})
	t.Run("fails when nothing gets better, and recovers", func(t *testing.T) {
		f.patch(t, "web", `{"spec":{"wait":false,"healthChecks":[{"apiVersion":"apps.kusionstack.io/v1alpha1",`+
			`"kind":"CollaSet","name":"web","namespace":"team-a"}]}}`)
		f.push(t, map[string]string{"web.yaml": fmt.Sprintf(web, "progressDeadlineSeconds: 5", "web:non-exist")})
		f.becomes(t, "web", metav1.ConditionFalse, "failed early due to stalled resources")
		deployed(t, "minReadySeconds: 0", 4, image3)
	})
	t.Run("the suite itself", func(t *testing.T) {
		f.leavesAlone(t, "kuperator-prerequisites")
		f.leavesAlone(t, "kuperator")
	})
	t.Run("prune", func(t *testing.T) {
		f.patch(t, "web", `{"spec":{"wait":true,"healthChecks":null}}`)
		f.push(t, map[string]string{"web.yaml": ""})
		f.becomes(t, "web", metav1.ConditionTrue, "")
		f.remove(t)
		requireRuleHeld(t, o)
		f.kubectl(t, "delete", "kustomization", "-n", fluxSystem, "web", "kuperator")
		f.requireGone(t, system)
		require.Len(t, f.crds(t), 5)
	})
}

func newFlux(t *testing.T) *flux {
	t.Helper()
	f := &flux{world: newWorld(t), dir: t.TempDir(), served: t.TempDir()}
	f.namespaces(t, storyNamespace, fluxSystem)
	server := httptest.NewServer(http.FileServer(http.Dir(f.served)))
	t.Cleanup(server.Close)
	f.url = server.URL
	require.NoError(t, os.CopyFS(filepath.Join(f.dir, "deploy"), os.DirFS(deployDir(t))))
	require.NoError(t, os.Mkdir(filepath.Join(f.dir, "web"), 0o755))
	for kind, plural := range map[string]string{"GitRepository": "gitrepositories", "OCIRepository": "ocirepositories",
		"Bucket": "buckets"} {
		f.apply(t, fmt.Sprintf(sources, kind, plural))
	}
	f.runForeign(t, binaries.Flux, []string{"--metrics-addr=0", "--health-addr=0", "--requeue-dependency=1s"},
		"config/crd/bases/*.yaml")
	return f
}

// install applies what docs/gitops.md shows. A patch has API servers reach webhook-server, which is a process of this
// machine, by its Service.
func (f *flux) install(t *testing.T, address string) {
	t.Helper()
	const page = "docs/gitops.md"
	source, err := os.ReadFile(filepath.Join("..", "..", page))
	require.NoError(t, err)
	blocks := pages.Read(page, source).Blocks
	i := slices.IndexFunc(blocks, func(b pages.Block) bool { return strings.Contains(b.Text, "toolkit.fluxcd.io") })
	require.GreaterOrEqual(t, i, 0)
	f.apply(t, blocks[i].Text)
	f.patch(t, "kuperator", `{"spec":{"patches":[{"target":{"kind":"Service","name":"webhook-server"},"patch":`+
		`"{kind: Service, metadata: {name: any}, spec: {type: ExternalName, externalName: `+address+`}}"}]}}`)
}

// patch changes a Kustomization.
func (f *flux) patch(t *testing.T, name, patch string) {
	t.Helper()
	f.kubectl(t, "patch", "kustomization", name, "-n", fluxSystem, "--type=merge", "-p", patch)
}

func (f *flux) apply(t *testing.T, manifest string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "manifest.yaml")
	require.NoError(t, os.WriteFile(file, []byte(manifest), 0o600))
	f.kubectl(t, "apply", "--server-side", "-f", file)
}

// start runs the programs of the Deployments, webhook-server at an address where API servers find its Service.
func (f *flux) start(t *testing.T, ports *localkube.Ports, address string) {
	t.Helper()
	deployments := f.rolledOut(t, system)
	for i := range deployments {
		if d := &deployments[i]; d.Name == webhooks {
			f.launch(t, d, version, ports, "--webhook-bind-address="+address, "--webhook-port=443",
				"--webhook-cert-settle=1s")
		} else {
			f.run(t, d, version)
		}
	}
	f.waitAsked(t)
}

// push commits files of the workload; one without content is removed.
func (f *flux) push(t *testing.T, files map[string]string) {
	t.Helper()
	for name, content := range files {
		path := filepath.Join(f.dir, "web", name)
		if content == "" {
			require.NoError(t, os.Remove(path))
			continue
		}
		require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
	}
	var archive bytes.Buffer
	zipped := gzip.NewWriter(&archive)
	tarred := tar.NewWriter(zipped)
	require.NoError(t, tarred.AddFS(os.DirFS(f.dir)))
	require.NoError(t, tarred.Close())
	require.NoError(t, zipped.Close())
	digest := fmt.Sprintf("%x", sha256.Sum256(archive.Bytes()))
	require.NoError(t, os.WriteFile(filepath.Join(f.served, digest), archive.Bytes(), 0o600))
	f.revision = "main@sha256:" + digest
	f.kubectl(t, "patch", "gitrepository", "platform", "-n", fluxSystem, "--subresource=status", "--type=merge", "-p",
		fmt.Sprintf(`{"status":{"artifact":{"path":%[1]q,"url":"%[2]s/%[1]s","revision":%[3]q,"digest":"sha256:%[1]s",`+
			`"lastUpdateTime":%[4]q}}}`, digest, f.url, f.revision, time.Now().UTC().Format(time.RFC3339)))
}

// kustomizationStatus is what the test reads of it.
type kustomizationStatus struct {
	LastAttemptedRevision, LastHandledReconcileAt string
	Conditions                                    []metav1.Condition
	Inventory                                     struct{ Entries []struct{ ID string } }
}

func (f *flux) status(t *testing.T, name string) (kustomizationStatus, metav1.Condition) {
	t.Helper()
	o := &unstructured.Unstructured{}
	o.SetGroupVersionKind(schema.GroupVersionKind{Group: "kustomize.toolkit.fluxcd.io", Version: "v1",
		Kind: "Kustomization"})
	require.NoError(t, f.client.Get(t.Context(), client.ObjectKey{Namespace: fluxSystem, Name: name}, o))
	k := struct{ Status kustomizationStatus }{}
	text, err := o.MarshalJSON()
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, &k))
	i := slices.IndexFunc(k.Status.Conditions, func(c metav1.Condition) bool { return c.Type == "Ready" })
	if i < 0 {
		return k.Status, metav1.Condition{Status: metav1.ConditionUnknown}
	}
	return k.Status, k.Status.Conditions[i]
}

// becomes waits for Flux's judgement on the last commit.
func (f *flux) becomes(t *testing.T, name string, want metav1.ConditionStatus, says string) {
	t.Helper()
	await.Nil(t, "Flux's judgement on "+name, func() error {
		status, ready := f.status(t, name)
		if status.LastAttemptedRevision != f.revision || ready.Status == metav1.ConditionUnknown {
			return fmt.Errorf("%s is at %s: %s", name, status.LastAttemptedRevision, ready.Message)
		}
		require.Equal(t, want, ready.Status, ready.Message)
		require.Contains(t, ready.Message, says)
		return nil
	})
}

// reconcile has Flux apply the last commit again.
func (f *flux) reconcile(t *testing.T, name string) {
	t.Helper()
	at := time.Now().Format(time.RFC3339Nano)
	f.kubectl(t, "annotate", "--overwrite", "kustomization", name, "-n", fluxSystem, "reconcile.fluxcd.io/requestedAt="+at)
	await.Nil(t, "Flux to reconcile "+name, func() error {
		if status, ready := f.status(t, name); status.LastHandledReconcileAt != at || ready.Status != metav1.ConditionTrue {
			return fmt.Errorf("handled %s; %s", status.LastHandledReconcileAt, ready.Message)
		}
		return nil
	})
}

// leavesAlone checks that nothing is written to any object of a Kustomization while Flux applies the same again.
func (f *flux) leavesAlone(t *testing.T, name string) {
	t.Helper()
	status, _ := f.status(t, name)
	var kinds []string
	for _, entry := range status.Inventory.Entries { // namespace_name_group_kind
		parts := strings.Split(entry.ID, "_")
		kinds = append(kinds, strings.TrimSuffix(parts[len(parts)-1]+"."+parts[len(parts)-2], "."))
	}
	slices.Sort(kinds)
	versions := func() []string {
		return strings.Fields(f.kubectl(t, "get", strings.Join(slices.Compact(slices.Clone(kinds)), ","), "-A", "-l",
			"kustomize.toolkit.fluxcd.io/name="+name, "-o", "jsonpath={range .items[*]}"+
				`{.kind}/{.metadata.namespace}/{.metadata.name}@{.metadata.resourceVersion}{"\n"}{end}`))
	}
	before, same := versions(), 0
	require.Len(t, before, len(kinds))
	await.Nil(t, "no more writes to objects of "+name, func() error { // of their controllers
		now := versions()
		if same++; !slices.Equal(before, now) {
			before, same = now, 0
		}
		if same < 20 {
			return errNotYet
		}
		return nil
	})
	for range 3 {
		f.reconcile(t, name)
	}
	require.Equal(t, before, versions())
}

// plugin runs kubectl kuperator.
func (f *flux) plugin(t *testing.T, args ...string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), filepath.Join(f.programs(t, version), "kubectl-kuperator"),
		append(args, "-n", storyNamespace, "--kubeconfig", f.cluster.AdminKubeconfig)...)
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, string(out))
}
