// Package webhook is the adapter for systems that have none of their own: it asks a server, by a documented HTTPS call,
// to put members into traffic, to take them out, and to say who is in. docs/adapters/webhook.md has the wire format.
//
// The platform team configures the servers (endpoints); a Service chooses one of them by name, never by address, and
// may give parameters. Every call goes through internal/callout: bounded in time and size, no redirects, no proxies,
// and only to addresses that may be called.
//
// A member is a Pod at an endpoint. It is in traffic or it is not: what is to serve no more is not kept at the server.
// A Service that names another endpoint has its Pods taken out at the earlier one, which the framework remembers for
// it.
package webhook

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/log"

	api "kusionstack.io/kuperator/api/resourceconsist"
	"kusionstack.io/kuperator/internal/callout"
)

// Name is the adapter's name.
const Name = "webhook"

const (
	// EndpointAnnotation, on a Service, names the endpoint to call. A Service without it takes no part.
	// Writer: the user. Format: the name of a configured endpoint. Lifetime: that of the Service.
	EndpointAnnotation = "webhook.resource-consist.kusionstack.io/endpoint"

	// ParametersAnnotation, on a Service, is what its calls tell the endpoint besides.
	// Writer: the user. Format: a JSON object of strings, at most 32 of them and 4 KiB. Lifetime: that of the Service.
	ParametersAnnotation = "webhook.resource-consist.kusionstack.io/parameters"
)

const (
	maxAnswer         = 1 << 20
	maxParameters     = 32
	maxParametersSize = 4 << 10
	// maxIDs is how many members one read asks about.
	maxIDs = 500
	// maxPages bounds a read of everything.
	maxPages = 200
	// mostPause bounds what a server asks for with Retry-After.
	mostPause = 5 * time.Minute
	// mostPaused bounds the memory of endpoints that did.
	mostPaused = 10_000
)

// State is what is set of a member.
type State struct {
	// Addresses are the Pod's in order, separated by commas.
	Addresses string
	// Revision stands for the Service's parameters. A server repeats it; another one means that the member is to be
	// applied again.
	Revision string
	// Serve is true for all members that are wanted. A member that a server still holds with false is on its way out.
	Serve bool
}

// Backend calls endpoints. Make one with New.
type Backend struct {
	endpoints *endpoints
	client    *callout.Client
	clock     clock.PassiveClock

	// paused holds the errors by which endpoints asked to be left alone, by URL.
	paused *cache.LRUExpireCache
}

var (
	_ api.Mover[*corev1.Service, State] = &Backend{}
	_ api.Placer[*corev1.Service]       = &Backend{}
)

// New makes a backend. A nil clock means the real one. The error is about the flags.
func New(o Options, clk clock.PassiveClock) (*Backend, error) {
	if clk == nil {
		clk = clock.RealClock{}
	}
	known, err := openEndpoints(o.Endpoints)
	if err != nil {
		return nil, fmt.Errorf("--webhook-endpoints: %w", err)
	}
	targets, err := o.targets()
	if err != nil {
		return nil, fmt.Errorf("--webhook-allow: %w", err)
	}
	return &Backend{
		endpoints: known, clock: clk, paused: cache.NewLRUExpireCacheWithClock(mostPaused, clk),
		client: callout.NewClient(callout.Options{
			Targets: targets, Timeout: mostTimeout, MaxAnswer: maxAnswer, UserAgent: "resourceconsist-controller", HTTP2: true,
		}),
	}, nil
}

// Calls are the options for setup.BackendOf.
func (o *Options) Calls() api.CallOptions {
	return api.CallOptions{QPS: o.QPS, Burst: int(2*o.QPS) + 1, Concurrency: 16, Timeout: time.Minute}
}

// Name is part of api.Adapter.
func (b *Backend) Name() string { return Name }

// Selector is part of api.Adapter: managed Services that name an endpoint employ the Pods that they select.
func (b *Backend) Selector(service *corev1.Service) labels.Selector {
	if service.Annotations[EndpointAnnotation] == "" {
		return nil
	}
	return api.ServiceSelector(service)
}

// Members is part of api.Adapter. The error is about the Service's parameters.
func (b *Backend) Members(service *corev1.Service, pod *corev1.Pod, serve bool) (map[string]State, error) {
	if _, err := parametersOf(service); err != nil {
		return nil, err
	}
	endpoint := b.Place(service)
	if !serve || endpoint == "" || len(pod.Status.PodIPs) == 0 {
		return nil, nil
	}
	addresses := make([]string, 0, len(pod.Status.PodIPs))
	for _, ip := range pod.Status.PodIPs {
		addresses = append(addresses, ip.IP)
	}
	return map[string]State{memberAt(endpoint, memberID(pod.Name, pod.UID)): {
		Addresses: joined(addresses), Revision: revisionOf(service), Serve: true,
	}}, nil
}

// revisionOf stands for what a Service says to its endpoint.
func revisionOf(service *corev1.Service) string {
	raw := service.Annotations[ParametersAnnotation]
	if raw == "" {
		return ""
	}
	sum := sha256.Sum256([]byte(raw))
	return hex.EncodeToString(sum[:8])
}

