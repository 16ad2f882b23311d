// Command webserver is what the tests with real nodes run in containers: an HTTP
// server that is as careless as an application can be. It says VERSION to every
// request, after having worked on it for WORK (a duration, "" is none), and ends
// at once on SIGTERM, whatever it is doing.
//
// "webserver proxy" hands requests on to the server of the same Pod, and is as
// careless: a sidecar.
//
// "webserver pause" serves nothing and ends on SIGTERM: the process that holds a
// Pod's namespaces.
package main

import (
	"fmt"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"os/signal"
	"syscall"
	"time"
)

// address is the server's, proxyAddress that of the proxy in front of it.
const address, proxyAddress = ":8080", ":8081"

func main() {
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, syscall.SIGTERM, syscall.SIGINT)
	does := ""
	if len(os.Args) > 1 {
		does = os.Args[1]
	}
	if does == "pause" {
		<-ended
		return
	}
	go func() {
		<-ended
		os.Exit(0)
	}()
	var err error
	if does == "proxy" {
		to := &url.URL{Scheme: "http", Host: "127.0.0.1" + address}
		err = http.ListenAndServe(proxyAddress, httputil.NewSingleHostReverseProxy(to)) //nolint:gosec // as below
	} else {
		err = serve(os.Getenv("VERSION"), os.Getenv("WORK"))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func serve(version, work string) error {
	var took time.Duration
	if work != "" {
		var err error
		if took, err = time.ParseDuration(work); err != nil {
			return fmt.Errorf("WORK: %w", err)
		}
	}
	http.HandleFunc("/", func(out http.ResponseWriter, _ *http.Request) {
		time.Sleep(took)
		fmt.Fprintln(out, version)
	})
	http.HandleFunc("/ready", func(http.ResponseWriter, *http.Request) {})
	return http.ListenAndServe(address, nil) //nolint:gosec // a peer that is slow is a test's own
}
