package faultproxy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"maps"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// Options describe the client of a Proxy.
type Options struct {
	// Name is the client's name in its kubeconfig. Empty means "client".
	Name string
	// Kill ends the client's process at once (SIGKILL). It is called for each KillBefore and KillAfterCommit that fires,
	// after the client was cut off, from its own goroutine; Mend waits for it. Nil only cuts off.
	Kill func()
}

// Proxy is a running proxy. Make one with Start; it is safe for concurrent use.
type Proxy struct {
	name     string
	kill     func()
	upstream *url.URL
	infos    request.RequestInfoFactory
	reverse  *httputil.ReverseProxy
	server   *http.Server
	address  string

	mu    sync.Mutex
	life  *life
	conns map[net.Conn]*life
	armed []*Armed
	// record holds the writes since Mark.
	record []*Write
	// watching counts the client's open watches by resource.
	watching map[string]int
	// seen is the newest resourceVersion that the client was shown.
	seen string
	// changed is closed, and replaced, whenever what holds back watches may have changed.
	changed chan struct{}
}

// life is the time from one Mend to the next Cut. What began in one life is never forwarded in the next, so that a
// process that was killed cannot write after its successor has started.
type life struct {
	number  int
	cut     bool
	pending sync.WaitGroup // writes that are on their way to the API server, and calls of Kill
}

// Start starts a proxy that passes everything on to the API server of upstream, with the identity in upstream. Close
// ends it.
func Start(upstream *rest.Config, options Options) (*Proxy, error) {
	config := rest.CopyConfig(upstream)
	config.ContentConfig = rest.ContentConfig{}
	config.QPS, config.RateLimiter = -1, nil
	config.UserAgent = "" // the client's own
	transport, err := rest.TransportFor(config)
	if err != nil {
		return nil, fmt.Errorf("connecting to %s: %w", upstream.Host, err)
	}
	host, _, err := rest.DefaultServerUrlFor(config)
	if err != nil {
		return nil, fmt.Errorf("the address of the API server: %w", err)
	}
	listener, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p := &Proxy{
		name: options.Name, kill: options.Kill, upstream: host, address: "http://" + listener.Addr().String(),
		infos: request.RequestInfoFactory{APIPrefixes: sets.NewString("api", "apis"),
			GrouplessAPIPrefixes: sets.NewString("api")},
		life: &life{}, conns: map[net.Conn]*life{}, changed: make(chan struct{}), watching: map[string]int{},
	}
	if p.name == "" {
		p.name = "client"
	}
	silent := log.New(io.Discard, "", 0) // that connections break is what the proxy is for
	p.reverse = &httputil.ReverseProxy{
		Rewrite: p.rewrite, Transport: &exchange{p, transport}, FlushInterval: -1, ErrorLog: silent, ErrorHandler: failed,
	}
	p.server = &http.Server{Handler: p, ConnContext: p.accept, ConnState: p.forget, ErrorLog: silent,
		ReadHeaderTimeout: time.Minute}
	go func() { _ = p.server.Serve(listener) }()
	return p, nil
}

// Close ends the proxy and all connections of the client.
func (p *Proxy) Close() error {
	p.Cut()
	return p.server.Close()
}

// Address is where the client reaches the API server, as a URL.
func (p *Proxy) Address() string { return p.address }

// Config is a client configuration that leads through the proxy.
func (p *Proxy) Config() *rest.Config { return &rest.Config{Host: p.address, QPS: -1} }

// Kubeconfig writes a kubeconfig that leads through the proxy. It holds no secret.
func (p *Proxy) Kubeconfig(path string) error {
	config := clientcmdapi.NewConfig()
	config.Clusters[p.name] = &clientcmdapi.Cluster{Server: p.address}
	config.AuthInfos[p.name] = &clientcmdapi.AuthInfo{}
	config.Contexts[p.name] = &clientcmdapi.Context{Cluster: p.name, AuthInfo: p.name}
	config.CurrentContext = p.name
	return clientcmd.WriteToFile(*config, path)
}

// Cut breaks all connections of the client at once and refuses new ones until Mend. A write that the API server is
// already working on may still be committed; its reply is lost. Nothing that arrives later is.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cut(p.life)
}

