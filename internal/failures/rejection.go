package failures

import (
	"errors"
	"net/http"
	"regexp"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Bounds of the wait between two attempts at a write that is rejected.
const (
	firstAskAgain = time.Second
	lastAskAgain  = 30 * time.Second
)

// AskAgainIn is how long to wait after so many rejections of a write: a second, then twice as long each time, half a
// minute at most.
func AskAgainIn(rejections int) time.Duration {
	return min(firstAskAgain<<min(max(rejections-1, 0), 20), lastAskAgain)
}

// Rejection is why the API server does not take a write.
type Rejection struct {
	// Why is for people. It does not depend on the name of the Pod, nor on the attempt.
	Why string
	// Quota reports whether it is for a quota.
	Quota bool
}

// RejectionIn reports whether an error is the API server's answer that it does not take a write to Pods, whatever is
// tried again. It is none that the object has changed or is gone, that the API server is busy, or that it cannot be
// reached. A webhook that does not answer rejects, too: it may be away for long.
func RejectionIn(err error) (r Rejection, rejected bool) {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return r, false
	}
	code, message := status.Status().Code, status.Status().Message
	switch denied := strings.Contains(message, "denied the request"); {
	case code == http.StatusConflict, code == http.StatusNotFound && !notServed(err),
		code == http.StatusTooManyRequests, code == http.StatusUnauthorized:
		rejected = denied // a webhook gives its refusals what code it likes
	case code == http.StatusInternalServerError:
		rejected = denied || strings.Contains(message, "failed calling webhook")
	default:
		rejected = code >= http.StatusBadRequest && code < http.StatusInternalServerError
	}
	return Rejection{Why: Steady(unnamed(message)), Quota: strings.Contains(message, "exceeded quota")}, rejected
}

// notServed reports whether it is the resource that was not found, and not the object.
func notServed(err error) bool {
	return apierrors.IsMethodNotSupported(err) ||
		(apierrors.IsNotFound(err) && apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse))
}

// namedFirst is the Pod with whose name an answer begins: it is another one for each attempt, or for each Pod.
var namedFirst = regexp.MustCompile(`^(?:pods|Pod) "[^"]*" is (forbidden|invalid): `)

// unnamed is an answer of the API server that does not depend on the name of the Pod.
func unnamed(message string) string { return namedFirst.ReplaceAllString(message, "$1: ") }
