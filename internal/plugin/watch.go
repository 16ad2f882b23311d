package plugin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"k8s.io/client-go/tools/cache"

	"kusionstack.io/kuperator/internal/insight"
)

const (
	// redrawAfter gathers changes that come together.
	redrawAfter = 500 * time.Millisecond
	// refreshEvery is how often it is drawn although nothing came: ages grow, and Leases get stale in silence.
	refreshEvery = 10 * time.Second
)

// live keeps the facts of a namespace by watches.
type live struct {
	s         *session
	namespace string
	watched   []watched
	gaps      []insight.Gap // about the kinds that are not watched, because they cannot be read
	slow      insight.Facts // Namespaces and nodes, read again every refreshEvery
	changed   chan struct{}
}

// watched is a kind that is watched.
type watched struct {
	source
	store cache.Store
}

// start begins the watches and waits until each has been listed. Kinds that the first reading could not read, by its
// gaps, are not watched: that would be tried for ever.
func (l *live) start(ctx context.Context, gaps []insight.Gap) error {
	var synced []cache.InformerSynced
	wakeUp := func(any) {
		select {
		case l.changed <- struct{}{}:
		default:
		}
	}
	for _, from := range l.s.sources(l.namespace) {
		isItsGap := func(g insight.Gap) bool { return strings.HasPrefix(g.What, from.resource+" ") }
		if i := slices.IndexFunc(gaps, isItsGap); i >= 0 {
			l.gaps = append(l.gaps, gaps[i])
			continue
		}
		handler := cache.ResourceEventHandlerFuncs{AddFunc: wakeUp, UpdateFunc: func(_, now any) { wakeUp(now) },
			DeleteFunc: wakeUp}
		if from.resource == leasesResource {
			handler = cache.ResourceEventHandlerFuncs{} // they are renewed all the time
		}
		store, controller := cache.NewInformerWithOptions(cache.InformerOptions{
			ListerWatcher: cache.ToListWatcherWithWatchListSemantics(from.requests, l.s.kube),
			ObjectType:    from.example, Handler: handler})
		l.watched = append(l.watched, watched{from, store})
		synced = append(synced, controller.HasSynced)
		go controller.RunWithContext(ctx)
	}
	if !cache.WaitForCacheSync(ctx.Done(), synced...) {
		return context.Cause(ctx)
	}
	return nil
}

// refresh reads what is not watched.
func (l *live) refresh(ctx context.Context) error {
	l.slow = insight.Facts{Pods: l.now().Pods}
	return errors.Join(l.s.readNamespaces(ctx, l.namespace, &l.slow), l.s.readNodes(ctx, l.namespace, &l.slow))
}

// now are the facts as the watches show them.
func (l *live) now() insight.Facts {
	f := insight.Facts{Now: l.s.now(), System: l.s.system, Namespaces: l.slow.Namespaces,
		NamespaceLabels: l.slow.NamespaceLabels, Nodes: l.slow.Nodes, Gaps: slices.Concat(l.slow.Gaps, l.gaps)}
	for _, w := range l.watched {
		for _, object := range w.store.List() {
			w.into(&f, object)
		}
		f.LeasesKnown = f.LeasesKnown || w.resource == leasesResource
	}
	return f
}

// watch draws the fleet again whenever it changes, until its context ends.
func (p *plugin) watch(ctx context.Context, s *session, namespace string, o statusOptions) error {
	drawn := ""
	return s.follow(ctx, namespace, func(fleet insight.Fleet) error {
		fleet, err := o.pick(fleet)
		if err != nil {
			return err
		}
		drawn, err = p.draw(fleet, o, drawn)
		return err
	})
}

// follow calls seen with the fleet of a namespace (empty: of the cluster) and again whenever it may have changed, until
// ctx ends or seen fails.
func (s *session) follow(ctx context.Context, namespace string, seen func(insight.Fleet) error) error {
	return s.followFacts(ctx, namespace, func(facts insight.Facts) error { return seen(insight.Describe(facts)) })
}

// followFacts is follow with the facts of which the fleet is described.
func (s *session) followFacts(ctx context.Context, namespace string, seen func(insight.Facts) error) error {
	first, err := s.facts(ctx, namespace) // says what may not be read
	if err != nil {
		return err
	}
	l := &live{s: s, namespace: namespace, changed: make(chan struct{}, 1)}
	if err := l.start(ctx, first.Gaps); err != nil {
		return err
	}
	refresh := s.clock.NewTicker(refreshEvery)
	defer refresh.Stop()
	if err := l.refresh(ctx); err != nil {
		return err
	}
	for {
		if err := seen(l.now()); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-refresh.C():
			if err := l.refresh(ctx); err != nil {
				return err
			}
		case <-l.changed:
			select {
			case <-ctx.Done():
				return nil
			case <-s.clock.After(redrawAfter):
			}
		}
	}
}

// draw writes the fleet: on a terminal over what was there, elsewhere only if something but ages has changed. It
// returns what it would compare with.
func (p *plugin) draw(fleet insight.Fleet, o statusOptions, before string) (string, error) {
	still := fleet
	still.ObservedAt = time.Time{}
	still.Components = nil // Leases are renewed all the time
	for _, c := range fleet.Components {
		c.Renewed = nil
		still.Components = append(still.Components, c)
	}
	var text strings.Builder
	writeFleet(&text, still, o)
	same := text.String() == before
	switch {
	case p.isText() && p.isTerminal():
		fmt.Fprint(p.Out, "\033[H\033[2J")
	case same:
		return before, nil
	}
	err := p.print(fleet, func(w io.Writer) {
		fmt.Fprintf(w, "%s\n", fleet.ObservedAt.UTC().Format(time.RFC3339))
		writeFleet(w, fleet, o)
	})
	return text.String(), err
}
