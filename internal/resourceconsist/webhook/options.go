package webhook

import (
	"errors"
	"fmt"

	"github.com/spf13/pflag"

	"kusionstack.io/kuperator/internal/callout"
)

// Options are the adapter's flags.
type Options struct {
	// Endpoints is the file that configures endpoints.
	Endpoints string
	// Allow lists the servers that may be called, see callout.Targets.
	Allow []string
	// QPS bounds the calls to all endpoints together.
	QPS float32
}

// DefaultOptions are what holds without flags.
func DefaultOptions() Options { return Options{QPS: 20} }

// AddFlags binds the flags.
func (o *Options) AddFlags(fs *pflag.FlagSet) {
	fs.StringVar(&o.Endpoints, "webhook-endpoints", o.Endpoints,
		"File with the endpoints that Services may select for the webhook adapter, see docs/adapters/webhook.md. "+
			"Changes take effect at once.")
	fs.StringSliceVar(&o.Allow, "webhook-allow", o.Allow,
		"Servers that the webhook adapter may call: host, *.suffix, host:port, or a network such as 10.0.0.0/8; "+
			"may be repeated. "+
			"Empty: all. Loopback, link-local, multicast and cloud metadata addresses are refused unless they are listed as "+
			"addresses.")
	fs.Float32Var(&o.QPS, "webhook-qps", o.QPS,
		"Maximum calls per second of the webhook adapter, to all endpoints together.")
}

// Validate says everything that is wrong at once, each time with what to change.
func (o *Options) Validate() error {
	var errs []error
	if o.Endpoints == "" {
		errs = append(errs, errors.New("--webhook-endpoints is empty: give a file, or leave webhook out of --adapters"))
	} else if _, err := openEndpoints(o.Endpoints); err != nil {
		errs = append(errs, fmt.Errorf("--webhook-endpoints: %w", err))
	}
	if _, err := o.targets(); err != nil {
		errs = append(errs, fmt.Errorf("--webhook-allow: %w", err))
	}
	if o.QPS <= 0 {
		errs = append(errs, fmt.Errorf("--webhook-qps is %v: give more than 0", o.QPS))
	}
	return errors.Join(errs...)
}

func (o *Options) targets() (*callout.Targets, error) {
	return callout.ParseTargets(o.Allow,
		callout.Asker{Who: "webhook endpoints", Flag: "--webhook-allow of resourceconsist-controller"})
}
