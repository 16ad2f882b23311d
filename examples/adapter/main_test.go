package main

import (
	"net/http"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/meta/testrestmapper"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
)

// TestAdaptersAreAccepted makes the program as main does, without a cluster: what an adapter says of itself that cannot
// work is an error here.
func TestAdaptersAreAccepted(t *testing.T) {
	options := managerOptions()
	options.LeaderElection = false
	options.Metrics.BindAddress = "0"
	options.MapperProvider = func(*rest.Config, *http.Client) (meta.RESTMapper, error) {
		return testrestmapper.TestOnlyStaticRESTMapper(scheme.Scheme), nil
	}
	mgr, err := ctrl.NewManager(&rest.Config{Host: "127.0.0.1:1"}, options)
	if err != nil {
		t.Fatal(err)
	}
	if err := addAdapters(mgr, "http://127.0.0.1:2", time.Second, true); err != nil {
		t.Fatal(err)
	}
}
