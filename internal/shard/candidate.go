package shard

import (
	"context"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/utils/clock"
)

// CandidateOptions say for which Lease one stands. All but Events are needed.
type CandidateOptions struct {
	Namespace, Name, Identity string
	// Client is for Leases only, Watcher watches them, for as long as it likes.
	Client, Watcher coordinationclient.CoordinationV1Interface
	// Events may be nil.
	Events resourcelock.EventRecorder
	// RenewDeadline and RetryPeriod are as in client-go's leaderelection.
	RenewDeadline, RetryPeriod time.Duration
	Clock                      clock.Clock
}

// Candidate is the Lease of a component of which one replica leads. Those that wait for it watch it instead of asking
// every retry period: they take what is given back at once, and what has run out when it has.
type Candidate struct {
	*lock
	options CandidateOptions
}

var _ resourcelock.Interface = &Candidate{}

// NewCandidate makes one. It watches when it is started, which is for a manager to do.
func NewCandidate(o CandidateOptions) *Candidate {
	return &Candidate{options: o, lock: &lock{
		Interface: &resourcelock.LeaseLock{
			LeaseMeta: metav1.ObjectMeta{Namespace: o.Namespace, Name: o.Name}, Client: o.Client,
			LockConfig: resourcelock.ResourceLockConfig{Identity: o.Identity, EventRecorder: o.Events},
		},
		name: o.Name, view: newLeaseView(o.Clock, ""), patient: true,
		lease: newLeaseTerm(o.Clock, o.RetryPeriod, o.RenewDeadline),
	}}
}

// Fence keeps back what this process would write after its Lease has run out.
func (c *Candidate) Fence() *LeaseFence {
	return &LeaseFence{terms: []*leaseTerm{c.lease}, candidate: true}
}

// Start watches the Lease until ctx ends.
func (c *Candidate) Start(ctx context.Context) error {
	if err := c.view.watch(ctx, ctx.Done(), c.options.Watcher.RESTClient(), c.options.Namespace, []string{c.options.Name},
		func() {}); err != nil {
		return err
	}
	<-ctx.Done()
	return nil
}

// NeedLeaderElection is always false: who waits has to watch.
func (c *Candidate) NeedLeaderElection() bool { return false }
