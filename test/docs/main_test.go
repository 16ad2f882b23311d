package docs

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"kusionstack.io/kuperator/internal/testkit/pages"
	"kusionstack.io/kuperator/internal/testkit/suite"
	"kusionstack.io/kuperator/internal/testkit/testsuite"
)

const root = "../.."

// kubeconfig names a cluster to run pages on while they are written, such as the one that make demo KEEP=1 leaves.
var kubeconfig = flag.String("cluster", "",
	"administrator's kubeconfig of a cluster on which the suite runs; empty: start one")

// fill writes what a command printed into its page, in place of a line "?".
var fill = flag.Bool("fill", false, "replace output that a page shows as ? by what the command printed")

// whole reports whether every page is run, not only README and quick start.
func whole() bool { return os.Getenv("KUPERATOR_DOCS") == "all" }

// world is a running suite, its warnings, and a user of it.
type world struct {
	*suite.Suite
	client   client.Client
	warnings *warnings
}

// warnings are what the API server added to its answers.
type warnings struct {
	mu   sync.Mutex
	text []string
}

// HandleWarningHeader keeps a warning.
func (w *warnings) HandleWarningHeader(code int, _ string, text string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.text = append(w.text, fmt.Sprintf("%d: %s", code, text))
}

// take returns the warnings since the last time.
func (w *warnings) take() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	taken := w.text
	w.text = nil
	return taken
}

var shared = testsuite.Share(newWorld)

func TestMain(m *testing.M) { shared.Main(m) }

// everything returns the suite that all tests share, all components running as they ship.
func everything(t *testing.T) *world {
	t.Helper()
	return shared.Get(t)
}

func newWorld(ctx context.Context) (*world, error) {
	config := suite.Config{Name: "docs", Nodes: 3, Progress: os.Stderr}
	if *kubeconfig != "" {
		config.Kubeconfig, config.Components = *kubeconfig, []string{}
	}
	s, err := suite.Start(ctx, config)
	if err != nil {
		return nil, err
	}
	w := &world{Suite: s, warnings: &warnings{}}
	rest := s.RESTConfig()
	rest.UserAgent = "kuperator-docs"
	rest.WarningHandler = w.warnings
	if w.client, err = client.New(rest, client.Options{}); err != nil {
		return nil, errors.Join(err, s.Stop())
	}
	return w, nil
}

// namespace makes a namespace, if there is none of the name, and waits until Pods can be created in it.
func (w *world) namespace(t *testing.T, name string) {
	t.Helper()
	err := w.client.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}})
	if !apierrors.IsAlreadyExists(err) {
		require.NoError(t, err)
	}
	account := &corev1.ServiceAccount{}
	require.Eventually(t, func() bool {
		return w.client.Get(t.Context(), client.ObjectKey{Namespace: name, Name: "default"}, account) == nil
	}, 2*time.Minute, 50*time.Millisecond)
}

// allPages are the repository's pages.
func allPages(t *testing.T) []pages.Page {
	t.Helper()
	all, err := pages.All(root)
	require.NoError(t, err)
	return all
}

// manifests are the repository's example manifests, by path.
func manifests(t *testing.T) map[string]string {
	t.Helper()
	found := map[string]string{}
	for _, pattern := range []string{"examples/*/*.yaml", "examples/*/*/*.yaml"} {
		paths, err := filepath.Glob(filepath.Join(root, pattern))
		require.NoError(t, err)
		for _, path := range paths {
			content, err := os.ReadFile(path)
			require.NoError(t, err)
			found[strings.TrimPrefix(filepath.ToSlash(path), root+"/")] = string(content)
		}
	}
	return found
}
