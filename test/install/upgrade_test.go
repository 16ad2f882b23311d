package install

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"kusionstack.io/kuperator/internal/testkit/await"
	"kusionstack.io/kuperator/internal/testkit/workload"
)

const newer = "v0.2.0-newer"

// TestEachComponentIsUpgradedAndRolledBackAlone: in the middle of a rollout one component after another is replaced
// by another version, and back again, while its neighbours stay. The rollout goes on and the rule holds.
func TestEachComponentIsUpgradedAndRolledBackAlone(t *testing.T) {
	long(t)
	w := newWorld(t)
	w.namespaces(t, storyNamespace)
	w.prerequisites(t, system)
	w.restrict(t, system)
	full := w.apply(t, system, "full")
	deployments := w.rolledOut(t, system)
	programs := w.start(t, system)
	o := w.observe(t)
	const pods = 6
	w.create(t, workload.Service(storyNamespace, "web"), workload.Rule(storyNamespace, "web", "1"),
		workload.CollaSet(storyNamespace, "web", image1, pods))
	w.waitUpdated(t, pods, image1)
	before := workload.UIDs(w.pods(t, storyNamespace))

	midway := 0
	images := []string{image2, image3, image1}
	for i := range deployments {
		d := &deployments[i]
		for _, to := range []string{newer, version} { // up, and down again
			image := images[0]
			images = append(images[1:], image)
			w.setImage(t, image)
			await.Nil(t, "the rollout to have begun", func() error {
				for _, pod := range w.pods(t, storyNamespace) {
					if pod.Spec.Containers[0].Image == image {
						return nil
					}
				}
				return errNotYet
			})
			if w.updated(t, pods, image) != nil {
				midway++
			}
			programs[d.Name] = w.replace(t, d, programs[d.Name], to)
			w.waitUpdated(t, pods, image)
		}
	}
	t.Logf("%d of %d restarts were in the middle of a rollout", midway, 2*len(deployments))
	require.Positive(t, midway)
	require.Equal(t, before, workload.UIDs(w.pods(t, storyNamespace)), "no Pod was made anew")
	requireRuleHeld(t, o)
	w.remove(t, workload.CollaSet(storyNamespace, "web", image1, pods), workload.Rule(storyNamespace, "web", "1"),
		workload.Service(storyNamespace, "web"))
	full.uninstall(t)
}

// replace does to one replica what a rolling update does: the new one is ready before the old one ends.
func (w *world) replace(t *testing.T, d *appsv1.Deployment, old *program, version string) *program {
	t.Helper()
	fresh := w.run(t, d, version)
	if d.Name == webhooks {
		// Outside the cluster one server can be advertised: the old one ends first, as failurePolicy Ignore allows.
		old.stop(t)
	}
	await.Nil(t, d.Name+" "+version+" ready", func() error { return fresh.ready(t) })
	require.Contains(t, fresh.log(t), version)
	old.stop(t)
	return fresh
}

// TestReplicasOfDifferentVersionsTakeOver: two replicas run, of different versions; one leads, and when it ends the
// other does.
func TestReplicasOfDifferentVersionsTakeOver(t *testing.T) {
	long(t)
	long(t)
	w := newWorld(t)
	w.namespaces(t, storyNamespace)
	w.prerequisites(t, system)
	w.restrict(t, system)
	w.apply(t, system, "collaset-only")
	deployments := w.rolledOut(t, system)
	old := w.run(t, &deployments[0], version)
	leader := func() string {
		lease := &coordinationv1.Lease{}
		err := w.client.Get(t.Context(), client.ObjectKey{Namespace: system, Name: deployments[0].Name}, lease)
		if err != nil || lease.Spec.HolderIdentity == nil {
			return ""
		}
		return *lease.Spec.HolderIdentity
	}
	await.Nil(t, "the old one to lead", func() error {
		if leader() == "" {
			return errNotYet
		}
		return old.ready(t)
	})
	first := leader()
	fresh := w.run(t, &deployments[0], newer)
	await.Nil(t, "the new one to be ready while it waits", func() error { return fresh.ready(t) })
	require.Equal(t, first, leader())

	w.create(t, workload.CollaSet(storyNamespace, "web", image1, 3))
	w.waitUpdated(t, 3, image1)
	before := workload.UIDs(w.pods(t, storyNamespace))
	w.setImage(t, image2)
	old.stop(t)
	await.Nil(t, "the new one to lead", func() error {
		if now := leader(); now == "" || now == first {
			return fmt.Errorf("%q leads", now)
		}
		return nil
	})
	w.waitUpdated(t, 3, image2)
	require.Equal(t, before, workload.UIDs(w.pods(t, storyNamespace)))
}

