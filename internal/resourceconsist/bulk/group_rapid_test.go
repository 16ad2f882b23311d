package bulk

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	api "kusionstack.io/kuperator/api/resourceconsist"
)

var epoch = time.Date(2026, 5, 4, 3, 2, 1, 0, time.UTC)

// provider is a backend whose changes take effect some time after they were accepted: the last accepted one wins.
type provider struct {
	target, actual map[string]api.Held[any]
	// ill are members that get no traffic although they should, for a reason of their own.
	ill map[string]bool
}

func newProvider() *provider {
	return &provider{target: map[string]api.Held[any]{}, actual: map[string]api.Held[any]{}, ill: map[string]bool{}}
}

func (p *provider) accept(c api.Change[any]) {
	if c.Remove {
		delete(p.target, c.ID)
		return
	}
	p.target[c.ID] = api.Held[any]{ID: c.ID, State: c.State, Serving: c.State.(int) > 0}
}

// settle lets the accepted state of a member take effect.
func (p *provider) settle(id string) {
	if h, ok := p.target[id]; ok {
		p.actual[id] = h
	} else {
		delete(p.actual, id)
	}
}

func (p *provider) settleAll() {
	for _, id := range ids {
		p.settle(id)
	}
}

// serves reports whether the member gets traffic.
func (p *provider) serves(id string) bool { return p.actual[id].Serving && !p.ill[id] }

func (p *provider) read(ids []string) []api.Held[any] {
	if len(ids) == 0 {
		ids = slices.Collect(maps.Keys(p.actual))
	}
	var held []api.Held[any]
	for _, id := range ids {
		if h, ok := p.actual[id]; ok {
			h.Serving = p.serves(id)
			held = append(held, h)
		}
	}
	return held
}

// pod is an employee as the framework drives it.
type pod struct {
	name    string
	uid     int
	address string
	// known is the address that the group knows.
	known string
	// up is true if it should have traffic, held if it has the finalizer, terminating if it is to go then.
	up, held, terminating bool
	unemployed, invalid   bool
	// stays is true if it stays with weight 0 when it is idle.
	stays bool
}

var ids = []string{"a", "b", "c"}

// machine runs a group with the framework and the provider around it, in any interleaving.
type machine struct {
	t        *rapid.T
	g        *group
	now      time.Time
	provider *provider
	pods     map[string]*pod
	uids     int
	calls    int
	flight   *call
	weight   int
}

func (m *machine) view(p *pod) view {
	v := view{
		key:     employeeKey{types.NamespacedName{Namespace: "shop", Name: p.name}, types.UID(fmt.Sprint(p.uid))},
		created: epoch.Add(time.Duration(p.uid) * time.Second), terminating: p.terminating,
		serve: map[string]any{}, idle: map[string]any{},
	}
	if p.invalid {
		v.invalid, v.serve, v.idle = errors.New("no such port"), nil, nil
	} else if p.address != "" {
		v.serve[p.address] = m.weight
		if p.stays {
			v.idle[p.address] = 0
		}
	}
	return v
}

func (m *machine) intent(p *pod) intent {
	switch {
	case p.unemployed:
		return intent{direction: leaving, arrived: !p.held, forGood: true}
	case p.up && !p.terminating:
		return intent{direction: joining, arrived: p.held}
	default:
		return intent{direction: leaving, arrived: !p.held}
	}
}

// reconcile does for one Pod what core decides.
func (m *machine) reconcile(p *pod) {
	v, s := m.view(p), m.intent(p)
	if !p.invalid {
		p.known = p.address
	}
	if s.direction == leaving || !p.held {
		delete(m.provider.ill, p.known) // the worst time to become well
	}
	a := m.g.look(v, s, m.now)
	if p.unemployed && m.g.employees[v.key] == nil {
		p.known = "" // it has been let go, and has nothing until its members are known again
	}
	switch {
	case a.unknown:
	case s.direction == joining && !a.serving:
		m.g.register(v, s, true, m.now)
	case s.direction == joining:
		require.True(m.t, p.held || m.provider.serves(p.known), "%s joined without traffic", p.name)
		require.True(m.t, p.held || m.ownerOf(p.known) == p, "%s joined by what belongs to another", p.name)
		p.held = true
	case a.serving:
		m.g.register(v, s, false, m.now)
	default:
		if p.held && p.known != "" && m.ownerOf(p.known) == p {
			require.False(m.t, m.provider.serves(p.known), "%s left while it had traffic", p.name)
		}
		p.held = false
	}
	if p.terminating && !p.held {
		m.g.forget(v.key.NamespacedName, m.now)
		delete(m.pods, p.name)
	}
}

