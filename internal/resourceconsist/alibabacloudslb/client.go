package alibabacloudslb

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"

	openapi "github.com/alibabacloud-go/darabonba-openapi/v2/client"
	slbsdk "github.com/alibabacloud-go/slb-20140515/v4/client"
	"github.com/alibabacloud-go/tea/dara"
	"k8s.io/client-go/util/flowcontrol"
	ctrl "sigs.k8s.io/controller-runtime"
)

const (
	// maxServersPerCall is how many backend servers the API takes in one call (SLB API 2014-05-15).
	maxServersPerCall = 20
	// maxAddressesPerCall is how many addresses DescribeNetworkInterfaces takes (ECS API 2014-05-26).
	maxAddressesPerCall = 100
	// maxAnswer bounds what is read of one answer, in bytes. That of the largest group is far below.
	maxAnswer = 16 << 20
)

// cloud makes the calls. Every call waits for its turn, is signed with the keys of the moment, ends with its context,
// and is made once: repeating is for the caller, who backs off.
type cloud struct {
	slb   *slbsdk.Client
	ecs   *openapi.Client
	http  *http.Client
	keys  keySource
	turns flowcontrol.RateLimiter
	vpc   string
}

// server is one backend server of a virtual server group. The names of the fields in JSON are those that calls send.
type server struct {
	ServerID    string `json:"ServerId"`
	ServerIP    string `json:"ServerIp,omitempty"`
	Port        int    `json:"Port,string"`
	Weight      int    `json:"Weight,string"`
	Type        string `json:"Type,omitempty"`
	Description string `json:"Description,omitempty"`
}

func newCloud(c Config) (*cloud, error) {
	made := &cloud{http: c.HTTP, keys: c.keys, turns: c.turns, vpc: c.groups.VPCID}
	slbConfig := &openapi.Config{Protocol: dara.String("https"),
		UserAgent: dara.String("kuperator-resourceconsist-controller")}
	if c.Region != "" {
		slbConfig.RegionId = dara.String(c.Region)
	}
	if c.Endpoint != "" {
		slbConfig.Endpoint = dara.String(c.Endpoint)
	}
	var err error
	if made.slb, err = slbsdk.NewClient(slbConfig); err != nil {
		return nil, fmt.Errorf("preparing calls to SLB: %w", err)
	}
	ecsConfig := *slbConfig
	ecsConfig.Endpoint = dara.String(c.ECSEndpoint)
	if c.ECSEndpoint == "" {
		ecsConfig.Endpoint = dara.String("ecs." + c.Region + ".aliyuncs.com")
	}
	if made.ecs, err = openapi.NewClient(&ecsConfig); err != nil {
		return nil, fmt.Errorf("preparing calls to ECS: %w", err)
	}
	// keeps the error's code and data apart
	made.slb.DisableSDKError, made.ecs.DisableSDKError = dara.Bool(true), dara.Bool(true)
	return made, nil
}

// boundClient is the SDK's HTTP client for one call: the SDK's own takes no context.
type boundClient struct {
	ctx  context.Context // lives as long as the call
	http *http.Client
}

// Call is part of the SDK's HttpClient. The transport that the SDK offers is not used: it would be a new one each time.
func (b boundClient) Call(request *http.Request, _ *http.Transport) (*http.Response, error) {
	response, err := b.http.Do(request.WithContext(b.ctx))
	if err != nil {
		return nil, err
	}
	response.Body = struct {
		io.Reader
		io.Closer
	}{io.LimitReader(response.Body, maxAnswer), response.Body}
	return response, nil
}

// bind waits for a turn and makes a copy of an SDK client that belongs to one call.
func (c *cloud) bind(ctx context.Context, action string, shared openapi.Client) (openapi.Client, error) {
	if err := c.turns.Wait(ctx); err != nil {
		return shared, &CallError{Action: action, Fault: FaultThrottled,
			cause: fmt.Errorf("waiting for a turn of our own limit: %w", err)}
	}
	var err error
	if shared.Credential, err = c.keys(ctx); err != nil {
		var sts *CallError // it has said what is at fault; anything else is a file that cannot be read
		if !errors.As(err, &sts) {
			err = &CallError{Action: action, Fault: FaultDenied, cause: err}
		}
		return shared, err
	}
	shared.HttpClient = boundClient{ctx: ctx, http: c.http}
	return shared, nil
}

