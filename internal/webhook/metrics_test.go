package webhook

import (
	"context"
	"errors"
	"net/http"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/assert"
	"gomodules.xyz/jsonpatch/v2"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"
)

func TestMetricsAreSound(t *testing.T) {
	for _, m := range Metrics() {
		assert.NoError(t, m.Check())
	}
}

func TestDecisionsAreCounted(t *testing.T) {
	decisions.Reset()
	for want, response := range map[string]admission.Response{
		decisionAllowed: admission.Allowed(""),
		decisionPatched: admission.Patched("", jsonpatch.NewOperation("add", "/x", 1)),
		decisionDenied:  admission.Denied("no"),
		decisionError:   admission.Errored(http.StatusInternalServerError, errors.New("broken")),
	} {
		got := counted("/x", func(context.Context, admission.Request) admission.Response { return response })(t.Context(),
			admission.Request{})
		assert.Equal(t, response, got)
		assert.InDelta(t, 1, testutil.ToFloat64(decisions.WithLabelValues("/x", want)), 0, want)
	}
	assert.Equal(t, decisionError, decisionOf(undecodable("Pod", errors.New("no JSON"))))
	decisions.Reset()
}
