package bootstrap

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/stretchr/testify/require"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	clocktesting "k8s.io/utils/clock/testing"
)

// reviewer answers reviews as an API server would that knows one token.
type reviewer struct {
	clock   *clocktesting.FakeClock
	handler http.Handler

	status       authorizationv1.SubjectAccessReviewStatus
	failing      bool
	asked        authorizationv1.SubjectAccessReviewSpec
	tokens, sars int
}

const goodToken = "good"

func newReviewer(t *testing.T) *reviewer {
	r := &reviewer{clock: clocktesting.NewFakeClock(time.Unix(1e9, 0))}
	clients := fake.NewClientset()
	clients.PrependReactor("create", "tokenreviews", func(a clienttesting.Action) (bool, runtime.Object, error) {
		r.tokens++
		if r.failing {
			return true, nil, errors.New("the API server is away")
		}
		review := a.(clienttesting.CreateAction).GetObject().(*authenticationv1.TokenReview).DeepCopy() //nolint:forcetypeassert // panics are failures
		if review.Spec.Token == goodToken {
			review.Status.Authenticated = true
			review.Status.User = authenticationv1.UserInfo{Username: "prometheus", UID: "1", Groups: []string{"g"},
				Extra: map[string]authenticationv1.ExtraValue{"e": {"v"}}}
		} else {
			review.Status.Error = "invalid bearer token"
		}
		return true, review, nil
	})
	clients.PrependReactor("create", "subjectaccessreviews", func(a clienttesting.Action) (bool, runtime.Object, error) {
		r.sars++
		if r.failing {
			return true, nil, errors.New("the API server is away")
		}
		review := a.(clienttesting.CreateAction).GetObject().(*authorizationv1.SubjectAccessReview).DeepCopy() //nolint:forcetypeassert // panics are failures
		r.asked = review.Spec
		review.Status = r.status
		return true, review, nil
	})
	d := newDelegation(clients.AuthenticationV1().TokenReviews(),
		clients.AuthorizationV1().SubjectAccessReviews(), r.clock)
	var err error
	r.handler, err = d.filter(logr.Discard(),
		http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTeapot) }))
	require.NoError(t, err)
	return r
}

// answers sends a request with an Authorization header; http.StatusTeapot is the answer of what is guarded.
func (r *reviewer) answers(t *testing.T, authorization string) int {
	request := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics", nil)
	if authorization != "" {
		request.Header.Set("Authorization", authorization)
	}
	answer := httptest.NewRecorder()
	r.handler.ServeHTTP(answer, request)
	return answer.Code
}

func TestWhoShowsNoTokenIsNobodyAndNobodyIsAsked(t *testing.T) {
	r := newReviewer(t)
	r.status.Allowed = true
	for _, authorization := range []string{"", "Bearer", "Bearer ", "Basic Z29vZA==", goodToken, "Bearergood"} {
		require.Equal(t, http.StatusUnauthorized, r.answers(t, authorization), authorization)
	}
	require.Zero(t, r.tokens+r.sars)
	require.Equal(t, http.StatusUnauthorized, r.answers(t, "Bearer forged"))
	require.Zero(t, r.sars)
}

func TestTheAPIServerIsAskedForExactlyWhatIsDone(t *testing.T) {
	r := newReviewer(t)
	r.status.Allowed = true
	require.Equal(t, http.StatusTeapot, r.answers(t, "bearer "+goodToken))
	require.Equal(t, authorizationv1.SubjectAccessReviewSpec{
		User: "prometheus", UID: "1", Groups: []string{"g"}, Extra: map[string]authorizationv1.ExtraValue{"e": {"v"}},
		NonResourceAttributes: &authorizationv1.NonResourceAttributes{Verb: "get", Path: "/metrics"},
	}, r.asked)
}

func TestAnswersHoldForAWhile(t *testing.T) {
	r := newReviewer(t)
	r.status.Allowed = true
	for range 3 {
		require.Equal(t, http.StatusTeapot, r.answers(t, "Bearer "+goodToken))
	}
	require.Equal(t, []int{1, 1}, []int{r.tokens, r.sars})
	r.status.Allowed = false
	r.clock.Step(yesHolds + time.Second)
	require.Equal(t, http.StatusForbidden, r.answers(t, "Bearer "+goodToken), "a right that was taken away is noticed")
	require.Equal(t, []int{2, 2}, []int{r.tokens, r.sars})
	r.status = authorizationv1.SubjectAccessReviewStatus{Allowed: true, Denied: true}
	r.clock.Step(noHolds + time.Second)
	require.Equal(t, http.StatusForbidden, r.answers(t, "Bearer "+goodToken), "denied outweighs allowed")
	r.status.Denied = false
	r.clock.Step(noHolds - time.Second)
	require.Equal(t, http.StatusForbidden, r.answers(t, "Bearer "+goodToken))
	r.clock.Step(2 * time.Second)
	require.Equal(t, http.StatusTeapot, r.answers(t, "Bearer "+goodToken))
}

func TestNoAnswerIsNoAndIsNotRemembered(t *testing.T) {
	r := newReviewer(t)
	r.status.Allowed, r.failing = true, true
	require.Equal(t, http.StatusInternalServerError, r.answers(t, "Bearer "+goodToken))
	r.failing = false
	require.Equal(t, http.StatusTeapot, r.answers(t, "Bearer "+goodToken))
	r.failing = true
	r.clock.Step(yesHolds + time.Second)
	require.Equal(t, http.StatusInternalServerError, r.answers(t, "Bearer "+goodToken))
}
