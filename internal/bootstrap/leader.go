package bootstrap

import (
	"context"
	"fmt"
	"os"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/uuid"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"

	"kusionstack.io/kuperator/internal/shard"
)

// newLed is the manager of a component of which one replica leads, and acts alone.
func newLed(
	ctx context.Context, c *Component, o *Options, cfg *rest.Config, options ctrl.Options,
) (ctrl.Manager, error) {
	identity, err := newIdentity()
	if err != nil {
		return nil, err
	}
	leases, watcher, err := leaseClients(cfg, o)
	if err != nil {
		return nil, err
	}
	events := &electionEvents{}
	candidate := shard.NewCandidate(shard.CandidateOptions{
		Namespace: o.LeaderElectNamespace, Name: o.Name, Identity: identity, Client: leases, Watcher: watcher, Events: events,
		RenewDeadline: o.RenewDeadline, RetryPeriod: o.RetryPeriod, Clock: clock.RealClock{},
	})
	options.LeaderElectionResourceLockInterface = candidate
	cfg = rest.CopyConfig(cfg)
	cfg.Wrap(candidate.Fence().Wrap)
	mgr, err := ctrl.NewManager(cfg, options)
	if err != nil {
		return nil, fmt.Errorf("preparing the manager: %w", err)
	}
	events.to = mgr.GetEventRecorderFor(identity) //nolint:staticcheck // client-go's election uses no other yet
	if err := mgr.Add(candidate); err != nil {
		return nil, err
	}
	if err := c.Setup(ctx, mgr, *o); err != nil {
		return nil, fmt.Errorf("setting up %s: %w", c.Name, err)
	}
	return mgr, nil
}

// newIdentity tells this process from all others.
func newIdentity() (string, error) {
	host, err := os.Hostname()
	if err != nil {
		return "", fmt.Errorf("naming this replica: %w", err)
	}
	return host + "_" + string(uuid.NewUUID()), nil
}

// leaseClients are one for asking for Leases, where one request that hangs loses none, as controller-runtime has it,
// and one for watching them.
func leaseClients(
	cfg *rest.Config, o *Options,
) (asking, watching coordinationclient.CoordinationV1Interface, err error) {
	cfg = rest.AddUserAgent(rest.CopyConfig(cfg), "leader-election")
	if watching, err = coordinationclient.NewForConfig(cfg); err == nil {
		cfg.Timeout = max(time.Second, o.RenewDeadline/2)
		asking, err = coordinationclient.NewForConfig(cfg)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("preparing the clients of Leases: %w", err)
	}
	return asking, watching, nil
}

// electionEvents passes events of an election on to a recorder that is there only after the election's Lease is.
type electionEvents struct{ to resourcelock.EventRecorder }

// Eventf is part of resourcelock.EventRecorder.
func (e *electionEvents) Eventf(object runtime.Object, kind, reason, message string, args ...any) {
	e.to.Eventf(object, kind, reason, message, args...)
}
