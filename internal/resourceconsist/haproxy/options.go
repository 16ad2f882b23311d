package haproxy

import (
	"errors"
	"fmt"
	"net"
	"path"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
)

// Options are what the platform team decides.
type Options struct {
	// Runtimes are the Runtime APIs of all HAProxy instances that share the traffic: unix:<path> or tcp:<host>:<port>.
	Runtimes []string
	// Backends says which namespace may use which HAProxy backends: <namespace>/<backend>, where * stands for any text
	// and {namespace} for the namespace.
	Backends []string
	// Owner begins the names of all servers that this process adds. Servers of other names are never touched, so two
	// controllers that add servers to one HAProxy need different owners.
	Owner string
	// MaxDrain is after how long the sessions of a Pod that leaves are cut. Zero means never.
	MaxDrain time.Duration
	// ServerOptions are appended to each "add server", for example "check inter 2s".
	ServerOptions string
	// ProbeInterval is how often each instance is asked whether it is still the same process. Zero means 500 ms.
	ProbeInterval time.Duration
}

// DefaultOptions lets each namespace use the backends whose names begin with its own and an underscore, which no
// namespace has in its name.
func DefaultOptions() Options {
	return Options{
		Backends:      []string{"*/{namespace}_*"},
		Owner:         "kuperator",
		MaxDrain:      5 * time.Minute,
		ProbeInterval: 500 * time.Millisecond,
	}
}

// AddFlags adds the flags, with what o holds as defaults.
func (o *Options) AddFlags(fs *pflag.FlagSet) {
	fs.StringArrayVar(&o.Runtimes, "haproxy-runtime", o.Runtimes,
		"Runtime API of an HAProxy instance: unix:<path> or tcp:<host>:<port>. "+
			"Repeat it for each instance that receives the same traffic. A Pod is out of traffic when it has left all of them.")
	fs.StringArrayVar(&o.Backends, "haproxy-backends", o.Backends,
		"HAProxy backends that Services may select: <namespace>/<backend>, with * for any text and {namespace} for the "+
			"namespace. May be repeated; replaces the default.")
	fs.StringVar(&o.Owner, "haproxy-owner", o.Owner,
		"Prefix of the names of added servers. Controllers of several clusters that share an HAProxy need different "+
			"prefixes.")
	fs.DurationVar(&o.MaxDrain, "haproxy-max-drain", o.MaxDrain,
		"How long the sessions of a Pod that leaves may last before they are closed. 0s: no limit. A Service's annotation "+
			MaxDrainSecondsAnnotation+" overrides it.")
	fs.StringVar(&o.ServerOptions, "haproxy-server-options", o.ServerOptions,
		"Parameters of added servers, for example \"check inter 2s\". HAProxy does not apply default-server to them.")
	fs.DurationVar(&o.ProbeInterval, "haproxy-probe-interval", o.ProbeInterval,
		"Interval at which each HAProxy instance is checked for a restart, after which its servers are added again.")
}

var (
	ownerName     = regexp.MustCompile(`^[A-Za-z0-9_.-]{1,63}$`)
	backendsRule  = regexp.MustCompile(`^[a-z0-9*-]+/[A-Za-z0-9_.:*{}-]+$`)
	serverOptions = regexp.MustCompile(`^[A-Za-z0-9_.,:/@%+=() -]*$`)
)

// Validate says all that is wrong.
func (o *Options) Validate() error {
	var errs []error
	if len(o.Runtimes) == 0 {
		errs = append(errs,
			errors.New("--haproxy-runtime is missing: give unix:<path> or tcp:<host>:<port>, once for each HAProxy instance"))
	}
	for i, runtime := range o.Runtimes {
		if _, _, err := parseRuntime(runtime); err != nil {
			errs = append(errs, err)
		}
		if slices.Contains(o.Runtimes[:i], runtime) {
			errs = append(errs, fmt.Errorf("--haproxy-runtime has %q twice: give it once", runtime))
		}
	}
	if len(o.Backends) == 0 {
		errs = append(errs, errors.New("--haproxy-backends is empty: no Service could use any backend"))
	}
	for _, rule := range o.Backends {
		if !backendsRule.MatchString(rule) || strings.ContainsAny(strings.ReplaceAll(rule, "{namespace}", ""), "{}") {
			errs = append(errs,
				fmt.Errorf(
					"--haproxy-backends has %q: give <namespace>/<backend>, with * for any text and {namespace} for the namespace",
					rule))
		}
	}
	if !ownerName.MatchString(o.Owner) {
		errs = append(errs, fmt.Errorf("--haproxy-owner is %q: give 1 to 63 letters, digits and _.-", o.Owner))
	}
	if o.MaxDrain < 0 {
		errs = append(errs, fmt.Errorf("--haproxy-max-drain is %s: give 0s or more", o.MaxDrain))
	}
	if !serverOptions.MatchString(o.ServerOptions) {
		errs = append(errs,
			fmt.Errorf("--haproxy-server-options is %q: give parameters of an HAProxy server line without quotes and semicolons",
				o.ServerOptions))
	}
	if o.ProbeInterval < 0 {
		errs = append(errs, fmt.Errorf("--haproxy-probe-interval is %s: give more than 0s", o.ProbeInterval))
	}
	return errors.Join(errs...)
}

// parseRuntime gives what to dial.
func parseRuntime(runtime string) (network, address string, err error) {
	network, address, _ = strings.Cut(runtime, ":")
	switch {
	case network == "unix" && strings.HasPrefix(address, "/"):
		return network, address, nil
	case network == "tcp":
		if host, port, err := net.SplitHostPort(address); err == nil && host != "" && port != "" {
			return network, address, nil
		}
	}
	return "", "", fmt.Errorf("--haproxy-runtime has %q: give unix:<absolute path> or tcp:<host>:<port>", runtime)
}

// allows reports whether the namespace may use the backend.
func (o *Options) allows(namespace, backend string) bool {
	return slices.ContainsFunc(o.Backends, func(rule string) bool {
		namespaces, backends, _ := strings.Cut(rule, "/")
		return matches(namespaces, namespace) && matches(strings.ReplaceAll(backends, "{namespace}", namespace), backend)
	})
}

// matches reports whether text is pattern, in which * stands for any text. Neither has a slash, and backendsRule lets
// nothing else through that path.Match knows.
func matches(pattern, text string) bool {
	ok, err := path.Match(pattern, text)
	return ok && err == nil
}

// hasChecks reports whether HAProxy checks the health of the servers that are added.
func (o *Options) hasChecks() bool {
	return slices.Contains(strings.Fields(o.ServerOptions), "check")
}
