// Package alibabacloud is an Alibaba Cloud for tests: a server on 127.0.0.1 that answers the calls that the adapter
// makes, of SLB (2014-05-15), ECS (2014-05-26) and STS (2015-04-01), over TLS. It is written from the public
// documentation of the API and of its signature, not from the SDK, so that a test finds out if the SDK and the
// documentation part.
//
// It refuses what the real one refuses: signatures that do not match, dates more than 15 minutes off, a nonce used
// twice, unknown and expired keys, lists of more than 20 backend servers, a server added twice, descriptions with
// characters that are not allowed. And it fails as the real one does, when told to: throttling, errors of its own, slow
// answers, reads that lag behind writes, lists of which a part was taken, answers without a body.
package alibabacloud

import (
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Cloud is one account in one region. All methods may be called at any time.
type Cloud struct {
	server *httptest.Server
	now    func() time.Time

	mu     sync.Mutex
	keys   map[string]key
	nonces map[string]bool
	lent   int
	// serial numbers requests.
	serial int

	balancers map[string][]Health
	groups    map[string]*group
	enis      map[string]string

	calls     map[string]int
	refusals  map[string]int
	faults    map[string][]*Fault
	lag       int
	pageSize  int
	takesOnly int
	holding   bool
	held      []func()
}

// key is an access key.
type key struct {
	secret, token string
	expires       time.Time
}

// group is a virtual server group: what it is now, and what readers are told while reads lag.
type group struct {
	servers, shown []Server
	stale          int
}

// Server is a backend server of a virtual server group.
type Server struct {
	ServerID, ServerIP string
	Port, Weight       int
	Type, Description  string
}

// Health is one line of DescribeHealthStatus.
type Health struct {
	ListenerPort int
	ServerIP     string
	// Status is normal, abnormal or unavailable.
	Status string
}

// Fault is how calls of one action fail.
type Fault struct {
	// Times is how many calls fail. Negative means all, until Mend.
	Times int
	// Status, Code and Message are the answer. Status 0 means an answer that is as usual, after Hold.
	Status        int
	Code, Message string
	// Body replaces the answer's body, if not empty.
	Body string
	// ServerIP restricts it to calls that name this address.
	ServerIP string
	// Hold keeps the call waiting until the channel is closed or the caller goes away.
	Hold <-chan struct{}
}

// New starts a cloud with one access key. A nil now means the real clock.
func New(keyID, secret string, now func() time.Time) *Cloud {
	if now == nil {
		now = time.Now
	}
	c := &Cloud{
		now: now, keys: map[string]key{keyID: {secret: secret}}, nonces: map[string]bool{}, balancers: map[string][]Health{},
		groups: map[string]*group{},
		enis:   map[string]string{}, calls: map[string]int{}, refusals: map[string]int{}, faults: map[string][]*Fault{},
		pageSize: 100,
	}
	c.server = httptest.NewTLSServer(c)
	return c
}

// Close ends the server.
func (c *Cloud) Close() { c.server.Close() }

// Host is what to give as the endpoint of each API.
func (c *Cloud) Host() string { return strings.TrimPrefix(c.server.URL, "https://") }

// Client trusts the server's certificate, and nothing else.
func (c *Cloud) Client() *http.Client { return c.server.Client() }

// CertificatePEM is the server's certificate, which signed itself. It is the same for each Cloud.
func (c *Cloud) CertificatePEM() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.certificate().Raw})
}

func (c *Cloud) certificate() *x509.Certificate { return c.server.Certificate() }

// SetKey adds an access key; an empty secret takes it away.
func (c *Cloud) SetKey(id, secret string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if secret == "" {
		delete(c.keys, id)
		return
	}
	c.keys[id] = key{secret: secret}
}

// ExpireLentKeys ends all keys that STS has lent.
func (c *Cloud) ExpireLentKeys() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for id, k := range c.keys {
		if k.token != "" {
			k.expires = c.now().Add(-time.Second)
			c.keys[id] = k
		}
	}
}

