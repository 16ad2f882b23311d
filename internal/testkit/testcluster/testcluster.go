// Package testcluster gives tests a local Kubernetes cluster that ends with the
// test. See package localkube for what is in it.
package testcluster

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"kusionstack.io/kuperator/internal/testkit/await"
	"kusionstack.io/kuperator/internal/testkit/localkube"
)

// Assets returns the folder with the control plane binaries and kwok, fit to be
// KUBEBUILDER_ASSETS. The first call on a machine builds them, which takes
// minutes.
func Assets(t testing.TB) string {
	t.Helper()
	dir, err := localkube.Assets(t.Context(), t.Output())
	if err != nil {
		t.Fatalf("no control plane binaries: %v", err)
	}
	return dir
}

// Start starts a cluster and stops it when the test ends. A failed test logs the
// last lines of each component. An empty Dir means a folder of the test's own.
func Start(t testing.TB, config localkube.Config) *localkube.Cluster {
	t.Helper()
	if config.Dir == "" {
		config.Dir = t.TempDir()
	}
	if config.Progress == nil {
		config.Progress = t.Output()
	}
	begin := time.Now()
	cluster, err := localkube.Start(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("cluster %s is ready after %s", cluster.Name, time.Since(begin).Round(time.Millisecond))
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(cluster.LogTails())
		}
		if err := cluster.Stop(); err != nil {
			t.Errorf("stopping cluster %s: %v", cluster.Name, err)
		}
	})
	return cluster
}

// Namespace creates a namespace with a new name and the given labels (nil for
// none) and returns the name. Pods can be created in it at once: with a
// controller manager in the cluster, its default service account exists. The
// namespace goes with the cluster.
func Namespace(t testing.TB, cluster *localkube.Cluster, labels map[string]string) string {
	t.Helper()
	client, err := kubernetes.NewForConfig(cluster.RESTConfig())
	if err != nil {
		t.Fatal(err)
	}
	wanted := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "test-", Labels: labels}}
	namespace, err := client.CoreV1().Namespaces().Create(t.Context(), wanted, metav1.CreateOptions{})
	if err != nil {
		t.Fatalf("creating a namespace: %v", err)
	}
	if _, controllers := cluster.Processes()["kube-controller-manager"]; controllers {
		await.Nil(t, "the default service account of namespace "+namespace.Name, func() error {
			_, err := client.CoreV1().ServiceAccounts(namespace.Name).Get(t.Context(), "default", metav1.GetOptions{})
			return err
		})
	}
	return namespace.Name
}
