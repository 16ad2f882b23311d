package bootstrap

import (
	"errors"
	"net"
	"net/http"
	"net/http/pprof"
)

// profilingPath is where the profiles are, as in the programs of Kubernetes itself.
const profilingPath = "/debug/pprof/"

// profilingHandlers serve the profiles of net/http/pprof: heap, goroutine, profile (CPU), trace and the others. On a
// secure metrics server each of them is authenticated and authorised by its own path.
func profilingHandlers() map[string]http.Handler {
	return map[string]http.Handler{
		profilingPath:             http.HandlerFunc(pprof.Index),
		profilingPath + "cmdline": http.HandlerFunc(pprof.Cmdline),
		profilingPath + "profile": http.HandlerFunc(pprof.Profile),
		profilingPath + "symbol":  http.HandlerFunc(pprof.Symbol),
		profilingPath + "trace":   http.HandlerFunc(pprof.Trace),
	}
}

// validateProfiling refuses profiles that every client may read: they show names and code, and taking them costs CPU.
func (o *Options) validateProfiling() error {
	if !o.Profiling {
		return nil
	}
	if o.MetricsBindAddress == "0" {
		return errors.New(
			"--profiling is given with --metrics-bind-address=0: profiles are served beside /metrics, so give that an address")
	}
	host, _, err := net.SplitHostPort(o.MetricsBindAddress)
	if err != nil {
		return nil //nolint:nilerr // validate says so
	}
	if !o.MetricsSecure && host != "localhost" && !net.ParseIP(host).IsLoopback() {
		return errors.New(
			"--profiling is given with --metrics-secure=false: every client could take profiles; leave one of them out, or serve on a loopback address")
	}
	return nil
}
