// Package detect finds out what an API server lets anyone change on a running Pod.
package detect

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	"kusionstack.io/kuperator/internal/revision"
)

const (
	// refreshAfter is how long an answer is used, retryAfter how long an old one still is when the server does not answer.
	refreshAfter = 10 * time.Minute
	retryAfter   = time.Minute
	// wholePods is the minor version of Kubernetes 1 from which on pods/resize is about init containers and whole Pods as
	// well. Discovery does not tell; a server where that is turned off refuses, which is handled.
	wholePods = 36
)

// Detector remembers what it found out for some minutes. It may be used by several goroutines at a time.
type Detector struct {
	server discovery.DiscoveryInterfaceWithContext
	clock  clock.PassiveClock
	own    revision.Capabilities

	mu    sync.Mutex
	known bool
	last  revision.Capabilities
	until time.Time
}

// New makes a Detector of the server that config names. Restart and ImagesOnly, which no server tells, are as in own.
// Nothing is asked yet.
func New(config *rest.Config, clock clock.PassiveClock, own revision.Capabilities) (*Detector, error) {
	client, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("making a discovery client: %w", err)
	}
	return &Detector{server: client, clock: clock, own: own}, nil
}

// Capabilities are those of the server, at most some minutes old. An error means that they were never found out.
func (d *Detector) Capabilities(ctx context.Context) (revision.Capabilities, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	now := d.clock.Now()
	if d.known && now.Before(d.until) {
		return d.last, nil
	}
	found, err := ask(ctx, d.server)
	found.Restart, found.ImagesOnly = d.own.Restart, d.own.ImagesOnly
	switch {
	case err == nil:
		d.known, d.last, d.until = true, found, now.Add(refreshAfter)
	case d.known:
		d.until = now.Add(retryAfter)
	default:
		return revision.Capabilities{}, fmt.Errorf("finding out what the API server lets change on Pods: %w", err)
	}
	return d.last, nil
}

// ask is two requests.
func ask(ctx context.Context, server discovery.DiscoveryInterfaceWithContext) (revision.Capabilities, error) {
	resources, err := server.ServerResourcesForGroupVersionWithContext(ctx, "v1")
	if err != nil {
		return revision.Capabilities{}, err
	}
	served := slices.ContainsFunc(resources.APIResources, func(r metav1.APIResource) bool {
		return r.Name == "pods/resize" && slices.Contains(r.Verbs, "patch")
	})
	if !served {
		return revision.Capabilities{}, nil
	}
	version, err := server.ServerVersionWithContext(ctx)
	if err != nil {
		return revision.Capabilities{}, err
	}
	whole := reaches(version.Major, version.Minor)
	return revision.Capabilities{Resize: true, ResizeInit: whole, ResizePod: whole}, nil
}

// reaches reports whether a version is at least the one of wholePods. Some vendors write a minor version as 36+.
func reaches(major, minor string) bool {
	m, err := strconv.Atoi(strings.TrimRight(minor, "+"))
	return err == nil && major == "1" && m >= wholePods
}