// ownerOf is the Pod that has an address: the youngest that is employed and lives, or else that dies, or else is not
// employed. One whose members are not known has those that it had.
func (m *machine) ownerOf(address string) *pod {
	rank := func(p *pod) int {
		switch {
		case p.unemployed:
			return 2
		case p.terminating:
			return 1
		}
		return 0
	}
	var owner *pod
	for _, p := range m.pods {
		if p.known == address && (owner == nil || rank(p) < rank(owner) || rank(p) == rank(owner) && p.uid > owner.uid) {
			owner = p
		}
	}
	return owner
}

// send begins the call that is due.
func (m *machine) send() {
	if m.flight != nil {
		return
	}
	due := m.g.due(m.now)
	m.flight = m.g.next(m.now)
	if m.flight == nil {
		return
	}
	require.False(m.t, due.IsZero() || due.After(m.now), "a call that was not due")
	m.calls++
	seen := map[string]bool{}
	for _, c := range m.flight.changes {
		require.False(m.t, seen[c.ID], "a member twice in a call")
		seen[c.ID] = true
	}
	require.LessOrEqual(m.t, len(m.flight.changes), m.g.options.BatchSize)
}

// answer ends the call that is under way.
func (m *machine) answer(outcome string) {
	c := m.flight
	if c == nil {
		return
	}
	m.flight = nil
	var held []api.Held[any]
	var err error
	switch {
	case outcome == "fail" || outcome == "fail after effect":
		err = errors.New("no")
		if c.verb == apply && outcome == "fail after effect" {
			for _, change := range c.changes {
				m.provider.accept(change)
			}
		}
	case c.verb == read:
		held = m.provider.read(c.ids)
	default:
		partial := api.MemberErrors{}
		for i, change := range c.changes {
			if outcome == "partial" && i%2 == 0 {
				partial[change.ID] = errors.New("no")
				continue
			}
			m.provider.accept(change)
		}
		if len(partial) > 0 {
			err = partial
		}
	}
	m.g.answered(held, err, m.now)
	for _, key := range m.g.notified() {
		if p := m.pods[key.Name]; p != nil {
			m.reconcile(p)
		}
	}
}

func options() api.CallOptions {
	o := withDefaults(api.CallOptions{BatchSize: 2})
	return o
}

// restart takes longer than a change needs to take effect.
func (m *machine) restart() {
	m.provider.settleAll()
	for _, p := range m.pods {
		p.known = ""
	}
	m.g = newGroup(options(), true, func(d time.Duration) time.Duration { return d }, m.now)
	m.flight = nil
}

func TestGroupProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := &machine{t: t, now: epoch, provider: newProvider(), pods: map[string]*pod{}, weight: 1}
		m.restart()
		if rapid.Bool().Draw(t, "stray") {
			m.provider.accept(api.Change[any]{ID: "c", State: 7})
			m.provider.settleAll()
		}
		some := func(label string) *pod {
			if len(m.pods) == 0 {
				return nil
			}
			return m.pods[rapid.SampledFrom(slices.Sorted(maps.Keys(m.pods))).Draw(t, label)]
		}
		t.Repeat(map[string]func(*rapid.T){
			"a Pod is created": func(t *rapid.T) {
				name := rapid.SampledFrom([]string{"p", "q", "r"}).Draw(t, "name")
				if m.pods[name] != nil {
					return
				}
				address := rapid.SampledFrom(append([]string{""}, ids...)).Draw(t, "address")
				if o := m.ownerOf(address); address != "" && o != nil && !o.terminating {
					return
				}
				m.uids++
				m.pods[name] = &pod{name: name, uid: m.uids, address: address, up: true, stays: rapid.Bool().Draw(t, "stays")}
				m.reconcile(m.pods[name])
			},
			"a Pod turns": func(*rapid.T) {
				if p := some("pod"); p != nil {
					p.up = !p.up
					m.reconcile(p)
				}
			},
			"a Pod gets another address, or loses its own": func(t *rapid.T) {
				if p := some("pod"); p != nil {
					p.address = rapid.SampledFrom(append([]string{""}, ids...)).Draw(t, "address")
					m.reconcile(p)
				}
			},
			"it is not known what a Pod's members are": func(*rapid.T) {
				if p := some("pod"); p != nil {
					p.invalid = !p.invalid
					m.reconcile(p)
				}
			},
			"a Pod dies": func(*rapid.T) {
				if p := some("pod"); p != nil {
					p.terminating = true
					m.reconcile(p)
				}
			},
			"a Pod is employed no more, or again": func(*rapid.T) {
				if p := some("pod"); p != nil {
					p.unemployed = !p.unemployed
					m.reconcile(p)
				}
			},
			"a member becomes ill": func(*rapid.T) {
				if p := some("pod"); p != nil && p.held && p.up && !p.terminating && !p.unemployed && m.ownerOf(p.known) == p {
					m.provider.ill[p.known] = true
				}
			},
			"all is well for a while": func(t *rapid.T) {
				for range rapid.IntRange(1, 6).Draw(t, "calls") {
					m.now = m.now.Add(time.Second)
					m.send()
					m.provider.settleAll()
					m.answer("ok")
				}
			},
			"a reading of all is due": func(*rapid.T) {
				m.now = m.now.Add(11 * time.Minute)
				m.send()
				m.answer("ok")
			},
			"a Pod is looked at": func(*rapid.T) {
				if p := some("pod"); p != nil {
					m.reconcile(p)
				}
			},
			"the weight changes": func(t *rapid.T) {
				m.weight = rapid.IntRange(1, 3).Draw(t, "weight")
			},
			"time passes": func(t *rapid.T) {
				m.now = m.now.Add(time.Duration(rapid.IntRange(1, 5000).Draw(t, "ms")) * time.Millisecond)
			},
			"a call is made": func(*rapid.T) { m.send() },
			"a call is answered": func(t *rapid.T) {
				if m.now = m.now.Add(time.Second); m.flight == nil {
					m.send()
				}
				m.answer(rapid.SampledFrom([]string{"ok", "ok", "ok", "fail", "fail after effect", "partial"}).Draw(t, "outcome"))
			},
			"changes take effect": func(t *rapid.T) {
				for _, id := range rapid.SliceOf(rapid.SampledFrom(ids)).Draw(t, "ids") {
					m.provider.settle(id)
				}
			},
			"the process restarts": func(*rapid.T) { m.restart() },
		})
		m.converge()
	})
}

// converge lets everything go well from now on and checks that the goal is reached, and then rest.
func (m *machine) converge() {
	for _, p := range m.pods {
		p.invalid = false
	}
	for range 200 {
		for _, name := range slices.Sorted(maps.Keys(m.pods)) {
			m.reconcile(m.pods[name])
		}
		m.g.lookedAtAll()
		for range 20 {
			m.send()
			m.provider.settleAll()
			m.answer("ok")
			m.provider.settleAll()
		}
		m.now = m.now.Add(time.Second)
	}
	for _, p := range m.pods {
		if p.address == "" || m.ownerOf(p.address) != p {
			continue
		}
		h, there := m.provider.actual[p.address]
		switch {
		case p.unemployed:
			require.False(m.t, there, "%s should be gone", p.name)
			require.False(m.t, p.held)
		case p.up:
			require.True(m.t, h.Serving, "%s should serve", p.name)
			require.Equal(m.t, m.weight, h.State)
			require.True(m.t, p.held)
		default:
			require.False(m.t, h.Serving, "%s should not serve", p.name)
			require.False(m.t, p.held)
		}
	}
	for id := range m.provider.actual {
		require.NotNil(m.t, m.ownerOf(id), "%s has no owner", id)
	}
	before := m.calls
	for range 100 {
		for _, p := range m.pods {
			m.reconcile(p)
		}
		m.send()
		m.answer("ok")
		m.now = m.now.Add(time.Second)
	}
	require.LessOrEqual(m.t, m.calls-before, 1, "calls at rest")
}