// SetBalancer makes a load balancer with these lines of health, or replaces them.
func (c *Cloud) SetBalancer(id string, lines ...Health) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.balancers[id] = slices.Clone(lines)
}

// Balancer are the lines of a load balancer.
func (c *Cloud) Balancer(id string) []Health {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.balancers[id])
}

// AddGroup makes a virtual server group with these backend servers.
func (c *Cloud) AddGroup(id string, servers ...Server) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.groups[id] = &group{servers: slices.Clone(servers), shown: slices.Clone(servers)}
}

// Servers are the backend servers of a group as they are, whatever readers are told.
func (c *Cloud) Servers(group string) []Server {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.groups[group].servers)
}

// ChangeServers changes the backend servers of a group, as another system does.
func (c *Cloud) ChangeServers(id string, change func([]Server) []Server) {
	c.mu.Lock()
	defer c.mu.Unlock()
	g := c.groups[id]
	g.servers = change(g.servers)
	g.shown = slices.Clone(g.servers)
}

// AddInterface gives a network interface an address.
func (c *Cloud) AddInterface(id, address string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.enis[address] = id
}

// Lag makes the next n reads after each change answer with the state before it.
func (c *Cloud) Lag(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lag = n
}

// HoldChanges accepts changes of groups without carrying them out, until it is called with false, which does.
func (c *Cloud) HoldChanges(holding bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.holding = holding
	if !holding {
		for _, carryOut := range c.held {
			carryOut()
		}
		c.held = nil
	}
}

// TakeOnly makes each addition take the first n servers and report success; 0 takes all.
func (c *Cloud) TakeOnly(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.takesOnly = n
}

// SetPageSize bounds how many network interfaces one answer has.
func (c *Cloud) SetPageSize(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pageSize = n
}

// Fail makes calls of the action fail; "*" is for all actions.
func (c *Cloud) Fail(action string, f Fault) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.faults[action] = append(c.faults[action], &f)
}

// Mend ends all faults.
func (c *Cloud) Mend() {
	c.mu.Lock()
	defer c.mu.Unlock()
	clear(c.faults)
}

// Calls is how many requests of the action were received; "" is for all.
func (c *Cloud) Calls(action string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return count(c.calls, action)
}

// Refusals is how many requests were refused with the code; "" is for all.
func (c *Cloud) Refusals(code string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return count(c.refusals, code)
}

func count(all map[string]int, which string) int {
	if which != "" {
		return all[which]
	}
	sum := 0
	for _, n := range all {
		sum += n
	}
	return sum
}

// Throttled is the fault of an account that calls too often.
func Throttled(times int) Fault {
	return Fault{Times: times, Status: http.StatusBadRequest, Code: "Throttling.User",
		Message: "Request was denied due to user flow control."}
}

// refusal is an error in the provider's form.
type refusal struct {
	status        int
	code, message string
}

func refuse(status int, code, format string, args ...any) *refusal {
	return &refusal{status, code, fmt.Sprintf(format, args...)}
}

// ServeHTTP answers a call.
func (c *Cloud) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	in, no := read(r)
	c.mu.Lock()
	c.serial++
	id := fmt.Sprintf("%08X-0000-4000-8000-%012X", c.serial, c.serial)
	c.calls[in.action]++
	if no == nil && in.action != "AssumeRoleWithOIDC" {
		no = c.checkSignature(r, in)
	}
	var fault *Fault
	if no == nil {
		fault = c.fault(in)
	}
	c.mu.Unlock()
	if fault != nil {
		if fault.Hold != nil {
			select {
			case <-fault.Hold:
			case <-r.Context().Done():
				panic(http.ErrAbortHandler) // returning would be an answer, and an empty one
			}
		}
		if fault.Body != "" {
			w.Header().Set("Content-Type", "application/json;charset=utf-8")
			w.WriteHeader(max(fault.Status, http.StatusOK))
			_, _ = w.Write([]byte(fault.Body))
			return
		}
		if fault.Status != 0 {
			no = refuse(fault.Status, fault.Code, "%s", fault.Message)
		}
	}
	var answer map[string]any
	if no == nil {
		c.mu.Lock()
		answer, no = c.answer(in)
		c.mu.Unlock()
	}
	status := http.StatusOK
	if no != nil {
		c.mu.Lock()
		c.refusals[no.code]++
		c.mu.Unlock()
		status = no.status
		answer = map[string]any{"Code": no.code, "Message": no.message, "HostId": r.Host,
			"Recommend": "https://api.alibabacloud.com/troubleshoot?q=" + no.code}
	}
	answer["RequestId"] = id
	w.Header().Set("Content-Type", "application/json;charset=utf-8")
	w.Header().Set("x-acs-request-id", id)
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(answer)
}

