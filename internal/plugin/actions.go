package plugin

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/internal/dashboard"
	"kusionstack.io/kuperator/internal/insight"
)

// pageActor does for the live page what the commands do.
type pageActor struct {
	p      *plugin
	source *fleetSource

	terminal sync.Mutex
}

// Offer implements dashboard.Actor: each change is tried in a dry run, so that roles, policies and webhooks have their
// say.
func (a *pageActor) Offer(ctx context.Context, workload insight.Ref, verb insight.Verb) (dashboard.Offer, error) {
	set, err := a.read(ctx, workload)
	if err != nil {
		return dashboard.Offer{}, a.refusal(ctx, err)
	}
	var back *insight.Revision
	var unknown error // why it is not known what to go back to
	if verb == "" || verb == insight.VerbUndo {
		back, unknown = a.source.back(ctx, set)
	}
	offer := dashboard.Offer{Version: versionOf(set), Actions: []insight.Action{}}
	for _, action := range insight.Actions(set, back) {
		if verb != "" && action.Verb != verb {
			continue
		}
		_, err := a.do(gathering(ctx, &action.Warnings), set, action.Verb, action.Revision, dryRunServer)
		if err != nil {
			if ctx.Err() != nil {
				return offer, err
			}
			action.Refused = a.refusal(ctx, err).Reason
		}
		offer.Actions = append(offer.Actions, action)
	}
	if unknown != nil {
		offer.Actions = append(offer.Actions,
			insight.Action{Verb: insight.VerbUndo, Refused: a.refusal(ctx, unknown).Reason})
	}
	return offer, nil
}

// Act implements dashboard.Actor, and prints on the terminal what was done or why not.
func (a *pageActor) Act(ctx context.Context, order dashboard.Order) (dashboard.Outcome, error) {
	c, err := a.obey(ctx, order)
	a.terminal.Lock()
	defer a.terminal.Unlock()
	fmt.Fprintf(a.p.Out, "%s  %s %s in namespace %s, on the page\n", a.source.s.clock.Now().Format(time.TimeOnly),
		order.Verb, shown(order.Ref), order.Namespace)
	if err != nil {
		refusal := a.refusal(ctx, err)
		fmt.Fprintf(a.p.ErrOut, "error: %v\n", refusal)
		return dashboard.Outcome{}, refusal
	}
	writeChange(a.p.Out, c)
	return dashboard.Outcome{Text: c.text(), Details: c.Details}, nil
}

// obey does what was ordered, to the very CollaSet that the user has seen.
func (a *pageActor) obey(ctx context.Context, order dashboard.Order) (change, error) {
	set, err := a.read(ctx, order.Ref)
	if err != nil {
		return change{}, err
	}
	if versionOf(set) != order.Version {
		return change{}, &dashboard.Refusal{Status: http.StatusConflict, Reason: fmt.Sprintf(
			"collaset/%s has been changed meanwhile, and nothing was written: see what is there now, and try again", set.Name)}
	}
	return a.do(ctx, set, order.Verb, order.Revision, dryRunNone)
}

// do calls what the command of that name calls.
func (a *pageActor) do(
	ctx context.Context, set *appsv1alpha1.CollaSet, verb insight.Verb, revision int64, dry dryRun,
) (change, error) {
	s := a.source.s
	switch verb {
	case insight.VerbPause:
		return s.pause(ctx, set, dry)
	case insight.VerbResume:
		return s.resume(ctx, set, dry)
	case insight.VerbPromote:
		return s.promote(ctx, set, nil, dry)
	case insight.VerbUndo:
		return s.undo(ctx, set, revision, dry)
	case insight.VerbRestart:
		return s.restart(ctx, set, dry)
	}
	return change{}, &dashboard.Refusal{Status: http.StatusBadRequest, Reason: fmt.Sprintf("%q is no action", verb)}
}

// read is the CollaSet as the API server has it.
func (a *pageActor) read(ctx context.Context, workload insight.Ref) (*appsv1alpha1.CollaSet, error) {
	if err := a.source.shows(workload); err != nil {
		return nil, err
	}
	if workload.Kind != appsv1alpha1.CollaSetKind {
		return nil, fmt.Errorf("actions are for CollaSets, and %s is none", shown(workload))
	}
	set, err := a.source.s.suite.AppsV1alpha1().CollaSets(workload.Namespace).Get(ctx, workload.Name, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("reading collaset/%s in namespace %s: %w", workload.Name, workload.Namespace, err)
	}
	return set, nil
}

// versionOf is a CollaSet's spec: its status changes all the time.
func versionOf(set *appsv1alpha1.CollaSet) string {
	return fmt.Sprintf("%s/%d", set.UID, set.Generation)
}

// refusal is an error for the page: what its user can do about it first.
func (a *pageActor) refusal(ctx context.Context, err error) *dashboard.Refusal {
	if r := (*dashboard.Refusal)(nil); errors.As(err, &r) {
		return r
	}
	r := &dashboard.Refusal{Status: http.StatusBadGateway}
	switch {
	case apierrors.IsConflict(err):
		r.Status = http.StatusConflict
	case apierrors.IsForbidden(err):
		r.Status = http.StatusForbidden
	case apierrors.IsNotFound(err):
		r.Status = http.StatusNotFound
	}
	err = a.p.advised(ctx, err)
	if advised := (*advisedError)(nil); errors.As(err, &advised) {
		r.Reason, r.Answer = advised.advice, advised.error.Error()
	} else {
		r.Reason = err.Error()
	}
	return r
}

// back is the revision that undo goes back to, compared with the present one; nil if there is no earlier one.
func (f *fleetSource) back(ctx context.Context, set *appsv1alpha1.CollaSet) (*insight.Revision, error) {
	list, contents, err := f.s.revisions(ctx, set)
	if err != nil {
		return nil, err
	}
	wanted, err := undoTarget(set, list, contents, 0)
	if err != nil {
		if set.Status.ObservedGeneration == set.Generation {
			err = nil // there is no earlier one
		}
		return nil, err
	}
	facts, err := f.now(ctx, refOfSet(set))
	if err != nil {
		return nil, err
	}
	can, err := f.capabilities(ctx)
	if err != nil {
		return nil, err
	}
	pair := []appsv1.ControllerRevision{*wanted}
	at := slices.IndexFunc(list, func(r appsv1.ControllerRevision) bool { return r.Name == set.Status.UpdatedRevision })
	if at >= 0 {
		pair = []appsv1.ControllerRevision{list[at], *wanted}
	}
	entries := historyOf(set, pair, contents, facts.Pods, can)
	return &entries[len(entries)-1], nil
}
