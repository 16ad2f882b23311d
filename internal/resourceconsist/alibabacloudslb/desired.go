package alibabacloudslb

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// Annotations on Services. Writer of all: the user. Reader: this adapter. Lifetime: that of the Service.
const (
	// ServerGroupsAnnotation makes the Service's Pods backend servers of virtual server groups. Format: names from the
	// platform team's file, separated by commas, each with ":" and a port of the Pod, which may be left out if the
	// Service has one port with a target that is a number. Example: shop-http:8080,shop-https:8443.
	ServerGroupsAnnotation = Name + ".resource-consist.kusionstack.io/server-groups"
	// WeightAnnotation is the weight of a Pod that serves: 1 to 100. Absent means 100.
	WeightAnnotation = Name + ".resource-consist.kusionstack.io/weight"
	// OutOfServiceAnnotation says what becomes of a Pod that leaves service: WeightZero or Remove. Absent means
	// WeightZero.
	OutOfServiceAnnotation = Name + ".resource-consist.kusionstack.io/out-of-service"
)

// Values of OutOfServiceAnnotation.
const (
	// WeightZero keeps the Pod as a backend server of weight 0, which gets no new requests, until it is gone.
	WeightZero = "weight-zero"
	// Remove takes the Pod out of the group.
	Remove = "remove"
)

// Weight is the state of a backend server: 0 to 100 as in the API, 0 for one that gets no requests.
type Weight int

// target is one backend server that a Pod is to be, but for the Pod's address.
type target struct {
	group ServerGroup
	port  int
}

// desiredStates are what a Service's annotations say.
type desiredStates struct {
	targets []target
	weight  Weight
	remove  bool
}

func (g *ServerGroups) desiredOf(service *corev1.Service) (desiredStates, error) {
	w := desiredStates{weight: 100}
	for entry := range strings.SplitSeq(service.Annotations[ServerGroupsAnnotation], ",") {
		name, port, err := splitEntry(service, strings.TrimSpace(entry))
		if err != nil {
			return desiredStates{}, err
		}
		group, ok := g.named(name, service.Namespace)
		if !ok {
			return desiredStates{}, fmt.Errorf("annotation %s names server group %q, which namespace %s may not use: %s",
				ServerGroupsAnnotation, name, service.Namespace, oneOf(g.usableBy(service.Namespace)))
		}
		if slices.ContainsFunc(w.targets, func(t target) bool { return t.group.ID == group.ID && t.port == port }) {
			return desiredStates{}, fmt.Errorf("annotation %s has %s:%d twice: give it once", ServerGroupsAnnotation, name, port)
		}
		w.targets = append(w.targets, target{group: group, port: port})
	}
	if raw, ok := service.Annotations[WeightAnnotation]; ok {
		weight, err := strconv.Atoi(raw)
		if err != nil || weight < 1 || weight > 100 {
			return desiredStates{}, fmt.Errorf("annotation %s is %q: give a whole number from 1 to 100", WeightAnnotation, raw)
		}
		w.weight = Weight(weight)
	}
	switch raw, ok := service.Annotations[OutOfServiceAnnotation]; {
	case raw == Remove:
		w.remove = true
	case ok && raw != WeightZero:
		return desiredStates{}, fmt.Errorf("annotation %s is %q: give %s or %s", OutOfServiceAnnotation,
			raw, WeightZero, Remove)
	}
	return w, nil
}

func oneOf(names []string) string {
	if len(names) == 0 {
		return "it may use none; the platform team lists server groups in the file of --" + flagServerGroups
	}
	return "give one of " + strings.Join(names, ", ")
}

// splitEntry reads "name:port" or "name".
func splitEntry(service *corev1.Service, entry string) (name string, port int, err error) {
	name, raw, given := strings.Cut(entry, ":")
	if !given {
		port, err = onlyTargetPort(service)
		return name, port, err
	}
	port, err = strconv.Atoi(raw)
	if err != nil || port < 1 || port > 65535 {
		return "", 0, fmt.Errorf("annotation %s has %q: give a port of the Pod from 1 to 65535 after the colon",
			ServerGroupsAnnotation, entry)
	}
	return name, port, nil
}

func onlyTargetPort(service *corev1.Service) (int, error) {
	if len(service.Spec.Ports) != 1 {
		return 0, fmt.Errorf(
			"annotation %s names no port and the Service has %d: give the port of the Pod after a colon, as in name:8080",
			ServerGroupsAnnotation, len(service.Spec.Ports))
	}
	port := service.Spec.Ports[0]
	switch {
	case port.TargetPort.Type == intstr.String:
		return 0, fmt.Errorf(
			"annotation %s names no port and the Service's target port %q is a name: give the number after a colon, as in name:8080",
			ServerGroupsAnnotation, port.TargetPort.StrVal)
	case port.TargetPort.IntVal == 0:
		return int(port.Port), nil
	}
	return int(port.TargetPort.IntVal), nil
}

// place is where a backend server is: its member ID is made of it, and no field of another server is equal.
type place struct {
	// group is the provider's ID, so that a server is found again when its group is called otherwise or not at all.
	group   string
	address string
	port    int
}

// id is "<group>/<address>:<port>", with an IPv6 address in brackets.
func (p place) id() string {
	address, err := netip.ParseAddr(p.address)
	if err != nil {
		return p.group + "/" + p.address
	}
	return p.group + "/" + netip.AddrPortFrom(address, uint16(p.port)).String()
}

func parsePlace(id string) (place, error) {
	group, at, found := strings.Cut(id, "/")
	address, err := netip.ParseAddrPort(at)
	if !found || err != nil {
		return place{}, fmt.Errorf("member %q is not of the form <group>/<address>:<port>", id)
	}
	return place{group: group, address: address.Addr().String(), port: int(address.Port())}, nil
}
