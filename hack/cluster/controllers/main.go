// Command controllers is the part of a control plane that envtest's folder lacks: kube-controller-manager and
// kube-scheduler, each the stock command, chosen by the name under which the file is called. It takes the place of
// command kubernetes where the rest is on the machine already.
package main

import (
	"fmt"
	"os"
	"path/filepath"
	_ "time/tzdata" // CronJobs name time zones; a minimal machine has no database of them

	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	controllermanager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
)

func main() {
	switch role := filepath.Base(os.Args[0]); role {
	case "kube-controller-manager":
		os.Exit(cli.Run(controllermanager.NewControllerManagerCommand()))
	case "kube-scheduler":
		os.Exit(cli.Run(scheduler.NewSchedulerCommand()))
	default:
		fmt.Fprintf(os.Stderr, "%s: call this file kube-controller-manager or kube-scheduler\n", role)
		os.Exit(2)
	}
}