// parametersOf reads a Service's parameters.
func parametersOf(service *corev1.Service) (map[string]string, error) {
	raw := service.Annotations[ParametersAnnotation]
	if raw == "" {
		return nil, nil
	}
	if len(raw) > maxParametersSize {
		return nil, fmt.Errorf("annotation %s has %d bytes: at most %d are sent", ParametersAnnotation,
			len(raw), maxParametersSize)
	}
	var parameters map[string]string
	if err := json.Unmarshal([]byte(raw), &parameters); err != nil {
		return nil, fmt.Errorf(`annotation %s cannot be read: write a JSON object of strings, such as {"pool":"a"}`,
			ParametersAnnotation)
	}
	if len(parameters) > maxParameters {
		return nil, fmt.Errorf("annotation %s has %d parameters: at most %d are sent", ParametersAnnotation,
			len(parameters), maxParameters)
	}
	return parameters, nil
}

// Place is part of api.Placer: the endpoint that the Service names.
func (b *Backend) Place(service *corev1.Service) string {
	return service.Annotations[EndpointAnnotation]
}

// PlaceOf is part of api.Placer.
func (b *Backend) PlaceOf(id string) string {
	endpoint, _, _ := strings.Cut(id, "/")
	return endpoint
}

// memberAt is the ID of a member at an endpoint; to the endpoint it has one without it.
func memberAt(endpoint, id string) string { return endpoint + "/" + id }

// idAt is the ID by which the endpoint knows a member.
func idAt(member string) string {
	_, id, _ := strings.Cut(member, "/")
	return id
}

// Read is part of api.Adapter. A Service that has never named an endpoint has no members.
func (b *Backend) Read(ctx context.Context, service *corev1.Service, ids []string) ([]api.Held[State], error) {
	var held []api.Held[State]
	add := func(endpoint string, found []api.Held[State], err error) error {
		if b.left(service, endpoint, err) {
			return nil
		}
		for i := range found {
			found[i].ID = memberAt(endpoint, found[i].ID)
		}
		held = append(held, found...)
		return err
	}
	if len(ids) == 0 {
		for _, endpoint := range api.PlacesOf(service, Name, b.Place(service)) {
			found, err := b.readAll(ctx, service, endpoint)
			if err := add(endpoint, found, err); err != nil {
				return nil, err
			}
		}
		return held, nil
	}
	at := b.byEndpoint(ids)
	for _, endpoint := range slices.Sorted(maps.Keys(at)) {
		for some := range slices.Chunk(at[endpoint], maxIDs) {
			found, err := b.readSome(ctx, service, endpoint, some)
			if err := add(endpoint, found, err); err != nil {
				return nil, err
			}
		}
	}
	return held, nil
}

// byEndpoint are the members' IDs at each endpoint, in order.
func (b *Backend) byEndpoint(members []string) map[string][]string {
	at := map[string][]string{}
	for _, member := range members {
		endpoint := b.PlaceOf(member)
		at[endpoint] = append(at[endpoint], idAt(member))
	}
	return at
}

// left reports whether the error is about an endpoint that the Service has left and that the platform team does not
// offer it any more. No endpoint can be asked about its members then, and it is taken that they are gone.
func (b *Backend) left(service *corev1.Service, endpoint string, err error) bool {
	return errors.Is(err, errNotOffered) && endpoint != b.Place(service)
}

// readSome asks about members by ID; the server must say something about each of them.
func (b *Backend) readSome(
	ctx context.Context, service *corev1.Service, endpoint string, ids []string,
) ([]api.Held[State], error) {
	q := request{Action: actionRead}
	for _, id := range ids {
		q.Members = append(q.Members, requestMember{ID: id, Pod: podOf(service.Namespace, id)})
	}
	said, err := b.ask(ctx, service, endpoint, q)
	if err != nil {
		return nil, err
	}
	told := map[string]bool{}
	for _, m := range said.Members {
		told[m.ID] = true
	}
	for _, id := range ids {
		if !told[id] {
			return nil, fmt.Errorf("endpoint %s: the answer does not say anything about member %s", endpoint, id)
		}
	}
	members := slices.DeleteFunc(said.Members, func(m answerMember) bool { return !slices.Contains(ids, m.ID) })
	return heldOf(ctx, members), nil
}

func (b *Backend) readAll(ctx context.Context, service *corev1.Service, endpoint string) ([]api.Held[State], error) {
	held := []api.Held[State]{}
	q := request{Action: actionRead}
	for range maxPages {
		said, err := b.ask(ctx, service, endpoint, q)
		if err != nil {
			return nil, err
		}
		held = append(held, heldOf(ctx, said.Members)...)
		if said.Continue == "" {
			return held, nil
		}
		q.Continue = said.Continue
	}
	return nil, fmt.Errorf("endpoint %s: the answer goes on for more than %d pages", endpoint, maxPages)
}

