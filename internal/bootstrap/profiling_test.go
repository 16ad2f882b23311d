package bootstrap

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestProfilesAreServedWhereTheyAreAskedFor(t *testing.T) {
	c := example(true)
	o := defaultOptions(&c)
	require.Empty(t, o.metricsServer().ExtraHandlers, "off by default")

	o.Profiling = true
	require.NoError(t, o.validate(true))
	server := o.metricsServer()
	require.NotNil(t, server.FilterProvider, "who asks is authenticated and authorised")
	mux := http.NewServeMux()
	for path, handler := range server.ExtraHandlers {
		mux.Handle(path, handler)
	}
	for _, path := range []string{"/debug/pprof/", "/debug/pprof/heap", "/debug/pprof/goroutine", "/debug/pprof/cmdline",
		"/debug/pprof/symbol"} {
		answer := httptest.NewRecorder()
		mux.ServeHTTP(answer, httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil))
		require.Equal(t, http.StatusOK, answer.Code, path)
		require.NotZero(t, answer.Body.Len(), path)
	}
}

func TestPlainProfilesAreForThisMachineAlone(t *testing.T) {
	for address, want := range map[string]bool{"127.0.0.1:8443": true, "[::1]:8443": true, "localhost:8443": true,
		":8443": false, "0.0.0.0:8443": false, "10.0.0.1:8443": false} {
		o := &Options{Profiling: true, MetricsBindAddress: address}
		require.Equal(t, want, o.validateProfiling() == nil, address)
	}
}
