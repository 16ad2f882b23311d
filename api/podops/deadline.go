package podops

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"
)

// DeadlinePolicy is the reaction to an operation past the deadline of its phase.
type DeadlinePolicy string

const (
	// DeadlineWait only reports. "" means the same.
	DeadlineWait DeadlinePolicy = "Wait"
	// DeadlineCancel reports and undoes the operation. For PreCheck and Preparing only.
	DeadlineCancel DeadlinePolicy = "Cancel"
	// DeadlineProceed reports and continues without what the phase waits for. For every phase except PreCheck (see
	// AdvanceWaiving).
	DeadlineProceed DeadlinePolicy = "Proceed"
)

// Deadline is how long a phase may take. A zero After means no deadline.
type Deadline struct {
	After  time.Duration
	Policy DeadlinePolicy
}

// DeadlineKey identifies a deadline. Phase is PreCheck, Preparing, Operate, PostCheck or Completing. Type is "" for
// operations of every type.
type DeadlineKey struct {
	Phase Phase
	Type  string
}

// Deadlines are the deadlines of one Pod, or of the suite.
type Deadlines map[DeadlineKey]Deadline

// deadlinePhases are the phases that can have a deadline, in order.
var deadlinePhases = [...]Phase{PhasePreCheck, PhasePreparing, PhaseOperate, PhasePostCheck, PhaseCompleting}

// DeadlinePhase is the phase whose deadline applies to an operation in phase p; "" for phases that end without waiting.
func DeadlinePhase(p Phase) Phase {
	switch p {
	case PhaseRequested, PhasePreCheck:
		return PhasePreCheck
	case PhasePreChecked, PhasePreparing:
		return PhasePreparing
	case PhaseOperate:
		return PhaseOperate
	case PhaseFinished, PhasePostCheck:
		return PhasePostCheck
	case PhasePostChecked, PhaseCompleting:
		return PhaseCompleting
	case PhaseNone, PhaseUndone, PhaseAbandoned:
		return PhaseNone
	}
	return PhaseNone
}

// For returns the deadline of a phase of an operation of this type: a key with the type takes precedence over the phase
// alone. It is false if there is no deadline.
func (d Deadlines) For(p Phase, opType string) (Deadline, bool) {
	p = DeadlinePhase(p)
	found, ok := d[DeadlineKey{p, opType}]
	if !ok {
		found, ok = d[DeadlineKey{Phase: p}]
	}
	return found, ok && found.After > 0
}

// Over returns defaults with the keys of d in place of those of defaults. Neither is changed.
func (d Deadlines) Over(defaults Deadlines) Deadlines {
	if len(d) == 0 {
		return defaults
	}
	merged := maps.Clone(defaults)
	if merged == nil {
		merged = Deadlines{}
	}
	maps.Copy(merged, d)
	return merged
}

// ParseDeadlines reads DeadlinesAnnotation. Invalid entries are omitted; a policy that is not valid for its phase
// becomes DeadlineWait. The error names the remedy for each, and is returned together with the valid entries. Without
// the annotation both are nil.
func ParseDeadlines(annotations map[string]string) (Deadlines, error) {
	raw := annotations[DeadlinesAnnotation]
	if raw == "" {
		return nil, nil
	}
	var entries map[string]struct {
		After  string         `json:"after"`
		Policy DeadlinePolicy `json:"policy"`
	}
	if err := json.Unmarshal([]byte(raw), &entries); err != nil {
		return nil, fmt.Errorf(
			`annotation %s is not the JSON {"<phase>[/<type>]":{"after":"10m","policy":"Wait"}}, correct or remove it: %w`,
			DeadlinesAnnotation, err)
	}
	var errs []error
	deadlines := Deadlines{}
	for _, name := range slices.Sorted(maps.Keys(entries)) {
		key, err := parseDeadlineKey(name)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		deadline, err := parseDeadline(key, entries[name].After, entries[name].Policy)
		if err != nil {
			errs = append(errs, fmt.Errorf("%q: %w", name, err))
		}
		if deadline.Policy != "" {
			deadlines[key] = deadline
		}
	}
	if len(errs) > 0 {
		return deadlines, fmt.Errorf("annotation %s: %w", DeadlinesAnnotation, errors.Join(errs...))
	}
	return deadlines, nil
}

// ParseDeadline reads "<phase>[/<type>]=<duration>[,<policy>]", the form of a flag.
func ParseDeadline(s string) (DeadlineKey, Deadline, error) {
	name, value, ok := strings.Cut(s, "=")
	if !ok {
		return DeadlineKey{}, Deadline{}, fmt.Errorf(
			"deadline %q: write <phase>[/<type>]=<duration>[,<policy>], for example Preparing/update=10m,Cancel", s)
	}
	key, err := parseDeadlineKey(name)
	if err != nil {
		return DeadlineKey{}, Deadline{}, err
	}
	after, policy, _ := strings.Cut(value, ",")
	deadline, err := parseDeadline(key, after, DeadlinePolicy(policy))
	if err != nil {
		return DeadlineKey{}, Deadline{}, fmt.Errorf("deadline %q: %w", s, err)
	}
	return key, deadline, nil
}

func parseDeadlineKey(s string) (DeadlineKey, error) {
	phase, opType, typed := strings.Cut(s, "/")
	if !slices.Contains(deadlinePhases[:], Phase(phase)) {
		return DeadlineKey{}, fmt.Errorf("%q: %q is no phase that a deadline can be for, give one of %v", s,
			phase, deadlinePhases)
	}
	if typed && (opType == "" || len(validation.IsValidLabelValue(opType)) > 0) {
		return DeadlineKey{}, fmt.Errorf("%q: %q is no operation type, give the type or leave out the slash", s, opType)
	}
	return DeadlineKey{Phase(phase), opType}, nil
}

// parseDeadline returns a zero Deadline if the duration is not valid, and one that only reports if the policy is not
// valid for the phase.
func parseDeadline(key DeadlineKey, after string, policy DeadlinePolicy) (Deadline, error) {
	d, err := time.ParseDuration(after)
	if err != nil || d < 0 {
		return Deadline{}, fmt.Errorf("%q is no duration, give for example 90s, 10m or 1h, or 0s for none", after)
	}
	switch policy {
	case "", DeadlineWait:
		return Deadline{d, DeadlineWait}, nil
	case DeadlineCancel:
		if key.Phase != PhasePreCheck && key.Phase != PhasePreparing {
			return Deadline{d, DeadlineWait}, fmt.Errorf(
				"policy Cancel is for PreCheck and Preparing only: in %s something may have been done already; give Wait or Proceed",
				key.Phase)
		}
	case DeadlineProceed:
		if key.Phase == PhasePreCheck {
			return Deadline{d, DeadlineWait}, fmt.Errorf(
				"policy Proceed is not for PreCheck: excuse the Pod from a rule with annotation %s instead; give Wait or Cancel",
				SkipRulesAnnotation)
		}
	default:
		return Deadline{d, DeadlineWait}, fmt.Errorf("policy %q does not exist, give Wait, Cancel or Proceed", policy)
	}
	return Deadline{d, policy}, nil
}