// heldOf leaves out members that are neither to serve nor serving: to the server they may be known, but they are out.
func heldOf(ctx context.Context, members []answerMember) []api.Held[State] {
	held := make([]api.Held[State], 0, len(members))
	for _, m := range members {
		if text := cut(m.Message); text != "" {
			log.FromContext(ctx).V(1).Info("The endpoint says something of a member.", "member", m.ID, "serving", *m.Serving,
				"message", text)
		}
		if m.Serve || *m.Serving {
			held = append(held, api.Held[State]{ID: m.ID, State: m.state(), Serving: *m.Serving})
		}
	}
	return held
}

// Apply is part of api.Mover. Members at an endpoint that fails fail, those at others do not.
func (b *Backend) Apply(ctx context.Context, service *corev1.Service, changes []api.Change[State]) error {
	at := map[string][]api.Change[State]{}
	for _, c := range changes {
		endpoint := b.PlaceOf(c.ID)
		at[endpoint] = append(at[endpoint], c)
	}
	failed := api.MemberErrors{}
	for _, endpoint := range slices.Sorted(maps.Keys(at)) {
		err := b.applyAt(ctx, service, endpoint, at[endpoint])
		var some api.MemberErrors
		switch {
		case err == nil || b.left(service, endpoint, err):
		case errors.As(err, &some):
			maps.Copy(failed, some)
		case len(at) == 1:
			return err
		default:
			for _, c := range at[endpoint] {
				failed[c.ID] = err
			}
		}
	}
	if len(failed) > 0 {
		return failed
	}
	return nil
}

// applyAt makes changes at one endpoint.
func (b *Backend) applyAt(
	ctx context.Context, service *corev1.Service, endpoint string, changes []api.Change[State],
) error {
	q := request{Action: actionApply}
	asked := map[string]bool{}
	for _, c := range changes {
		id := idAt(c.ID)
		m := requestMember{ID: id, Pod: podOf(service.Namespace, id), Serve: new(bool)}
		if !c.Remove {
			*m.Serve = c.State.Serve
			m.Addresses, m.Revision = c.State.addresses(), c.State.Revision
		}
		q.Members = append(q.Members, m)
		asked[id] = true
	}
	said, err := b.ask(ctx, service, endpoint, q)
	if err != nil {
		return err
	}
	failed := api.MemberErrors{}
	for _, e := range said.Errors {
		if !asked[e.ID] {
			return fmt.Errorf("endpoint %s: the answer has an error about member %q, which was not asked about: %w", endpoint,
				cut(e.ID), e.explained())
		}
		failed[memberAt(endpoint, e.ID)] = e.explained()
	}
	if len(failed) > 0 {
		return failed
	}
	return nil
}

// ask makes one request for the Service.
func (b *Backend) ask(ctx context.Context, service *corev1.Service, endpoint string, q request) (*answer, error) {
	parameters, err := parametersOf(service)
	if err != nil {
		return nil, err
	}
	to, err := b.endpoints.of(ctx, service.Namespace, endpoint)
	if err != nil {
		return nil, err
	}
	if err := b.pausedFor(to.URL); err != nil {
		return nil, fmt.Errorf("endpoint %s: %w", to.Name, err)
	}
	q.APIVersion = Version
	q.Employer = employer{Kind: "Service", Namespace: service.Namespace, Name: service.Name, UID: service.UID,
		Parameters: parameters}
	said, err := b.send(ctx, to, q)
	if err != nil {
		return nil, fmt.Errorf("endpoint %s: %w", to.Name, err)
	}
	return said, nil
}

func (b *Backend) send(ctx context.Context, to endpoint, q request) (*answer, error) {
	body, err := json.Marshal(q)
	if err != nil {
		return nil, fmt.Errorf("encoding the request: %w", err)
	}
	call, err := to.call(http.MethodPost, body)
	if err != nil {
		return nil, err
	}
	text, err := b.client.Ask(ctx, call)
	if err != nil {
		b.pauseIfAsked(to.URL, err)
		return nil, err
	}
	said, err := readAnswer(text, q.Action)
	if err != nil {
		return nil, err
	}
	if q.Action == actionRead && len(said.Errors) > 0 { // nothing is known then
		return nil, fmt.Errorf("member %s: %w", cut(said.Errors[0].ID), said.Errors[0].explained())
	}
	return said, nil
}

// pausedFor is the error by which a server asked to be left alone, as long as that is so.
func (b *Backend) pausedFor(url string) error {
	found, _ := b.paused.Get(url)
	why, _ := found.(error)
	return why
}

// pauseIfAsked remembers the Retry-After of a status that says "too much" or "not now".
func (b *Backend) pauseIfAsked(url string, err error) {
	status := (*callout.BadStatus)(nil)
	if !errors.As(err, &status) || status.RetryAfter == "" || status.Code != http.StatusTooManyRequests &&
		status.Code != http.StatusServiceUnavailable {
		return
	}
	now := b.clock.Now()
	var until time.Time
	if seconds, err := strconv.ParseUint(status.RetryAfter, 10, 31); err == nil {
		until = now.Add(time.Duration(seconds) * time.Second)
	} else if until, err = http.ParseTime(status.RetryAfter); err != nil {
		return
	}
	b.paused.Add(url, err, min(until.Sub(now), mostPause))
}