// fault is what happens to this call instead of the usual.
func (c *Cloud) fault(in input) *Fault {
	for _, action := range []string{in.action, "*"} {
		for _, f := range c.faults[action] {
			if f.Times == 0 || f.ServerIP != "" && !strings.Contains(in.values.Get("BackendServers"), `"`+f.ServerIP+`"`) {
				continue
			}
			f.Times = max(f.Times-1, min(f.Times, -1))
			return f
		}
	}
	return nil
}

// answer does what the action says.
func (c *Cloud) answer(in input) (map[string]any, *refusal) {
	switch in.action {
	case "DescribeHealthStatus":
		return c.describeHealth(in)
	case "DescribeVServerGroupAttribute":
		return c.describeGroup(in)
	case "AddVServerGroupBackendServers", "SetVServerGroupAttribute", "RemoveVServerGroupBackendServers":
		return c.changeGroup(in)
	case "DescribeNetworkInterfaces":
		return c.describeInterfaces(in)
	case "AssumeRoleWithOIDC":
		return c.assumeRole(in)
	}
	return nil, refuse(http.StatusNotFound, "InvalidAction.NotFound",
		"Specified api is not found, please check your url and method.")
}

func (c *Cloud) describeHealth(in input) (map[string]any, *refusal) {
	lines, found := c.balancers[in.values.Get("LoadBalancerId")]
	if !found {
		return nil, refuse(http.StatusNotFound, "InvalidLoadBalancerId.NotFound",
			"The specified LoadBalancerId does not exist.")
	}
	list := []map[string]any{}
	for _, l := range lines {
		list = append(list, map[string]any{
			"ListenerPort": l.ListenerPort, "Port": 8080, "Protocol": "tcp",
			"ServerId": "eni-" + strings.ReplaceAll(l.ServerIP, ".", "-"), "ServerIp": l.ServerIP,
			"ServerHealthStatus": l.Status,
		})
	}
	return map[string]any{"BackendServers": map[string]any{"BackendServer": list}}, nil
}

func (c *Cloud) group(in input) (*group, *refusal) {
	if in.values.Get("RegionId") == "" {
		return nil, refuse(http.StatusBadRequest, "MissingParameter",
			"The input parameter RegionId that is mandatory for processing this request is not supplied.")
	}
	g := c.groups[in.values.Get("VServerGroupId")]
	if g == nil {
		return nil, refuse(http.StatusBadRequest, "InvalidParameter", "The specified VServerGroupId does not exist.")
	}
	return g, nil
}

func (c *Cloud) describeGroup(in input) (map[string]any, *refusal) {
	g, no := c.group(in)
	if no != nil {
		return nil, no
	}
	if g.stale > 0 {
		g.stale--
	} else {
		g.shown = slices.Clone(g.servers)
	}
	return map[string]any{"VServerGroupId": in.values.Get("VServerGroupId"), "VServerGroupName": "test",
		"LoadBalancerId": "lb-test", "BackendServers": listOf(g.shown)}, nil
}

