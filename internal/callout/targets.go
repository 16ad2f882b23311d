package callout

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// Targets says which servers may be asked. What decides is the address that is connected to, after names were looked
// up, so a name that leads somewhere else tomorrow, or on a second look, leads nowhere.
//
// Some addresses are dangerous and hardly ever of use: those of the program's own machine, of its link, and of
// clouds' metadata services. They are refused unless the list has an address or a network that lies within such a
// range; a name, or a network that merely contains it (0.0.0.0/0), does not permit it. Any other address may be asked
// if the list is empty, or has its name, its address or a network around it.
type Targets struct {
	asker    Asker
	networks []listed[netip.Prefix]
	names    []listed[string] // in lower case; ".suffix" for *.suffix
}

// Asker is on whose behalf servers are asked, for messages.
type Asker struct {
	// Who asks, as a plural: "webhook rules".
	Who string
	// Flag is where servers are listed: "--rule-webhook-allow of podtransitionrule-controller".
	Flag string
}

// listed is an entry of the list.
type listed[T any] struct {
	what T
	port string // "" for every port
}

// guarded are the ranges that must be listed to be asked.
var guarded = []struct {
	network netip.Prefix
	what    string
}{
	{netip.MustParsePrefix("127.0.0.0/8"), "a loopback address"},
	{netip.MustParsePrefix("::1/128"), "a loopback address"},
	{netip.MustParsePrefix("169.254.0.0/16"), "a link-local address"},
	{netip.MustParsePrefix("fe80::/10"), "a link-local address"},
	{netip.MustParsePrefix("100.100.100.200/32"), "a cloud's metadata service"},
	{netip.MustParsePrefix("168.63.129.16/32"), "a cloud's metadata service"},
	{netip.MustParsePrefix("192.0.0.192/32"), "a cloud's metadata service"},
	{netip.MustParsePrefix("fd00:ec2::254/128"), "a cloud's metadata service"},
	{netip.MustParsePrefix("fd20:ce::254/128"), "a cloud's metadata service"},
	{netip.MustParsePrefix("0.0.0.0/8"), "no address of a server"},
	{netip.MustParsePrefix("::/128"), "no address of a server"},
	{netip.MustParsePrefix("224.0.0.0/4"), "a multicast address"},
	{netip.MustParsePrefix("ff00::/8"), "a multicast address"},
	{netip.MustParsePrefix("255.255.255.255/32"), "a broadcast address"},
}

// carriers are networks of IPv6 whose addresses lead to the IPv4 address in them, from the byte given.
var carriers = []struct {
	network netip.Prefix
	from    int
}{
	{netip.MustParsePrefix("64:ff9b::/96"), 12},   // NAT64
	{netip.MustParsePrefix("64:ff9b:1::/48"), 12}, // NAT64, local use
	{netip.MustParsePrefix("2002::/16"), 2},       // 6to4
}

// Refused is the error for a server that may not be asked.
type Refused struct{ why string }

func (r *Refused) Error() string { return r.why }

// ParseTargets reads a list of host, *.suffix, address and CIDR, each but the last with an optional port. The error
// says which entry is wrong.
func ParseTargets(list []string, asker Asker) (*Targets, error) {
	t := &Targets{asker: asker}
	for _, entry := range list {
		if err := t.add(strings.ToLower(strings.TrimSpace(entry))); err != nil {
			return nil, err
		}
	}
	return t, nil
}

func (t *Targets) add(entry string) error {
	if prefix, err := netip.ParsePrefix(entry); err == nil {
		t.networks = append(t.networks, listed[netip.Prefix]{what: prefix.Masked()})
		return nil
	}
	host, port := entry, ""
	if h, p, err := net.SplitHostPort(entry); err == nil {
		if n, err := strconv.Atoi(p); err != nil || n < 1 || n > 65535 {
			return fmt.Errorf("%q has a port that is not between 1 and 65535", entry)
		}
		host, port = h, p
	}
	if address, err := netip.ParseAddr(strings.Trim(host, "[]")); err == nil {
		address = plain(address)
		t.networks = append(t.networks, listed[netip.Prefix]{what: netip.PrefixFrom(address, address.BitLen()), port: port})
		return nil
	}
	name := strings.TrimSuffix(strings.TrimPrefix(host, "*"), ".")
	if strings.Trim(name, ".") == "" || strings.ContainsAny(name, "*/:@ ") || host[0] == '*' && name[0] != '.' {
		return fmt.Errorf("%q is neither a host, nor *.suffix, nor host:port, nor a network such as 10.0.0.0/8", entry)
	}
	t.names = append(t.names, listed[string]{what: name, port: port})
	return nil
}

// Check returns an error, a *Refused, if the address that a host of a URL stands for may not be connected to.
func (t *Targets) Check(host, port string, address netip.Addr) error {
	address = plain(address)
	for _, a := range append(carried(address), address) {
		for _, g := range guarded {
			if g.network.Contains(a) && !t.permits(g.network, port, a) {
				return &Refused{fmt.Sprintf("%s is %s, which %s may not ask: use another server, or list the address with %s",
					shown(host, a), g.what, t.asker.Who, t.asker.Flag)}
			}
		}
	}
	if len(t.names)+len(t.networks) == 0 || t.lists(host, port, address) {
		return nil
	}
	return &Refused{fmt.Sprintf("%s is not among the servers that %s may ask: have it listed with %s",
		net.JoinHostPort(host, port), t.asker.Who, t.asker.Flag)}
}

func (t *Targets) permits(guarded netip.Prefix, port string, a netip.Addr) bool {
	return slices.ContainsFunc(t.networks, func(l listed[netip.Prefix]) bool {
		return l.what.Bits() >= guarded.Bits() && l.what.Contains(a) && (l.port == "" || l.port == port)
	})
}

func (t *Targets) lists(host, port string, a netip.Addr) bool {
	host = strings.TrimSuffix(strings.ToLower(host), ".")
	return slices.ContainsFunc(t.networks, func(l listed[netip.Prefix]) bool {
		return l.what.Contains(a) && (l.port == "" || l.port == port)
	}) || slices.ContainsFunc(t.names, func(l listed[string]) bool {
		matches := l.what == host || l.what[0] == '.' && strings.HasSuffix(host, l.what)
		return matches && (l.port == "" || l.port == port)
	})
}

// plain is the address without a zone, and as IPv4 if it is one.
func plain(a netip.Addr) netip.Addr { return a.Unmap().WithZone("") }

// carried are the IPv4 addresses that an address of IPv6 may lead to.
func carried(a netip.Addr) []netip.Addr {
	var found []netip.Addr
	for _, c := range carriers {
		if a.Is6() && c.network.Contains(a) {
			bytes := a.As16()
			found = append(found, netip.AddrFrom4([4]byte(bytes[c.from:c.from+4])))
		}
	}
	return found
}

func shown(host string, a netip.Addr) string {
	if host == a.String() {
		return host
	}
	return host + " (" + a.String() + ")"
}
