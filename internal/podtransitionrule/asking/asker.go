// Package asking asks the servers of webhook rules, off the path of decisions: what they said is there for the next
// decision, which is woken for it. What is asked, when, and what answers mean is decided in package exchange; this
// package has the connections, the credentials and the concurrency.
//
// Servers are not trusted, and asked through package callout. Namespaces take turns (exchange.Turns), and one rule
// has at most perRule requests on their way, so that slow servers hold up nothing but the rules that ask them.
package asking

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	kubeclient "sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/source"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/internal/callout"
	"kusionstack.io/kuperator/internal/podtransitionrule/asking/exchange"
	"kusionstack.io/kuperator/internal/podtransitionrule/grants"
	"kusionstack.io/kuperator/internal/soonest"
	"kusionstack.io/kuperator/internal/wake"
)

const (
	// perRule is how many requests of one PodTransitionRule are on their way at once.
	perRule = 4
	// shortestLook and readyLook keep a decision from being asked for again at once; readyLook while an answer or a free
	// slot will ask for it.
	shortestLook, readyLook = 10 * time.Millisecond, time.Second
)

// Asker asks. It is safe for concurrent use, except that one worker at a time serves a namespace.
type Asker struct {
	client  *callout.Client
	secrets *secrets
	queue   wake.Queue
	direct  kubeclient.Reader // past the cache
	clock   clock.PassiveClock
	strict  bool          // see Options
	readers chan struct{} // slots for reading whole Pods

	mu         sync.Mutex
	namespaces map[string]*namespace
	turns      *exchange.Turns[*inquiry]        // of those that may have a request to make
	launch     func(*inquiry, exchange.Request) // nil before Start
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
func (a *Asker) Source() source.Source { return &a.queue }

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
			next = soonest.Of(next, max(at.Sub(now), shortest))
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
