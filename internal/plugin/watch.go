package plugin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
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
	watched   []*watched
	gaps      []insight.Gap // about the kinds that are not watched, because they cannot be read
	slow      insight.Facts // Namespaces and nodes, read again every refreshEvery
	changed   chan struct{}
}

// watched is one kind that is watched.
type watched struct {
	resource string // as gaps name it
	isQuiet  bool   // its changes are no reason to draw again
	example  runtime.Object
	requests *cache.ListWatch
	into     func(*insight.Facts, []any)
	store    cache.Store
}

// watching is a kind that goes into a list of the facts. The selector is one of labels, "" for all objects.
func watching[T any, P interface {
	*T
	runtime.Object
}, L runtime.Object](
	resource, selector string, client interface {
		List(context.Context, metav1.ListOptions) (L, error)
		Watch(context.Context, metav1.ListOptions) (watch.Interface, error)
	}, list func(*insight.Facts) *[]T,
) *watched {
	return &watched{resource: resource, example: P(new(T)), requests: &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			o.LabelSelector = selector
			return client.List(ctx, o)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.LabelSelector = selector
			return client.Watch(ctx, o)
		},
	}, into: func(f *insight.Facts, objects []any) {
		for _, o := range objects {
			if item, ok := o.(*T); ok {
				*list(f) = append(*list(f), *item)
			}
		}
	}}
}

// kinds are those to watch.
func (l *live) kinds() []*watched {
	core, suite := l.s.kube.CoreV1(), l.s.suite.AppsV1alpha1()
	leases := watching(leasesResource, "", l.s.kube.CoordinationV1().Leases(l.s.system),
		func(f *insight.Facts) *[]coordinationv1.Lease { return &f.Leases })
	leases.isQuiet = true // they are renewed all the time
	return []*watched{
		watching("pods", managedPods, core.Pods(l.namespace),
			func(f *insight.Facts) *[]corev1.Pod { return &f.Pods }),
		watching(setsResource, "", suite.CollaSets(l.namespace),
			func(f *insight.Facts) *[]appsv1alpha1.CollaSet { return &f.CollaSets }),
		watching(rulesResource, "", suite.PodTransitionRules(l.namespace),
			func(f *insight.Facts) *[]appsv1alpha1.PodTransitionRule { return &f.Rules }),
		watching(jobsResource, "", suite.OperationJobs(l.namespace),
			func(f *insight.Facts) *[]appsv1alpha1.OperationJob { return &f.Jobs }),
		watching(decorationsResource, "", suite.PodDecorations(l.namespace),
			func(f *insight.Facts) *[]appsv1alpha1.PodDecoration { return &f.Decorations }),
		leases,
	}
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
	for _, w := range l.kinds() {
		isItsGap := func(g insight.Gap) bool { return strings.HasPrefix(g.What, w.resource+" ") }
		if i := slices.IndexFunc(gaps, isItsGap); i >= 0 {
			l.gaps = append(l.gaps, gaps[i])
			continue
		}
		handler := cache.ResourceEventHandlerFuncs{AddFunc: wakeUp, UpdateFunc: func(_, now any) { wakeUp(now) },
			DeleteFunc: wakeUp}
		if w.isQuiet {
			handler = cache.ResourceEventHandlerFuncs{}
		}
		store, controller := cache.NewInformerWithOptions(cache.InformerOptions{ObjectType: w.example, Handler: handler,
			ListerWatcher: cache.ToListWatcherWithWatchListSemantics(w.requests, l.s.kube)})
		w.store = store
		l.watched = append(l.watched, w)
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
		w.into(&f, w.store.List())
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