// done logs the request's ID and makes a CallError of a failure. call is what the SDK returned.
func (c *cloud) done(ctx context.Context, action string, requestID *string, err error) error {
	if err == nil {
		ctrl.LoggerFrom(ctx).V(2).Info("called Alibaba Cloud", "action", action, "requestID", dara.StringValue(requestID))
		return nil
	}
	err = callError(action, err)
	if call, ok := errors.AsType[*CallError](err); ok {
		ctrl.LoggerFrom(ctx).V(1).Info("a call to Alibaba Cloud failed", "action", action, "requestID", call.RequestID,
			"code", call.Code, "status", call.Status)
	}
	return err
}

// incomplete is an answer that lacks what it must have. It is never taken for an empty one.
func incomplete(action, what string) error {
	return &CallError{Action: action, Fault: FaultTransient, cause: errors.New("the answer has no " + what)}
}

// call makes one call of RPC style and reads the answer.
func (c *cloud) call(
	ctx context.Context, client openapi.Client, action, version string, query map[string]*string, into any,
) error {
	bound, err := c.bind(ctx, action, client)
	if err != nil {
		return err
	}
	if bound.RegionId != nil {
		query["RegionId"] = bound.RegionId
	}
	raw, err := bound.CallApi(&openapi.Params{
		Action: dara.String(action), Version: dara.String(version), Protocol: dara.String("HTTPS"),
		Pathname: dara.String("/"), Method: dara.String("POST"),
		AuthType: dara.String("AK"), Style: dara.String("RPC"), ReqBodyType: dara.String("formData"),
		BodyType: dara.String("json"),
	}, &openapi.OpenApiRequest{Query: query}, &dara.RuntimeOptions{})
	var answered struct {
		RequestID *string `json:"RequestId"`
	}
	if err == nil {
		err = errors.Join(dara.Convert(raw["body"], &answered), dara.Convert(raw["body"], into))
	}
	return c.done(ctx, action, answered.RequestID, err)
}

// slbVersion and ecsVersion are those of the APIs.
const (
	slbVersion = "2014-05-15"
	ecsVersion = "2014-05-26"
)

// backendAddresses are the addresses of the backend servers of all listeners of a load balancer, whatever their health.
func (c *cloud) backendAddresses(ctx context.Context, loadBalancer string) (map[string]bool, error) {
	const action = "DescribeHealthStatus"
	var body slbsdk.DescribeHealthStatusResponseBody
	if err := c.call(ctx, c.slb.Client, action, slbVersion,
		map[string]*string{"LoadBalancerId": dara.String(loadBalancer)}, &body); err != nil {
		return nil, err
	}
	if body.RequestId == nil || body.BackendServers == nil {
		return nil, incomplete(action, "BackendServers")
	}
	addresses := make(map[string]bool, len(body.BackendServers.BackendServer))
	for _, s := range body.BackendServers.BackendServer {
		addresses[dara.StringValue(s.ServerIp)] = true
	}
	return addresses, nil
}

// servers are all backend servers of a virtual server group, ours and others'.
func (c *cloud) servers(ctx context.Context, group string) ([]server, error) {
	const action = "DescribeVServerGroupAttribute"
	var body slbsdk.DescribeVServerGroupAttributeResponseBody
	if err := c.call(ctx, c.slb.Client, action, slbVersion,
		map[string]*string{"VServerGroupId": dara.String(group)}, &body); err != nil {
		return nil, err
	}
	if body.RequestId == nil || body.BackendServers == nil {
		return nil, incomplete(action, "BackendServers")
	}
	found := make([]server, 0, len(body.BackendServers.BackendServer))
	for _, s := range body.BackendServers.BackendServer {
		if s.Port == nil || s.Weight == nil {
			return nil, incomplete(action, "Port or Weight of a backend server")
		}
		found = append(found, server{
			ServerID: dara.StringValue(s.ServerId), ServerIP: dara.StringValue(s.ServerIp), Port: int(*s.Port),
			Weight: int(*s.Weight),
			Type:   dara.StringValue(s.Type), Description: dara.StringValue(s.Description),
		})
	}
	return found, nil
}

