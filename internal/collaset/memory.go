package collaset

import (
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"kusionstack.io/kuperator/internal/collaset/setplan"
	"kusionstack.io/kuperator/internal/podcache"
	"kusionstack.io/kuperator/internal/revision"
	"kusionstack.io/kuperator/internal/writes"
)

// stateCache is what is kept between reconciles. All of it can be lost: it saves reads and writes, and measures delays
// from what this process observed. A CollaSet is reconciled by one worker at a time, so only the map needs the lock.
type stateCache struct {
	mu   sync.Mutex
	sets map[types.NamespacedName]*setState
}

type setState struct {
	uid types.UID
	// generation is the one that rendered and wanted were made from; 0 for none.
	generation int64
	rendered   []byte
	wanted     *revision.Data
	// parsed holds the revisions' contents by UID; changes what lies between them and the one named changesTo.
	parsed    map[types.UID]*revision.Data
	changes   map[string]revision.Change
	changesTo types.UID
	// changesFor are the capabilities that changes were worked out for.
	changesFor revision.Capabilities
	// pods are the Pods as they were read for the last decision, for the selector selected.
	pods     podcache.Memo[setplan.Pod]
	selected string
	// allowed is when the permission on a Pod was first seen.
	allowed map[types.UID]permission
	// carried is when a change that lifecycle-controller is to finish was first seen carried out.
	carried map[types.UID]time.Time
	// restarts are the Pods that ran to their ends.
	restarts restartBackoff
	// creations is what became of the last creations.
	creations createBackoff
	// verdicts are answers of the API server to trials, and to the writes that they are about.
	verdicts verdicts
	// refused are answers of the API server to expansions of claims, by UID.
	mu      sync.Mutex
	refused map[types.UID]refusal
	// claimsUnverified and podsUnverified are true if the cache may lack a claim or a Pod that was created. baseline is
	// what the cache has to show before Pods are in doubt no more, nil before it was read.
	claimsUnverified, podsUnverified atomic.Bool
	// claims are those of the last decision, and strayClaims the CollaSet's that the cache does not find as such, by name.
	// claimsLost is true if one may be among them.
	claims      map[string]claimIdentity
	strayClaims map[string]*corev1.PersistentVolumeClaim
	claimsLost  bool
	baseline    *baseline
	// rollout is what the last decision says of single Pods, nil for nothing.
	rollout atomic.Pointer[rollout]
	// identities is what events tell of Pods' identities. vacancy and unmanaged are what the last list of Pods that the
	// cache does not have told.
	identities identities
	vacancy    vacancy
	unmanaged  []*corev1.Pod
	// decidedAt is when the last decision began, in nanoseconds since 1970.
	decidedAt atomic.Int64
	// statusAt is when status was last written.
	statusAt time.Time
	// statusRefused is the last write of status that met a newer CollaSet than the cache shows.
	statusRefused writes.Refusal
}

// permission is one request on one Pod that was let pass.
type permission struct {
	request string
	since   time.Time
}

func newMemory() *stateCache { return &stateCache{sets: map[types.NamespacedName]*setState{}} }

// of is the memory of a CollaSet; another UID under the same name starts afresh.
func (m *stateCache) of(key types.NamespacedName, uid types.UID) *setState {
	m.mu.Lock()
	defer m.mu.Unlock()
	if s := m.sets[key]; s != nil && s.uid == uid {
		return s
	}
	s := &setState{uid: uid, parsed: map[types.UID]*revision.Data{}, allowed: map[types.UID]permission{}, refused: map[types.UID]refusal{}}
	s.claimsUnverified.Store(true)
	s.podsUnverified.Store(true)
	m.sets[key] = s
	return s
}

// find is the memory of a CollaSet, nil if there is none.
func (m *stateCache) find(key types.NamespacedName, uid types.UID) *setState {
	m.mu.Lock()
	defer m.mu.Unlock()
	if s := m.sets[key]; s != nil && s.uid == uid {
		return s
	}
	return nil
}

// dangles notes a Pod of an earlier CollaSet of the same name.
func (m *stateCache) dangles(set types.NamespacedName, pod string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if s := m.sets[set]; s != nil {
		s.identities.dangles(pod)
	}
}

// refuse remembers the answer to an attempt to expand a claim; attempts are made in parallel.
func (s *setState) refuse(claim types.UID, r refusal) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refused[claim] = r
}

// keepRefusals forgets the answers about claims that are no more.
func (s *setState) keepRefusals(claims []setplan.Claim) {
	if len(s.refused) == 0 {
		return
	}
	kept := map[types.UID]refusal{}
	for i := range claims {
		if r, ok := s.refused[claims[i].UID]; ok {
			kept[claims[i].UID] = r
		}
	}
	s.refused = kept
}

func (m *stateCache) forget(key types.NamespacedName) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.sets, key)
}
