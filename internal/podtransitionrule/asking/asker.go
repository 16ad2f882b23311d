// Package asking asks the servers of webhook rules, off the path of decisions: what they said is there for the next
// decision, which is woken for it. What is asked, when, and what answers mean is decided in package exchange; this
// package has the connections, the credentials and the concurrency.
//
// Servers are not trusted, and asked through package callout. Namespaces take turns (exchange.Turns), and one rule
// has at most perRule requests on their way, so that slow servers hold up nothing but the rules that ask them.
package asking

import (
	"context"
	"errors"
	"math"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	kubeclient "sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/internal/callout"
	"kusionstack.io/kuperator/internal/failures"
	"kusionstack.io/kuperator/internal/podtransitionrule/asking/exchange"
	"kusionstack.io/kuperator/internal/podtransitionrule/grants"
)

const (
	// perRule is how many requests of one PodTransitionRule are on their way at once.
	perRule = 4
	// ruleRoom and historyRoom bound what the webhooks of one PodTransitionRule put into its status: bytes of tasks, and
	// tasks that ended.
	ruleRoom    = 96 << 10
	historyRoom = 24
	// defaults of polling, where the API server did not fill them in.
	defaultInterval, defaultTimeout = 5, 60
	// defaultQueryKey is the query that names a task.
	defaultQueryKey = "task-id"
	// shortestLook and readyLook keep a decision from being asked for again at once; readyLook while an answer or a free
	// slot will ask for it.
	shortestLook, readyLook = 10 * time.Millisecond, time.Second
)

// Asker asks. It is safe for concurrent use, except that one worker at a time serves a namespace.
type Asker struct {
	client  *client
	secrets *secrets
	direct  kubeclient.Reader // past the cache
	clock   clock.PassiveClock
	strict  bool          // see Options
	readers chan struct{} // slots for reading whole Pods

	mu         sync.Mutex
	namespaces map[string]*namespace
	turns      *exchange.Turns[*inquiry]        // of those that may have a request to make
	launch     func(*inquiry, exchange.Request) // nil before Start
	wake       func(reconcile.Request)          // nil before the source started
}

// namespace is what is asked for the rules of one namespace.
type namespace struct {
	inquiries map[key]*inquiry
	exported  []string // rules that may have metrics
}

// key names a check.
type key struct {
	rule  types.UID
	check string
}

// inquiry is one check that asks a webhook.
type inquiry struct {
	*exchange.Inquiry // guarded by Asker.mu, as are the other fields
	key
	namespace, ruleName string
	check               *appsv1alpha1.TransitionRule
	ready               bool // is in Asker.turns
	gone                bool // has been replaced
}

// Heard is what servers have said, for one decision.
type Heard struct {
	// Answers, Tasks, Invalid and Unreachable are those of grants.Snapshot.
	Answers     map[grants.Subject]grants.Answer
	Tasks       map[types.UID][]appsv1alpha1.RuleState
	Invalid     map[types.UID]string
	Unreachable map[types.UID]string
}

// New makes an Asker that starts with Start. direct must read past caches.
func New(o Options, direct kubeclient.Reader, clk clock.PassiveClock) (*Asker, error) {
	targets, err := parseTargets(o.Allow)
	if err != nil {
		return nil, err
	}
	return &Asker{
		client: newClient(targets, o.Timeout), secrets: newSecrets(direct, clk), direct: direct, clock: clk, strict: o.Strict,
		readers: make(chan struct{}, o.Concurrency*readersPerSlot), namespaces: map[string]*namespace{},
		turns: exchange.NewTurns[*inquiry](o.Concurrency, perRule),
	}, nil
}

// NeedLeaderElection keeps standbys from asking.
func (a *Asker) NeedLeaderElection() bool { return true }

// Start asks until ctx ends, and returns when the last request has come back.
func (a *Asker) Start(ctx context.Context) error {
	var flying sync.WaitGroup
	a.mu.Lock()
	a.launch = func(i *inquiry, r exchange.Request) { flying.Go(func() { a.serve(ctx, i, r) }) }
	a.serveReady()
	a.mu.Unlock()
	<-ctx.Done()
	a.mu.Lock()
	a.launch = nil
	a.mu.Unlock()
	flying.Wait()
	return nil
}

// Source wakes the decision on a namespace when something was heard for it.
func (a *Asker) Source() source.Source {
	return source.Func(func(_ context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.wake = func(r reconcile.Request) { queue.Add(r) }
		return nil
	})
}

