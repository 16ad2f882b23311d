package exchange

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"
)

// caller wants requests about one rule.
type caller struct {
	namespace string
	rule      types.UID
}

// line plays those who want to make requests, without an end, and their servers.
type line struct {
	*Turns[*caller]
	now    time.Time
	flying []call
	asked  map[string]time.Time // when a namespace was first asked
}

type call struct {
	*caller
	began time.Time
	takes time.Duration
}

func newLine() *line {
	return &line{Turns: NewTurns[*caller](16, 4), now: at(0), asked: map[string]time.Time{}}
}

func (l *line) come(namespace string, rules int) {
	for n := range rules {
		c := &caller{namespace, types.UID(fmt.Sprintf("%s-%d", namespace, n))}
		for range 4 { // four checks
			l.Want(c.namespace, c.rule, c)
		}
	}
}

// serve starts all that may start; each takes as long as its server.
func (l *line) serve(takes func(namespace string) time.Duration) {
	for c, some := l.Next(l.now); some; c, some = l.Next(l.now) {
		l.Begin(c.namespace, c.rule)
		l.Want(c.namespace, c.rule, c)
		l.flying = append(l.flying, call{c, l.now, takes(c.namespace)})
		if _, has := l.asked[c.namespace]; !has {
			l.asked[c.namespace] = l.now
		}
	}
}

// pass lets time go on, in tenths of a second.
func (l *line) pass(d time.Duration, takes func(string) time.Duration) {
	for end := l.now.Add(d); l.now.Before(end); {
		l.now = l.now.Add(100 * time.Millisecond)
		var still []call
		for _, f := range l.flying {
			if took := l.now.Sub(f.began); took >= f.takes {
				l.End(f.namespace, f.rule, took, l.now)
			} else {
				still = append(still, f)
			}
		}
		l.flying = still
		l.serve(takes)
	}
}

func (l *line) of(namespace string) (n int) {
	for _, f := range l.flying {
		if f.namespace == namespace {
			n++
		}
	}
	return n
}

// TestAVictimIsAskedSoon: whatever the servers of others do, and whenever the victim comes, its rule is asked within
// 5 s.
func TestAVictimIsAskedSoon(t *testing.T) {
	servers := map[string]time.Duration{"hang": 10 * time.Second, "are slow": 9 * time.Second,
		"are lazy": 1900 * time.Millisecond, "redirect": 100 * time.Millisecond}
	for what, takes := range servers {
		for _, namespaces := range []int{1, 2, 20, 60} {
			for _, later := range []time.Duration{0, 100 * time.Millisecond, 9900 * time.Millisecond, 10 * time.Second,
				35 * time.Second} {
				t.Run(fmt.Sprintf("servers of %d namespaces %s, the victim comes after %s", namespaces, what, later),
					func(t *testing.T) {
						l := newLine()
						for n := range namespaces {
							l.come(fmt.Sprintf("attacker-%d", n), 10)
						}
						other := func(string) time.Duration { return takes }
						l.serve(other)
						l.pass(later, other)
						l.come("victim", 1)
						came := l.now
						l.serve(other)
						l.pass(5*time.Second, other)
						require.Contains(t, l.asked, "victim")
						require.Less(t, l.asked["victim"].Sub(came), 5*time.Second)
					})
			}
		}
	}
}

// TestKnownHangersLeaveRoom: more namespaces than there is room for, whose servers are known to hang, hold up no one
// who is new.
func TestKnownHangersLeaveRoom(t *testing.T) {
	l := newLine()
	hang := func(string) time.Duration { return 10 * time.Second }
	for n := range 200 {
		l.come(fmt.Sprintf("attacker-%d", n), 10)
	}
	l.serve(hang)
	l.pass(45*time.Second, hang)
	require.Len(t, l.asked, 200, "each has had its turn")
	for n := range 30 {
		l.come(fmt.Sprintf("victim-%d", n), 1)
	}
	l.serve(hang)
	require.Len(t, l.asked, 230, "all at once")
	l.pass(60*time.Second, hang)
	require.LessOrEqual(t, len(l.flying), l.Most()/2)
}

