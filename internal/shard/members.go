package shard

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"strings"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/utils/ptr"
)

// Replicas announce themselves by annotations of the component's own Lease, which they renew together anyway. So they
// need no names, rights and requests besides, and there may be any number of them.
const memberDomain = ".shards.kuperator.kusionstack.io/"

// announcement is what a replica wrote of itself, when that came to be seen, and for how long it counts.
type announcement struct {
	value string
	at    time.Time
	lasts time.Duration
}

func (a announcement) ends() time.Time { return a.at.Add(a.lasts) }

// memberKey is where a replica announces itself, beside others of its number of shards: identities are too long for
// keys.
func memberKey(shards int, identity string) string {
	sum := sha256.Sum256([]byte(identity))
	return memberPrefix(shards) + hex.EncodeToString(sum[:6])
}

func memberPrefix(shards int) string { return fmt.Sprintf("of-%d%s", shards, memberDomain) }

// announce is the value: who, and since when it says so.
func announce(identity string, now time.Time) string {
	return identity + " " + now.UTC().Format(metav1.RFC3339Micro)
}

// observeMembers takes in what members wrote on the common Lease. One that wrote nothing new for as long as the Lease
// lasts is gone. The caller holds v.mu.
func (v *leaseView) observeMembers(lease *coordinationv1.Lease, now time.Time) {
	for key, value := range lease.Annotations {
		if strings.Contains(key, memberDomain) && v.members[key].value != value {
			v.members[key] = announcement{value: value, at: now,
				lasts: time.Duration(ptr.Deref(lease.Spec.LeaseDurationSeconds, 0)) * time.Second}
		}
	}
	maps.DeleteFunc(v.members, func(key string, _ announcement) bool { return lease.Annotations[key] == "" })
}

// membersOf are the replicas of one number of shards that announce themselves.
func (v *leaseView) membersOf(shards int) []string {
	v.mu.Lock()
	defer v.mu.Unlock()
	var members []string
	for key, m := range v.members {
		if strings.HasPrefix(key, memberPrefix(shards)) && v.clock.Now().Before(m.ends()) {
			identity, _, _ := strings.Cut(m.value, " ")
			members = append(members, identity)
		}
	}
	return members
}

// silent are the members, of any number of shards, that have written nothing new for too long, and what they wrote
// last.
func (v *leaseView) silent() map[string]string {
	v.mu.Lock()
	defer v.mu.Unlock()
	gone := map[string]string{}
	for key, m := range v.members {
		if !v.clock.Now().Before(m.ends()) {
			gone[key] = m.value
		}
	}
	return gone
}

// announcer makes each renewal of the component's own Lease announce this replica.
//
// Renewals are patches, on condition that the Lease is still held together: replicas that wrote the whole of it would
// be in each other's way, all the more the slower the API server is, until some have lost Leases that no other replica
// wanted.
type announcer struct {
	coordinationclient.LeasesGetter
	view             *leaseView
	identity, shared string // of this replica, and of all as holders of the Lease
	key              string

	mu      sync.Mutex // held while the Lease is written, so that no announcement comes after leave
	leaving bool
}

// Leases is part of the client's interface.
func (a *announcer) Leases(namespace string) coordinationclient.LeaseInterface {
	return &announcing{LeaseInterface: a.LeasesGetter.Leases(namespace), announcer: a}
}

// leave takes the announcement back, so that others take over what this replica gives up, and makes no other.
func (a *announcer) leave(ctx context.Context, namespace, name string) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.leaving = true
	_, err := patchLease(ctx, a.LeasesGetter.Leases(namespace), name, operation{Op: "remove", Path: annotationPath(a.key)})
	if apierrors.IsInvalid(err) || apierrors.IsNotFound(err) { // it was not announced
		return nil
	}
	return err
}

