package failures_test

import (
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/rand"

	"kusionstack.io/kuperator/internal/failures"
)

func TestWhatDiffersByChanceIsNotTold(t *testing.T) {
	for name, tc := range map[string]struct{ text, want string }{
		"nothing by chance": {
			`exceeded quota: pods, requested: pods=1, used: pods=2, limited: pods=2`,
			`exceeded quota: pods, requested: pods=1, used: pods=2, limited: pods=2`,
		},
		"the time of an attempt": {
			`x509: certificate has expired or is not yet valid: current time 2026-11-27T12:45:44Z is after 2026-01-01T00:00:00Z`,
			`x509: certificate has expired or is not yet valid: current time is after 2026-01-01T00:00:00Z`,
		},
		"a time with parts of seconds":        {`denied at 2026-11-27T12:45:44.123456+01:00: no`, `denied at : no`},
		"a time as Go prints it":              {`denied at 2026-11-27 12:45:44.5 +0000 UTC`, `denied at UTC`},
		"until when something holds is known": {`frozen until 2026-12-01T00:00:00Z`, `frozen until 2026-12-01T00:00:00Z`},
		"a UID":                               {`uid 6bd5f0a2-0f3c-4f52-9d3b-0b8f5f4f2a11 is denied`, `uid is denied`},
		"the ID of a request": {`Throttling, RequestId: 7A1B2C3D, try later`,
			`Throttling, RequestId, try later`},
		"the ID of a request, in words": {`status code: 400, request id: 6bd5f0a2-0f3c-4f52-9d3b-0b8f5f4f2a11`,
			`status code: 400, request id`},
		"the ID of a request without a digit": {`status code: 400, request id: febfeedf`, `status code: 400, request id`},
		"a request that is only spoken of":    {`the request is denied`, `the request is denied`},
		"the own end of a connection": {
			`read tcp 10.244.0.5:53412->10.96.0.1:443: read: connection reset by peer`,
			`read tcp 10.96.0.1:443: read: connection reset by peer`,
		},
		"the own end of a connection by IPv6": {`read tcp [fd00::5]:53412->[fd00::1]:443: i/o timeout`,
			`read tcp [fd00::1]:443: i/o timeout`},
		"lines": {"first\nsecond", "first second"},
	} {
		t.Run(name, func(t *testing.T) {
			assert.Equal(t, tc.want, failures.Steady(tc.text))
			assert.Equal(t, tc.want, failures.Steady(tc.want), "what is steady stays so")
		})
	}
}

func TestGeneratedNamesAreNotTold(t *testing.T) {
	long := strings.Repeat("a", 80)
	for name, tc := range map[string]struct{ text, prefix, want string }{
		"a quota": {`pods "web-x7k2p" is forbidden: exceeded quota`, "web-",
			`pods is forbidden: exceeded quota`},
		"what is invalid": {`Pod "web-x7k2p" is invalid: spec.nodeName: "web-x7k2p"`, "web-",
			`Pod is invalid: spec.nodeName:`},
		"what a policy calls it": {`resource Pod/ns/web-x7k2p was blocked`, "web-", `resource Pod/ns/web-* was blocked`},
		"a service account": {`pods "web-x7k2p" is forbidden: serviceaccount "web-agent" not found`, "web-",
			`pods is forbidden: serviceaccount "web-agent" not found`},
		"a Pod of another CollaSet": {`anti-affinity with "my-web-x7k2p9"`, "web-", `anti-affinity with "my-web-x7k2p9"`},
		"a name that was not generated": {
			`pods "web-0" already exists`, "web-", `pods "web-0" already exists`,
		},
		"a prefix that the API server cuts": {`pods "` + long[:58] + `x7k2p" is forbidden`, long + "-", `pods is forbidden`},
		"a prefix with dots":                {`pods "a.b-x7k2p" and "aXb-x7k2p"`, "a.b-", `pods and "aXb-x7k2p"`},
	} {
		t.Run(name, func(t *testing.T) {
			assert.Equal(t, tc.want, failures.WithoutNames(tc.text, tc.prefix))
		})
	}
	assert.NoError(t, failures.Unnamed(nil, "web-"))
	assert.NoError(t, failures.Told(nil))
}

// TestRetriesAreToldInOneText has a hundred attempts of many writes at once fail in any order, each with names of its
// own.
func TestRetriesAreToldInOneText(t *testing.T) {
	pods := schema.GroupResource{Resource: "pods"}
	texts, order := map[string]bool{}, mathrand.New(mathrand.NewPCG(1, 2))
	for range 100 {
		var all error
		for _, i := range order.Perm(12) {
			var err error
			switch {
			case i < 6:
				err = fmt.Errorf("creating the Pod of instance ID %d: %w", i+7,
					failures.Unnamed(apierrors.NewForbidden(pods, "web-"+rand.String(5), errors.New("exceeded quota")), "web-"))
			default:
				name := fmt.Sprintf("web-%d", i)
				err = fmt.Errorf("updating Pod %s in place: %w", name,
					apierrors.NewForbidden(pods, name, errors.New("no such image")))
				if i > 9 {
					err = fmt.Errorf("updating Pod %s: %w", name, apierrors.NewForbidden(pods, name, errors.New("no such image")))
				}
			}
			all = errors.Join(all, err)
		}
		failure := failures.Told(errors.Join(nil, all))
		require.True(t, apierrors.IsForbidden(failure), "it is the error that it was")
		texts[failure.Error()] = true
	}
	assert.Len(t, texts, 1)
	for text := range texts {
		assert.Equal(t, `creating the Pod of instance ID 7: pods is forbidden: exceeded quota; `+
			`updating Pod web-10: pods "web-10" is forbidden: no such image; `+
			`updating Pod web-6 in place: pods "web-6" is forbidden: no such image`, text)
	}
}
