package neighbours

import (
	"context"
	"errors"
	"flag"
	"os"
	"testing"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"kusionstack.io/kuperator/internal/testkit/observer"
	"kusionstack.io/kuperator/internal/testkit/race"
	"kusionstack.io/kuperator/internal/testkit/suite"
	"kusionstack.io/kuperator/internal/testkit/testsuite"
)

// world is the suite that all tests use at a time, each in its own namespace, and an observer of all of them.
type world struct {
	*suite.Suite
	client   client.WithWatch
	observer *observer.Observer
}

// shared has components that are built with the race detector in a long run: here they all have much to do at a time.
var shared = testsuite.Share(func(ctx context.Context) (*world, error) {
	s, err := suite.Start(ctx, suite.Config{
		Name: "neighbours", Nodes: 3, Race: race.Enabled || long() && race.Possible(), Progress: os.Stderr,
		ControllerManagerArgs: []string{"--horizontal-pod-autoscaler-sync-period=1s"},
	})
	if err != nil {
		return nil, err
	}
	w := &world{Suite: s}
	config := s.RESTConfig()
	config.UserAgent = "kuperator-neighbours"
	plain, err := testsuite.Client(config)
	if err == nil {
		w.client, err = client.NewWithWatch(config, client.Options{Scheme: plain.Scheme()})
	}
	if err == nil {
		// A Pod that waits for ever is found by the tests' own deadlines.
		w.observer, err = observer.Start(ctx, s.RESTConfig(), observer.Options{StuckAfter: -1, Rest: time.Minute})
	}
	if err != nil {
		return nil, errors.Join(err, s.Stop())
	}
	return w, nil
})

// Stop ends the observer and the suite.
func (w *world) Stop() error {
	_, err := w.observer.Stop()
	return errors.Join(err, w.Suite.Stop())
}

// sideBySide is how many tests run at a time: most of their time they wait.
const sideBySide = "16"

func TestMain(m *testing.M) {
	if err := flag.Set("test.parallel", sideBySide); err != nil { // the command line wins
		panic(err)
	}
	shared.Main(m)
}