// removeStale takes back the announcements of members that are gone, unless they have written others since.
func (a *announcer) removeStale(ctx context.Context, namespace, name string, gone map[string]string) {
	for key, value := range gone {
		path := annotationPath(key)
		_, err := patchLease(ctx, a.LeasesGetter.Leases(namespace), name, operation{"test", path, value},
			operation{Op: "remove", Path: path})
		if err != nil && !apierrors.IsInvalid(err) { // another replica may have done it
			return
		}
	}
}

type announcing struct {
	coordinationclient.LeaseInterface
	*announcer
}

// Create creates the Lease with the announcement.
func (a *announcing) Create(
	ctx context.Context, lease *coordinationv1.Lease, o metav1.CreateOptions,
) (*coordinationv1.Lease, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.LeaseInterface.Create(ctx, a.announced(lease), o)
}

// Update renews the Lease by a patch if it is held together already. What cannot be patched, as when a user took all
// annotations away, is read afresh and written, if it is still held together.
func (a *announcing) Update(
	ctx context.Context, lease *coordinationv1.Lease, o metav1.UpdateOptions,
) (*coordinationv1.Lease, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	seen, ok, _ := a.view.last(lease.Name)
	next := resourcelock.LeaseSpecToLeaderElectionRecord(&lease.Spec)
	if !ok || seen.record.HolderIdentity != a.shared || next.HolderIdentity != a.shared {
		return a.LeaseInterface.Update(ctx, a.announced(lease), o)
	}
	if next.LeaderTransitions == seen.record.LeaderTransitions &&
		next.LeaseDurationSeconds <= seen.record.LeaseDurationSeconds {
		renewed, err := patchLease(ctx, a.LeaseInterface, lease.Name, a.renewal(&seen.record, next)...)
		if !apierrors.IsInvalid(err) {
			return renewed, err
		}
	}
	now, err := a.Get(ctx, lease.Name, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	held := resourcelock.LeaseSpecToLeaderElectionRecord(&now.Spec)
	if held.HolderIdentity != a.shared {
		return nil, apierrors.NewConflict(coordinationv1.Resource("leases"), lease.Name,
			fmt.Errorf("%q holds it", held.HolderIdentity))
	}
	next.LeaseDurationSeconds = max(next.LeaseDurationSeconds, held.LeaseDurationSeconds)
	now.Spec = resourcelock.LeaderElectionRecordToLeaseSpec(next)
	return a.LeaseInterface.Update(ctx, a.announced(now), o)
}

// renewal writes when the Lease was renewed, and for whom. Its duration stays: that of a replica with a longer one
// counts on it.
func (a *announcing) renewal(seen, next *resourcelock.LeaderElectionRecord) []operation {
	operations := []operation{
		{"test", "/spec/holderIdentity", a.shared},
		{"test", "/spec/leaseDurationSeconds", seen.LeaseDurationSeconds},
		{"add", "/spec/renewTime", metav1.NewMicroTime(next.RenewTime.Time)},
	}
	if a.leaving {
		return operations
	}
	return append(operations, operation{"add", annotationPath(a.key), announce(a.identity, a.view.clock.Now())})
}

// announced is the Lease with this replica's announcement.
func (a *announcing) announced(lease *coordinationv1.Lease) *coordinationv1.Lease {
	lease = lease.DeepCopy()
	if !a.leaving {
		metav1.SetMetaDataAnnotation(&lease.ObjectMeta, a.key, announce(a.identity, a.view.clock.Now()))
	}
	return lease
}

// operation is one of a JSON patch (RFC 6902). Where a test fails nothing is done, and the API server answers 422.
type operation struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value,omitempty"`
}

func patchLease(
	ctx context.Context, leases coordinationclient.LeaseInterface, name string, operations ...operation,
) (*coordinationv1.Lease, error) {
	body, err := json.Marshal(operations)
	if err != nil {
		return nil, err
	}
	return leases.Patch(ctx, name, types.JSONPatchType, body, metav1.PatchOptions{})
}

func annotationPath(key string) string {
	return "/metadata/annotations/" + strings.NewReplacer("~", "~0", "/", "~1").Replace(key)
}
