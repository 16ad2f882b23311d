package haproxy

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// Annotations of a Service. Writer: its owner. Lifetime: that of the Service.
const (
	// BackendAnnotation names the HAProxy backend that gets the Service's Pods, one of those that the platform team
	// allows the namespace. A Service without it takes no part.
	BackendAnnotation = "haproxy.resourceconsist.kusionstack.io/backend"
	// PortAnnotation says which of the Service's ports HAProxy serves, by name or number. It may lack if there is one.
	PortAnnotation = "haproxy.resourceconsist.kusionstack.io/port"
	// WeightAnnotation is the weight of each Pod, 1 to 256; 1 without it.
	WeightAnnotation = "haproxy.resourceconsist.kusionstack.io/weight"
	// MaxDrainSecondsAnnotation is after how many seconds the sessions of a Pod that leaves are cut, 0 for never; it
	// replaces the flag --haproxy-max-drain.
	MaxDrainSecondsAnnotation = "haproxy.resourceconsist.kusionstack.io/max-drain-seconds"
	// IPFamiliesAnnotation says with which addresses a Pod is a server: IPv4, IPv6, or both with a comma between; the
	// Pod's primary address without it.
	IPFamiliesAnnotation = "haproxy.resourceconsist.kusionstack.io/ip-families"
)

// What HAProxy allows in the names of backends and servers; a server's has up to four names of Kubernetes in it.
var (
	backendName = regexp.MustCompile(`^[A-Za-z0-9_.:-]{1,255}$`)
	serverNames = regexp.MustCompile(`^[A-Za-z0-9_.:-]{1,511}$`)
)

// settings are what a Service says in its annotations.
type settings struct {
	backend  string
	port     corev1.ServicePort
	weight   int
	families []corev1.IPFamily // empty for the primary address
}

// settingsOf reads the annotations. The error says all that is to be changed.
func (a *Adapter) settingsOf(service *corev1.Service) (settings, error) {
	s := settings{backend: service.Annotations[BackendAnnotation], weight: 1}
	var errs []error
	if !backendName.MatchString(s.backend) {
		errs = append(errs,
			fmt.Errorf("annotation %s is %q: give the name of an HAProxy backend, of letters, digits and _.:-",
				BackendAnnotation, s.backend))
	} else if !a.options.allows(service.Namespace, s.backend) {
		errs = append(errs,
			fmt.Errorf(
				"annotation %s is %q, which namespace %s may not use: give one that --haproxy-backends of resourceconsist-controller allows (%s)",
				BackendAnnotation, s.backend, service.Namespace, strings.Join(a.options.Backends, ", ")))
	}
	var err error
	if s.port, err = portOf(service); err != nil {
		errs = append(errs, err)
	}
	if raw, ok := service.Annotations[WeightAnnotation]; ok {
		if s.weight, err = strconv.Atoi(raw); err != nil || s.weight < 1 || s.weight > 256 {
			errs = append(errs, fmt.Errorf("annotation %s is %q: give a number from 1 to 256", WeightAnnotation, raw))
		}
	}
	if _, err := maxDrain(service, 0); err != nil {
		errs = append(errs, err)
	}
	if raw, ok := service.Annotations[IPFamiliesAnnotation]; ok {
		for family := range strings.SplitSeq(raw, ",") {
			s.families = append(s.families, corev1.IPFamily(strings.TrimSpace(family)))
		}
		for i, family := range s.families {
			if family != corev1.IPv4Protocol && family != corev1.IPv6Protocol || i > 0 && family == s.families[0] {
				errs = append(errs, fmt.Errorf("annotation %s is %q: give IPv4, IPv6, or IPv4,IPv6", IPFamiliesAnnotation, raw))
				break
			}
		}
	}
	return s, errors.Join(errs...)
}

