package bulk

import (
	"cmp"
	"errors"
	"fmt"
	"time"

	api "kusionstack.io/kuperator/api/resourceconsist"
)

// withDefaults fills in what the documentation of api.CallOptions says for zero.
func withDefaults(o api.CallOptions) api.CallOptions {
	o.BatchSize = cmp.Or(o.BatchSize, 100)
	o.BatchWindow = cmp.Or(o.BatchWindow, 50*time.Millisecond)
	o.QPS, o.Burst = cmp.Or(o.QPS, 10), cmp.Or(o.Burst, 20)
	o.Concurrency = cmp.Or(o.Concurrency, 5)
	o.Timeout = cmp.Or(o.Timeout, 10*time.Second)
	o.Poll, o.MaxPoll = cmp.Or(o.Poll, 200*time.Millisecond), cmp.Or(o.MaxPoll, 5*time.Second)
	o.MaxBackoff = cmp.Or(o.MaxBackoff, time.Minute)
	o.Resync = cmp.Or(o.Resync, 10*time.Minute)
	o.MaxPoll = max(o.MaxPoll, o.Poll)
	o.MaxBackoff = max(o.MaxBackoff, o.MaxPoll)
	return o
}

// validate says what cannot be done.
func validate(o api.CallOptions) error {
	var errs []error
	for _, v := range []struct {
		name     string
		negative bool
		value    any
	}{
		{"BatchSize", o.BatchSize < 0, o.BatchSize},
		{"BatchWindow", o.BatchWindow < 0, o.BatchWindow},
		{"Burst", o.Burst < 0, o.Burst},
		{"Concurrency", o.Concurrency < 0, o.Concurrency},
		{"Timeout", o.Timeout < 0, o.Timeout},
		{"Poll", o.Poll < 0, o.Poll},
		{"MaxPoll", o.MaxPoll < 0, o.MaxPoll},
		{"MaxBackoff", o.MaxBackoff < 0, o.MaxBackoff},
		{"Resync", o.Resync < 0, o.Resync},
	} {
		if v.negative {
			errs = append(errs, fmt.Errorf("CallOptions.%s is %v: give zero for the default, or more", v.name, v.value))
		}
	}
	return errors.Join(errs...)
}