func listOf(servers []Server) map[string]any {
	list := []map[string]any{}
	for _, s := range servers {
		list = append(list, map[string]any{"ServerId": s.ServerID, "ServerIp": s.ServerIP, "Port": s.Port, "Weight": s.Weight,
			"Type": s.Type, "Description": s.Description})
	}
	return map[string]any{"BackendServer": list}
}

const mostServers = 20

var description = regexp.MustCompile(`^[A-Za-z0-9./_-]{1,80}$`)

// parseServers reads the list of a change, in which numbers may be texts.
func parseServers(raw string) ([]Server, *refusal) {
	var list []struct {
		ServerID, ServerIP, Type, Description string
		Port, Weight                          json.RawMessage
	}
	if err := json.Unmarshal([]byte(raw), &list); err != nil || len(list) == 0 {
		return nil, refuse(http.StatusBadRequest, "InvalidParameter", "The specified BackendServers is invalid.")
	}
	if len(list) > mostServers {
		return nil, refuse(http.StatusBadRequest, "BackendServerQuotaExceeded",
			"The number of backend servers in one call exceeds %d.", mostServers)
	}
	servers := make([]Server, 0, len(list))
	for _, l := range list {
		port, portErr := strconv.Atoi(strings.Trim(string(l.Port), `"`))
		weight, weightErr := strconv.Atoi(strings.Trim(string(l.Weight), `"`))
		switch {
		case l.ServerID == "" || l.Type == "eni" && l.ServerIP == "":
			return nil, refuse(http.StatusBadRequest, "InvalidBackendServers.MissingKeyword",
				"The specified BackendServers lacks ServerId or ServerIp.")
		case portErr != nil || port < 1 || port > 65535 || weightErr != nil || weight < 0 || weight > 100:
			return nil, refuse(http.StatusBadRequest, "InvalidParameter", "The specified Port or Weight is invalid.")
		case l.Description != "" && !description.MatchString(l.Description):
			return nil, refuse(http.StatusBadRequest, "InvalidParameter", "The specified Description is invalid.")
		}
		servers = append(servers, Server{ServerID: l.ServerID, ServerIP: l.ServerIP, Port: port, Weight: weight, Type: l.Type,
			Description: l.Description})
	}
	return servers, nil
}

func (c *Cloud) changeGroup(in input) (map[string]any, *refusal) {
	g, no := c.group(in)
	if no != nil {
		return nil, no
	}
	servers, no := parseServers(in.values.Get("BackendServers"))
	if no != nil {
		return nil, no
	}
	if c.holding {
		c.held = append(c.held, func() {
			if changed, no := c.changed(g, in.action, servers); no == nil {
				g.servers = changed
			}
		})
		return map[string]any{"VServerGroupId": in.values.Get("VServerGroupId"), "BackendServers": listOf(g.servers)}, nil
	}
	changed, no := c.changed(g, in.action, servers)
	if no != nil {
		return nil, no
	}
	if g.stale == 0 {
		g.shown = slices.Clone(g.servers)
	}
	g.servers, g.stale = changed, c.lag
	return map[string]any{"VServerGroupId": in.values.Get("VServerGroupId"), "BackendServers": listOf(changed)}, nil
}

// changed is what a change makes of a group's servers. It is all of the change or nothing.
func (c *Cloud) changed(g *group, action string, servers []Server) ([]Server, *refusal) {
	changed := slices.Clone(g.servers)
	for i, s := range servers {
		at := slices.IndexFunc(changed, func(other Server) bool {
			return other.ServerID == s.ServerID && other.ServerIP == s.ServerIP && other.Port == s.Port
		})
		switch {
		case action == "AddVServerGroupBackendServers" && c.enis[s.ServerIP] != s.ServerID:
			return nil, refuse(http.StatusBadRequest, "InvalidBackendServers",
				"The specified network interface %s does not have address %s.", s.ServerID, s.ServerIP)
		case action == "AddVServerGroupBackendServers" && at >= 0:
			return nil, refuse(http.StatusBadRequest, "InvalidBackendServers.Duplicated",
				"The specified backend server is in the group already.")
		case action == "AddVServerGroupBackendServers":
			if c.takesOnly == 0 || i < c.takesOnly {
				changed = append(changed, s)
			}
		case at < 0:
			return nil, refuse(http.StatusBadRequest, "ServerNotInVServerGroup",
				"The specified backend server is not in the group.")
		case action == "SetVServerGroupAttribute":
			changed[at] = s
		default:
			changed = slices.Delete(changed, at, at+1)
		}
	}
	return changed, nil
}

