// Package api tests the generated CustomResourceDefinitions against a real API server: what they keep, default and
// refuse.
package api

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/discovery"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/internal/testkit/localkube"
)

var (
	// config reaches the API server of this test run.
	config *rest.Config
	// cluster is a client that reads and writes without a cache.
	cluster client.Client
)

// patience is for what takes milliseconds, on a busy machine.
const patience = 3 * time.Minute

// projectRoot is the path from this package to the project.
var projectRoot = filepath.Join("..", "..", "..")

func TestMain(m *testing.M) {
	code, err := run(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(code)
}

func run(m *testing.M) (code int, err error) {
	assets := os.Getenv("KUBEBUILDER_ASSETS")
	if assets == "" {
		if assets, err = localkube.Assets(context.Background(), os.Stderr); err != nil {
			return 0, fmt.Errorf("building the control plane: %w", err)
		}
	}
	environment := &envtest.Environment{
		BinaryAssetsDirectory: assets,
		CRDDirectoryPaths:     []string{filepath.Join(projectRoot, "deploy", "crd")},
		ErrorIfCRDPathMissing: true,
		CRDInstallOptions:     envtest.CRDInstallOptions{MaxTime: patience},

		ControlPlaneStartTimeout: patience, ControlPlaneStopTimeout: patience,
	}
	if config, err = environment.Start(); err != nil {
		return 0, fmt.Errorf("starting the control plane: %w", err)
	}
	defer func() {
		if stopErr := environment.Stop(); err == nil && stopErr != nil {
			err = fmt.Errorf("stopping the control plane: %w", stopErr)
		}
	}()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{apiextensionsv1.AddToScheme, clientgoscheme.AddToScheme,
		appsv1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			return 0, err
		}
	}
	if cluster, err = client.New(config, client.Options{Scheme: scheme}); err != nil {
		return 0, err
	}
	return m.Run(), nil
}

// before reports whether the API server is of an older minor version of Kubernetes 1 than this: make test-versions
// runs on 1.30.
func before(t *testing.T, minor int) bool {
	t.Helper()
	server, err := discovery.NewDiscoveryClientForConfigOrDie(config).ServerVersion()
	require.NoError(t, err)
	got, err := strconv.Atoi(server.Minor)
	require.NoError(t, err)
	return got < minor
}
