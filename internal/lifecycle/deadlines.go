package lifecycle

import (
	"errors"
	"fmt"
	"time"

	"github.com/spf13/pflag"

	"kusionstack.io/kuperator/api/podops"
)

// deadlineFlags collects --deadline over the defaults, key by key.
type deadlineFlags struct {
	given     []string
	deadlines podops.Deadlines
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

func (f *deadlineFlags) add(fs *pflag.FlagSet) {
	fs.StringArrayVar(&f.given, "deadline", nil, "How long a phase of an operation may take, <phase>[/<type>]=<duration>[,<policy>]; may be repeated. "+
		"Phases: PreCheck, Preparing, Operate, PostCheck, Completing. Policies: Wait (only report), Cancel (PreCheck and Preparing), Proceed (all but PreCheck). "+
		"0s: none. Defaults, each with Wait: PreCheck=1h, Preparing=10m, Operate=1h, PostCheck=1h, Completing=10m. "+
		"A Pod's annotation "+podops.DeadlinesAnnotation+" wins, key by key.")
}

// parse reads what was given.
func (f *deadlineFlags) parse() error {
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
	return errors.Join(errs...)
}
