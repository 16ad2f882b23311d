package bootstrap

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/go-logr/logr"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/cache"
	authenticationclient "k8s.io/client-go/kubernetes/typed/authentication/v1"
	authorizationclient "k8s.io/client-go/kubernetes/typed/authorization/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
)

// How long the API server's answers hold, as in the programs of Kubernetes itself, and how many of them are kept.
const (
	identityHolds = time.Minute
	yesHolds      = 5 * time.Minute
	noHolds       = 30 * time.Second
	mostAnswers   = 1024
	reviewTimeout = 10 * time.Second
)

// delegation lets through whom the API server knows and allows: TokenReview says who sent the bearer token, and
// SubjectAccessReview whether they may use the method on the path (RBAC nonResourceURLs). Anonymous requests are not
// served. A token that the API server does not know is answered with 401, what is not allowed with 403, and both with
// 500 while the API server cannot be asked: no answer means no.
type delegation struct {
	tokens     authenticationclient.TokenReviewInterface
	access     authorizationclient.SubjectAccessReviewInterface
	identities *cache.LRUExpireCache // of authenticationv1.UserInfo by SHA-256 of the token
	answers    *cache.LRUExpireCache // of bool by access
}

// access is what a client requests.
type access struct {
	user, verb, path string // user is all that is known of them, as JSON
}

// delegated is a metrics server's filter. It does what controller-runtime's WithAuthenticationAndAuthorization does
// for bearer tokens without the library of API servers, which is a third of a program.
func delegated(config *rest.Config, httpClient *http.Client) (metricsserver.Filter, error) {
	authentication, err := authenticationclient.NewForConfigAndClient(config, httpClient)
	if err != nil {
		return nil, fmt.Errorf("preparing to ask the API server who reads metrics: %w", err)
	}
	authorization, err := authorizationclient.NewForConfigAndClient(config, httpClient)
	if err != nil {
		return nil, fmt.Errorf("preparing to ask the API server who may read metrics: %w", err)
	}
	return newDelegation(authentication.TokenReviews(), authorization.SubjectAccessReviews(),
		clock.RealClock{}).filter, nil
}

func newDelegation(
	tokens authenticationclient.TokenReviewInterface, access authorizationclient.SubjectAccessReviewInterface,
	now cache.Clock,
) *delegation {
	return &delegation{
		tokens: tokens, access: access,
		identities: cache.NewLRUExpireCacheWithClock(mostAnswers, now),
		answers:    cache.NewLRUExpireCacheWithClock(mostAnswers, now),
	}
}

func (d *delegation) filter(log logr.Logger, next http.Handler) (http.Handler, error) {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), reviewTimeout)
		defer cancel()
		code, err := d.check(ctx, r)
		if err != nil {
			log.Error(err, "no answer from the API server, so the request is refused", "path", r.URL.Path)
		}
		if code != http.StatusOK {
			http.Error(w, http.StatusText(code), code)
			return
		}
		next.ServeHTTP(w, r)
	}), nil
}

// check is the status that a request deserves, 200 if it may go on.
func (d *delegation) check(ctx context.Context, r *http.Request) (code int, err error) {
	token := bearerToken(r)
	if token == "" {
		return http.StatusUnauthorized, nil
	}
	user, known, err := d.identify(ctx, token)
	if err != nil {
		return http.StatusInternalServerError, fmt.Errorf("reviewing a token: %w", err)
	}
	if !known {
		return http.StatusUnauthorized, nil
	}
	allowed, err := d.allowed(ctx, user, strings.ToLower(r.Method), r.URL.Path)
	switch {
	case err != nil:
		return http.StatusInternalServerError, fmt.Errorf("reviewing the access of %s: %w", user.Username, err)
	case !allowed:
		return http.StatusForbidden, nil
	}
	return http.StatusOK, nil
}

// bearerToken is the token of a request, "" if there is none (RFC 6750, section 2.1).
func bearerToken(r *http.Request) string {
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return ""
	}
	return strings.TrimSpace(token)
}

func (d *delegation) identify(
	ctx context.Context, token string,
) (user authenticationv1.UserInfo, known bool, err error) {
	key := sha256.Sum256([]byte(token))
	if found, ok := d.identities.Get(key); ok {
		user, known = found.(authenticationv1.UserInfo)
		return user, known, nil
	}
	review, err := d.tokens.Create(ctx,
		&authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token}}, metav1.CreateOptions{})
	if err != nil {
		return user, false, err
	}
	if !review.Status.Authenticated {
		return user, false, nil
	}
	d.identities.Add(key, review.Status.User, identityHolds)
	return review.Status.User, true, nil
}

func (d *delegation) allowed(ctx context.Context, user authenticationv1.UserInfo, verb, path string) (bool, error) {
	who, err := json.Marshal(user)
	if err != nil {
		return false, err
	}
	key := access{user: string(who), verb: verb, path: path}
	if found, ok := d.answers.Get(key); ok {
		yes, _ := found.(bool)
		return yes, nil
	}
	extra := make(map[string]authorizationv1.ExtraValue, len(user.Extra))
	for name, values := range user.Extra {
		extra[name] = authorizationv1.ExtraValue(values)
	}
	review, err := d.access.Create(ctx, &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
		User: user.Username, UID: user.UID, Groups: user.Groups, Extra: extra,
		NonResourceAttributes: &authorizationv1.NonResourceAttributes{Verb: verb, Path: path},
	}}, metav1.CreateOptions{})
	if err != nil {
		return false, err
	}
	yes := review.Status.Allowed && !review.Status.Denied
	holds := noHolds
	if yes {
		holds = yesHolds
	}
	d.answers.Add(key, yes, holds)
	return yes, nil
}
