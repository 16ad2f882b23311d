package failures

import (
	"errors"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

var pods = schema.GroupResource{Resource: "pods"}

func TestRejectionIn(t *testing.T) {
	webhook := func(code int32) error {
		return &apierrors.StatusError{ErrStatus: metav1.Status{Code: code,
			Message: `admission webhook "x" denied the request: no`}}
	}
	for name, tc := range map[string]struct {
		err     error
		refused bool
		quota   bool
		why     string
	}{
		"nothing": {},
		"a policy": {apierrors.NewForbidden(pods, "web-x7k2p",
			errors.New(
				"ValidatingAdmissionPolicy 'released' with binding 'released' denied request: the image is not released")), true,
			false,
			"forbidden: ValidatingAdmissionPolicy 'released' with binding 'released' denied request: the image is not released"},
		"a quota": {apierrors.NewForbidden(pods, "x",
			errors.New("exceeded quota: full, requested: pods=1, used: pods=4, limited: pods=4")), true, true,
			"forbidden: exceeded quota: full, requested: pods=1, used: pods=4, limited: pods=4"},
		"invalid":   {apierrors.NewInvalid(schema.GroupKind{Kind: "Pod"}, "x", nil), true, false, ""},
		"too large": {apierrors.NewRequestEntityTooLargeError("x"), true, false, ""},
		"a resize not served": {apierrors.NewGenericServerResponse(http.StatusNotFound, "patch", pods, "x",
			"404 page not found", 0, true), true, false, ""},
		"changed":         {apierrors.NewConflict(pods, "x", errors.New("changed")), false, false, ""},
		"gone":            {apierrors.NewNotFound(pods, "x"), false, false, ""},
		"busy":            {apierrors.NewTooManyRequests("busy", 1), false, false, ""},
		"away":            {apierrors.NewInternalError(errors.New("the API server is away")), false, false, ""},
		"not an answer":   {errors.New("connection refused"), false, false, ""},
		"a webhook's 409": {webhook(http.StatusConflict), true, false, ""},
		"a webhook's 500": {webhook(http.StatusInternalServerError), true, false, ""},
		"a webhook is away": {apierrors.NewInternalError(errors.New(`failed calling webhook "x": connection refused`)),
			true, false, ""},
	} {
		t.Run(name, func(t *testing.T) {
			why, refused := RejectionIn(tc.err)
			assert.Equal(t, tc.refused, refused)
			assert.Equal(t, tc.quota, why.Quota)
			if tc.why != "" {
				assert.Equal(t, tc.why, why.Why)
			}
		})
	}
}

func TestAskAgainIn(t *testing.T) {
	var waits []time.Duration
	for rejections := range 8 {
		waits = append(waits, AskAgainIn(rejections)/time.Second)
	}
	assert.Equal(t, []time.Duration{1, 1, 2, 4, 8, 16, 30, 30}, waits)
}
