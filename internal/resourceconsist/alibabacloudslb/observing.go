// Package alibabacloudslb is the adapter for Alibaba Cloud SLB (Classic Load Balancer, API 2014-05-15). It is two in
// one, and a Service can take part in either or both:
//
//   - Observing: the cloud controller manager moves traffic, as endpoints become ready and not; the adapter only asks
//     which Pods the load balancer has. It is for Services of type LoadBalancer.
//   - Owning: the adapter itself puts Pods into virtual server groups that the platform team configured, sets their
//     weight to 0 and takes them out. It is for Services that name such groups in ServerGroupsAnnotation.
//
// Only backend servers whose description names the Service are ours; others are neither shown nor touched.
package alibabacloudslb

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	api "kusionstack.io/kuperator/api/resourceconsist"
)

// Name is the adapter's name, and that of its observing half; OwningName is that of the other.
const (
	Name       = "alibaba-cloud-slb"
	OwningName = Name + "-owning"
)

// Keys of Alibaba Cloud's cloud controller manager, on Services.
const (
	// LoadBalancerIDLabel is the ID of the Service's load balancer. Writer: the cloud controller manager, once it
	// exists.
	LoadBalancerIDLabel = "service.k8s.alibaba/loadbalancer-id"
	// backendTypeAnnotation is what the load balancer forwards to: eni, the Pods themselves, or ecs, the nodes.
	backendTypeAnnotation = "service.beta.kubernetes.io/backend-type"
	// backendIPVersionAnnotation is ipv4 or ipv6: which of a Pod's addresses the load balancer has.
	backendIPVersionAnnotation = "service.beta.kubernetes.io/alibaba-cloud-loadbalancer-backend-ip-version"
)

// classCLB is the spec.loadBalancerClass of the load balancers that this API is about. Others, such as
// alibabacloud.com/nlb, have APIs of their own.
const classCLB = "alibabacloud.com/clb"

// Observing asks which Pods a load balancer has that the cloud controller manager looks after. Make one with New.
type Observing struct {
	cloud *cloud
}

// Listed is the state of a Pod that a load balancer has; there is nothing to set.
type Listed struct{}

var _ api.Adapter[*corev1.Service, Listed] = &Observing{}

// Owning moves Pods into and out of virtual server groups. Make one with New.
type Owning struct {
	cloud  *cloud
	groups ServerGroups
}

// New makes both halves. They share credentials and one bound on calls.
func New(config Config) (*Observing, *Owning, error) {
	if err := config.prepare(); err != nil {
		return nil, nil, err
	}
	made, err := newCloud(config)
	if err != nil {
		return nil, nil, err
	}
	return &Observing{cloud: made}, &Owning{cloud: made, groups: config.groups}, nil
}

// CallOptions are how the halves want to be driven: gathering changes and asking seldom, since each call counts against
// a limit of the account. Calls are bounded in Config, where requests are counted one by one.
func CallOptions() api.CallOptions {
	return api.CallOptions{
		BatchSize: 2 * maxServersPerCall, BatchWindow: 200 * time.Millisecond, QPS: -1,
		Timeout: 20 * time.Second, Poll: 500 * time.Millisecond, MaxPoll: 5 * time.Second,
	}
}

// Name is part of api.Adapter.
func (o *Observing) Name() string { return Name }

// Selector is part of api.Adapter: controlled Services that have a load balancer of this kind, or shall get one.
func (o *Observing) Selector(service *corev1.Service) labels.Selector {
	class := service.Spec.LoadBalancerClass
	wantsOne := service.Spec.Type == corev1.ServiceTypeLoadBalancer && (class == nil || *class == classCLB)
	otherClass := class != nil && *class != classCLB
	if !wantsOne && (service.Labels[LoadBalancerIDLabel] == "" || otherClass) {
		return nil
	}
	return api.ServiceSelector(service)
}

// Members is part of api.Adapter. A member is the Pod's address: the same Pod behind several listeners is one.
func (o *Observing) Members(service *corev1.Service, pod *corev1.Pod, serve bool) (map[string]Listed, error) {
	if strings.EqualFold(service.Annotations[backendTypeAnnotation], "ecs") {
		return nil,
			fmt.Errorf(
				"annotation %s is ecs: the load balancer forwards to nodes, so it cannot be told when it leaves a Pod alone; set it to eni, or remove label kusionstack.io/control",
				backendTypeAnnotation)
	}
	address := addressOf(pod, strings.EqualFold(service.Annotations[backendIPVersionAnnotation], "ipv6"))
	if !serve || address == "" {
		return nil, nil
	}
	return map[string]Listed{address: {}}, nil
}

// Read is part of api.Adapter. A backend server of any health counts as serving: it might. A Service whose load
// balancer is not known yet is an error, since it is not known then what it does.
func (o *Observing) Read(ctx context.Context, service *corev1.Service, _ []string) ([]api.Held[Listed], error) {
	loadBalancer := service.Labels[LoadBalancerIDLabel]
	if loadBalancer == "" {
		return nil, fmt.Errorf(
			"label %s is not set yet: the cloud controller manager sets it when the load balancer exists; see the Service's events",
			LoadBalancerIDLabel)
	}
	addresses, err := o.cloud.backendAddresses(ctx, loadBalancer)
	if err != nil {
		return nil, fmt.Errorf("asking for the backend servers of load balancer %s: %w", loadBalancer, err)
	}
	held := make([]api.Held[Listed], 0, len(addresses))
	for address := range addresses {
		held = append(held, api.Held[Listed]{ID: address, Serving: true})
	}
	return held, nil
}

// addressOf is the Pod's address of the family; empty if it has none.
func addressOf(pod *corev1.Pod, v6 bool) string {
	for _, ip := range append([]corev1.PodIP{{IP: pod.Status.PodIP}}, pod.Status.PodIPs...) {
		if address, err := netip.ParseAddr(ip.IP); err == nil && address.Is6() == v6 {
			return address.String()
		}
	}
	return ""
}

func isIPv6(address string) bool {
	parsed, err := netip.ParseAddr(address)
	return err == nil && parsed.Is6()
}