// Heard returns what is known now about the rules of a namespace, as the cache shows them. Tasks that status has and
// this process does not know are taken over.
func (a *Asker) Heard(name string, rules []*appsv1alpha1.PodTransitionRule) Heard {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := a.clock.Now()
	ns := a.namespaces[name]
	if ns == nil {
		ns = &namespace{inquiries: map[key]*inquiry{}}
		a.namespaces[name] = ns
	}
	heard := Heard{
		Answers: map[grants.Subject]grants.Answer{}, Tasks: map[types.UID][]appsv1alpha1.RuleState{},
		Invalid: map[types.UID]string{}, Unreachable: map[types.UID]string{},
	}
	present := make(map[key]bool, len(ns.inquiries))
	for _, rule := range rules {
		for _, i := range ns.update(name, rule, a.strict, now) {
			present[i.key] = true
			i.Tick(now)
			i.hear(&heard)
		}
	}
	for k, i := range ns.inquiries {
		if !present[k] {
			i.gone = true
			delete(ns.inquiries, k)
		}
	}
	ns.export(name, rules)
	return heard
}

// Ask takes in what a decision wants to know, starts asking, and returns when to decide again although nothing happens;
// zero for never.
func (a *Asker) Ask(name string, questions []grants.Question) time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	ns := a.namespaces[name]
	if ns == nil {
		return 0
	}
	by := make(map[key][]grants.Question, len(ns.inquiries))
	for _, q := range questions {
		k := key{q.Rule, q.Check}
		by[k] = append(by[k], q)
	}
	for k, i := range ns.inquiries {
		i.Want(by[k])
		a.makeReady(i)
	}
	a.serveReady()
	var next time.Duration
	now := a.clock.Now()
	for _, i := range ns.inquiries {
		shortest := shortestLook
		if i.ready {
			shortest = readyLook
		}
		if at, some := i.Due(); some {
			if wait := max(at.Sub(now), shortest); next == 0 || wait < next {
				next = wait
			}
		}
	}
	return next
}

// Forget drops a namespace without rules.
func (a *Asker) Forget(name string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if ns := a.namespaces[name]; ns != nil {
		for _, i := range ns.inquiries {
			i.gone = true
		}
		ns.export(name, nil)
		delete(a.namespaces, name)
	}
}

// update returns the inquiries of a rule as it is now; strict is that of Options.
func (ns *namespace) update(name string, rule *appsv1alpha1.PodTransitionRule, strict bool, now time.Time) []*inquiry {
	var found []*inquiry
	checks := webhookChecks(rule)
	for _, check := range checks {
		k := key{rule.UID, check.Name}
		settings := settingsOf(rule, check, len(checks))
		settings.Ignore = settings.Ignore && !strict
		state := stateOf(rule, check.Name)
		i := ns.inquiries[k]
		switch {
		case i == nil || !sameServer(i.check.Webhook, check.Webhook):
			adopt := i == nil && rule.Status.ObservedGeneration == rule.Generation // else the tasks may be another server's
			if i != nil {
				i.gone = true
			}
			i = &inquiry{Inquiry: exchange.New(settings), key: k, namespace: name, ruleName: rule.Name}
			if adopt {
				i.Adopt(state, now)
			}
			ns.inquiries[k] = i
		case !equality.Semantic.DeepEqual(i.check.Webhook, check.Webhook):
			i.Retry()
		}
		i.Use(settings)
		i.check = check
		i.Known(state)
		found = append(found, i)
	}
	return found
}

// webhookChecks are the items of a rule that ask a webhook.
func webhookChecks(rule *appsv1alpha1.PodTransitionRule) []*appsv1alpha1.TransitionRule {
	var checks []*appsv1alpha1.TransitionRule
	for n := range rule.Spec.Rules {
		check := &rule.Spec.Rules[n]
		if check.Webhook != nil && check.AvailablePolicy == nil && check.LabelCheck == nil && !check.Disabled &&
			len(check.Conditions) == 0 {
			checks = append(checks, check)
		}
	}
	return checks
}

func settingsOf(rule *appsv1alpha1.PodTransitionRule, check *appsv1alpha1.TransitionRule, of int) exchange.Settings {
	s := exchange.Settings{
		Rule: rule.UID, Check: check.Name,
		Ignore: ptr.Deref(check.Webhook.FailurePolicy, appsv1alpha1.FailurePolicyIgnore) == appsv1alpha1.FailurePolicyIgnore,
		Room:   ruleRoom / of, HistoryRoom: max(1, historyRoom/of),
	}
	if poll := check.Webhook.ClientConfig.Poll; poll != nil {
		s.Polls = true
		s.Interval = seconds(ptr.Deref(poll.IntervalSeconds, defaultInterval))
		s.Timeout = seconds(ptr.Deref(poll.TimeoutSeconds, defaultTimeout))
	}
	return s
}

// seconds is a number of them as a duration, at least 1 and at most what fits.
func seconds(n int64) time.Duration {
	return time.Duration(min(max(n, 1), math.MaxInt32)) * time.Second
}

