// Command kuperator-adapter keeps a load balancer in step with the operations of Pods: it runs in place of
// resourceconsist-controller for the Services of a cluster.
package main

import (
	"flag"
	"fmt"
	"net/http"
	"os"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"

	"example.com/kuperator-adapter/balancer"
	"kusionstack.io/kuperator/api/resourceconsist"
	"kusionstack.io/kuperator/api/resourceconsist/setup"
)

func main() {
	url := flag.String("balancer", "http://127.0.0.1:8080", "Where the load balancer's API is.")
	drain := flag.Duration("drain-time", 5*time.Second, "How long traffic must have stopped before a Pod is operated.")
	admission := flag.Bool("admission", false,
		"Whether to announce Services on new Pods; needs admission.yaml and a certificate.")
	flag.Parse()
	ctrl.SetLogger(zap.New())

	mgr, err := newManager()
	if err == nil {
		err = addAdapters(mgr, *url, *drain, *admission)
	}
	if err == nil {
		err = mgr.Start(ctrl.SetupSignalHandler())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func newManager() (ctrl.Manager, error) {
	config, err := ctrl.GetConfig()
	if err != nil {
		return nil, fmt.Errorf("looking for a cluster: %w", err)
	}
	return ctrl.NewManager(config, managerOptions())
}

// managerOptions cache only what takes part.
func managerOptions() ctrl.Options {
	managed := cache.ByObject{Label: labels.SelectorFromSet(labels.Set{"kusionstack.io/control": "true"})}
	return ctrl.Options{
		LeaderElection:          true,
		LeaderElectionID:        "kuperator-adapter",
		LeaderElectionNamespace: "kuperator-system",

		Cache: cache.Options{ByObject: map[client.Object]cache.ByObject{&corev1.Pod{}: managed, &corev1.Service{}: managed}},
	}
}

// addAdapters adds all adapters for Services in one call, and admission for new Pods if it is wanted.
func addAdapters(mgr ctrl.Manager, url string, drain time.Duration, admission bool) error {
	backend := &balancer.Backend{Client: &balancer.Client{URL: url, HTTP: http.DefaultClient}}
	adapters := []setup.Backend[*corev1.Service]{
		setup.BackendOf(backend, resourceconsist.CallOptions{QPS: 20, Burst: 40}),
		setup.EndpointSlices(), // leave it out if traffic comes from the load balancer alone
	}
	if err := setup.AddToManager(mgr, resourceconsist.Options{DrainTime: drain}, adapters...); err != nil {
		return err
	}
	if !admission {
		return nil
	}
	return setup.AddAdmissionToManager(mgr, adapters...)
}