func portOf(service *corev1.Service) (corev1.ServicePort, error) {
	raw, given := service.Annotations[PortAnnotation]
	var candidates []corev1.ServicePort
	for _, port := range service.Spec.Ports {
		if port.Protocol != "" && port.Protocol != corev1.ProtocolTCP {
			continue
		}
		if !given || raw != "" && (port.Name == raw || strconv.Itoa(int(port.Port)) == raw) {
			candidates = append(candidates, port)
		}
	}
	switch {
	case len(candidates) == 1:
		return candidates[0], nil
	case given:
		return corev1.ServicePort{}, fmt.Errorf("annotation %s is %q: give the name or number of a TCP port of the Service",
			PortAnnotation, raw)
	default:
		return corev1.ServicePort{}, fmt.Errorf(
			"the Service has %d TCP ports: say which one HAProxy serves in the annotation %s", len(candidates), PortAnnotation)
	}
}

// maxDrain is after how long the sessions of a Pod that leaves are cut; 0 is for never. The error says what is wrong
// with an annotation that cannot be read; fallback counts then.
func maxDrain(service *corev1.Service, fallback time.Duration) (time.Duration, error) {
	raw, ok := service.Annotations[MaxDrainSecondsAnnotation]
	if !ok {
		return fallback, nil
	}
	seconds, err := strconv.ParseUint(raw, 10, 31)
	if err != nil {
		return fallback, fmt.Errorf("annotation %s is %q: give whole seconds, 0 for no limit", MaxDrainSecondsAnnotation, raw)
	}
	return time.Duration(seconds) * time.Second, nil //nolint:gosec // 31 bits
}

// targetPort is the number of the Pod's port behind a port of a Service, as Kubernetes' endpoints have it: a name is
// that of a container's port.
func targetPort(port corev1.ServicePort, pod *corev1.Pod) (uint16, error) {
	number := port.TargetPort.IntVal
	if port.TargetPort.Type == intstr.String {
		number = namedPort(pod, port.TargetPort.StrVal)
		if number == 0 {
			return 0, fmt.Errorf("pod %s has no container with a TCP port named %q, the Service's targetPort", pod.Name,
				port.TargetPort.StrVal)
		}
	}
	if number == 0 {
		number = port.Port
	}
	if number < 1 || number > 65535 {
		return 0, fmt.Errorf("the Service's targetPort %d is no port", number)
	}
	return uint16(number), nil
}

func namedPort(pod *corev1.Pod, name string) int32 {
	// sidecars are among the latter
	for _, containers := range [][]corev1.Container{pod.Spec.Containers, pod.Spec.InitContainers} {
		for i := range containers {
			for _, port := range containers[i].Ports {
				if port.Name == name && (port.Protocol == "" || port.Protocol == corev1.ProtocolTCP) {
					return port.ContainerPort
				}
			}
		}
	}
	return 0
}

// addresses are those of the Pod with which it is a server, by family.
func addresses(pod *corev1.Pod, families []corev1.IPFamily) map[corev1.IPFamily]netip.Addr {
	all := pod.Status.PodIPs
	if len(all) == 0 && pod.Status.PodIP != "" {
		all = []corev1.PodIP{{IP: pod.Status.PodIP}}
	}
	found := map[corev1.IPFamily]netip.Addr{}
	for _, ip := range all {
		address, err := netip.ParseAddr(ip.IP)
		if err != nil {
			continue // the API server lets none pass
		}
		family := corev1.IPv4Protocol
		if address = address.Unmap().WithZone(""); address.Is6() {
			family = corev1.IPv6Protocol
		}
		wanted := len(families) == 0 && len(found) == 0
		for _, f := range families {
			wanted = wanted || f == family
		}
		if _, have := found[family]; wanted && !have {
			found[family] = address
		}
	}
	return found
}

// prefix begins the names of all servers of a Service. Names of Kubernetes hold no colon, so that of one Service never
// begins that of another.
func (a *Adapter) prefix(service *corev1.Service) string {
	return a.options.Owner + ":" + service.Namespace + ":" + service.Name + ":"
}

// serverName names the server of a Pod: readable, and for one Pod and family alone, because of the UID.
func (a *Adapter) serverName(service *corev1.Service, pod *corev1.Pod, family corev1.IPFamily) string {
	const readable = 63
	name := pod.Name
	if len(name) > readable {
		name = name[:readable]
	}
	sum := sha256.Sum256([]byte(pod.Name + "/" + string(pod.UID) + "/" + string(family)))
	return a.prefix(service) + name + ":" + hex.EncodeToString(sum[:8])
}
