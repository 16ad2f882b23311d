package callout

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
)

var tester = Asker{Who: "tests", Flag: "--allow of tests"}

func TestTargets(t *testing.T) {
	const (
		loopback, link, metadata = "a loopback address", "a link-local address", "a cloud's metadata service"
		multicast, none          = "a multicast address", "no address of a server"
		unlisted                 = "not among the servers"
	)
	tests := map[string]struct {
		allow   []string
		host    string
		port    string
		address string
		refused string // "" for not refused
	}{
		"anything else without a list":                {nil, "example.com", "443", "93.184.216.34", ""},
		"a private address without a list":            {nil, "hook.ns.svc", "80", "10.96.0.1", ""},
		"loopback":                                    {nil, "localhost", "80", "127.0.0.1", loopback},
		"loopback, all of it":                         {nil, "x", "80", "127.200.3.4", loopback},
		"loopback of IPv6":                            {nil, "localhost", "80", "::1", loopback},
		"loopback as IPv6":                            {nil, "x", "80", "::ffff:127.0.0.1", loopback},
		"loopback through NAT64":                      {nil, "x", "80", "64:ff9b::7f00:1", loopback},
		"metadata through 6to4":                       {nil, "x", "80", "2002:a9fe:a9fe::1", link},
		"metadata":                                    {nil, "169.254.169.254", "80", "169.254.169.254", link},
		"metadata as IPv6":                            {nil, "x", "80", "::ffff:169.254.169.254", link},
		"metadata of another cloud":                   {nil, "x", "80", "100.100.100.200", metadata},
		"metadata of IPv6":                            {nil, "x", "80", "fd00:ec2::254", metadata},
		"link-local of IPv6, with a zone":             {nil, "x", "80", "fe80::1%eth0", link},
		"unspecified":                                 {nil, "x", "80", "0.0.0.0", none},
		"unspecified of IPv6":                         {nil, "x", "80", "::", none},
		"multicast":                                   {nil, "x", "80", "224.0.0.1", multicast},
		"multicast of IPv6":                           {nil, "x", "80", "ff02::1", multicast},
		"broadcast":                                   {nil, "x", "80", "255.255.255.255", "a broadcast address"},
		"loopback that is listed":                     {[]string{"127.0.0.0/8"}, "localhost", "80", "127.0.0.1", ""},
		"loopback that is listed, as IPv6":            {[]string{"127.0.0.1"}, "x", "80", "::ffff:127.0.0.1", ""},
		"loopback that is listed for another port":    {[]string{"127.0.0.1:81"}, "x", "80", "127.0.0.1", loopback},
		"loopback of IPv6 that is listed with a port": {[]string{"[::1]:80"}, "x", "80", "::1", ""},
		"a list of loopback is a list": {[]string{"127.0.0.0/8"}, "example.com", "80",
			"93.184.216.34", unlisted},
		"a name does not permit loopback": {[]string{"evil.example.com"}, "evil.example.com", "80",
			"127.0.0.1", loopback},
		"a wide network does not permit metadata": {[]string{"0.0.0.0/0", "::/0"}, "x", "80",
			"169.254.169.254", link},
		"nor does one that is a little too wide": {[]string{"100.64.0.0/10"}, "x", "80",
			"100.100.100.200", metadata},
		"but permits everything else": {[]string{"0.0.0.0/0"}, "x", "80", "10.0.0.1", ""},
		"metadata that is listed":     {[]string{"169.254.169.254/32"}, "x", "80", "169.254.169.254", ""},
		"a name that is listed": {[]string{"Hook.Example.com"}, "hook.example.COM.", "80",
			"10.0.0.1", ""},
		"a name that is listed for another port": {[]string{"hook.example.com:443"}, "hook.example.com", "80",
			"10.0.0.1", unlisted},
		"a name that is listed for this port": {[]string{"hook.example.com:80"}, "hook.example.com", "80",
			"10.0.0.1", ""},
		"a suffix that is listed": {[]string{"*.example.com"}, "hook.example.com", "80",
			"10.0.0.1", ""},
		"a suffix of several names": {[]string{"*.svc:80"}, "hook.ns.svc", "80", "10.0.0.1", ""},
		"a suffix is not the name itself": {[]string{"*.example.com"}, "example.com", "80",
			"10.0.0.1", unlisted},
		"a suffix ends at a dot": {[]string{"*.example.com"}, "badexample.com", "80",
			"10.0.0.1", unlisted},
		"a network that is listed": {[]string{"10.0.0.0/8"}, "anything", "80", "10.1.2.3", ""},
		"another than what is listed": {[]string{"10.0.0.0/8", "a.example.com"}, "b.example.com", "80",
			"11.0.0.1", unlisted},
		"a network of IPv4 is listed for IPv4 as IPv6":    {[]string{"10.0.0.0/8"}, "x", "80", "::ffff:10.0.0.1", ""},
		"a carrier's address leads to what is not listed": {[]string{"64:ff9b::/96"}, "x", "80", "64:ff9b::7f00:1", loopback},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			targets, err := ParseTargets(tc.allow, tester)
			require.NoError(t, err)
			err = targets.Check(tc.host, tc.port, netip.MustParseAddr(tc.address))
			if tc.refused == "" {
				require.NoError(t, err)
				return
			}
			var refused *Refused
			require.ErrorAs(t, err, &refused)
			require.ErrorContains(t, err, tc.refused)
			require.ErrorContains(t, err, "--allow of tests")
		})
	}
}

func TestListsThatMakeNoSense(t *testing.T) {
	for _, entry := range []string{"", " ", "*", "*.", "*example.com", "http://example.com", "a b", "host:0", "host:99999",
		"a*b.com", "user@host", "10.0.0.0/99", ".", ":80"} {
		t.Run(entry, func(t *testing.T) {
			_, err := ParseTargets([]string{"fine.example.com", entry}, tester)
			require.Error(t, err)
		})
	}
}

func FuzzTargets(f *testing.F) {
	for _, entry := range []string{"", "*", "a:b:c", "[::1]:80", "[", "]", "*.x", "10.0.0.0/8", "::ffff:1.2.3.4/120",
		"fe80::1%eth0"} {
		f.Add(entry, "169.254.169.254")
		f.Add(entry, "::ffff:127.0.0.1")
	}
	f.Fuzz(func(t *testing.T, entry, address string) {
		at, err := netip.ParseAddr(address)
		if err != nil {
			return
		}
		targets, err := ParseTargets([]string{entry}, tester)
		if err != nil {
			return
		}
		if targets.Check("host", "80", at) == nil && len(targets.networks) == 0 {
			require.False(t, at.IsLoopback() || at.IsLinkLocalUnicast() || at.IsMulticast() || at.IsUnspecified())
		}
	})
}
