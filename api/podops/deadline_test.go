package podops_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"kusionstack.io/kuperator/api/podops"
)

func TestParseDeadlines(t *testing.T) {
	for name, tc := range map[string]struct {
		raw  string
		want podops.Deadlines
		err  string
	}{
		"no annotation": {"", nil, ""},
		"a phase, and a type of its own": {
			`{"Preparing":{"after":"10m"},"Preparing/scale-in":{"after":"1m30s","policy":"Cancel"}}`,
			podops.Deadlines{
				{Phase: podops.PhasePreparing}:                   {After: 10 * time.Minute, Policy: podops.DeadlineWait},
				{Phase: podops.PhasePreparing, Type: "scale-in"}: {After: 90 * time.Second, Policy: podops.DeadlineCancel},
			}, "",
		},
		"no JSON":                   {`10m`, nil, "is not the JSON"},
		"a duration without a unit": {`{"Operate":{"after":"10"}}`, podops.Deadlines{}, "give for example 90s"},
		"a negative duration":       {`{"Operate":{"after":"-1m"}}`, podops.Deadlines{}, "is no duration"},
		"a phase that ends by itself": {`{"Undone":{"after":"1m"}}`, podops.Deadlines{},
			"no phase that a deadline can be for"},
		"an empty type": {`{"Operate/":{"after":"1m"}}`, podops.Deadlines{}, "leave out the slash"},
		"Cancel after something was done": {`{"Operate":{"after":"1m","policy":"Cancel"}}`,
			podops.Deadlines{{Phase: podops.PhaseOperate}: {After: time.Minute, Policy: podops.DeadlineWait}},
			"Wait or Proceed"},
		"Proceed past the rules": {`{"PreCheck":{"after":"1m","policy":"Proceed"}}`,
			podops.Deadlines{{Phase: podops.PhasePreCheck}: {After: time.Minute, Policy: podops.DeadlineWait}},
			podops.SkipRulesAnnotation},
		"an unknown policy": {`{"Operate":{"after":"1m","policy":"Panic"}}`,
			podops.Deadlines{{Phase: podops.PhaseOperate}: {After: time.Minute, Policy: podops.DeadlineWait}},
			`"Panic" does not exist`},
		"a bad entry does not hide a good one": {`{"Nope":{"after":"1m"},"Operate":{"after":"1m"}}`,
			podops.Deadlines{{Phase: podops.PhaseOperate}: {After: time.Minute, Policy: podops.DeadlineWait}}, `"Nope"`},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := podops.ParseDeadlines(map[string]string{podops.DeadlinesAnnotation: tc.raw})
			assert.Equal(t, tc.want, got)
			if tc.err == "" {
				assert.NoError(t, err)
			} else {
				assert.ErrorContains(t, err, tc.err)
			}
		})
	}
}

func TestParseDeadline(t *testing.T) {
	key, deadline, err := podops.ParseDeadline("Completing/update=20m,Proceed")
	require.NoError(t, err)
	assert.Equal(t, podops.DeadlineKey{Phase: podops.PhaseCompleting, Type: "update"}, key)
	assert.Equal(t, podops.Deadline{After: 20 * time.Minute, Policy: podops.DeadlineProceed}, deadline)
	for _, bad := range []string{"Completing", "Completing=", "Completing=1m,Cancel", "=1m", "PreCheck=1m,Proceed"} {
		_, _, err := podops.ParseDeadline(bad)
		assert.Error(t, err, bad)
	}
}

func TestDeadlinesFor(t *testing.T) {
	flags := podops.Deadlines{
		{Phase: podops.PhasePreparing}:                 {After: time.Minute, Policy: podops.DeadlineWait},
		{Phase: podops.PhasePreparing, Type: "update"}: {After: 2 * time.Minute, Policy: podops.DeadlineCancel},
		{Phase: podops.PhaseOperate}:                   {After: time.Hour, Policy: podops.DeadlineWait},
	}
	merged := podops.Deadlines{
		{Phase: podops.PhasePreparing}: {After: 3 * time.Minute, Policy: podops.DeadlineProceed},
		{Phase: podops.PhaseOperate}:   {},
	}.Over(flags)
	for name, tc := range map[string]struct {
		phase  podops.Phase
		opType string
		want   time.Duration
	}{
		"the annotation's phase":                           {podops.PhasePreparing, "restart", 3 * time.Minute},
		"the flag's type wins over the annotation's phase": {podops.PhasePreChecked, "update", 2 * time.Minute},
		"0s is none": {podops.PhaseOperate, "update", 0},
		"no key":     {podops.PhaseCompleting, "update", 0},
		"no phase":   {podops.PhaseUndone, "update", 0},
	} {
		t.Run(name, func(t *testing.T) {
			got, ok := merged.For(tc.phase, tc.opType)
			assert.Equal(t, tc.want, got.After)
			assert.Equal(t, tc.want > 0, ok)
		})
	}
	assert.Len(t, flags, 3, "the defaults are not changed")
}