func TestTurns(t *testing.T) {
	hang := func(string) time.Duration { return 10 * time.Second }
	t.Run("a namespace alone has half of the slots, a rule four", func(t *testing.T) {
		l := newLine()
		l.come("a", 1)
		l.serve(hang)
		require.Equal(t, 4, l.of("a"))
		l.come("a", 9)
		l.serve(hang)
		require.Equal(t, 8, l.of("a"))
	})
	t.Run("two namespaces share the slots, and the third needs none", func(t *testing.T) {
		l := newLine()
		for _, name := range []string{"a", "b", "c"} {
			l.come(name, 10)
			l.serve(hang)
		}
		require.Equal(t, []int{8, 8, 1}, []int{l.of("a"), l.of("b"), l.of("c")})
	})
	t.Run("namespaces whose servers hang share half of the slots", func(t *testing.T) {
		l := newLine()
		for _, name := range []string{"a", "b"} {
			l.come(name, 10)
		}
		l.serve(hang)
		l.pass(11*time.Second, hang)
		require.Equal(t, []int{4, 4}, []int{l.of("a"), l.of("b")})
	})
	t.Run("a server that was slow a while ago is like any other", func(t *testing.T) {
		l := newLine()
		l.come("a", 10)
		quick := func(string) time.Duration { return 100 * time.Millisecond }
		l.serve(hang)
		l.pass(10*time.Second, quick)
		require.True(t, l.spaces["a"].slow(l.now))
		l.pass(slowFor, quick)
		require.False(t, l.spaces["a"].slow(l.now))
	})
	t.Run("rules of a namespace take turns", func(t *testing.T) {
		turns := NewTurns[string](8, 4)
		for _, who := range []string{"x1", "x2", "x3", "y1"} {
			turns.Want("a", types.UID(who[:1]), who)
		}
		for _, want := range []string{"x1", "y1", "x2", "x3"} {
			who, some := turns.Next(at(0))
			require.True(t, some)
			require.Equal(t, want, who)
			turns.Begin("a", types.UID(who[:1]))
		}
	})
	t.Run("a namespace that has gone is forgotten", func(t *testing.T) {
		l := newLine()
		l.Want("a", "r", &caller{})
		_, some := l.Next(at(0))
		require.True(t, some)
		_, some = l.Next(at(0))
		require.False(t, some)
		require.Empty(t, l.spaces)
	})
}

// TestTurnsKeepTheirBounds: with any servers and any order of events the bounds hold, all that may go on is let go on,
// and a namespace that has nothing on its way waits for nothing but the room for first requests.
func TestTurnsKeepTheirBounds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		slots := rapid.IntRange(1, 20).Draw(t, "slots")
		l := newLine()
		l.Turns = NewTurns[*caller](slots, 4)
		waits := map[*caller]bool{}
		takes := func(string) time.Duration {
			return time.Duration(rapid.IntRange(1, 100).Draw(t, "tenths")) * 100 * time.Millisecond
		}
		t.Repeat(map[string]func(*rapid.T){
			"come": func(t *rapid.T) {
				c := &caller{fmt.Sprint(rapid.IntRange(0, 40).Draw(t, "namespace")),
					types.UID(fmt.Sprint(rapid.IntRange(0, 2).Draw(t, "rule")))}
				waits[c] = true
				l.Want(c.namespace, c.rule, c)
			},
			"pass": func(t *rapid.T) {
				l.pass(time.Duration(rapid.IntRange(1, 30).Draw(t, "for"))*100*time.Millisecond, takes)
			},
			"": func(t *rapid.T) {
				l.serve(takes)
				ofRule, running := map[caller]int{}, map[string]int{}
				for _, f := range l.flying {
					ofRule[*f.caller]++
					running[f.namespace]++
				}
				fresh := 0
				for _, n := range running {
					assert.LessOrEqual(t, n, max(slots/2, fewToShare-1, 1))
				}
				for c := range waits {
					if running[c.namespace] == 0 && !l.spaces[c.namespace].slow(l.now) {
						fresh++
					}
				}
				for _, n := range ofRule {
					assert.LessOrEqual(t, n, 4)
				}
				require.LessOrEqual(t, len(l.flying), l.Most())
				require.Equal(t, len(l.flying), l.running)
				if fresh > 0 {
					require.Equal(t, l.Most(), len(l.flying), "one that is new waits although there is room")
				}
			},
		})
	})
}
