package node

import (
	"fmt"
	"os"
	"testing"

	"github.com/go-logr/logr"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"

	"kusionstack.io/kuperator/internal/testkit/realnode"
)

// wantedVariable is set by `make test-node`.
const wantedVariable = "KUPERATOR_NODE_TESTS"

// whyNot says why no test runs, "" if they do.
var whyNot string

func TestMain(m *testing.M) {
	ctrllog.SetLogger(logr.Discard()) // of the tests' own clients
	if os.Getenv(wantedVariable) == "" {
		whyNot = "needs real nodes: make test-node runs it"
		os.Exit(m.Run())
	}
	if realnode.Inside() {
		os.Exit(m.Run())
	}
	if err := realnode.Missing(); err != nil {
		whyNot = fmt.Sprintf("real nodes cannot run here: %v", err)
		os.Exit(m.Run())
	}
	os.Exit(realnode.Main(m.Run))
}
