package asking

import (
	"context"
	"errors"
	"fmt"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/internal/callout"
	"kusionstack.io/kuperator/internal/podtransitionrule/asking/exchange"
	"kusionstack.io/kuperator/internal/podtransitionrule/grants"
)

// readersPerPost is how many Pods of one POST are read at once, readersPerSlot how many for each slot of requests.
const readersPerPost, readersPerSlot = 8, 8

// body is what to post about the request's questions. Questions that cannot be asked are taken out of it, with the
// reason; false means that none is left, or that the process ends.
func (a *Asker) body(
	ctx context.Context, i *inquiry, check *appsv1alpha1.TransitionRule, r *exchange.Request,
) ([]byte, bool) {
	parameters, failures := a.parameters(ctx, i.namespace, check.Webhook.Parameters, r.Questions)
	if ctx.Err() != nil {
		return nil, false
	}
	body := exchange.NewBody(string(uuid.NewUUID()), i.namespace, i.ruleName, check)
	size := 0
	a.mu.Lock()
	defer a.mu.Unlock()
	now := a.clock.Now()
	for n, q := range r.Questions {
		if failures[n] != nil {
			i.Withdraw(r, q.Pod, failureOf(failures[n]), now)
			continue
		}
		for key, value := range parameters[n] {
			size += len(key) + len(value)
		}
		if size > exchange.MaxBody && len(body.Resources) > 0 {
			i.Withdraw(r, q.Pod, exchange.Failure{}, now)
			continue
		}
		body.Resources = append(body.Resources, exchange.NewResource(i.namespace, q, parameters[n]))
	}
	if len(body.Resources) == 0 {
		return nil, false
	}
	encoded, err := body.Encode()
	if err != nil {
		i.Failed(*r, failureOf(&callout.Misconfigured{Err: err}), now)
		return nil, false
	}
	return encoded, true
}

// parameters are the values, or what is wrong, of each question.
func (a *Asker) parameters(
	ctx context.Context, namespace string, wanted []appsv1alpha1.Parameter, questions []grants.Question,
) ([]map[string]string, []error) {
	values, failures := make([]map[string]string, len(questions)), make([]error, len(questions))
	read := exchange.NeedPod(wanted)
	slots := make(chan struct{}, readersPerPost)
	var reading sync.WaitGroup
	for n, q := range questions {
		slots <- struct{}{}
		reading.Go(func() {
			defer func() { <-slots }()
			var full map[string]any
			if read {
				a.readers <- struct{}{}
				defer func() { <-a.readers }()
				if full, failures[n] = a.pod(ctx, namespace, q); failures[n] != nil {
					return
				}
			}
			var err error
			if values[n], err = exchange.Parameters(wanted,
				exchange.Pod{Namespace: namespace, Name: q.PodName, UID: string(q.Pod)}, full); err != nil {
				failures[n] = &callout.Misconfigured{Err: err}
			}
		})
	}
	reading.Wait()
	return values, failures
}

// pod reads a whole Pod, as JSON: the cache has only what decisions need.
func (a *Asker) pod(ctx context.Context, namespace string, q grants.Question) (map[string]any, error) {
	var pod corev1.Pod
	err := a.direct.Get(ctx, types.NamespacedName{Namespace: namespace, Name: q.PodName}, &pod)
	switch {
	case apierrors.IsNotFound(err), err == nil && pod.UID != q.Pod:
		return nil, unprepared{errors.New("the Pod is gone")}
	case err != nil:
		return nil, unprepared{fmt.Errorf("the API server did not give the Pod for the parameters: %s",
			apierrors.ReasonForError(err))}
	}
	full, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&pod)
	if err != nil {
		return nil, unprepared{fmt.Errorf("reading the Pod for the parameters: %w", err)}
	}
	return full, nil
}
