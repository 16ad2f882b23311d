package lifecycle

import (
	"errors"
	"fmt"
	"time"

	"github.com/spf13/pflag"

	"kusionstack.io/kuperator/api/podops"
	"kusionstack.io/kuperator/internal/bootstrap"
)

// waitFlags say how long Pods wait: --deadline, collected over the defaults, key by key, and --cooperator-patience,
// of which --compatibility has another default, and --eviction-request-patience.
type waitFlags struct {
	given     []string
	deadlines podops.Deadlines
	patience  time.Duration
	requests  time.Duration

	compatibility bootstrap.Compatibility
	// patient reports whether --cooperator-patience is given.
	patient func() bool
}

// notAwaited reports whether no operation waits for a cooperator's finalizer that is missing.
func (f *waitFlags) notAwaited() bool {
	return f.compatibility == bootstrap.KuperatorV07 && !f.patient()
}

// defaultDeadlines only report. Cooperators answer in seconds; rules and
// operators may have reasons to take long.
func defaultDeadlines() podops.Deadlines {
	d := podops.Deadlines{}
	for phase, after := range map[podops.Phase]time.Duration{
		podops.PhasePreCheck: time.Hour, podops.PhasePreparing: 10 * time.Minute, podops.PhaseOperate: time.Hour,
		podops.PhasePostCheck: time.Hour, podops.PhaseCompleting: 10 * time.Minute,
	} {
		d[podops.DeadlineKey{Phase: phase}] = podops.Deadline{After: after, Policy: podops.DeadlineWait}
	}
	return d
}

func (f *waitFlags) add(fs *pflag.FlagSet) {
	fs.StringArrayVar(&f.given, "deadline", nil,
		"Deadline of a phase of an operation, <phase>[/<type>]=<duration>[,<policy>]; may be repeated. "+
			"Phases: PreCheck, Preparing, Operate, PostCheck, Completing. "+
			"Policies: Wait (only report), Cancel (PreCheck and Preparing), Proceed (all but PreCheck). "+
			"0s: no deadline. Defaults, each with Wait: PreCheck=1h, Preparing=10m, Operate=1h, PostCheck=1h, Completing=10m. "+
			"A Pod's annotation "+podops.DeadlinesAnnotation+" overrides single keys.")
	fs.DurationVar(&f.patience, "cooperator-patience", 6*time.Second,
		"How long an operation waits for a cooperator whose expected finalizer is not on a Ready Pod, "+
			"before it continues without that cooperator. Should be longer than the slowest cooperator takes to bring a Pod "+
			"back. 0: no limit.")
	fs.DurationVar(&f.requests, "eviction-request-patience", 0,
		"How long rules may hold a Pod, from when it is lifecycle-controller's turn to respond to its EvictionRequest "+
			"(KEP-4563), before the next responder gets the turn. The last one, the Eviction API, is held by the same rules where "+
			"webhook-server runs. 0: no limit.")
	f.patient = func() bool { return fs.Changed("cooperator-patience") }
	f.compatibility.AddTo(fs,
		"Operations do not wait for cooperators whose expected finalizers are missing, unless --cooperator-patience is set.")
}

// parse reads what was given.
func (f *waitFlags) parse() error {
	given := podops.Deadlines{}
	var errs []error
	for _, s := range f.given {
		key, deadline, err := podops.ParseDeadline(s)
		if err != nil {
			errs = append(errs, fmt.Errorf("--deadline: %w", err))
			continue
		}
		given[key] = deadline
	}
	f.deadlines = given.Over(defaultDeadlines())
	if f.patience < 0 {
		errs = append(errs, fmt.Errorf("--cooperator-patience: %s is less than 0", f.patience))
	}
	if f.requests < 0 {
		errs = append(errs, fmt.Errorf("--eviction-request-patience: %s is less than 0", f.requests))
	}
	return errors.Join(errs...)
}
