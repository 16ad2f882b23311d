package webhook

import (
	"context"
	"crypto/subtle"
	"crypto/tls"
	"errors"
	"fmt"
	stdlog "log"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/log"
	crwebhook "sigs.k8s.io/controller-runtime/pkg/webhook"
)

// What the server takes from the network at once. Together with what answering takes it stays well within the memory
// limit of deploy/webhook-server.
const (
	// mostReview is the size of the largest review, in bytes: an object of 3 MiB, which is the most that an API server
	// takes, as it was and as it is to be, and a MiB around them.
	mostReview = 7<<20 - 1
	// mostAtOnce is how many bytes of reviews are held at once, of removals of Pods and of everything else each: one
	// of the largest, or hundreds of the usual 20 KiB. Objects that a tenant writes cannot take the room of deletions.
	mostAtOnce = 8 << 20
	// roomWait is for how long a review waits for room before it is read. API servers wait 2 s and more for an answer.
	roomWait = time.Second
	// mostConnections is how many are open at once. API servers use one for each review in flight.
	mostConnections = 256
	// mostHeader is the size of the largest header, in bytes, beside the 4 KiB that net/http adds.
	mostHeader = 4 << 10
	// receiveBuffer is how much the kernel holds of what a connection has sent and the server has not read, in bytes.
	receiveBuffer = 64 << 10
)

// How long the parts of a request may take. An API server waits 30 s at most for the answer.
const (
	headerTimeout = 10 * time.Second // and that of the handshake
	readTimeout   = 15 * time.Second
	writeTimeout  = 30 * time.Second
	awayTimeout   = time.Second // for the rest of a request that was turned away
	// API servers keep theirs for 90 s: they end them, so no review is sent into one that ends
	idleTimeout = 2 * time.Minute
	stopTimeout = time.Minute
)

// Why a request is turned away before its body is read, as the metric has it.
const (
	awayPath   = "path"
	awayMethod = "method"
	awayToken  = "token"
	awayType   = "type"
	awaySize   = "size"
	awayBusy   = "busy"
)

// server serves the webhooks over HTTP/1.1, as API servers speak it with webhooks. It has controller-runtime count
// what the webhooks answer, and bounds by itself what reaches them: each request in bytes and time, all of them in
// bytes and connections. A client that does not know the token takes one connection, of which a header is read.
type server struct {
	crwebhook.Server // keeps the handlers by path
	address          string
	certificate      certificate
	rooms            map[string]*semaphore.Weighted // by path
	connections      connections
	listening        atomic.Bool
}

func newServer(address string, shown certificate) *server {
	s := &server{
		Server: crwebhook.NewServer(crwebhook.Options{}), address: address, certificate: shown,
		rooms: map[string]*semaphore.Weighted{}, connections: connections{most: mostConnections},
	}
	removals, others := semaphore.NewWeighted(mostAtOnce), semaphore.NewWeighted(mostAtOnce)
	for _, path := range guarded {
		s.rooms[path] = others
	}
	s.rooms[pathDeletePods], s.rooms[pathEvictPods] = removals, removals
	return s
}

// Start serves until ctx ends.
func (s *server) Start(ctx context.Context) error {
	config := &tls.Config{NextProtos: []string{"http/1.1"}} //nolint:gosec // the certificate's keeper sets the version
	s.certificate.TLS(config)
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", s.address)
	if err != nil {
		return fmt.Errorf("listening for webhooks: %w", err)
	}
	logger := log.FromContext(ctx).WithName("webhooks")
	logger.Info("serving webhooks", "address", s.address)
	serving := &http.Server{
		Handler:           s,
		BaseContext:       func(net.Listener) context.Context { return ctx },
		ConnContext:       rememberConnection,
		ConnState:         s.connections.tell,
		MaxHeaderBytes:    mostHeader,
		ReadHeaderTimeout: headerTimeout,
		ReadTimeout:       readTimeout,
		WriteTimeout:      writeTimeout,
		IdleTimeout:       idleTimeout,
		// Any client can make it log, as often as it connects.
		ErrorLog: stdlog.New(lineWriter(func(line string) { logger.V(1).Info(line) }), "", 0),
	}
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		<-ctx.Done()
		within, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
		defer cancel()
		if err := serving.Shutdown(within); err != nil {
			logger.Error(err, "some webhook calls were not answered")
		}
	}()
	s.listening.Store(true)
	defer s.listening.Store(false)
	if err := serving.Serve(tls.NewListener(&listenerWithin{listener, &s.connections}, config)); !errors.Is(err,
		http.ErrServerClosed) {
		return fmt.Errorf("serving webhooks: %w", err)
	}
	<-stopped
	return nil
}

type lineWriter func(string)

func (w lineWriter) Write(line []byte) (int, error) {
	w(strings.TrimSpace(string(line)))
	return len(line), nil
}

// StartedChecker is a readiness check. It does not connect, so no flood of connections takes the replica out of its
// Service.
func (s *server) StartedChecker() healthz.Checker {
	return func(*http.Request) error {
		if !s.listening.Load() {
			return errors.New("the webhook server does not listen")
		}
		return nil
	}
}

// ServeHTTP turns away what no API server sends, or what there is no room for, before its body is read.
func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	path, token, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	path = "/" + path
	room := s.rooms[path]
	expected, needed := s.certificate.Token()
	switch {
	case room == nil:
		turnAway(w, awayPath, http.StatusNotFound, "there is no such webhook")
		return
	case r.Method != http.MethodPost:
		turnAway(w, awayMethod, http.StatusMethodNotAllowed, "webhooks are called by POST")
		return
	case needed && (expected == "" || subtle.ConstantTimeCompare([]byte(token), []byte(expected)) != 1):
		turnAway(w, awayToken, http.StatusForbidden, "only who may read the webhook configurations may call this")
		return
	case r.Header.Get("Content-Type") != "application/json":
		turnAway(w, awayType, http.StatusUnsupportedMediaType, "a review is application/json")
		return
	case r.ContentLength > mostReview:
		turnAway(w, awaySize, http.StatusRequestEntityTooLarge, fmt.Sprintf("a review has at most %d bytes", mostReview))
		return
	}
	if needed {
		s.connections.believe(connectionOf(r.Context()))
	}
	size := r.ContentLength
	if size < 0 {
		size = mostReview // not said beforehand
	}
	wait, cancel := context.WithTimeout(r.Context(), roomWait)
	defer cancel()
	if room.Acquire(wait, size) != nil {
		w.Header().Set("Retry-After", "1")
		turnAway(w, awayBusy, http.StatusServiceUnavailable, "too much is asked at once")
		return
	}
	defer room.Release(size)
	r.Body = http.MaxBytesReader(w, r.Body, mostReview)
	r.URL.Path = path
	s.WebhookMux().ServeHTTP(w, r)
}

// turnAway answers and closes the connection. The rest of a small request is thrown away first: a connection that is
// closed with bytes unread is reset, and the client would lose the answer.
func turnAway(w http.ResponseWriter, reason string, code int, message string) {
	turnedAway.WithLabelValues(reason).Inc()
	w.Header().Set("Connection", "close")
	// net/http throws away 256 KiB at most, and waits as long as this allows.
	_ = http.NewResponseController(w).SetReadDeadline(clock.RealClock{}.Now().Add(awayTimeout))
	http.Error(w, message, code)
}
