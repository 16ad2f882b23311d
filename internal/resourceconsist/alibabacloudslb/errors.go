package alibabacloudslb

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	openapi "github.com/alibabacloud-go/darabonba-openapi/v2/client"
	"github.com/alibabacloud-go/tea/dara"
)

// Fault says what kind of failure a call met, and with that who can do something about it.
type Fault string

const (
	// FaultThrottled: the provider refuses because the account or this user called too often.
	FaultThrottled Fault = "Throttled"
	// FaultTransient: the provider did not answer, failed by itself, or is changing the load balancer already.
	FaultTransient Fault = "Transient"
	// FaultDenied: the credentials are wrong, have expired or lack a permission.
	FaultDenied Fault = "Denied"
	// FaultRejected: the provider understood and says no; the same call will fail again until something is changed.
	FaultRejected Fault = "Rejected"
)

// CallError is a call that the provider refused or did not answer. Its text is the same each time the same thing
// happens, so that it is told once: the request's ID is in RequestID alone.
type CallError struct {
	// Action is the name of the API operation, for example DescribeHealthStatus.
	Action string
	// Fault is the kind of the failure.
	Fault Fault
	// Status is that of HTTP; 0 when there was no answer. Code and Message are the provider's.
	Status        int
	Code, Message string
	// RequestID is what the provider's support asks for; empty when there was no answer.
	RequestID string
	// cause is what went wrong on the way, when there was no answer.
	cause error
}

// Error says what was called, what the provider said and what comes next.
func (e *CallError) Error() string {
	text := e.Action + ": "
	switch {
	case e.cause != nil:
		text += e.cause.Error()
	case e.Code != "":
		text += fmt.Sprintf("%s: %s", e.Code, e.Message)
	default:
		text += fmt.Sprintf("HTTP status %d: %s", e.Status, e.Message)
	}
	switch e.Fault {
	case FaultThrottled:
		return text + " (the provider limits calls; tried again with growing delays)"
	case FaultTransient:
		return text + " (tried again with growing delays)"
	case FaultDenied:
		return text + " (check the credentials and their RAM policy)"
	case FaultRejected:
	}
	return text
}

// Unwrap is the failure on the way, nil when the provider answered.
func (e *CallError) Unwrap() error { return e.cause }

// isRejected reports whether the provider said no to what was asked, as opposed to who asked or when.
func isRejected(err error) bool {
	var call *CallError
	return errors.As(err, &call) && call.Fault == FaultRejected
}

// passing are codes, or beginnings of them, that pass by themselves: the provider failed, or another change of the load
// balancer is under way.
var passing = []string{
	"SystemBusy", "OperationBusy", "ServiceIsStopping", "ServiceIsConfiguring", "BackendServer.configuring",
	"ServiceUnavailable", "LocationServiceTimeout",
	"ObtainIpFail", "InternalError",
}

// denied are codes, or beginnings of them, that are about who asks.
var denied = []string{
	"InvalidAccessKeyId", "SignatureDoesNotMatch", "IncompleteSignature", "SignatureNonceUsed", "InvalidTimeStamp",
	"InvalidSecurityToken",
	"MissingSecurityToken", "Forbidden", "NoPermission", "UnauthorizedOperation", "InvalidCredentials",
}

func faultOf(status int, code string) Fault {
	switch {
	case strings.HasPrefix(code, "Throttling") || status == 429:
		return FaultThrottled
	case hasPrefix(code, passing) || status >= 500:
		return FaultTransient
	case hasPrefix(code, denied) || status == 401 || status == 403:
		return FaultDenied
	}
	return FaultRejected
}

func hasPrefix(code string, beginnings []string) bool {
	for _, b := range beginnings {
		if strings.HasPrefix(code, b) {
			return true
		}
	}
	return false
}

// callError makes a CallError of what the SDK returned. SDK errors that are no answer of the provider, such as a page
// of a proxy that is not JSON, are transient.
func callError(action string, err error) error {
	if answer, ok := errors.AsType[dara.ResponseError](err); ok {
		e := &CallError{Action: action, Status: dara.IntValue(answer.GetStatusCode()),
			Code: dara.StringValue(answer.GetCode())}
		e.Fault = faultOf(e.Status, e.Code)
		e.Message = textOf(answer.GetData(), "Message", "message")
		e.RequestID = textOf(answer.GetData(), "RequestId", "requestId")
		return e
	}
	return &CallError{Action: action, Fault: FaultTransient, cause: err}
}

func textOf(data map[string]any, keys ...string) string {
	for _, key := range keys {
		if text, ok := data[key].(string); ok {
			return text
		}
	}
	return ""
}

var _ = []dara.ResponseError{&openapi.ClientError{}, &openapi.ServerError{}, &openapi.ThrottlingError{}}

// stsError makes a CallError of what the credentials library returned: its errors are texts that end in the body of
// STS' answer, if there was one.
func stsError(err error) error {
	const action = "AssumeRoleWithOIDC"
	_, body, found := strings.Cut(err.Error(), "get session token failed: ")
	var answer struct{ Code, Message, RequestID string }
	if !found || json.Unmarshal([]byte(body), &answer) != nil || answer.Code == "" {
		return &CallError{Action: action, Fault: FaultTransient, cause: err}
	}
	fault := faultOf(0, answer.Code)
	if fault == FaultRejected {
		fault = FaultDenied // what STS rejects is the role, its provider or the token
	}
	return &CallError{Action: action, Fault: fault, Code: answer.Code, Message: answer.Message,
		RequestID: answer.RequestID}
}
