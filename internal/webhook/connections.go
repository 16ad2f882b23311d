package webhook

import (
	"cmp"
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"sync"
)

// connections bounds how many are open. A new one beyond that takes the place of one that has not shown the token
// yet: one that is idle, or else the oldest of the address that has most of these. So a flood from some addresses
// ends its own connections, and API servers, which come from others and show the token at once, keep theirs. If all
// have shown it, the one goes that has been idle for longest: an API server keeps 25 for each webhook.
type connections struct {
	most int

	mu   sync.Mutex
	open map[*connection]struct{}
	made uint64
}

// connection is one of them.
type connection struct {
	net.Conn
	all  *connections
	from string
	// The rest is guarded by all.mu.
	number   uint64
	believed bool
	idle     uint64 // rises with time; 0 while the connection is new or has a request
}

// add takes a new connection in, and returns nil if there is no place for it.
func (c *connections) add(conn net.Conn) net.Conn {
	from, _, _ := net.SplitHostPort(conn.RemoteAddr().String())
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetReadBuffer(receiveBuffer) // else the kernel's own bound holds
	}
	added := &connection{Conn: conn, all: c, from: from}
	c.mu.Lock()
	var evicted *connection
	full := len(c.open) >= c.most
	if full {
		evicted = c.evictable()
	}
	if full && evicted == nil {
		c.mu.Unlock()
		_ = conn.Close()
		return nil
	}
	if c.open == nil {
		c.open = map[*connection]struct{}{}
	}
	delete(c.open, evicted)
	c.made++
	added.number = c.made
	c.open[added] = struct{}{}
	c.mu.Unlock()
	if evicted != nil {
		_ = evicted.Conn.Close()
	}
	return added
}

// evictable is the connection that goes first, nil if all are believed and have requests. It is called with mu held.
func (c *connections) evictable() *connection {
	by := map[string]int{} // connections that are not believed
	for one := range c.open {
		if !one.believed {
			by[one.from]++
		}
	}
	var first *connection
	for one := range c.open {
		if (!one.believed || one.idle > 0) && (first == nil || before(one, first, by) < 0) {
			first = one
		}
	}
	return first
}

// before orders connections by which goes first.
func before(a, b *connection, by map[string]int) int {
	return cmp.Or(cmp.Compare(a.rank(), b.rank()), cmp.Compare(a.idle, b.idle), cmp.Compare(by[b.from], by[a.from]),
		cmp.Compare(a.number, b.number))
}

// rank is lower for a connection that is not believed, and among equals for one that is idle.
func (c *connection) rank() (rank int) {
	if c.believed {
		rank = 2
	}
	if c.idle == 0 {
		rank++
	}
	return rank
}

// tell is told what becomes of a connection.
func (c *connections) tell(conn net.Conn, state http.ConnState) {
	one := below(conn)
	if one == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	one.idle = 0
	if state == http.StateIdle {
		c.made++
		one.idle = c.made
	}
}

// believe records that the connection has shown the token.
func (c *connections) believe(one *connection) {
	if one == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	one.believed = true
}

// Close makes room.
func (c *connection) Close() error {
	c.all.mu.Lock()
	delete(c.all.open, c)
	c.all.mu.Unlock()
	return c.Conn.Close()
}

// listenerWithin accepts connections as far as there is place.
type listenerWithin struct {
	net.Listener
	connections *connections
}

// Accept implements net.Listener.
func (l *listenerWithin) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if added := l.connections.add(conn); added != nil {
			return added, nil
		}
	}
}

type connectionKey struct{}

// rememberConnection puts the connection below TLS into the context of its requests.
func rememberConnection(ctx context.Context, conn net.Conn) context.Context {
	return context.WithValue(ctx, connectionKey{}, below(conn))
}

// below is the connection below TLS, nil if it is none of these.
func below(conn net.Conn) *connection {
	if over, ok := conn.(*tls.Conn); ok {
		conn = over.NetConn()
	}
	one, _ := conn.(*connection)
	return one
}

func connectionOf(ctx context.Context) *connection {
	one, _ := ctx.Value(connectionKey{}).(*connection)
	return one
}
