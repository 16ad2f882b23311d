package asking

import (
	"errors"
	"fmt"
	"time"

	"github.com/spf13/pflag"
)

// Options are the flags of webhook rules.
type Options struct {
	// Timeout is how long one request may take, from the name's look-up to the last byte of the answer.
	Timeout time.Duration
	// Allow lists the servers that may be asked, see callout.Targets.
	Allow []string
	// Concurrency is how many slots there are for requests; of one PodTransitionRule at most perRule are on their way at
	// once. See exchange.Turns for the shares of namespaces, and the room beside the slots.
	Concurrency int
	// Strict has what cannot be asked refuse, whatever failurePolicy says: Kuperator v0.7 never reads it, and writes
	// Ignore into every rule that has none.
	Strict bool
}

// DefaultOptions are what holds without flags.
func DefaultOptions() Options { return Options{Timeout: 10 * time.Second, Concurrency: 16} }

// AddFlags binds the flags.
func (o *Options) AddFlags(fs *pflag.FlagSet) {
	fs.DurationVar(&o.Timeout, "rule-webhook-timeout", o.Timeout,
		"Timeout of one request to the server of a webhook rule.")
	fs.StringSliceVar(&o.Allow, "rule-webhook-allow", o.Allow,
		"Servers that webhook rules may call: host, *.suffix, host:port, or a network such as 10.0.0.0/8; may be repeated. "+
			"Empty: all. Loopback, link-local, multicast and cloud metadata addresses are refused unless they are listed as "+
			"addresses.")
	fs.IntVar(&o.Concurrency, "rule-webhook-concurrency", o.Concurrency,
		fmt.Sprintf(
			"Maximum requests of webhook rules in flight: at most %d of one PodTransitionRule, and half of one namespace. "+
				"The first request of a namespace needs no slot; there may be up to three times as many of these in addition.",
			perRule))
}

// Validate says everything that is wrong at once, each time with what to change.
func (o *Options) Validate() error {
	var errs []error
	if o.Timeout <= 0 {
		errs = append(errs, fmt.Errorf("--rule-webhook-timeout is %s: give more than 0s", o.Timeout))
	}
	if o.Concurrency < 1 {
		errs = append(errs, fmt.Errorf("--rule-webhook-concurrency is %d: give at least 1", o.Concurrency))
	}
	if _, err := parseTargets(o.Allow); err != nil {
		errs = append(errs, fmt.Errorf("--rule-webhook-allow: %w", err))
	}
	return errors.Join(errs...)
}
