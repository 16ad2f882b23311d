package resourceconsist

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	api "kusionstack.io/kuperator/api/resourceconsist"
	"kusionstack.io/kuperator/internal/resourceconsist/backend"
)

// provisions remembers what was made for which employer. The zero value is ready to use. Losing it all, at a restart,
// makes every resource once more, which is idempotent.
type provisions struct {
	mu   sync.Mutex
	done map[provisionKey]provision
}

type provisionKey struct {
	uid     types.UID
	adapter string
}

// provision is the state of one adapter's resource for one employer.
type provision struct {
	// made is true if the resource was made, wanted is for which state of the employer, "" for none: it was removed.
	made   bool
	wanted *string
	// failures is how often in a row the last call for tried failed, notBefore when the next may be made.
	tried     *string
	failures  int
	notBefore time.Time
}

func (p *provisions) get(key provisionKey) provision {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.done[key]
}

func (p *provisions) put(key provisionKey, state provision) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.done == nil {
		p.done = map[provisionKey]provision{}
	}
	p.done[key] = state
}

func (p *provisions) forget(uid types.UID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	maps.DeleteFunc(p.done, func(k provisionKey, _ provision) bool { return k.uid == uid })
}

// made reports whether everything is there that the adapters by which the employer employs Pods have to make. A state
// of the employer that could not be made yet does not undo an earlier one.
func (c *podController) made(object client.Object, selectors []labels.Selector) bool {
	for i, a := range c.adapters {
		if a.Provisioner() != nil && selectors[i] != nil && !c.provisions.get(provisionKey{object.GetUID(), a.Name()}).made {
			return false
		}
	}
	return true
}

// firstRetry is the delay after the first failure; each further one doubles it.
const firstRetry = 100 * time.Millisecond

// provisionOne makes the resource of one adapter as it is wanted, "" for none, unless it is that already or a failure
// is too recent. It returns whether it was made or removed now, and how long to wait otherwise, zero if there is
// nothing to do.
func (r *employerController) provisionOne(
	ctx context.Context, object client.Object, adapter backend.Backend, wanted string,
) (changed bool, wait time.Duration) {
	provisioner := adapter.Provisioner()
	if provisioner == nil {
		return false, 0
	}
	key := provisionKey{object.GetUID(), adapter.Name()}
	state, now := r.pods.provisions.get(key), r.clock.Now()
	if state.wanted != nil && *state.wanted == wanted {
		return false, 0
	}
	if state.tried != nil && *state.tried == wanted && now.Before(state.notBefore) {
		return false, state.notBefore.Sub(now)
	}
	call, what := provisioner.Provision, "provisioning"
	if wanted == "" {
		call, what = provisioner.Deprovision, "deprovisioning"
	}
	err := call(ctx, object)
	condition := outcome(err)
	if err != nil {
		condition.Message = what + ": " + condition.Message
	}
	r.backendConditions.report(subject{client.ObjectKeyFromObject(object), adapter.Name(), "provision"}, condition)
	if err == nil {
		r.pods.provisions.put(key, provision{made: wanted != "", wanted: &wanted})
		return true, 0
	}
	if state.tried == nil || *state.tried != wanted {
		state.failures = 0
	}
	wait = min(firstRetry<<min(state.failures, 20), r.pods.options.MaxBackoff)
	state.tried, state.failures, state.notBefore = &wanted, state.failures+1, r.clock.Now().Add(wait)
	r.pods.provisions.put(key, state)
	log.FromContext(ctx).V(1).Info(what+" failed", "adapter", adapter.Name(), "error", err.Error(),
		"failures", state.failures, "retryIn", wait)
	return false, wait
}

// wantedOf tells states of an employer apart that may want another resource: everything but its status and what the
// machinery keeps in its metadata.
func wantedOf(object client.Object) (string, error) {
	raw, err := json.Marshal(object)
	if err != nil {
		return "", fmt.Errorf("encoding %s: %w", client.ObjectKeyFromObject(object), err)
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(raw, &fields); err != nil {
		return "", fmt.Errorf("decoding %s: %w", client.ObjectKeyFromObject(object), err)
	}
	delete(fields, "status")
	delete(fields, "metadata")
	annotations := maps.Clone(object.GetAnnotations())
	delete(annotations, api.AdaptersAnnotation)
	wanted, err := json.Marshal([]any{object.GetLabels(), annotations, fields})
	return string(wanted), err
}
