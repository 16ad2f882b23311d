package haproxy

import (
	"context"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	ctrl "sigs.k8s.io/controller-runtime"

	api "kusionstack.io/kuperator/api/resourceconsist"
)

// answerTime bounds what is done in one look at an instance.
const answerTime = 10 * time.Second

// Start watches the instances until ctx ends: it fills one again that has lost its servers, and takes servers out of
// those that wait for their sessions. It is a manager.Runnable; only the leader runs it.
func (a *Adapter) Start(ctx context.Context) error {
	var wg sync.WaitGroup
	for _, i := range a.instances {
		wg.Go(func() {
			w := &watcher{instance: i}
			wait.UntilWithContext(ctx, func(ctx context.Context) { a.tell(ctx, i, w) }, a.options.ProbeInterval)
		})
	}
	wg.Wait()
	return nil
}

// watcher is what is remembered of an instance from look to look.
type watcher struct {
	*instance
	// last is the process that answered last, filled whether it is known to have its servers.
	last   process
	filled bool
	// trouble is the text of the last error, told once.
	trouble string
}

// tell looks once, and says what changed.
func (a *Adapter) tell(ctx context.Context, i *instance, w *watcher) {
	log := ctrl.LoggerFrom(ctx).WithName(Name).WithValues("instance", i.name)
	restarted, failed, err := w.look(ctx)
	if ctx.Err() != nil {
		return
	}
	if restarted {
		log.Info("HAProxy was restarted and has lost its dynamic servers: filling it again")
	}
	answers := 1.0
	if err != nil {
		answers = 0
	} else if len(failed) > 0 {
		err = api.MemberErrors(failed)
	}
	a.up.WithLabelValues(i.name).Set(answers)
	switch {
	case err == nil && w.trouble != "":
		w.trouble = ""
		log.Info("HAProxy answers again and has its servers")
	case err != nil && err.Error() != w.trouble:
		w.trouble = err.Error()
		log.Error(err, "HAProxy does not follow: Pods that it serves neither join nor leave until it does")
	}
}

// look finds out whether the process was restarted. Whatever makes it doubtful that a process has its servers makes it
// be filled: that is a reading, and no more, if they are there.
func (w *watcher) look(ctx context.Context) (restarted bool, failed map[string]error, err error) {
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	now, err := w.process(ctx)
	if err != nil {
		w.filled = false
		return false, nil, err
	}
	restarted = w.last != (process{}) && !now.follows(w.last)
	w.last = now
	if w.filled && !restarted {
		failed, err = w.advance(ctx)
		w.filled = err == nil
		return false, failed, err
	}
	failed, err = w.refill(ctx)
	w.filled = err == nil && len(failed) == 0
	return restarted, failed, err
}
