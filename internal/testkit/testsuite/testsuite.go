// Package testsuite lets all tests of a package use one running suite, which starts with the first of them that needs
// it and ends with the last test.
package testsuite

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"sync"
	"testing"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
)

// World is a *suite.Suite with whatever a package's tests want beside it.
type World interface {
	Died() error
	LogTails() string
	Stop() error
}

// Shared is the one world of a package's tests. Its zero value cannot be used.
type Shared[W World] struct {
	new  func(context.Context) (W, error)
	once sync.Once
	// running is true if world is there to be stopped.
	running bool
	world   W
	err     error
}

// Share returns what starts a world with the given function when it is first wanted. The context does not end with a
// test.
func Share[W World](start func(context.Context) (W, error)) *Shared[W] { return &Shared[W]{new: start} }

// Get returns the world. In short mode the test is skipped. When it ends, it fails if a component ended by itself or
// panicked, and a failed test logs the last lines of each, and of the cluster's processes.
func (s *Shared[W]) Get(t *testing.T) W {
	t.Helper()
	if testing.Short() {
		t.Skip("starts a cluster")
	}
	s.once.Do(func() {
		s.world, s.err = s.new(context.Background())
		s.running = s.err == nil
	})
	if s.err != nil {
		t.Fatalf("starting the suite: %v", s.err)
	}
	t.Cleanup(func() { Explain(t, s.world) })
	return s.world
}

// Main is the body of a package's TestMain: it runs the tests, stops the world if there is one, and exits.
func (s *Shared[W]) Main(m *testing.M) {
	flag.Parse()
	ctrllog.SetLogger(logr.Discard()) // of the tests' own clients
	code := m.Run()
	if s.running {
		if err := s.world.Stop(); err != nil {
			fmt.Fprintf(os.Stderr, "stopping the suite: %v\n", err)
			code = max(code, 1)
		}
	}
	os.Exit(code)
}

// Explain fails the test if a component ended by itself or panicked, and logs the last lines of each, and of the
// cluster's processes, if the test has failed.
func Explain(t *testing.T, w World) {
	t.Helper()
	if err := w.Died(); err != nil {
		t.Error(err)
	}
	if !t.Failed() {
		return
	}
	t.Log(w.LogTails())
}

// Client returns a client that knows the kinds of Kubernetes and ours.
func Client(config *rest.Config) (client.Client, error) {
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), appsv1alpha1.AddToScheme(scheme)); err != nil {
		return nil, err
	}
	return client.New(config, client.Options{Scheme: scheme})
}