func (c *Cloud) describeInterfaces(in input) (map[string]any, *refusal) {
	if in.values.Get("VpcId") == "" || in.values.Get("RegionId") == "" {
		return nil, refuse(http.StatusBadRequest, "MissingParameter",
			"The input parameter VpcId or RegionId that is mandatory for processing this request is not supplied.")
	}
	wanted := map[string]bool{}
	for name := range in.values {
		if strings.HasPrefix(name, "PrivateIpAddress.") || strings.HasPrefix(name, "Ipv6Address.") {
			wanted[in.values.Get(name)] = true
		}
	}
	if len(wanted) == 0 || len(wanted) > 100 {
		return nil, refuse(http.StatusBadRequest, "InvalidParameter", "The number of addresses is %d.", len(wanted))
	}
	byID := map[string][]string{}
	for address := range wanted {
		if id, found := c.enis[address]; found {
			byID[id] = append(byID[id], address)
		}
	}
	ids := slices.Sorted(maps.Keys(byID))
	from, _ := strconv.Atoi(in.values.Get("NextToken"))
	to := min(from+c.pageSize, len(ids))
	sets := []map[string]any{}
	for _, id := range ids[min(from, to):to] {
		v4, v6 := []map[string]any{}, []map[string]any{}
		for _, address := range byID[id] {
			if strings.Contains(address, ":") {
				v6 = append(v6, map[string]any{"Ipv6Address": address})
			} else {
				v4 = append(v4, map[string]any{"PrivateIpAddress": address, "Primary": false})
			}
		}
		sets = append(sets, map[string]any{"NetworkInterfaceId": id, "PrivateIpSets": map[string]any{"PrivateIpSet": v4},
			"Ipv6Sets": map[string]any{"Ipv6Set": v6}})
	}
	next := ""
	if to < len(ids) {
		next = strconv.Itoa(to)
	}
	return map[string]any{"NetworkInterfaceSets": map[string]any{"NetworkInterfaceSet": sets}, "NextToken": next}, nil
}

// Token is the only ServiceAccount token that STS believes, and Role and Provider the only names that it knows.
const (
	Token    = "test.service-account.token"
	Role     = "acs:ram::1234567890123456:role/kuperator"
	Provider = "acs:ram::1234567890123456:oidc-provider/ack-rrsa-test"
)

func (c *Cloud) assumeRole(in input) (map[string]any, *refusal) {
	switch {
	case in.values.Get("RoleArn") != Role:
		return nil, refuse(http.StatusNotFound, "EntityNotExist.Role", "The role does not exist.")
	case in.values.Get("OIDCProviderArn") != Provider:
		return nil, refuse(http.StatusNotFound, "EntityNotExist.OIDCProvider", "The OIDC provider does not exist.")
	case strings.TrimSpace(in.values.Get("OIDCToken")) != Token:
		return nil, refuse(http.StatusBadRequest, "AuthenticationFail.OIDCToken.Invalid", "This JWT is invalid.")
	}
	c.lent++
	id, expires := fmt.Sprintf("STS.test%d", c.lent), c.now().Add(time.Hour).UTC()
	c.keys[id] = key{secret: "lent-secret", token: fmt.Sprintf("lent-token-%d", c.lent), expires: expires}
	return map[string]any{"Credentials": map[string]any{
		"AccessKeyId": id, "AccessKeySecret": "lent-secret", "SecurityToken": c.keys[id].token,
		"Expiration": expires.Format("2006-01-02T15:04:05Z"),
	}}, nil
}