func stateOf(rule *appsv1alpha1.PodTransitionRule, check string) *appsv1alpha1.WebhookStatus {
	at := slices.IndexFunc(rule.Status.RuleStates, func(s appsv1alpha1.RuleState) bool { return s.Name == check })
	if at < 0 {
		return nil
	}
	return rule.Status.RuleStates[at].WebhookStatus
}

// sameServer reports whether what one was told holds for the other: they ask the same server the same.
func sameServer(a, b *appsv1alpha1.TransitionRuleWebhook) bool {
	if a == b {
		return true
	}
	pollOf := func(w *appsv1alpha1.TransitionRuleWebhook) appsv1alpha1.WebhookPoll {
		poll := ptr.Deref(w.ClientConfig.Poll, appsv1alpha1.WebhookPoll{})
		return appsv1alpha1.WebhookPoll{URL: poll.URL, RawQueryKey: poll.RawQueryKey}
	}
	return a.ClientConfig.URL == b.ClientConfig.URL && pollOf(a) == pollOf(b) &&
		equality.Semantic.DeepEqual(a.Parameters, b.Parameters)
}

func (i *inquiry) hear(heard *Heard) {
	i.Answers(heard.Answers)
	if state := i.State(); state != nil {
		states := append(heard.Tasks[i.rule], appsv1alpha1.RuleState{Name: i.key.check, WebhookStatus: state})
		slices.SortFunc(states, func(a, b appsv1alpha1.RuleState) int { return strings.Compare(a.Name, b.Name) })
		heard.Tasks[i.rule] = states
	}
	if why := invalid(i.check.Webhook); why != "" && heard.Invalid[i.rule] == "" {
		heard.Invalid[i.rule] = "rule " + i.key.check + ": " + why
	}
	if why := i.Failing(); why != "" && heard.Unreachable[i.rule] == "" {
		heard.Unreachable[i.rule] = "rule " + i.key.check + ": " + why
	}
}

// invalid says what is wrong with a webhook, as far as that is known without asking it; "" for nothing.
func invalid(w *appsv1alpha1.TransitionRuleWebhook) string {
	config := w.ClientConfig
	urls, bundles := []string{config.URL}, []string{config.CABundle}
	if config.Poll != nil {
		urls, bundles = append(urls, config.Poll.URL), append(bundles, config.Poll.CABundle)
	}
	for _, given := range urls {
		u, err := callout.ParseURL(given)
		if err != nil {
			return err.Error()
		}
		if config.SecretName != "" && u.Scheme != "https" {
			return "credentials of a Secret are sent over https only: change the urls, or remove webhook.clientConfig.secretName"
		}
	}
	for _, bundle := range bundles {
		if _, err := rootsOf(bundle); err != nil {
			return err.Error()
		}
	}
	return ""
}

// export forgets the metrics of rules that are gone.
func (ns *namespace) export(name string, rules []*appsv1alpha1.PodTransitionRule) {
	present := make([]string, 0, len(rules))
	for _, rule := range rules {
		if len(webhookChecks(rule)) > 0 {
			present = append(present, rule.Name)
		}
	}
	for _, old := range ns.exported {
		if !slices.Contains(present, old) {
			unexport(name, old)
		}
	}
	ns.exported = present
}

func (a *Asker) makeReady(i *inquiry) {
	if !i.ready && !i.gone {
		i.ready = true
		a.turns.Want(i.namespace, i.rule, i)
	}
}

// serveReady starts requests as long as there are some, and room for them.
func (a *Asker) serveReady() {
	if a.launch == nil {
		return
	}
	now := a.clock.Now()
	for i, some := a.turns.Next(now); some; i, some = a.turns.Next(now) {
		i.ready = false
		if i.gone {
			continue
		}
		if request, has := i.Next(now); has {
			a.turns.Begin(i.namespace, i.rule)
			a.makeReady(i) // it may have more
			a.launch(i, request)
		}
	}
}

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
	if a.wake != nil && !i.gone {
		a.wake(reconcile.Request{NamespacedName: types.NamespacedName{Name: i.namespace}})
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
		body, took, err = a.ask(ctx, i, call{method: http.MethodGet, url: pollURL(*config.Poll, r.TaskID),
			caBundle: config.Poll.CABundle}, config.SecretName)
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
	said, took, err := a.ask(ctx, i, call{method: http.MethodPost, url: config.URL, body: body, caBundle: config.CABundle},
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

func (a *Asker) ask(
	ctx context.Context, i *inquiry, q call, secret string,
) (body []byte, took time.Duration, err error) {
	if q.credentials, err = a.secrets.of(ctx, i.namespace, secret); err != nil {
		return nil, 0, err
	}
	began := a.clock.Now()
	body, err = a.client.ask(ctx, q)
	took = a.clock.Since(began)
	requestSeconds.Observe(took.Seconds())
	return body, took, err
}

// failureOf says what an error means for those who were to be asked about.
func failureOf(err error) exchange.Failure {
	lasting, passing := misconfigured{}, unprepared{}
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
