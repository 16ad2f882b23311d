package asking

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/internal/callout"
	"kusionstack.io/kuperator/internal/failures"
	"kusionstack.io/kuperator/internal/podtransitionrule/asking/exchange"
)

// defaultQueryKey is the query that names a task.
const defaultQueryKey = "task-id"

// serve makes one request and takes in its result.
func (a *Asker) serve(ctx context.Context, i *inquiry, r exchange.Request) {
	inFlight.Inc()
	var took time.Duration // by the server; what the API server took is not its fault
	if r.TaskID != "" {
		took = a.poll(ctx, i, r)
	} else {
		took = a.post(ctx, i, r)
	}
	inFlight.Dec()
	a.mu.Lock()
	defer a.mu.Unlock()
	a.turns.End(i.namespace, i.rule, took, a.clock.Now())
	a.makeReady(i)
	a.serveReady()
	if !i.gone {
		a.queue.Add(types.NamespacedName{Name: i.namespace})
	}
}

// poll asks about a task, and returns how long the server took.
func (a *Asker) poll(ctx context.Context, i *inquiry, r exchange.Request) (took time.Duration) {
	a.mu.Lock()
	config := i.check.Webhook.ClientConfig
	a.mu.Unlock()
	var answer exchange.PollAnswer
	var body []byte
	err := errors.New("the rule is polled no more")
	if config.Poll != nil {
		body, took, err = a.ask(ctx, i, callout.Call{Method: http.MethodGet, URL: pollURL(*config.Poll, r.TaskID)},
			config.Poll.CABundle, config.SecretName)
	}
	if err == nil {
		answer, err = exchange.ParsePollAnswer(body)
	}
	if ctx.Err() != nil {
		return took // the process ends
	}
	a.count(ctx, i, r, err)
	a.mu.Lock()
	defer a.mu.Unlock()
	if err != nil {
		i.PollFailed(r, failureOf(err), a.clock.Now())
		return took
	}
	i.Polled(r, answer, a.clock.Now())
	return took
}

// pollURL adds the task to the URL's query.
func pollURL(poll appsv1alpha1.WebhookPoll, task string) string {
	name := poll.RawQueryKey
	if name == "" {
		name = defaultQueryKey
	}
	u, err := url.Parse(poll.URL)
	if err != nil {
		return poll.URL // is refused later
	}
	if u.RawQuery != "" {
		u.RawQuery += "&"
	}
	u.RawQuery += url.QueryEscape(name) + "=" + url.QueryEscape(task)
	return u.String()
}

// post asks about Pods, and returns how long the server took.
func (a *Asker) post(ctx context.Context, i *inquiry, r exchange.Request) (took time.Duration) {
	a.mu.Lock()
	check := i.check
	a.mu.Unlock()
	body, sent := a.body(ctx, i, check, &r)
	if !sent {
		return 0
	}
	config := check.Webhook.ClientConfig
	var answer exchange.Answer
	said, took, err := a.ask(ctx, i, callout.Call{Method: http.MethodPost, URL: config.URL, Body: body}, config.CABundle,
		config.SecretName)
	if err == nil {
		answer, err = exchange.ParseAnswer(said)
	}
	if ctx.Err() != nil {
		return took // the process ends: no Pod may pass by failurePolicy for that
	}
	a.count(ctx, i, r, err)
	a.mu.Lock()
	defer a.mu.Unlock()
	if err == nil {
		i.Answered(r, answer, a.clock.Now())
		return took
	}
	if n := i.Failed(r, failureOf(err), a.clock.Now()); n > 0 && !i.gone {
		countIgnored(i.namespace, i.ruleName, n)
	}
	return took
}

// ask makes a call with the rule's certificates and credentials. A callout.Misconfigured will last; every other error
// may be over the next time.
func (a *Asker) ask(
	ctx context.Context, i *inquiry, q callout.Call, caBundle, secret string,
) (body []byte, took time.Duration, err error) {
	if q.Credentials, err = a.secrets.of(ctx, i.namespace, secret); err != nil {
		return nil, 0, err
	}
	if q.Roots, err = callout.ParseBundle(caBundle); err != nil {
		return nil, 0, &callout.Misconfigured{Err: err}
	}
	began := a.clock.Now()
	body, err = a.client.Ask(ctx, q)
	took = a.clock.Since(began)
	requestSeconds.Observe(took.Seconds())
	return body, took, err
}

// failureOf says what an error means for those who were to be asked about.
func failureOf(err error) exchange.Failure {
	lasting, passing := (*callout.Misconfigured)(nil), unprepared{}
	why := failures.Text(err)
	switch {
	case errors.As(err, &lasting):
		return exchange.Failure{Reason: "the webhook is not asked: " + why, Refused: true, Lasting: true}
	case errors.As(err, &passing):
		return exchange.Failure{Reason: "the webhook is not asked: " + why, Refused: true}
	}
	return exchange.Failure{Reason: "the webhook cannot be asked: " + why}
}

// count tells metrics and the log how a request went.
func (a *Asker) count(ctx context.Context, i *inquiry, r exchange.Request, err error) {
	result := answered
	if err != nil {
		result = failed
		if failureOf(err).Refused {
			result = refused
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if i.gone {
		return
	}
	countRequest(i.namespace, i.ruleName, result)
	if err != nil {
		ctrl.LoggerFrom(ctx).Info("A webhook rule's server was not heard.", "namespace", i.namespace,
			"podtransitionrule", i.ruleName,
			"rule", i.key.check, "task", r.TaskID, "pods", len(r.Questions), "failurePolicy",
			ptr.Deref(i.check.Webhook.FailurePolicy, ""), "why", err.Error())
	}
}
