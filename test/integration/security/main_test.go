package security

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"

	corev1 "k8s.io/api/core/v1"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/internal/suite"
)

const (
	patience = 4 * time.Minute // for what takes seconds, on a busy machine
	interval = 50 * time.Millisecond
)

// world is a running suite, all of it as it ships, and its administrator.
type world struct {
	*suite.Suite
	admin   client.Client
	clients kubernetes.Interface
}

var shared struct {
	once  sync.Once
	world *world
	err   error
}

func TestMain(m *testing.M) {
	flag.Parse()
	ctrllog.SetLogger(logr.Discard()) // of the tests' own clients
	code := m.Run()
	if shared.world != nil {
		if err := shared.world.Stop(); err != nil {
			fmt.Fprintf(os.Stderr, "stopping the suite: %v\n", err)
			code = max(code, 1)
		}
	}
	os.Exit(code)
}

// everything returns the suite that the tests share.
func everything(t *testing.T) *world {
	t.Helper()
	if testing.Short() {
		t.Skip("starts a cluster")
	}
	shared.once.Do(func() { shared.world, shared.err = newWorld(context.Background()) })
	require.NoError(t, shared.err)
	t.Cleanup(func() {
		if t.Failed() {
			for _, name := range suite.Components() {
				t.Logf("the end of the log of %s:\n%s", name, shared.world.LogTail(name))
			}
		}
	})
	return shared.world
}

func newWorld(ctx context.Context) (*world, error) {
	args := map[string][]string{}
	for _, name := range suite.Components() {
		args[name] = []string{"--metrics-secure"}
	}
	s, err := suite.Start(ctx, suite.Config{Name: "security", AuditReads: true, Args: args, Progress: os.Stderr})
	if err != nil {
		return nil, err
	}
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), appsv1alpha1.AddToScheme(scheme)); err != nil {
		return nil, errors.Join(err, s.Stop())
	}
	admin, err := client.New(s.RESTConfig(), client.Options{Scheme: scheme})
	if err != nil {
		return nil, errors.Join(err, s.Stop())
	}
	clients, err := s.Clients()
	if err != nil {
		return nil, errors.Join(err, s.Stop())
	}
	return &world{Suite: s, admin: admin, clients: clients}, nil
}

// namespace makes one with a name of its own.
func (w *world) namespace(t *testing.T) string {
	t.Helper()
	made, err := w.clients.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "tenant-"}}, metav1.CreateOptions{})
	require.NoError(t, err)
	eventually(t, func(c *assert.CollectT) { // which Pods need
		_, err := w.clients.CoreV1().ServiceAccounts(made.Name).Get(t.Context(), "default", metav1.GetOptions{})
		require.NoError(c, err)
	}, "the namespace is ready")
	return made.Name
}

func eventually(t *testing.T, check func(*assert.CollectT), what string) {
	t.Helper()
	require.EventuallyWithT(t, check, patience, interval, what)
}