// TestANewerControllerOnAnOlderCRD: it starts, works, and says which fields the API server would drop; with the CRD
// of its own version it says nothing.
func TestANewerControllerOnAnOlderCRD(t *testing.T) {
	long(t)
	long(t)
	w := newWorld(t)
	w.namespaces(t, storyNamespace)
	w.prerequisites(t, system)
	w.restrict(t, system)
	current := deployDir(t, "crd", "apps.kusionstack.io_collasets.yaml")
	content, err := os.ReadFile(current)
	require.NoError(t, err)
	crd := &apiextensionsv1.CustomResourceDefinition{}
	require.NoError(t, yaml.Unmarshal(content, crd))
	properties := crd.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties
	status := properties["status"]
	const newest = "updatedAvailableReplicas"
	require.Contains(t, status.Properties, newest)
	delete(status.Properties, newest)
	properties["status"] = status
	older := filepath.Join(t.TempDir(), "older.yaml")
	content, err = yaml.Marshal(crd)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(older, content, 0o600))
	w.kubectl(t, "apply", "--server-side", "--force-conflicts", "-f", older)
	served := func(ctx context.Context, want bool) error {
		raw, err := w.cluster.Kubectl(ctx, "get", "--raw", "/openapi/v3/apis/apps.kusionstack.io/v1alpha1")
		if err == nil && strings.Contains(raw, newest) != want {
			err = errNotYet
		}
		return err
	}
	await.Nil(t, "the older CRD to be served", func() error { return served(t.Context(), false) })

	w.apply(t, system, "collaset-only")
	deployments := w.rolledOut(t, system)
	p := w.run(t, &deployments[0], version)
	await.Nil(t, "readiness", func() error { return p.ready(t) })
	w.create(t, workload.CollaSet(storyNamespace, "web", image1, 2))
	w.setImage(t, image2)
	await.Nil(t, "the job to be done", func() error {
		for _, pod := range w.pods(t, storyNamespace) {
			if pod.Spec.Containers[0].Image != image2 {
				return errNotYet
			}
		}
		if n := len(w.pods(t, storyNamespace)); n != 2 {
			return fmt.Errorf("%d Pods", n)
		}
		return nil
	})
	await.Nil(t, "the notice", func() error {
		for line := range strings.Lines(p.log(t)) {
			if strings.Contains(line, "older than this program") && strings.Contains(line, "status."+newest) {
				return nil
			}
		}
		return errors.New(p.logTail(t))
	})

	w.kubectl(t, "apply", "--server-side", "--force-conflicts", "-f", current)
	await.Nil(t, "the CRD of this version to be served", func() error { return served(t.Context(), true) })
	w.setImage(t, image3)
	w.waitUpdated(t, 2, image3) // says the field that was missing, without a restart
	p.stop(t)
	again := w.run(t, &deployments[0], version)
	await.Nil(t, "readiness", func() error { return again.ready(t) })
	w.setImage(t, image1)
	w.waitUpdated(t, 2, image1)
	require.NotContains(t, again.log(t), "older than this program")
}

// TestCRDsOutliveReleases: Helm upgrades the CRDs, and deletes them neither with the release nor when it is told to
// leave them alone. A release of another name takes them over when it is told to.
func TestCRDsOutliveReleases(t *testing.T) {
	long(t)
	w := newWorld(t)
	w.namespaces(t, storyNamespace)
	w.restrict(t, system)
	upgrade := func(args ...string) {
		_, err := helm(t, append([]string{"upgrade", "kuperator", deployDir(t, "charts", "kuperator"), "--namespace", system,
			"--kubeconfig", w.cluster.AdminKubeconfig}, args...)...)
		require.NoError(t, err)
	}
	first := w.release(t, system, "kuperator")
	crds := w.crds(t)
	require.Len(t, crds, 4)
	w.create(t, workload.CollaSet(storyNamespace, "web", image1, 1))

	upgrade("--set", "crds.install=false")
	require.Equal(t, crds, w.crds(t), "not ours to delete")
	upgrade()
	require.Equal(t, crds, w.crds(t))
	first.uninstall(t)
	require.Equal(t, crds, w.crds(t))

	_, err := helm(t, "install", "another", deployDir(t, "charts", "kuperator"), "--namespace", system, "--kubeconfig",
		w.cluster.AdminKubeconfig)
	require.ErrorContains(t, err, "another", "Helm says whose they are")
	second := w.release(t, system, "another", "--take-ownership")
	require.Equal(t, crds, w.crds(t))
	set := workload.CollaSet(storyNamespace, "web", image1, 1)
	require.NoError(t, w.client.Get(t.Context(), client.ObjectKeyFromObject(set), set), "CollaSets are still there")
	second.uninstall(t)
	require.Equal(t, crds, w.crds(t))
}