// Actions that change at most maxServersPerCall backend servers of a group.
const (
	addServers    = "AddVServerGroupBackendServers"
	setServers    = "SetVServerGroupAttribute"
	removeServers = "RemoveVServerGroupBackendServers"
)

// change makes one of these calls.
func (c *cloud) change(ctx context.Context, action, group string, servers []server) error {
	list, err := json.Marshal(servers)
	if err != nil {
		return fmt.Errorf("writing the list of backend servers: %w", err)
	}
	var body struct {
		RequestID *string `json:"RequestId"`
	}
	if err := c.call(ctx, c.slb.Client, action, slbVersion, map[string]*string{
		"VServerGroupId": dara.String(group), "BackendServers": dara.String(string(list)),
	}, &body); err != nil {
		return err
	}
	if body.RequestID == nil {
		return incomplete(action, "RequestId")
	}
	return nil
}

// interfaces finds the elastic network interfaces that have the addresses, in the VPC. An address that none has is
// absent from the result.
func (c *cloud) interfaces(ctx context.Context, addresses []string, v6 bool) (map[string]string, error) {
	found := make(map[string]string, len(addresses))
	for len(addresses) > 0 {
		n := min(len(addresses), maxAddressesPerCall)
		for token := ""; ; {
			page, err := c.interfacesPage(ctx, addresses[:n], v6, token)
			if err != nil {
				return nil, err
			}
			for _, eni := range page.NetworkInterfaceSets.NetworkInterfaceSet {
				for _, a := range eni.PrivateIPSets.PrivateIPSet {
					found[a.PrivateIPAddress] = eni.NetworkInterfaceID
				}
				for _, a := range eni.IPv6Sets.IPv6Set {
					found[a.IPv6Address] = eni.NetworkInterfaceID
				}
			}
			if token = page.NextToken; token == "" {
				break
			}
		}
		addresses = addresses[n:]
	}
	return found, nil
}

// interfacesAnswer is what is read of the answer to DescribeNetworkInterfaces.
type interfacesAnswer struct {
	RequestID            string `json:"RequestId"`
	NextToken            string
	NetworkInterfaceSets *struct {
		NetworkInterfaceSet []struct {
			NetworkInterfaceID string `json:"NetworkInterfaceId"`
			PrivateIPSets      struct {
				PrivateIPSet []struct {
					PrivateIPAddress string `json:"PrivateIpAddress"`
				} `json:"PrivateIpSet"`
			} `json:"PrivateIpSets"`
			IPv6Sets struct {
				IPv6Set []struct {
					IPv6Address string `json:"Ipv6Address"`
				} `json:"Ipv6Set"`
			} `json:"Ipv6Sets"`
		}
	}
}

func (c *cloud) interfacesPage(
	ctx context.Context, addresses []string, v6 bool, token string,
) (*interfacesAnswer, error) {
	const action = "DescribeNetworkInterfaces"
	query := map[string]*string{
		"VpcId": dara.String(c.vpc), "Status": dara.String("InUse"),
		"MaxResults": dara.String(strconv.Itoa(maxAddressesPerCall)),
	}
	if token != "" {
		query["NextToken"] = dara.String(token)
	}
	parameter := "PrivateIpAddress."
	if v6 {
		parameter = "Ipv6Address."
	}
	for i, address := range addresses {
		query[parameter+strconv.Itoa(i+1)] = dara.String(address)
	}
	var answer interfacesAnswer
	if err := c.call(ctx, *c.ecs, action, ecsVersion, query, &answer); err != nil {
		return nil, err
	}
	if answer.RequestID == "" || answer.NetworkInterfaceSets == nil {
		return nil, incomplete(action, "NetworkInterfaceSets")
	}
	return &answer, nil
}
