package security

import (
	"context"
	"errors"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/client"

	corev1 "k8s.io/api/core/v1"

	"kusionstack.io/kuperator/internal/testkit/suite"
	"kusionstack.io/kuperator/internal/testkit/testsuite"
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

var shared = testsuite.Share(newWorld)

func TestMain(m *testing.M) { shared.Main(m) }

// everything returns the suite that the tests share.
func everything(t *testing.T) *world {
	t.Helper()
	return shared.Get(t)
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
	admin, err := testsuite.Client(s.RESTConfig())
	if err != nil {
		return nil, errors.Join(err, s.Stop())
	}
	clients, err := s.Clients()
	if err != nil {
		return nil, errors.Join(err, s.Stop())
	}
	return &world{Suite: s, admin: admin, clients: clients}, nil
}

// namespace makes one with its own name.
func (w *world) namespace(t *testing.T) string {
	t.Helper()
	made, err := w.clients.CoreV1().Namespaces().Create(t.Context(),
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "tenant-"}}, metav1.CreateOptions{})
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