// cut needs p.mu.
func (p *Proxy) cut(l *life) {
	l.cut = true
	for conn, of := range p.conns {
		if of == l {
			_ = conn.Close()
		}
	}
}

// Mend lets the client through again, after whatever was on its way when it was cut off has come to its end. The
// process that was killed must have ended. Without a Cut before, it does nothing.
func (p *Proxy) Mend() {
	p.mu.Lock()
	last, cut := p.life, p.life.cut
	p.mu.Unlock()
	if !cut {
		return
	}
	last.pending.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.life == last {
		p.life = &life{number: last.number + 1}
	}
}

// IsCut reports whether the client is cut off at present.
func (p *Proxy) IsCut() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.life.cut
}

// Kill cuts off the client and ends its process, as KillBefore does. It does not wait for that; Mend does.
func (p *Proxy) Kill() {
	p.mu.Lock()
	l := p.life
	p.mu.Unlock()
	p.killClient(l)
}

// Watches are the resources that the client watches at present, sorted. A client that has just started watches nothing.
func (p *Proxy) Watches() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Sorted(maps.Keys(p.watching))
}

// killClient cuts off the life and ends the process, unless that has been done.
func (p *Proxy) killClient(l *life) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if l.cut {
		return
	}
	p.cut(l)
	if p.kill != nil {
		l.pending.Go(p.kill)
	}
}

type lifeKey struct{}

// accept notes in which life a connection was made.
func (p *Proxy) accept(ctx context.Context, conn net.Conn) context.Context {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.conns[conn] = p.life
	return context.WithValue(ctx, lifeKey{}, p.life)
}

func (p *Proxy) forget(conn net.Conn, state http.ConnState) {
	if state == http.StateClosed || state == http.StateHijacked {
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.conns, conn)
	}
}

// enter takes part in the life of a request's connection: false if that is over. A caller that entered must leave.
func (p *Proxy) enter(ctx context.Context) (*life, bool) {
	l, _ := ctx.Value(lifeKey{}).(*life)
	p.mu.Lock()
	defer p.mu.Unlock()
	if l == nil || l.cut {
		return nil, false
	}
	l.pending.Add(1)
	return l, true
}

// ended reports whether the life is over.
func (p *Proxy) ended(l *life) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return l.cut
}

var errDropped = errors.New("the connection is dropped")

// failed drops the client's connection, as a broken network does. An API server that cannot be reached looks the same.
func failed(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) }

func (p *Proxy) rewrite(r *httputil.ProxyRequest) {
	r.SetURL(p.upstream)
	r.Out.Host = ""
	r.Out.Header.Del("Authorization")
}

// ServeHTTP passes one request on, or does to it what the armed faults ask for.
func (p *Proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	info, err := p.infos.NewRequestInfo(r)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	l, _ := r.Context().Value(lifeKey{}).(*life)
	if l == nil || p.ended(l) {
		panic(http.ErrAbortHandler)
	}
	if info.IsResourceRequest && isWrite(info) {
		p.serveWrite(w, r, info)
		return
	}
	p.reverse.ServeHTTP(w, r.WithContext(request.WithRequestInfo(r.Context(), info)))
}

// Mark forgets the writes so far: Writes tells of later ones.
func (p *Proxy) Mark() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.record = nil
}

// Writes are the client's writes since Mark, the last 10,000 of them, in the order in which they arrived. Events,
// Leases, dry runs and reviews (of tokens and of access) are not among them.
func (p *Proxy) Writes() []Write {
	p.mu.Lock()
	defer p.mu.Unlock()
	last := p.record[max(0, len(p.record)-recorded):]
	writes := make([]Write, 0, len(last))
	for _, w := range last {
		writes = append(writes, *w)
	}
	return writes
}

// Arm makes the fault from now on, until Disarm.
func (p *Proxy) Arm(f Fault) *Armed {
	a := &Armed{proxy: p, fault: f}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.armed = append(p.armed, a)
	p.wake()
	return a
}

func (p *Proxy) disarm(a *Armed) {
	p.mu.Lock()
	defer p.mu.Unlock()
	a.over = true
	p.armed = slices.DeleteFunc(p.armed, func(other *Armed) bool { return other == a })
	p.wake()
}

// wake needs p.mu.
func (p *Proxy) wake() {
	close(p.changed)
	p.changed = make(chan struct{})
}
